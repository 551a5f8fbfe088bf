package broker_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// redeems refreshes once with the provider's answer.
func redeems(t *testing.T, s *brokertest.Server, service string, a *brokertest.Answer) *refreshed {
	t.Helper()
	answers(s, a)
	s.Upstream.Reset()
	r := redeem(t, s, service, live(s, service))
	if n := s.Upstream.Secret(); n != 1 {
		t.Errorf("%d requests, want 1", n)
	}
	return r
}

// classed is redeems where a failure is what is right.
func classed(t *testing.T, service string, a *brokertest.Answer, want string) *refreshed {
	t.Helper()
	r := redeems(t, brokertest.New(t, brokertest.Options{}), service, a)
	if got := r.outcome(); got != want {
		t.Errorf("%s answered %d %s: %s, want %s", service, a.Status, a.Body, got, want)
	}
	return r
}

// Lost pair: the broker's half. What becomes of the answer afterwards is the sidecar's.

var _ = reported("case_013", func(t *testing.T) { // the answer never arrives; the old token is refused from then on
	s := brokertest.New(t, brokertest.Options{})
	wrapped := live(s, "acme")
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Refresh {
			return raw(reset)
		}
		return nil
	})
	r := redeem(t, s, "acme", wrapped)
	if r.outcome() != "temporary:no_answer" { // distinct from "server": it may have rotated
		t.Errorf("a lost answer: %s", r.outcome())
	}
	s.Upstream.SetAnswer(nil) // the caller tries once more: a provider with a grace serves it
	if got := redeem(t, s, "acme", wrapped).outcome(); got != "ok" {
		t.Errorf("once more: %s", got)
	}
})

var _ = reported("case_015", func(t *testing.T) { // a 400 or 401 counts as permanent, whatever it says
	classed(t, "acme", jsonAnswer(400, `{"error":"invalid_request"}`), "temporary:unknown")
	classed(t, "acme", jsonAnswer(401, `{"error":"temporarily_unavailable"}`), "temporary:unknown")
	classed(t, "acme", answer(401, "text/plain", "Unauthorized"), "temporary:not_json")
})

// Refresh omits or rotates the token: the parser's half.

// keeps fails unless the refreshed pair keeps the very wrap that was redeemed.
func keeps(t *testing.T, a *brokertest.Answer) {
	t.Helper()
	s := brokertest.New(t, brokertest.Options{})
	answers(s, a)
	wrapped := live(s, "acme")
	r := redeem(t, s, "acme", wrapped)
	if r.Answer == nil || r.Answer.Secret.Reveal() != "at2" || !r.Answer.Same || r.Answer.Refresh.Reveal() != wrapped {
		t.Errorf("%s: %s %+v: want the old refresh token", a.Body, r.outcome(), r.Answer)
	}
}

var _ = reported("case_017", func(t *testing.T) { // no refresh token in the answer: the old one is lost
	for _, more := range []string{``, `,"refresh_token":""`, `,"refresh_token":null`, `,"refresh_token":false`} {
		keeps(t, jsonAnswer(200, `{"access_token":"at2","token_type":"Bearer","expires_in":3600`+more+`}`))
	}
	// The very same one comes back: nothing new either.
	s := brokertest.New(t, brokertest.Options{})
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		return jsonAnswer(200, `{"access_token":"at2","refresh_token":"`+c.Form.Get("refresh_token")+`"}`)
	})
	wrapped := live(s, "acme")
	if r := redeem(t, s, "acme", wrapped); r.Answer == nil || !r.Answer.Same || r.Answer.Refresh.Reveal() != wrapped {
		t.Errorf("the same token again: %+v", r.Answer)
	}
	answers(s, jsonAnswer(200, `{"access_token":"at2","refresh_token":"rt-other"}`))
	if r := redeem(t, s, "acme", wrapped); r.Answer == nil || r.Answer.Same || r.Answer.Refresh.Reveal() == wrapped {
		t.Errorf("another token: %+v", r.Answer)
	}
})

var _ = reported("case_019", func(t *testing.T) { // the same, in a form
	keeps(t, answer(200, "application/x-www-form-urlencoded", "access_token=at2&expires_in=3600"))
	keeps(t, answer(200, "application/x-www-form-urlencoded", "access_token=at2&expires_in=3600&refresh_token="))
})

// Expiry.

// expires fails unless the answer is a pair with that lifetime.
func expires(t *testing.T, a *brokertest.Answer, want int64) {
	t.Helper()
	r := redeems(t, brokertest.New(t, brokertest.Options{}), "acme", a)
	if r.Answer == nil || r.Answer.ExpiresIn != want {
		t.Errorf("%s: %s %+v, want %d s", a.Body, r.outcome(), r.Answer, want)
	}
}

var _ = reported("case_021", func(t *testing.T) { // null fails the whole exchange
	expires(t, jsonAnswer(200, `{"access_token":"at","expires_in":null}`), 0)
	s := brokertest.New(t, brokertest.Options{})
	answers(s, jsonAnswer(200, `{"access_token":"at","expires_in":null}`))
	if out := s.Connect(t, brokertest.Ask{Service: "acme"}); out.Secret.Reveal() != "at" || out.ExpiresIn != 0 {
		t.Errorf("an exchange: %+v", out)
	}
})

var _ = reported("case_023", func(t *testing.T) { // none means for ever
	expires(t, jsonAnswer(200, `{"access_token":"at","refresh_token":"rt"}`), 0)
})

var _ = reported("case_025", func(t *testing.T) { // a string breaks the number
	expires(t, jsonAnswer(200, `{"access_token":"at","expires_in":"3599","ext_expires_in":"3599"}`), 3599)
})

var _ = reported("case_027", func(t *testing.T) { // a form is read another way than JSON
	expires(t, answer(200, "application/x-www-form-urlencoded", "access_token=at&expires_in=28800&refresh_token=rt"), 28800)
	expires(t, jsonAnswer(200, `{"access_token":"at","expires_in":28800,"refresh_token":"rt"}`), 28800)
})

var _ = reported("case_031", func(t *testing.T) { // the server's time is held against a wrong clock
	for _, off := range []time.Duration{-2 * time.Hour, 0, 2 * time.Hour} {
		s := brokertest.New(t, brokertest.Options{})
		server := s.Clock.Now().Add(off)
		for _, body := range []string{
			fmt.Sprintf(`{"access_token":"at","expires_in":3600,"expires_at":%d}`, server.Add(-time.Hour).Unix()),
			fmt.Sprintf(`{"access_token":"at","expires_at":%q}`, server.Add(time.Hour).Format(time.RFC3339)),
			fmt.Sprintf(`{"access_token":"at","expires_at":%d}`, server.Add(time.Hour).Unix()),
		} {
			r := redeems(t, s, "acme", &brokertest.Answer{Header: http.Header{"Date": {server.UTC().Format(http.TimeFormat)}}, Body: body})
			if r.Answer == nil || r.Answer.ExpiresIn != 3600 {
				t.Errorf("a clock that is off by %v, %s: %+v, want 3600 s", off, body, r.Answer)
			}
		}
	}
})

// Errors inside HTTP 200.

var _ = reported("case_033", func(t *testing.T) { // GitHub's dead token, filed as passing
	r := classed(t, "github", jsonAnswer(200, `{"error":"bad_refresh_token","error_description":"The refresh token passed is incorrect or expired."}`), "dead:bad_refresh_token")
	if strings.Contains(r.Body, "incorrect or expired") {
		t.Errorf("the provider's words are passed on: %s", r.Body)
	}
})

var _ = reported("case_035", func(t *testing.T) { // an error payload taken for a token
	classed(t, "github", jsonAnswer(200, `{"error":"bad_refresh_token","access_token":"at"}`), "dead:bad_refresh_token")
	for _, v := range []string{`""`, `null`, `{}`, `[]`, `0`, `true`, `" "`, `"a b"`, `"\u00e9"`, `"` + strings.Repeat("a", 8193) + `"`} {
		r := redeems(t, brokertest.New(t, brokertest.Options{}), "acme", jsonAnswer(200, `{"access_token":`+v+`}`))
		if r.Answer != nil {
			t.Errorf("access_token %.40s is taken", v)
		}
	}
})

var _ = reported("case_037", func(t *testing.T) { // a used code answers 200 too
	s := brokertest.New(t, brokertest.Options{})
	answers(s, jsonAnswer(200, `{"error":"bad_verification_code"}`))
	if got := exchangeCode(t, s, "github"); got != "provider" {
		t.Errorf("outcome %q", got)
	}
})

// Bodies that are no JSON, or odd.

var _ = reported("case_039", func(t *testing.T) { // an nginx page taken for an OAuth error
	r := classed(t, "acme", answer(502, "text/html", "<html><h1>502 Bad Gateway</h1>"), "temporary:server")
	if strings.Contains(r.Body, "<") {
		t.Errorf("HTML in the answer: %s", r.Body)
	}
})

var _ = reported("case_041", func(t *testing.T) { // HTML that says it is JSON
	r := classed(t, "acme", jsonAnswer(200, "<!DOCTYPE html>…"), "temporary:not_json")
	if strings.Contains(r.Body, "DOCTYPE") {
		t.Errorf("HTML in the answer: %s", r.Body)
	}
})

var _ = reported("case_043", func(t *testing.T) { // a wrong code gives a 500 page
	s := brokertest.New(t, brokertest.Options{})
	answers(s, answer(500, "text/html", "<html>oops"))
	if got := exchangeCode(t, s, "acme"); got != "provider" {
		t.Errorf("outcome %q", got)
	}
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "temporary:server" {
		t.Errorf("a refresh: %s", got)
	}
})

// Temporary or dead.

var _ = reported("case_045", func(t *testing.T) { // any failure deletes the connection
	classed(t, "acme", jsonAnswer(503, `{"error":"invalid_grant"}`), "temporary:server")
	classed(t, "acme", raw(reset), "temporary:no_answer")
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { // a blank secret
		c.Secrets = broker.Env{Getenv: func(name string) string { return map[string]string{"LCHAT_OAUTH_ACME_CLIENT_ID": "id"}[name] }}
	}})
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "misconfigured:no_client" || s.Upstream.Secret() != 0 {
		t.Errorf("a blank secret: %s, %d requests", got, s.Upstream.Secret())
	}
})

var _ = reported("case_047", func(t *testing.T) { // a bare 502 for everything
	dead := classed(t, "acme", jsonAnswer(400, `{"error":"invalid_grant"}`), "dead:invalid_grant")
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.UpstreamTimeout = 100 * time.Millisecond }})
	slow := redeems(t, s, "acme", raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
	if slow.Class != broker.Temporary || dead.Status == slow.Status {
		t.Errorf("a time-out: %s at %d; dead at %d", slow.outcome(), slow.Status, dead.Status)
	}
	for _, r := range []*refreshed{dead, slow} {
		noStore(t, r.Header)
		var v map[string]any
		if err := json.Unmarshal([]byte(r.Body), &v); err != nil || v["class"] == nil {
			t.Errorf("the answer is %s", r.Body)
		}
	}
})

var _ = reported("case_049", func(t *testing.T) { // a dead token under an unknown code, tried 548 times
	// Unknown here, so the caller waits, and after some in a row asks; where the provider is
	// known for it, its manifest lists the code.
	classed(t, "acme", jsonAnswer(400, `{"error":"invalid_request"}`), "temporary:unknown")
	s := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
		if id == "acme" {
			oauthOf(m)["dead"] = []any{"invalid_grant", "invalid_request", "Invalid Token!"}
			oauthOf(m)["error_at"] = []any{"reason", "error"}
		}
	}})
	if got := redeems(t, s, "acme", jsonAnswer(400, `{"error":"invalid_request"}`)).outcome(); got != "dead:invalid_request" {
		t.Errorf("listed: %s", got)
	}
	if got := redeems(t, s, "acme", jsonAnswer(400, `{"reason":"Invalid Token!","error":"x"}`)).outcome(); got != "dead:Invalid Token!" {
		t.Errorf("a code with a space: %s", got)
	}
})

var _ = reported("case_051", func(t *testing.T) { // HubSpot: another app's secret is shown as an expired token
	classed(t, "hubspot", jsonAnswer(400, `{"status":"BAD_REFRESH_TOKEN","message":"refresh token was not issued to this client"}`), "misconfigured:BAD_REFRESH_TOKEN")
	classed(t, "hubspot", jsonAnswer(400, `{"error":"invalid_grant","error_description":"the token was not issued to this client","message":"x"}`), "misconfigured:invalid_grant")
	classed(t, "hubspot", jsonAnswer(400, `{"error":"invalid_grant","status":"BAD_REFRESH_TOKEN","message":"missing or unknown refresh token"}`), "dead:BAD_REFRESH_TOKEN")
})

// 429.

var _ = reported("case_053", func(t *testing.T) { // Retry-After ignored, and the person signed out
	r := classed(t, "acme", &brokertest.Answer{Status: 429, Header: http.Header{"Retry-After": {"30"}}}, "temporary:rate_limited")
	if r.Status != 429 || r.Retry != 30 || r.Header.Get("Retry-After") != "30" {
		t.Errorf("%d, retry_after %d, Retry-After %q", r.Status, r.Retry, r.Header.Get("Retry-After"))
	}
})

var _ = reported("case_055", func(t *testing.T) { // a date in place of seconds
	h := http.Header{"Retry-After": {"Wed, 21 Oct 2026 07:28:00 GMT"}, "Date": {"Wed, 21 Oct 2026 07:27:15 GMT"}}
	if r := classed(t, "acme", &brokertest.Answer{Status: 429, Header: h}, "temporary:rate_limited"); r.Retry != 45 {
		t.Errorf("retry_after %d, want 45", r.Retry)
	}
})

var _ = reported("case_057", func(t *testing.T) { // a limit that arrives as 403 with HTML
	classed(t, "acme", answer(403, "text/html", "Rate limit"), "temporary:not_json")
})

// How the client authenticates.

// oneStyle fails unless each of two calls makes one request in the declared style.
func oneStyle(t *testing.T, first, second *brokertest.Answer) {
	t.Helper()
	for _, style := range []string{"post", "basic"} {
		s := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
			if id == "acme" {
				oauthOf(m)["client_auth"] = style
			}
		}})
		for _, a := range []*brokertest.Answer{first, second} {
			answers(s, a)
			s.Upstream.Reset()
			exchangeCode(t, s, "acme")
			redeem(t, s, "acme", live(s, "acme"))
			calls := s.Upstream.Calls(brokertest.Token, brokertest.Refresh)
			if len(calls) != 2 {
				t.Fatalf("%s: %d requests, want 2", style, len(calls))
			}
			for _, c := range calls {
				if basic := c.Header.Get("Authorization") != ""; basic != (style == "basic") || c.Form.Has("client_secret") == basic {
					t.Errorf("%s: Basic %v, in the body %v", style, basic, c.Form.Has("client_secret"))
				}
			}
		}
	}
}

var _ = reported("case_059", func(t *testing.T) { // the first probe burns the code
	oneStyle(t, jsonAnswer(401, `{"error":"unauthorized"}`), jsonAnswer(400, `{"error":"invalid_grant"}`))
})

var _ = reported("case_061", func(t *testing.T) { // a style learnt from one call is used for the next
	oneStyle(t, jsonAnswer(200, `{"access_token":"at"}`), jsonAnswer(400, `{"error":"invalid_grant"}`))
})

var _ = reported("case_063", func(t *testing.T) { // a secret with special characters, not encoded
	s := brokertest.New(t, brokertest.Options{
		Edit: func(id string, m map[string]any) {
			if id == "acme" {
				oauthOf(m)["client_auth"] = "basic"
			}
		},
		Config: func(c *broker.Config) {
			c.Secrets = &broker.Cache{Store: &versions{current: client("1PpG/Q 1", "z/t+b:X=", acmeHosts)}, Now: c.Now}
		},
	})
	redeem(t, s, "acme", live(s, "acme"))
	c := s.Upstream.Calls(brokertest.Refresh)[0]
	user, pass, _ := (&http.Request{Header: c.Header}).BasicAuth()
	if user != "1PpG%2FQ+1" || pass != "z%2Ft%2Bb%3AX%3D" || c.ClientID != "1PpG/Q 1" || c.ClientSecret != "z/t+b:X=" {
		t.Errorf("sent %q %q, which reads %q %q", user, pass, c.ClientID, c.ClientSecret)
	}
})

var _ = reported("case_065", func(t *testing.T) { // the code is gone with the first, failed probe
	oneStyle(t, jsonAnswer(400, `{"error":"invalid_request"}`), jsonAnswer(400, `{"error":"invalid_grant"}`))
})

// How the request is encoded.

var _ = reported("case_079", func(t *testing.T) { // "+" and "=" in a token, not encoded
	for _, rt := range []string{"1S4aR+9K==", "a%2Fb/c&d=e", "~!*'()", "%", "a;b"} {
		for _, enc := range []string{"form", "json"} {
			s := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
				if id == "acme" {
					oauthOf(m)["token_body"] = enc
				}
			}})
			redeem(t, s, "acme", s.Broker.Wrap("acme", brokertest.Instance, rt))
			if got := s.Upstream.Calls(brokertest.Refresh)[0]; got.Form.Get("refresh_token") != rt || len(got.Form["refresh_token"]) != 1 {
				t.Errorf("%s: %q arrived as %q (%s)", enc, rt, got.Form["refresh_token"], got.Body)
			}
		}
	}
})

var _ = reported("case_081", func(t *testing.T) { // DNSimple wants the state again
	s := brokertest.New(t, brokertest.Options{})
	var sent atomic.Value
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Authorize {
			sent.Store(c.Query.Get("state"))
			return nil
		}
		if c.Form.Get("state") == "" || c.Form.Get("state") != sent.Load() {
			return jsonAnswer(400, `{"error":"invalid_request","error_description":"Invalid \"state\""}`)
		}
		return jsonAnswer(200, `{"access_token":"at","token_type":"Bearer","scope":null,"account_id":1}`)
	})
	if out := s.Connect(t, brokertest.Ask{Service: "dnsimple"}); out.Error != "" || out.Secret.Reveal() != "at" || !out.Refresh.IsZero() {
		t.Errorf("outcome %+v", out)
	}
	s.Upstream.SetAnswer(nil)
	s.Connect(t, brokertest.Ask{Service: "acme"})
	if c := s.Upstream.Calls(brokertest.Token); c[len(c)-1].Form.Has("state") {
		t.Error("the state goes to a provider that did not ask for it")
	}
})

// The shape of a token answer.

var _ = reported("case_111", func(t *testing.T) { // Slack's user token stands below authed_user
	edit := func(id string, m map[string]any) {
		if id == "acme" {
			o := oauthOf(m)
			o["token_root"], o["token_type"], o["token_keep"], o["dead"] = "authed_user", []any{"user"}, []any{"team.id"}, []any{"invalid_refresh_token"}
		}
	}
	s := brokertest.New(t, brokertest.Options{Edit: edit})
	body := `{"ok":true,"access_token":"xoxb-bot","token_type":"bot","team":{"id":"T1"},"authed_user":{"access_token":"xoxe.xoxp-1","refresh_token":"xoxe-1","expires_in":43200,"token_type":"user"}}`
	r := redeems(t, s, "acme", jsonAnswer(200, body))
	if r.Answer == nil || r.Answer.Secret.Reveal() != "xoxe.xoxp-1" || r.Answer.ExpiresIn != 43200 || r.Answer.Same || r.Answer.Keep["team.id"] != "T1" {
		t.Errorf("%s %+v", r.outcome(), r.Answer)
	}
	// On a refresh it stands at the top.
	r = redeems(t, s, "acme", jsonAnswer(200, `{"ok":true,"access_token":"xoxe.xoxp-2","refresh_token":"xoxe-2","expires_in":43200,"token_type":"user"}`))
	if r.Answer == nil || r.Answer.Secret.Reveal() != "xoxe.xoxp-2" {
		t.Errorf("a refresh: %s", r.outcome())
	}
	if got := redeems(t, s, "acme", jsonAnswer(200, `{"ok":false,"error":"invalid_refresh_token"}`)).outcome(); got != "dead:invalid_refresh_token" {
		t.Errorf("dead: %s", got)
	}
	// Only the bot's: not the person's token.
	if got := redeems(t, s, "acme", jsonAnswer(200, `{"ok":true,"access_token":"xoxb-bot","token_type":"bot","authed_user":{"id":"U1"}}`)); got.Answer != nil {
		t.Error("the bot's token is taken for the person's")
	}
})

var _ = reported("case_113", func(t *testing.T) { // a token that does not expire is refreshed all the same
	s := brokertest.New(t, brokertest.Options{})
	answers(s, jsonAnswer(200, `{"access_token":"gho_1","token_type":"bearer","scope":""}`))
	out := s.Connect(t, brokertest.Ask{Service: "github"})
	if out.Error != "" || !out.Refresh.IsZero() || out.ExpiresIn != 0 {
		t.Errorf("outcome %+v", out)
	}
	// Whoever asks anyhow is refused before the provider is, and is not told to reconnect.
	s.Upstream.Reset()
	if got := redeem(t, s, "dnsimple", live(s, "dnsimple")); got.Status != 400 || got.outcome() != "no_refresh" || s.Upstream.Secret() != 0 {
		t.Errorf("a service without refresh tokens: %d %s, %d requests", got.Status, got.outcome(), s.Upstream.Secret())
	}
})

// Single services.

var _ = reported("case_117", func(t *testing.T) { // Linear's tokens live a day
	s := brokertest.New(t, brokertest.Options{})
	r := redeems(t, s, "linear", jsonAnswer(200, `{"access_token":"lin2","refresh_token":"rt2","expires_in":86399,"token_type":"Bearer","scope":"read write"}`))
	if r.Answer == nil || r.Answer.ExpiresIn != 86399 || r.Answer.Same || len(r.Answer.Scopes) != 2 {
		t.Errorf("%s %+v", r.outcome(), r.Answer)
	}
	if c := s.Upstream.Calls(brokertest.Refresh)[0]; c.Host != "api.linear.app" || c.Form.Get("client_secret") == "" {
		t.Errorf("the request went to %s with client_secret %v", c.Host, c.Form.Has("client_secret"))
	}
})

var _ = reported("case_119", func(t *testing.T) { // Stripe: a live key with a test code
	a := jsonAnswer(400, `{"error":"invalid_grant","error_description":"Passed in livemode API key but authorization code only supports returning test keys"}`)
	classed(t, "stripe", a, "misconfigured:invalid_grant")
	s := brokertest.New(t, brokertest.Options{})
	answers(s, a)
	if got := exchangeCode(t, s, "stripe"); got != "provider" || !strings.Contains(s.Logs(), `"misconfigured:invalid_grant"`) {
		t.Errorf("an exchange: %q", got)
	}
	classed(t, "stripe", jsonAnswer(400, `{"error":"invalid_grant","error_description":"This refresh token has been revoked"}`), "dead:invalid_grant")
})

var _ = reported("case_121", func(t *testing.T) { // DNSimple's codes have changed
	for code, logged := range map[string]string{
		`401 {"error":"invalid_client"}`: "misconfigured:invalid_client", `400 {"error":"invalid_grant"}`: "dead:invalid_grant", `400 {"error":"invalid_request"}`: "temporary:unknown",
	} {
		s := brokertest.New(t, brokertest.Options{})
		var status int
		var body string
		fmt.Sscanf(code, "%d", &status)
		_, body, _ = strings.Cut(code, " ")
		answers(s, jsonAnswer(status, body))
		if got := exchangeCode(t, s, "dnsimple"); got != "provider" || s.Upstream.Count(brokertest.Token) != 1 || !strings.Contains(s.Logs(), `"`+logged+`"`) {
			t.Errorf("%s: %q, %d requests", code, got, s.Upstream.Count(brokertest.Token))
		}
	}
})

// The cache of secrets.

var _ = reported("case_131", func(t *testing.T) { // the old value is kept until a restart
	store := &versions{current: client("id", "old", acmeHosts)}
	valid := "old"
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.Secrets = &broker.Cache{Store: store, Now: c.Now} }})
	s.Upstream.SetAnswer(knows(func() string { return valid }))
	redeem(t, s, "acme", live(s, "acme"))
	store.turn(client("id", "new", acmeHosts))
	valid = "new"
	s.Upstream.Reset()
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" || s.Upstream.Secret() != 2 {
		t.Errorf("%s, %d requests: want the new secret after one refusal", got, s.Upstream.Secret())
	}
	if n, _ := store.reads(); n != 2 {
		t.Errorf("%d reads, want 2", n)
	}
})

var _ = reported("case_133", func(t *testing.T) { // the time is up, and the old value goes on being served
	store := &versions{current: client("id", "old", acmeHosts)}
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.Secrets = &broker.Cache{Store: store, Now: c.Now} }})
	var valid atomic.Value
	valid.Store("old")
	s.Upstream.SetAnswer(knows(func() string { return valid.Load().(string) }))
	for i, tt := range []struct {
		turn  string
		after time.Duration
		err   error
		reads int
		send  string // with which secret the first request goes out
	}{
		{after: 0, reads: 1, send: "old"},
		{after: 4*time.Minute + 59*time.Second, reads: 1, send: "old"},
		{turn: "new", after: time.Second, reads: 2, send: "new"},
		{after: 5 * time.Minute, reads: 3, send: "new"},                               // unchanged
		{after: 5 * time.Minute, err: errors.New("throttled"), reads: 4, send: "new"}, // not read: what is known
		{after: time.Second, err: errors.New("throttled"), reads: 4, send: "new"},     // and not asked again at once
		{after: 3 * time.Second, turn: "newest", reads: 5, send: "newest"},            // but soon
		{after: 5 * time.Minute, err: broker.ErrNoClient, reads: 6},                   // taken away: not offered
		{after: 31 * time.Second, turn: "back", reads: 7, send: "back"},               // and there again
	} {
		if tt.turn != "" {
			store.turn(client("id", tt.turn, acmeHosts))
			valid.Store(tt.turn)
		}
		store.fail(tt.err)
		s.Clock.Advance(tt.after)
		s.Upstream.Reset()
		got := redeem(t, s, "acme", live(s, "acme")).outcome()
		if tt.send == "" {
			if got != "misconfigured:no_client" || s.Upstream.Secret() != 0 {
				t.Errorf("step %d: %s", i, got)
			}
		} else if c := s.Upstream.Calls(brokertest.Refresh); len(c) != 1 || c[0].ClientSecret != tt.send || got != "ok" {
			t.Errorf("step %d: %s, %d requests", i, got, len(c))
		}
		if n, _ := store.reads(); n != tt.reads {
			t.Errorf("step %d: %d reads, want %d", i, n, tt.reads)
		}
	}
})

// Secrets in logs.

var _ = reported("case_135", func(t *testing.T) { // a token answer is logged at debug
	s := brokertest.New(t, brokertest.Options{})
	redeem(t, s, "acme", live(s, "acme"))
	s.Connect(t, brokertest.Ask{Service: "acme"})
	if log := s.Logs(); strings.Contains(log, brokertest.Sentinel) || strings.Contains(log, "access_token") || !strings.Contains(log, `"status":200`) {
		t.Errorf("the log: %s", log)
	}
})

var _ = reported("case_137", func(t *testing.T) { // a failure's body holds the token, and is logged
	s := brokertest.New(t, brokertest.Options{})
	r := redeems(t, s, "acme", jsonAnswer(400, `{"error":"invalid_grant","refresh_token":"`+brokertest.Sentinel+`"}`))
	if said := s.Logs() + s.Metrics() + r.Body; strings.Contains(said, brokertest.Sentinel) || !strings.Contains(said, "invalid_grant") {
		t.Errorf("the broker said %s", said)
	}
	// A code that is not on the list stays where it is.
	r = redeems(t, s, "acme", jsonAnswer(400, `{"error":"`+brokertest.Sentinel+`"}`))
	if said := s.Logs() + r.Body; strings.Contains(said, brokertest.Sentinel) || r.outcome() != "temporary:unknown" {
		t.Errorf("the broker said %s", said)
	}
})
