package broker_test

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// waiting is a flow whose provider has approved: a browser that only has to load back.
type waiting struct {
	s    *brokertest.Server
	b    *brokertest.Browser
	ask  *brokertest.Ask
	back *url.URL
}

func wait(t *testing.T, o brokertest.Options, a brokertest.Ask) *waiting {
	t.Helper()
	s := brokertest.New(t, o)
	if a.Service == "" {
		a.Service = "acme"
	}
	w := &waiting{s: s, b: s.Browser(), ask: &a}
	u, err := url.Parse(w.b.Approve(t, w.ask))
	if err != nil {
		t.Fatal(err)
	}
	w.back = u
	return w
}

// at is the callback's address with its query changed.
func (w *waiting) at(change func(url.Values)) string {
	q := w.back.Query()
	change(q)
	u := *w.back
	u.RawQuery = q.Encode()
	return u.String()
}

// open loads the callback and opens what comes of it.
func (w *waiting) open(t *testing.T, to string, headers ...string) *custody.TabOutcome {
	t.Helper()
	p := w.b.Get(t, to, headers...)
	out, err := w.ask.Open(p)
	if err != nil {
		t.Fatalf("%v (status %d)", err, p.Status)
	}
	return out
}

var _ = threat("C1_code_injection", func(t *testing.T) {
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	attacker := w.s.Browser()
	stolen, _ := url.Parse(attacker.Approve(t, &brokertest.Ask{Service: "acme"}))
	code := stolen.Query().Get("code")
	plainError(t, "the victim's cookie, no state", w.b.Get(t, w.at(func(q url.Values) { q.Set("code", code); q.Del("state") })), http.StatusBadRequest)
	plainError(t, "empty state", w.b.Get(t, w.at(func(q url.Values) { q.Set("code", code); q.Set("state", "") })), http.StatusBadRequest)
	plainError(t, "the attacker's state", w.b.Get(t, stolen.String()), http.StatusForbidden)
	plainError(t, "a made-up state", w.b.Get(t, w.at(func(q url.Values) { q.Set("code", code); q.Set("state", "AAAAAAAAAAAAAAAAAAAAAA") })), http.StatusForbidden)
	plainError(t, "no cookie at all", bare(w.s).Get(t, w.back.String()), http.StatusForbidden)
	noCalls(t, w.s)
	// Even with everything of the victim's, a foreign code does not fit her verifier.
	if out := w.open(t, w.at(func(q url.Values) { q.Set("code", code) })); out.Error != "provider" {
		t.Errorf("outcome %+v", out)
	}
	calls(t, w.s, 1)
})

var _ = threat("C2_replayed_callback", func(t *testing.T) {
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	for _, h := range []string{"Sec-Purpose: prefetch", "Sec-Purpose: prefetch;prerender", "Purpose: prefetch", "X-Moz: prefetch", "X-Purpose: preview", "Sec-Fetch-Dest: iframe", "Sec-Fetch-Dest: empty", "Sec-Fetch-Dest: image"} {
		headers := []string{h}
		if !strings.HasPrefix(h, "Sec-Fetch-Dest") {
			headers = append(headers, "Sec-Fetch-Dest: document")
		}
		p, err := w.b.Do(http.MethodGet, w.back.String(), nil, headers...)
		if err != nil {
			t.Fatal(err)
		}
		if p.Status != http.StatusNoContent || len(p.Header["Set-Cookie"]) > 0 || p.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %d %v", h, p.Status, p.Header)
		}
	}
	noCalls(t, w.s)
	_, _, c := split(t, w.b, w.s, w.back.String())
	p := w.b.Get(t, w.back.String())
	if out, err := w.ask.Open(p); err != nil || out.Error != "" {
		t.Fatalf("the real load: %+v, %v", out, err)
	}
	cleared := slices.ContainsFunc((&http.Response{Header: p.Header}).Cookies(), func(k *http.Cookie) bool { return k.Name == c.Name && k.MaxAge < 0 })
	if !cleared {
		t.Error("the flow's cookie is not cleared")
	}
	again := w.b.Get(t, w.back.String())
	plainError(t, "the second load", again, http.StatusForbidden)
	if !strings.Contains(again.Body, "all is well") {
		t.Error("the second load's page claims a failure")
	}
	// A browser that kept the cookie, or got it back from a copy, does no better.
	plainError(t, "with the cookie put back", bare(w.s).Get(t, w.back.String(), header(c)), http.StatusForbidden)
	calls(t, w.s, 1)

	// In parallel: one exchange, and at most one connection is handed over.
	for range 4 {
		w := wait(t, brokertest.Options{}, brokertest.Ask{})
		_, _, c := split(t, w.b, w.s, w.back.String())
		pages := make([]*brokertest.Page, 8)
		var wg sync.WaitGroup
		for i := range pages {
			wg.Go(func() { pages[i], _ = bare(w.s).Do(http.MethodGet, w.back.String(), nil, header(c)) })
		}
		wg.Wait()
		n := 0
		for _, p := range pages {
			if out, err := w.ask.Open(p); err == nil && out.Error == "" {
				n++
			} else {
				plainError(t, "a parallel load", p, http.StatusForbidden)
			}
		}
		if n != 1 {
			t.Errorf("%d connections were handed over, want 1", n)
		}
		calls(t, w.s, 1)
	}
	// Any outcome clears it.
	for name, change := range map[string]func(url.Values){
		"cancelled":  func(q url.Values) { q.Del("code"); q.Set("error", "access_denied") },
		"two codes":  func(q url.Values) { q.Add("code", "x") },
		"wrong code": func(q url.Values) { q.Set("code", "x") },
		"no code":    func(q url.Values) { q.Del("code") },
	} {
		w := wait(t, brokertest.Options{}, brokertest.Ask{})
		w.b.Get(t, w.at(change))
		for _, c := range cookies(w.b, w.s) {
			if strings.HasPrefix(c.Name, brokertest.FlowCookie) {
				t.Errorf("%s: the flow's cookie is still there", name)
			}
		}
		plainError(t, name+", then the true one", w.b.Get(t, w.back.String()), http.StatusForbidden)
	}
})

var _ = threat("C3_mix_up", func(t *testing.T) {
	const issuer = "https://auth.acme.example"
	named := brokertest.Options{Edit: edit("acme", func(o map[string]any) { o["issuer"] = issuer })}
	for _, tt := range []struct {
		name   string
		change func(url.Values)
	}{
		{"absent", func(q url.Values) { q.Del("iss") }},
		{"empty", func(q url.Values) { q.Set("iss", "") }},
		{"another", func(q url.Values) { q.Set("iss", "https://evil.example") }},
		{"a slash more", func(q url.Values) { q.Set("iss", issuer+"/") }},
		{"another case", func(q url.Values) { q.Set("iss", "https://AUTH.acme.example") }},
		{"on a cancel", func(q url.Values) { q.Set("iss", "https://evil.example"); q.Set("error", "access_denied") }},
	} {
		w := wait(t, named, brokertest.Ask{})
		if out := w.open(t, w.at(tt.change)); out.Error != "provider" {
			t.Errorf("%s: outcome %+v", tt.name, out)
		}
		noCalls(t, w.s)
	}
	w := wait(t, named, brokertest.Ask{})
	plainError(t, "twice", w.b.Get(t, w.at(func(q url.Values) { q.Add("iss", issuer) })), http.StatusBadRequest)
	noCalls(t, w.s)
	w = wait(t, named, brokertest.Ask{})
	if out := w.open(t, w.back.String()); out.Error != "" {
		t.Errorf("the true one: %+v", out)
	}
	calls(t, w.s, 1)
	// A manifest without issuer: what comes is not believed, and said to the operator.
	w = wait(t, brokertest.Options{}, brokertest.Ask{})
	if out := w.open(t, w.at(func(q url.Values) { q.Set("iss", "https://evil.example") })); out.Error != "" {
		t.Errorf("unnamed issuer: %+v", out)
	}
	if !strings.Contains(w.s.Logs(), "issuer_unexpected") || strings.Contains(w.s.Logs(), "evil.example") {
		t.Error("the log does not say that there was an issuer, or says which")
	}
})

var _ = threat("C4_cross_provider", func(t *testing.T) {
	w := wait(t, brokertest.Options{}, brokertest.Ask{Service: "github"})
	for other, want := range map[string]int{"acme": http.StatusForbidden, "stripe": http.StatusForbidden, "linear": http.StatusForbidden, "nobody": http.StatusNotFound} {
		u := *w.back
		u.Path = "/oauth/" + other + "/callback"
		_, _, c := split(t, w.b, w.s, w.back.String())
		plainError(t, other, bare(w.s).Get(t, u.String(), header(c)), want)
	}
	noCalls(t, w.s)
})

var _ = threat("C5_repeated_parameters", func(t *testing.T) {
	for _, name := range []string{"code", "state", "iss", "error"} {
		for _, same := range []bool{true, false} {
			w := wait(t, brokertest.Options{}, brokertest.Ask{})
			to := w.at(func(q url.Values) {
				v := q.Get(name)
				if !same || v == "" {
					v = "b"
					if !q.Has(name) {
						q.Add(name, "a")
					}
				}
				q.Add(name, v)
			})
			plainError(t, fmt.Sprintf("%s twice, same %v", name, same), w.b.Get(t, to), http.StatusBadRequest)
			noCalls(t, w.s)
		}
	}
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	plainError(t, "a semicolon", w.b.Get(t, w.back.String()+";code=b"), http.StatusBadRequest)
	noCalls(t, w.s)
})

var _ = threat("C6_wrong_window", func(t *testing.T) {
	// There is no postMessage to a window at all: the browser test has an evil opener that
	// hears nothing, and no file of ours could do it.
	files, err := filepath.Glob("../web/connect/*.js")
	if err != nil || len(files) == 0 {
		t.Fatalf("no file of the client was found: %v", err)
	}
	done, _ := filepath.Glob("../web/connect/done/*")
	for _, f := range append(append(files, done...), "page.html") {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"'*'", `"*"`, "opener.", "parent.", "document.referrer", "event.origin", "addEventListener('message'"} {
			if strings.Contains(string(data), bad) {
				t.Errorf("%s holds %s", f, bad)
			}
		}
	}
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	p := b.Get(t, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	if at, _, _ := strings.Cut(p.Location(), "#"); at != brokertest.Instance+"/connect/done" {
		t.Errorf("the outcome goes to %s", at)
	}
	calls(t, s, 1)
})

// encodings are the forms in which a secret could stand somewhere.
func encodings(secret string) []string {
	return []string{
		secret, url.QueryEscape(secret), url.PathEscape(secret), base64.StdEncoding.EncodeToString([]byte(secret))[:len(secret)],
		base64.RawURLEncoding.EncodeToString([]byte(secret))[:len(secret)], hex.EncodeToString([]byte(secret)), strings.ToUpper(hex.EncodeToString([]byte(secret))),
	}
}

// silent fails when any of the secrets stands in an answer.
func silent(t *testing.T, what string, p *brokertest.Page, secrets ...string) {
	t.Helper()
	var all strings.Builder
	p.Header.Write(&all)
	all.WriteString(p.Body)
	for _, s := range secrets {
		for _, e := range encodings(s) {
			if strings.Contains(all.String(), e) {
				t.Errorf("%s: a secret (%s) stands in the answer", what, s)
			}
		}
	}
}

var _ = threat("C7_readable_token", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	for _, long := range []bool{false, true} {
		b := s.Browser()
		a := &brokertest.Ask{Service: "acme"}
		back := b.Approve(t, a)
		var p *brokertest.Page
		if long {
			p = longOutcome(t, s)
		} else {
			p = b.Get(t, back)
			out, err := a.Open(p)
			if err != nil {
				t.Fatal(err)
			}
			if out.Secret.IsZero() || !strings.HasPrefix(out.Refresh.Reveal(), "rt1.w1.") {
				t.Errorf("outcome %+v, refresh token not wrapped", out)
			}
			silent(t, "short", p, out.Secret.Reveal(), out.Refresh.Reveal())
		}
		silent(t, fmt.Sprintf("long %v", long), p, brokertest.Sentinel)
	}
})

var _ = threat("C8_token_in_address", func(t *testing.T) {
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	_, handle, _ := split(t, w.b, w.s, w.back.String())
	p := w.b.Get(t, w.back.String())
	if !regexp.MustCompile(`^https://chat\.test/connect/done#v1\.[A-Za-z0-9_-]{43}\.acme\.read\.[A-Za-z0-9_-]+$`).MatchString(p.Location()) {
		t.Errorf("Location is %s", p.Location())
	}
	silent(t, "callback", &brokertest.Page{Header: http.Header{"Location": p.Header["Location"]}, Body: p.Body}, w.back.Query().Get("code"), handle, brokertest.Sentinel)
	if got := p.Header.Get("Referrer-Policy"); got != "no-referrer" {
		t.Errorf("Referrer-Policy %q", got)
	}
	// A cancel's address says no more.
	w = wait(t, brokertest.Options{}, brokertest.Ask{})
	_, handle, _ = split(t, w.b, w.s, w.back.String())
	p = w.b.Get(t, w.at(func(q url.Values) { q.Set("error", "access_denied") }))
	silent(t, "cancel", &brokertest.Page{Header: http.Header{"Location": p.Header["Location"]}, Body: p.Body}, w.back.Query().Get("code"), handle, "access_denied", "cancelled")
	// No page loads anything, or leads anywhere but on.
	s := w.s
	for name, p := range map[string]*brokertest.Page{"consent": s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "acme"})), "no flow": s.Browser().Get(t, s.URL+"/oauth/acme/callback?code=c&state=AAAAAAAAAAAAAAAAAAAAAA"), "long": longOutcome(t, s)} {
		for _, m := range regexp.MustCompile(`(?i)(src|href|action|srcset|data|poster)="([^"]*)"|url\(|@import`).FindAllStringSubmatch(p.Body, -1) {
			if v := m[2]; v != "/oauth/acme/authorize" && !strings.HasPrefix(v, brokertest.Instance+"/connect/done#v1.") {
				t.Errorf("%s: the page names %q", name, m[0])
			}
		}
		want := "no-referrer"
		if name == "consent" {
			want = "same-origin"
		}
		if got := p.Header.Get("Referrer-Policy"); got != want {
			t.Errorf("%s: Referrer-Policy %q, want %q", name, got, want)
		}
	}
})

// everyAnswer is one answer of every route and outcome that could be kept by a cache.
func everyAnswer(t *testing.T) map[string]*brokertest.Page {
	t.Helper()
	out := make(map[string]*brokertest.Page)
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	ask := func() *brokertest.Ask { return &brokertest.Ask{Service: "acme"} }
	out["consent"] = b.Get(t, s.URLOf(ask()))
	out["not offered"] = b.Get(t, s.URLOf(&brokertest.Ask{Service: "nobody"}))
	out["malformed"] = b.Get(t, s.URL+"/oauth/acme/authorize")
	out["press"] = b.Begin(t, ask())
	out["forged press"] = bare(s).Post(t, s.URL+"/oauth/acme/authorize", url.Values{})
	_, form, _ := b.Get(t, s.URLOf(ask())).Form()
	form.Del("agree")
	out["not ticked"] = b.Post(t, s.URL+"/oauth/acme/authorize", form)
	for name, change := range map[string]func(url.Values){
		"connected":      func(url.Values) {},
		"cancelled":      func(q url.Values) { q.Set("error", "access_denied") },
		"provider error": func(q url.Values) { q.Set("error", "server_error") },
		"bad code":       func(q url.Values) { q.Set("code", "x") },
		"no state":       func(q url.Values) { q.Del("state") },
		"foreign state":  func(q url.Values) { q.Set("state", "AAAAAAAAAAAAAAAAAAAAAA") },
	} {
		w := &waiting{s: s, b: b, ask: ask()}
		w.back, _ = url.Parse(b.Approve(t, w.ask))
		out["callback, "+name] = b.Get(t, w.at(change))
	}
	out["callback, prefetch"] = b.Get(t, s.URL+"/oauth/acme/callback?state=x", "Sec-Purpose: prefetch")
	out["callback, long"] = longOutcome(t, s)
	out["callback, method"] = b.Post(t, s.URL+"/oauth/acme/callback", url.Values{})
	refresh := s.Connect(t, brokertest.Ask{Service: "acme"}).Refresh.Reveal()
	body := map[string]string{"service": "acme", "refresh": refresh, "key": text(t, brokertest.NewIdentity(t).Public())}
	post := func(name, path, token string, v any) {
		p, err := s.PostJSON(path, token, v)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = p
	}
	for _, path := range []string{"/api/refresh", "/api/revoke"} {
		post(path+", no token", path, "", body)
		post(path+", malformed", path, s.Token(), "{")
		post(path+", foreign origin", path, s.Token("https://other.test"), map[string]string{"service": "acme", "refresh": refresh, "key": body["key"]})
	}
	post("refresh", "/api/refresh", s.Token(), body)
	post("refresh, dead", "/api/refresh", s.Token(), body)
	s.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer {
		return &brokertest.Answer{Status: 502, Header: http.Header{"Cache-Control": {"public"}}, Body: "<html>"}
	})
	post("refresh, temporary", "/api/refresh", s.Token(), body)
	s.Upstream.SetAnswer(nil)
	post("revoke", "/api/revoke", s.Token(), map[string]string{"service": "acme", "refresh": refresh})
	out["config"] = b.Get(t, s.URL+"/api/oauth/config?service=acme")
	out["config, unknown"] = b.Get(t, s.URL+"/api/oauth/config?service=nobody")
	out["health"] = b.Get(t, s.URL+"/healthz")
	out["no route"] = b.Get(t, s.URL+"/nothing")
	out["odd path"] = b.Get(t, s.URL+"/oauth//acme/callback")
	return out
}

var _ = threat("C9_cached_answer", func(t *testing.T) {
	for name, p := range everyAnswer(t) {
		if cc, pr := p.Header["Cache-Control"], p.Header["Pragma"]; !slices.Equal(cc, []string{"no-store"}) || !slices.Equal(pr, []string{"no-cache"}) {
			t.Errorf("%s (%d): Cache-Control %q, Pragma %q", name, p.Status, cc, pr)
		}
		if p.Header.Get("X-Content-Type-Options") != "nosniff" || p.Header.Get("Referrer-Policy") == "" {
			t.Errorf("%s: %v", name, p.Header)
		}
		if ct := p.Header.Get("Content-Type"); p.Body != "" && !slices.Contains([]string{"text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"}, ct) {
			t.Errorf("%s: Content-Type %q", name, ct)
		}
	}
})

// markup is what must come out of no page as it went in.
var markup = []string{
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, `'><svg/onload=alert(1)>`, "javascript:alert(1)", "</title><script>", "{{.Data}}", "${7*7}", "\u2028\u2029<b>", "\u202egnp.exe<i>",
	"%3Cscript%3E", "&lt;script&gt;<x>", "\x00<u>", "\xff\xfe<u>", strings.Repeat("<a>", 2700), "data:text/html,<script>", "<!--", "]]><x>", "\r\nSet-Cookie: a=b",
}

var _ = threat("C10_reflected_markup", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	check := func(what, in string, p *brokertest.Page) {
		t.Helper()
		for _, bad := range []string{in, "<script", "<img", "<svg", "onerror=", "onload=", "javascript:", "<b>", "<i>", "<u>", "<x>", "<a>", "\u202e", "\u2028", "Set-Cookie"} {
			if strings.Contains(p.Body, bad) {
				t.Errorf("%s: the body holds %.40q", what, bad)
			}
		}
		for name, vs := range p.Header {
			for _, v := range vs {
				if strings.Contains(v, in) || strings.Contains(v, "alert(1)") {
					t.Errorf("%s: header %s holds it", what, name)
				}
			}
		}
		if len(p.Body) > 8<<10 {
			t.Errorf("%s: a page of %d bytes", what, len(p.Body))
		}
	}
	start, _ := url.Parse(s.URLOf(&brokertest.Ask{Service: "acme"}))
	n := 0
	for _, in := range markup {
		for _, name := range []string{"access", "return_to", "key", "for", "agree", "token", "service", "state", "unknown", in} {
			q := start.Query()
			q.Set(name, in)
			check("authorize "+name, in, b.Get(t, s.URL+start.Path+"?"+q.Encode()))
			n++
		}
		for _, with := range []string{"", "https://", "https://x.", "http://127.0.0.1:4711/"} {
			q := start.Query()
			q.Set("return_to", with+in+".example")
			check("authorize return_to", in, b.Get(t, s.URL+start.Path+"?"+q.Encode()))
			n++
		}
		for _, live := range []bool{false, true} {
			for _, name := range []string{"code", "state", "iss", "error", "error_description", "error_uri", "scope", "session_state", "unknown", in} {
				to := s.URL + "/oauth/acme/callback?" + url.Values{"state": {"AAAAAAAAAAAAAAAAAAAAAA"}, name: {in}}.Encode()
				if live {
					u, _ := url.Parse(b.Approve(t, &brokertest.Ask{Service: "acme"}))
					q := u.Query()
					q.Set(name, in)
					if name == "error_description" || name == "error_uri" {
						q.Set("error", "access_denied")
					}
					to = s.URL + u.Path + "?" + q.Encode()
				}
				check(fmt.Sprintf("callback %s, live %v", name, live), in, b.Get(t, to))
				n++
			}
		}
		_, form, _ := b.Get(t, start.String()).Form()
		for _, name := range []string{"access", "return_to", "key", "for", "agree", "token", "unknown"} {
			f := mapsClone(form)
			f.Set(name, in)
			check("press "+name, in, b.Post(t, s.URL+start.Path, f))
			n++
		}
		for _, path := range []string{"/oauth/%s/authorize", "/oauth/%s/callback", "/oauth/acme/%s", "/registry/%s", "/api/%s", "/%s", "/api/oauth/config?service=%s", "/registry?%s", "/api/refresh?%s"} {
			p, err := b.Do(http.MethodGet, s.URL+fmt.Sprintf(path, url.QueryEscape(in)), nil)
			if err != nil {
				t.Fatal(err)
			}
			check(path, in, &brokertest.Page{Status: p.Status, Header: p.Header, Body: p.Body[:min(len(p.Body), 4<<10)]})
			n++
		}
	}
	t.Logf("%d requests", n)
})

var _ = threat("C11_cancel", func(t *testing.T) {
	for _, tt := range []struct{ code, want string }{
		{"access_denied", "cancelled"}, {"user_cancelled_login", "cancelled"}, {"user_cancelled_authorize", "cancelled"}, {"consent_required", "cancelled"}, {"login_required", "cancelled"},
		{"interaction_required", "cancelled"}, {"user_denied", "cancelled"}, {"invalid_scope", "denied"}, {"server_error", "provider"}, {"temporarily_unavailable", "provider"}, {"invalid_request", "provider"},
		{"unauthorized_client", "provider"}, {"redirect_uri_mismatch", "provider"}, {"ACCESS_DENIED", "provider"}, {"<script>", "provider"}, {strings.Repeat("x", 8000), "provider"},
	} {
		for _, withCode := range []bool{false, true} {
			w := wait(t, brokertest.Options{}, brokertest.Ask{})
			p := w.b.Get(t, w.at(func(q url.Values) {
				q.Set("error", tt.code)
				q.Set("error_description", "<script>alert(1)</script>")
				if !withCode {
					q.Del("code")
				}
			}))
			status(t, tt.code, p, http.StatusSeeOther)
			out, err := w.ask.Open(p)
			if err != nil || out.Error != tt.want || !out.Secret.IsZero() {
				t.Errorf("%.30s, code %v: %+v, %v; want %s", tt.code, withCode, out, err, tt.want)
			}
			for _, c := range cookies(w.b, w.s) {
				if strings.HasPrefix(c.Name, brokertest.FlowCookie) {
					t.Errorf("%.30s: the flow's cookie is still there", tt.code)
				}
			}
			noCalls(t, w.s)
			if !strings.Contains(w.s.Logs(), `"level":"INFO"`) || strings.Contains(w.s.Logs(), `"level":"ERROR"`) || strings.Contains(w.s.Logs(), "alert(1)") {
				t.Errorf("%.30s: the log is not one of information", tt.code)
			}
		}
		w := wait(t, brokertest.Options{}, brokertest.Ask{})
		plainError(t, tt.code+" without state", w.b.Get(t, w.s.URL+"/oauth/acme/callback?error="+url.QueryEscape(tt.code)), http.StatusBadRequest)
	}
})

var _ = threat("C12_error_page_redirects", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	for _, q := range []string{"", "state=x", "state=AAAAAAAAAAAAAAAAAAAAAA", "state=AAAAAAAAAAAAAAAAAAAAAA&code=c", "error=access_denied", "error=access_denied&state=x", "state=https://evil.example", "code=c"} {
		for _, more := range []string{"", "&return_origin=https://evil.example", "&return_to=https://evil.example&redirect_uri=https://evil.example", "&error_uri=https://evil.example"} {
			p := b.Get(t, s.URL+"/oauth/acme/callback?"+q+more)
			want := http.StatusForbidden
			if !strings.Contains(q, "state=") {
				want = http.StatusBadRequest
			}
			plainError(t, q+more, p, want)
			if strings.Contains(p.Body, "evil") || strings.Contains(p.Body, "href=") || strings.Contains(p.Body, "http-equiv") || p.Header.Get("Refresh") != "" {
				t.Errorf("%s: the page leads somewhere", q+more)
			}
		}
	}
	noCalls(t, s)
})

var _ = threat("C13_oracle", func(t *testing.T) {
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	_, handle, c := split(t, w.b, w.s, w.back.String())
	another := brokertest.New(t, brokertest.Options{}) // whose keys are its own
	ob := another.Browser()
	_, _, foreign := split(t, ob, another, ob.Approve(t, &brokertest.Ask{Service: "acme"}))
	raw := bare(w.s)
	get := func(value, state string) *brokertest.Page {
		return raw.Get(t, withState(w.back, state), header(&http.Cookie{Name: brokertest.FlowCookie + state, Value: value}))
	}
	i := strings.LastIndexByte(c.Value, '.')
	pages := map[string]*brokertest.Page{
		"bad tag":         get(c.Value[:len(c.Value)-4]+"AAAA", handle),
		"bad version":     get("f2"+c.Value[2:], handle),
		"unknown key":     get("f1.zz"+c.Value[i:], handle),
		"another's":       get(foreign.Value, handle),
		"truncated":       get(c.Value[:len(c.Value)/2], handle),
		"no nonce":        get(c.Value[:i+5], handle),
		"empty":           get("", handle),
		"not base64":      get(c.Value[:i+1]+"****", handle),
		"3 KB":            get(c.Value+strings.Repeat("A", 3<<10), handle),
		"another handle":  get(c.Value, "AAAAAAAAAAAAAAAAAAAAAA"),
		"short handle":    get(c.Value, "A"),
		"no cookie":       raw.Get(t, w.back.String()),
		"another service": raw.Get(t, strings.Replace(w.back.String(), "/acme/", "/github/", 1), header(c)),
	}
	want := pages["no cookie"]
	for name, p := range pages {
		plainError(t, name, p, http.StatusForbidden)
		if p.Body != want.Body {
			t.Errorf("%s: the page differs", name)
		}
	}
	// What is not there at all is a malformed request, with the same page.
	none := raw.Get(t, w.at(func(q url.Values) { q.Del("state") }), header(c))
	plainError(t, "no state", none, http.StatusBadRequest)
	if none.Body != want.Body {
		t.Error("no state: the page differs")
	}
	noCalls(t, w.s)
})

var _ = threat("C14_redirect_uri", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	spoof := []string{"Host: evil.example", "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: http", "Forwarded: host=evil.example;proto=http", "X-Original-URL: /oauth/github/callback"}
	a := &brokertest.Ask{Service: "acme"}
	// A jar goes by the URL, not by Host: the cookies are the broker's own.
	p := b.Get(t, s.URLOf(a), spoof...)
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	p = b.Post(t, s.URL+action, form, append([]string{"Origin: " + s.URL, "Sec-Fetch-Site: same-origin"}, spoof...)...)
	want := s.URL + "/oauth/acme/callback"
	if got := authorizeQuery(t, p).Get("redirect_uri"); got != want {
		t.Errorf("authorize: redirect_uri %q, want %q", got, want)
	}
	if out, err := a.Open(b.Get(t, b.Get(t, p.Location()).Location(), spoof...)); err != nil || out.Error != "" {
		t.Errorf("outcome %+v, %v", out, err)
	}
	calls(t, s, 1)
	if got := s.Upstream.Calls(brokertest.Token)[0].Form.Get("redirect_uri"); got != want {
		t.Errorf("exchange: redirect_uri %q, want %q", got, want)
	}
	// A page at another host cannot press in its own name.
	if p := b.Post(t, s.URL+action, form, "Origin: https://evil.example", "Host: evil.example"); p.Status != http.StatusForbidden {
		t.Errorf("Origin and Host that agree: %d", p.Status)
	}
})

var _ = threat("C15_scopes", func(t *testing.T) {
	for _, tt := range []struct {
		name   string
		access integrations.Access
		scope  any // nil: left out
		edit   func(map[string]any)
		want   []string
		wider  bool
		err    string
	}{
		{name: "as asked", scope: "tickets:read profile", want: []string{"tickets:read", "profile"}},
		{name: "another order", scope: "profile tickets:read", want: []string{"profile", "tickets:read"}},
		{name: "omitted", want: []string{"tickets:read", "profile"}},
		{name: "empty", scope: "", want: []string{"tickets:read", "profile"}},
		{name: "fewer", scope: "profile", want: []string{"profile"}},
		{name: "none of them", scope: []string{}, want: nil},
		{name: "more", scope: "tickets:read profile tickets:write", want: []string{"tickets:read", "profile", "tickets:write"}, wider: true},
		{name: "others", scope: "admin", want: []string{"admin"}, wider: true},
		{name: "an array", scope: []string{"tickets:read", "profile"}, want: []string{"tickets:read", "profile"}},
		{name: "write", access: integrations.Write, scope: "tickets:read profile tickets:write", want: []string{"tickets:read", "profile", "tickets:write"}},
		{name: "commas", scope: "tickets:read,profile", edit: func(o map[string]any) { o["scope_separator_answer"] = "," }, want: []string{"tickets:read", "profile"}},
		{name: "renamed", scope: "https://acme.example/tickets.read profile", edit: func(o map[string]any) {
			o["scope_alias"] = map[string]any{"https://acme.example/tickets.read": "tickets:read"}
		}, want: []string{"https://acme.example/tickets.read", "profile"}},
		{name: "implied", scope: "tickets:write profile", access: integrations.Write, edit: func(o map[string]any) {
			o["scope_implies"] = map[string]any{"tickets:write": []string{"tickets:read"}}
		}, want: []string{"tickets:write", "profile"}},
		{name: "exact, as asked", scope: "tickets:read profile", edit: exact, want: []string{"tickets:read", "profile"}},
		{name: "exact, fewer", scope: "profile", edit: exact, err: "missing_scopes"},
		{name: "exact, more", scope: "tickets:read profile admin", edit: exact, err: "missing_scopes"},
	} {
		o := brokertest.Options{}
		if tt.edit != nil {
			o.Edit = edit("acme", tt.edit)
		}
		w := wait(t, o, brokertest.Ask{Access: tt.access})
		w.s.Upstream.SetExtra(map[string]any{"scope": tt.scope})
		out := w.open(t, w.back.String())
		if out.Error != tt.err {
			t.Errorf("%s: error %q, want %q", tt.name, out.Error, tt.err)
		}
		if tt.err == "" && (!slices.Equal(out.Scopes, tt.want) || out.Wider != tt.wider) {
			t.Errorf("%s: scopes %q, wider %v; want %q, %v", tt.name, out.Scopes, out.Wider, tt.want, tt.wider)
		}
		calls(t, w.s, 1)
	}
})

func exact(o map[string]any) { o["exact_scopes"] = true }

var _ = threat("C16_token_type", func(t *testing.T) {
	for _, tt := range []struct {
		typ  any
		edit func(map[string]any)
		ok   bool
	}{
		{"Bearer", nil, true}, {"bearer", nil, true}, {"BEARER", nil, true}, {nil, nil, true}, {"", nil, true},
		{"DPoP", nil, false}, {"mac", nil, false}, {"user", nil, false}, {"N_A", nil, false},
		{"user", func(o map[string]any) { o["token_type"] = []string{"user"} }, true},
	} {
		o := brokertest.Options{}
		if tt.edit != nil {
			o.Edit = edit("acme", tt.edit)
		}
		w := wait(t, o, brokertest.Ask{})
		w.s.Upstream.SetExtra(map[string]any{"token_type": tt.typ})
		if out := w.open(t, w.back.String()); (out.Error == "") != tt.ok {
			t.Errorf("token_type %v: %+v", tt.typ, out)
		}
		calls(t, w.s, 1)
	}
})

// rawRequest writes bytes to the broker over TLS and returns all that it answers.
func rawRequest(t *testing.T, s *brokertest.Server, request string) string {
	t.Helper()
	c, err := tls.Dial("tcp", s.Addr, &tls.Config{RootCAs: s.CA.Pool(), ServerName: strings.TrimPrefix(s.URL, "https://"), NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	answer, _ := io.ReadAll(c)
	return string(answer)
}
