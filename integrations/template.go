package integrations

import (
	"strings"
)

// A template is text with placeholders, cut into parts.
type template []part

// A part is either literal text or the name in a placeholder.
type part struct {
	lit string
	ref string // "owner", "item", "item.email", or a dot path in a preview's say
}

// refs returns the names of the placeholders, in order.
func (t template) refs() []string {
	var refs []string
	for _, p := range t {
		if p.ref != "" {
			refs = append(refs, p.ref)
		}
	}
	return refs
}

// whole returns the name of the placeholder that is all of the template.
func (t template) whole() (string, bool) {
	if len(t) == 1 && t[0].ref != "" {
		return t[0].ref, true
	}
	return "", false
}

// literal returns the text of a template without placeholders.
func (t template) literal() string {
	var b strings.Builder
	for _, p := range t {
		b.WriteString(p.lit)
	}
	return b.String()
}

// parseTemplate cuts s into parts. A brace that is not part of a placeholder keeps a
// space inside ("{ nodes }"), so that a typing error cannot turn a placeholder into text
// or text into a placeholder; why says what is wrong, "" when nothing is.
func parseTemplate(s string) (t template, why string) {
	var lit strings.Builder
	open := 0
	flush := func() {
		if lit.Len() > 0 {
			t = append(t, part{lit: lit.String()})
			lit.Reset()
		}
	}
	for i := 0; i < len(s); {
		switch c := s[i]; c {
		case '{':
			if i > 0 && s[i-1] == '}' {
				return nil, "two braces stand side by side: }{"
			}
			if i+1 < len(s) && isSpace(s[i+1]) {
				open++
				lit.WriteByte(c)
				i++
				continue
			}
			j := i + 1
			for j < len(s) && isRef(s[j], j == i+1) {
				j++
			}
			if j == i+1 || j >= len(s) || s[j] != '}' || s[j-1] == '.' || strings.Contains(s[i:j], "..") {
				return nil, "the brace after " + quoteTail(s[:i]) + " begins no placeholder"
			}
			flush()
			t = append(t, part{ref: s[i+1 : j]})
			i = j + 1
		case '}':
			if i == 0 || !isSpace(s[i-1]) || open == 0 {
				return nil, "the brace after " + quoteTail(s[:i]) + " closes nothing"
			}
			open--
			lit.WriteByte(c)
			i++
		default:
			lit.WriteByte(c)
			i++
		}
	}
	if open != 0 {
		return nil, "a brace is not closed"
	}
	flush()
	return t, ""
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

func isRef(c byte, first bool) bool {
	letter := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_'
	return letter || !first && ('0' <= c && c <= '9' || c == '.' || c == '-')
}

// quoteTail names a place in a text by the few characters before it.
func quoteTail(s string) string {
	if s == "" {
		return "the beginning"
	}
	r := []rune(s)
	if len(r) > 20 {
		return "“…" + string(r[len(r)-20:]) + "”"
	}
	return "“" + s + "”"
}

type pairTemplate struct {
	name string
	t    template
}

// A segment of a path is literal text, or an arg with a literal suffix.
type segment struct {
	lit    string
	ref    string
	suffix string
}

// A Template is a JSON value whose texts may hold placeholders: a text that is one whole
// placeholder takes the arg's value and type, any other is filled in.
type Template struct {
	kind  byte
	name  string // in an object
	text  template
	digit string // a number's digits, or true, false, null
	kids  []*Template
	each  string // the list arg of {"each", "as"}; kids[0] is then what stands for an item
}

func (t *Template) decodeNode(r *reading, n *node, pointer string) {
	t.kind = n.kind
	switch n.kind {
	case '"':
		tpl, why := parseTemplate(n.text)
		if why != "" {
			r.fault(pointer, "template.brace", why)
			return
		}
		t.text = tpl
	case '{':
		if e := n.get("each"); e != nil {
			as := n.get("as")
			if as == nil || len(n.kids) != 2 || e.kind != '"' {
				r.fault(pointer, "body.each", `"each" stands with "as" and nothing else`)
				return
			}
			tpl, why := parseTemplate(e.text)
			ref, whole := tpl.whole()
			if why != "" || !whole {
				r.fault(at(pointer, "each"), "body.each", `"each" names one list arg, such as "{attendees}"`)
				return
			}
			t.each = ref
			kid := new(Template)
			kid.decodeNode(r, as, at(pointer, "as"))
			t.kids = []*Template{kid}
			return
		}
		for _, k := range n.kids {
			p := at(pointer, k.name)
			if strings.ContainsAny(k.name, "{}") {
				r.faultKey(p, "body.key", "a key holds a brace; keys are fixed")
			}
			if changesMethod.MatchString(k.name) {
				r.faultKey(p, "param.name", "some servers take the method from a key of this name")
			}
			kid := &Template{name: k.name}
			kid.decodeNode(r, k, p)
			kid.name = k.name
			t.kids = append(t.kids, kid)
		}
	case '[':
		for i, k := range n.kids {
			kid := new(Template)
			kid.decodeNode(r, k, at(pointer, i))
			t.kids = append(t.kids, kid)
		}
	default:
		if n.kind == '0' {
			r.number(n, pointer)
		}
		t.digit = n.text
	}
}

// changesMethod matches names from which some servers take another method than the
// request's: Rails, Laravel and Symfony (PHP reads .method as _method), Salesforce,
// method-override.
var changesMethod = lazily(`(?i)^(?:[._ ]method|[._$ ]?(?:x[-._]?)?http[-._]?method(?:[-._]?override)?|(?:x[-._]?)?method[-._]?override)$`)

// walk calls f for every text of t with its place. optional says that it stands inside an
// item of a list arg, and so may not be sent at all.
func (t *Template) walk(pointer string, each string, f func(t *Template, pointer, each string)) {
	switch t.kind {
	case '"':
		f(t, pointer, each)
	case '{':
		if t.each != "" {
			f(t, at(pointer, "each"), each)
			t.kids[0].walk(at(pointer, "as"), t.each, f)
			return
		}
		for _, k := range t.kids {
			k.walk(at(pointer, k.name), each, f)
		}
	case '[':
		for i, k := range t.kids {
			k.walk(at(pointer, i), each, f)
		}
	}
}

// member returns the member of an object by dot path, or nil.
func (t *Template) member(path string) *Template {
	for _, seg := range strings.Split(path, ".") {
		var next *Template
		if t != nil && t.kind == '{' && t.each == "" {
			for _, k := range t.kids {
				if k.name == seg {
					next = k
				}
			}
		}
		t = next
	}
	return t
}
