package broker_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/integrations"
)

var _ = threat("X1_header_injection", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	u, _, flow := split(t, b, s, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	s.Upstream.Reset()
	key := text(t, brokertest.NewIdentity(t).Public())
	for _, inject := range []string{"%0d%0aSet-Cookie:%20a=b", "%0D%0A%0D%0A<html>", "%0aLocation:%20https://evil.example", "%00", "%e2%80%a8", "%c0%8d%c0%8a", "%u000d", "\tx", "\x00", "\x7f"} {
		for _, target := range []string{
			"/oauth/acme" + inject + "/authorize?access=read&return_to=https://chat.test&key=" + key,
			"/oauth/acme/authorize" + inject,
			"/oauth/acme/authorize?access=read" + inject + "&return_to=https://chat.test&key=" + key,
			"/oauth/acme/authorize?access=read&return_to=https://chat.test" + inject + "&key=" + key,
			"/oauth/acme/authorize?access=read&return_to=http://127.0.0.1:4711/" + inject + "&key=" + key,
			"/oauth/acme/authorize?access=read&return_to=https://chat.test&key=" + key + inject,
			"/oauth/acme/callback?code=c&state=" + u.Query().Get("state") + inject,
			"/oauth/acme/callback?error=x" + inject + "&state=AAAAAAAAAAAAAAAAAAAAAA",
			"/registry/acme" + inject,
			"/api/oauth/config?service=acme" + inject,
		} {
			answer := rawRequest(t, s, "GET "+target+" HTTP/1.1\r\nHost: broker.test\r\nCookie: "+flow.Name+"="+flow.Value+"\r\nConnection: close\r\n\r\n")
			head, _, ok := strings.Cut(answer, "\r\n\r\n")
			if !ok || !slices.Contains([]string{"400", "403", "404"}, strings.Split(head+"  ", " ")[1]) {
				t.Errorf("%q: answered %.80q", target, answer)
			}
			for _, bad := range []string{"\nLocation:", "a=b", "evil.example", "<html>\r\n", inject} {
				if strings.Contains(head, bad) {
					t.Errorf("%q: the head holds %q", target, bad)
				}
			}
			if strings.Contains(head, flow.Name) && !strings.Contains(head, flow.Name+"=; Path=/; Max-Age=0; HttpOnly; Secure") {
				t.Errorf("%q: the head is\n%s", target, head)
			}
		}
	}
	for _, id := range []string{"ACME", "Acme", "acme.", "acme_", "-acme", "1acme", strings.Repeat("a", 40), "acme%20"} {
		plainError(t, id, b.Get(t, s.URL+"/oauth/"+id+"/authorize"), http.StatusNotFound)
	}
	if s.Upstream.Count() != 0 {
		t.Error("something reached the provider")
	}
})

var _ = threat("X2_path_confusion", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	u, handle, flow := split(t, b, s, b.Approve(t, &brokertest.Ask{Service: "stripe"}))
	s.Upstream.Reset()
	q := "?code=" + url.QueryEscape(u.Query().Get("code")) + "&state=" + handle
	for _, path := range []string{
		"/oauth/github/../stripe/callback", "/oauth/./stripe/callback", "/oauth//stripe/callback", "//oauth/stripe/callback", "/oauth/stripe/callback/", "/oauth/stripe//callback", "/OAuth/stripe/callback",
		"/oauth/STRIPE/callback", "/oauth/stripe/Callback", "/oauth/%73tripe/callback", "/oauth/stripe%2fcallback", "/oauth/stripe/callback%2f", "/oauth/github%2f..%2fstripe/callback", "/oauth/stripe/callback/..;/callback",
		"/oauth/stripe;x/callback", "/oauth/stripe/callback;x", "/oauth\\stripe\\callback", "/oauth/stripe/callback%00", "/oauth/stripe/callback%20", "/oauth/stripe/callback.", "/x/../oauth/stripe/callback", "/%2e%2e/oauth/stripe/callback",
		"/prod/oauth/stripe/callback", "/oauth/stripe/%63allback", "/oauth/stripe/callback%3f", "http://broker.test/oauth/stripe/callback/", "*",
	} {
		answer := rawRequest(t, s, "GET "+path+q+" HTTP/1.1\r\nHost: broker.test\r\nCookie: "+flow.Name+"="+flow.Value+"\r\nConnection: close\r\n\r\n")
		code := strings.Split(answer+"  ", " ")[1]
		if code != "404" && code != "400" || strings.Contains(answer, "Location:") || strings.Contains(answer, "Set-Cookie:") {
			t.Errorf("%s: answered %.200q", path, answer)
		}
	}
	if s.Upstream.Count() != 0 {
		t.Error("something reached the provider")
	}
	status(t, "the one true path", b.Get(t, u.String()), http.StatusSeeOther)
	calls(t, s, 1)
})

var _ = threat("X4_forwarded_headers", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	spoof := []string{
		"X-Forwarded-For: 127.0.0.1", "X-Forwarded-Host: evil.example", "X-Forwarded-Proto: http", "X-Forwarded-Port: 80", "X-Forwarded-Prefix: /evil", "X-Real-Ip: 127.0.0.1", "Forwarded: for=127.0.0.1;host=evil.example",
		"X-Original-Url: /oauth/github/authorize", "X-Rewrite-Url: /oauth/github/authorize", "X-Http-Method-Override: POST", "X-Host: evil.example", "Host: evil.example",
	}
	plain, spoofed := s.Browser(), s.Browser()
	key := brokertest.NewIdentity(t)
	get := func(b *brokertest.Browser, headers ...string) *brokertest.Page {
		p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", Key: key}), headers...)
		_, form, err := p.Form()
		if err != nil {
			t.Fatal(err)
		}
		p.Body = strings.ReplaceAll(p.Body, form.Get("token"), "")
		return p
	}
	if a, b := get(plain), get(spoofed, spoof...); a.Body != b.Body || a.Header.Get("Content-Security-Policy") != b.Header.Get("Content-Security-Policy") {
		t.Error("the page differs with forwarded headers")
	}
	for _, path := range []string{"/registry", "/api/oauth/config?service=acme", "/oauth/acme/callback?state=x"} {
		a, b := plain.Get(t, s.URL+path), spoofed.Get(t, s.URL+path, spoof...)
		if a.Status != b.Status || a.Body != b.Body {
			t.Errorf("%s differs with forwarded headers", path)
		}
	}
	if s.Upstream.Count() != 0 {
		t.Error("something reached the provider")
	}
	if strings.Contains(s.Logs(), "evil.example") {
		t.Error("a forwarded name stands in the log")
	}
})

var _ = threat("X5_public_routes", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.Apps = map[string]string{"github": "eleven-connect"}
		c.Services = []string{"github", "acme"}
	}})
	b := s.Browser()
	for service, want := range map[string]string{
		"github": `{"service":"github","configured":true,"app":"eleven-connect"}`,
		"acme":   `{"service":"acme","configured":true}`,
		"stripe": `{"service":"stripe","configured":false}`, // it has a client, and is not offered
	} {
		p := b.Get(t, s.URL+"/api/oauth/config?service="+service, "Origin: https://evil.example")
		if p.Status != http.StatusOK || strings.TrimSpace(p.Body) != want {
			t.Errorf("%s: %d %s, want %s", service, p.Status, p.Body, want)
		}
	}
	for _, q := range []string{"", "?service=", "?service=nobody", "?service=github&service=acme", "?service=../github", "?service=GITHUB"} {
		status(t, q, b.Get(t, s.URL+"/api/oauth/config"+q), http.StatusNotFound)
	}
	// The registry is the manifests and nothing else.
	p := b.Get(t, s.URL+"/registry", "Origin: https://evil.example", "Cookie: a=b")
	var reg struct {
		Services []map[string]any `json:"services"`
	}
	if err := json.Unmarshal([]byte(p.Body), &reg); err != nil || len(reg.Services) != len(s.Registry.All()) {
		t.Fatalf("registry: %d services, %v", len(reg.Services), err)
	}
	for i, m := range s.Registry.All() {
		var own map[string]any
		if err := json.Unmarshal(m.Raw(), &own); err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Sorted(maps.Keys(reg.Services[i])), slices.Sorted(maps.Keys(own)); !slices.Equal(got, want) {
			t.Errorf("%s: keys %q, want %q", m.ID, got, want)
		}
	}
	for _, path := range []string{"/registry", "/registry/acme", "/registry/nobody", "/api/oauth/config?service=acme", "/api/oauth/config?service=nobody"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPost} {
			p, err := b.Do(method, s.URL+path, nil, "Origin: https://evil.example", "Access-Control-Request-Method: GET")
			if err != nil {
				t.Fatal(err)
			}
			h := p.Header
			if !slices.Equal(h["Access-Control-Allow-Origin"], []string{"*"}) || h["Access-Control-Allow-Credentials"] != nil || slices.Contains(h["Vary"], "Origin") || h["Set-Cookie"] != nil {
				t.Errorf("%s %s: %v", method, path, h)
			}
			silent(t, method+" "+path, p, "client-acme", "client-github", brokertest.Sentinel, "arn:")
		}
	}
	// No other route is open to a page of another origin.
	for _, path := range []string{"/oauth/acme/authorize", "/oauth/acme/callback", "/api/refresh", "/api/revoke", "/healthz", "/nothing"} {
		for _, method := range []string{http.MethodGet, http.MethodOptions, http.MethodPost} {
			p, err := b.Do(method, s.URL+path, nil, "Origin: https://evil.example", "Access-Control-Request-Method: POST", "Content-Type: application/json")
			if err != nil {
				t.Fatal(err)
			}
			for name := range p.Header {
				if strings.HasPrefix(name, "Access-Control-") {
					t.Errorf("%s %s: %s", method, path, name)
				}
			}
		}
	}
	noCalls(t, s)
})

var _ = threat("X6_key_rotation", func(t *testing.T) {
	first, second, third := brokertest.NewKey("s1"), brokertest.NewKey("s2"), brokertest.NewKey("s3")
	wrap := brokertest.NewKey("w1")
	with := func(keys ...broker.Key) *brokertest.Server {
		return brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.StateKeys, c.WrapKeys = keys, []broker.Key{wrap} }})
	}
	begun := with(first)
	b := begun.Browser()
	u, handle, c := split(t, b, begun, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	for name, tt := range map[string]struct {
		s    *brokertest.Server
		want int
	}{
		"the same":             {with(first), http.StatusSeeOther},
		"rotated":              {with(second, first), http.StatusSeeOther},
		"not first":            {with(first, second), http.StatusSeeOther},
		"removed":              {with(third, second), http.StatusForbidden},
		"another of that name": {with(brokertest.NewKey("s1")), http.StatusForbidden},
	} {
		p := bare(tt.s).Get(t, u.String(), header(c))
		status(t, name, p, tt.want)
		want := 0
		if tt.want == http.StatusSeeOther {
			want = 1
		}
		calls(t, tt.s, want)
	}
	// The new key seals, and names itself.
	s := with(second, first)
	b = s.Browser()
	_, _, c = split(t, b, s, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	if !strings.HasPrefix(c.Value, "f1.s2.") {
		t.Errorf("the record begins %.8s", c.Value)
	}
	// One secret for both purposes, and still neither opens as the other.
	both := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.StateKeys, c.WrapKeys = []broker.Key{first}, []broker.Key{first} }})
	refresh := both.Connect(t, brokertest.Ask{Service: "acme"}).Refresh.Reveal()
	if as := "f1" + strings.TrimPrefix(refresh, "rt1"); both.Broker.OpensAsFlow(handle, as) || both.Broker.OpensAsFlow(handle, refresh) {
		t.Error("a wrapped refresh token opens as a flow")
	}
	if h, v, err := both.Broker.FlowUnderWrap(); err != nil || both.Broker.OpensAsFlow(h, v) {
		t.Errorf("a whole flow under the wrapping key opens as one, or %v", err)
	}
	b = both.Browser()
	_, _, c = split(t, b, both, b.Approve(t, &brokertest.Ask{Service: "acme"}))
	both.Upstream.Reset()
	p, err := both.PostJSON("/api/refresh", both.Token(), map[string]string{"service": "acme", "refresh": "rt1" + strings.TrimPrefix(c.Value, "f1"), "key": text(t, brokertest.NewIdentity(t).Public())})
	if err != nil || p.Status != http.StatusUnauthorized {
		t.Errorf("a flow as a refresh token: %d, %v", p.Status, err)
	}
	noCalls(t, both)
	// A broker does not start with keys that are none.
	for name, keys := range map[string][]broker.Key{"none": {}, "zeros": {{ID: "s1"}}, "twice": {first, first}, "a name with a point": {{ID: "s.1", Secret: first.Secret}}} {
		if s, err := brokertest.Start(brokertest.Options{Config: func(c *broker.Config) { c.StateKeys = keys }}); err == nil {
			s.Close()
			t.Errorf("it starts with state keys: %s", name)
		}
	}
})

var _ = threat("X7_registry_poisoning", func(t *testing.T) {
	oauth := func(name string, v any) func(string, map[string]any) {
		return edit("acme", func(o map[string]any) { o[name] = v })
	}
	for name, ed := range map[string]func(string, map[string]any){
		"token_url over http":          oauth("token_url", "http://auth.acme.example/oauth/token"),
		"token_url at an address":      oauth("token_url", "https://169.254.169.254/token"),
		"token_url at a port":          oauth("token_url", "https://auth.acme.example:8443/token"),
		"token_url with a user":        oauth("token_url", "https://u@auth.acme.example/token"),
		"authorize_url of no scheme":   oauth("authorize_url", "javascript:alert(1)"),
		"authorize_url with a query":   oauth("authorize_url", "https://auth.acme.example/a?client_id=evil"),
		"token_url elsewhere":          oauth("token_url", "https://login.evil.example/token"),
		"refresh_url over http":        oauth("refresh_url", "http://auth.acme.example/oauth/token"),
		"client_auth that is probed":   oauth("client_auth", "auto"),
		"client_auth unknown":          oauth("client_auth", "private_key_jwt"),
		"an unknown field":             oauth("proxy", "https://evil.example"),
		"an unknown field at top":      func(id string, m map[string]any) { m["exec"] = "sh" },
		"a manifest of a later form":   func(id string, m map[string]any) { m["manifest"] = 2 },
		"an id that is not the file's": func(id string, m map[string]any) { m["id"] = "other" },
		"a write that passes for read": func(id string, m map[string]any) {
			if id == "acme" {
				m["ops"].(map[string]any)["gone"] = map[string]any{"title": "x", "about": "x", "access": "read", "method": "DELETE", "path": "/v1/me", "pick": map[string]any{"fields": []string{"id"}}, "status": map[string]any{"checked": "example"}}
			}
		},
		"a write that nobody confirms": func(id string, m map[string]any) {
			if id == "acme" {
				m["ops"].(map[string]any)["gone"] = map[string]any{"title": "x", "about": "x", "access": "write", "method": "POST", "path": "/v1/me", "pick": map[string]any{"fields": []string{"id"}}, "status": map[string]any{"checked": "example"}}
			}
		},
		"another host for calls": func(id string, m map[string]any) {
			if id == "acme" {
				m["host"] = "127.0.0.1"
			}
		},
	} {
		if s, err := brokertest.Start(brokertest.Options{Edit: ed}); err == nil {
			s.Close()
			t.Errorf("a registry with %s loads", name)
		}
	}
	// One that loads, and would send the secret of a built-in service elsewhere, is not
	// offered: no page, no call.
	s := brokertest.New(t, brokertest.Options{Edit: edit("linear", func(o map[string]any) { o["token_url"] = "https://uploads.linear.app/token" })})
	plainError(t, "another token_url", s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "linear"})), http.StatusNotFound)
	if s.Upstream.Count() != 0 {
		t.Error("something reached the provider")
	}
	// Where a member is sent to sign in is a reviewed list too: go test -update writes it.
	hosts := make(map[string]string)
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range reg.All() {
		if m.Auth.OAuth != nil {
			u, _ := url.Parse(m.Auth.OAuth.AuthorizeURL)
			hosts[m.ID] = u.Host
		}
	}
	got, err := json.MarshalIndent(hosts, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "testdata/authorize_hosts.json", append(got, '\n'))
	// What a page or instance reads is not what runs here: nothing can be posted to the registry.
	s = brokertest.New(t, brokertest.Options{})
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		p, err := s.Browser().Do(method, s.URL+"/registry/acme", url.Values{"x": {"y"}})
		if err != nil {
			t.Fatal(err)
		}
		status(t, method, p, http.StatusMethodNotAllowed)
	}
})

var _ = threat("X8_consent_phishing", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	for to, shown := range map[string][]string{
		"https://eleven.example.security-check.verify.very-long-name-that-goes-on-and-on-for-ever.and-a-bit-more.evil.example": {"eleven.example.security-check.verify.very-long-name-that-goes-on-and-on-for-ever.and-a-bit-more.evil.example"},
		"https://chat.test.evil.example":       {"chat.test.evil.example"},
		"https://xn--bcher-kva.example":        {"xn--bcher-kva.example", "bücher.example"},
		"https://xn--4dbrk0ce.example":         {"xn--4dbrk0ce.example", "ישראל.example"},
		"https://xn--80ak6aa92e.example":       {"xn--80ak6aa92e.example"},
		"https://github.com":                   {"github.com"},
		"https://chat.test:8443":               {"chat.test:8443"},
		"https://xn--bcher-kva.example:8443":   {"xn--bcher-kva.example:8443", "bücher.example:8443"},
		"https://login-acme.example.eleven.im": {"login-acme.example.eleven.im"},
	} {
		p := b.Get(t, s.URLOf(&brokertest.Ask{Service: "acme", ReturnTo: to, More: url.Values{"name": {"The real Eleven"}, "logo": {"https://evil.example/logo.png"}}}))
		status(t, to, p, http.StatusOK)
		for _, w := range shown {
			if n := strings.Count(p.Body, "<bdi>"+w+"</bdi>"); n == 0 {
				t.Errorf("%s: the page does not show %s in full", to, w)
			}
		}
		if strings.Contains(p.Body, "The real Eleven") || strings.Contains(p.Body, "<img") || strings.Contains(p.Body, "text-overflow") {
			t.Errorf("%s: a name or picture of the caller's choice, or a cut name", to)
		}
	}
	noCalls(t, s)
})

var _ = threat("X11_resource", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := s.Browser()
	a := &brokertest.Ask{Service: "acme", More: url.Values{"resource": {"https://evil.example"}, "audience": {"https://evil.example"}}}
	if _, err := a.Open(b.Get(t, b.Approve(t, a)+"&resource=https://evil.example")); err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Upstream.Calls() {
		if c.Query.Has("resource") || c.Form.Has("resource") || c.Query.Has("audience") || c.Form.Has("audience") {
			t.Errorf("%s: %v %v", c.Kind, c.Query, c.Form)
		}
	}
	said := brokertest.New(t, brokertest.Options{Edit: edit("acme", func(o map[string]any) {
		o["authorize_params"] = map[string]any{"resource": "https://api.acme.example"}
		o["token_params"] = map[string]any{"resource": "https://api.acme.example"}
	})})
	said.Connect(t, brokertest.Ask{Service: "acme"})
	for _, c := range said.Upstream.Calls() {
		if c.Query.Get("resource")+c.Form.Get("resource") != "https://api.acme.example" {
			t.Errorf("%s: the manifest's resource is not sent", c.Kind)
		}
	}
})

var _ = threat("X13_denial_of_wallet", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	b := bare(s)
	garbage := []string{"", "x", "AAAAAAAAAAAAAAAAAAAAAA", "f1.s1.AAAA", strings.Repeat("A", 4096)}
	for _, service := range []string{"acme", "github", "nobody"} {
		for _, g := range garbage {
			for _, to := range []string{"/authorize?access=read&return_to=https://chat.test&key=" + g, "/callback?code=c&state=" + g, "/callback?error=e&state=" + g} {
				b.Get(t, s.URL+"/oauth/"+service+to, "Cookie: "+brokertest.FlowCookie+g+"="+g)
				b.Post(t, s.URL+"/oauth/"+service+to, url.Values{"token": {g}, "agree": {brokertest.Instance}}, "Origin: "+s.URL, "Cookie: __Host-consent="+g)
			}
		}
		b.Get(t, s.URLOf(&brokertest.Ask{Service: service, Access: integrations.Write}))
		for _, path := range []string{"/api/refresh", "/api/revoke"} {
			for _, token := range []string{"", "x", "a.b.c"} {
				if _, err := s.PostJSON(path, token, map[string]string{"service": service, "refresh": "rt1.w1.AAAA", "secret": "x"}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if n := s.Upstream.Count(); n != 0 {
		t.Errorf("%d calls without a valid flow or token, want none", n)
	}
})

// golden holds what a test made against a file that a reviewer reads.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	if *broker.Update {
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; go test ./broker -update writes it\ngot\n%s\nwant\n%s", name, got, want)
	}
}
