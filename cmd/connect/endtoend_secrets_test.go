package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// TestSentinelEndToEnd has the programs do, and fail at, what moves a secret, and looks for
// every secret in all that is left of it.
func TestSentinelEndToEnd(t *testing.T) {
	s := newEndCast(t)
	s.settle()
	s.part("a change", s.change)
	s.part("a pair is renewed", s.renewed)
	s.part("the provider says it back", s.saidBack)
	s.part("a renewal fails", s.renewalFails)
	s.part("a power cut while a pair is renewed", s.cutWhileRenewed)
	s.part("the end of a connection", s.revoked)
	s.part("the wrong token for the broker", s.wrongToken)
	s.part("it does not start", s.unstarted)
	s.part("the sentinel", s.sweepAll)
}

// due is a connection whose pair ends so soon that a grant lends it whole.
func due(c *custody.Credential) *custody.Credential {
	x := *c
	x.ExpiresAt = time.Now().Add(10 * time.Second).Unix()
	return &x
}

// renewed reads with a pair that is due: the broker renews it, the provider is shown the new
// one, and the member gets it back.
func (s *endCast) renewed(t *testing.T) {
	const fresh = "rk_test_SENTINELaccess0002"
	s.gives(fresh)
	c := due(s.conn)
	var r *custody.Result
	came := s.touched(t, 1, 0, func() { r = s.ada.sends(s.ada.grants(c, "whoami", `{}`, nil)) })
	if !r.OK || r.Handback == nil {
		t.Fatalf("it is answered %q, with a hand-back: %v", outcome(r), r.Handback != nil)
	}
	if came[0].header.Get("Authorization") != "Bearer "+fresh {
		t.Error("the provider is shown another token than the new one")
	}
	h := new(custody.Handback)
	if err := s.ada.id.OpenMessage(r.Handback, s.helper.Key, nil, h); err != nil {
		t.Fatal(err)
	}
	if err := s.saw(s.mallory.id.OpenMessage(r.Handback, s.helper.Key, nil, new(custody.Handback))); !errors.Is(err, custody.ErrNotMine) {
		t.Errorf("Mallory opens the hand-back: %v", err)
	}
	next, err := c.Take(h)
	if err != nil || next.Pair != 2 || next.Secret.Reveal() != fresh {
		t.Fatalf("the hand-back is not taken: %v", err)
	}
	if next.Refresh.Reveal() != c.Refresh.Reveal() {
		s.hide("the wrap of the second pair", next.Refresh.Reveal(), false)
	}
	s.conn = s.ada.stores(next)
	s.ada.tells(s.helper.Key, &custody.Ack{Credential: next.ID, Pair: next.Pair})
}

// saidBack has the provider repeat the token that it was shown in its answers.
func (s *endCast) saidBack(t *testing.T) {
	pasted := *s.conn
	pasted.Kind, pasted.Secret, pasted.Refresh, pasted.Broker, pasted.ExpiresAt = custody.KindPAT, integrations.NewSecret("rk_test_SENTINELpasted0003"), integrations.Secret{}, "", 0
	s.hide("the pasted key", pasted.Secret.Reveal(), false)
	said := 0
	for _, c := range []*custody.Credential{s.conn, &pasted} {
		for _, x := range []struct {
			status int
			body   string
		}{
			{401, `{"error":{"message":"TOKEN is no key"}}`}, {402, `{"error":{"message":"TOKEN"}}`}, {403, `{"error":{"message":"Bearer TOKEN"}}`},
			{500, `TOKEN`}, {200, `{"id":"TOKEN"}`}, {200, `{"id":"acct_1","TOKEN":`},
		} {
			back := s.provider.says(func(w http.ResponseWriter, r *http.Request) bool {
				said++
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(x.status)
				io.WriteString(w, strings.ReplaceAll(x.body, "TOKEN", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
				return true
			})
			for _, o := range []*endOrder{s.ada.grants(c, "whoami", `{}`, nil), s.ada.grants(c, "create_customer", `{"name":"Ada"}`, nil)} {
				r := s.ada.sends(o)
				if r.OK {
					t.Errorf("%d %s is taken for a good answer to %s", x.status, x.body, o.op)
				}
				r.Handback = nil
				text, err := json.Marshal(r)
				if err != nil {
					t.Fatal(err)
				}
				if found := s.finds(text, false); len(found) != 0 {
					t.Errorf("the answer of %d to %s holds %q", x.status, o.op, found)
				}
			}
			back()
		}
	}
	if said < 24 {
		t.Errorf("the provider answered %d times", said)
	}
}

// renewalFails has the provider refuse to renew, and repeat what it was shown.
func (s *endCast) renewalFails(t *testing.T) {
	for _, x := range []struct {
		status int
		body   string
		want   string
	}{
		{500, "REFRESH SECRET", "temporary"},
		{400, `{"error":"REFRESH","error_description":"SECRET"}`, "temporary"},
		{400, `{"error":"invalid_client","error_description":"REFRESH SECRET"}`, "misconfigured"},
		{200, `{"access_token":7,"refresh_token":"REFRESH"}`, "temporary"},
		{400, `{"error":"invalid_grant","error_description":"REFRESH"}`, "reconnect"},
	} {
		c := s.another()
		said := 0
		s.broker.Upstream.SetAnswer(func(call *brokertest.Call) *brokertest.Answer {
			said++
			return &brokertest.Answer{Status: x.status, Header: http.Header{"Content-Type": {"application/json"}},
				Body: strings.NewReplacer("REFRESH", call.Form.Get("refresh_token"), "SECRET", call.ClientSecret).Replace(x.body)}
		})
		r := s.ada.sends(s.ada.grants(due(c), "whoami", `{}`, nil))
		s.broker.Upstream.SetAnswer(nil)
		if outcome(r) != x.want || said == 0 {
			t.Errorf("%d %s is answered %q, want %q; the provider was asked %d times", x.status, x.body, outcome(r), x.want, said)
		}
	}
}

// another is one more connection of Ada's.
func (s *endCast) another() *custody.Credential {
	return s.ada.connects("stripe", "rk_test_SENTINELaccess"+strings.ToUpper(rand.Text()[:4]))
}

// cutWhileRenewed ends the sidecar while the provider has its refresh token.
func (s *endCast) cutWhileRenewed(t *testing.T) {
	c := s.another()
	asked := s.broker.Upstream.Count(brokertest.Refresh)
	reached, release := make(chan struct{}), make(chan struct{})
	s.broker.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer {
		close(reached)
		<-release
		return nil
	})
	o := s.ada.grants(due(c), "whoami", `{}`, nil)
	s.ada.posts(s.ada.seals(o), time.Time{})
	s.awaits(reached)
	s.sweepFiles(t)
	s.sidecar.kill()
	s.sweepFiles(t)
	s.broker.Upstream.SetAnswer(nil)
	close(release)
	// Another process waits longer for one that died at that than an operation may take.
	s.sidecar = s.starts("one.sock")
	if r := s.ada.result(o.id, 1); outcome(r) != "temporary" || s.broker.Upstream.Count(brokertest.Refresh) != asked+1 {
		t.Errorf("after the cut it is answered %q, and the provider was asked %d times", outcome(r), s.broker.Upstream.Count(brokertest.Refresh)-asked)
	}
}

// revoked ends a connection at the provider, and forgets it at the instance.
func (s *endCast) revoked(t *testing.T) {
	c := s.another()
	g, err := custody.MintRevoke(c, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	id := custody.NewID()
	lent, err := g.Seal(s.ada.id, s.helper.Key, nil, endSpace, endThread, id)
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.ada.id.SealMessage(s.helper.Key, nil, custody.Header{Space: endSpace, Thread: endThread, Op: id}, &custody.Revoke{V: 1, ID: id, Service: c.Service, Grant: lent})
	if err != nil {
		t.Fatal(err)
	}
	s.ada.posts(e, time.Time{})
	if r := s.ada.result(id, 1); !r.OK || s.broker.Upstream.Count(brokertest.Revoke) != 1 {
		t.Errorf("it is answered %q %s; the provider was asked %d times", outcome(r), r.Result, s.broker.Upstream.Count(brokertest.Revoke))
	}
	if err := s.ada.c.DeleteBlob(t.Context(), c.ID, c.Generation); err != nil {
		t.Fatal(err)
	}
	if _, err := s.ada.c.Blob(t.Context(), c.ID); s.saw(err) == nil {
		t.Error("the blob is there still")
	}
}

// wrongToken has the sidecar show the broker a token that another operator signed.
func (s *endCast) wrongToken(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	token, err := broker.SignToken(key, "i1", broker.Claims{Origins: []string{brokertest.Instance}, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "instance-1", Audience: jwt.ClaimStrings{s.broker.URL}, ID: "jti-2", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	s.hide("the wrong token for the broker", token, false)
	s.write("token", []byte(token))
	s.sidecar.kill()
	s.sidecar = s.starts("one.sock")
	r := s.ada.sends(s.ada.grants(due(s.another()), "whoami", `{}`, nil))
	if outcome(r) != "misconfigured" {
		t.Errorf("it is answered %q", outcome(r))
	}
}

// unstarted starts the program with what it does not take.
func (s *endCast) unstarted(t *testing.T) {
	const text = "SENTINEL-that-is-no-token-of-a-broker"
	s.write("garbage", []byte(text))
	s.write("open", []byte(text))
	if err := os.Chmod(filepath.Join(s.dir, "open"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, words := range [][]string{
		{"sidecar", "--bot", "helper", "--broker", s.broker.URL, "--instance-token-file", filepath.Join(s.dir, "garbage")},
		{"sidecar", "--bot", "helper", "--broker", s.broker.URL, "--instance-token-file", filepath.Join(s.dir, "open")},
		{"sidecar", "--bot", "helper", "--instance", "https://" + text + "@chat.example"},
		{"sidecar", "--bot", text},
		{"instance", "--space", endSpace, "--invite-file", filepath.Join(s.dir, "open")},
		{"instance", "--space", endSpace, "--origin", "https://" + text + "@chat.example"},
	} {
		cmd := exec.Command(s.bin, append(words, "--home", filepath.Join(s.dir, "elsewhere"))...)
		out, err := cmd.CombinedOutput()
		if err == nil || !strings.Contains(string(out), "error: ") {
			t.Errorf("%s %s: it ends with %v: %s", words[0], words[1], err, out)
		}
		s.saw(errors.New(string(out)))
	}
}
