package broker_test

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// noCalls fails when anything reached the provider's own endpoints.
func noCalls(t *testing.T, s *brokertest.Server) {
	t.Helper()
	if n := s.Upstream.Secret(); n != 0 {
		t.Errorf("%d calls reached the provider, want none", n)
	}
}

// calls fails unless n codes were exchanged and nothing else was asked.
func calls(t *testing.T, s *brokertest.Server, n int) {
	t.Helper()
	if got, all := s.Upstream.Count(brokertest.Token), s.Upstream.Secret(); got != n || all != n {
		t.Errorf("the provider saw %d exchanges and %d calls, want %d", got, all, n)
	}
}

// status fails unless the page was answered so.
func status(t *testing.T, what string, p *brokertest.Page, want int) {
	t.Helper()
	if p.Status != want {
		t.Errorf("%s: status %d, want %d (Location %q)", what, p.Status, want, p.Location())
	}
}

// plainError fails unless the page is one of our own, leading nowhere and beginning nothing.
func plainError(t *testing.T, what string, p *brokertest.Page, want int) {
	t.Helper()
	status(t, what, p, want)
	if p.Location() != "" || p.SetsCookie(brokertest.FlowCookie) {
		t.Errorf("%s: it leads to %q or begins a flow", what, p.Location())
	}
}

// cookies writes what a jar holds for the broker as one Cookie header.
func cookies(b *brokertest.Browser, s *brokertest.Server) []*http.Cookie {
	u, _ := url.Parse(s.URL)
	return b.Jar.Cookies(u)
}

// bare returns a browser whose cookies are those that a request names itself.
func bare(s *brokertest.Server) *brokertest.Browser {
	b := s.Browser()
	b.Jar = nil
	return b
}

func header(cs ...*http.Cookie) string {
	var parts []string
	for _, c := range cs {
		parts = append(parts, c.Name+"="+c.Value)
	}
	return "Cookie: " + strings.Join(parts, "; ")
}

var _ = threat("S1_confused_deputy", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	// The victim approved an instance of her own before: the provider asks no second time.
	b.Get(t, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	s.Upstream.Reset()
	for _, arrival := range []string{"cross-site", "same-site", "same-origin", "none"} {
		p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: "https://evil.example"}), "Sec-Fetch-Site: "+arrival)
		plainError(t, arrival, p, http.StatusOK)
		if ct := p.Header.Get("Content-Type"); ct != "text/html; charset=utf-8" {
			t.Errorf("%s: Content-Type %q", arrival, ct)
		}
		for _, want := range []string{"evil.example", "Acme", "Read only", "tickets:read", `type="checkbox"`, "required"} {
			if !strings.Contains(p.Body, want) {
				t.Errorf("%s: the page does not say %q", arrival, want)
			}
		}
	}
	p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", Access: integrations.Write, ReturnTo: "https://bücher.example"}))
	for _, want := range []string{"xn--bcher-kva.example", "bücher.example", "Read and write", "tickets:write"} {
		if !strings.Contains(p.Body, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if n := s.Upstream.Count(); n != 0 {
		t.Errorf("%d calls before any press, want none", n)
	}
})

var _ = threat("S2_forwarded_provider_link", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	attacker, victim := s.Browser(), s.Browser()
	a := &brokertest.Ask{Service: "acme", ReturnTo: "https://evil.example"}
	begun := attacker.Begin(t, a)
	status(t, "the attacker's press", begun, http.StatusSeeOther)
	for _, c := range begun.Cookies(brokertest.FlowCookie) {
		if !c.Secure || !c.HttpOnly || c.Path != "/" || c.Domain != "" || c.SameSite != http.SameSiteLaxMode || c.MaxAge < 1 || c.MaxAge > 600 {
			t.Errorf("the flow's cookie is %+v", c)
		}
	}
	if n := len(begun.Cookies(brokertest.FlowCookie)); n != 1 {
		t.Fatalf("%d cookies of a flow, want 1", n)
	}
	if q, _ := url.Parse(begun.Location()); q.Query().Get("response_mode") != "" {
		t.Error("the answer would not come as a query, and a Lax cookie would not come with it")
	}
	back := victim.Get(t, begun.Location()) // her browser is known to the provider
	p := victim.Get(t, back.Location())
	plainError(t, "the victim's callback", p, http.StatusForbidden)
	noCalls(t, s)
})

var _ = threat("S3_forged_press", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	victim, attacker := s.Browser(), s.Browser()
	a := &brokertest.Ask{Service: "acme", ReturnTo: "https://evil.example"}
	form := func(b *brokertest.Browser) url.Values {
		_, f, err := b.Get(t, s.URLOf(a)).Form()
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	own, theirs := form(victim), form(attacker)
	without := func(name string) url.Values { f := mapsClone(own); f.Del(name); return f }
	twice := func(name string) url.Values { f := mapsClone(own); f.Add(name, f.Get(name)); return f }
	ours := []string{"Origin: " + s.URL, "Sec-Fetch-Site: same-origin"}
	action := s.URL + "/oauth/acme/authorize"
	for _, tt := range []struct {
		name    string
		b       *brokertest.Browser
		form    url.Values
		headers []string
	}{
		{"no cookie", bare(s), own, ours},
		{"another session's token", victim, theirs, ours},
		{"no token", victim, without("token"), ours},
		{"two tokens", victim, twice("token"), ours},
		{"cross-site", victim, own, []string{"Origin: " + s.URL, "Sec-Fetch-Site: cross-site"}},
		{"same-site", victim, own, []string{"Sec-Fetch-Site: same-site"}},
		{"another origin", victim, own, []string{"Origin: https://evil.example", "Sec-Fetch-Site: same-origin"}},
		{"null origin", victim, own, []string{"Origin: null"}},
		{"null origin, same-origin", victim, own, []string{"Origin: null", "Sec-Fetch-Site: same-origin"}},
		{"two origins", victim, own, []string{"Origin: " + s.URL, "Origin: " + s.URL}},
		{"a browser that says nothing", victim, own, []string{"Accept: */*"}},
	} {
		plainError(t, tt.name, tt.b.Post(t, action, tt.form, tt.headers...), http.StatusForbidden)
	}
	noCalls(t, s)
	status(t, "her own press", victim.Post(t, action, own), http.StatusSeeOther)
	if s.Upstream.Count() != 0 {
		t.Error("the broker itself called the provider")
	}
})

func mapsClone(v url.Values) url.Values {
	out := make(url.Values)
	for k, vs := range v {
		out[k] = slices.Clone(vs)
	}
	return out
}

var _ = threat("S4_binding_before_consent", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme"}))
	if p.SetsCookie(brokertest.FlowCookie) {
		t.Error("the page itself binds the browser")
	}
	for _, c := range cookies(b, s) {
		if c.Name != "__Host-consent" {
			t.Errorf("the page sets %s", c.Name)
		}
	}
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	for _, agree := range []string{"", "on", "https://other.test", brokertest.Instance + "/"} {
		f := mapsClone(form)
		f.Set("agree", agree)
		if agree == "" {
			f.Del("agree")
		}
		plainError(t, fmt.Sprintf("agree %q", agree), b.Post(t, s.URL+action, f), http.StatusBadRequest)
	}
	q := b.Post(t, s.URL+action, form)
	status(t, "the press", q, http.StatusSeeOther)
	if !q.SetsCookie(brokertest.FlowCookie) {
		t.Error("the press does not bind the browser")
	}
	noCalls(t, s)
})

var _ = threat("S5_clickjacking", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	ask := &brokertest.Ask{Service: "acme"}
	pages := map[string]*brokertest.Page{
		"consent":       b.Get(t, s.URLOf(ask)),
		"consent, cli":  b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: "http://127.0.0.1:4711"})),
		"consent, cli6": b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: "http://[::1]:4711"})),
		"not offered":   b.Get(t, s.URLOf(&brokertest.Ask{Service: "nobody"})),
		"malformed":     b.Get(t, s.URL+"/oauth/acme/authorize"),
		"forged":        bare(s).Post(t, s.URL+"/oauth/acme/authorize", url.Values{}),
		"no flow":       b.Get(t, s.URL+"/oauth/acme/callback?state=AAAAAAAAAAAAAAAAAAAAAA&code=c"),
		"no state":      b.Get(t, s.URL+"/oauth/acme/callback"),
		"method":        b.Post(t, s.URL+"/oauth/acme/callback", url.Values{}),
		"long outcome":  longOutcome(t, s),
	}
	targets := map[string]string{
		"consent":       "'self' https://auth.acme.example https://acme.example https://*.acme.example https://chat.test",
		"consent, cli":  "'self' https://auth.acme.example https://acme.example https://*.acme.example http://127.0.0.1:4711",
		"consent, cli6": "'self' https://auth.acme.example https://acme.example https://*.acme.example http:",
	}
	for name, p := range pages {
		if ct := p.Header.Get("Content-Type"); ct != "text/html; charset=utf-8" {
			t.Errorf("%s: Content-Type %q", name, ct)
		}
		policy := make(map[string]string)
		for _, d := range strings.Split(p.Header.Get("Content-Security-Policy"), "; ") {
			k, v, _ := strings.Cut(d, " ")
			policy[k] = v
		}
		want := map[string]string{"default-src": "'none'", "frame-ancestors": "'none'", "base-uri": "'none'", "form-action": "'none'"}
		if t, ok := targets[name]; ok {
			want["form-action"] = t
		}
		for k, v := range want {
			if policy[k] != v {
				t.Errorf("%s: %s is %q, want %q", name, k, policy[k], v)
			}
		}
		if !strings.HasPrefix(policy["style-src"], "'sha256-") || len(policy) != 5 {
			t.Errorf("%s: policy %v", name, policy)
		}
		if p.Header.Get("X-Frame-Options") != "DENY" || p.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: X-Frame-Options %q, X-Content-Type-Options %q", name, p.Header.Get("X-Frame-Options"), p.Header.Get("X-Content-Type-Options"))
		}
		if strings.Contains(p.Body, "<script") {
			t.Errorf("%s: there is a script", name)
		}
	}
})

// longOutcome is the page that stands where the outcome does not fit an address.
func longOutcome(t *testing.T, s *brokertest.Server) *brokertest.Page {
	t.Helper()
	s.Upstream.SetExtra(map[string]any{"access_token": "at_" + brokertest.Sentinel + strings.Repeat("x", 6000)})
	defer s.Upstream.SetExtra(nil)
	b := s.Browser()
	p := b.Get(t, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	if p.Status != http.StatusOK || p.Location() != "" {
		t.Fatalf("a long outcome is answered %d, Location of %d bytes", p.Status, len(p.Location()))
	}
	return p
}

var _ = threat("S6_open_redirect", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	refused := []string{
		"", "//evil.example", "https:evil.example", "https:/evil.example", "https:///evil.example", "https://good@evil.example", `https://good\@evil.example`, `https:\\evil.example`,
		"https://good%2eevil.example", "javascript:alert(1)", "data:text/html,x", "blob:https://good.example/x", "https://good.example#@evil.example", "https://good.example/@evil.example",
		"https://good.example?x", "https://good.example/", "https://good.example/path", "https://good.example#", "https://good.example?", "https://[::1]", "https://[2001:db8::1]", "https://127.0.0.1",
		"https://127.1", "https://0x7f.1", "https://2130706433", "https://1.0x7f000001", "https://017700000001", "https://１２７.0.0.1", "https://169.254.169.254", "https://good.example.", "https://good", "https://localhost",
		"https://localhost:8443", "https://x.localhost", "https://good\t.example", "https://good\r\n.example", "https://good.example\r\nSet-Cookie: a=b", " https://good.example", "https://good.example ",
		"https://good.example\x00", "https://good .example", "https://good..example", "https://.example.com", "https://-good.example", "https://good_.example", "https://good.example:", "https://good.example:0",
		"https://good.example:0443", "https://good.example:65536", "https://good.example:+443", "https://good.example:443:443", "http://good.example", "ftp://good.example", "https://*.example", "https://" + strings.Repeat("a", 64) + ".example",
		"https://" + strings.Repeat("a.", 130) + "example", "https://good.example;evil.example", "https://good.example,evil.example", "https://xn--zzzzzz.example", "https://goo\u202ed.example", "https://good.example\xc0\x8d", "https://go\xffod.example",
		"http://127.0.0.1", "http://127.0.0.1:80", "http://127.0.0.1:1023", "http://127.0.0.1:65536", "http://127.0.0.1:04711", "http://localhost:4711", "http://127.0.0.2:4711", "http://127.1:4711", "http://[::]:4711", "http://0.0.0.0:4711",
		"http://[::ffff:127.0.0.1]:4711", "http://[0:0:0:0:0:0:0:1]:4711", "http://127.0.0.1:4711/", "http://127.0.0.1:4711/short", "http://127.0.0.1:4711/aaaaaaaaaaaaaaaa/bbbbbbbbbbbbbbbb",
		"http://127.0.0.1:4711/aaaaaaaaaaaaaaa%61", "http://127.0.0.1:4711/../aaaaaaaaaaaaaaaa", "http://127.0.0.1:4711/aaaaaaaaaaaaaaaa?x", "http://127.0.0.1:4711/aaaaaaaaaaaaaaaa#x", "http://u@127.0.0.1:4711", `http://127.0.0.1:4711\@evil.example`,
		"https://127.0.0.1:4711", "HTTP://127.0.0.1:4711", "http://evil.example:4711", "http://127.0.0.1.evil.example:4711",
		s.URL, s.URL + ":443", "https://BROKER.test",
	}
	ask := func(to string) *brokertest.Page {
		a := &brokertest.Ask{Service: "acme"}
		u, _ := url.Parse(s.URLOf(a))
		q := u.Query()
		q.Set("return_to", to)
		return b.Get(t, s.URL+u.Path+"?"+q.Encode())
	}
	for _, to := range refused {
		plainError(t, fmt.Sprintf("%q", to), ask(to), http.StatusBadRequest)
	}
	// What reads differently and is the same is one origin, and the page shows that one.
	for to, want := range map[string]string{
		"https://good.example":                         "https://good.example",
		"https://GOOD.Example":                         "https://good.example",
		"HTTPS://good.example":                         "https://good.example",
		"https://good.example:443":                     "https://good.example",
		"https://good.example:8443":                    "https://good.example:8443",
		"https://good。example":                         "https://good.example",
		"https://gооd.example":                         "https://xn--gd-fmca.example", // two of the letters are Cyrillic
		"http://127.0.0.1:4711":                        "cli",
		"http://127.0.0.1:4711/aaaaaaaaaaaaaaaaaaaaaa": "cli",
		"http://[::1]:4711":                            "cli",
	} {
		p := ask(to)
		_, form, err := p.Form()
		if err != nil {
			t.Errorf("%q: %v", to, err)
			continue
		}
		if got := form.Get("agree"); got != want {
			t.Errorf("%q: the page names %q, want %q", to, got, want)
		}
		if shown := strings.TrimPrefix(want, "https://"); want != "cli" && !strings.Contains(p.Body, "<bdi>"+shown+"</bdi>") {
			t.Errorf("%q: the page does not show %q", to, shown)
		}
	}
	// Only a program on this computer says for whom it asks.
	p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", For: string(brokertest.NewIdentity(t).ID())}))
	plainError(t, "for, with an instance", p, http.StatusBadRequest)
	noCalls(t, s)

	only := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.ReturnOrigins = []string{"https://CHAT.test:443"} }})
	status(t, "an instance that is served", only.Browser().Get(t, only.URLOf(&brokertest.Ask{Service: "acme"})), http.StatusOK)
	plainError(t, "one that is not", only.Browser().Get(t, only.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: "https://evil.example"})), http.StatusBadRequest)
})

// split parts a callback's address into its handle and the cookie that belongs to it.
func split(t *testing.T, b *brokertest.Browser, s *brokertest.Server, callback string) (u *url.URL, handle string, flow *http.Cookie) {
	t.Helper()
	u, err := url.Parse(callback)
	if err != nil {
		t.Fatal(err)
	}
	handle = u.Query().Get("state")
	for _, c := range cookies(b, s) {
		if c.Name == brokertest.FlowCookie+handle {
			return u, handle, c
		}
	}
	t.Fatal("the browser holds no cookie of this flow")
	return nil, "", nil
}

func withState(u *url.URL, state string) string {
	q := u.Query()
	q.Set("state", state)
	v := *u
	v.RawQuery = q.Encode()
	return v.String()
}

var _ = threat("S7_forged_state", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	u, handle, c := split(t, b, s, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	raw := bare(s)
	var body string
	try := func(what, name, value, state string) {
		t.Helper()
		p := raw.Get(t, withState(u, state), header(&http.Cookie{Name: name, Value: value}))
		plainError(t, what, p, http.StatusForbidden)
		if body == "" {
			body = p.Body
		}
		if p.Body != body {
			t.Errorf("%s: the page differs", what)
		}
	}
	other := func(ch byte) byte {
		if ch == 'A' {
			return 'B'
		}
		return 'A'
	}
	for i := range len(c.Value) {
		v := []byte(c.Value)
		v[i] = other(v[i])
		try(fmt.Sprintf("byte %d of the record", i), c.Name, string(v), handle)
	}
	for i := range len(handle) {
		h := []byte(handle)
		h[i] = other(h[i])
		try(fmt.Sprintf("byte %d of the state", i), c.Name, c.Value, string(h))
		try(fmt.Sprintf("byte %d of the state and the name", i), brokertest.FlowCookie+string(h), c.Value, string(h))
	}
	try("a longer state", c.Name, c.Value, handle+"A")
	noCalls(t, s)

	// Sealed for one service, presented at another's callback.
	v := *u
	v.Path = "/oauth/github/callback"
	plainError(t, "another service", raw.Get(t, v.String(), header(c)), http.StatusForbidden)
	noCalls(t, s)
	status(t, "the true one", raw.Get(t, u.String(), header(c)), http.StatusSeeOther)
	calls(t, s, 1)

	if len(handle) > 64 || strings.ContainsAny(handle, "+/=~%") || strings.ContainsAny(c.Value, "+/=~%") {
		t.Errorf("handle %q or record needs encoding", handle)
	}
	n := 100_000
	if testing.Short() {
		n = 10_000
	}
	values, err := s.Broker.SealFlows(n)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool, n)
	for _, v := range values {
		sealed, err := base64.RawURLEncoding.DecodeString(v[strings.LastIndexByte(v, '.')+1:])
		if err != nil || seen[string(sealed[:12])] {
			t.Fatalf("a nonce came twice, or %v", err)
		}
		seen[string(sealed[:12])] = true
	}
})

var _ = threat("S8_stale_state", func(t *testing.T) {
	for _, tt := range []struct {
		name string
		by   time.Duration
		want int
	}{
		{"a second before its end", 10*time.Minute - time.Second, http.StatusSeeOther},
		{"a second after its end", 10*time.Minute + time.Second, http.StatusForbidden},
		{"hours later", 5 * time.Hour, http.StatusForbidden},
		{"begun a little ahead", -59 * time.Second, http.StatusSeeOther},
		{"begun in the future", -61 * time.Second, http.StatusForbidden},
	} {
		s := brokertest.New(t, brokertest.Options{})
		b := s.Browser()
		back := b.Approve(t, &brokertest.Ask{Service: "acme"})
		s.Clock.Advance(tt.by)
		p := b.Get(t, back)
		status(t, tt.name, p, tt.want)
		if tt.want != http.StatusSeeOther {
			plainError(t, tt.name, p, tt.want)
			noCalls(t, s)
			if !strings.Contains(p.Body, "start again") {
				t.Errorf("%s: the page does not say to start again", tt.name)
			}
		}
	}
})

// authorizeQuery is what a press sends to the provider.
func authorizeQuery(t *testing.T, p *brokertest.Page) url.Values {
	t.Helper()
	u, err := url.Parse(p.Location())
	if err != nil || p.Status != http.StatusSeeOther {
		t.Fatalf("the press was answered %d: %v", p.Status, err)
	}
	return u.Query()
}

var _ = threat("S9_no_pkce", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	seen := make(map[string]bool)
	for range 8 {
		b := s.Browser()
		a := &brokertest.Ask{Service: "acme"}
		p := b.Begin(t, a)
		q := authorizeQuery(t, p)
		challenge := q.Get("code_challenge")
		if q.Get("code_challenge_method") != "S256" || len(challenge) != 43 || seen[challenge] {
			t.Errorf("challenge %q, method %q", challenge, q.Get("code_challenge_method"))
		}
		seen[challenge] = true
		status(t, "callback", b.Get(t, b.Get(t, p.Location()).Location()), http.StatusSeeOther)
		all := s.Upstream.Calls(brokertest.Token)
		verifier := all[len(all)-1].Form.Get("code_verifier")
		sum := sha256.Sum256([]byte(verifier))
		if len(verifier) < 43 || base64.RawURLEncoding.EncodeToString(sum[:]) != challenge {
			t.Errorf("verifier of %d characters does not fit its challenge", len(verifier))
		}
		if strings.Contains(p.Location(), verifier) {
			t.Error("the verifier itself went to the provider first")
		}
	}
	calls(t, s, 8)

	// With the address of the callback alone, and a flow of one's own, nothing comes of it.
	victim, attacker := s.Browser(), s.Browser()
	stolen, _ := url.Parse(victim.Approve(t, &brokertest.Ask{Service: "acme"}))
	a := &brokertest.Ask{Service: "acme", ReturnTo: "https://evil.example"}
	own, _ := url.Parse(attacker.Approve(t, a))
	q := own.Query()
	q.Set("code", stolen.Query().Get("code"))
	own.RawQuery = q.Encode()
	out, err := a.Open(attacker.Get(t, own.String()))
	if err != nil || out.Error != "provider" || !out.Secret.IsZero() {
		t.Errorf("an injected code gave %+v, %v", out, err)
	}

	off := brokertest.New(t, brokertest.Options{Edit: edit("acme", func(o map[string]any) { o["pkce"] = map[string]any{"off": "It changes what the token may do"} })})
	b := off.Browser()
	p := b.Begin(t, &brokertest.Ask{Service: "acme"})
	if q := authorizeQuery(t, p); q.Has("code_challenge") || q.Has("code_challenge_method") {
		t.Error("a challenge is sent where the manifest turns it off")
	}
	for _, bad := range []any{nil, "plain", "off", true, map[string]any{"off": ""}, map[string]any{}} {
		if err := loads(t, "acme", func(o map[string]any) {
			o["pkce"] = bad
			if bad == nil {
				delete(o, "pkce")
			}
		}); err == nil {
			t.Errorf("a manifest with pkce %v loads", bad)
		}
	}
})

// edit returns an editor of one service's OAuth part.
func edit(service string, f func(oauth map[string]any)) func(string, map[string]any) {
	return func(id string, m map[string]any) {
		if id == service {
			f(m["auth"].(map[string]any)["oauth"].(map[string]any))
		}
	}
}

// loads says whether a registry with a changed manifest loads.
func loads(t *testing.T, service string, f func(oauth map[string]any)) error {
	t.Helper()
	s, err := brokertest.Start(brokertest.Options{Edit: edit(service, f)})
	if err == nil {
		s.Close()
	}
	return err
}

var _ = threat("S10_pkce_downgrade", func(t *testing.T) {
	for _, answer := range []*brokertest.Answer{
		brokertest.JSON(http.StatusBadRequest, map[string]any{"error": "invalid_grant"}),
		brokertest.JSON(http.StatusBadRequest, map[string]any{"error": "invalid_request", "error_description": "code_verifier is not known"}),
	} {
		s := brokertest.New(t, brokertest.Options{})
		b := s.Browser()
		a := &brokertest.Ask{Service: "acme"}
		back := b.Approve(t, a)
		s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer { return answer })
		out, err := a.Open(b.Get(t, back))
		if err != nil || out.Error != "provider" {
			t.Errorf("outcome %+v, %v", out, err)
		}
		calls(t, s, 1)
		if s.Upstream.Calls(brokertest.Token)[0].Form.Get("code_verifier") == "" {
			t.Error("the one request had no verifier")
		}
	}
})

var _ = threat("S11_smuggled_parameters", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	clean := authorizeQuery(t, s.Browser().Begin(t, &brokertest.Ask{Service: "acme"}))
	smuggled := authorizeQuery(t, s.Browser().Begin(t, &brokertest.Ask{Service: "acme", More: url.Values{
		"redirect_uri": {"https://evil.example"}, "scope": {"admin"}, "response_type": {"token"}, "client_id": {"evil"}, "prompt": {"none"}, "state": {"x"}, "code_challenge": {"x"},
		"response_mode": {"form_post"}, "agree": {"https://evil.example"}, "token": {"x"}, "resource": {"https://evil.example"},
	}}))
	for _, q := range []url.Values{clean, smuggled} {
		for _, name := range []string{"state", "code_challenge"} {
			if len(q[name]) != 1 || q.Get(name) == "x" {
				t.Errorf("%s is %q", name, q[name])
			}
			q.Del(name)
		}
	}
	if clean.Encode() != smuggled.Encode() {
		t.Errorf("the provider is asked for\n%s\nwant\n%s", smuggled.Encode(), clean.Encode())
	}
	want := url.Values{"client_id": {"client-acme"}, "code_challenge_method": {"S256"}, "redirect_uri": {s.URL + "/oauth/acme/callback"}, "response_type": {"code"}, "scope": {"tickets:read profile"}}
	if clean.Encode() != want.Encode() {
		t.Errorf("the provider is asked for\n%s\nwant\n%s", clean.Encode(), want.Encode())
	}
	for _, name := range []string{"access", "return_to", "key", "for"} {
		p := s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "acme", More: url.Values{name: {"read"}, "for": {"x", "x"}}}))
		plainError(t, name+" twice", p, http.StatusBadRequest)
	}
	plainError(t, "a semicolon", s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "acme"})+"&a;b=c"), http.StatusBadRequest)
	for _, where := range []string{"authorize_params", "token_params", "refresh_params"} {
		for _, name := range []string{"client_id", "client_secret", "redirect_uri", "response_type", "scope", "state", "code_challenge", "code_challenge_method", "code", "grant_type", "code_verifier", "refresh_token"} {
			if err := loads(t, "acme", func(o map[string]any) { o[where] = map[string]any{name: "x"} }); err == nil {
				t.Errorf("a manifest whose %s hold %s loads", where, name)
			}
		}
	}
	noCalls(t, s)
})

var _ = threat("S12_one_redirect_uri", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	seen := make(map[string]string)
	for _, m := range s.Registry.All() {
		if m.Auth.OAuth == nil {
			continue
		}
		to := authorizeQuery(t, s.Browser().Begin(t, &brokertest.Ask{Service: m.ID})).Get("redirect_uri")
		if to != s.URL+"/oauth/"+m.ID+"/callback" || seen[to] != "" {
			t.Errorf("%s returns to %s, as does %q", m.ID, to, seen[to])
		}
		seen[to] = m.ID
	}
	b := s.Browser()
	u, _ := url.Parse(b.Approve(t, &brokertest.Ask{Service: "github"}))
	u.Path = "/oauth/acme/callback"
	plainError(t, "github's flow at acme's address", b.Get(t, u.String()), http.StatusForbidden)
	noCalls(t, s)
})

var _ = threat("S13_login_csrf", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	// The attacker's own flow, delivered to somebody's page: without the one-time key it is
	// nothing. That /connect/done and the starter do not save it is shown in Chromium.
	b := s.Browser()
	a := &brokertest.Ask{Service: "acme"}
	p := b.Get(t, b.Approve(t, a))
	status(t, "callback", p, http.StatusSeeOther)
	stranger := *a
	stranger.Key = brokertest.NewIdentity(t)
	if out, err := stranger.Open(p); err == nil {
		t.Errorf("opened with another key: %+v", out)
	}
	_, fragment, _ := strings.Cut(p.Location(), "#")
	env, err := custody.ParseFragment(fragment)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range []string{"acme.write", "github.read", "acme.read.x", ""} {
		if err := a.Key.OpenAnswer(env, op, new(custody.TabOutcome)); err == nil {
			t.Errorf("it opens as the answer to %q", op)
		}
	}
	env.Op = "acme.write"
	if err := a.Key.OpenAnswer(env, env.Op, new(custody.TabOutcome)); err == nil {
		t.Error("a read-only outcome opens as one for write")
	}
	calls(t, s, 1)
})

var _ = threat("S14_prefetch_and_head", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	start := s.URLOf(&brokertest.Ask{Service: "acme"})
	for _, method := range []string{http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete} {
		p, err := b.Do(method, start, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Header["Set-Cookie"]) > 0 || p.Location() != "" || method == http.MethodHead && (p.Status != http.StatusOK || p.Body != "") {
			t.Errorf("%s start: %d %v", method, p.Status, p.Header)
		}
	}
	back := b.Approve(t, &brokertest.Ask{Service: "acme"})
	s.Upstream.Reset()
	for _, method := range []string{http.MethodHead, http.MethodOptions, http.MethodPost, http.MethodPut} {
		p, err := b.Do(method, back, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Header["Set-Cookie"]) > 0 || p.Location() != "" {
			t.Errorf("%s callback: %d %v", method, p.Status, p.Header)
		}
	}
	noCalls(t, s)
	status(t, "the real load", b.Get(t, back), http.StatusSeeOther)
	calls(t, s, 1)
})

var _ = threat("S15_foreign_key", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	mine, foreign := brokertest.NewIdentity(t), brokertest.NewIdentity(t)
	for mine.Public().CheckNumber() == foreign.Public().CheckNumber() {
		foreign = brokertest.NewIdentity(t)
	}
	for _, to := range []string{brokertest.Instance, "http://127.0.0.1:4711"} {
		p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: to, Key: foreign}))
		n := foreign.Public().CheckNumber()
		who := "Eleven"
		if to != brokertest.Instance {
			who = "your terminal"
		}
		for _, want := range []string{">" + n[:3] + " " + n[3:] + "<", "Continue only if " + who + " shows"} {
			if !strings.Contains(p.Body, want) {
				t.Errorf("the page does not show %q", want)
			}
		}
		if m := mine.Public().CheckNumber(); strings.Contains(p.Body, m[:3]+" "+m[3:]) {
			t.Error("the page shows the client's number for a foreign key")
		}
	}
	for _, key := range []string{"", "AAAA", strings.Repeat("A", 87), "BA" + strings.Repeat("A", 85), text(t, mine.Public()) + "=", " " + text(t, mine.Public()), text(t, mine.Public()) + "A"} {
		u, _ := url.Parse(s.URLOf(&brokertest.Ask{Service: "acme"}))
		q := u.Query()
		q.Set("key", key)
		u.RawQuery = q.Encode()
		plainError(t, fmt.Sprintf("key %q", key), b.Get(t, u.String()), http.StatusBadRequest)
	}
	noCalls(t, s)
})

func text(t *testing.T, k custody.PublicKey) string {
	t.Helper()
	b, err := k.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

var _ = threat("S16_cookie_tossing", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	u, _, c := split(t, b, s, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	raw := bare(s)
	for name, h := range map[string]string{
		"the same twice": header(c, c),
		"another first":  header(&http.Cookie{Name: c.Name, Value: "x"}, c),
		"another after":  header(c, &http.Cookie{Name: c.Name, Value: "f1.s1.AAAA"}),
		"without prefix": header(&http.Cookie{Name: strings.TrimPrefix(c.Name, "__Host-"), Value: c.Value}),
		"another's case": header(&http.Cookie{Name: strings.ToLower(c.Name), Value: c.Value}),
	} {
		plainError(t, name, raw.Get(t, u.String(), h), http.StatusForbidden)
	}
	noCalls(t, s)
	p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme"}))
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	token := &http.Cookie{Name: "__Host-consent", Value: form.Get("token")}
	ours := []string{"Origin: " + s.URL, "Sec-Fetch-Site: same-origin"}
	plainError(t, "two consent cookies", raw.Post(t, s.URL+action, form, append(ours, header(token, token))...), http.StatusForbidden)
	status(t, "one", raw.Post(t, s.URL+action, form, append(ours, header(token))...), http.StatusSeeOther)

	// The broker's own origin is nobody's instance.
	for _, own := range []string{brokertest.Origin, "https://BROKER.test:443"} {
		_, err := brokertest.Start(brokertest.Options{Config: func(c *broker.Config) { c.ReturnOrigins = []string{brokertest.Instance, own} }})
		if err == nil || !strings.Contains(err.Error(), "the broker's own origin") {
			t.Errorf("ReturnOrigins with %s: %v", own, err)
		}
		plainError(t, own, b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: own})), http.StatusBadRequest)
	}

	// A second tab does not undo the first, at the page or after it.
	tabs := s.Browser()
	one, two := &brokertest.Ask{Service: "acme"}, &brokertest.Ask{Service: "github"}
	first, second := tabs.Get(t, s.URLOf(one)), tabs.Get(t, s.URLOf(two))
	var back []string
	for _, p := range []*brokertest.Page{first, second} {
		action, form, err := p.Form()
		if err != nil {
			t.Fatal(err)
		}
		q := tabs.Post(t, s.URL+action, form)
		status(t, "press", q, http.StatusSeeOther)
		back = append(back, tabs.Get(t, q.Location()).Location())
	}
	s.Upstream.Reset()
	for i, a := range []*brokertest.Ask{one, two} {
		if out, err := a.Open(tabs.Get(t, back[i])); err != nil || out.Error != "" {
			t.Errorf("tab %d: %+v, %v", i+1, out, err)
		}
	}
	calls(t, s, 2)

	// Five at once: the oldest makes room.
	many := s.Browser()
	back = nil
	for range 5 {
		back = append(back, many.Approve(t, &brokertest.Ask{Service: "acme"}))
		s.Clock.Advance(time.Second)
	}
	n := 0
	for _, c := range cookies(many, s) {
		if strings.HasPrefix(c.Name, brokertest.FlowCookie) {
			n++
		}
	}
	if n != 4 {
		t.Errorf("%d flows in one browser, want 4", n)
	}
	status(t, "the oldest", many.Get(t, back[0]), http.StatusForbidden)
	for _, to := range back[1:] {
		status(t, "a later one", many.Get(t, to), http.StatusSeeOther)
	}
})
