package broker_test

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/integrations"
)

// State encoding: whatever a provider does to a state on its way, it comes back the same.

var _ = reported("case_073", func(t *testing.T) { // "+" comes back as a space
	s := brokertest.New(t, brokertest.Options{})
	safe := regexp.MustCompile(`^[A-Za-z0-9_-]{22,64}$`)
	for range 200 {
		p := s.Browser().Begin(t, &brokertest.Ask{Service: "acme"})
		state := authorizeQuery(t, p).Get("state")
		if !safe.MatchString(state) {
			t.Fatalf("state %q", state)
		}
		// Unescaped once more, or not at all, it is the same.
		if again, err := url.QueryUnescape(state); err != nil || again != state || !strings.Contains(p.Location(), "state="+state) {
			t.Fatalf("state %q does not survive decoding", state)
		}
	}
})

var _ = reported("case_075", func(t *testing.T) { // "%3D" compared undecoded with decoded
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	raw := w.back.RawQuery
	encoded := strings.Replace(raw, "state="+w.back.Query().Get("state"), "state="+percent(w.back.Query().Get("state")), 1)
	if encoded == raw {
		t.Fatal("nothing was encoded")
	}
	u := *w.back
	u.RawQuery = encoded
	if out := w.open(t, u.String()); out.Error != "" {
		t.Errorf("a state whose letters are percent-encoded once: %+v", out)
	}
	calls(t, w.s, 1)
	// Twice is not once.
	w = wait(t, brokertest.Options{}, brokertest.Ask{})
	u = *w.back
	u.RawQuery = "code=c&state=" + url.QueryEscape(percent(w.back.Query().Get("state")))
	plainError(t, "encoded twice", w.b.Get(t, u.String()), http.StatusForbidden)
	noCalls(t, w.s)
})

// percent encodes every byte, as some gateways do.
func percent(s string) string {
	var b strings.Builder
	for i := range len(s) {
		fmt.Fprintf(&b, "%%%02X", s[i])
	}
	return b.String()
}

var _ = reported("case_077", func(t *testing.T) { // "~" comes back percent-encoded
	s := brokertest.New(t, brokertest.Options{})
	for range 200 {
		p := s.Browser().Begin(t, &brokertest.Ask{Service: "acme"})
		for _, c := range p.Cookies(brokertest.FlowCookie) {
			if strings.ContainsAny(c.Name+c.Value, "~%+/= ,;\"\\") {
				t.Fatalf("cookie %s=%s", c.Name, c.Value)
			}
		}
		if strings.Contains(authorizeQuery(t, p).Get("state"), "~") {
			t.Fatal("a ~ in the state")
		}
	}
})

// Double callback.

var _ = reported("case_083", func(t *testing.T) { // a browser prefetches the callback
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	p := w.b.Get(t, w.back.String(), "Sec-Purpose: prefetch")
	if p.Status != http.StatusNoContent || p.Body != "" {
		t.Errorf("the prefetch was answered %d", p.Status)
	}
	noCalls(t, w.s)
	if out := w.open(t, w.back.String()); out.Error != "" {
		t.Errorf("the real load: %+v", out)
	}
	calls(t, w.s, 1)
})

var _ = reported("case_085", func(t *testing.T) { // only the second run's error page is seen
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	if out := w.open(t, w.back.String()); out.Error != "" {
		t.Fatalf("outcome %+v", out)
	}
	p := w.b.Get(t, w.back.String())
	plainError(t, "second arrival", p, http.StatusForbidden)
	for _, claim := range []string{"failed", "error", "Error", "went wrong", "did not work", "expired"} {
		if strings.Contains(p.Body, claim) {
			t.Errorf("the second page says %q", claim)
		}
	}
	if !strings.Contains(p.Body, "was finished already") {
		t.Error("the second page does not say that it may be finished")
	}
	calls(t, w.s, 1)
})

var _ = reported("case_087", func(t *testing.T) { // a second exchange revokes what the first gave
	w := wait(t, brokertest.Options{}, brokertest.Ask{Service: "stripe", Access: integrations.Write})
	_, _, c := split(t, w.b, w.s, w.back.String())
	if out := w.open(t, w.back.String()); out.Error != "" {
		t.Fatalf("outcome %+v", out)
	}
	for range 3 { // with the cookie that a copy of the browser still has
		plainError(t, "again", bare(w.s).Get(t, w.back.String(), header(c)), http.StatusForbidden)
	}
	calls(t, w.s, 1)
})

var _ = reported("case_089", func(t *testing.T) { // a late duplicate flips a good connection to failed
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	if out := w.open(t, w.back.String()); out.Error != "" {
		t.Fatalf("outcome %+v", out)
	}
	w.s.Clock.Advance(3 * time.Minute)
	for _, late := range []string{w.back.String(), w.at(func(q url.Values) { q.Set("error", "access_denied") }), w.at(func(q url.Values) { q.Del("state") })} {
		p := w.b.Get(t, late)
		if p.Location() != "" || strings.Contains(p.Body, "#v1.") {
			t.Errorf("a late duplicate hands something over: %d", p.Status)
		}
	}
	calls(t, w.s, 1)
})

// Denied, callback errors, markup.

var _ = reported("case_091", func(t *testing.T) { // Deny gives a 500 and an alert
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	state := w.back.Query().Get("state")
	if out := w.open(t, w.s.URL+"/oauth/acme/callback?error=access_denied&state="+state); out.Error != "cancelled" {
		t.Errorf("outcome %+v", out)
	}
	if l := w.s.Logs(); !strings.Contains(l, `"class":"cancelled"`) || strings.Contains(l, `"level":"WARN"`) || strings.Contains(l, `"level":"ERROR"`) || w.s.Metrics() != "" {
		t.Errorf("a cancel alarms somebody: %s%s", l, w.s.Metrics())
	}
	noCalls(t, w.s)
})

var _ = reported("case_093", func(t *testing.T) { // error_description echoed as HTML
	for _, live := range []bool{true, false} {
		w := wait(t, brokertest.Options{}, brokertest.Ask{})
		p := w.b.Get(t, w.at(func(q url.Values) {
			q.Set("error", "x")
			q.Set("error_description", "<script>fetch(1)</script>")
			q.Set("error_uri", "https://evil.example")
			if !live {
				q.Set("state", "s")
			}
		}))
		silent(t, fmt.Sprint(live), p, "fetch(1)", "evil.example")
		noCalls(t, w.s)
	}
})

var _ = reported("case_095", func(t *testing.T) { // error itself echoed
	w := wait(t, brokertest.Options{}, brokertest.Ask{})
	const code = `"><img src=x onerror=1>`
	p := w.b.Get(t, w.at(func(q url.Values) { q.Set("error", code) }))
	silent(t, "live", p, code, "onerror")
	if out, err := w.ask.Open(p); err != nil || out.Error != "provider" {
		t.Errorf("outcome %+v, %v", out, err)
	}
	silent(t, "none", w.b.Get(t, w.s.URL+"/oauth/acme/callback?error="+url.QueryEscape(code)), code, "onerror")
	if strings.Contains(w.s.Logs(), "onerror") {
		t.Error("the code stands in the log")
	}
	noCalls(t, w.s)
})

// Confused deputy, consent.

var _ = reported("case_097", func(t *testing.T) { // one client id and a remembered consent
	s := brokertest.New(t, brokertest.Options{})
	victim := s.Browser()
	for range 3 { // however often she approved her own
		victim.Get(t, victim.Approve(t, &brokertest.Ask{Service: "github"}))
	}
	s.Upstream.Reset()
	p := victim.Get(t, s.URLOf(&brokertest.Ask{Service: "github", ReturnTo: "https://evil.example"}), "Sec-Fetch-Site: cross-site", "Referer: https://evil.example/")
	plainError(t, "the link", p, http.StatusOK)
	if !strings.Contains(p.Body, "<bdi>evil.example</bdi>") {
		t.Error("the page does not name who will receive it")
	}
	if s.Upstream.Count() != 0 {
		t.Error("the provider was asked")
	}
})

var _ = reported("case_099", func(t *testing.T) { // the consent POST itself forged
	s := brokertest.New(t, brokertest.Options{})
	a := &brokertest.Ask{Service: "github", ReturnTo: "https://evil.example"}
	action, form, err := s.Browser().Get(t, s.URLOf(a)).Form() // the attacker's own page and token
	if err != nil {
		t.Fatal(err)
	}
	victim := s.Browser()
	victim.Get(t, s.URLOf(&brokertest.Ask{Service: "github"})) // she has a token of her own
	for _, headers := range [][]string{{"Origin: https://evil.example", "Sec-Fetch-Site: cross-site"}, {"Origin: null"}, {"Origin: " + s.URL, "Sec-Fetch-Site: same-origin"}} {
		plainError(t, fmt.Sprint(headers), victim.Post(t, s.URL+action, form, headers...), http.StatusForbidden)
	}
	noCalls(t, s)
})

var _ = reported("case_101", func(t *testing.T) { // relying on the provider's screen alone
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	for _, m := range s.Registry.All() {
		if m.Auth.OAuth == nil {
			continue
		}
		for range 2 { // the second time too
			p := b.Get(t, s.URLOf(&brokertest.Ask{Service: m.ID}))
			plainError(t, m.ID, p, http.StatusOK)
			if !strings.Contains(p.Body, "required") {
				t.Errorf("%s: the box may stay unticked", m.ID)
			}
			b.Get(t, b.Approve(t, &brokertest.Ask{Service: m.ID}))
		}
	}
})

// Scopes.

var _ = reported("case_103", func(t *testing.T) { // a permission unticked
	w := wait(t, brokertest.Options{Edit: edit("acme", func(o map[string]any) {
		o["scopes"], o["scopes_write"] = []string{"repo", "read:user"}, []string{"repo", "read:user"}
	})}, brokertest.Ask{})
	w.s.Upstream.SetExtra(map[string]any{"scope": "read:user"})
	out := w.open(t, w.back.String())
	// The connection is kept, and whoever began knows what is missing.
	if out.Error != "" || !slices.Equal(out.Scopes, []string{"read:user"}) || out.Wider {
		t.Errorf("outcome %+v", out)
	}
	calls(t, w.s, 1)
})

var _ = reported("case_105", func(t *testing.T) { // "email" comes back as a URL
	const long = "https://www.googleapis.com/auth/userinfo.email"
	for _, exactly := range []bool{false, true} {
		w := wait(t, brokertest.Options{Edit: edit("acme", func(o map[string]any) {
			o["scopes"], o["scopes_write"] = []string{"openid", "email"}, []string{"openid", "email"}
			o["scope_alias"] = map[string]any{long: "email"}
			o["exact_scopes"] = exactly
		})}, brokertest.Ask{})
		w.s.Upstream.SetExtra(map[string]any{"scope": "openid " + long})
		if out := w.open(t, w.back.String()); out.Error != "" || out.Wider {
			t.Errorf("exact %v: outcome %+v", exactly, out)
		}
		calls(t, w.s, 1)
	}
})

// PKCE, parallel starts.

var _ = reported("case_107", func(t *testing.T) { // several tabs share one verifier cookie
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	asks := []*brokertest.Ask{{Service: "acme"}, {Service: "acme", Access: integrations.Write}, {Service: "github"}}
	var back []string
	for _, a := range asks {
		back = append(back, b.Approve(t, a))
	}
	s.Upstream.Reset()
	for i, a := range asks { // the first that began is the first to come back
		if out, err := a.Open(b.Get(t, back[i])); err != nil || out.Error != "" {
			t.Errorf("flow %d: %+v, %v", i, out, err)
		}
	}
	calls(t, s, len(asks))
})

var _ = reported("case_109", func(t *testing.T) { // a stale cookie keeps failing until all are cleared
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	old := b.Approve(t, &brokertest.Ask{Service: "acme"})
	s.Clock.Advance(11 * time.Minute)
	plainError(t, "the old one", b.Get(t, old), http.StatusForbidden)
	u, _ := url.Parse(s.URL)
	b.Jar.SetCookies(u, []*http.Cookie{{Name: brokertest.FlowCookie + "AAAAAAAAAAAAAAAAAAAAAA", Value: "f0.stale", Secure: true, Path: "/"}, {Name: "__Host-consent", Value: "stale of an older form", Secure: true, Path: "/"}})
	a := &brokertest.Ask{Service: "acme"}
	if out, err := a.Open(b.Get(t, b.Approve(t, a))); err != nil || out.Error != "" {
		t.Errorf("the new one: %+v, %v", out, err)
	}
	for _, c := range cookies(b, s) {
		if strings.HasPrefix(c.Name, brokertest.FlowCookie) {
			t.Errorf("%s is still there", c.Name)
		}
	}
})

// TestPages holds each page that a member may see against a file that a reviewer reads.
func TestPages(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	key := brokertest.NewIdentity(t)
	spaced := func(n, sep string) string { return strings.Join(strings.Split(n, ""), sep) }
	page := func(name string, p *brokertest.Page) {
		t.Helper()
		body := regexp.MustCompile(`(?s)<style>.*?</style>`).ReplaceAllString(p.Body, "<style>…</style>")
		n := key.Public().CheckNumber()
		body = strings.NewReplacer(text(t, key.Public()), "KEY", n[:3]+" "+n[3:], "482 913", spaced(n, " "), spaced("482913", " ")).Replace(body)
		body = regexp.MustCompile(`name="token" value="[^"]*"`).ReplaceAllString(body, `name="token" value="TOKEN"`)
		body = regexp.MustCompile(`#v1\.[A-Za-z0-9_-]+\.(\w+\.\w+)\.[A-Za-z0-9_-]+`).ReplaceAllString(body, "#v1.TO.$1.CT")
		golden(t, "testdata/pages/"+name+".html", []byte(body))
	}
	ask := func(a brokertest.Ask) *brokertest.Page {
		a.Key = key
		return b.Get(t, s.URLOf(&a))
	}
	page("read", ask(brokertest.Ask{Service: "acme"}))
	page("write", ask(brokertest.Ask{Service: "acme", Access: integrations.Write, ReturnTo: "https://bücher.example:8443"}))
	page("said", ask(brokertest.Ask{Service: "stripe"}))
	page("program", ask(brokertest.Ask{Service: "acme", ReturnTo: "http://127.0.0.1:4711/aaaaaaaaaaaaaaaa", For: strings.Repeat("A", 43)}))
	page("not_offered", ask(brokertest.Ask{Service: "nobody"}))
	page("malformed", b.Get(t, s.URL+"/oauth/acme/authorize"))
	page("no_flow", b.Get(t, s.URL+"/oauth/acme/callback?code=c&state=s"))
	page("forged", bare(s).Post(t, s.URL+"/oauth/acme/authorize", url.Values{}))
	page("long", longOutcome(t, s))
	_, form, err := ask(brokertest.Ask{Service: "acme"}).Form()
	if err != nil {
		t.Fatal(err)
	}
	form.Del("agree")
	page("not_ticked", b.Post(t, s.URL+"/oauth/acme/authorize", form))
}
