package projection

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

var repoFields = []string{
	"id", "full_name", "private", "description", "default_branch",
	"open_issues_count", "pushed_at", "html_url",
}

// body returns the body of a recorded exchange in testdata, compacted.
func body(t testing.TB, file string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var exchange struct{ Body json.RawMessage }
	if err := json.Unmarshal(data, &exchange); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, exchange.Body); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// githubPage is a page of 85 repositories, the documented example repeated
// under other ids and names.
func githubPage(t testing.TB) []byte {
	item := string(body(t, "repos-list-for-authenticated-user.json"))
	item = strings.TrimSuffix(strings.TrimPrefix(item, "["), "]")
	items := make([]string, 85)
	for i := range items {
		items[i] = strings.NewReplacer(
			"Hello-World", fmt.Sprintf("Hello-World-%03d", i),
			`"id":1296269`, fmt.Sprintf(`"id":%d`, 1296269+i*7919),
			"This your first repo!", strings.Repeat("This your first repo! ", i%4),
			`"open_issues_count":0`, fmt.Sprintf(`"open_issues_count":%d`, i*i),
		).Replace(item)
	}
	return []byte("[" + strings.Join(items, ",") + "]")
}

var issueFields = []string{
	"id", "identifier", "title", "priorityLabel", "updatedAt", "dueDate",
	"state.name", "assignee.name", "team.key",
}

const issueRoot = "data.viewer.assignedIssues.nodes"

// linearPage is a page of issues in the shape of a mocked answer, with text of
// the usual lengths, of about 50 KB.
func linearPage(t testing.TB) []byte {
	text := string(body(t, "my_issues.synthetic.json"))
	begin := strings.Index(text, `[{`) + 1
	end := strings.Index(text, `},{"id"`) + 1
	stop := strings.Index(text, `}],`) + 1
	item := text[begin:end]
	var items []string
	for i, size := 0, 0; size < 50_000; i++ {
		it := strings.NewReplacer(
			`"identifier":"example text"`, fmt.Sprintf(`"identifier":"ENG-%d"`, 100+i),
			`"title":"example text"`, fmt.Sprintf(`"title":"%s"`, strings.Repeat("Fix the flaky sync ", 1+i%4)),
			`"priorityLabel":"example text"`, []string{`"priorityLabel":"Urgent"`, `"priorityLabel":"No priority"`, `"priorityLabel":"High"`}[i%3],
			`"url":"example text"`, fmt.Sprintf(`"url":"https://linear.app/acme/issue/ENG-%d/fix-the-flaky-sync"`, 100+i),
			`3fa85f64`, fmt.Sprintf("%08x", i*7919+1),
			`"state":{"name":"example text","type":"example text"}`, []string{`"state":{"name":"In Progress","type":"started"}`, `"state":{"name":"Todo","type":"unstarted"}`}[i%2],
			`"assignee":{"name":"example text"}`, []string{`"assignee":{"name":"Ada Lovelace"}`, `"assignee":{"name":"Bo"}`}[i/2%2],
			`"team":{"key":"example text"}`, `"team":{"key":"ENG"}`,
		).Replace(item)
		items = append(items, it)
		size += len(it) + 1
	}
	return []byte(text[:begin] + strings.Join(items, ",") + text[stop:])
}

// side is one way of doing the same work.
type side struct {
	name string
	do   func()
}

// compare times the sides in turns, and reports the median of each turn's
// ratio to the first side, so that a noisy machine disturbs all alike.
func compare(b *testing.B, size int, sides []side) {
	b.SetBytes(int64(size))
	b.ReportAllocs()
	const rounds = 15
	ratios := make([][]float64, len(sides))
	best := make([]float64, len(sides))
	times := make([]int, len(sides))
	for i, s := range sides {
		best[i] = math.Inf(1)
		start := time.Now()
		for times[i] = 0; time.Since(start) < 10*time.Millisecond; times[i]++ {
			s.do()
		}
	}
	for range rounds {
		var first float64
		for i, s := range sides {
			start := time.Now()
			for range times[i] {
				s.do()
			}
			d := time.Since(start).Seconds() / float64(times[i])
			best[i] = min(best[i], d)
			if i == 0 {
				first = d
			}
			ratios[i] = append(ratios[i], d/first)
		}
	}
	for b.Loop() {
		sides[0].do()
	}
	for i, s := range sides {
		if i > 0 {
			slices.Sort(ratios[i])
			b.ReportMetric(ratios[i][rounds/2], "x-"+s.name)
		}
	}
	b.ReportMetric(float64(size)/best[0]/1e6, "best-MB/s")
}

func BenchmarkGitHub(b *testing.B) {
	data := githubPage(b)
	p := mustCompile(b, Spec{Fields: repoFields})
	want := run(b, p, data)
	check := func(name string, got []byte) {
		if !bytes.Equal(got, want.JSON) {
			b.Fatalf("%s picks something else:\n%.300s\n%.300s", name, got, want.JSON)
		}
	}
	check("jsontext", jsontextRepos(data))
	check("map", mapRepos(data))

	b.Run(fmt.Sprintf("%dKB", len(data)/1000), func(b *testing.B) {
		compare(b, len(data), []side{
			{"projection", func() { run(b, p, data) }},
			{"json.Valid", func() { json.Valid(data) }},
			{"jsontext", func() { jsontextRepos(data) }},
			{"json.Unmarshal", func() { mapRepos(data) }},
		})
	})
}

func BenchmarkLinear(b *testing.B) {
	data := linearPage(b)
	p := mustCompile(b, Spec{Root: issueRoot, Fields: issueFields, Captures: []Capture{
		{Path: "data.viewer.assignedIssues.pageInfo.hasNextPage"},
		{Path: "data.viewer.assignedIssues.pageInfo.endCursor"},
		{Path: "errors.message"},
	}})
	want := run(b, p, data)
	if got := jsontextIssues(data); !bytes.Equal(got, want.JSON) {
		b.Fatalf("jsontext picks something else:\n%s\n%s", got, want.JSON)
	}
	b.Run(fmt.Sprintf("%dKB", len(data)/1000), func(b *testing.B) {
		compare(b, len(data), []side{
			{"projection", func() { run(b, p, data) }},
			{"json.Valid", func() { json.Valid(data) }},
			{"jsontext", func() { jsontextIssues(data) }},
		})
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// picker is a pick written by hand with jsontext.
type picker struct {
	dec *jsontext.Decoder
	out []byte
}

func newPicker(data []byte) *picker {
	return &picker{dec: jsontext.NewDecoder(bytes.NewBuffer(data))}
}

// array projects each element with item.
func (p *picker) array(item func()) {
	must(p.dec.ReadToken())
	p.out = append(p.out, '[')
	for first := true; p.dec.PeekKind() != ']'; first = false {
		if !first {
			p.out = append(p.out, ',')
		}
		item()
	}
	must(p.dec.ReadToken())
	p.out = append(p.out, ']')
}

// object keeps the members for which keep has a function.
func (p *picker) object(keep func(name string) func()) {
	must(p.dec.ReadToken())
	p.out = append(p.out, '{')
	for first := true; p.dec.PeekKind() != '}'; {
		tok := must(p.dec.ReadValue())
		f := keep(string(tok[1 : len(tok)-1]))
		if f == nil {
			check(p.dec.SkipValue())
			continue
		}
		if !first {
			p.out = append(p.out, ',')
		}
		first = false
		p.out = append(append(p.out, tok...), ':')
		f()
	}
	must(p.dec.ReadToken())
	p.out = append(p.out, '}')
}

func (p *picker) value() { p.out = append(p.out, must(p.dec.ReadValue())...) }

// within steps through an object to one of its members.
func (p *picker) within(name string, f func()) {
	must(p.dec.ReadToken())
	for p.dec.PeekKind() != '}' {
		if tok := must(p.dec.ReadValue()); string(tok[1:len(tok)-1]) == name {
			f()
		} else {
			check(p.dec.SkipValue())
		}
	}
	must(p.dec.ReadToken())
}

func jsontextRepos(data []byte) []byte {
	p := newPicker(data)
	value := p.value
	keep := func(name string) func() {
		switch name {
		case "id", "full_name", "private", "description", "default_branch",
			"open_issues_count", "pushed_at", "html_url":
			return value
		}
		return nil
	}
	p.array(func() { p.object(keep) })
	if _, err := p.dec.ReadToken(); err != io.EOF {
		panic(err)
	}
	return p.out
}

func jsontextIssues(data []byte) []byte {
	p := newPicker(data)
	value := p.value
	only := func(want string) func() {
		keep := func(name string) func() {
			if name == want {
				return value
			}
			return nil
		}
		return func() { p.object(keep) }
	}
	named, keyed := only("name"), only("key")
	keep := func(name string) func() {
		switch name {
		case "id", "identifier", "title", "priorityLabel", "updatedAt", "dueDate":
			return value
		case "state", "assignee":
			return named
		case "team":
			return keyed
		}
		return nil
	}
	p.within("data", func() {
		p.within("viewer", func() {
			p.within("assignedIssues", func() {
				p.within("nodes", func() { p.array(func() { p.object(keep) }) })
			})
		})
	})
	return p.out
}

// mapRepos picks from what encoding/json makes of the answer. Its fields are
// put in the order of the answer.
func mapRepos(data []byte) []byte {
	var page any
	check(json.Unmarshal(data, &page))
	out := []byte{'['}
	for i, item := range page.([]any) {
		repo := item.(map[string]any)
		if i > 0 {
			out = append(out, ',')
		}
		for j, name := range []string{
			"id", "full_name", "private", "html_url", "description",
			"default_branch", "open_issues_count", "pushed_at",
		} {
			if j == 0 {
				out = append(out, '{')
			} else {
				out = append(out, ',')
			}
			out = append(out, `"`+name+`":`...)
			out = append(out, must(json.Marshal(repo[name]))...)
		}
		out = append(out, '}')
	}
	return append(out, ']')
}

func mustCompile(t testing.TB, spec Spec) *Projection {
	t.Helper()
	p, err := Compile(spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func run(t testing.TB, p *Projection, data []byte) Output {
	out, err := p.Run(bytes.NewReader(data), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
