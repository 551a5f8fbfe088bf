package integrations

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// FuzzParse: whatever the text, Parse does not panic; what it accepts is JSON of one host
// that it accepts again from Raw; what it refuses has faults with a place and a known rule.
func FuzzParse(f *testing.F) {
	base := attackBase(f)
	f.Add([]byte(base))
	seeds := 1
	files, err := filepath.Glob("registry/*.json")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		seeds++
	}
	for _, r := range hostileRows(f) {
		f.Add(r.plain())
		seeds++
	}
	if len(files) < 2 || seeds < 700 {
		f.Fatalf("%d seeds, %d of them from the registry: the fuzzer would begin from nothing", seeds, len(files))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		given := bytes.Clone(data)
		m, err := Parse(data)
		if !bytes.Equal(given, data) {
			t.Fatal("Parse changed the text")
		}
		if err != nil {
			var faults Faults
			if m != nil || !errors.As(err, &faults) || !errors.Is(err, ErrManifest) {
				t.Fatalf("refused with %T, manifest %v", err, m)
			}
			checkFaultsOf(t, faults, data)
			checkClipped(t, faults, data)
			return
		}
		if !bytes.Equal(m.Raw(), data) || !json.Valid(data) {
			t.Fatal("Raw is not the JSON that was parsed")
		}
		if rule, msg := misfit(m.Host, "host"); msg != "" {
			t.Errorf("accepted the host %q: %s: %s", m.Host, rule, msg)
		}
		if len(m.Ops) == 0 {
			t.Error("accepted without operations")
		}
		for _, o := range m.Ops {
			if !strings.HasPrefix(o.Path, "/") || strings.Contains(o.Path, "//") || strings.ContainsAny(o.Path, "?#\\%") || o.Pick == nil {
				t.Errorf("accepted %s with the path %q", o.Name, o.Path)
			}
			if o.Access == Write && o.Confirm == "" || o.Access != Write && o.Access != Read {
				t.Errorf("accepted %s without confirm", o.Name)
			}
			if (o.projection == nil) != (o.Pick.Nothing != "") || len(o.path) != strings.Count(strings.TrimSuffix(o.Path, "/"), "/") {
				t.Errorf("accepted %s, but it is not compiled", o.Name)
			}
		}
		if _, err := Parse(m.Raw()); err != nil {
			t.Errorf("refused at the second time: %v", err)
		}
	})
}

// checkClipped holds that no fault repeats a long text of the manifest: it could be a
// pasted secret, or meant to fill a screen.
func checkClipped(t *testing.T, faults Faults, data []byte) {
	t.Helper()
	said := faults.Error()
	dec := jsontext.NewDecoder(bytes.NewReader(data), jsontext.AllowDuplicateNames(true))
	for {
		tok, err := dec.ReadToken()
		if err != nil {
			return
		}
		if r := []rune(tok.String()); tok.Kind() == '"' && len(r) > 41 && strings.Contains(said, visible(string(r[:42]))) {
			t.Errorf("a fault repeats the text %q:\n%s", string(r), said)
		}
	}
}

// FuzzTemplate: parseTemplate does not panic, and what it accepts reads the same when its
// parts are put together again.
func FuzzTemplate(f *testing.F) {
	for _, s := range []string{"", "{a}", "a{b}c", "{ nodes { id } }", "{a}{b}", "}{", "{nodes", "{}", "{a.b}", "{a..b}", "{a.}", "{item.x-y}", "{ }", "} ", "{a} { b }", "{\n}", "\u202e{a}", "{ä}", "{{a}}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		tpl, why := parseTemplate(s)
		if why != "" {
			if tpl != nil {
				t.Errorf("%q is refused, yet has parts", s)
			}
			return
		}
		var b strings.Builder
		for i, p := range tpl {
			switch {
			case (p.ref == "") == (p.lit == ""):
				t.Errorf("%q: part %d is both or neither of text and placeholder", s, i)
			case p.ref != "":
				b.WriteString("{" + p.ref + "}")
			default:
				b.WriteString(p.lit)
			}
			if strings.ContainsAny(p.ref, "{} ") {
				t.Errorf("%q: the placeholder %q", s, p.ref)
			}
		}
		if b.String() != s {
			t.Errorf("%q came back as %q", s, b.String())
		}
		if name, ok := tpl.whole(); ok && "{"+name+"}" != s {
			t.Errorf("%q is not the whole placeholder %q", s, name)
		}
	})
}
