package sidecar

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// natsServer starts a server with JetStream, as an operator runs one.
func natsServer(t testing.TB) (*server.Server, jetstream.JetStream) {
	t.Helper()
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	nc, err := nats.Connect(srv.ClientURL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return srv, must(jetstream.New(nc))
}

// replicas starts two sidecars with one bot, a folder each and one bucket.
func replicas(t testing.TB) (a, b *stage, srv *server.Server) {
	t.Helper()
	srv, js := natsServer(t)
	kv, err := OpenBucket(t.Context(), js, "group-1", 1)
	if err != nil {
		t.Fatal(err)
	}
	secret := []byte("an-obviously-fake-replica-secret-of-40-by")
	a = newStage(t, func(c *Config) { c.Replicas, c.Secret = kv, secret })
	b = &stage{t: t, dir: t.TempDir(), bot: a.bot, ada: a.ada, eve: a.eve, provider: a.provider, broker: a.broker, registry: a.registry, now: a.now, cfg: a.cfg}
	b.cfg.Dir = b.dir
	b.now.forward(-time.Minute)
	b.start()
	b.now.forward(time.Minute)
	t.Cleanup(func() { b.Sidecar.Close(t.Context()) })
	return a, b, srv
}

func TestReplicasRedeemOnce(t *testing.T) {
	a, b, _ := replicas(t)
	a.rotates(3600)
	a.provider.answer(jsonAnswer(200, `{"login":"ada","id":7}`))
	c := a.connection("github", integrations.Read, 10*time.Second)
	var wg sync.WaitGroup
	var ok atomic.Int64
	for i := range 60 {
		s := []*stage{a, b}[i%2]
		d := s.delivery(s.order(c, "whoami", `{}`))
		wg.Go(func() {
			if out := s.read(s.ada, d); out.code() == "ok" {
				ok.Add(1)
			} else {
				t.Errorf("%s: %+v", out.code(), out.Error)
			}
		})
	}
	wg.Wait()
	if n := len(a.broker.requests()); n != 1 {
		t.Errorf("%d redemptions", n)
	}
	for _, r := range a.provider.requests() {
		if r.Authorization != "Bearer at2-fake" {
			t.Errorf("the provider saw %s", r.Authorization)
		}
	}
}

func TestReplicasWriteOnce(t *testing.T) {
	a, b, _ := replicas(t)
	a.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		time.Sleep(20 * time.Millisecond)
		jsonAnswer(201, `{"number":1,"html_url":"https://github.com/golang/go/issues/1"}`)(w, r)
	})
	c := a.connection("github", integrations.Write, 0)
	for range 10 {
		d := a.delivery(a.order(c, "open_issue", openIssue))
		before := len(a.provider.requests())
		var wg sync.WaitGroup
		codes := make([]string, 2)
		for i, s := range []*stage{a, b} {
			wg.Go(func() { codes[i] = s.read(s.ada, d).code() })
		}
		wg.Wait()
		if n := len(a.provider.requests()) - before; n != 1 {
			t.Fatalf("the provider was called %d times", n)
		}
		// Whoever was late says that it was begun; asked again, both have the answer.
		if fmt.Sprint(codes) != "[ok unknown_outcome]" && fmt.Sprint(codes) != "[unknown_outcome ok]" && fmt.Sprint(codes) != "[ok ok]" {
			t.Errorf("the answers are %v", codes)
		}
		for _, s := range []*stage{a, b} {
			if out := s.read(s.ada, d); out.code() != "ok" {
				t.Errorf("afterwards: %s", out.code())
			}
		}
	}
}

// A replica that dies while it redeems keeps the others waiting for its lease, and no longer.
func TestReplicaDiesWithLease(t *testing.T) {
	a, b, _ := replicas(t)
	a.cfg.LeaseTTL, b.cfg.LeaseTTL = 2*time.Second, 2*time.Second
	b.restart()
	b.now.forward(time.Minute)
	b.rotates(3600)
	b.provider.answer(jsonAnswer(200, `{"login":"ada","id":7}`))
	c := b.connection("github", integrations.Read, 10*time.Second)
	id := a.tokenID("github", b.broker.URL, integrations.NewSecret("rt1.k.fake1"))
	if ok, err := a.shared.lease(t.Context(), id, 2*time.Second, time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	start := time.Now()
	if out := b.send(b.order(c, "whoami", `{}`)); out.code() != "ok" {
		t.Fatalf("%s: %+v", out.code(), out.Error)
	}
	if d := time.Since(start); d < time.Second || d > 10*time.Second {
		t.Errorf("it took %s", d)
	}
	// The dead one's late release takes nothing from whoever came after it.
	if ok, err := b.shared.lease(t.Context(), id, 2*time.Second, time.Now()); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := a.shared.release(t.Context(), id); err == nil {
		t.Error("a lease was given back by whoever had lost it")
	}
	if ok, _ := a.shared.lease(t.Context(), id, 2*time.Second, time.Now()); ok {
		t.Error("two have the lease")
	}
}

func TestReplicasWithoutStore(t *testing.T) {
	a, _, srv := replicas(t)
	a.rotates(3600)
	write := a.delivery(a.order(a.connection("github", integrations.Write, 0), "open_issue", openIssue))
	read := a.delivery(a.order(a.connection("github", integrations.Read, 10*time.Second), "whoami", `{}`))
	srv.Shutdown()
	srv.WaitForShutdown()
	if out := a.read(a.ada, read); out.code() != custody.CodeTemporary {
		t.Errorf("a rotation: %s", out.code())
	}
	if out := a.read(a.ada, write); out.code() != custody.CodeTemporary {
		t.Errorf("a write: %s", out.code())
	}
	if n, m := len(a.broker.requests()), len(a.provider.requests()); n != 0 || m != 0 {
		t.Errorf("%d calls to the broker, %d to the provider", n, m)
	}
}
