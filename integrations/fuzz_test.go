package integrations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// expandOps are what FuzzExpand fills: args a and b in every place that takes one.
const expandOps = `
	"path": {"title": "Op", "access": "read", "method": "GET", "path": "/v1/{a}/things/{b}.json", "args": {"a": {}, "b": {}}, "pick": {"fields": ["id"]}},
	"segments": {"title": "Op", "access": "read", "method": "GET", "path": "/v1/{a}/of/{b}", "args": {"a": {"type": "path"}, "b": {"type": "id"}}, "pick": {"fields": ["id"]}},
	"query": {"title": "Op", "access": "read", "method": "GET", "path": "/v1/things", "args": {"a": {"optional": true}, "b": {"optional": true}}, "query": {"a": "{a}", "t": "x:{a} y:{b}", "b[]": "{b}", "lit": "1"}, "pick": {"fields": ["id"]}},
	"form": {"title": "Op", "access": "read", "method": "POST", "path": "/v1/things", "safe_post": "a test", "args": {"a": {}, "b": {"optional": true, "clear": true}, "l": {"type": "list", "style": "brackets", "optional": true}}, "body_form": {"a": "{a}", "b": "{b}", "l": "{l}"}, "pick": {"fields": ["id"]}},
	"json": {"title": "Op", "access": "read", "method": "POST", "path": "/v1/things", "safe_post": "a test", "args": {"a": {}, "b": {"optional": true}, "l": {"type": "list", "optional": true}}, "body_json": {"a": "{a}", "t": "x:{a} y:{b}", "o": {"b": "{b}", "lit": true}, "l": {"each": "{l}", "as": {"item": "{item}"}}}, "pick": {"fields": ["id"]}}`

// FuzzExpand: whatever the args hold, the request goes to the pinned host, its path has
// the manifest's segments, and every value is read back where it was put.
func FuzzExpand(f *testing.F) {
	m := service(f, expandOps)
	n := 0
	for _, op := range m.Ops {
		for i, v := range hostileValues {
			if s, ok := v.(string); ok && len(s) <= 4096 {
				f.Add(op.Name, s, "b")
				f.Add(op.Name, fmt.Sprint(i), s)
				n += 2
			}
		}
	}
	if n == 0 {
		f.Fatal("no seeds")
	}
	f.Fuzz(func(t *testing.T, name, a, b string) {
		op := m.Op(name)
		if op == nil {
			return
		}
		args := Args{"a": a, "b": b}
		if op.Args.Get("l") != nil {
			args["l"] = []string{a, b}
		}
		c, err := m.Bind(name, args, nil)
		if err != nil {
			if Code(err) != "refused" {
				t.Fatalf("%v is of no class", err)
			}
			return
		}
		r := &run{e: &Executor{}, c: c, cred: Credential{Secret: testSecret}}
		if err := r.prepare(); err != nil {
			t.Fatalf("it was bound, and then: %v", err)
		}
		u, err := url.Parse(r.url.String())
		if err != nil {
			t.Fatal(err)
		}
		if u.Scheme != "https" || u.Host != peerHost || u.User != nil || u.Fragment != "" || u.Opaque != "" {
			t.Fatalf("it leads to %s", u)
		}
		want := strings.Split(op.Path, "/")
		if name == "segments" {
			want = []string{"", "v1"}
			for range strings.Split(a, "/") {
				want = append(want, "")
			}
			want = append(want, "of", b)
			copy(want[2:], strings.Split(a, "/"))
		}
		got := strings.Split(u.EscapedPath(), "/")
		if len(got) != len(want) {
			t.Fatalf("the path %s has %d segments, want %d", u.EscapedPath(), len(got), len(want))
		}
		if name == "path" {
			want[2], want[4] = a, b+".json"
		}
		for i, w := range want {
			s, err := url.PathUnescape(got[i])
			if err != nil || s != w || s == "." || s == ".." {
				t.Fatalf("segment %d is %q, want %q (%v)", i, got[i], w, err)
			}
		}
		pairs := func(s string, want ...string) {
			t.Helper()
			v, err := url.ParseQuery(s)
			if err != nil {
				t.Fatalf("%q: %v", s, err)
			}
			w := make(url.Values)
			for i := 0; i < len(want); i += 2 {
				w.Add(want[i], want[i+1])
			}
			if !reflect.DeepEqual(v, w) {
				t.Fatalf("%q holds %q, want %q", s, v, w)
			}
		}
		switch name {
		case "query":
			pairs(u.RawQuery, "a", a, "t", "x:"+a+" y:"+b, "b[]", b, "lit", "1")
		case "form":
			pairs(string(r.body), "a", a, "b", b, "l[]", a, "l[]", b)
		case "json":
			var v any
			if err := json.Unmarshal(r.body, &v); err != nil {
				t.Fatalf("%s: %v", r.body, err)
			}
			w := map[string]any{"a": a, "t": "x:" + a + " y:" + b, "o": map[string]any{"b": b, "lit": true},
				"l": []any{map[string]any{"item": a}, map[string]any{"item": b}}}
			if !reflect.DeepEqual(v, w) {
				t.Fatalf("the body is %s, want %v", r.body, w)
			}
		default:
			if u.RawQuery != "" || r.body != nil {
				t.Fatalf("it has the query %q and the body %q", u.RawQuery, r.body)
			}
		}
	})
}

// plainLinks reads a Link header of the plainest form, in which no target and no parameter
// holds anything that needs care. ok is false for any other.
func plainLinks(h string) (links [][2]string, ok bool) {
	for _, l := range strings.Split(h, ", ") {
		target, rel, found := strings.Cut(l, ">; rel=\"")
		if !found || !strings.HasPrefix(target, "<") || !strings.HasSuffix(rel, "\"") {
			return nil, false
		}
		target, rel = target[1:], rel[:len(rel)-1]
		if strings.ContainsAny(target, "<>,;\" \\") || strings.Trim(rel, "abcdefghijklmnopqrstuvwxyz ") != "" {
			return nil, false
		}
		links = append(links, [2]string{target, rel})
	}
	return links, true
}

// FuzzLink: what nextLink finds stands between < and > in the header, and where the header
// is of the plain form it finds what a plain reader does.
func FuzzLink(f *testing.F) {
	for _, s := range []string{
		"", "<", ">", "<>", ",,,", `<https://x/?page=2>; rel="next"`, `<https://x/?page=1>; rel="prev", <https://x/?page=3>; rel="next"`,
		`<https://x/?page=2&f=a,b>; rel="next"`, `<p1>; rel=previous, <p3>; rel=next`, `<a>; title="x, y"; rel="next"`, `<a>; title="\"; rel=\"next"; rel="prev"`,
		`<a>; rel="last NEXT"`, `<a>; REL = next`, `<a>;rel=next;rel=prev`, `<a>; rel="next`, `<a; rel="next"`, `a; rel="next"`, "<a>; rel=\"next\",\t<b>; rel=\"next\"",
		`<https://x/?page=%32&page=3>; rel=next`, `<?page=%zz>; rel=next`, `<a>; rel*=UTF-8''next`, `<a>; anchor="#x"; rel="next"`, strings.Repeat("<", 1000), strings.Repeat(`<a>; rel="x", `, 1000) + `<b>; rel="next"`,
	} {
		f.Add(s, "page")
	}
	f.Fuzz(func(t *testing.T, h, name string) {
		target, ok := nextLink([]string{h})
		if ok && !strings.Contains(h, "<"+target+">") || strings.Contains(target, ">") || !ok && target != "" {
			t.Fatalf("%q: got %q, %v", h, target, ok)
		}
		if ok && !strings.Contains(strings.ToLower(h), "next") {
			t.Fatalf("%q names no next page", h)
		}
		if links, plain := plainLinks(h); plain {
			want, found := "", false
			for _, l := range links {
				for _, rel := range strings.Fields(l[1]) {
					if rel == "next" && !found {
						want, found = l[0], true
					}
				}
			}
			if target != want || ok != found {
				t.Fatalf("%q: got %q, %v; want %q, %v", h, target, ok, want, found)
			}
		}
		if again, ok2 := nextLink([]string{"", h}); again != target || ok2 != ok {
			t.Fatalf("%q: after an empty header it is %q, %v", h, again, ok2)
		}
		if v, ok := queryValue(target, name); ok {
			u, err := url.Parse(target)
			if err != nil || u.Query().Get(name) != v || !u.Query().Has(name) {
				t.Fatalf("%q: got %q for %q", target, v, name)
			}
		} else if v != "" {
			t.Fatalf("%q: got %q and no", target, v)
		}
	})
}

// A fuzzed error body is read by the run of this manifest.
var errorRun = sync.OnceValue(func() *run {
	m := must(Parse([]byte(`{"manifest": 1, "id": "example", "version": "1.0.0", "name": "Example", "about": "A test", "host": "` + peerHost + `", "auth": {"authorization": "bearer"},
		"error": {"message": ["errors.message", "error.message", "message"]},
		"ops": {"get": {"title": "Get", "access": "read", "method": "GET", "path": "/", "pick": {"fields": ["id"]}, "fail": {"when": "errors", "message": "errors.message", "code": "errors.code", "rate_limited": ["RATELIMITED"]}}}}`)))
	return &run{c: must(m.Bind("get", nil, nil)), cred: Credential{Secret: testSecret}}
})

// FuzzErrorBody: of an error's body nothing flows back but one message, of at most 500
// code points on one line, with nothing hidden in it and without the token.
func FuzzErrorBody(f *testing.F) {
	for _, s := range []string{
		"", "null", "{}", "[]", `"x"`, `{"message": "no"}`, `{"message": "a\nb\tc\u202ed\u200be\u0000f"}`, `{"errors": [{"message": "first", "code": "RATELIMITED"}, {"message": "second"}]}`,
		`{"errors": {"message": ["a", "b"]}}`, `{"message": ["a", "b"]}`, `{"error": {"message": " x "}, "message": "y"}`, `{"message": {"message": "deep"}}`, `{"message": 12}`, `{"message": ""}`,
		`{"message": "` + strings.Repeat("é", 600) + `"}`, `{"message": "` + strings.Repeat("👩‍👩‍👧", 300) + `"}`, `{"message": "token ` + testToken + `"}`, `{"message": "dG9rX1MzY3IzdC1TZW50aW5lbC80NzExK3g="}`,
		`{"message": "a", "message": "b"}`, "{\"message\": \"\xff\"}", `{"message": "\ud800"}`, `<html>no</html>`, `{"message": "x"} trailing`, `{"message": "\u2028\ufeff\ue000\ud83d\ude00"}`, strings.Repeat("[", 200),
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		r := errorRun()
		resp := &http.Response{Header: http.Header{}, Body: io.NopCloser(bytes.NewReader(body))}
		msg, code := r.errorBody(resp)
		if n := utf8.RuneCountInString(msg); n > maxMessage || !utf8.ValidString(msg) {
			t.Fatalf("the message has %d characters: %q", n, msg)
		}
		for _, c := range msg {
			if c == '\n' || c == '\r' || c == '\t' || !projection.Visible(c) {
				t.Fatalf("the message hides U+%04X: %q", c, msg)
			}
		}
		if testSecret.leaks([]byte(msg)) {
			t.Fatalf("the message holds the token: %q", msg)
		}
		var v any
		if msg+code != "" && json.Unmarshal(body, &v) != nil {
			t.Fatalf("%q came out of what is not JSON: %q", msg+code, body)
		}
	})
}

// argKinds is an op with an arg of every type.
var argKinds = sync.OnceValue(func() *Manifest {
	return must(Parse([]byte(`{"manifest": 1, "id": "example", "version": "1.0.0", "name": "Example", "about": "A test", "host": "` + peerHost + `", "auth": {"authorization": "bearer"},
		"ops": {"all": {"title": "All", "access": "write", "method": "POST", "path": "/", "args": {
			"string": {"optional": true, "clear": true}, "pattern": {"pattern": "[a-z]{2,4}|[0-9]+", "optional": true}, "integer": {"type": "integer", "min": -1000000, "optional": true, "clear": true},
			"number": {"type": "number", "optional": true}, "boolean": {"type": "boolean", "optional": true}, "enum": {"type": "enum", "values": ["a", "1"], "optional": true},
			"date": {"type": "date", "as": "epoch_s", "optional": true}, "datetime": {"type": "datetime", "as": "epoch_ms", "optional": true}, "id": {"type": "id", "optional": true}, "path": {"type": "path", "optional": true},
			"list": {"type": "list", "optional": true}, "integers": {"type": "list", "of": "integer", "optional": true}, "times": {"type": "list", "of": "datetime", "optional": true},
			"objects": {"type": "list", "of": {"object": {"a": {}, "n": {"type": "number", "optional": true}, "d": {"type": "boolean", "default": true}}}, "optional": true},
			"map": {"type": "map", "optional": true}},
		"body_json": {"string": "{string}", "pattern": "{pattern}", "integer": "{integer}", "number": "{number}", "boolean": "{boolean}", "enum": "{enum}", "date": "{date}", "datetime": "{datetime}", "id": "{id}",
			"path": "{path}", "list": "{list}", "integers": "{integers}", "times": "{times}", "objects": "{objects}", "map": "{map}"},
		"confirm": "Go?", "pick": {"nothing": "no body"}}}}`)))
})

// FuzzArgs: what is accepted is in its one form, so that binding it again changes nothing:
// not the args, not the sentence, not the body.
func FuzzArgs(f *testing.F) {
	for _, s := range []string{
		`{}`, `{"string": "x"}`, `{"string": null}`, `{"integer": 12345678901234567}`, `{"integer": "-007"}`, `{"number": 1.50}`, `{"number": 1e-7}`, `{"number": "1E400"}`, `{"number": -0.0}`, `{"boolean": "true"}`,
		`{"enum": 1}`, `{"date": "2026-12-02"}`, `{"datetime": "2026-12-02T15:04:05.120+02:00"}`, `{"datetime": "2026-12-02T5:04:05,5Z"}`, `{"id": 12}`, `{"path": "a/b c/ü"}`, `{"list": ["a", 1]}`, `{"integers": [1, "2"]}`,
		`{"times": ["0001-01-01T00:00:00Z"]}`, `{"objects": [{"a": "x", "n": 2.0}]}`, `{"map": {"b": "1", "a": "\u202e"}}`, `{"pattern": "abc"}`, `{"string": "\ud83d\ude00\u2028"}`, `{"a": 1, "a": 2}`, `[]`, "{\"string\": \"\xff\"}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		args, err := ParseArgs(data)
		if err != nil {
			if Code(err) != "refused" {
				t.Fatalf("%v is of no class", err)
			}
			return
		}
		if !json.Valid(data) {
			t.Fatalf("accepted what is not JSON: %q", data)
		}
		m := argKinds()
		c, err := m.Bind("all", args, nil)
		if err != nil {
			if Code(err) != "refused" {
				t.Fatalf("%v is of no class", err)
			}
			return
		}
		once := c.Args()
		again, err := m.Bind("all", once, nil)
		if err != nil {
			t.Fatalf("%v was accepted, its one form %v is not: %v", args, once, err)
		}
		if twice := again.Args(); !reflect.DeepEqual(once, twice) {
			t.Fatalf("the form of %v is %v, and of that %v", args, once, twice)
		}
		if !reflect.DeepEqual(c.Sentence(), again.Sentence()) {
			t.Fatalf("%v reads %v, then %v", args, c.Sentence(), again.Sentence())
		}
		if a, b := c.jsonBody(""), again.jsonBody(""); !bytes.Equal(a, b) || !json.Valid(a) {
			t.Fatalf("%v is sent as %s, then as %s", args, a, b)
		}
		// The form survives JSON too, as it does in a grant.
		text, err := json.Marshal(once)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseArgs(text)
		if err != nil && len(text) <= maxArgsBytes {
			t.Fatalf("%s: %v", text, err)
		}
		if err == nil && !reflect.DeepEqual(map[string]any(back), once) {
			t.Fatalf("%s came back as %v", text, back)
		}
	})
}
