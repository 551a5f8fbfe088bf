package sidecar

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

var _ = threat("G1_lifted_and_forged", func(t *testing.T) {
	s := newStage(t)
	s.provider.answer(opened)
	c := s.connection("github", integrations.Write, 0)
	o := s.order(c, "open_issue", openIssue)
	d := s.delivery(o)

	// Every field of the header, changed in turn.
	var e map[string]any
	json.Unmarshal(d.Data, &e)
	for field, other := range map[string]any{
		"space": "space-2", "thread": "thread-2", "op": custody.NewID(), "from": s.eve.Public().ID(), "to": s.eve.Public().ID(),
		"purpose": "revoke", "day": s.eve.Public().ID(), "tag": strings.Repeat("A", 43), "v": 2, "suite": "none",
	} {
		changed := make(map[string]any)
		for k, v := range e {
			changed[k] = v
		}
		changed[field] = other
		x := d
		x.Data = must(json.Marshal(changed))
		if field == "space" {
			x.Space = "space-2" // as it stands there
		}
		if field == "thread" {
			x.Thread = "thread-2"
		}
		if all, err := s.Handle(t.Context(), x); err == nil {
			t.Errorf("%s: it is answered, %d times", field, len(all))
		}
	}
	s.want(t, outcome{}, "none", 0, 0)

	// Mallory posts Ada's message, and Ada's grant in a message of her own.
	x := d
	x.Author = s.eve.Public()
	s.want(t, s.read(s.eve, x), "none", 0, 0)
	x.Author, x.Thread = s.ada.Public(), "thread-2"
	s.want(t, s.read(s.ada, x), "none", 0, 0)
	grant := must(o.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, o.id))
	lifted := *o
	lifted.member, lifted.envelope = s.eve, grant
	s.want(t, s.send(&lifted), custody.CodeAuthor, 0, 0)
	// Her own grant for another op, thread or space is no better.
	for _, g := range []*custody.Envelope{
		must(o.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, custody.NewID())),
		must(o.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, "thread-2", o.id)),
		must(o.grant.Seal(s.ada, s.bot.Public(), nil, "space-2", testThread, o.id)),
	} {
		y := *o
		y.envelope = g
		s.want(t, s.send(&y), custody.CodeAuthor, 0, 0)
	}
	// A grant whose tag was made by another is hers by name only.
	var ge map[string]any
	json.Unmarshal(must(grant.Marshal()), &ge)
	ge["tag"] = strings.Repeat("A", 43)
	y := *o
	y.envelope = must(custody.ParseEnvelope(must(json.Marshal(ge))))
	s.want(t, s.send(&y), custody.CodeAuthor, 0, 0)

	// Nobody else opens the result, and a forged one does not open.
	all := must(s.Handle(t.Context(), d))
	if err := s.eve.OpenMessage(all[0], s.bot.Public(), nil, new(custody.Result)); !errors.Is(err, custody.ErrNotMine) {
		t.Errorf("Mallory opens the result: %v", err)
	}
	forged := must(s.eve.SealMessage(s.ada.Public(), nil, custody.Header{Space: testSpace, Thread: testThread, Op: o.id},
		&custody.Result{V: 2, ID: o.id, OK: true, Result: json.RawMessage(`1`)}))
	if err := s.ada.OpenMessage(forged, s.bot.Public(), nil, new(custody.Result)); !errors.Is(err, custody.ErrForged) {
		t.Errorf("a forged result: %v", err)
	}
})

var _ = threat("G2_hand_backs", func(t *testing.T) {
	s := newStage(t)
	s.rotates(20) // short, so that each operation renews
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	other := s.connection("github", integrations.Read, 10*time.Second)
	other.Refresh = secret("rt1.k.other1")
	one := s.handback(s.send(s.order(c, "whoami", `{}`)).handbacks[0])
	theirs := s.handback(s.send(s.order(other, "whoami", `{}`)).handbacks[0])
	c2, err := c.Take(one)
	if err != nil {
		t.Fatal(err)
	}
	s.now.forward(time.Minute)
	s.restart()
	two := s.handback(s.send(s.order(c2, "whoami", `{}`)).handbacks[0])
	if two.Pair != 3 {
		t.Fatalf("the second is %d", two.Pair)
	}
	edit := func(h *custody.Handback, f func(*custody.Handback)) *custody.Handback {
		n := *h
		f(&n)
		return &n
	}
	for _, x := range []struct {
		name string
		c    *custody.Credential
		h    *custody.Handback
		want error
	}{
		{"another account's", c, theirs, custody.ErrLink},
		{"another account's, renamed", c, edit(theirs, func(h *custody.Handback) { h.Credential = c.ID }), custody.ErrLink},
		{"replayed", c2, one, custody.ErrOlder},
		{"the second first", c, two, custody.ErrGap},
		{"a huge counter", c, edit(one, func(h *custody.Handback) { h.Pair = 1 << 50 }), custody.ErrMalformed},
		{"one further", c, edit(one, func(h *custody.Handback) { h.Pair = 3 }), custody.ErrGap},
		{"another secret", c, edit(one, func(h *custody.Handback) { h.Secret = secret("at-eve") }), custody.ErrLink},
		{"another token", c, edit(one, func(h *custody.Handback) { h.Refresh = secret("rt1.k.eve") }), custody.ErrLink},
	} {
		if _, err := x.c.Take(x.h); !errors.Is(err, x.want) {
			t.Errorf("%s: %v, want %v", x.name, err, x.want)
		}
	}
	// In their order, also as they wait after a restart.
	s.restart()
	c3 := c
	for _, e := range must(s.Waiting(t.Context())) {
		h := s.handback(e)
		if h.Credential != c.ID {
			continue
		}
		if c3, err = c3.Take(h); err != nil {
			t.Fatal(err)
		}
	}
	if c3.Pair != 3 || c3.Refresh.Reveal() != two.Refresh.Reveal() {
		t.Errorf("the pair is %d %s", c3.Pair, c3.Refresh.Reveal())
	}
	// An ack drops them up to its pair, those of that connection alone, and Eve's word drops none.
	s.tell(s.eve, &custody.Ack{Credential: c.ID, Pair: 9})
	s.tell(s.ada, &custody.Ack{Credential: c.ID, Pair: 2})
	if w := must(s.Waiting(t.Context())); len(w) != 2 {
		t.Errorf("%d wait", len(w))
	}
	s.tell(s.ada, &custody.Ack{Credential: c.ID, Pair: 3})
	if w := must(s.Waiting(t.Context())); len(w) != 1 || s.handback(w[0]).Credential != other.ID {
		t.Errorf("%d wait", len(w))
	}
})

var _ = threat("G4_a_write_runs_once", func(t *testing.T) {
	stage := func(t *testing.T, left time.Duration) (*stage, *order, Delivery) {
		s := newStage(t)
		s.rotates(3600)
		s.provider.answer(opened)
		c := s.connection("github", integrations.Write, left)
		o := s.order(c, "open_issue", openIssue)
		return s, o, s.delivery(o)
	}
	t.Run("delivered again", func(t *testing.T) {
		s, _, d := stage(t, 0)
		for range 3 {
			s.want(t, s.read(s.ada, d), "ok", 1, 0)
		}
		s.restart()
		s.want(t, s.read(s.ada, d), "ok", 1, 0)
		s.now.forward(24*time.Hour - time.Minute) // as long as it is in the journal
		if err := s.store.sweep(t.Context(), s.Sidecar.now().Unix()); err != nil {
			t.Fatal(err)
		}
		s.want(t, s.read(s.ada, d), "ok", 1, 0)
		s.now.forward(48 * time.Hour)
		if err := s.store.sweep(t.Context(), s.Sidecar.now().Unix()); err != nil {
			t.Fatal(err)
		}
		s.want(t, s.read(s.ada, d), custody.CodeExpired, 1, 0)
	})
	t.Run("a crash in between", func(t *testing.T) {
		for _, step := range []string{"journal", "use", "used", "send"} {
			s, _, d := stage(t, 0)
			s.Sidecar.step = func(name string) {
				if name == step {
					panic("a crash at " + name)
				}
			}
			func() {
				defer func() { recover() }()
				s.Handle(t.Context(), d)
			}()
			before, _ := s.calls()
			s.restart()
			want := custody.CodeUnknown
			if step == "send" {
				want = "ok"
			}
			s.want(t, s.read(s.ada, d), want, before, 0)
			if before > 1 {
				t.Errorf("%s: %d calls", step, before)
			}
		}
	})
	t.Run("a restored disk", func(t *testing.T) {
		s, _, d := stage(t, 0)
		s.Sidecar.Close(t.Context())
		kept := t.TempDir()
		copyDir(t, s.dir, kept)
		s.now.forward(-time.Minute)
		s.start()
		s.now.forward(time.Minute)
		s.want(t, s.read(s.ada, d), "ok", 1, 0)
		s.Sidecar.Close(t.Context())
		if err := os.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		copyDir(t, kept, s.dir)
		s.start()
		out := s.read(s.ada, d)
		s.want(t, out, custody.CodeRestarted, 1, 0)
		if out.Error.RetryAfter < 1 || out.Error.RetryAfter > 31 {
			t.Errorf("it is to be tried again after %d s", out.Error.RetryAfter)
		}
		// It counts down; and however long one waits, that message does not run.
		s.now.forward(40 * time.Second)
		s.want(t, s.read(s.ada, d), custody.CodeRestarted, 1, 0)
		// What is confirmed from then on runs.
		s.want(t, s.send(s.order(s.connection("github", integrations.Write, 0), "open_issue", openIssue)), "ok", 2, 0)
	})
	t.Run("an id of its own", func(t *testing.T) {
		s, _, d := stage(t, 0)
		s.restart()
		s.want(t, s.read(s.ada, d), custody.CodeRestarted, 0, 0)
		d.Own = true
		s.want(t, s.read(s.ada, d), "ok", 1, 0)
	})
	t.Run("two processes", func(t *testing.T) {
		s, _, d := stage(t, 0)
		s.now.forward(-time.Minute)
		two := s.second()
		s.now.forward(time.Minute)
		var wg sync.WaitGroup
		for i := range 16 {
			x := s
			if i%2 == 1 {
				x = two
			}
			wg.Go(func() {
				if code := x.read(s.ada, d).code(); code != "ok" && code != custody.CodeUnknown {
					t.Errorf("%s", code)
				}
			})
		}
		wg.Wait()
		s.want(t, s.read(s.ada, d), "ok", 1, 0)
		s.want(t, two.read(s.ada, d), "ok", 1, 0)
	})
	t.Run("the same ids with the pair", func(t *testing.T) {
		s, _, _ := stage(t, 0)
		c := s.connection("github", integrations.Write, 3*time.Hour) // so that the key stays at home
		o := s.order(c, "open_issue", openIssue)
		s.accepts(opened, "at2-fake")
		s.want(t, s.send(o), custody.CodeNeedsPair, 1, 0)
		s.want(t, s.read(s.ada, s.delivery(o)), custody.CodeNeedsPair, 1, 0) // without the pair it never runs again
		again := s.remint(o, c, func(r *custody.GrantRequest) { r.NeedsPair = true })
		s.want(t, s.send(again), "ok", 3, 1)
		s.restart()
		s.want(t, s.send(again), "ok", 3, 1)
		s.want(t, s.send(o), "ok", 3, 1)
	})
	t.Run("the same ids for a day", func(t *testing.T) {
		// What came a second time is remembered until its own end, not the first one's.
		s, _, _ := stage(t, 0)
		c := s.connection("github", integrations.Write, 72*time.Hour)
		o := s.order(c, "open_issue", openIssue)
		s.accepts(opened, "at2-fake")
		s.want(t, s.send(o), custody.CodeNeedsPair, 1, 0)
		s.now.forward(24*time.Hour + time.Minute)
		again := s.remint(o, c, func(r *custody.GrantRequest) { r.NeedsPair = true })
		s.want(t, s.send(again), "ok", 3, 1)
		s.now.forward(90 * time.Second)
		if err := s.store.sweep(t.Context(), s.Sidecar.now().Unix()); err != nil {
			t.Fatal(err)
		}
		s.want(t, s.send(again), "ok", 3, 1)
	})
	t.Run("a lost answer", func(t *testing.T) {
		s, _, d := stage(t, 0)
		s.provider.answer(func(w http.ResponseWriter, r *http.Request) { lost(w) })
		s.want(t, s.read(s.ada, d), custody.CodeUnknown, 1, 0)
		s.provider.answer(opened)
		s.want(t, s.read(s.ada, d), custody.CodeUnknown, 1, 0)
		s.restart()
		s.want(t, s.read(s.ada, d), custody.CodeUnknown, 1, 0)
	})
})
