package integrations

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"
)

const (
	baseFile = "testdata/hostile/base.json"
	rowsFile = "testdata/hostile/rows.txt"
	marker   = "◊" // stands where a fault is told
)

// A hostileRow is a manifest with faults: a rule for each marker in its text.
type hostileRow struct {
	name  string
	rules []string // none where the manifest is accepted
	text  string   // with markers
}

// plain returns the text without markers.
func (r hostileRow) plain() []byte { return []byte(strings.ReplaceAll(r.text, marker, "")) }

// places returns line and column of each marker, counted without the markers.
func (r hostileRow) places() (places []string) {
	parts := strings.Split(r.text, marker)
	before := ""
	for _, p := range parts[:len(parts)-1] {
		before += p
		line := 1 + strings.Count(before, "\n")
		places = append(places, fmt.Sprintf("%d:%d", line, len(before)-strings.LastIndexByte(before, '\n')))
	}
	return places
}

func readFile(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// hostileRows returns every row: those of rows.txt, and those that hold raw bytes.
func hostileRows(t testing.TB) []hostileRow {
	t.Helper()
	base := readFile(t, baseFile)
	rows := rawRows(base)
	names := make(map[string]bool)
	for _, block := range strings.Split(readFile(t, rowsFile), "\n\n") {
		r, err := parseRow(base, block)
		if err != nil {
			t.Fatalf("%s: %v in\n%s", rowsFile, err, block)
		}
		if r.name != "" {
			rows = append(rows, r)
		}
	}
	for _, r := range rows {
		key := strings.Join(r.rules, " ") + ": " + r.name
		if names[key] {
			t.Fatalf("two rows are called %q", key)
		}
		names[key] = true
		if n := strings.Count(r.text, marker); n != len(r.rules) {
			t.Fatalf("%q has %d rules and %d markers", key, len(r.rules), n)
		}
	}
	return rows
}

// parseRow reads a block of rows.txt, whose head says how they are written.
func parseRow(base, block string) (hostileRow, error) {
	var r hostileRow
	var from, to []string // pairs of texts
	anchor, last := "", byte('+')
	for _, line := range strings.Split(strings.Trim(block, "\n"), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		if r.name == "" {
			head, name, ok := strings.Cut(line, ": ")
			if !ok {
				return r, fmt.Errorf("the head %q has no name", line)
			}
			r.name = name
			for _, w := range strings.Fields(head) {
				switch {
				case w[0] == '@':
					anchor = w[1:]
				case w != "ok":
					r.rules = append(r.rules, w)
				}
			}
			continue
		}
		text := strings.TrimPrefix(line[1:], " ")
		switch {
		case line[0] == '-' && last == '+':
			from, to = append(from, text), append(to, "")
		case line[0] == '-':
			from[len(from)-1] += "\n" + text
		case line[0] == '+' && last == '-':
			to[len(to)-1] = text
		case line[0] == '+' && len(to) > 0:
			to[len(to)-1] += "\n" + text
		default:
			return r, fmt.Errorf("the line %q is none of a row", line)
		}
		last = line[0]
	}
	if r.name == "" {
		return r, nil
	}
	if len(from) == 0 || last != '+' {
		return r, errors.New("the row changes nothing")
	}
	r.text = base
	for i := range from {
		start := 0
		if anchor != "" {
			if start = strings.Index(r.text, `"`+anchor+`": `); start < 0 {
				return r, fmt.Errorf("the base has no %q", anchor)
			}
		}
		n := strings.Count(r.text[start:], from[i])
		if n == 0 || n > 1 && anchor == "" {
			return r, fmt.Errorf("%q stands %d times in the base", from[i], n)
		}
		r.text = r.text[:start] + strings.Replace(r.text[start:], from[i], to[i], 1)
	}
	return r, nil
}

// rawRows are the rows that a text file cannot hold.
func rawRows(base string) []hostileRow {
	change := func(from, to string) string {
		if strings.Count(base, from) != 1 {
			panic("the base holds " + from + " not once")
		}
		return strings.Replace(base, from, to, 1)
	}
	before, _, _ := strings.Cut(base, `,
    "oauth": {`)
	_, after, _ := strings.Cut(base, `  "viewer": `)
	noOAuth := before + "\n  },\n  \"viewer\": " + after
	return []hostileRow{
		{"for OAuth that is not there", []string{"ready"}, strings.Replace(noOAuth, `"for": `, `"for": `+marker, 1)},
		{"no way to connect", []string{"auth.none"}, strings.Replace(strings.Replace(noOAuth, `"for": "oauth", `, "", 1),
			before[strings.Index(before, `"authorization"`):], `"authorization": `+marker+`{ "pasted": "no", "why": "Acme has no keys" }`, 1)},
		{"no operation", []string{"ops.none"}, base[:strings.Index(base, `  "ops": `)] + `  "ops": ` + marker + "{}\n}"},
		{"no OAuth", nil, strings.Replace(noOAuth, `"for": "oauth"`, `"for": "pasted"`, 1)},
		{"a byte-order mark", []string{"json.bom"}, marker + "\ufeff" + base},
		{"a byte-order mark inside", []string{"text.plain"}, change(`"the site"`, marker+"\"the \ufeffsite\"")},
		{"UTF-16", []string{"json.utf8"}, marker + "\xff\xfe{\x00}\x00"},
		{"Latin-1", []string{"json.utf8"}, change(`"the site"`, "\"the "+marker+"\xe9tat\"")},
		{"an overlong slash", []string{"json.utf8"}, change(`"/v1/me"`, "\"/v1"+marker+"\xc0\xafme\"")},
		{"a surrogate as bytes", []string{"json.utf8"}, change(`"the site"`, "\"the "+marker+"\xed\xa0\xbd\"")},
		{"a cut character", []string{"json.utf8"}, base + marker + "\xe2\x82"},
		{"nothing", []string{"json.syntax"}, marker},
		{"spaces only", []string{"json.syntax"}, marker + " \n\t"},
		{"an end too early", []string{"json.syntax"}, base[:len(base)/2] + marker},
		{"an open text", []string{"json.syntax"}, `{"manifest": 1, "id": "acme` + marker},
		{"another bracket", []string{"json.syntax"}, `{"manifest": 1, "headers": [1` + marker + `}`},
		{"a zero byte", []string{"json.syntax"}, `{"manifest": 1` + marker + "\x00}"},
		{"a raw line break in a text", []string{"json.syntax"}, change(`"the site"`, "\"the"+marker+"\rsite\"")},
		{"a space that JSON does not know", []string{"json.syntax"}, change(`"id": "acme",`, `"id":`+marker+"\u00a0\"acme\",")},
		{"a list", []string{"json.object"}, "\n " + marker + "[" + base + "]"},
		{"a text", []string{"json.object"}, marker + `"manifest"`},
		{"null", []string{"json.object"}, marker + "null\n"},
		{"a second object", []string{"json.trailing"}, base + "\n" + marker + base},
		{"a second closing brace", []string{"json.trailing"}, base + marker + "}"},
		{"a comma after it", []string{"json.trailing"}, strings.TrimSpace(base) + marker + ","},
		{"a zero byte after it", []string{"json.trailing"}, base + marker + "\x00"},
		{"a comment after it", []string{"json.trailing"}, base + "\n" + marker + "// done"},
		{"more than 256 KB", []string{"json.size"}, base + strings.Repeat(" ", maxManifestBytes-len(base)) + marker + " "},
		{"far more than 256 KB", []string{"json.size"}, strings.Repeat("[", maxManifestBytes) + marker + strings.Repeat("[", 1<<20)},
		{"256 KB to the byte", nil, base + strings.Repeat(" ", maxManifestBytes-len(base))},
	}
}

// TestHostile: every hostile manifest is refused for its fault alone, told at its place.
func TestHostile(t *testing.T) {
	base := hostileRow{name: "the base", text: readFile(t, baseFile)}
	covered := make(map[string]int)
	n := 0
	for _, r := range append(hostileRows(t), base) {
		t.Run(strings.Join(append(r.rules, r.name), "/"), func(t *testing.T) {
			m, err := Parse(r.plain())
			if len(r.rules) == 0 {
				if err != nil {
					t.Fatalf("it is refused:\n%v", err)
				}
				return
			}
			n++
			var faults Faults
			if !errors.As(err, &faults) || !errors.Is(err, ErrManifest) || m != nil {
				t.Fatalf("it is accepted (%v)", err)
			}
			places := r.places()
			for i := range max(len(faults), len(places)) {
				switch {
				case i >= len(faults):
					t.Errorf("missing: %s [%s]", places[i], r.rules[i])
				case i >= len(places):
					t.Errorf("too much: %v", faults[i])
				default:
					covered[r.rules[i]]++
					if got, want := fmt.Sprintf("%d:%d [%s]", faults[i].Line, faults[i].Column, faults[i].Rule), fmt.Sprintf("%s [%s]", places[i], r.rules[i]); got != want {
						t.Errorf("got %v, want %s", faults[i], want)
					}
				}
			}
			for _, f := range faults {
				checkFault(t, f)
			}
		})
	}
	for _, r := range Rules() {
		if covered[r.ID] == 0 && !strings.HasPrefix(r.ID, "load.") {
			t.Errorf("no row is refused for %s", r.ID)
		}
	}
	t.Logf("%d hostile manifests, %d rules", n, len(covered))
	if n < 150 {
		t.Errorf("%d hostile manifests, want at least 150", n)
	}
}

// TestBaseUsesAll: the base, with what rows change in it that is accepted, uses every key of
// the language, so that a row can be written for each.
func TestBaseUsesAll(t *testing.T) {
	texts := readFile(t, baseFile)
	for _, r := range hostileRows(t) {
		if len(r.rules) == 0 {
			texts += r.text
		}
	}
	seen := make(map[reflect.Type]bool)
	var visit func(reflect.Type)
	visit = func(typ reflect.Type) {
		for typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Slice {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || seen[typ] {
			return
		}
		seen[typ] = true
		for i := range typ.NumField() {
			f := typ.Field(i)
			if key := f.Tag.Get("json"); key != "" && key != "-" && !strings.Contains(texts, `"`+key+`":`) {
				t.Errorf("no accepted manifest here has %s.%s (%q)", typ.Name(), f.Name, key)
			}
			if f.IsExported() {
				visit(f.Type)
			}
		}
	}
	visit(reflect.TypeFor[Manifest]())
}

// checkFault holds a fault to what every one has: a place, a known rule, words that a
// terminal shows as they are.
func checkFault(t *testing.T, f Fault) {
	t.Helper()
	if _, ok := ruleByID(f.Rule); !ok {
		t.Errorf("%v: the rule is not in Rules", f)
	}
	if f.Line < 1 || f.Column < 1 || f.Message == "" || f.Mend == "" {
		t.Errorf("%#v lacks a place, a message or a mend", f)
	}
	if f.Pointer != "" && f.Pointer[0] != '/' {
		t.Errorf("%v: %q is no JSON Pointer", f, f.Pointer)
	}
	for _, c := range f.String() + f.Mend {
		if !unicode.IsPrint(c) {
			t.Errorf("%q holds %U", f.String()+f.Mend, c)
			return
		}
	}
}
