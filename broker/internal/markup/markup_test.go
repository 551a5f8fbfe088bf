package markup

import (
	"html/template"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const source = `
{{define "head"}}<!doctype html><meta charset="utf-8"><style>{{.CSS}}</style>{{end}}
{{define "all"}}<style>{{.CSS}}</style><title>{{.A}}</title>{{template "fixed"}}
<h1 class="x" title="{{.A}}: {{.B}}">{{.A}}{{if .Yes}} yes {{.B}}{{else}} no{{end}}{{if .No}} never{{end}}</h1>
{{with .In}}<p>{{.A}}{{with .B}}<i>{{.}}</i>{{else}}none{{end}}{{if .Out}}x{{end}}</p>{{end}}
{{range .List}}<input name="{{.Name}}" value="{{.Value}}">{{end}}{{range .Empty}}x{{else}}<b>empty</b>{{end}}
<form action="{{.URL}}" data="1"><a href="{{.URL}}" rel="x">{{.URL}}</a></form>
{{end}}
{{define "fixed"}}<meta name="a"><style>a<b{}</style>{{end}}
`

func both(t *testing.T, a, b, u string) {
	t.Helper()
	d := func(css any) map[string]any {
		return map[string]any{"CSS": css, "A": a, "B": b, "URL": u, "Yes": true, "No": false, "Empty": []Data{}, "In": Data{"A": b, "B": a},
			"List": []Data{{"Name": a, "Value": b}, {"Name": b, "Value": u}}}
	}
	set, err := Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	ref := template.Must(template.New("").Parse(source))
	var want strings.Builder
	if err := ref.ExecuteTemplate(&want, "all", d(template.CSS("p>a{color:red}"))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want.String(), set.Render("all", d(CSS("p>a{color:red}")))); diff != "" {
		t.Errorf("%q, %q, %q (-html/template +ours):\n%s", a, b, u, diff)
	}
}

var hostile = []string{
	"", "plain", `"><script>alert(1)</script>`, `' onmouseover='x`, "a&amp;b", "a&b;c+d=e", "\x00", "\x00\x01\x7f", "ü€😀", "\xff\xfe", "\u202eabc", "{{.A}}", "</style><script>",
	"</title>", "<!--", "-->", "`", "a\nb\tc\r", "javascript:alert(1)", "JavaScript:alert(1)", "java\nscript:x", " javascript:x", "data:text/html,x", "https://a.example/x?y=z&a='b'#c(d)",
	"HTTP://A", "mailto:a@b", "/oauth/x/authorize", "//evil.example", "a:b", "/a:b", "?a:b", "#a:b", "%", "%2", "%2f", "%zz", "https://ü.example/ü", "http://[::1]:8080/x#v1.a-b_c", "vbscript:x", "&#106;avascript:x", "1+1", "\\",
}

// TestSameAsTemplate: what comes out is html/template's, to the byte.
func TestSameAsTemplate(t *testing.T) {
	for _, a := range hostile {
		for _, u := range hostile {
			both(t, a, u+a, u)
		}
	}
}

// FuzzSameAsTemplate does that for what nobody thought of.
func FuzzSameAsTemplate(f *testing.F) {
	for _, s := range hostile {
		f.Add(s, "b", s)
	}
	f.Fuzz(func(t *testing.T, a, b, u string) { both(t, a, b, u) })
}

// TestRefused: what would need more of html/template does not parse.
func TestRefused(t *testing.T) {
	for name, body := range map[string]string{
		"in a script":       `<script>{{.A}}</script>`,
		"an event":          `<p onclick="{{.A}}">`,
		"a style attribute": `<p style="{{.A}}">`,
		"a source":          `<img src="{{.A}}">`,
		"no quotes":         `<p title={{.A}}>`,
		"single quotes":     `<p title='{{.A}}'>`,
		"a tag's name":      `<{{.A}}>`,
		"an attribute":      `<p {{.A}}>`,
		"data":              `<p data-x="{{.A}}">`,
		"a function":        `{{printf "%s" .A}}`,
		"a pipe":            `{{.A | html}}`,
		"a variable":        `{{$x := .A}}`,
		"a method":          `{{.A.b1}}`,
		"trim":              `{{- .A -}}`,
		"a comment":         `{{/* x */}}`,
		"no end":            `{{if .A}}x`,
		"half a tag":        `{{if .A}}<p title="{{end}}">`,
		"two ways":          `{{if .A}}<p title="{{else}}<p>{{end}}`,
		"a page inside":     `<p title="{{template "head"}}">`,
		"no such page":      `{{template "nothing"}}`,
		"an open action":    `{{.A`,
		"break":             `{{range .A}}{{break}}{{end}}`,
		"textarea":          `<textarea>{{.A}}</textarea>`,
	} {
		if _, err := Parse(`{{define "head"}}x{{end}}{{define "x"}}` + body + `{{end}}`); err == nil {
			t.Errorf("%s: %s is taken", name, body)
		}
	}
	for _, s := range []string{`x`, `{{define "a"}}{{end}}{{define "a"}}{{end}}`, `{{define "a"}}`, `{{define a}}{{end}}`, `{{.A}}`} {
		if _, err := Parse(s); err == nil {
			t.Errorf("%s is taken", s)
		}
	}
	// A value that is no string is nothing, never a text of Go's.
	set, err := Parse(`{{define "x"}}<p>{{.A}}{{.A.B}}{{.C}}</p><style>{{.S}}</style>{{end}}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := set.Render("x", Data{"A": 7, "C": Data{}, "S": "p{}"}); got != "<p></p><style></style>" {
		t.Error(got)
	}
}
