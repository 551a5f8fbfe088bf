package sidecar

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// renewing is a stage whose connection to a service is due at each operation, and an order
// for reading with it.
func renewing(t *testing.T, service string, opts ...func(*Config)) (*stage, *custody.Credential, func() *order) {
	s := newStage(t, opts...)
	s.rotates(3600)
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		jsonAnswer(200, `{"login":"ada","id":7,"portalId":1}`)(w, r)
	})
	op := "whoami"
	if service == "hubspot" {
		op = "account_details"
	}
	c := s.connection(service, integrations.Read, 10*time.Second)
	return s, c, func() *order { return s.order(c, op, `{}`) }
}

// Refresh race.

var _ = reported("case_001", func(t *testing.T) { // several refresh the same parent token at once
	s, _, order := renewing(t, "github")
	var wg sync.WaitGroup
	for range 3 {
		o := order()
		wg.Go(func() {
			if out := s.send(o); out.code() != "ok" {
				t.Errorf("%s %+v", out.code(), out.Error)
			}
		})
	}
	wg.Wait()
	s.want(t, outcome{}, "none", 3, 1)
	for _, r := range s.provider.requests() {
		if r.Authorization != "Bearer at2-fake" {
			t.Errorf("it ran with %s", r.Authorization)
		}
	}
	// Nothing of the flight is left, also where it fails.
	f, _, order := renewing(t, "hubspot")
	f.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
		return says(w, 503, `{"class":"temporary"}`)
	})
	f.want(t, f.send(order()), custody.CodeTemporary, 0, 1)
	for _, x := range []*stage{s, f} {
		var leases int
		if err := x.store.db.QueryRow(`SELECT count(*) FROM leases`).Scan(&leases); err != nil || leases != 0 || len(x.flights.all) != 0 {
			t.Errorf("%d leases, %d flights, %v", leases, len(x.flights.all), err)
		}
	}
})

var _ = reported("case_003", func(t *testing.T) { // a rate limit's answer is written over the token
	s, c, order := renewing(t, "github")
	s.refreshes(func(w http.ResponseWriter, n int, _ string) *custody.RefreshAnswer {
		if n > 1 {
			return says(w, 429, `{"class":"temporary","code":"rate_limited","retry_after":60}`)
		}
		return &custody.RefreshAnswer{Secret: secret("at2-fake"), Refresh: secret("rt1.k.fake2"), ExpiresIn: 3600}
	})
	var wg sync.WaitGroup
	for range 5 {
		o := order()
		wg.Go(func() {
			if out := s.send(o); out.code() != "ok" {
				t.Errorf("%s %+v", out.code(), out.Error)
			}
		})
	}
	wg.Wait()
	s.want(t, outcome{}, "none", 5, 1)
	// The second time there is a limit: no pair comes of it.
	next := must(c.Take(s.handback(must(s.Waiting(t.Context()))[0])))
	s.now.forward(2 * time.Hour)
	s.forget()
	out := s.send(s.order(next, "whoami", `{}`))
	s.want(t, out, custody.CodeTemporary, 0, 1)
	if w := must(s.Waiting(t.Context())); len(out.handbacks) != 0 || len(w) != 1 {
		t.Errorf("%d hand-backs, %d wait", len(out.handbacks), len(w))
	}
})

var _ = reported("case_005", func(t *testing.T) { // pairs are stored in another order than they were issued
	s, c, _ := renewing(t, "github")
	s.rotates(20)
	for range 3 {
		c = s.take(c, s.send(s.order(c, "whoami", `{}`)))
		s.now.forward(time.Minute)
	}
	if c.Refresh.Reveal() != "rt1.k.fake4" {
		t.Errorf("she stores %s", c.Refresh.Reveal())
	}
	var last int64
	for _, e := range must(s.Waiting(t.Context())) {
		if h := s.handback(e); h.Pair != last+1 && last != 0 {
			t.Errorf("pair %d after %d", h.Pair, last)
		} else {
			last = h.Pair
		}
	}
	if last != 4 {
		t.Errorf("the newest is %d", last)
	}
})

var _ = reported("case_007", func(t *testing.T) { // a stuck mark: the connection never refreshes again
	var s *stage
	boom := true
	s, _, order := renewing(t, "hubspot", func(c *Config) {
		c.Step = func(name string) {
			if name == "rotate" && boom {
				boom = false
				panic("a refresh that panics")
			}
		}
	})
	s.constant(3600)
	func() {
		defer func() { recover() }()
		s.Handle(t.Context(), s.delivery(order()))
	}()
	s.want(t, s.send(order()), "ok", 1, 1)
	// A context that ends while another one redeems leaves nothing either.
	two, _, order := renewing(t, "hubspot")
	two.constant(3600)
	unlock := must(two.flights.lock(t.Context(), "x"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := two.flights.lock(ctx, "x"); err == nil {
		t.Error("two hold one lock")
	}
	unlock()
	if len(two.flights.all) != 0 {
		t.Errorf("%d locks are left", len(two.flights.all))
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	two.Handle(gone, two.delivery(order()))
	two.want(t, two.send(order()), "ok", 1, 1)
	// A process that died with the lease holds it for a minute, no longer.
	three, c, order := renewing(t, "hubspot", func(c *Config) { c.OpTimeout = 300 * time.Millisecond })
	three.constant(3600)
	id := three.tokenID(c.Service, c.Broker, c.Refresh)
	if _, err := three.store.db.Exec(`INSERT INTO leases VALUES (?, 'the dead', ?)`, id, three.now.now().Add(time.Minute).UnixMilli()); err != nil {
		t.Fatal(err)
	}
	three.want(t, three.send(order()), custody.CodeTemporary, 0, 0)
	three.now.forward(time.Hour)
	three.want(t, three.send(order()), "ok", 1, 1)
})

// Lost pair.

var _ = reported("case_009", func(t *testing.T) { // saving fails, and success is said
	var s *stage
	s, c, order := renewing(t, "github", func(c *Config) {
		c.Step = func(name string) {
			if name == "rotate" {
				s.store.db.Close()
			}
		}
	})
	out := s.send(order())
	s.want(t, out, custody.CodeNoHandBack, 0, 1)
	if s.take(c, out).Refresh.Reveal() != "rt1.k.fake2" {
		t.Error("the pair is lost")
	}
})

var _ = reported("case_011", func(t *testing.T) { // half of a pair is written
	s, _, order := renewing(t, "github")
	s.want(t, s.send(order()), "ok", 1, 1)
	h := s.handback(must(s.Waiting(t.Context()))[0])
	if h.Secret.Reveal() != "at2-fake" || h.Refresh.Reveal() != "rt1.k.fake2" || h.ExpiresAt == 0 || h.Pair != 2 {
		t.Errorf("%+v", h)
	}
	// All of it or nothing: the outbox fails, and the token is not old, nor is there a line.
	s, c, order := renewing(t, "github")
	if _, err := s.store.db.Exec(`CREATE TRIGGER full BEFORE INSERT ON outbox BEGIN SELECT RAISE(ABORT, 'full'); END`); err != nil {
		t.Fatal(err)
	}
	out := s.send(order())
	s.want(t, out, custody.CodeNoHandBack, 0, 1)
	s.take(c, out)
	var lines, olds int
	s.store.db.QueryRow(`SELECT count(*) FROM lines`).Scan(&lines)
	s.store.db.QueryRow(`SELECT count(*) FROM tokens WHERE state = 'old'`).Scan(&olds)
	if lines != 0 || olds != 0 {
		t.Errorf("%d lines, %d old tokens", lines, olds)
	}
})

// losing lets the broker redeem the first token and lose its answer; whoever brings the same
// token again is served, where the provider has a grace.
func losing(s *stage, again bool) {
	s.refreshes(func(w http.ResponseWriter, n int, refresh string) *custody.RefreshAnswer {
		switch {
		case n == 1:
			return lost(w)
		case !again:
			return says(w, 409, `{"class":"dead","code":"bad_refresh_token"}`)
		}
		return &custody.RefreshAnswer{Secret: secret("at2-fake"), Refresh: secret("rt1.k.fake2"), ExpiresIn: 3600}
	})
}

var _ = reported("case_013", func(t *testing.T) { // the answer never arrives; the old token is refused from then on
	// Without a grace it is said at once, in other words than a dead connection's, and the
	// token is never shown again.
	s, _, order := renewing(t, "github")
	losing(s, true)
	out := s.send(order())
	s.want(t, out, custody.CodeReconnect, 0, 1)
	if !strings.Contains(out.Error.Message, "lost on the way") {
		t.Errorf("it says: %s", out.Error.Message)
	}
	s.now.forward(time.Hour)
	s.restart()
	s.want(t, s.send(s.later(order())), custody.CodeReconnect, 0, 1)

	// With one, it is tried once more, within it.
	s, c, order := renewing(t, "github", graceful)
	losing(s, true)
	s.want(t, s.send(order()), custody.CodeTemporary, 0, 1)
	s.restart() // also after a crash
	s.now.forward(5 * time.Second)
	out = s.send(order())
	s.want(t, out, "ok", 1, 2)
	s.take(c, out)

	s, _, order = renewing(t, "github", graceful)
	losing(s, true)
	s.want(t, s.send(order()), custody.CodeTemporary, 0, 1)
	s.now.forward(time.Minute)
	s.want(t, s.send(order()), custody.CodeReconnect, 0, 1) // too late

	s, _, order = renewing(t, "github", graceful)
	s.refreshes(func(w http.ResponseWriter, n int, refresh string) *custody.RefreshAnswer { return lost(w) })
	for i, want := range []string{custody.CodeTemporary, custody.CodeTemporary, custody.CodeReconnect, custody.CodeReconnect} {
		s.want(t, s.send(order()), want, 0, min(i+1, 2))
		s.now.forward(2 * time.Second)
	}

	// The broker's own word that the provider may have redeemed it counts, whatever the class.
	for _, class := range []string{"temporary", "misconfigured"} {
		for service, want := range map[string]string{"github": custody.CodeReconnect, "hubspot": custody.CodeTemporary} {
			s, _, order := renewing(t, service)
			s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
				return says(w, 503, `{"class":"`+class+`","code":"x","spent":true}`)
			})
			s.want(t, s.send(order()), want, 0, 1)
		}
	}

	// A constant token is lost by nothing.
	s, _, order = renewing(t, "hubspot")
	losing(s, true)
	s.want(t, s.send(order()), custody.CodeTemporary, 0, 1)
	s.now.forward(time.Minute)
	s.want(t, s.send(order()), "ok", 1, 2)
})

var _ = reported("case_015", func(t *testing.T) { // who asked hangs up; a 400 counts as permanent
	s, c, order := renewing(t, "github")
	ctx, gone := context.WithCancel(t.Context())
	s.refreshes(func(w http.ResponseWriter, n int, refresh string) *custody.RefreshAnswer {
		gone()
		return &custody.RefreshAnswer{Secret: secret("at2-fake"), Refresh: secret("rt1.k.fake2"), ExpiresIn: 3600}
	})
	s.Handle(ctx, s.delivery(order()))
	c = must(c.Take(s.handback(must(s.Waiting(t.Context()))[0])))
	if c.Secret.Reveal() != "at2-fake" {
		t.Error("another pair")
	}
	for _, status := range []int{400, 401, 403, 409} {
		for _, body := range []string{`{"message":"Bad Request"}`, `Unauthorized`, `<html>`, ``, `{"class":"unheard-of"}`} {
			s, _, order := renewing(t, "github")
			s.refreshes(func(w http.ResponseWriter, n int, refresh string) *custody.RefreshAnswer {
				return says(w, status, body)
			})
			s.want(t, s.send(order()), custody.CodeTemporary, 0, 1)
			if t.Failed() {
				t.Fatal(status, body)
			}
		}
	}
})

// Refresh omits the token.

var _ = reported("case_017", func(t *testing.T) { // no refresh token in the answer: the old one is lost
	s, c, order := renewing(t, "hubspot")
	s.constant(3600)
	out := s.send(order())
	s.want(t, out, "ok", 1, 1)
	h := s.handback(out.handbacks[0])
	if !h.Refresh.IsZero() {
		t.Error("the hand-back holds one though none is new")
	}
	if c = s.take(c, out); c.Refresh.Reveal() != "rt1.k.fake1" || c.Broker != s.broker.URL {
		t.Errorf("she stores %q", c.Refresh.Reveal())
	}
})

var _ = reported("case_019", func(t *testing.T) { // null after one use
	s, c, _ := renewing(t, "hubspot")
	s.constant(3600)
	for i := range 3 {
		c = s.take(c, s.send(s.order(c, "account_details", `{}`)))
		if c.Refresh.Reveal() != "rt1.k.fake1" || c.Secret.Reveal() != fmt.Sprintf("at%d-fake", i+2) {
			t.Errorf("%d: she stores %q %q", i, c.Secret.Reveal(), c.Refresh.Reveal())
		}
		s.now.forward(2 * time.Hour)
	}
})
