package integrations

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestAsks runs what users of comparable systems ask for, as far as the executor owes it;
// each is named after its number in the list.
func TestAsks(t *testing.T) {
	t.Run("ask_29", func(t *testing.T) { // 200,000 tokens for a list of issues
		item := `{"id": 1, "text": "t", "SENTINEL": "` + strings.Repeat("SENTINEL", 100) + `", "user": {"SENTINEL": 1}}`
		p := newPeer(t, answer(200, `[`+strings.Repeat(item+`,`, 999)+item+`]`))
		res, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
		if err != nil {
			t.Fatal(err)
		}
		if want := `[` + strings.Repeat(`{"id":1,"text":"t"},`, 999) + `{"id":1,"text":"t"}]`; string(res.JSON) != want {
			t.Errorf("%d bytes came back, want %d", len(res.JSON), len(want))
		}
	})
	t.Run("ask_30", func(t *testing.T) { // a refusal that leads nowhere, or a silent cut
		op := `"list": {"title": "List", "access": "read", "method": "GET", "path": "/things", "args": {"page": {"type": "integer", "optional": true}, "per_page": {"type": "integer", "default": 50}},
			"query": {"page": "{page}", "per_page": "{per_page}"}, "pick": {"fields": ["text"]}, "next": {"style": "page", "arg": "page", "size": 50}}`
		wrap := len(`{"text":""}`)
		for _, n := range []int{MaxResult - 1, MaxResult, MaxResult + 1, 2 * MaxResult} {
			p := newPeer(t, answer(200, `{"text": "`+strings.Repeat("a", n-wrap)+`"}`))
			res, err := p.Execute(background, service(t, op), "list", nil, testSecret)
			if n <= MaxResult {
				if err != nil || len(res.JSON) != n {
					t.Errorf("%d bytes: %v", n, err)
				}
				continue
			}
			wantCode(t, err, "too_large")
			want := fmt.Sprintf("the result has %s bytes and 45,056 fit in one message; a smaller per_page makes it smaller", group(int64(n)))
			if err.Error() != want || res != nil {
				t.Errorf("got %q, want %q", err, want)
			}
		}
	})
	t.Run("ask_31", func(t *testing.T) { // page one taken for everything
		n, err := nextOf(t, nil, `<https://x/?page=2>; rel="next"`)
		if err != nil || n == nil || string(must(n.MarshalJSON())) != `{"page":"2"}` {
			t.Errorf("got %v, %v", n, err)
		}
		for _, links := range [][]string{{`<https://x/?page=2>; rel="next"`}, {`<https://x/?page=>; rel="next"`}, {}} { // it does not advance, or ends
			if n, err := nextOf(t, Args{"page": "2"}, links...); n != nil || err != nil {
				t.Errorf("%q: got %v, %v; the list ends here", links, n, err)
			}
		}
	})
	t.Run("ask_32", func(t *testing.T) { // big integers change, either way
		m := service(t, opNumber)
		for _, n := range []string{"9007199254740993", "9223372036854775807", "-9223372036854775808"} {
			p := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
				fmt.Fprintf(w, `{"id": %s}`, strings.TrimPrefix(r.URL.Path, "/things/"))
			})
			res, err := p.Execute(background, m, "number", must(ParseArgs([]byte(`{"n":`+n+`}`))), testSecret)
			if err != nil || string(res.JSON) != `{"id":`+n+`}` {
				t.Errorf("%s came back as %v, %v", n, res, err)
			}
		}
	})
	t.Run("ask_33", func(t *testing.T) { // 200 that failed
		read := `"get": {"title": "Get", "access": "read", "method": "GET", "path": "/things", "pick": {"fields": ["id"]}, "fail": `
		when, unless := `{"when": "errors", "message": "errors.message", "code": "errors.code", "rate_limited": ["SLOW"], "unauthorized": ["WHO"]}`, `{"unless": "ok", "message": "error", "code": "error", "unauthorized": ["token_expired"]}`
		for _, tc := range []struct{ fail, body, code, says string }{
			{when, `{"id": 1, "errors": [{"message": "no field", "x": "SENTINEL"}, {"message": "second"}]}`, "provider", "no field"},
			{when, `{"id": 1, "errors": {"message": "no"}}`, "provider", "no"},
			{when, `{"id": 1, "errors": []}`, "", ""}, {when, `{"id": 1, "errors": null}`, "", ""}, {when, `{"id": 1, "errors": false}`, "", ""}, {when, `{"id": 1}`, "", ""},
			{when, `{"errors": [{"code": "SLOW", "message": "wait"}]}`, "rate_limited", "wait"},
			{when, `{"errors": [{"code": "WHO"}]}`, "unauthorised", ""},
			{unless, `{"ok": true, "id": 1}`, "", ""}, {unless, `{"ok": false, "error": "no_channel"}`, "provider", "no_channel"},
			{unless, `{"id": 1}`, "provider", ""}, {unless, `{"ok": "true", "id": 1}`, "provider", ""}, {unless, `{"ok": 1, "id": 1}`, "provider", ""},
			{unless, `{"ok": false, "error": "token_expired"}`, "unauthorised", "token_expired"},
			{`[` + when + `,` + unless + `]`, `{"ok": true, "errors": [{"message": "half"}]}`, "provider", "half"},
			{`[` + when + `,` + unless + `]`, `{"ok": false}`, "provider", ""},
		} {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(answer(200, tc.body))
				_, err := p.Execute(background, service(t, read+tc.fail+`}`), "get", nil, testSecret)
				if Code(err) != tc.code || err != nil && (!strings.Contains(err.Error(), tc.says) || strings.Contains(err.Error(), "SENTINEL") || strings.Contains(err.Error(), "second")) {
					t.Errorf("%s: %v, want %q with %q", tc.body, err, tc.code, tc.says)
				}
			})
		}
		_, err := Parse([]byte(`{"manifest": 1, "id": "x", "version": "1.0.0", "name": "X", "about": "x", "host": "api.example.com", "auth": {"authorization": "bearer"}, "ops": {"q": {"title": "Q",
			"access": "read", "method": "POST", "path": "/graphql", "safe_post": "a query", "body_json": {"query": "query { viewer { id } }"}, "pick": {"root": "data.viewer", "fields": ["id"]}}}}`))
		wantFault(t, err, "graphql.fail")
	})
	t.Run("ask_34", askedOfRates)
	t.Run("ask_35", askedOfLostWrites)
	t.Run("ask_36", askedOfOtherHosts)
	t.Run("ask_37", askedOfPaths)
	t.Run("ask_38", askedOfTokens)
	t.Run("ask_39", askedOfMutations)
}

// wantFault fails unless err holds a fault of the rule.
func wantFault(t *testing.T, err error, rule string) {
	t.Helper()
	var faults Faults
	if !errors.As(err, &faults) {
		t.Fatalf("%v holds no fault, want %s", err, rule)
	}
	for _, f := range faults {
		if f.Rule == rule {
			return
		}
	}
	t.Errorf("%v does not hold %s", err, rule)
}

func askedOfRates(t *testing.T) { // GitHub says 403, not 429
	limits := `"limits": {"remaining": "X-Left", "reset": "X-Reset", "unit": "epoch_s", "also_403": true}`
	for _, tc := range []struct {
		status  int
		headers []string
		code    string
		until   int // seconds from now
	}{
		{403, []string{"X-Left: 0", "X-Reset: +3600"}, "rate_limited", 3600},
		{403, []string{"X-Left: 12", "Retry-After: 60"}, "rate_limited", 60},
		{403, []string{"X-Left: 0"}, "rate_limited", 0},
		{403, []string{"X-Left: 12"}, "provider", 0},
		{403, nil, "provider", 0},
		{429, []string{"X-Left: 12", "Retry-After: 7200"}, "rate_limited", 7200},
		{404, []string{"X-Left: 0", "Retry-After: 60"}, "provider", 0},
	} {
		inBubble(t, func(t *testing.T, p *peer) {
			now := time.Now()
			var headers []string
			for _, h := range tc.headers {
				if name, s, ok := strings.Cut(h, ": +"); ok {
					n, _ := strconv.Atoi(s)
					h = fmt.Sprintf("%s: %d", name, now.Add(time.Duration(n)*time.Second).Unix())
				}
				headers = append(headers, h)
			}
			p.answerWith(answer(tc.status, `{"message": "slow"}`, headers...))
			_, err := p.Execute(background, service(t, opGet, limits), "get", nil, testSecret)
			wantCode(t, err, tc.code)
			var rl *RateLimitError
			if tc.until > 0 && (!errors.As(err, &rl) || rl.Until.Sub(now).Round(2*time.Second) != time.Duration(tc.until)*time.Second || !strings.Contains(err.Error(), "until 2000-")) {
				t.Errorf("%d %q: %v", tc.status, tc.headers, err)
			}
		})
	}
}

func askedOfLostWrites(t *testing.T) { // a retry after a time-out doubles the write
	m := service(t, opPost+","+opPostOnce+","+opDelete+`,"body_key": {"title": "Post", "access": "write", "method": "POST", "path": "/things", "args": {"text": {}},
		"body_json": {"text": "{text}"}, "confirm": "Post {text}?", "idempotency": {"body": "id"}, "pick": {"fields": ["id"]}}`)
	lost := map[string]http.HandlerFunc{
		"silence": silent, "closed": broken(""), "half a status": broken("HTTP/1.1 20"), "half a body": broken("HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n{\"id\": "),
		"502": answer(502, ""), "503": answer(503, ""), "504": answer(504, "<html>"), "500": answer(500, ""), "408": answer(408, ""), "no JSON": answer(200, "<html>"),
	}
	for name, h := range lost {
		for op, args := range map[string]Args{"post": {"text": "x"}, "body_key": {"text": "x"}, "delete": {"id": "x"}} {
			if op == "delete" && (name == "no JSON" || name == "half a body") {
				continue // nothing of its answer is read
			}
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(h)
				_, err := p.Execute(background, m, op, args, testSecret)
				wantCode(t, err, "unknown_outcome")
				if n := len(p.requests()); n != 1 || !strings.Contains(err.Error(), "it was not tried again, look there first") {
					t.Errorf("%s of %s: %d requests, %v", name, op, n, err)
				}
			})
		}
	}
	inBubble(t, func(t *testing.T, p *peer) { // under its key a repeat is harmless
		p.answerWith(inTurn(broken(""), answer(503, ""), answer(200, `{"id": 1}`)))
		res, err := p.Execute(background, m, "post_once", Args{"text": "x"}, testSecret)
		if err != nil || res.Tries != 3 {
			t.Fatalf("got %+v, %v", res, err)
		}
		for _, r := range p.requests() {
			if k := r.Header.Get("Idempotency-Key"); !uuid4.MatchString(k) || k != p.requests()[0].Header.Get("Idempotency-Key") {
				t.Errorf("the key is %q", k)
			}
		}
	})
}

func askedOfOtherHosts(t *testing.T) { // a redirect or an override carries the token elsewhere
	evil := newPeer(t, answer(200, `{"id": "stolen"}`), "evil.example")
	p := newPeer(t, answer(307, "", "Location: https://evil.example/"))
	p.ConnectTo["evil.example:443"] = evil.addr
	m := service(t, opGet+","+opPost)
	_, err := p.Execute(background, m, "get", nil, testSecret)
	wantCode(t, err, "provider")
	for _, name := range []string{"host", "base_url", "baseUrl", "url", "headers", "Authorization", "_method", "path", "method", "server", "proxy", "__proto__"} {
		_, err := p.Execute(background, m, "post", Args{"text": "x", name: "https://evil.example"}, testSecret)
		wantCode(t, err, "refused")
	}
	if n := len(evil.requests()); n != 0 {
		t.Errorf("the other host heard %d requests", n)
	}
	p.one(t)
}

func askedOfPaths(t *testing.T) { // a model's ../ reaches another endpoint
	m := service(t, opRepo)
	for _, v := range []string{"../", "..", "../../user", `..\..\user`, "a/../../user", "....//", "./", "/", "//", "..\u0000"} {
		_, err := m.Bind("repo", Args{"owner": v, "repo": "x"}, nil)
		wantCode(t, err, "refused")
		if len(v) > 3 && strings.Contains(err.Error(), v) {
			t.Errorf("the error repeats the value: %v", err)
		}
	}
	for v, want := range map[string]string{"%2e%2e": "%252e%252e", "..%2f..%2fuser": "..%252f..%252fuser", "%252e%252e%252f": "%25252e%25252e%25252f", "..%5c": "..%255c", "\uff0e\uff0e": "%EF%BC%8E%EF%BC%8E", "..?": "..%3F", "..#": "..%23"} {
		if r := sends(t, m, "repo", Args{"owner": v, "repo": "x"}); r == nil || r.URI != "/repos/"+want+"/x/issues" {
			t.Errorf("%q was sent as %+v", v, r)
		}
	}
}

func askedOfTokens(t *testing.T) { // tokens in errors
	m := service(t, opGet+","+opPost, `"error": {"message": "message"}`)
	for _, echo := range []string{testToken, "Bearer " + testToken, strings.ReplaceAll(testToken, "/", `\/`), strings.ReplaceAll(testToken, "+", "%2B"), strings.ReplaceAll(testToken, "/", "%2f"),
		`\u0074` + testToken[1:], url.QueryEscape(testToken), base64.StdEncoding.EncodeToString([]byte("u:" + testToken)), fmt.Sprintf("%x", testToken)} {
		for _, status := range []int{200, 400, 401, 403, 404, 429, 500, 503} {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(answer(status, `{"id": 1, "text": "`+echo+`", "message": "`+echo+`"}`, "Retry-After: 3600"))
				for op, args := range map[string]Args{"get": nil, "post": {"text": "x"}} {
					res, err := p.Execute(background, m, op, args, testSecret)
					if err == nil || res != nil {
						t.Fatalf("%d %q flowed back: %+v", status, echo, res)
					}
					if s := fmt.Sprintf("%v %+v %#v", err, err, err); strings.Contains(s, "S3cr3t") {
						t.Errorf("%s %d: it prints %s", op, status, s)
					}
				}
			})
		}
	}
}

func askedOfMutations(t *testing.T) { // read-only bypassed by a mutation
	parse := func(access, query, more string) error {
		_, err := Parse([]byte(`{"manifest": 1, "id": "x", "version": "1.0.0", "name": "X", "about": "x", "host": "api.example.com", "auth": {"authorization": "bearer"}, "ops": {"q": {"title": "Q",
			"access": "` + access + `", "method": "POST", "path": "/graphql", ` + more + `, "body_json": {"query": "` + query + `"},
			"fail": {"when": "errors", "message": "errors.message"}, "pick": {"root": "data", "fields": ["id"]}}}}`))
		return err
	}
	if err := parse("read", "query { id }", `"safe_post": "a query"`); err != nil {
		t.Fatal(err)
	}
	for query, rule := range map[string]string{
		"mutation { id }": "graphql.kind", "subscription { id }": "graphql.kind", `# query\nmutation { id }`: "graphql.kind", `mutation\t{ id }`: "graphql.kind",
		"\ufeffmutation { id }": "graphql.kind", "query A { id } mutation B { id }": "graphql.parse", "fragment F on Q { id } mutation { id }": "graphql.kind",
		"query { id ": "graphql.parse", "": "graphql.parse",
	} {
		err := parse("read", query, `"safe_post": "a query"`)
		var faults Faults
		if !errors.As(err, &faults) {
			t.Errorf("%q: %v, want %s", query, err, rule)
		} else if !strings.Contains(fmt.Sprint(faults), rule) && !strings.Contains(fmt.Sprint(faults), "graphql") && !strings.Contains(fmt.Sprint(faults), "brace") {
			t.Errorf("%q: %v, want %s", query, err, rule)
		}
	}
	if err := parse("write", "query { id }", `"confirm": "Do it?"`); err == nil {
		t.Error("a write that is a query was accepted")
	}
	// A document is fixed: an arg in its text is refused.
	err := parse("read", "query { {a} }", `"safe_post": "a query", "args": {"a": {}}`)
	if err == nil {
		t.Error("an arg in a document was accepted")
	}
}
