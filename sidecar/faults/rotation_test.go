package faults_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

const certified = "login.certified.example"

// An oidc is npm's oidc-provider as a process: a certified authorization server, with refresh
// tokens for one use and reuse detection.
type oidc struct {
	t       testing.TB
	address string
}

func newOIDC(t testing.TB) *oidc {
	t.Helper()
	if _, err := os.Stat(filepath.Join(root, "node_modules/oidc-provider")); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("oidc-provider is not installed: npm ci")
		}
		t.Skip("oidc-provider is not installed: npm ci")
	}
	cmd := exec.Command("node", "testdata/oidc-provider.mjs")
	in := must(cmd.StdinPipe())
	out := bufio.NewReader(must(cmd.StdoutPipe()))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatalf("oidc-provider did not start: %v", err)
	}
	go io.Copy(io.Discard, out)
	return &oidc{t, strings.TrimSpace(line)}
}

// seen says how often the token endpoint gave tokens, and how often it refused.
func (o *oidc) seen() (given, refused int) {
	o.t.Helper()
	seen := make(map[string]int)
	if err := json.Unmarshal(fetch(o.t, o.address+"/seen"), &seen); err != nil {
		o.t.Fatal(err)
	}
	return seen["/token 200"], seen["/token 400"] + seen["/token 401"]
}

// A scene is a world at whose services members have connections, and processes of one group.
type scene struct {
	*world
	t     testing.TB
	clock atomic.Int64
	bots  []*custody.Identity
	reg   *integrations.Registry
	setup setup
	all   []*process
}

func newScene(t testing.TB, registry, host, address string, bots, processes int) *scene {
	t.Helper()
	s := &scene{world: newWorld(t, registry, host, address, ""), t: t}
	s.setup = setup{Dir: t.TempDir(), Secret: []byte(strings.Repeat("s", 32)), Group: group, Registry: registry, Broker: brokerName, Token: s.token,
		BrokerAt: s.to("broker.test"), To: map[string]string{host + ":443": s.to(host)}, CA: s.ca}
	if registry == "" {
		s.reg = must(integrations.Default())
	} else {
		s.reg = must(integrations.Load(os.DirFS(registry)))
	}
	for range bots {
		id := must(custody.NewIdentity())
		s.bots = append(s.bots, id)
		s.setup.Bots = append(s.setup.Bots, must(id.MarshalPKCS8()))
	}
	s.start(processes)
	t.Cleanup(s.stop)
	return s
}

func (s *scene) now() time.Time { return time.Now().Add(time.Duration(s.clock.Load())) }

func (s *scene) start(n int) {
	s.setup.Clock = time.Duration(s.clock.Load())
	for range n {
		s.all = append(s.all, startProcess(s.t, s.setup))
	}
}

func (s *scene) stop() {
	for _, p := range s.all {
		p.stop()
	}
	s.all = nil
}

func (s *scene) restart() {
	n := len(s.all)
	s.stop()
	s.start(n)
}

// forward moves the clocks of the sidecars and of the members.
func (s *scene) forward(d time.Duration) {
	to := time.Duration(s.clock.Add(int64(d)))
	for _, p := range s.all {
		p.call(command{Do: "clock", Clock: to})
	}
}

func (s *scene) member(c *custody.Credential) *member {
	m := &member{id: must(custody.NewIdentity()), bot: s.bots[0].Public(), reg: s.reg, now: s.now}
	m.store(c)
	return m
}

// ask runs one op and acknowledges what comes with it.
func (s *scene) ask(p *process, m *member, o *order) (code, words string) {
	s.t.Helper()
	c, err := m.post(o)
	if err != nil {
		s.t.Fatal(err)
	}
	l, alive := p.call(c)
	if !alive || l.Err != "" {
		s.t.Fatalf("no answer came (alive: %v): %s", alive, l.Err)
	}
	r, acked, err := m.take(l.All)
	if err != nil || r == nil {
		s.t.Fatalf("an answer that is none: %v", err)
	}
	if acked {
		if l, alive := p.call(m.ack()); !alive || l.Err != "" {
			s.t.Fatalf("the acknowledgement was not taken: %s", l.Err)
		}
	}
	if r.Error != nil {
		return r.Error.Code, r.Error.Message
	}
	return "ok", ""
}

func (s *scene) waiting() int {
	l, _ := s.all[0].call(command{Do: "waiting"})
	return len(l.All)
}

// TestRotationAtOIDCProvider: the real broker and a certified server whose refresh tokens are
// for one use. Each grant is minted from what was handed back before.
func TestRotationAtOIDCProvider(t *testing.T) {
	op := newOIDC(t)
	s := newScene(t, must(filepath.Abs(filepath.Join(root, "web/test/registry"))), certified, op.address, 1, 1)
	first, err := s.connect("oidc", "", s.now())
	if err != nil {
		t.Fatal(err)
	}
	m := s.member(first)
	const rounds = 8
	blobs := []*custody.Envelope{m.blob}
	for n := range rounds {
		before := m.credential()
		if code, words := s.ask(s.all[0], m, read()); code != "ok" {
			t.Fatalf("round %d: %s: %s", n+1, code, words)
		}
		after := m.credential()
		if after.Pair != before.Pair+1 || after.Secret.Reveal() == before.Secret.Reveal() || after.Refresh.Reveal() == before.Refresh.Reveal() {
			t.Fatalf("round %d: pair %d follows %d", n+1, after.Pair, before.Pair)
		}
		if n == 3 {
			s.restart()
		}
		if given, refused := op.seen(); given != 2+n || refused != 0 {
			t.Fatalf("round %d: the token endpoint gave %d times and refused %d times", n+1, given, refused)
		}
		blobs = append(blobs, m.blob)
	}
	if n := s.waiting(); n != 0 {
		t.Errorf("%d hand-backs wait though all were acknowledged", n)
	}

	// An old device comes with the pair of three rounds before. It is not redeemed, and the
	// device takes the newest.
	s.restart()
	s.forward(11 * time.Minute)
	stale := &member{id: m.id, bot: m.bot, reg: m.reg, now: m.now, blob: blobs[rounds-3]}
	if code, words := s.ask(s.all[0], stale, read()); code != custody.CodeRotated {
		t.Fatalf("an old pair: %s: %s", code, words)
	}
	if got, want := stale.credential(), m.credential(); got.Pair != want.Pair || got.Refresh.Reveal() != want.Refresh.Reveal() {
		t.Fatalf("the old device holds pair %d, not %d", got.Pair, want.Pair)
	}
	if code, words := s.ask(s.all[0], stale, read()); code != "ok" {
		t.Fatalf("with the pair that was taken: %s: %s", code, words)
	}
	if given, refused := op.seen(); given != rounds+2 || refused != 0 {
		t.Errorf("the token endpoint gave %d times and refused %d times", given, refused)
	}
	t.Logf("%d rotations, each by one redemption; one old pair was not redeemed", rounds+1)

	// The server does detect reuse: whoever redeems a used token ends all of it.
	old := must(custody.OpenCredential(m.id, blobs[rounds-3]))
	direct := &sidecar.Broker{Origin: brokerName, Token: integrations.NewSecret(s.token), Client: &http.Client{Transport: transport(s.world)}}
	var b *sidecar.BrokerError
	if _, err := direct.Refresh(t.Context(), "oidc", old.Refresh); !errors.As(err, &b) || b.Class != sidecar.Dead {
		t.Fatalf("a used token: %v", err)
	}
	code, words := s.ask(s.all[0], stale, read())
	if code != "reconnect" || !strings.Contains(words, "has ended this connection") {
		t.Errorf("after reuse: %s: %s", code, words)
	}
}

func transport(w *world) *http.Transport { return w.browser().Transport.(*http.Transport) }

// TestTwoHundredAtOnce: 200 operations with one old pair, over three bots and two processes.
func TestTwoHundredAtOnce(t *testing.T) {
	op := newOIDC(t)
	s := newScene(t, must(filepath.Abs(filepath.Join(root, "web/test/registry"))), certified, op.address, 3, 2)
	first, err := s.connect("oidc", "", s.now())
	if err != nil {
		t.Fatal(err)
	}
	m := s.member(first)
	wave := func(name string) {
		t.Helper()
		const n = 200
		var orders [n]command
		for i := range orders {
			one := &member{id: m.id, bot: s.bots[i%3].Public(), reg: m.reg, now: m.now, blob: m.blob}
			orders[i] = must(one.post(read()))
		}
		var wg sync.WaitGroup
		var ok, backs atomic.Int64
		pairs := new(sync.Map)
		for i := range orders {
			wg.Go(func() {
				one := &member{id: m.id, bot: s.bots[i%3].Public(), reg: m.reg, now: m.now, blob: m.blob}
				l, alive := s.all[i/3%2].call(orders[i])
				if !alive || l.Err != "" {
					t.Errorf("%s: no answer: %s", name, l.Err)
					return
				}
				// A hand-back is opened with the key of the bot that renewed.
				var r custody.Result
				for _, data := range l.All {
					e := must(custody.ParseEnvelope(data))
					if e.Purpose == custody.PurposeResult {
						if err := one.id.OpenMessage(e, one.bot, nil, &r); err != nil {
							t.Errorf("%s: %v", name, err)
							return
						}
					}
				}
				if r.Error != nil {
					t.Errorf("%s: %s: %s", name, r.Error.Code, r.Error.Message)
					return
				}
				ok.Add(1)
				if r.Handback == nil {
					return
				}
				for _, bot := range s.bots {
					if bot.ID() != r.Handback.From {
						continue
					}
					one.bot = bot.Public()
					if took, err := one.handback(r.Handback, nil); err != nil || !took {
						t.Errorf("%s: a hand-back is not taken: %v", name, err)
						return
					}
					backs.Add(1)
					pairs.Store(one.credential().Refresh.Reveal(), one.blob)
				}
			})
		}
		wg.Wait()
		different := 0
		pairs.Range(func(any, any) bool { different++; return true })
		given, refused := op.seen()
		t.Logf("%s: %d of %d answered, %d with the fresh pair; redemptions so far: %d, refused: %d", name, ok.Load(), n, backs.Load(), given-1, refused)
		if ok.Load() != n || backs.Load() == 0 || different != 1 || given != 2 || refused != 0 {
			t.Errorf("%s: %d answered, %d pairs", name, ok.Load(), different)
		}
	}
	wave("at once")
	s.restart()
	wave("at once, after both were restarted")
}

// TestConstantToken: HubSpot gives the same refresh token to everybody who connects the same
// account, and never another. Two members use it in turn, and at once.
func TestConstantToken(t *testing.T) {
	var redemptions, used atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("POST /oauth/2026-09/token", func(w http.ResponseWriter, r *http.Request) {
		r.ParseForm()
		switch {
		case r.PostForm.Get("code") == "code-ada", r.PostForm.Get("code") == "code-eve":
		case r.PostForm.Get("refresh_token") == "hubspot-constant":
			redemptions.Add(1)
		default:
			answer(w, 400, map[string]any{"status": "BAD_REFRESH_TOKEN", "message": "missing or unknown refresh token"})
			return
		}
		answer(w, 200, map[string]any{"token_type": "bearer", "refresh_token": "hubspot-constant", "access_token": "at-" + custody.NewID(), "expires_in": 1800})
	})
	mux.HandleFunc("GET /account-info/2026-09/details", func(w http.ResponseWriter, r *http.Request) {
		used.Add(1)
		answer(w, 200, map[string]any{"portalId": 7, "uiDomain": "app.hubspot.com", "timeZone": "Europe/Dublin"})
	})
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Shutdown(context.Background()) })
	s := newScene(t, "", "api.hubapi.com", "http://"+l.Addr().String(), 1, 2)
	connect := func(code string) *custody.Credential {
		c, err := s.connect("hubspot", code, s.now())
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	ada, eve := connect("code-ada"), connect("code-eve")
	same := *ada // one connection in two hands, wrapped refresh token and all
	same.ID = custody.NewID()
	for _, pair := range []struct {
		name string
		of   [2]*member
	}{{"two connections of one account", [2]*member{s.member(ada), s.member(eve)}}, {"one wrapped token in two hands", [2]*member{s.member(ada), s.member(&same)}}} {
		t.Run(pair.name, func(t *testing.T) {
			before := redemptions.Load()
			const rounds = 6
			for n := range rounds {
				s.forward(31 * time.Minute) // HubSpot's access tokens live for thirty
				var wg sync.WaitGroup
				for i, m := range pair.of {
					ask := func() {
						o := read()
						o.op = "account_details"
						c, err := m.post(o)
						if err != nil {
							t.Error(err)
							return
						}
						l, _ := s.all[(i+n)%2].call(c)
						r, took, err := m.take(l.All)
						if err != nil || r == nil || r.Error != nil || !took {
							t.Errorf("round %d, member %d: %v %+v, a fresh pair: %v", n+1, i+1, err, r, took)
							return
						}
						s.all[(i+n)%2].call(m.ack())
					}
					if n%2 == 0 {
						wg.Go(ask)
					} else {
						ask()
					}
				}
				wg.Wait()
				if t.Failed() {
					return
				}
			}
			for i, m := range pair.of {
				if got := m.credential(); got.Pair != 1+rounds {
					t.Errorf("member %d holds pair %d", i+1, got.Pair)
				}
			}
			t.Logf("%d rounds of two members: %d redemptions of the one token, all good", rounds, redemptions.Load()-before)
		})
	}
	if n := s.waiting(); n != 0 {
		t.Errorf("%d hand-backs wait", n)
	}
	if used.Load() == 0 {
		t.Error("the provider was never used")
	}
}

// TestRefreshKeepsNoConnection: a connection that was kept may end just as a token goes out
// on it, and then nobody knows whether it was redeemed. So each goes out on a new one.
func TestRefreshKeepsNoConnection(t *testing.T) {
	var opened atomic.Int64
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		answer(w, 409, map[string]any{"class": "dead", "code": "invalid_grant"})
	}))
	srv.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			opened.Add(1)
		}
	}
	srv.Start()
	defer srv.Close()
	b := &sidecar.Broker{Origin: srv.URL, Token: integrations.NewSecret("token-fake")}
	for range 3 {
		var e *sidecar.BrokerError
		if _, err := b.Refresh(t.Context(), "strict", integrations.NewSecret("rt1.k.fake")); !errors.As(err, &e) || e.Class != sidecar.Dead {
			t.Fatal(err)
		}
	}
	if n := opened.Load(); n != 3 {
		t.Errorf("three refreshes went out on %d connections", n)
	}
}

// TestKilledAmongMany kills one of two processes while it renews a pair for which 60
// operations wait in both. Those of the dead process are brought to the other one.
func TestKilledAmongMany(t *testing.T) {
	for _, tt := range []struct{ step, want string }{
		{"outbox", "ok"},          // the pair is on the disk
		{"answered", "reconnect"}, // the answer is lost, and nobody asks for it again
	} {
		t.Run(tt.step, func(t *testing.T) {
			p := newProvider(t)
			s := newScene(t, must(filepath.Abs("testdata/registry")), host, "http://"+p.addr, 1, 0)
			s.setup.LeaseTTL = leaseTime
			s.start(2)
			code, f := p.consent("strict", 60)
			cred, err := s.connect("strict", code, s.now())
			if err != nil {
				t.Fatal(err)
			}
			m := s.member(cred)
			const n = 60
			var orders [n]command
			for i := range orders {
				orders[i] = must(m.post(read()))
			}
			asked, all := make(chan struct{}), make(chan struct{})
			p.onRedeem(f, func() { close(asked); <-all })
			s.all[0].call(command{Do: "kill", Step: tt.step, Nth: 1})
			results := make(map[string]int)
			var mu sync.Mutex
			var wg sync.WaitGroup
			ask := func(i int) {
				l, alive := s.all[i%2].call(orders[i])
				if !alive {
					l, alive = s.all[1].call(orders[i])
				}
				one := &member{id: m.id, bot: m.bot, reg: m.reg, now: m.now, blob: m.blob}
				r, took, err := one.take(l.All)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || !alive || r == nil {
					t.Errorf("no answer: %s, %v", l.Err, err)
					return
				}
				got := "ok"
				if r.Error != nil {
					got = r.Error.Code
				}
				if got == "ok" && !(took && p.alive(one.credential().Secret.Reveal())) {
					t.Error("an answer came without a pair that works")
				}
				results[got]++
			}
			wg.Go(func() { ask(0) })
			<-asked
			for i := 1; i < n; i++ {
				wg.Go(func() { ask(i) })
			}
			time.Sleep(100 * time.Millisecond) // they wait by then
			close(all)
			wg.Wait()
			if !s.all[0].dead() {
				t.Fatal("the process was not killed")
			}
			tally := p.tally(f)
			t.Logf("killed at %s: answers %v, redemptions %d", tt.step, results, tally.redemptions)
			if results[tt.want] != n || tally.redemptions != 1 || tally.twice != 0 {
				t.Errorf("answers %v, %d redemptions, %d twice", results, tally.redemptions, tally.twice)
			}
		})
	}
}
