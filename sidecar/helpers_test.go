package sidecar

import (
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A shelf holds subtests by name, which several files fill.
type shelf map[string]func(*testing.T)

func (s *shelf) add(name string, run func(*testing.T)) bool {
	if *s == nil {
		*s = make(shelf)
	}
	if (*s)[name] != nil {
		panic("two tests are called " + name)
	}
	(*s)[name] = run
	return true
}

func (s shelf) run(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		t.Run(name, s[name])
	}
}

// threats are the rows of docs/threat-model.md that are shown here, by name.
var threats shelf

func threat(name string, run func(*testing.T)) bool { return threats.add(name, run) }

// TestThreats drives Handle as a transport does and counts what reaches provider and broker.
func TestThreats(t *testing.T) { threats.run(t) }

// cases are faults that users of systems like this one reported, retold; a row stands for its
// whole kind.
var cases shelf

func reported(name string, run func(*testing.T)) bool { return cases.add(name, run) }

// TestCases shows what is right for each.
func TestCases(t *testing.T) { cases.run(t) }

// calls returns how often provider and broker were called.
func (s *stage) calls() (provider, broker int) {
	return len(s.provider.requests()), len(s.broker.requests())
}

// forget begins the count anew.
func (s *stage) forget() {
	for _, x := range []*site{s.provider, s.broker} {
		x.mu.Lock()
		x.seen = nil
		x.mu.Unlock()
	}
}

// want fails unless an outcome has a code, and provider and broker were called so often since
// the last forget.
func (s *stage) want(t testing.TB, out outcome, code string, provider, broker int) {
	t.Helper()
	if out.code() != code {
		said := ""
		if out.Result != nil && out.Error != nil {
			said = out.Error.Message
		}
		t.Errorf("the answer is %s (%s), want %s", out.code(), said, code)
	}
	if p, b := s.calls(); p != provider || b != broker {
		t.Errorf("%s: %d calls of the provider and %d of the broker, want %d and %d", code, p, b, provider, broker)
	}
}

// me answers as GitHub's whoami does.
var me = jsonAnswer(200, `{"login":"ada","id":7}`)

// opened answers as GitHub does when an issue is opened.
var opened = jsonAnswer(201, `{"number":1,"html_url":"https://github.com/golang/go/issues/1"}`)

// refreshes lets the broker answer each refresh by f, which gets the number of the call, from
// 1, and the token. What f returns is sealed; nil means that f has answered itself.
func (s *stage) refreshes(f func(w http.ResponseWriter, n int, refresh string) *custody.RefreshAnswer) {
	var mu sync.Mutex
	n := 0
	s.broker.answer(func(w http.ResponseWriter, r *http.Request) {
		body := must(io.ReadAll(r.Body))
		var req struct{ Refresh string }
		json.Unmarshal(body, &req)
		mu.Lock()
		n++
		i := n
		mu.Unlock()
		if a := f(w, i, req.Refresh); a != nil {
			s.sealed(w, body, a)
		}
	})
}

// says answers as the broker does when it has no pair.
func says(w http.ResponseWriter, status int, body string) *custody.RefreshAnswer {
	jsonAnswer(status, body)(w, nil)
	return nil
}

// lost ends a connection in the midst of an answer.
func lost(w http.ResponseWriter) *custody.RefreshAnswer {
	c, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		c.Close()
	}
	return nil
}

func secret(s string) integrations.Secret { return integrations.NewSecret(s) }

// constant answers with new access tokens, numbered from 2, and the very token that came.
func (s *stage) constant(expiresIn int64) {
	s.refreshes(func(_ http.ResponseWriter, n int, refresh string) *custody.RefreshAnswer {
		return &custody.RefreshAnswer{Secret: secret("at" + string(rune('1'+n)) + "-fake"), Refresh: secret(refresh), Same: true, ExpiresIn: expiresIn}
	})
}

// accepts lets the provider take some access tokens only.
func (s *stage) accepts(h http.HandlerFunc, tokens ...string) {
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Contains(tokens, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")) {
			jsonAnswer(401, `{"message":"Bad credentials"}`)(w, r)
			return
		}
		h(w, r)
	})
}

// graceful is the registry with a grace for GitHub's old refresh tokens.
func graceful(c *Config) { c.Registry = withGrace() }

var withGrace = sync.OnceValue(func() *integrations.Registry {
	files := fstest.MapFS{}
	dir := os.DirFS("../integrations/registry")
	for _, name := range must(fs.Glob(dir, "*.json")) {
		data := must(fs.ReadFile(dir, name))
		if name == "github.json" {
			old := `"refresh": { "rotates": true }`
			if strings.Count(string(data), old) != 1 {
				panic("github.json has another form")
			}
			data = []byte(strings.Replace(string(data), old, `"refresh": { "rotates": true, "reuse_grace_s": 30 }`, 1))
		}
		files[name] = &fstest.MapFile{Data: data}
	}
	return must(integrations.Load(files))
})

// second starts another sidecar of the same bot in the same folder; the two share a clock.
func (s *stage) second() *stage {
	s.t.Helper()
	two := *s
	two.start()
	s.t.Cleanup(func() { two.Sidecar.Close(s.t.Context()) })
	return &two
}

// copyDir copies a folder's files.
func copyDir(t testing.TB, from, to string) {
	t.Helper()
	if err := os.MkdirAll(to, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range must(os.ReadDir(from)) {
		if err := os.WriteFile(filepath.Join(to, f.Name()), must(os.ReadFile(filepath.Join(from, f.Name()))), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// standing mints a grant for reads that a bot keeps, and an order under it.
func (s *stage) standing(c *custody.Credential, op, args string, until time.Duration) *order {
	return s.kept(c, custody.GrantRequest{Use: custody.UseStanding, Charter: "charter-1", Ops: []string{op}, Until: s.now.now().Add(until), Group: s.cfg.Group}, op, args)
}

// kept mints a grant that names operations, and an order under it.
func (s *stage) kept(c *custody.Credential, req custody.GrantRequest, op, args string) *order {
	s.t.Helper()
	m := s.registry.Get(c.Service)
	g, err := custody.MintGrant(m, c, req, s.now.now())
	if err != nil {
		s.t.Fatal(err)
	}
	return &order{id: custody.NewID(), member: s.ada, bot: s.bot.Public(), grant: g, service: c.Service, op: op, args: args}
}

// again is another order under the same grant.
func (o *order) again() *order {
	n := *o
	n.id, n.envelope = custody.NewID(), nil
	return &n
}

// mints an order's grant and op ids again with a newer connection, as after needs_pair and
// rotated.
func (s *stage) remint(o *order, c *custody.Credential, edit ...func(*custody.GrantRequest)) *order {
	s.t.Helper()
	n := s.order(c, o.op, o.args, append(edit, func(r *custody.GrantRequest) { r.ID = o.grant.ID })...)
	n.id = o.id
	return n
}

// posts seals a message that is no op.
func (s *stage) posts(member *custody.Identity, h custody.Header, m custody.Message) Delivery {
	s.t.Helper()
	h.Space, h.Thread = testSpace, testThread
	e := must(member.SealMessage(s.bot.Public(), nil, h, m))
	return Delivery{Space: testSpace, Thread: testThread, Author: member.Public(), Data: must(e.Marshal())}
}

// tell hands over a message that gets no answer.
func (s *stage) tell(member *custody.Identity, m custody.Message) {
	s.t.Helper()
	all, err := s.Handle(s.t.Context(), s.posts(member, custody.Header{}, m))
	if err != nil || len(all) != 0 {
		s.t.Fatalf("%T: %d answers, %v", m, len(all), err)
	}
}

// handback opens one that was sent to Ada.
func (s *stage) handback(e *custody.Envelope) *custody.Handback {
	s.t.Helper()
	h := new(custody.Handback)
	if err := s.ada.OpenMessage(e, s.bot.Public(), nil, h); err != nil {
		s.t.Fatal(err)
	}
	return h
}
