package broker_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// TestSpent holds each way in which a provider can answer a refresh against what the caller
// learns of the token: whether it may have been redeemed.
func TestSpent(t *testing.T) {
	const fresh = `"access_token":"ghu_2","refresh_token":"ghr_2"`
	long := strings.Repeat("a", 8193)
	drop := func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }
	cut := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "500")
		w.Write([]byte(`{"access_token":"ghu_2"`))
	}
	for _, c := range []struct {
		name    string
		answer  *brokertest.Answer
		outcome string
		spent   bool
	}{
		{"another token type", jsonAnswer(200, `{`+fresh+`,"token_type":"mac"}`), "misconfigured:token_type", true},
		{"a long access token", jsonAnswer(200, `{"access_token":"`+long+`","refresh_token":"ghr_2"}`), "misconfigured:token_form", true},
		{"a space in the access token", jsonAnswer(200, `{"access_token":"ghu 2","refresh_token":"ghr_2"}`), "misconfigured:token_form", true},
		{"a space in the refresh token", jsonAnswer(200, `{"access_token":"ghu_2","refresh_token":"ghr 2"}`), "misconfigured:token_form", true},
		{"a long refresh token", jsonAnswer(200, `{"access_token":"ghu_2","refresh_token":"`+long+`"}`), "misconfigured:token_form", true},
		{"a number for a refresh token", jsonAnswer(200, `{"access_token":"ghu_2","refresh_token":12345}`), "misconfigured:token_form", true},
		{"a refresh token alone", jsonAnswer(200, `{"refresh_token":"ghr_2"}`), "temporary:no_token", true},
		{"a number for an access token", jsonAnswer(200, `{"access_token":12345}`), "temporary:no_token", true},
		{"cut JSON", jsonAnswer(200, `{`+fresh), "temporary:not_json", true},
		{"a page", answer(200, "text/html", "<html>welcome</html>"), "temporary:not_json", true},
		{"a list", jsonAnswer(200, `[{`+fresh+`}]`), "temporary:not_json", true},
		{"nothing", &brokertest.Answer{Status: 204}, "temporary:not_json", true},
		{"an empty object", jsonAnswer(200, `{}`), "temporary:no_token", true},
		{"accepted, without a pair", jsonAnswer(202, `{"status":"queued"}`), "temporary:no_token", true},
		{"an error beside a pair", jsonAnswer(200, `{`+fresh+`,"error":"odd"}`), "temporary:unknown", true},
		{"a refused client beside a pair", jsonAnswer(200, `{`+fresh+`,"error":"incorrect_client_credentials"}`), "misconfigured:incorrect_client_credentials", true},
		{"a pair at 400", jsonAnswer(400, `{`+fresh+`}`), "temporary:unknown", true},
		{"a pair at 500", jsonAnswer(500, `{`+fresh+`}`), "temporary:server", true},
		{"no reply", raw(drop), "temporary:no_answer", true},
		{"half a reply", raw(cut), "temporary:unreadable", true},
		{"a reply that is too long", jsonAnswer(200, `{`+fresh+`,"x":"`+strings.Repeat("x", 1<<20)+`"}`), "temporary:unreadable", true},

		{"a dead token", jsonAnswer(200, `{"error":"bad_refresh_token"}`), "dead:bad_refresh_token", false},
		{"a code that is not known, in a 200", jsonAnswer(200, `{"error":"odd","access_token":null,"refresh_token":""}`), "temporary:unknown", false},
		{"not ok", jsonAnswer(200, `{"ok":false}`), "temporary:no_token", false},
		{"a refused client", jsonAnswer(200, `{"error":"incorrect_client_credentials"}`), "misconfigured:incorrect_client_credentials", false},
		{"a code that is not known, at 400", jsonAnswer(400, `{"error":"invalid_request"}`), "temporary:unknown", false},
		{"a page at 403", answer(403, "text/html", "<html>no</html>"), "temporary:not_json", false},
		{"a limit", jsonAnswer(429, `{}`), "temporary:rate_limited", false},
		{"an outage", answer(503, "text/html", "<html>soon</html>"), "temporary:server", false},
		{"a gateway's", jsonAnswer(502, `{"message":"x"}`), "temporary:server", false},
		{"elsewhere", &brokertest.Answer{Status: 302, Header: http.Header{"Location": {"https://evil.example/"}}}, "temporary:redirect", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := brokertest.New(t, brokertest.Options{})
			r := redeems(t, s, "github", c.answer)
			if r.outcome() != c.outcome || r.Spent != c.spent || strings.Contains(r.Body, `"spent"`) != c.spent {
				t.Errorf("%s, spent %v; want %s, %v", r.Body, r.Spent, c.outcome, c.spent)
			}
			if strings.Contains(r.Body, "gh") {
				t.Errorf("the answer holds a token: %s", r.Body)
			}
		})
	}
	t.Run("nobody was asked", func(t *testing.T) {
		s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.ConnectTo["github.com:443"] = "127.0.0.1:1" }})
		if r := redeem(t, s, "github", live(s, "github")); r.outcome() != "temporary:unreachable" || r.Spent {
			t.Errorf("%s", r.Body)
		}
	})
	t.Run("too many", func(t *testing.T) {
		s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.InstanceRate = 1 }})
		for range 60 {
			redeem(t, s, "nosuch", live(s, "acme"))
		}
		if r := redeem(t, s, "acme", live(s, "acme")); r.outcome() != "temporary:too_many" || r.Spent {
			t.Errorf("%s", r.Body)
		}
	})
}

// TestRevokeSpent: to end a connection a fresh access token was got, and then the provider
// fails: the refresh token that the caller holds is a used one.
func TestRevokeSpent(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	wrapped := live(s, "github")
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Revoke {
			return &brokertest.Answer{Status: 503}
		}
		return nil
	})
	revoke := func(body map[string]any) string {
		t.Helper()
		p, err := s.PostJSON("/api/revoke", instanceToken(s), body)
		if err != nil {
			t.Fatal(err)
		}
		return p.Body
	}
	if got := revoke(map[string]any{"service": "github", "secret": "gho_1"}); !strings.Contains(got, `"code":"server"`) || strings.Contains(got, "spent") {
		t.Errorf("with an access token: %s", got)
	}
	if got := revoke(map[string]any{"service": "github", "refresh": wrapped}); !strings.Contains(got, `"code":"server"`) || !strings.Contains(got, `"spent":true`) {
		t.Errorf("with a refresh token: %s", got)
	}
}

// TestRevokeNeedsTheConnection: what ends a connection is held, never only known. Of two
// instances' tokens neither ends what the other holds.
func TestRevokeNeedsTheConnection(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.AllowWiderRevoke = true }})
	s.Upstream.SetExtra(map[string]any{"stripe_user_id": "acct_victim"})
	victim := s.Connect(t, brokertest.Ask{Service: "stripe"})
	s.Upstream.SetExtra(map[string]any{"stripe_user_id": "acct_other"})
	other := s.Connect(t, brokertest.Ask{Service: "stripe", ReturnTo: "https://other.test"})
	if victim.Keep["stripe_user_id"] != "acct_victim" || other.Keep["stripe_user_id"] != "acct_other" {
		t.Fatalf("kept %v and %v", victim.Keep, other.Keep)
	}
	mine, theirs := s.Token(), s.Token("https://other.test")
	cli := s.Token("cli:" + strings.Repeat("m", 43))
	before := s.Broker.Wrap("stripe", brokertest.Instance, "rt_before") // of a broker that vouched for nothing
	body := func(secret, refresh, account string) map[string]any {
		b := map[string]any{"service": "stripe", "keep": map[string]string{"stripe_user_id": account}}
		if secret != "" {
			b["secret"] = secret
		}
		if refresh != "" {
			b["refresh"] = refresh
		}
		return b
	}
	for _, c := range []struct {
		name, token string
		body        map[string]any
		status      int
		says        string
	}{
		{"an account's id alone, of a program's token", cli, body("", "", "acct_victim"), 400, "malformed"},
		{"an account's id alone, of another instance", theirs, body("", "", "acct_victim"), 400, "malformed"},
		{"an account's id alone, of its own instance", mine, body("", "", "acct_victim"), 400, "malformed"},
		{"any access token", theirs, body("sk_made_up", "", "acct_victim"), 200, `"revoked":false`},
		{"the other's own wrap", theirs, body("", other.Refresh.Reveal(), "acct_victim"), 400, "malformed"},
		{"the other's own pair", theirs, body(other.Secret.Reveal(), other.Refresh.Reveal(), "acct_victim"), 400, "malformed"},
		{"the victim's wrap under another instance's token", theirs, body("", victim.Refresh.Reveal(), "acct_victim"), 401, "unauthorized"},
		{"a wrap of before", mine, body("", before, "acct_victim"), 200, `"revoked":false`},
		{"no id", mine, map[string]any{"service": "stripe", "refresh": victim.Refresh.Reveal()}, 200, `"revoked":false`},
		{"nothing, where nothing can be ended", mine, map[string]any{"service": "dnsimple"}, 400, "malformed"},
	} {
		s.Upstream.Reset()
		p, err := s.PostJSON("/api/revoke", c.token, c.body)
		if err != nil {
			t.Fatal(err)
		}
		if p.Status != c.status || !strings.Contains(p.Body, c.says) || s.Upstream.Secret() != 0 {
			t.Errorf("%s: %d %s, %d calls", c.name, p.Status, p.Body, s.Upstream.Secret())
		}
	}
	ends := func(what, token, refresh, account string) {
		t.Helper()
		s.Upstream.Reset()
		p, err := s.PostJSON("/api/revoke", token, body("", refresh, account))
		if err != nil {
			t.Fatal(err)
		}
		calls := s.Upstream.Calls(brokertest.Revoke)
		if p.Body != `{"revoked":true}` || len(calls) != 1 || calls[0].Form.Get("stripe_user_id") != account {
			t.Errorf("%s: %d %s, %d calls", what, p.Status, p.Body, len(calls))
		}
	}
	ends("its own", theirs, other.Refresh.Reveal(), "acct_other")

	// What the broker vouches for outlives a renewal, with and without a word of the provider's;
	// a wrap of before gets it by one.
	s.Upstream.SetExtra(map[string]any{"stripe_user_id": "acct_victim"})
	wrap := victim.Refresh.Reveal()
	for _, extra := range []map[string]any{{"stripe_user_id": "acct_victim"}, {}, {"refresh_token": nil}} {
		s.Upstream.SetExtra(extra)
		r := redeem(t, s, "stripe", wrap)
		if r.Answer == nil || r.Answer.Same != (r.Answer.Refresh.Reveal() == wrap) {
			t.Fatalf("%s", r.outcome())
		}
		wrap = r.Answer.Refresh.Reveal()
		ends("after a renewal", mine, wrap, "acct_victim")
	}
	old := live(s, "stripe")
	s.Upstream.SetExtra(map[string]any{"stripe_user_id": "acct_victim", "refresh_token": nil})
	r := redeem(t, s, "stripe", old)
	if r.Answer == nil || r.Answer.Same {
		t.Fatalf("a wrap of before, renewed: %s %+v", r.outcome(), r.Answer)
	}
	ends("a wrap of before, renewed", mine, r.Answer.Refresh.Reveal(), "acct_victim")
	if again := redeem(t, s, "stripe", r.Answer.Refresh.Reveal()); again.Answer == nil || !again.Answer.Same {
		t.Errorf("renewed once more: %s: want the same wrap", again.outcome())
	}
}

// TestRevokeOfAnAddress: what came back in the callback's address the person could have
// written herself, and ends nothing.
func TestRevokeOfAnAddress(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
		if id == "acme" {
			o := oauthOf(m)
			o["callback_keep"] = []string{"realm"}
			o["revoke"] = map[string]string{"style": "deauthorize", "url": "https://auth.acme.example/oauth/revoke", "param": "realm", "reach": "token"}
		}
	}})
	ask := &brokertest.Ask{Service: "acme"}
	b := s.Browser()
	out, err := ask.Open(b.Get(t, b.Approve(t, ask)+"&realm=victim"))
	if err != nil || out.Keep["realm"] != "victim" {
		t.Fatalf("%v %v", out, err)
	}
	s.Upstream.Reset()
	p, err := s.PostJSON("/api/revoke", instanceToken(s), map[string]any{"service": "acme", "secret": out.Secret.Reveal(), "refresh": out.Refresh.Reveal(), "keep": out.Keep})
	if err != nil || !strings.Contains(p.Body, `"revoked":false`) || s.Upstream.Secret() != 0 {
		t.Errorf("%v %v, %d calls", p, err, s.Upstream.Secret())
	}
}
