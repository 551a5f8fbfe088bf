package sidecar

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// marks stand in each secret of the test: access tokens, refresh tokens as their broker
// wrapped them, the instance's token, and what the provider says of them.
var marks = []string{"SENTINELaccess", "SENTINELwrapped", "SENTINELinstance", "SENTINELkeep"}

// formsOf returns the ways in which a mark may stand somewhere: as it is, in base64 at each of
// three offsets, in hex, and percent-encoded.
func formsOf(mark string) []string {
	var percent strings.Builder
	for _, c := range []byte(mark) {
		fmt.Fprintf(&percent, "%%%02X", c)
	}
	out := []string{mark, hex.EncodeToString([]byte(mark)), strings.ToUpper(hex.EncodeToString([]byte(mark))), percent.String(), strings.ToLower(percent.String())}
	for off := range 3 {
		// What comes before and after changes the first and last characters; the mark has
		// neither of those in which the two alphabets differ.
		s := base64.RawURLEncoding.EncodeToString(append(make([]byte, off), mark...))
		out = append(out, s[(off*8+5)/6:(off+len(mark))*8/6])
	}
	return out
}

func found(text []byte, mark string) string {
	for _, f := range formsOf(mark) {
		if bytes.Contains(text, []byte(f)) {
			return f
		}
	}
	return ""
}

func TestFormsOf(t *testing.T) {
	for _, mark := range marks {
		for before := range 4 {
			text := strings.Repeat("x", before) + mark + "yz"
			for _, s := range []string{text, hex.EncodeToString([]byte(text)), base64.StdEncoding.EncodeToString([]byte(text)), base64.URLEncoding.EncodeToString([]byte(text)), url.QueryEscape(text)} {
				if found([]byte(s), mark) == "" {
					t.Errorf("%s is not found in %s", mark, s)
				}
			}
		}
	}
}

type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// TestSentinel walks every way that an operation can go, good and bad, and looks for the
// secrets in all that is kept, logged, said or asked for.
func TestSentinel(t *testing.T) {
	var logged, said locked
	begin := func(opts ...func(*Config)) *stage {
		s := newStage(t, append(opts, func(c *Config) {
			c.Logger = slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug, AddSource: true}))
			c.Brokers[0].Token = secret("SENTINELinstance")
		})...)
		s.provider.answer(me)
		return s
	}
	connect := func(s *stage, access integrations.Access, left time.Duration) *custody.Credential {
		c := s.connection("github", access, left)
		c.Secret, c.Keep = secret("SENTINELaccess1"), map[string]string{"x": "SENTINELkeep"}
		if left != 0 {
			c.Refresh = secret("rt1.k.SENTINELwrapped1")
		}
		return c
	}
	pair := func(n int) *custody.RefreshAnswer {
		return &custody.RefreshAnswer{Secret: secret(fmt.Sprintf("SENTINELaccess%d", n+1)), Refresh: secret(fmt.Sprintf("rt1.k.SENTINELwrapped%d", n+1)), ExpiresIn: 3600, Keep: map[string]string{"x": "SENTINELkeep"}}
	}
	codes := make(map[string]int)
	handle := func(s *stage, who *custody.Identity, d Delivery) {
		all, err := s.Handle(context.Background(), d)
		if err != nil {
			codes["none"]++
			for e := err; e != nil; e = errors.Unwrap(e) {
				fmt.Fprintf(&said, "%v %+v %#v\n", e, e, e)
			}
			return
		}
		for _, e := range all {
			said.Write(must(e.Marshal()))
		}
		if len(all) == 0 {
			return
		}
		out := s.open(who, all)
		codes[out.code()]++
		// What the member reads is hers, but for a hand-back no token is among it.
		r := *out.Result
		r.Handback = nil
		said.Write(must(json.Marshal(r)))
	}
	send := func(s *stage, o *order) { handle(s, o.member, s.delivery(o)) }
	finish := func(s *stage) {
		// Before and after the log of the database is folded into it.
		for range 2 {
			for _, f := range must(os.ReadDir(s.dir)) {
				said.Write(must(os.ReadFile(filepath.Join(s.dir, f.Name()))))
			}
			s.Sidecar.Close(context.Background())
		}
		for _, r := range append(s.provider.requests(), s.broker.requests()...) {
			fmt.Fprintf(&said, "%s %s\n", r.Method, r.URI)
			for k, v := range r.Header {
				if k != "Authorization" {
					fmt.Fprintln(&said, k, v)
				}
			}
		}
		for _, r := range s.provider.requests() {
			said.Write([]byte(r.Body))
		}
	}

	// What the checks refuse.
	for _, a := range flaws {
		s := begin()
		s.now.forward(time.Hour)
		s.provider.answer(opened)
		x := &shot{order: s.order(connect(s, integrations.Write, 10*time.Second), "open_issue", openIssue), v: 2, grantTo: s.bot.Public(), grantPath: testThread}
		a.make(s, x)
		handle(s, s.ada, s.deliver(x))
		finish(s)
	}
	// What a broker can answer, each for a read and a write, with the connection at its end,
	// the same message again, a restart, and those who come late.
	reflects := func(status int, body string) func(http.ResponseWriter, int, string) *custody.RefreshAnswer {
		return func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer { return says(w, status, body) }
	}
	for _, f := range []func(http.ResponseWriter, int, string) *custody.RefreshAnswer{
		func(_ http.ResponseWriter, n int, _ string) *custody.RefreshAnswer { return pair(n) },
		func(_ http.ResponseWriter, n int, r string) *custody.RefreshAnswer {
			a := pair(n)
			a.Refresh, a.Same = secret(r), true
			return a
		},
		func(w http.ResponseWriter, n int, _ string) *custody.RefreshAnswer { return lost(w) },
		reflects(409, `{"class":"dead","code":"SENTINELaccess1 SENTINELwrapped1"}`),
		reflects(502, `{"class":"misconfigured","code":"SENTINELinstance!"}`),
		reflects(503, `{"class":"temporary","code":"rt1.k.SENTINELwrapped1"}`),
		reflects(500, `SENTINELaccess1 rt1.k.SENTINELwrapped1 SENTINELinstance`),
		reflects(200, `{"secret":"SENTINELaccess1","refresh":"rt1.k.SENTINELwrapped1"}`),
		reflects(401, `{"error":"SENTINELinstance?"}`),
	} {
		for _, access := range []integrations.Access{integrations.Read, integrations.Write} {
			for _, opt := range []func(*Config){func(*Config) {}, graceful} {
				s := begin(opt)
				s.refreshes(f)
				c := connect(s, access, 10*time.Second)
				o := s.order(c, "whoami", `{}`)
				if access == integrations.Write {
					s.provider.answer(opened)
					o = s.order(c, "open_issue", openIssue)
				}
				send(s, o)
				send(s, o)
				s.now.forward(5 * time.Minute)
				send(s, s.later(o))
				s.restart()
				s.now.forward(10 * time.Minute)
				send(s, s.later(o))
				lifted := s.later(o)
				lifted.member = s.eve
				send(s, lifted)
				run := s.standing(connect(s, access, 3*time.Hour), "whoami", `{}`, time.Hour)
				run.grant.Refresh, run.grant.Broker = c.Refresh, c.Broker
				send(s, run)
				finish(s)
			}
		}
	}
	// What a provider can answer: the token that it was shown, everywhere.
	echoes := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			jsonAnswer(status, strings.ReplaceAll(body, "TOKEN", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))(w, r)
		}
	}
	for _, h := range []http.HandlerFunc{
		echoes(401, `{"message":"TOKEN is bad"}`), echoes(403, `{"message":"TOKEN"}`), echoes(500, `TOKEN`),
		echoes(422, `{"message":"no","errors":[{"message":"Bearer TOKEN"}]}`), echoes(200, `{"login":"TOKEN","id":7}`),
		echoes(201, `{"number":1,"html_url":"https://github.com/TOKEN"}`), jsonAnswer(200, `{"login":`), func(w http.ResponseWriter, r *http.Request) { lost(w) },
		func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://elsewhere.example/", http.StatusTemporaryRedirect)
		},
	} {
		for _, key := range []bool{false, true} {
			s := begin()
			s.provider.answer(h)
			s.refreshes(func(_ http.ResponseWriter, n int, _ string) *custody.RefreshAnswer { return pair(n) })
			c := connect(s, integrations.Write, 3*time.Hour)
			need := func(r *custody.GrantRequest) { r.NeedsPair = key }
			send(s, s.order(c, "whoami", `{}`, need))
			send(s, s.order(c, "open_issue", openIssue, need))
			finish(s)
		}
	}
	// A disk that fails, a revoke, an end, an ack, a message of before.
	var broken *stage
	broken = begin(func(c *Config) {
		c.Step = func(name string) {
			if name == "rotate" {
				broken.store.db.Close()
			}
		}
	})
	broken.refreshes(func(_ http.ResponseWriter, n int, _ string) *custody.RefreshAnswer { return pair(n) })
	send(broken, broken.order(connect(broken, integrations.Read, 10*time.Second), "whoami", `{}`))
	finish(broken)
	for _, status := range []int{200, 401, 500} {
		s := begin()
		s.broker.answer(jsonAnswer(status, `{"revoked":false,"why":"no","error":"SENTINELaccess1"}`))
		c := connect(s, integrations.Read, 10*time.Second)
		handle(s, s.ada, s.revokes(c))
		handle(s, s.ada, s.posts(s.ada, custody.Header{}, &custody.Ack{Credential: c.ID, Pair: 2}))
		handle(s, s.ada, s.posts(s.ada, custody.Header{}, &custody.End{At: 1, Credential: c.ID}))
		s.provider.answer(jsonAnswer(401, `{"message":"SENTINELaccess1"}`))
		data, err := s.HandleLegacy(t.Context(), s.bot.Public().ID(), s.ada.Public().ID(), s.before("SENTINELaccess1"))
		fmt.Fprintf(&said, "%s %v\n", data, err)
		finish(s)
	}

	if len(codes) < 18 || codes["ok"] < 30 {
		t.Errorf("the walk reached %v", codes)
	}
	for name, text := range map[string][]byte{"the log": logged.b.Bytes(), "what is kept, said or asked": said.b.Bytes()} {
		if len(text) < 1000 {
			t.Errorf("%s has %d bytes", name, len(text))
		}
		for _, mark := range marks {
			if f := found(text, mark); f != "" {
				i := bytes.Index(text, []byte(f))
				t.Errorf("%s is in %s: …%q", mark, name, text[max(0, i-80):min(len(text), i+60)])
			}
		}
	}
}

// revokes is a message that ends a connection at its provider.
func (s *stage) revokes(c *custody.Credential) Delivery {
	s.t.Helper()
	g := must(custody.MintRevoke(c, s.now.now()))
	id := custody.NewID()
	grant := must(g.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, id))
	return s.posts(s.ada, custody.Header{Op: id}, &custody.Revoke{V: 1, ID: id, Service: c.Service, Grant: grant})
}

// before is an op of before.
func (s *stage) before(token string) []byte {
	s.t.Helper()
	sealed := must(custody.SealLegacyGrant(s.bot.Public(), custody.LegacyGrant{Token: secret(token), ExpiresAt: s.now.now().Add(time.Hour).Unix()}))
	return must(json.Marshal(map[string]string{"type": "connect.op", "id": "x1", "op": "list", "grant": sealed}))
}
