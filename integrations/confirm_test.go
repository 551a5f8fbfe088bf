package integrations

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/bojanz/currency"
	"github.com/google/go-cmp/cmp"
)

// TestConfirmVectors runs the vectors that the JavaScript renderer is held to as well.
func TestConfirmVectors(t *testing.T) {
	type rest struct {
		Arg    string `json:"arg"`
		Text   string `json:"text"`
		Length int    `json:"length"`
	}
	var vectors []struct {
		Name     string
		Op       map[string]json.RawMessage
		Digits   map[string]int
		Given    json.RawMessage
		Sentence string
		Rest     []rest
		Error    string
	}
	readJSON(t, "testdata/confirm/sentences.json", &vectors)
	if len(vectors) < 40 {
		t.Fatalf("found %d vectors, want at least 40", len(vectors))
	}
	t.Logf("%d sentences", len(vectors))
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			m := confirmManifest(t, v.Op, v.Digits)
			args, err := ParseArgs(v.Given)
			if err != nil {
				t.Fatal(err)
			}
			c, err := m.Bind("act", args, nil)
			if v.Error != "" {
				if Code(err) != v.Error {
					t.Fatalf("got the error %v, want %s", err, v.Error)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			s := c.Sentence()
			if s.Text != v.Sentence {
				t.Errorf("got  %q\nwant %q", s.Text, v.Sentence)
			}
			var joined strings.Builder
			for _, p := range s.Parts {
				joined.WriteString(p.Text)
			}
			if joined.String() != s.Text {
				t.Errorf("the parts give %q", joined.String())
			}
			got := []rest{}
			for _, r := range s.Rest {
				got = append(got, rest{r.Arg, r.Text, r.Length})
			}
			if d := cmp.Diff(v.Rest, got); d != "" {
				t.Errorf("beside the sentence (-want +got):\n%s", d)
			}
		})
	}
}

// confirmManifest makes a manifest around the parts of an operation. Every arg is sent in
// the body, so that the loader takes it.
func confirmManifest(t *testing.T, op map[string]json.RawMessage, digits map[string]int) *Manifest {
	t.Helper()
	var args map[string]json.RawMessage
	if err := json.Unmarshal(op["args"], &args); err != nil {
		t.Fatal(err)
	}
	body := make(map[string]string)
	for name := range args {
		body[name] = "{" + name + "}"
	}
	act := map[string]any{"title": "Act", "access": "write", "method": "POST", "path": "/act", "body_json": body, "pick": map[string]any{"fields": []string{"id"}}}
	for k, v := range op {
		act[k] = v
	}
	file := map[string]any{"manifest": 1, "id": "example", "version": "1.0.0", "name": "Example", "about": "An example", "host": "api.example.com",
		"auth": map[string]any{"authorization": "bearer"}, "ops": map[string]any{"act": act}}
	if digits != nil {
		file["money"] = map[string]any{"digits": digits}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(file); err != nil {
		t.Fatal(err)
	}
	m, err := Parse(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestPreviewVectors(t *testing.T) {
	var vectors []struct {
		Name   string
		Fields json.RawMessage
		Say    string
		Picked json.RawMessage
		Digits map[string]int
		Text   string
	}
	readJSON(t, "testdata/confirm/previews.json", &vectors)
	if len(vectors) == 0 {
		t.Fatal("found no vector")
	}
	for _, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			digits := ""
			if v.Digits != nil {
				d, _ := json.Marshal(map[string]any{"digits": v.Digits})
				digits = `"money": ` + string(d) + `,`
			}
			say, _ := json.Marshal(v.Say)
			m, err := Parse([]byte(`{"manifest": 1, "id": "example", "version": "1.0.0", "name": "Example", "about": "An example", "host": "api.example.com",
				"auth": {"authorization": "bearer"}, ` + digits + ` "ops": {
				"look": {"title": "Look", "access": "read", "method": "GET", "path": "/look", "pick": {"fields": ` + string(v.Fields) + `}},
				"act": {"title": "Act", "access": "write", "method": "POST", "path": "/act", "confirm": "Act?", "pick": {"fields": ["id"]},
					"preview": {"op": "look", "say": ` + string(say) + `}}}}`))
			if err != nil {
				t.Fatal(err)
			}
			c, err := m.Bind("act", nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.Say(&Result{JSON: v.Picked, Status: 200})
			if err != nil || got != v.Text {
				t.Errorf("got  %q (%v)\nwant %q", got, err, v.Text)
			}
		})
	}
}

// TestCurrencies: the JavaScript renderer has no library that follows ISO 4217, so it reads
// this list, which is the Go library's.
func TestCurrencies(t *testing.T) {
	all := make(map[string]uint8)
	for _, code := range currency.GetCurrencyCodes() {
		d, _ := currency.GetDigits(code)
		all[code] = d
	}
	b, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	current(t, "testdata/confirm/currencies.json", append(b, '\n'))
}

func readJSON(t *testing.T, name string, v any) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}
