package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/sidecar"
)

// over makes the one connection's access token be over.
func (w *world) over(t *testing.T) *custody.Credential {
	return w.edit(t, func(c *custody.Credential) { c.ObtainedAt, c.ExpiresAt = c.ObtainedAt-7200, time.Now().Unix()-1 })
}

func reset(rw http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(rw).Hijack()
	if err == nil {
		conn.Close()
		return
	}
	panic(http.ErrAbortHandler) // HTTP/2 has no connection of its own
}

// A connection whose broker's token is known is renewed where it is due, twice, and not where
// it is not.
func TestOpRenews(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	file := w.token(t, time.Hour)
	if said := w.connect(t, "--broker-token-file", file); strings.Contains(said, "ends with its access token") {
		t.Errorf("it says that the connection ends:\n%s", said)
	}
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := filepath.Glob(filepath.Join(w.home, vaultBrokers, "*.json"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("the broker's token: %v %v", kept, err)
	}
	data, err := os.ReadFile(kept[0])
	if err != nil || strings.Contains(string(data), strings.TrimSpace(string(token))) {
		t.Errorf("it is not sealed (%v)", err)
	}
	if said, code := w.run(t, "op", "github", "whoami"); code != 0 || w.Upstream.Count(brokertest.Refresh) != 0 {
		t.Fatalf("not due: exit code %d, %d refreshes:\n%s", code, w.Upstream.Count(brokertest.Refresh), said)
	}
	// The fresh pair is on disk before it is used: with the bot, until it is in the vault.
	came := func(token string) {
		if !slices.Contains(w.onDisk(t), token) {
			t.Error("a token is used that is not on disk")
		}
	}
	w.came.Store(&came)
	for i := range 2 {
		old := w.over(t)
		lent := int64(1 - i) // the first time: it lasts for the second
		said, code := w.run(t, "op", "github", "whoami")
		now := w.one(t)
		if code != 0 || w.Upstream.Count(brokertest.Refresh) != i+1 {
			t.Fatalf("due: exit code %d, %d refreshes:\n%s", code, w.Upstream.Count(brokertest.Refresh), said)
		}
		if now.Pair != old.Pair+1 || now.Generation != old.Generation+lent+1 || now.Secret == old.Secret || now.Refresh == old.Refresh || now.ExpiresAt < time.Now().Unix()+3000 {
			t.Errorf("stored: pair %d after %d, generation %d after %d, until %d", now.Pair, old.Pair, now.Generation, old.Generation, now.ExpiresAt)
		}
		if len(now.Ops) == 0 || now.Account == nil || now.Broker != brokertest.Origin {
			t.Error("the rest of the connection is gone")
		}
	}
	files, err := filepath.Glob(filepath.Join(w.home, vaultFolder, "*"))
	if err != nil || len(files) != 2 {
		t.Errorf("files: %v %v", files, err)
	}
	// What was stored is not kept for it any more.
	if left := w.waiting(t); len(left) != 0 {
		t.Errorf("%d pairs still wait with the bot", len(left))
	}
}

// waiting returns what waits with the local bot, as its member reads it.
func (w *world) waiting(t *testing.T) (all []*custody.Handback) {
	t.Helper()
	v := w.vault(t)
	key, err := v.bot()
	if err != nil {
		t.Fatal(err)
	}
	core, err := sidecar.New(t.Context(), sidecar.Config{Bots: []*custody.Identity{key}, Dir: filepath.Join(w.home, vaultBotFolder)})
	if err != nil {
		t.Fatal(err)
	}
	defer core.Close(t.Context())
	sealed, err := core.Waiting(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range sealed {
		h := new(custody.Handback)
		if err := v.member.OpenMessage(e, key.Public(), nil, h); err != nil {
			t.Fatal(err)
		}
		all = append(all, h)
	}
	return all
}

// onDisk returns the access tokens that a crash would not lose.
func (w *world) onDisk(t *testing.T) (tokens []string) {
	t.Helper()
	list, _, err := w.vault(t).all()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range list {
		tokens = append(tokens, c.Secret.Reveal())
	}
	for _, h := range w.waiting(t) {
		tokens = append(tokens, h.Secret.Reveal())
	}
	return tokens
}

// A token that the service turns away though it is not over is renewed once, and the write is
// confirmed once.
func TestOpRenewsAfterSurprise(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--write", "--broker-token-file", w.token(t, time.Hour))
	ask := []string{"op", "github", "open_issue", "owner=o", "repo=r", "title=x", "--yes"}
	never := "no token at all"
	w.use.Store(&never)
	w.asked.Store(0)
	said, code := w.run(t, ask...)
	if code != 1 || w.Upstream.Count(brokertest.Refresh) != 1 || w.asked.Load() != 2 {
		t.Fatalf("never good: exit code %d, %d refreshes, %d calls:\n%s", code, w.Upstream.Count(brokertest.Refresh), w.asked.Load(), said)
	}
	if !strings.Contains(said, "hint: the stored token has ended, or was removed there; connect add github --broker https://broker.test --write connects it again") {
		t.Errorf("it does not say how to connect again:\n%s", said)
	}
	// What cannot be renewed has one piece of advice, not the one for pasted tokens.
	w.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind != brokertest.Refresh {
			return nil
		}
		return brokertest.JSON(400, map[string]any{"error": "bad_refresh_token"})
	})
	if said, code := w.run(t, ask...); code != 1 || strings.Count(said, "hint: ") != 1 || !strings.Contains(said, "error: GitHub has ended this connection\nhint: connect add github --broker https://broker.test --write connects it again\n") {
		t.Errorf("ended: exit code %d:\n%s", code, said)
	}
	w.Upstream.SetAnswer(nil)
	w.Upstream.Reset()
	// The provider's next token is the one that is good.
	w.Upstream.SetExtra(map[string]any{"access_token": "at_" + brokertest.Sentinel + "_good"})
	good := "at_" + brokertest.Sentinel + "_good"
	w.use.Store(&good)
	w.asked.Store(0)
	said, code = w.run(t, ask...)
	if code != 0 || w.Upstream.Count(brokertest.Refresh) != 1 || w.asked.Load() != 2 || strings.Count(said, "Yes, by --yes.") != 1 {
		t.Fatalf("exit code %d, %d refreshes, %d calls:\n%s", code, w.Upstream.Count(brokertest.Refresh), w.asked.Load(), said)
	}
}

// However many commands find it due, its refresh token is redeemed once.
func TestOpRenewsOnce(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	w.over(t)
	w.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Refresh {
			time.Sleep(200 * time.Millisecond) // so that all of them wait
		}
		return nil
	})
	var all sync.WaitGroup
	for range 5 {
		all.Go(func() {
			if said, code := w.run(t, "op", "github", "whoami"); code != 0 {
				t.Errorf("exit code %d:\n%s", code, said)
			}
		})
	}
	all.Wait()
	if n := w.Upstream.Count(brokertest.Refresh); n != 1 || w.one(t).Pair != 2 {
		t.Errorf("%d refreshes, pair %d", n, w.one(t).Pair)
	}
}

// A single-use token whose answer was lost is never sent again, until it is connected anew.
func TestOpLostAnswer(t *testing.T) {
	var cut atomic.Bool
	w := newWorld(t, brokertest.Options{Wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			if cut.Load() && r.URL.Path == "/api/refresh" {
				h.ServeHTTP(discard{http.Header{}}, r)
				reset(rw, r)
				return
			}
			h.ServeHTTP(rw, r)
		})
	}})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	w.over(t)
	cut.Store(true)
	for i := range 3 {
		said, code := w.run(t, "op", "github", "whoami")
		if code != 1 || w.Upstream.Count(brokertest.Refresh) != 1 || !strings.Contains(said, "error: GitHub may have renewed this connection, and its answer was lost on the way\nhint: connect add github --broker https://broker.test connects it again\n") {
			t.Fatalf("%d: exit code %d, %d refreshes:\n%s", i, code, w.Upstream.Count(brokertest.Refresh), said)
		}
		cut.Store(false)
	}
	w.connect(t)
	w.over(t)
	if said, code := w.run(t, "op", "github", "whoami"); code != 0 || w.Upstream.Count(brokertest.Refresh) != 2 {
		t.Errorf("connected anew: exit code %d, %d refreshes:\n%s", code, w.Upstream.Count(brokertest.Refresh), said)
	}
	if left := w.waiting(t); len(left) != 0 {
		t.Errorf("%d pairs wait", len(left))
	}
}

type discard struct{ h http.Header }

func (d discard) Header() http.Header       { return d.h }
func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) WriteHeader(int)             {}

// Where the service keeps the refresh token, a lost answer loses nothing.
func TestLostAnswerOfWhatStays(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	v, err := (&homeFlag{dir: w.home}).make()
	if err != nil {
		t.Fatal(err)
	}
	c := w.stored(t, v, "hubspot")
	w.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Refresh {
			return &brokertest.Answer{Raw: reset}
		}
		return nil
	})
	file := w.token(t, time.Hour)
	var asked atomic.Int32
	srv, err := peer.Start(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		rw.Header().Set("Content-Type", "application/json")
		io.WriteString(rw, `{"results": []}`)
	}), "api.hubapi.com")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, append(srv.CA, w.CA.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	words := []string{"op", "hubspot", "list_owners", "--broker-token-file", file, "--home", w.home,
		"--connect-to", "broker.test:443:" + w.Addr, "--connect-to", "api.hubapi.com:443:" + srv.Addr, "--cacert", ca}
	if said, code := w.runAs(t, words...); code != 6 || asked.Load() != 0 {
		t.Errorf("lost: exit code %d, %d calls:\n%s", code, asked.Load(), said)
	}
	w.Upstream.SetAnswer(nil)
	said, code := w.runAs(t, words...)
	if now := w.one(t); code != 0 || now.Pair != c.Pair+1 || now.Generation != c.Generation+1 || now.Lent != nil {
		t.Errorf("again: exit code %d, pair %d, generation %d:\n%s", code, now.Pair, now.Generation, said)
	}
}

// stored stores a connection as the flow of a service would, for this member.
func (w *world) stored(t *testing.T, v *vault, service string) *custody.Credential {
	t.Helper()
	o := w.Connect(t, brokertest.Ask{Service: service, ReturnTo: "http://127.0.0.1:4711/aaaaaaaaaaaaaaaa", For: string(v.member.ID())})
	c := &custody.Credential{
		V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: service, Kind: custody.KindOAuth, Secret: o.Secret, Refresh: o.Refresh, Broker: w.URL,
		Keep: o.Keep, ExpiresAt: time.Now().Unix() - 1, ConnectedAt: time.Now().Unix(), Account: &custody.Account{ID: "1", Label: "Ada"},
	}
	if err := v.put(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// Each class of the broker's answers is said in its own words, at once, and loses nothing that
// is not lost.
func TestOpNotRenewed(t *testing.T) {
	answer := func(a *brokertest.Answer) func(*brokertest.Call) *brokertest.Answer {
		return func(c *brokertest.Call) *brokertest.Answer {
			if c.Kind != brokertest.Refresh {
				return nil
			}
			return a
		}
	}
	busy := brokertest.JSON(http.StatusServiceUnavailable, map[string]any{})
	busy.Header.Set("Retry-After", "30")
	for _, c := range []struct {
		what   string
		answer func(*brokertest.Call) *brokertest.Answer
		code   int
		say    []string
	}{
		{"dead", answer(brokertest.JSON(400, map[string]any{"error": "bad_refresh_token"})), 1, []string{
			"error: GitHub has ended this connection\nhint: connect add github --broker https://broker.test connects it again\n", `"code":"unauthorised"`}},
		{"busy", answer(busy), 1, []string{"and not before 30s is over\nhint: run the command again then; nothing is lost\n", `"code":"rate_limited"`, `"until":"`}},
		{"an outage", answer(brokertest.JSON(500, map[string]any{})), 6, []string{"error: this connection cannot be renewed just now\nhint: run the command again in a while", `"code":"unreachable"`}},
		{"the client's secret is wrong", answer(brokertest.JSON(200, map[string]any{"error": "incorrect_client_credentials"})), 1, []string{
			"error: this connection cannot be renewed until an operator mends the broker's app at the service (incorrect_client_credentials)\nhint: the operator of https://broker.test can mend that, "}},
	} {
		w := newWorld(t, brokertest.Options{})
		w.connect(t, "--broker-token-file", w.token(t, time.Hour))
		w.over(t)
		w.Upstream.SetAnswer(c.answer)
		w.asked.Store(0)
		begun := time.Now()
		said, code := w.run(t, "op", "github", "whoami", "--json")
		if code != c.code || w.asked.Load() != 0 || time.Since(begun) > 10*time.Second {
			t.Errorf("%s: exit code %d after %s, %d calls:\n%s", c.what, code, time.Since(begun), w.asked.Load(), said)
		}
		for _, want := range c.say {
			if !strings.Contains(said, want) {
				t.Errorf("%s: it does not say %q:\n%s", c.what, want, said)
			}
		}
		// What is not over yet is used all the same.
		w.edit(t, func(c *custody.Credential) { c.ExpiresAt = time.Now().Unix() + 20 })
		if said, code = w.run(t, "op", "github", "whoami"); code != 0 || !strings.Contains(said, "warning: ") {
			t.Errorf("%s, and not over yet: exit code %d:\n%s", c.what, code, said)
		}
		// And what was not lost is renewed when it can be.
		w.Upstream.SetAnswer(nil)
		w.over(t)
		if said, code = w.run(t, "op", "github", "whoami"); code != 0 || w.one(t).Pair != 2 {
			t.Errorf("%s, mended: exit code %d:\n%s", c.what, code, said)
		}
	}
}

// Without the broker's token the connection ends with its access token, as it was said; a
// token of the wrong kind is turned away here.
func TestBrokerTokenJudged(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t)
	w.over(t)
	gone := "gone"
	w.use.Store(&gone)
	said, code := w.run(t, "op", "github", "whoami")
	if code != 1 || w.Upstream.Count(brokertest.Refresh) != 0 || !strings.Contains(said, "with the broker's token: --broker-token-file FILE, or $CONNECT_BROKER_TOKEN") {
		t.Errorf("none: exit code %d:\n%s", code, said)
	}
	garbage := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(garbage, []byte("ghp_x"), 0o600); err != nil {
		t.Fatal(err)
	}
	elsewhere := newWorld(t, brokertest.Options{Config: func(c *broker.Config) { c.PublicURL = "https://other.example" }})
	elsewhere.home = w.home
	for what, file := range map[string]string{
		"it ended at":                          w.token(t, -time.Minute),
		"it is for another key":                w.token(t, time.Hour, "https://chat.test"),
		"it is no token that":                  garbage,
		"it is for another broker than https:": elsewhere.token(t, time.Hour),
	} {
		said, code := w.run(t, "op", "github", "whoami", "--broker-token-file", file)
		if code != 2 || !strings.Contains(said, "error: --broker-token-file: "+what) || !strings.Contains(said, "hint: connect key tells the key") {
			t.Errorf("%s: exit code %d:\n%s", what, code, said)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv(envBrokerToken, string(text))
		if said, code = w.run(t, "op", "github", "whoami"); code != 1 || !strings.Contains(said, "note: CONNECT_BROKER_TOKEN is not used: "+what) {
			t.Errorf("%s, in the environment: exit code %d:\n%s", what, code, said)
		}
	}
	w.use.Store(nil)
	text, err := os.ReadFile(w.token(t, time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(envBrokerToken, string(text))
	if said, code := w.run(t, "op", "github", "whoami"); code != 0 || w.Upstream.Count(brokertest.Refresh) != 1 {
		t.Errorf("in the environment: exit code %d:\n%s", code, said)
	}
	// It is kept, and tells when it is over.
	t.Setenv(envBrokerToken, "")
	w.over(t)
	if said, code := w.run(t, "op", "github", "whoami"); code != 0 || w.Upstream.Count(brokertest.Refresh) != 2 {
		t.Errorf("kept: exit code %d:\n%s", code, said)
	}
}

// Nothing is redeemed that could not be stored. (Root may write anywhere.)
func TestNotRenewedWhereItCannotBeStored(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	c := w.over(t)
	// A lock that cannot be had, whoever asks: a folder with something in it.
	if err := os.MkdirAll(filepath.Join(w.vault(t).lockFile(c.ID), "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	if said, code := w.run(t, "op", "github", "whoami"); code == 0 || w.Upstream.Count(brokertest.Refresh) != 0 || !strings.Contains(said, "cannot be locked") {
		t.Errorf("no lock: exit code %d, %d refreshes:\n%s", code, w.Upstream.Count(brokertest.Refresh), said)
	}
	if os.Getuid() == 0 {
		t.Skip("root may write anywhere")
	}
	if err := os.RemoveAll(w.vault(t).lockFile(c.ID)); err != nil {
		t.Fatal(err)
	}
	lock, err := w.vault(t).lock(context.Background(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	lock.release()
	folder := filepath.Join(w.home, vaultFolder)
	if err := os.Chmod(folder, 0o500); err != nil {
		t.Fatal(err)
	}
	defer os.Chmod(folder, 0o700)
	if said, code := w.run(t, "op", "github", "whoami"); code == 0 || w.Upstream.Count(brokertest.Refresh) != 0 || !strings.Contains(said, "the token is not renewed, since a fresh one could not be stored") {
		t.Errorf("read-only: exit code %d, %d refreshes:\n%s", code, w.Upstream.Count(brokertest.Refresh), said)
	}
}
