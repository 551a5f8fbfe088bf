package integrations

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"strings"
	"testing"
)

var uuid4 = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)

// anOp is the text of one operation "op", a read with what a row says of it.
func anOp(method, path, parts string) string {
	if method == "POST" {
		parts += `, "safe_post": "a test"`
	}
	return `"op": {"title": "Op", "access": "read", "method": "` + method + `", "path": "` + path + `", ` + parts + `, "pick": {"fields": ["id"]}}`
}

// TestRequests holds what is sent against the manifest and the args, to the byte.
func TestRequests(t *testing.T) {
	get, post, form := "GET", "POST", "FORM"
	for _, tc := range []struct {
		name   string
		method string // FORM is a POST of a form
		path   string // /x unless said
		parts  string // the members of the operation that matter
		args   string
		uri    string // /x unless said
		body   string
	}{
		// Scalars, in a path, a query, a form and JSON.
		{"text in a path", get, "/{a}/b", `"args": {"a": {}}`, `{"a": "ü/ß"}`, "", ""}, // refused
		{"text in a path, encoded", get, "/{a}/b", `"args": {"a": {}}`, `{"a": "ü ?#%&+=;:@$,'()*!~^|[]{}\"<>"}`,
			"/%C3%BC%20%3F%23%25%26%2B%3D%3B%3A%40%24%2C%27%28%29%2A%21~%5E%7C%5B%5D%7B%7D%22%3C%3E/b", ""},
		{"a literal end", get, "/files/{a}.json", `"args": {"a": {}}`, `{"a": "read me"}`, "/files/read%20me.json", ""},
		{"the root", get, "/", `"args": {}`, `{}`, "/", ""},
		{"text in a query", get, "", `"args": {"a": {}}, "query": {"q": "{a}", "fixed": "x y"}`, `{"a": "a&b=c+d e#f%20\u00e9"}`, "/x?q=a%26b%3Dc%2Bd%20e%23f%2520%C3%A9&fixed=x%20y", ""},
		{"a query name with brackets", get, "", `"args": {"a": {}}, "query": {"filter[name]": "{a}"}`, `{"a": "x"}`, "/x?filter%5Bname%5D=x", ""},
		{"text inside text", get, "", `"args": {"a": {}, "b": {"optional": true}}, "query": {"q": "is:{a} in:{b}"}`, `{"a": "open"}`, "/x?q=is%3Aopen%20in%3A", ""},
		{"an empty text", get, "", `"args": {"a": {}}, "query": {"q": "{a}"}`, `{"a": ""}`, "/x?q=", ""},
		{"text in a form", form, "", `"args": {"a": {}}, "body_form": {"a": "{a}", "b": "fixed"}`, `{"a": "a&b=c\n"}`, "", "a=a%26b%3Dc%0A&b=fixed"},
		{"text in JSON", post, "", `"args": {"a": {}}, "body_json": {"a": "{a}", "b": "say \"{a}\""}`, `{"a": "\"\\\n\u2028</script>{b}"}`, "", `{"a":"\"\\\n` + "\u2028" + `</script>{b}","b":"say \"\"\\\n` + "\u2028" + `</script>{b}\""}`},

		// A value that reads like a placeholder stays what it is.
		{"the look of a placeholder", get, "/{a}", `"args": {"a": {}, "b": {}}, "query": {"b": "{b}"}`, `{"a": "{b}", "b": "{a}"}`, "/%7Bb%7D?b=%7Ba%7D", ""},

		// Whole numbers keep 64 bits.
		{"an integer in JSON", post, "", `"args": {"a": {"type": "integer"}}, "body_json": {"a": "{a}"}`, `{"a": 9007199254740993}`, "", `{"a":9007199254740993}`},
		{"the largest integer", post, "/{a}", `"args": {"a": {"type": "integer"}}, "query": {"q": "{a}"}, "body_json": {"a": "{a}", "t": "no. {a}"}`, `{"a": 9223372036854775807}`,
			"/9223372036854775807?q=9223372036854775807", `{"a":9223372036854775807,"t":"no. 9223372036854775807"}`},
		{"the smallest integer", form, "", `"args": {"a": {"type": "integer"}}, "body_form": {"a": "{a}"}`, `{"a": "-9223372036854775808"}`, "", "a=-9223372036854775808"},
		{"an integer as text", post, "", `"args": {"a": {"type": "integer"}}, "body_json": {"a": "{a}"}`, `{"a": "0042"}`, "", `{"a":42}`},
		{"minus zero", post, "", `"args": {"a": {"type": "integer"}}, "body_json": {"a": "{a}"}`, `{"a": -0}`, "", `{"a":0}`},
		{"digits in a text", post, "", `"args": {"a": {}, "b": {"type": "id"}}, "body_json": {"a": "{a}", "b": "{b}"}`, `{"a": 1917043659912705296, "b": 18446744073709551616}`, "", `{"a":"1917043659912705296","b":"18446744073709551616"}`},

		// Numbers have one form.
		{"numbers", post, "", `"args": {"a": {"type": "list", "of": "number"}}, "body_json": {"a": "{a}"}`, `{"a": [1.50, 1e3, -0.0, 1E-7, 123456789012345678901234, 0.1, "2.5"]}`, "", `{"a":[1.5,1000,0,1e-7,1.2345678901234569e+23,0.1,2.5]}`},
		{"booleans", form, "", `"args": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "body_form": {"a": "{a}", "b": "{b}"}`, `{"a": true, "b": "false"}`, "", "a=true&b=false"},
		{"booleans in JSON", post, "", `"args": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "body_json": {"a": "{a}", "b": "{b}"}`, `{"a": true, "b": "false"}`, "", `{"a":true,"b":false}`},
		{"enum", get, "", `"args": {"a": {"type": "enum", "values": ["open", "closed"]}}, "query": {"a": "{a}"}`, `{"a": "closed"}`, "/x?a=closed", ""},
		{"enum of digits", get, "", `"args": {"a": {"type": "enum", "values": ["1", "2"]}}, "query": {"a": "{a}"}`, `{"a": 2}`, "/x?a=2", ""},

		// Dates in three forms.
		{"dates", post, "", `"args": {"a": {"type": "date"}, "b": {"type": "date", "as": "epoch_s"}, "c": {"type": "date", "as": "epoch_ms"}, "d": {"type": "date", "as": "rfc3339"}}, "body_json": {"a": "{a}", "b": "{b}", "c": "{c}", "d": "{d}", "t": "from {b}"}`,
			`{"a": "2026-12-02", "b": "2026-12-02", "c": "2026-12-02", "d": "2026-12-02"}`, "", `{"a":"2026-12-02","b":1796169600,"c":1796169600000,"d":"2026-12-02","t":"from 1796169600"}`},
		{"times", post, "", `"args": {"a": {"type": "datetime"}, "b": {"type": "datetime", "as": "epoch_s"}, "c": {"type": "datetime", "as": "epoch_ms"}}, "body_json": {"a": "{a}", "b": "{b}", "c": "{c}"}`,
			`{"a": "2026-12-02T15:04:05+02:00", "b": "2026-12-02T15:04:05.999Z", "c": "2026-12-02T15:04:05.123-01:30"}`, "", `{"a":"2026-12-02T13:04:05Z","b":1796223845,"c":1796229245123}`},
		{"times in a query", get, "", `"args": {"a": {"type": "datetime"}, "b": {"type": "datetime", "as": "epoch_ms"}}, "query": {"a": "{a}", "b": "{b}"}`, `{"a": "1969-12-31T23:59:59.5Z", "b": "1969-12-31T23:59:59.5Z"}`, "/x?a=1969-12-31T23%3A59%3A59.5Z&b=-500", ""},

		// A path of several segments.
		{"type path", get, "/contents/{p}", `"args": {"p": {"type": "path"}}`, `{"p": "docs/read me/ä.md"}`, "/contents/docs/read%20me/%C3%A4.md", ""},

		// Lists in four styles.
		{"repeat", get, "", `"args": {"a": {"type": "list", "style": "repeat"}}, "query": {"a": "{a}"}`, `{"a": ["x", "y&z", ""]}`, "/x?a=x&a=y%26z&a=", ""},
		{"comma", get, "", `"args": {"a": {"type": "list", "style": "comma"}}, "query": {"a": "{a}"}`, `{"a": ["x", "y z"]}`, "/x?a=x%2Cy%20z", ""},
		{"brackets", get, "", `"args": {"a": {"type": "list", "style": "brackets"}}, "query": {"a": "{a}"}`, `{"a": ["x", "y"]}`, "/x?a%5B%5D=x&a%5B%5D=y", ""},
		{"indexed", form, "", `"args": {"a": {"type": "list", "style": "indexed", "of": "integer"}}, "body_form": {"a": "{a}"}`, `{"a": [7, "8", 9007199254740993]}`, "", "a%5B0%5D=7&a%5B1%5D=8&a%5B2%5D=9007199254740993"},
		{"no items", get, "", `"args": {"a": {"type": "list", "style": "comma"}, "b": {"type": "list", "style": "repeat"}}, "query": {"a": "{a}", "b": "{b}", "c": "1"}`, `{"a": [], "b": []}`, "/x?c=1", ""},
		{"objects, indexed", form, "", `"args": {"items": {"type": "list", "style": "indexed", "of": {"object": {"id": {"type": "id"}, "n": {"type": "integer", "optional": true}, "ok": {"type": "boolean", "default": true}}}}}, "body_form": {"items": "{items}"}`,
			`{"items": [{"n": 2, "id": "a"}, {"id": "b", "ok": false}]}`, "", "items%5B0%5D%5Bid%5D=a&items%5B0%5D%5Bn%5D=2&items%5B0%5D%5Bok%5D=true&items%5B1%5D%5Bid%5D=b&items%5B1%5D%5Bok%5D=false"},
		{"a list in JSON", post, "", `"args": {"a": {"type": "list", "of": "integer"}, "b": {"type": "list"}}, "body_json": {"a": "{a}", "b": "{b}"}`, `{"a": [1, "2"], "b": []}`, "", `{"a":[1,2],"b":[]}`},
		{"objects in JSON", post, "", `"args": {"items": {"type": "list", "of": {"object": {"id": {}, "n": {"type": "integer", "optional": true}}}}}, "body_json": {"items": "{items}"}`,
			`{"items": [{"n": 2, "id": "a"}, {"id": "b"}]}`, "", `{"items":[{"id":"a","n":2},{"id":"b"}]}`},

		// Maps.
		{"a map in a form", form, "", `"args": {"m": {"type": "map"}}, "body_form": {"metadata": "{m}"}`, `{"m": {"z": "1", "a b": "x&y"}}`, "", "metadata%5Ba%20b%5D=x%26y&metadata%5Bz%5D=1"},
		{"a map in JSON", post, "", `"args": {"m": {"type": "map"}}, "body_json": {"metadata": "{m}"}`, `{"m": {"z": "1", "a\"": "{x}"}}`, "", `{"metadata":{"a\"":"{x}","z":"1"}}`},
		{"an empty map", post, "", `"args": {"m": {"type": "map"}}, "body_json": {"metadata": "{m}"}`, `{"m": {}}`, "", `{"metadata":{}}`},

		// each.
		{"each", post, "", `"args": {"who": {"type": "list"}}, "body_json": {"attendees": {"each": "{who}", "as": {"email": "{item}", "role": "guest"}}}`, `{"who": ["a@x", "b@x"]}`, "", `{"attendees":[{"email":"a@x","role":"guest"},{"email":"b@x","role":"guest"}]}`},
		{"each keeps the type", post, "", `"args": {"n": {"type": "list", "of": "integer"}}, "body_json": {"n": {"each": "{n}", "as": {"id": "{item}", "t": "#{item}"}}}`, `{"n": [1, 9007199254740993]}`, "", `{"n":[{"id":1,"t":"#1"},{"id":9007199254740993,"t":"#9007199254740993"}]}`},
		{"each of objects", post, "", `"args": {"who": {"type": "list", "of": {"object": {"mail": {}, "name": {"optional": true}}}}}, "body_json": {"to": {"each": "{who}", "as": {"emailAddress": {"address": "{item.mail}", "name": "{item.name}"}, "type": "required"}}}`,
			`{"who": [{"mail": "a@x", "name": "A"}, {"mail": "b@x"}]}`, "", `{"to":[{"emailAddress":{"address":"a@x","name":"A"},"type":"required"},{"emailAddress":{"address":"b@x"},"type":"required"}]}`},
		{"each of nothing", post, "", `"args": {"who": {"type": "list"}}, "body_json": {"to": {"each": "{who}", "as": {"a": "{item}"}}}`, `{"who": []}`, "", `{"to":[]}`},
		{"each, left out", post, "", `"args": {"who": {"type": "list", "optional": true}}, "body_json": {"to": {"each": "{who}", "as": {"a": "{item}"}}, "x": 1}`, `{}`, "", `{"x":1}`},
		{"each, an outer arg inside", post, "", `"args": {"who": {"type": "list"}, "role": {}}, "body_json": {"role": "{role}", "to": {"each": "{who}", "as": {"a": "{item}", "r": "{role}"}}}`, `{"who": ["x"], "role": "r"}`, "", `{"role":"r","to":[{"a":"x","r":"r"}]}`},

		// What is left out.
		{"an absent query parameter", get, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "query": {"a": "{a}", "t": "x:{a}", "b": "{b}", "lit": "1"}`, `{"b": "y"}`, "/x?b=y&lit=1", ""},
		{"no parameter at all", get, "", `"args": {"a": {"optional": true}}, "query": {"a": "{a}"}`, `{}`, "/x", ""},
		{"an absent member", post, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "body_json": {"a": "{a}", "b": "{b}", "lit": 1, "none": null}`, `{"b": "y"}`, "", `{"b":"y","lit":1,"none":null}`},
		{"all absent", post, "", `"args": {"a": {"optional": true}}, "body_json": {"a": "{a}"}`, `{}`, "", `{}`},
		{"an object with its literals", post, "", `"args": {"a": {"optional": true}}, "body_json": {"parent": {"type": "page_id", "page_id": "{a}"}, "x": {"type": "fixed"}}`, `{}`, "", `{"x":{"type":"fixed"}}`},
		{"an object with one present", post, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "body_json": {"p": {"type": "t", "a": "{a}", "b": "{b}"}}`, `{"b": "1"}`, "", `{"p":{"type":"t","b":"1"}}`},
		{"objects in objects", post, "", `"args": {"a": {"optional": true}}, "body_json": {"p": {"q": {"r": {"a": "{a}", "t": "x"}, "u": "y"}, "v": "z"}, "w": "k"}`, `{}`, "", `{"w":"k"}`},
		{"list items", post, "", `"args": {"a": {"optional": true}, "b": {"optional": true}, "c": {"optional": true}}, "body_json": {"filters": ["{a}", {"p": "x", "v": "{b}"}, "lit", {"k": "fixed"}, "pre-{c}"]}`, `{"c": "1"}`, "", `{"filters":["lit",{"k":"fixed"},"pre-1"]}`},
		{"the first item kept", post, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "body_json": {"f": ["{a}", "{b}"]}`, `{"a": "1"}`, "", `{"f":["1"]}`},
		{"the last item kept", post, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "body_json": {"f": ["{a}", "{b}"]}`, `{"b": "1"}`, "", `{"f":["1"]}`},
		{"a list of which nothing is present", post, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "body_json": {"f": ["{a}", {"x": "{b}"}], "g": 1}`, `{}`, "", `{"g":1}`},
		{"empty literals", post, "", `"args": {}, "body_json": {"f": [], "g": {}, "h": "", "i": [[], {}]}`, `{}`, "", `{"f":[],"g":{},"h":"","i":[[],{}]}`},
		{"a list as the body", post, "", `"args": {"a": {}}, "body_json": [{"a": "{a}"}, 1.50, true]`, `{"a": "x"}`, "", `[{"a":"x"},1.50,true]`},
		{"an absent form parameter", form, "", `"args": {"a": {"optional": true}, "b": {"optional": true}}, "body_form": {"a": "{a}", "b": "{b}", "c": "1"}`, `{"a": ""}`, "", "a=&c=1"},
		{"no form parameter", form, "", `"args": {"a": {"optional": true}}, "body_form": {"a": "{a}"}`, `{}`, "", ""},
		{"no body", post, "", `"args": {}`, `{}`, "", ""},

		// null where it clears.
		{"null in JSON", post, "", `"args": {"a": {"optional": true, "clear": true}, "b": {"type": "integer", "optional": true, "clear": true}, "c": {"type": "list", "optional": true, "clear": true}, "d": {"type": "map", "optional": true, "clear": true}}, "body_json": {"a": "{a}", "b": "{b}", "c": "{c}", "d": "{d}", "o": {"a": "{a}"}}`,
			`{"a": null, "b": null, "c": null, "d": null}`, "", `{"a":null,"b":null,"c":null,"d":null,"o":{"a":null}}`},
		{"null in a form", form, "", `"args": {"a": {"optional": true, "clear": true}, "c": {"type": "list", "style": "brackets", "optional": true, "clear": true}, "d": {"type": "date", "as": "epoch_s", "optional": true, "clear": true}}, "body_form": {"a": "{a}", "c": "{c}", "d": "{d}"}`, `{"a": null, "c": null, "d": null}`, "", "a=&c=&d="},

		// Defaults.
		{"defaults", post, "", `"args": {"a": {"default": "x"}, "b": {"type": "integer", "default": 5}, "c": {"type": "boolean", "default": false}, "d": {"type": "enum", "values": ["p", "q"], "default": "q"}, "e": {"type": "number", "default": 1.50}}, "query": {"b": "{b}"}, "body_json": {"a": "{a}", "b": "{b}", "c": "{c}", "d": "{d}", "e": "{e}"}`,
			`{}`, "/x?b=5", `{"a":"x","b":5,"c":false,"d":"q","e":1.5}`},
		{"a default set aside", get, "", `"args": {"b": {"type": "integer", "default": 5}}, "query": {"b": "{b}"}`, `{"b": 0}`, "/x?b=0", ""},

		// Members keep the manifest's order, whatever order the args have.
		{"order", post, "", `"args": {"z": {}, "a": {}, "m": {}}, "query": {"z": "{z}", "a": "{a}"}, "body_json": {"m": "{m}", "a": "{a}"}`, `{"m": "1", "a": "2", "z": "3"}`, "/x?z=3&a=2", `{"m":"1","a":"2"}`},
		{"names beyond ASCII", post, "", `"args": {"a": {}}, "body_json": {"naïve \"key\"": "{a}"}`, `{"a": "1"}`, "", `{"naïve \"key\"":"1"}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			method, path, uri := tc.method, tc.path, tc.uri
			if method == form {
				method = "POST"
			}
			if path == "" {
				path = "/x"
				if uri == "" {
					uri = "/x"
				}
			}
			m := service(t, anOp(method, path, tc.parts))
			p := newPeer(t, answer(200, `{"id": 1}`))
			args, err := ParseArgs([]byte(tc.args))
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Execute(background, m, "op", args, testSecret)
			if uri == "" {
				wantCode(t, err, "refused")
				if n := len(p.requests()); n != 0 {
					t.Errorf("%d requests were sent", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			r := p.one(t)
			if r.Method != method || r.URI != uri || r.Body != tc.body {
				t.Errorf("got  %s %s\n     %s\nwant %s %s\n     %s", r.Method, r.URI, r.Body, method, uri, tc.body)
			}
			kind := ""
			switch {
			case strings.Contains(tc.parts, `"body_form"`):
				kind = "application/x-www-form-urlencoded"
			case strings.Contains(tc.parts, `"body_json"`):
				kind = "application/json"
			}
			if got := r.Header.Get("Content-Type"); got != kind {
				t.Errorf("Content-Type is %q, want %q", got, kind)
			}
		})
	}
}

// TestRequestHeaders: what a manifest sets, and the key of an idempotent write.
func TestRequestHeaders(t *testing.T) {
	m := service(t, opGet+","+opPostOnce, `"headers": {"Accept": "application/vnd.example+json", "X-Example-Version": "2026-01-01", "Accept-Language": "en"}`)
	p := newPeer(t, answer(200, `{"id": 1}`))
	if _, err := p.Execute(background, m, "get", nil, testSecret); err != nil {
		t.Fatal(err)
	}
	h := p.one(t).Header
	for name, want := range map[string]string{"Accept": "application/vnd.example+json", "X-Example-Version": "2026-01-01", "Accept-Language": "en", "Idempotency-Key": ""} {
		if got := h.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}

	key := func(call string) string {
		c, err := m.Bind("post_once", Args{"text": "x"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.IdempotencyKey = call
		p.answerWith(answer(200, `{"id": 1}`))
		if _, err := p.Do(background, c, Credential{Secret: testSecret}); err != nil {
			t.Fatal(err)
		}
		k := p.one(t).Header.Get("Idempotency-Key")
		if !uuid4.MatchString(k) {
			t.Errorf("the key %q is not of a UUID's form", k)
		}
		return k
	}
	if a, b, c := key("grant-1/op-1"), key("grant-1/op-1"), key("grant-1/op-2"); a != b || a == c {
		t.Errorf("the keys are %s, %s and %s", a, b, c)
	}
	if a, b := key(""), key(""); a == b {
		t.Errorf("two calls without a key had the same, %s", a)
	}
}

// TestRequestIdempotencyInBody: a UUID that the executor puts into the body, as Linear
// takes it, and that lets no write be repeated.
func TestRequestIdempotencyInBody(t *testing.T) {
	m := service(t, `
		"top": {"title": "Top", "access": "write", "method": "POST", "path": "/x", "args": {"t": {"optional": true}}, "body_json": {"t": "{t}"}, "confirm": "Go?", "idempotency": {"body": "id"}, "pick": {"fields": ["id"]}},
		"deep": {"title": "Deep", "access": "write", "method": "POST", "path": "/x", "args": {"t": {"optional": true}}, "body_json": {"v": {"input": {"t": "{t}"}, "x": 1}}, "confirm": "Go?", "idempotency": {"body": "v.input.id"}, "pick": {"fields": ["id"]}}`)
	p := newPeer(t, answer(200, `{"id": 1}`))
	id := uuidFrom("k")
	for _, tc := range []struct {
		op   string
		args Args
		want string
	}{
		{"top", nil, `{"id":"` + id + `"}`},
		{"top", Args{"t": "x"}, `{"t":"x","id":"` + id + `"}`},
		{"deep", nil, `{"v":{"input":{"id":"` + id + `"},"x":1}}`},
		{"deep", Args{"t": "x"}, `{"v":{"input":{"t":"x","id":"` + id + `"},"x":1}}`},
	} {
		p.answerWith(answer(200, `{"id": 1}`))
		c, err := m.Bind(tc.op, tc.args, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.IdempotencyKey = "k"
		if _, err := p.Do(background, c, Credential{Secret: testSecret}); err != nil {
			t.Fatal(err)
		}
		if got := p.one(t); got.Body != tc.want || got.Header.Get("Idempotency-Key") != "" {
			t.Errorf("%s %v: sent %s, want %s", tc.op, tc.args, got.Body, tc.want)
		}
	}
	if !uuid4.MatchString(id) {
		t.Errorf("%q is not of a UUID's form", id)
	}
	p.answerWith(inTurn(answer(503, ""), answer(200, `{"id": 1}`)))
	_, err := p.Execute(background, m, "top", nil, testSecret)
	wantCode(t, err, "unknown_outcome")
	p.one(t)
}

// TestArgsRefused: before anything is sent, with the arg, the limit, and never the value.
func TestArgsRefused(t *testing.T) {
	const args = `"args": {
		"text": {"optional": true, "min": 2, "max": 5}, "long": {"optional": true}, "pat": {"optional": true, "pattern": "[a-z]+"},
		"int": {"type": "integer", "optional": true, "min": -5, "max": 5}, "any_int": {"type": "integer", "optional": true}, "num": {"type": "number", "optional": true, "min": 0.5, "max": 1.5},
		"bool": {"type": "boolean", "optional": true}, "enum": {"type": "enum", "values": ["a", "b"], "optional": true},
		"date": {"type": "date", "optional": true}, "time": {"type": "datetime", "optional": true}, "id": {"type": "id", "optional": true, "max": 4},
		"list": {"type": "list", "of": "integer", "max_items": 2, "style": "comma", "optional": true}, "texts": {"type": "list", "style": "comma", "optional": true},
		"objects": {"type": "list", "style": "indexed", "of": {"object": {"id": {}, "n": {"type": "integer", "optional": true}}}, "optional": true},
		"map": {"type": "map", "max_items": 2, "optional": true}, "cleared": {"optional": true, "clear": true}
	}, "body_form": {"text": "{text}", "long": "{long}", "pat": "{pat}", "int": "{int}", "any_int": "{any_int}", "num": "{num}", "bool": "{bool}", "enum": "{enum}", "date": "{date}", "time": "{time}", "id": "{id}",
		"list": "{list}", "texts": "{texts}", "objects": "{objects}", "map": "{map}", "cleared": "{cleared}"}`
	m := service(t, anOp("POST", "/x", args))
	p := newPeer(t, answer(200, `{"id": 1}`))
	const s = `SENTINEL`
	for _, tc := range []struct{ arg, value, says string }{
		{"text", `"` + s + `"`, "at most 5"},
		{"text", `"x"`, "at least 2"},
		{"text", `true`, "not a text"},
		{"text", `1.5`, "not a text"},
		{"text", `null`, "null"},
		{"text", `["SENTINEL"]`, "not a text"},
		{"text", `{"a": "SENTINEL"}`, "not a text"},
		{"text", `"\ud83d\ude00\ud83d\ude00\ud83d\ude00\ud83d\ude00\ud83d\ude00\ud83d\ude00"`, "6 characters"},
		{"long", `"` + strings.Repeat("x", 4097) + `"`, "4097 characters; at most 4096"},
		{"pat", `"SENTINEL"`, "form [a-z]+"},
		{"pat", `"abc\n"`, "form [a-z]+"},
		{"pat", `"abc1"`, "form [a-z]+"},
		{"int", `6`, "more than 5"},
		{"int", `-6`, "less than -5"},
		{"any_int", `1.0`, "whole number"},
		{"any_int", `1e3`, "whole number"},
		{"any_int", `"0x10"`, "whole number"},
		{"any_int", `"1_000"`, "whole number"},
		{"any_int", `"+1"`, "whole number"},
		{"any_int", `" 1"`, "whole number"},
		{"any_int", `"SENTINEL"`, "whole number"},
		{"any_int", `""`, "whole number"},
		{"any_int", `true`, "whole number"},
		{"any_int", `9223372036854775808`, "64 bits"},
		{"any_int", `-9223372036854775809`, "64 bits"},
		{"any_int", `"١٢"`, "whole number"},
		{"num", `0.49`, "less than 0.5"},
		{"num", `1.51`, "more than 1.5"},
		{"num", `1e400`, "too large"},
		{"num", `"NaN"`, "not a number"},
		{"num", `"Infinity"`, "not a number"},
		{"num", `"0x1p-2"`, "not a number"},
		{"num", `"1,2"`, "not a number"},
		{"num", `"01.5"`, "not a number"},
		{"num", `true`, "not a number"},
		{"bool", `"yes"`, "true or false"},
		{"bool", `1`, "true or false"},
		{"bool", `"TRUE"`, "true or false"},
		{"enum", `"SENTINEL"`, "one of: a, b"},
		{"enum", `"A"`, "one of: a, b"},
		{"enum", `""`, "one of: a, b"},
		{"date", `"2026-02-30"`, "date"},
		{"date", `"02.12.2026"`, "date"},
		{"date", `"2026-12-02T00:00:00Z"`, "date"},
		{"date", `20261202`, "date"},
		{"date", `"0000-01-01"`, "date"},
		{"time", `"2026-12-02"`, "date and time"},
		{"time", `"2026-12-02 15:04:05Z"`, "date and time"},
		{"time", `"2026-12-02T15:04:05"`, "date and time"},
		{"time", `"2026-12-02T25:04:05Z"`, "date and time"},
		{"time", `"0000-01-01T00:00:00Z"`, "year"},
		{"time", `"9999-12-31T23:59:59-01:00"`, "year"},
		{"time", `1796223845`, "date and time"},
		{"id", `"a b"`, "an id"},
		{"id", `"a/b"`, "an id"},
		{"id", `""`, "an id"},
		{"id", `"ä"`, "an id"},
		{"id", `"a\n"`, "an id"},
		{"id", `"abcde"`, "at most 4"},
		{"list", `"1"`, "not a list"},
		{"list", `{"0": 1}`, "not a list"},
		{"list", `[1, 2, 3]`, "3 items; at most 2"},
		{"list", `[1, "SENTINEL"]`, "item 2"},
		{"list", `[[1]]`, "item 1"},
		{"list", `[null]`, "item 1"},
		{"texts", `["SENTINEL,x"]`, "comma"},
		{"objects", `["SENTINEL"]`, "item 1 is not an object"},
		{"objects", `[{"id": "x", "SENTINELS": 1}]`, "is not known"},
		{"objects", `[{"n": 1}]`, "\"id\" is missing"},
		{"objects", `[{"id": "x", "n": "SENTINEL"}]`, "n: this is not a whole number"},
		{"objects", `[{"id": null}]`, "null"},
		{"map", `["SENTINEL"]`, "not a map"},
		{"map", `{"a": "1", "b": "2", "c": "3"}`, "3 entries; at most 2"},
		{"map", `{"a": 1}`, "not a text"},
		{"map", `{"a": null}`, "not a text"},
		{"map", `{"a": {"SENTINEL": 1}}`, "not a text"},
		{"map", `{"": "x"}`, "key"},
		{"map", `{"a][b": "x"}`, "key"},
		{"map", `{"a\u202eb": "x"}`, "key"},
		{"map", `{"` + strings.Repeat("k", 41) + `": "x"}`, "key"},
		{"map", `{"a": "` + strings.Repeat("x", 501) + `"}`, "500"},
		{"cleared", `[null]`, "not a text"},
	} {
		args, err := ParseArgs([]byte(`{"` + tc.arg + `": ` + tc.value + `}`))
		if err != nil {
			t.Fatalf("%s: %v", tc.value, err)
		}
		_, err = p.Execute(background, m, "op", args, testSecret)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Arg != tc.arg || !strings.Contains(refused.Reason, tc.says) {
			t.Errorf("%s = %.60s: %v, want one that says %q", tc.arg, tc.value, err, tc.says)
			continue
		}
		if s := err.Error(); strings.Contains(s, "SENTINEL") && !strings.Contains(s, "SENTINELS") || len(s) > 300 {
			t.Errorf("%s = %.60s: the error repeats the value: %s", tc.arg, tc.value, s)
		}
	}
	for _, v := range []any{"\xff", "a\xc0\xaf", "\xed\xa0\xbd"} {
		_, err := p.Execute(background, m, "op", Args{"long": v}, testSecret)
		wantCode(t, err, "refused")
	}
	for _, v := range []any{math.NaN(), math.Inf(1), math.Inf(-1), 1e300, []int{1}, struct{}{}, 1 + 2i, func() {}} {
		_, err := p.Execute(background, m, "op", Args{"any_int": v}, testSecret)
		wantCode(t, err, "refused")
	}
	if n := len(p.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

// TestArgsWords: what is said of args that are unknown or missing.
func TestArgsWords(t *testing.T) {
	m := service(t, anOp("GET", "/x", `"args": {"owner": {"about": "who owns it"}, "a": {"optional": true}, "b": {"optional": true}}, "one_of": ["a", "b"], "query": {"owner": "{owner}", "a": "{a}", "b": "{b}"}`))
	for _, tc := range []struct {
		op        string
		args      Args
		arg, says string
		hint      string
	}{
		{"opp", nil, "", "no operation", "did you mean op?"},
		{"delete_all", nil, "", "no operation", "it has: op"},
		{"op", Args{"ownr": "x"}, "ownr", "no such arg", "did you mean owner?"},
		{"op", Args{"owner": "x", "a": "1", "zzz\x1b[2J": "x"}, "", "no such arg", "its args are: owner, a, b"},
		{"op", Args{"a": "x"}, "owner", "needed", "who owns it"},
		{"op", Args{"owner": "x"}, "a", "exactly one of a, b is given, not 0", ""},
		{"op", Args{"owner": "x", "a": "1", "b": "2"}, "a", "exactly one of a, b is given, not 2", ""},
	} {
		_, err := m.Bind(tc.op, tc.args, nil)
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Arg != tc.arg || !strings.Contains(refused.Reason, tc.says) || refused.Hint != tc.hint {
			t.Errorf("%s %v: %#v", tc.op, tc.args, err)
		}
	}
	if _, err := m.Bind("op", Args{"owner": "x", "b": "2"}, nil); err != nil {
		t.Error(err)
	}
}

// TestArgsConnection: an arg that the connection has learnt is filled before anything is
// shown or sent, and the caller's own value counts more.
func TestArgsConnection(t *testing.T) {
	m := service(t, `"accounts": {"title": "Accounts", "access": "read", "method": "GET", "path": "/accounts", "pick": {"fields": ["id", "name"]}},
		"op": {"title": "Op", "access": "write", "method": "POST", "path": "/{account}/x", "args": {"account": {"type": "integer", "connection": "account"}}, "confirm": "Go in {account}?", "pick": {"nothing": "no body"}}`,
		`"connect": {"account": {"op": "accounts", "value": "id", "label": "name"}}`)
	p := newPeer(t, answer(200, ""))
	for _, tc := range []struct {
		args   Args
		learnt map[string]string
		uri    string
	}{
		{nil, map[string]string{"account": "1010"}, "/1010/x"},
		{Args{"account": 7}, map[string]string{"account": "1010"}, "/7/x"},
		{nil, map[string]string{"other": "1010"}, ""},
		{nil, map[string]string{"account": "../7"}, ""},
		{nil, nil, ""},
	} {
		p.answerWith(answer(200, ""))
		c, err := m.Bind("op", tc.args, tc.learnt)
		if tc.uri == "" {
			wantCode(t, err, "refused")
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		shown := strings.TrimSuffix(strings.TrimPrefix(tc.uri, "/"), "/x")
		if got, want := c.Sentence().Text, "Go in "+shown+"?"; got != want || c.Args()["account"] != shown {
			t.Errorf("it reads %q with %v, want %q", got, c.Args(), want)
		}
		if _, err := p.ExecuteAs(background, m, "op", tc.args, Credential{Secret: testSecret, Connection: tc.learnt}); err != nil {
			t.Fatal(err)
		}
		if r := p.one(t); r.URI != tc.uri {
			t.Errorf("it asked for %s, want %s", r.URI, tc.uri)
		}
	}
}

func TestParseArgs(t *testing.T) {
	for _, s := range []string{
		``, ` `, `null`, `[]`, `"x"`, `1`, `{`, `{"a": 1`, `{"a": 1,}`, `{"a": 1} x`, `{"a": 1}{}`, `{"a": 1, "a": 2}`, `{"a": {"b": 1, "b": 2}}`, `{"a": 1, "\u0061": 2}`,
		"{\"a\": \"\xff\"}", `{"a": "\ud800"}`, `{"a": "\udc00\ud800"}`, "\ufeff{}", `{a: 1}`, `{'a': 1}`, `{"a": 01}`, `{"a": NaN}`, `{"a": "` + "\n" + `"}`, `// x` + "\n{}",
		`{"a": "` + strings.Repeat("x", 65536) + `"}`,
	} {
		args, err := ParseArgs([]byte(s))
		if args != nil || Code(err) != "refused" {
			t.Errorf("ParseArgs(%.60q) is %v, %v", s, args, err)
		}
		if err != nil && strings.Contains(err.Error(), "xxx") {
			t.Errorf("ParseArgs(%.60q): the error repeats the input: %v", s, err)
		}
	}
	args, err := ParseArgs([]byte(" {\"a\": 12345678901234567890, \"b\": [1.10, null], \"c\": {\"d\": \"\\ud83d\\ude00\"}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	if len(args) != 3 || fmt.Sprint(args["a"]) != "12345678901234567890" || fmt.Sprint(args["b"]) != "[1.10 <nil>]" || fmt.Sprint(args["c"]) != "map[d:😀]" {
		t.Errorf("got %v", args)
	}
}
