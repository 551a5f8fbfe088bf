package integrations

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// Args are what a caller gives an operation, as JSON decodes them: string, bool, nil,
// []any, map[string]any, and for numbers json.Number or any of Go's. A scalar may also be
// given as text in its type's own form.
type Args map[string]any

// The bounds of args, beside those that a manifest sets.
const (
	maxArgsBytes    = 64 << 10
	defaultMaxText  = 4096 // code points of a text without "max"
	defaultMaxItems = 100
	maxMapKey       = 40
	maxMapValue     = 500
)

// ParseArgs reads args from one JSON object, strictly: duplicate keys, invalid UTF-8,
// trailing data and more than 64 KB are refused, and numbers keep their digits.
func ParseArgs(data []byte) (Args, error) {
	refuse := func(why string) (Args, error) {
		return nil, &RefusedError{Reason: "the args are not one JSON object: " + why}
	}
	if len(data) > maxArgsBytes {
		return refuse("they are larger than 65,536 bytes")
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data)) // strict about duplicates and UTF-8
	v, err := dec.ReadValue()
	if err == nil {
		v = v.Clone() // the next read takes its buffer
		if _, e := dec.ReadToken(); e != io.EOF {
			return refuse("something follows the object")
		}
	}
	if err != nil {
		var se *jsontext.SyntacticError
		if errors.As(err, &se) {
			return refuse(fmt.Sprintf("at byte %d: %v", se.ByteOffset, cause(se)))
		}
		return refuse("they end too early")
	}
	if v.Kind() != '{' {
		return refuse("they are of another kind")
	}
	var args Args
	d := json.NewDecoder(bytes.NewReader(v))
	d.UseNumber()
	if err := d.Decode(&args); err != nil {
		return refuse("they do not decode")
	}
	return args, nil
}

// cause names a syntax error without its text, which may hold a value.
func cause(e *jsontext.SyntacticError) string {
	if errors.Is(e.Err, jsontext.ErrDuplicateName) {
		return "a key stands twice"
	}
	return "this is not JSON"
}

// A value is an arg in its type's one form: what is sent, shown and hashed.
type value struct {
	null   bool
	text   string  // a scalar
	list   []value // a list
	fields []field // an object in a list, in the manifest's order; or a map, by key
}

type field struct {
	name string
	value
}

type compiledPattern struct{ re *regexp.Regexp }

func compilePattern(s string) (*compiledPattern, error) {
	// By itself first: a)|(b is no expression, though it is one between parentheses.
	if _, err := regexp.Compile(s); err != nil {
		return nil, err
	}
	re, err := regexp.Compile(`^(?:` + s + `)$`)
	if err != nil {
		return nil, err
	}
	return &compiledPattern{re}, nil
}

// canonical brings v into the arg's one form; why says what is wrong, and never repeats
// the value.
func (a *Arg) canonical(v any) (out value, why string) {
	if v == nil {
		if a.Clear {
			return value{null: true}, ""
		}
		return out, "null is not allowed here; leave it out instead"
	}
	switch a.Kind() {
	case "list":
		return a.canonicalList(v)
	case "map":
		return a.canonicalMap(v)
	}
	text, isText, ok := scalarText(v)
	if !ok {
		return out, "this is not " + a.kindWords()
	}
	if !utf8.ValidString(text) {
		return out, "this is not valid UTF-8"
	}
	if f, isFloat := v.(float64); isFloat && a.Kind() != "number" && math.Abs(f) >= 1<<53 {
		return out, "this number may have lost digits; give it as text"
	}
	switch a.Kind() {
	case "string", "path", "id", "enum":
		// A bot may well send 12 for an id: its digits are what is meant. A fraction or
		// true is not.
		if !isText && !digits.MatchString(text) {
			return out, "this is not " + a.kindWords()
		}
	case "boolean":
		if text != "true" && text != "false" {
			return out, "this is not true or false"
		}
	default:
		if _, isBool := v.(bool); isBool {
			return out, "this is not " + a.kindWords()
		}
	}
	switch a.Kind() {
	case "integer":
		n, ok := new(big.Int).SetString(text, 10)
		if !ok || strings.HasPrefix(text, "+") {
			return out, "this is not a whole number"
		}
		if !n.IsInt64() {
			return out, "this does not fit in 64 bits"
		}
		text = n.String()
		if why := a.inRange(new(big.Rat).SetInt(n)); why != "" {
			return out, why
		}
	case "number":
		if !jsonNumber.MatchString(text) {
			return out, "this is not a number"
		}
		f, err := strconv.ParseFloat(text, 64)
		if err != nil || math.IsInf(f, 0) {
			return out, "this number is too large"
		}
		text = formatNumber(f)
		r, _ := new(big.Rat).SetString(text)
		if why := a.inRange(r); why != "" {
			return out, why
		}
	case "boolean":
	case "enum":
		if !slices.Contains(a.Values, text) {
			return out, "this is not one of: " + strings.Join(a.Values, ", ")
		}
	case "date":
		t, err := time.Parse("2006-01-02", text)
		if err != nil || t.Year() < 1 {
			return out, "this is not a date such as 2026-12-02"
		}
		text = t.Format("2006-01-02")
	case "datetime":
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil || !stamp.MatchString(text) {
			return out, "this is not a date and time such as 2026-12-02T15:04:05Z"
		}
		if t = t.UTC(); t.Year() < 1 || t.Year() > 9999 {
			return out, "this year is out of range"
		}
		text = t.Format(time.RFC3339Nano)
	case "id":
		if !idPattern.MatchString(text) {
			return out, "this is not an id: letters, digits, _ and - only"
		}
		if why := a.inLength(text); why != "" {
			return out, why
		}
	default:
		if why := a.inLength(text); why != "" {
			return out, why
		}
		if a.Kind() == "path" {
			for _, seg := range strings.Split(text, "/") {
				if why := badSegment(seg); why != "" {
					return out, "a segment of this path " + why
				}
			}
		}
	}
	if a.pattern != nil && !a.pattern.re.MatchString(text) {
		return out, "this does not have the form " + a.Pattern
	}
	return value{text: text}, ""
}

func (a *Arg) canonicalList(v any) (out value, why string) {
	items, ok := listItems(v)
	if !ok {
		return out, "this is not a list"
	}
	limit := a.MaxItems
	if limit == 0 {
		limit = defaultMaxItems
	}
	if len(items) > limit {
		return out, fmt.Sprintf("the list has %d items; at most %d are allowed", len(items), limit)
	}
	out.list = make([]value, 0, len(items))
	for i, it := range items {
		item := value{}
		if a.Of != nil && a.Of.Object != nil {
			obj, ok := it.(map[string]any)
			if !ok {
				return out, fmt.Sprintf("item %d is not an object", i+1)
			}
			item, why = a.Of.Object.canonicalObject(obj)
		} else {
			item, why = a.item().canonical(it)
		}
		if why != "" {
			return out, fmt.Sprintf("item %d: %s", i+1, why)
		}
		if a.Style == "comma" && strings.Contains(item.text, ",") {
			return out, fmt.Sprintf("item %d holds a comma, which separates items here", i+1)
		}
		out.list = append(out.list, item)
	}
	return out, ""
}

func (l ArgList) canonicalObject(obj map[string]any) (out value, why string) {
	for _, name := range sortedKeys(obj) {
		if l.Get(name) == nil {
			return out, fmt.Sprintf("the field %q is not known; the fields are: %s", clip(visible(name)), strings.Join(l.names(), ", "))
		}
	}
	for _, a := range l {
		v, given := obj[a.Name]
		if !given && a.Default != nil {
			v, given = a.Default.Text, true
		}
		if !given {
			if a.Required() {
				return out, fmt.Sprintf("the field %q is missing", a.Name)
			}
			continue
		}
		c, why := a.canonical(v)
		if why != "" {
			return out, a.Name + ": " + why
		}
		out.fields = append(out.fields, field{a.Name, c})
	}
	return out, ""
}

func (a *Arg) canonicalMap(v any) (out value, why string) {
	var m map[string]any
	switch v := v.(type) {
	case map[string]any:
		m = v
	case map[string]string:
		m = make(map[string]any, len(v))
		for k, s := range v {
			m[k] = s
		}
	default:
		return out, "this is not a map of texts"
	}
	limit := a.MaxItems
	if limit == 0 {
		limit = defaultMaxItems
	}
	if len(m) > limit {
		return out, fmt.Sprintf("the map has %d entries; at most %d are allowed", len(m), limit)
	}
	for _, k := range sortedKeys(m) {
		if k == "" || utf8.RuneCountInString(k) > maxMapKey || !utf8.ValidString(k) || strings.ContainsAny(k, "[]") || visible(k) != k {
			return out, fmt.Sprintf("a key of the map is empty, longer than %d characters, or holds a bracket or control character", maxMapKey)
		}
		s, isText, ok := scalarText(m[k])
		if !ok || !isText || !utf8.ValidString(s) {
			return out, "a value of the map is not a text"
		}
		if utf8.RuneCountInString(s) > maxMapValue {
			return out, fmt.Sprintf("a value of the map is longer than %d characters", maxMapValue)
		}
		out.fields = append(out.fields, field{k, value{text: s}})
	}
	return out, ""
}

// item returns what a list of scalars holds.
func (a *Arg) item() *Arg {
	if a.Of == nil || a.Of.Arg == nil {
		return &Arg{Name: "item"}
	}
	return a.Of.Arg
}

func (l ArgList) names() []string {
	names := make([]string, len(l))
	for i, a := range l {
		names[i] = a.Name
	}
	return names
}

func (a *Arg) inRange(r *big.Rat) string {
	if a.Min != nil {
		if m, _ := new(big.Rat).SetString(a.Min.Text); r.Cmp(m) < 0 {
			return "this is less than " + a.Min.Text
		}
	}
	if a.Max != nil {
		if m, _ := new(big.Rat).SetString(a.Max.Text); r.Cmp(m) > 0 {
			return "this is more than " + a.Max.Text
		}
	}
	return ""
}

func (a *Arg) inLength(s string) string {
	n := utf8.RuneCountInString(s)
	limit := defaultMaxText
	if a.Max != nil {
		limit, _ = strconv.Atoi(a.Max.Text)
	}
	if n > limit {
		return fmt.Sprintf("this has %d characters; at most %d are allowed", n, limit)
	}
	if a.Min != nil {
		if least, _ := strconv.Atoi(a.Min.Text); n < least {
			return fmt.Sprintf("this has %d characters; at least %d are needed", n, least)
		}
	}
	return ""
}

func (a *Arg) kindWords() string {
	switch a.Kind() {
	case "string":
		return "a text"
	case "integer":
		return "a whole number"
	case "enum":
		return "one of: " + strings.Join(a.Values, ", ")
	case "id":
		return "an id"
	case "datetime":
		return "a date and time"
	}
	return "a " + a.Kind()
}

var (
	idPattern  = lazily(`^[A-Za-z0-9_-]+$`)
	digits     = lazily(`^-?[0-9]+$`)
	jsonNumber = lazily(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?$`)
)

// scalarText returns the text of a scalar as it was given, and whether it was text.
func scalarText(v any) (text string, isText, ok bool) {
	switch v := v.(type) {
	case string:
		return v, true, true
	case json.Number:
		return v.String(), false, true
	case bool:
		return strconv.FormatBool(v), false, true
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return "", false, false
		}
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return strconv.FormatInt(int64(v), 10), false, true
		}
		return formatNumber(v), false, true
	case int:
		return strconv.Itoa(v), false, true
	case int64:
		return strconv.FormatInt(v, 10), false, true
	}
	return "", false, false
}

func listItems(v any) ([]any, bool) {
	switch v := v.(type) {
	case []any:
		return v, true
	case []string:
		items := make([]any, len(v))
		for i, s := range v {
			items[i] = s
		}
		return items, true
	}
	return nil, false
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// formatNumber is ECMAScript's shortest form of f (ECMA-262, Number::toString), which is
// also JCS's (RFC 8785, section 3.2.2.3).
func formatNumber(f float64) string {
	if f == 0 {
		return "0" // also of -0
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.FormatFloat(f, 'f', -1, 64)
	}
	s := strconv.FormatFloat(f, 'e', -1, 64)
	// Go writes at least two digits of exponent, ECMAScript none too many.
	mant, exp, _ := strings.Cut(s, "e")
	sign := exp[:1]
	return mant + "e" + sign + strings.TrimLeft(exp[1:], "0")
}

// badSegment says why s cannot be one segment of a path.
func badSegment(s string) string {
	switch {
	case s == "":
		return "is empty"
	case s == "." || s == "..":
		return "is . or .."
	}
	for _, c := range s {
		switch {
		case c == '/' || c == '\\':
			return "holds a slash"
		case c < 0x20 || c >= 0x7f && c < 0xa0:
			return "holds a control character"
		}
	}
	return ""
}
