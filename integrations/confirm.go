package integrations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// The bounds of what a person reads, in Unicode code points.
const (
	maxShownValue = 80  // a value in a sentence
	maxSentence   = 400 // a sentence with its values
	maxShownRest  = 200 // a value under the button
)

// A Sentence is what a person confirms: the text, and every arg that it does not show
// whole. It is made from the manifest and the args alone.
type Sentence struct {
	Text  string
	Parts []SentencePart // Text in pieces, none empty, so that each value can be set apart
	Rest  []Shown        // args that are set and not whole in Text, in the manifest's order
}

// A SentencePart is a piece of the manifest's text, or the value of an arg.
type SentencePart struct {
	Text string
	Arg  string // "" for the manifest's own text
}

// Shown is an arg beside the sentence.
type Shown struct {
	Arg    string
	Text   string // at most 200 code points, cut with …
	Length int    // code points of Full
	Full   string // marked, never cut
}

// visible makes one line of s in which nothing is hidden: a newline reads " ⏎ ", and
// what has no shape or turns the direction of text reads "�".
func visible(s string) string {
	clean := true
	for i := 0; i < len(s) && clean; i++ {
		clean = s[i] >= 0x20 && s[i] < 0x7f
	}
	if clean {
		return s
	}
	s = strings.ReplaceAll(s, "\r\n", "\n")
	var b strings.Builder
	for _, c := range s {
		switch {
		case c == '\n' || c == '\r' || c == 0x85 || c == 0x2028 || c == 0x2029:
			b.WriteString(" ⏎ ")
		case c == '\t' || !projection.Visible(c):
			b.WriteRune(utf8.RuneError)
		default:
			b.WriteRune(c)
		}
	}
	return b.String()
}

// cut shortens s to n code points, the last of them "…".
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	i := 0
	for range n - 1 {
		_, size := utf8.DecodeRuneInString(s[i:])
		i += size
	}
	return s[:i] + "…"
}

// inside keeps a value from closing the quotation marks that it stands in, and from opening
// others further on.
var inside = strings.NewReplacer("“", "\"", "”", "\"", "„", "\"", "«", "\"", "»", "\"")

// Sentence returns what a person is asked to confirm. It is empty for a read.
func (c *Call) Sentence() Sentence { return c.sentence }

func (c *Call) makeSentence() (Sentence, error) {
	var s Sentence
	if c.Op.Access != Write {
		return s, nil
	}
	whole := make(map[string]bool) // args that the text shows uncut
	add := func(t template) {
		parts := fill(t, func(ref string) (string, bool) {
			v, ok := c.values[ref]
			if !ok {
				return "", false
			}
			full := c.show(c.Op.Args.Get(ref), v)
			text := inside.Replace(cut(full, maxShownValue))
			whole[ref] = text == full
			return text, true
		})
		s.Parts = append(s.Parts, parts...)
	}
	add(c.Op.confirm)
	for _, ci := range c.Op.confirmIf {
		if _, ok := c.values[ci.name]; ok {
			s.Parts = append(s.Parts, SentencePart{Text: " "})
			add(ci.t)
		}
	}
	var b strings.Builder
	parts := s.Parts[:0]
	for _, p := range s.Parts {
		b.WriteString(p.Text)
		if n := len(parts); n > 0 && p.Arg == "" && parts[n-1].Arg == "" {
			parts[n-1].Text += p.Text
		} else if p.Text != "" {
			parts = append(parts, p)
		}
	}
	s.Text, s.Parts = b.String(), parts
	if n := utf8.RuneCountInString(s.Text); n > maxSentence {
		return s, &RefusedError{Reason: fmt.Sprintf("the sentence to confirm would have %d characters; a person reads at most %d", n, maxSentence), Hint: "give shorter values"}
	}
	for _, a := range c.Op.Args {
		v, ok := c.values[a.Name]
		if !ok || whole[a.Name] {
			continue
		}
		full := c.show(a, v)
		s.Rest = append(s.Rest, Shown{Arg: a.Name, Text: cut(full, maxShownRest), Length: utf8.RuneCountInString(full), Full: full})
	}
	return s, nil
}

// fill replaces the placeholders of t. Where a value is absent the space before it goes,
// else the one after.
func fill(t template, get func(ref string) (string, bool)) []SentencePart {
	var parts []SentencePart
	trimNext := false
	for _, p := range t {
		if p.ref == "" {
			text := p.lit
			if trimNext {
				text = strings.TrimPrefix(text, " ")
				trimNext = false
			}
			parts = append(parts, SentencePart{Text: text})
			continue
		}
		if text, ok := get(p.ref); ok {
			parts = append(parts, SentencePart{Text: text, Arg: p.ref})
			trimNext = false
			continue
		}
		if n := len(parts) - 1; n >= 0 && parts[n].Arg == "" && strings.HasSuffix(parts[n].Text, " ") {
			parts[n].Text = strings.TrimSuffix(parts[n].Text, " ")
		} else {
			trimNext = true
		}
	}
	return parts
}

// show returns a value as a person reads it, marked but not cut.
func (c *Call) show(a *Arg, v value) string {
	if a.Money != nil && !v.null {
		code := ""
		if cv, ok := c.values[a.Money.Currency]; ok && a.Money.Currency != "" {
			code = cv.text
		}
		return c.Manifest.showMoney(v.text, code)
	}
	return a.show(v)
}

func (a *Arg) show(v value) string {
	switch {
	case v.null:
		return "nothing"
	case a.Kind() == "list":
		items := make([]string, len(v.list))
		for i, it := range v.list {
			if a.Of != nil && a.Of.Object != nil {
				items[i] = a.Of.Object.showObject(it)
			} else {
				items[i] = a.item().show(it)
			}
		}
		return orEmpty(strings.Join(items, ", "))
	case a.Kind() == "map":
		items := make([]string, len(v.fields))
		for i, f := range v.fields {
			items[i] = visible(f.name) + ": " + orEmpty(visible(f.text))
		}
		return orEmpty(strings.Join(items, ", "))
	case a.Kind() == "boolean":
		return yesNo(v.text == "true")
	case a.Kind() == "datetime":
		return showTime(v.text)
	}
	if w, ok := a.Words.Get(v.text); ok {
		return w
	}
	return orEmpty(visible(v.text))
}

func (l ArgList) showObject(v value) string {
	items := make([]string, len(v.fields))
	for i, f := range v.fields {
		items[i] = f.name + ": " + l.Get(f.name).show(f.value)
	}
	return orEmpty(strings.Join(items, "; "))
}

func orEmpty(s string) string {
	if s == "" {
		return "(empty)"
	}
	return s
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

// showTime turns RFC 3339 in UTC into "2026-12-02 15:04 UTC"; seconds stand where they
// are not zero.
func showTime(s string) string {
	day, clock, ok := strings.Cut(strings.TrimSuffix(s, "Z"), "T")
	if !ok {
		return s
	}
	return day + " " + strings.TrimSuffix(clock, ":00") + " UTC"
}

var currencyLetters = lazily(`^[A-Za-z]{3}$`)

// showMoney writes an amount in the smallest unit as people write it.
func (m *Manifest) showMoney(amount, code string) string {
	if !currencyLetters.MatchString(code) { // of other letters too, some have A to Z as upper case
		code = ""
	}
	code = strings.ToUpper(code)
	d, known := currencyDigits(code)
	if m.Money != nil {
		if own, ok := m.Money.Digits[code]; ok && known {
			d = own
		}
	}
	if !known {
		return amount + " in the currency's smallest unit"
	}
	sign := ""
	if strings.HasPrefix(amount, "-") {
		sign, amount = "-", amount[1:]
	}
	if d > 0 {
		if len(amount) <= d {
			amount = strings.Repeat("0", d-len(amount)+1) + amount
		}
		amount = amount[:len(amount)-d] + "." + amount[len(amount)-d:]
	}
	return sign + amount + " " + code
}

// currencyDigits returns how many digits a currency's smallest unit has, by ISO 4217.
func currencyDigits(code string) (digits int, known bool) {
	if len(code) != 3 {
		return 0, false
	}
	for d, codes := range currencies {
		if strings.Contains(codes, " "+code+" ") {
			return d, true
		}
	}
	return 0, false
}

// Say fills the preview's sentence with what the preview's operation picked. It is empty
// where the operation has no preview.
func (c *Call) Say(preview *Result) (string, error) {
	p := c.Op.Preview
	if p == nil {
		return "", nil
	}
	op := c.Manifest.Op(p.Op)
	var picked any
	dec := json.NewDecoder(bytes.NewReader(preview.JSON))
	dec.UseNumber()
	if err := dec.Decode(&picked); err != nil {
		return "", &ProviderError{Service: c.Manifest.Name, Status: preview.Status, Err: fmt.Errorf("the preview has nothing to show")}
	}
	parts := fill(p.say, func(ref string) (string, bool) {
		text := c.Manifest.showField(op, ref, picked)
		return inside.Replace(cut(text, maxShownValue)), text != ""
	})
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(part.Text)
	}
	if n := utf8.RuneCountInString(b.String()); n > maxSentence {
		return "", &RefusedError{Reason: fmt.Sprintf("the preview would have %d characters; a person reads at most %d", n, maxSentence)}
	}
	return b.String(), nil
}

// showField returns a picked field as a person reads it, "" where it is absent.
func (m *Manifest) showField(op *Op, path string, picked any) string {
	var f Field
	for _, pf := range op.Pick.Fields {
		if pf.Path == path {
			f = pf
		}
	}
	values := lookup(picked, path)
	var texts []string
	for i, v := range values {
		text, _, ok := scalarText(v)
		if !ok {
			continue
		}
		switch {
		case f.Money != nil:
			code := ""
			if f.Money.Currency != "" {
				// A list of amounts has a list of currencies beside it, one each.
				if cs := lookup(picked, sibling(path, f.Money.Currency)); i < len(cs) && len(cs) == len(values) {
					code, _, _ = scalarText(cs[i])
				}
			}
			if digits.MatchString(text) {
				text = m.showMoney(text, code)
			}
		case f.Time != "":
			text = showStamp(text, f.Time)
		default:
			if b, isBool := v.(bool); isBool {
				text = yesNo(b)
			}
		}
		texts = append(texts, orEmpty(visible(text)))
	}
	return strings.Join(texts, ", ")
}

// sibling returns the path of name beside the last segment of path.
func sibling(path, name string) string {
	if i := strings.LastIndexByte(path, '.'); i >= 0 {
		return path[:i+1] + name
	}
	return name
}

// lookup returns what stands at a dot path in a picked result, each of several where an
// array is on the way. Null counts as absent.
func lookup(v any, path string) []any {
	switch v := v.(type) {
	case nil:
		return nil
	case []any:
		var all []any
		for _, e := range v {
			all = append(all, lookup(e, path)...)
		}
		return all
	case map[string]any:
		if path == "" {
			return []any{v}
		}
		seg, rest, _ := strings.Cut(path, ".")
		return lookup(v[seg], rest)
	}
	if path != "" {
		return nil
	}
	return []any{v}
}

// showStamp writes a time of one of the forms of Field.Time; a text that is none stays.
func showStamp(s, form string) string {
	var t time.Time
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case form == "rfc3339":
		var perr error
		if t, perr = time.Parse(time.RFC3339, s); perr != nil || !stamp.MatchString(s) {
			return s
		}
	case err != nil:
		return s
	case form == "epoch_ms":
		t = time.UnixMilli(n)
	default:
		t = time.Unix(n, 0)
	}
	if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
		return s
	}
	return showTime(t.Format(time.RFC3339))
}

// stamp is RFC 3339 as every reader takes it; Go's own is more lenient.
var stamp = lazily(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])$`)
