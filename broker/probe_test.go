package broker_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// TestConfigSaysWhatConsentDoes: what GET /api/oauth/config calls configured is what the
// consent page begins, at every service and whatever is wrong with one.
func TestConfigSaysWhatConsentDoes(t *testing.T) {
	steal := "https://gist.github.com/steal"
	secrets := func(v *versions) func(*broker.Config) {
		return func(c *broker.Config) { c.Secrets = &broker.Cache{Store: v, Now: c.Now} }
	}
	for _, c := range []struct {
		name   string
		edit   func(o map[string]any)
		config func(*broker.Config)
		want   bool
	}{
		{"as it is", nil, nil, true},
		{"another token host", func(o map[string]any) { o["token_url"] = steal }, nil, false},
		{"another refresh host", func(o map[string]any) { o["refresh_url"] = steal }, nil, false},
		{"another revoke host", func(o map[string]any) {
			o["revoke"] = map[string]any{"style": "form", "url": steal, "param": "token", "takes": "refresh", "reach": "token"}
		}, nil, false},
		{"no revocation", func(o map[string]any) { o["revoke"] = map[string]any{"none": "There is none"} }, nil, true},
		{"no client", nil, secrets(&versions{err: broker.ErrNoClient}), false},
		{"no secret", nil, secrets(&versions{current: client("id", "")}), false},
		{"the operator's hosts", nil, secrets(&versions{current: client("id", "s", "github.com", "api.github.com")}), true},
		{"one host too few", nil, secrets(&versions{current: client("id", "s", "github.com")}), false},
		{"not listed", nil, func(c *broker.Config) { c.Services = []string{"acme"} }, false},
	} {
		s := brokertest.New(t, brokertest.Options{Config: c.config, Edit: func(id string, m map[string]any) {
			if id == "github" && c.edit != nil {
				c.edit(oauthOf(m))
			}
		}})
		for _, m := range s.Registry.All() {
			res, err := s.Client().Get(s.URL + "/api/oauth/config?service=" + m.ID)
			if err != nil {
				t.Fatal(err)
			}
			text, _ := io.ReadAll(res.Body)
			res.Body.Close()
			configured := strings.Contains(string(text), `"configured":true`)
			page := s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: m.ID}))
			if begins := page.Status == http.StatusOK; configured != begins {
				t.Errorf("%s: %s: config says %s, and the consent page %d", c.name, m.ID, text, page.Status)
			}
			if offered := s.Broker.Offered(t.Context(), m.ID) == nil; offered != configured {
				t.Errorf("%s: %s: Offered says %v, config %s", c.name, m.ID, offered, text)
			}
			if m.ID == "github" && configured != c.want {
				t.Errorf("%s: config says %s", c.name, text)
			}
		}
		if s.Upstream.Secret() != 0 {
			t.Errorf("%s: %d requests left", c.name, s.Upstream.Secret())
		}
	}
}

// TestProbeIsASignIn: a probe sends what the exchange of a sign-in sends, but for what is
// random in both, and once.
func TestProbeIsASignIn(t *testing.T) {
	for _, style := range []string{"post", "basic", "basic_raw", "basic_secret", "none"} {
		for _, encoding := range []string{"form", "json"} {
			s := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
				if id == "acme" {
					o := oauthOf(m)
					o["client_auth"], o["token_body"], o["token_sends_state"] = style, encoding, true
					o["token_params"], o["param_names"] = map[string]any{"audience": "a"}, map[string]any{"client_id": "client_key"}
				}
			}})
			s.Connect(t, brokertest.Ask{Service: "acme"})
			if _, err := s.Broker.Probe(t.Context(), "acme"); err != nil {
				t.Fatal(err)
			}
			calls := s.Upstream.Calls(brokertest.Token)
			if len(calls) != 2 || s.Upstream.Secret() != 2 {
				t.Fatalf("%s, %s: %d calls", style, encoding, len(calls))
			}
			said := func(c *brokertest.Call) string {
				form, h := url.Values{}, c.Header.Clone()
				for k, v := range c.Form {
					form[k] = v
				}
				for _, k := range []string{"code", "code_verifier", "state"} {
					if form.Get(k) == "" {
						t.Errorf("%s, %s: no %s", style, encoding, k)
					}
					form.Set(k, "random")
				}
				h.Del("Content-Length")
				return fmt.Sprint(c.Method, c.Host, c.Path, h, form, c.ClientID, c.ClientSecret)
			}
			if a, b := said(calls[0]), said(calls[1]); a != b {
				t.Errorf("%s, %s: a sign-in sends\n%s\nand a probe\n%s", style, encoding, a, b)
			}
		}
	}
}

// TestProbeSaysWhereTheAppStands: each answer in the words of the provider that gives it.
func TestProbeSaysWhereTheAppStands(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	for _, c := range []struct {
		service string
		answer  *brokertest.Answer
		want    broker.Standing
		code    string
	}{
		{"github", jsonAnswer(200, `{"error":"bad_verification_code"}`), broker.StandingKnown, "bad_verification_code"},
		{"github", jsonAnswer(200, `{"error":"incorrect_client_credentials"}`), broker.StandingClient, "incorrect_client_credentials"},
		{"github", jsonAnswer(200, `{"error":"redirect_uri_mismatch"}`), broker.StandingRedirect, "redirect_uri_mismatch"},
		{"github", answer(200, "application/x-www-form-urlencoded", `error=bad_verification_code&error_uri=x`), broker.StandingKnown, "bad_verification_code"},
		{"github", jsonAnswer(404, `{"error":"Not Found"}`), broker.StandingUnclear, ""},
		{"hubspot", jsonAnswer(400, `{"status":"BAD_AUTH_CODE","message":"missing or unknown auth code"}`), broker.StandingKnown, "BAD_AUTH_CODE"},
		{"hubspot", jsonAnswer(400, `{"status":"BAD_CLIENT_SECRET","message":"missing or invalid client secret"}`), broker.StandingClient, "BAD_CLIENT_SECRET"},
		{"hubspot", jsonAnswer(400, `{"status":"BAD_REDIRECT_URI","message":"missing or invalid redirect uri"}`), broker.StandingRedirect, "BAD_REDIRECT_URI"},
		{"dnsimple", jsonAnswer(401, `{"error":"invalid_client"}`), broker.StandingClient, "invalid_client"},
		{"dnsimple", jsonAnswer(400, `{"error":"invalid_request"}`), broker.StandingUnclear, "invalid_request"},
		{"stripe", jsonAnswer(400, `{"error":"invalid_grant","error_description":"This authorization code was made with another mode API key"}`), broker.StandingRefused, "invalid_grant"},
		{"stripe", jsonAnswer(401, `{"error":{"type":"invalid_request_error","message":"Invalid API Key provided"}}`), broker.StandingClient, "invalid_request_error"},
		{"acme", jsonAnswer(400, `{"error":"unauthorized_client"}`), broker.StandingRefused, "unauthorized_client"},
		{"acme", jsonAnswer(400, `{"error":"client-acme"}`), broker.StandingUnclear, ""},
		{"acme", jsonAnswer(400, `{"error":"acme"}`), broker.StandingUnclear, ""}, // a part of the id
		{"acme", answer(200, "text/html", "<html>"), broker.StandingUnasked, ""},
		{"acme", answer(502, "text/html", "<html>"), broker.StandingUnasked, ""},
		{"acme", jsonAnswer(503, `{"error":"invalid_client"}`), broker.StandingUnasked, "invalid_client"},
		{"acme", jsonAnswer(429, `{}`), broker.StandingUnasked, ""},
		{"acme", &brokertest.Answer{Status: 302, Header: http.Header{"Location": {"https://auth.acme.example/login"}}}, broker.StandingUnasked, ""},
		{"acme", raw(reset), broker.StandingUnasked, ""},
		{"acme", nil, broker.StandingKnown, "invalid_grant"},
	} {
		s.Upstream.Reset()
		s.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer { return c.answer })
		p, err := s.Broker.Probe(t.Context(), c.service)
		if err != nil {
			t.Fatal(err)
		}
		if p.Standing != c.want || p.Code != c.code {
			t.Errorf("%s, %+v: %s (%q), want %s (%q)", c.service, c.answer, p.Standing, p.Code, c.want, c.code)
		}
		if n := len(s.Upstream.Calls()); n != 1 {
			t.Errorf("%s, %+v: %d calls", c.service, c.answer, n)
		}
		if (p.Cause != nil) != (p.Status == 0) {
			t.Errorf("%s, %+v: status %d, cause %v", c.service, c.answer, p.Status, p.Cause)
		}
	}
	own := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.Secrets = &broker.Cache{Store: &versions{current: client("plainword", "s", "auth.acme.example")}}
	}})
	answers(own, jsonAnswer(400, `{"error":"no_plainword_here"}`))
	if p, err := own.Broker.Probe(t.Context(), "acme"); err != nil || p.Code != "" {
		t.Errorf("the client's id comes back in a code: %+v, %v", p, err)
	}
	if strings.Contains(s.Logs(), "client-") || s.Metrics() != "" {
		t.Error("a probe is in the log or rings an alarm")
	}
}

// TestProbeAuthorize: what a provider's page says of the redirect address.
func TestProbeAuthorize(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	page := func(status int, body string) *brokertest.Answer { return answer(status, "text/html", body) }
	back := s.Broker.RedirectURI("acme")
	for _, c := range []struct {
		answer *brokertest.Answer
		want   broker.Standing
	}{
		{nil, broker.StandingKnown}, // it sends the browser back at once
		{&brokertest.Answer{Status: 302, Header: http.Header{"Location": {back + "?error=login_required"}}}, broker.StandingKnown},
		{&brokertest.Answer{Status: 302, Header: http.Header{"Location": {back + "x?error=login_required"}}}, broker.StandingUnclear},
		{&brokertest.Answer{Status: 302, Header: http.Header{"Location": {"/login?return_to=" + url.QueryEscape(back)}}}, broker.StandingUnclear},
		{page(200, "<h1>Sign in</h1>"), broker.StandingUnclear},
		{page(400, "<p>redirect_uri did not match any of those that are registered"), broker.StandingRedirect},
		{page(400, `{"error":"redirect_uri_mismatch"}`), broker.StandingRedirect},
		{page(403, `blocked: /oauth/authorize?redirect_uri=https%3A%2F%2Fbroker.test`), broker.StandingUnclear},
		{page(400, `invalid_client: client is invalid`), broker.StandingClient},
		{page(503, "<h1>redirect_uri did"), broker.StandingUnasked},
	} {
		s.Upstream.Reset()
		s.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer { return c.answer })
		p, err := s.Broker.ProbeAuthorize(t.Context(), "acme")
		if err != nil || p.Standing != c.want {
			t.Errorf("%+v: %+v, %v; want %s", c.answer, p, err, c.want)
		}
		calls := s.Upstream.Calls()
		if len(calls) != 1 || calls[0].Kind != brokertest.Authorize || calls[0].Query.Get("redirect_uri") != back {
			t.Errorf("%+v: %d calls", c.answer, len(calls))
		} else if text := fmt.Sprint(calls[0]); strings.Contains(text, brokertest.Sentinel) {
			t.Error("the secret is in the address of a page")
		}
	}
}

// TestProbeSendsNothing where no sign-in could begin.
func TestProbeSendsNothing(t *testing.T) {
	for _, o := range []brokertest.Options{
		{Config: func(c *broker.Config) { c.Secrets = broker.Env{Getenv: func(string) string { return "" }} }},
		{Config: func(c *broker.Config) { c.Services = []string{"acme"} }},
		{Config: func(c *broker.Config) {
			c.Secrets = &broker.Cache{Store: &versions{current: client("id", "s", "other.example")}}
		}},
		{Config: func(c *broker.Config) { c.Secrets = &broker.Cache{Store: &versions{err: errors.New("down")}} }},
	} {
		s := brokertest.New(t, o)
		for _, ask := range []func(context.Context, string) (*broker.Probe, error){s.Broker.Probe, s.Broker.ProbeAuthorize} {
			if p, err := ask(t.Context(), "github"); err == nil {
				t.Errorf("it asked: %+v", p)
			}
		}
		if n := len(s.Upstream.Calls()); n != 0 {
			t.Errorf("%d calls", n)
		}
	}
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.ConnectTo = map[string]string{"auth.acme.example:443": "127.0.0.1:1"}
	}})
	if p, err := s.Broker.Probe(t.Context(), "acme"); err != nil || p.Standing != broker.StandingUnasked || p.Cause == nil {
		t.Errorf("nobody listens: %+v, %v", p, err)
	}
}

// TestBegan: a consent page's cookie tells one broker from another.
func TestBegan(t *testing.T) {
	s, other := brokertest.New(t, brokertest.Options{}), brokertest.New(t, brokertest.Options{})
	values, err := s.Broker.SealFlows(1)
	if err != nil {
		t.Fatal(err)
	}
	if s.Broker.Began(&http.Cookie{Name: brokertest.FlowCookie + "AAAAAAAAAAAAAAAAAAAAAA", Value: values[0]}) {
		t.Error("a cookie under another name is taken")
	}
	b := s.Browser()
	p := b.Begin(t, &brokertest.Ask{Service: "acme"})
	found := 0
	for _, c := range p.Cookies(brokertest.FlowCookie) {
		found++
		s.Clock.Advance(time.Hour) // its age is another question
		if !s.Broker.Began(c) || other.Broker.Began(c) {
			t.Errorf("here %v, at another broker %v", s.Broker.Began(c), other.Broker.Began(c))
		}
	}
	if found != 1 {
		t.Errorf("%d cookies", found)
	}
}

// tokenFaults are an instance's tokens with one fault each, and what is said of it.
func tokenFaults(s *brokertest.Server) map[string]func(h map[string]any, c *broker.Claims) {
	now := s.Clock.Now()
	return map[string]func(h map[string]any, c *broker.Claims){
		"":                               func(map[string]any, *broker.Claims) {},
		`names the key "i2"`:             func(h map[string]any, _ *broker.Claims) { h["kid"] = "i2" },
		"names no key":                   func(h map[string]any, _ *broker.Claims) { delete(h, "kid") },
		"for another broker":             func(_ map[string]any, c *broker.Claims) { c.Audience = jwt.ClaimStrings{"https://Broker.test"} },
		"ended on 2026-11-30":            func(_ map[string]any, c *broker.Claims) { c.ExpiresAt = jwt.NewNumericDate(now.Add(-24 * time.Hour)) },
		"has not come yet by this clock": func(_ map[string]any, c *broker.Claims) { c.IssuedAt = jwt.NewNumericDate(now.Add(5 * time.Minute)) },
		"longer than 90 days": func(_ map[string]any, c *broker.Claims) {
			c.ExpiresAt = jwt.NewNumericDate(now.Add(91 * 24 * time.Hour))
		},
		"does not say from when":       func(_ map[string]any, c *broker.Claims) { c.ExpiresAt = nil },
		"among those that are refused": func(_ map[string]any, c *broker.Claims) { c.ID = "stolen" },
		"not in their canonical form":  func(_ map[string]any, c *broker.Claims) { c.Origins = []string{"https://Chat.test"} },
		"lacks an id":                  func(_ map[string]any, c *broker.Claims) { c.ID = "" },
	}
}

// TestExplainToken: each fault is named, and nothing is taken here that a request's check
// turns away.
func TestExplainToken(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.Refused, c.InstanceRate = []string{"stolen"}, -1 }})
	for want, edit := range tokenFaults(s) {
		now := s.Clock.Now()
		c := &broker.Claims{Origins: []string{brokertest.Instance}, RegisteredClaims: jwt.RegisteredClaims{
			Issuer: "chat", Audience: jwt.ClaimStrings{s.URL}, ID: "j", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour)),
		}}
		tok := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
		tok.Header["kid"] = "i1"
		edit(tok.Header, c)
		text, err := tok.SignedString(s.InstanceKey())
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Broker.ExplainToken(text)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: it says %v", want, err)
		}
		p, perr := s.PostJSON("/api/refresh", text, "{")
		if perr != nil || (p.Status == http.StatusUnauthorized) != (err != nil) {
			t.Errorf("%q: a request is answered %d, %v", want, p.Status, perr)
		}
	}
	var many []string
	for i := range 64 {
		many = append(many, fmt.Sprintf("https://chat%d.%s.test", i, strings.Repeat("a", 60)+"."+strings.Repeat("b", 60)))
	}
	long := s.Token(many...)
	_, err := s.Broker.ExplainToken(long)
	if p, perr := s.PostJSON("/api/refresh", long, "{"); err == nil || perr != nil || p.Status != http.StatusUnauthorized {
		t.Errorf("a token of %d bytes: %v, and a request %d, %v", len(long), err, p.Status, perr)
	}
	good := s.Token()
	cut := good[:len(good)-8]
	for text, want := range map[string]string{cut: "its signature is not by", "": "is not a token", "a.b.c": "is not a token", strings.Repeat("x", 9000): "is not a token"} {
		if _, err := s.Broker.ExplainToken(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	none := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.InstanceKeys = nil }})
	if _, err := none.Broker.ExplainToken(good); err == nil || !strings.Contains(err.Error(), "no instance key is configured") {
		t.Errorf("without keys: %v", err)
	}
}

// FuzzExplainToken: it takes what a request's check takes and nothing else, and what it says
// of the rest repeats nothing of it but the name of a key.
func FuzzExplainToken(f *testing.F) {
	s, err := brokertest.Start(brokertest.Options{Config: func(c *broker.Config) { c.InstanceRate = -1 }})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	for _, text := range []string{s.Token(), s.Token()[1:], "", "..", "e30.e30.", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJFZERTQSIsImtpZCI6ImkxIn0.e30.AA"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, err := s.Broker.ExplainToken(text)
		r := httptest.NewRequest(http.MethodPost, "/api/refresh", strings.NewReader("{"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", "Bearer "+text)
		w := httptest.NewRecorder()
		s.Broker.ServeHTTP(w, r)
		if (err != nil) != (w.Code == http.StatusUnauthorized) {
			t.Errorf("it says %v, and a request is answered %d", err, w.Code)
		}
		if err != nil && (err.Error() == "" || len(err.Error()) > 300 || len(text) > 40 && strings.Contains(err.Error(), text)) {
			t.Errorf("it says %q", err)
		}
	})
}
