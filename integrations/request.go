package integrations

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

const upperHex = "0123456789ABCDEF"

// escape percent-encodes all but RFC 3986's unreserved characters, so that a value is one
// segment, or one parameter, whatever it holds.
func escape(b *strings.Builder, s string) {
	for i := range len(s) {
		c := s[i]
		if 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' || c == '_' || c == '~' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
}

// path returns the escaped path: the manifest's segments, each arg as exactly one (an arg
// of type path as several).
func (c *Call) path() (string, error) {
	var b strings.Builder
	for _, s := range c.Op.path {
		b.WriteByte('/')
		if s.ref == "" {
			b.WriteString(s.lit)
			continue
		}
		a := c.Op.Args.Get(s.ref)
		text := c.sent(a, c.values[s.ref])
		segs := []string{text}
		if a.Kind() == "path" {
			segs = strings.Split(text, "/")
		}
		for i, seg := range segs {
			if why := badSegment(seg); why != "" {
				return "", &RefusedError{Arg: a.Name, Reason: "as a part of the address this " + why}
			}
			if i > 0 {
				b.WriteByte('/')
			}
			escape(&b, seg)
		}
		b.WriteString(s.suffix)
	}
	return b.String(), nil
}

// sent returns a scalar as it goes over the wire.
func (c *Call) sent(a *Arg, v value) string {
	if v.null {
		return ""
	}
	if (a.Kind() == "date" || a.Kind() == "datetime") && a.As != "" && a.As != "rfc3339" {
		layout := time.RFC3339Nano
		if a.Kind() == "date" {
			layout = "2006-01-02"
		}
		if t, err := time.Parse(layout, v.text); err == nil {
			if a.As == "epoch_ms" {
				return strconv.FormatInt(t.UnixMilli(), 10)
			}
			return strconv.FormatInt(t.Unix(), 10)
		}
	}
	return v.text
}

// expand fills a template with scalars; ok is false when it has placeholders and none of
// them is present.
func (c *Call) expand(t template) (s string, ok bool) {
	var b strings.Builder
	refs, present := 0, 0
	for _, p := range t {
		if p.ref == "" {
			b.WriteString(p.lit)
			continue
		}
		refs++
		if v, ok := c.values[p.ref]; ok {
			present++
			b.WriteString(c.sent(c.Op.Args.Get(p.ref), v))
		}
	}
	return b.String(), refs == 0 || present > 0
}

// pairs returns query or form parameters, names and values, in the manifest's order.
func (c *Call) pairs(pts []pairTemplate) []Pair {
	var out []Pair
	for _, pt := range pts {
		ref, whole := pt.t.whole()
		if !whole {
			if s, ok := c.expand(pt.t); ok {
				out = append(out, Pair{pt.name, s})
			}
			continue
		}
		v, ok := c.values[ref]
		if !ok {
			continue
		}
		a := c.Op.Args.Get(ref)
		switch a.Kind() {
		case "list":
			out = append(out, c.listPairs(pt.name, a, v)...)
		case "map":
			for _, f := range v.fields {
				out = append(out, Pair{pt.name + "[" + f.name + "]", f.text})
			}
		default:
			out = append(out, Pair{pt.name, c.sent(a, v)})
		}
	}
	return out
}

func (c *Call) listPairs(name string, a *Arg, v value) []Pair {
	var out []Pair
	if v.null {
		return []Pair{{name, ""}}
	}
	if a.Of != nil && a.Of.Object != nil {
		for i, it := range v.list {
			for _, f := range it.fields {
				out = append(out, Pair{fmt.Sprintf("%s[%d][%s]", name, i, f.name), c.sent(a.Of.Object.Get(f.name), f.value)})
			}
		}
		return out
	}
	texts := make([]string, len(v.list))
	for i, it := range v.list {
		texts[i] = c.sent(a.item(), it)
	}
	switch a.Style {
	case "comma":
		if len(texts) > 0 {
			out = append(out, Pair{name, strings.Join(texts, ",")})
		}
	case "brackets":
		for _, t := range texts {
			out = append(out, Pair{name + "[]", t})
		}
	case "indexed":
		for i, t := range texts {
			out = append(out, Pair{fmt.Sprintf("%s[%d]", name, i), t})
		}
	default:
		for _, t := range texts {
			out = append(out, Pair{name, t})
		}
	}
	return out
}

func encodePairs(pairs []Pair) string {
	var b strings.Builder
	for i, p := range pairs {
		if i > 0 {
			b.WriteByte('&')
		}
		escape(&b, p.Name)
		b.WriteByte('=')
		escape(&b, p.Value)
	}
	return b.String()
}

// A bodyWriter renders body_json.
type bodyWriter struct {
	c        *Call
	idemPath string // dot path that takes idemKey
	idemKey  string
	item     *Arg // while an item of "each" is rendered
	itemOf   ArgList
	itemVal  value
}

// jsonBody returns the JSON body.
func (c *Call) jsonBody(idempotencyKey string) []byte {
	w := bodyWriter{c: c}
	if c.Op.Idempotency != nil && c.Op.Idempotency.Body != "" {
		w.idemPath, w.idemKey = c.Op.Idempotency.Body, idempotencyKey
	}
	body, _ := w.render(nil, c.Op.BodyJSON, "")
	return body
}

// render appends t to b. It returns false, and b as it was, when t holds placeholders of
// which none is present.
func (w *bodyWriter) render(b []byte, t *Template, path string) ([]byte, bool) {
	start := len(b)
	switch t.kind {
	case '"':
		return w.renderText(b, t)
	case '[':
		b = append(b, '[')
		n, refs, present := len(b), false, len(t.kids) == 0
		for _, k := range t.kids {
			refs = refs || k.hasRefs()
			if len(b) > n {
				b = append(b, ',')
			}
			var ok bool
			if b, ok = w.render(b, k, ""); ok {
				present = present || k.hasRefs()
			} else if len(b) > n {
				b = b[:len(b)-1]
			}
		}
		if refs && !present {
			return b[:start], false
		}
		return append(b, ']'), true
	case '{':
		if t.each != "" {
			return w.renderEach(b, t)
		}
		b = append(b, '{')
		n, refs, present := len(b), false, false
		member := func(name string) int {
			back := len(b)
			if len(b) > n {
				b = append(b, ',')
			}
			b = appendText(b, name)
			b = append(b, ':')
			return back
		}
		here := path
		if here != "" {
			here += "."
		}
		for _, k := range t.kids {
			refs = refs || k.hasRefs()
			back := member(k.name)
			var ok bool
			if b, ok = w.render(b, k, here+k.name); ok {
				present = present || k.hasRefs()
			} else {
				b = b[:back]
			}
		}
		if parent, name, ok := cutLast(w.idemPath); ok && parent == path {
			member(name)
			b = appendText(b, w.idemKey)
			present = true
		}
		// The body itself stays: it is not an item of anything.
		if refs && !present && t != w.c.Op.BodyJSON {
			return b[:start], false
		}
		return append(b, '}'), true
	}
	return append(b, t.digit...), true
}

func cutLast(path string) (parent, name string, ok bool) {
	if path == "" {
		return "", "", false
	}
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		return path[:i], path[i+1:], true
	}
	return "", path, true
}

func (w *bodyWriter) renderText(b []byte, t *Template) ([]byte, bool) {
	if ref, ok := t.text.whole(); ok {
		a, v, ok := w.value(ref)
		if !ok {
			return b, false
		}
		return w.c.appendValue(b, a, v), true
	}
	refs := t.text.refs()
	present := len(refs) == 0
	var s strings.Builder
	for _, p := range t.text {
		s.WriteString(p.lit)
		if p.ref != "" {
			if a, v, ok := w.value(p.ref); ok {
				present = true
				s.WriteString(w.c.sent(a, v))
			}
		}
	}
	if !present {
		return b, false
	}
	return appendText(b, s.String()), true
}

// value returns what a placeholder of the body stands for.
func (w *bodyWriter) value(ref string) (*Arg, value, bool) {
	if ref == "item" && w.item != nil {
		return w.item, w.itemVal, true
	}
	if name, ok := strings.CutPrefix(ref, "item."); ok && w.itemOf != nil {
		for _, f := range w.itemVal.fields {
			if f.name == name {
				return w.itemOf.Get(name), f.value, true
			}
		}
		return nil, value{}, false
	}
	v, ok := w.c.values[ref]
	return w.c.Op.Args.Get(ref), v, ok
}

func (w *bodyWriter) renderEach(b []byte, t *Template) ([]byte, bool) {
	v, ok := w.c.values[t.each]
	if !ok {
		return b, false
	}
	if v.null {
		return append(b, "null"...), true
	}
	a := w.c.Op.Args.Get(t.each)
	in := *w
	in.idemPath = ""
	if a.Of != nil && a.Of.Object != nil {
		in.itemOf = a.Of.Object
	} else {
		in.item = a.item()
	}
	b = append(b, '[')
	n := len(b)
	for _, it := range v.list {
		in.itemVal = it
		if len(b) > n {
			b = append(b, ',')
		}
		var ok bool
		if b, ok = in.render(b, t.kids[0], ""); !ok && len(b) > n {
			b = b[:len(b)-1]
		}
	}
	return append(b, ']'), true
}

// hasRefs says whether t holds a placeholder anywhere.
func (t *Template) hasRefs() bool {
	has := t.each != ""
	t.walk("", "", func(t *Template, _, _ string) { has = has || len(t.text.refs()) > 0 })
	return has
}

// appendValue appends an arg's value in its JSON type.
func (c *Call) appendValue(b []byte, a *Arg, v value) []byte {
	if v.null {
		return append(b, "null"...)
	}
	switch a.Kind() {
	case "list":
		b = append(b, '[')
		for i, it := range v.list {
			if i > 0 {
				b = append(b, ',')
			}
			if a.Of != nil && a.Of.Object != nil {
				b = append(b, '{')
				for j, f := range it.fields {
					if j > 0 {
						b = append(b, ',')
					}
					b = append(appendText(b, f.name), ':')
					b = c.appendValue(b, a.Of.Object.Get(f.name), f.value)
				}
				b = append(b, '}')
			} else {
				b = c.appendValue(b, a.item(), it)
			}
		}
		return append(b, ']')
	case "map":
		b = append(b, '{')
		for i, f := range v.fields {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendText(b, f.name), ':')
			b = appendText(b, f.text)
		}
		return append(b, '}')
	case "integer", "number", "boolean":
		return append(b, v.text...)
	}
	s := c.sent(a, v)
	if (a.Kind() == "date" || a.Kind() == "datetime") && a.As != "" && a.As != "rfc3339" {
		return append(b, s...)
	}
	return appendText(b, s)
}

func appendText(b []byte, s string) []byte {
	b, err := jsontext.AppendQuote(b, s)
	if err != nil {
		// Args are valid UTF-8 before they come here, and a manifest is too.
		panic("integrations: text is not UTF-8")
	}
	return b
}

// uuidFrom makes a UUID of version 4's form from a key, the same for the same key.
func uuidFrom(key string) string {
	h := sha256.Sum256([]byte("connect/v1 idempotency" + key))
	h[6] = h[6]&0x0f | 0x40
	h[8] = h[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
