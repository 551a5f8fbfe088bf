package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

var _ = threat("R7_pair_is_kept_before_use", func(t *testing.T) {
	// The pair is on the disk, sealed to its member, before the provider sees it.
	var s *stage
	var at func(string)
	s = newStage(t, func(c *Config) {
		c.Step = func(name string) {
			if at != nil {
				at(name)
			}
		}
	})
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	var order []string
	at = func(name string) {
		order = append(order, name)
		if name != "use" {
			return
		}
		if w := must(s.Waiting(t.Context())); len(w) != 1 || s.handback(w[0]).Secret.Reveal() != "at2-fake" {
			t.Errorf("%d hand-backs wait when the pair is used", len(w))
		}
	}
	s.want(t, s.send(s.order(c, "whoami", `{}`)), "ok", 1, 1)
	if fmt.Sprint(order) != "[rotate outbox use used send]" {
		t.Errorf("the steps were %v", order)
	}

	// A crash at each step: from the outbox on nothing is lost; before it, the answer of the
	// broker is lost and said to be.
	for _, step := range []string{"rotate", "outbox", "use", "used", "send"} {
		s := newStage(t, func(c *Config) {
			c.Step = func(name string) {
				if at != nil {
					at(name)
				}
			}
		})
		s.rotates(3600)
		s.provider.answer(me)
		c := s.connection("github", integrations.Read, 10*time.Second)
		o := s.order(c, "whoami", `{}`)
		d := s.delivery(o)
		at = func(name string) {
			if name == step {
				panic("a crash at " + name)
			}
		}
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: there was no crash", step)
				}
			}()
			s.Handle(t.Context(), d)
		}()
		at = nil
		s.restart()
		if step == "rotate" {
			s.want(t, s.read(s.ada, d), custody.CodeReconnect, 0, 0) // it may have been redeemed: never a second time
			continue
		}
		next, err := c.Take(s.handback(must(s.Waiting(t.Context()))[0]))
		if err != nil || next.Secret.Reveal() != "at2-fake" || next.Refresh.Reveal() != "rt1.k.fake2" {
			t.Errorf("%s: %v, %v", step, next, err)
		}
		s.forget()
		s.want(t, s.read(s.ada, d), "ok", 1, 0)
	}
})

var _ = threat("R7_nobody_waits_for_it", func(t *testing.T) {
	// Who asked goes away while the broker is asked: the pair is kept all the same.
	s := newStage(t)
	ctx, gone := context.WithCancel(t.Context())
	s.refreshes(func(http.ResponseWriter, int, string) *custody.RefreshAnswer {
		gone()
		time.Sleep(50 * time.Millisecond)
		return &custody.RefreshAnswer{Secret: secret("at2-fake"), Refresh: secret("rt1.k.fake2"), ExpiresIn: 3600}
	})
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	o := s.order(c, "whoami", `{}`)
	s.Handle(ctx, s.delivery(o))
	w := must(s.Waiting(t.Context()))
	if len(w) != 1 {
		t.Fatalf("%d hand-backs wait", len(w))
	}
	if next, err := c.Take(s.handback(w[0])); err != nil || next.Secret.Reveal() != "at2-fake" {
		t.Errorf("%v %v", next, err)
	}
	s.forget()
	s.want(t, s.send(o.anew()), "ok", 1, 0) // and served to whoever comes after
})

// anew is the same operation, confirmed anew with the same old connection.
func (o *order) anew() *order {
	n := *o
	n.id, n.envelope = custody.NewID(), nil
	g := *o.grant
	g.ID = custody.NewID()
	n.grant = &g
	return &n
}

var _ = threat("R8_one_redemption", func(t *testing.T) {
	// Fifty at once, on two processes with one folder: one is redeemed, fifty succeed.
	s := newStage(t, func(c *Config) { c.MaxPerMember = 100 })
	two := s.second()
	s.now.forward(time.Minute)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	var all []Delivery
	for range 50 {
		all = append(all, s.delivery(s.order(c, "whoami", `{}`)))
	}
	var wg sync.WaitGroup
	for i, d := range all {
		x := s
		if i%2 == 1 {
			x = two
		}
		wg.Go(func() {
			if out := x.read(s.ada, d); out.code() != "ok" {
				t.Errorf("%d: %s %+v", i, out.code(), out.Error)
			} else if h := s.handback(out.handbacks[0]); h.Secret.Reveal() != "at2-fake" {
				t.Errorf("%d: another pair", i)
			}
		})
	}
	wg.Wait()
	if p, b := s.calls(); p != 50 || b != 1 {
		t.Errorf("%d calls of the provider, %d of the broker", p, b)
	}
	for _, r := range s.provider.requests() {
		if r.Authorization != "Bearer at2-fake" {
			t.Errorf("the provider saw %s", r.Authorization)
			break
		}
	}
})

var _ = threat("R8_a_loser_takes_nothing_away", func(t *testing.T) {
	// The broker says that the old token is dead: whoever brings it never costs the winner her pair.
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	first := s.send(s.order(c, "whoami", `{}`))
	late := s.order(c, "whoami", `{}`)
	next := s.take(c, first)
	s.restart()
	s.now.forward(20 * time.Minute)
	late.grant.IAT, late.grant.Exp = s.now.now().Unix(), s.now.now().Add(time.Minute).Unix()
	s.forget()
	s.want(t, s.send(late), custody.CodeRotated, 0, 0)
	s.want(t, s.send(s.order(next, "whoami", `{}`)), "ok", 1, 0)
	// Eve has the old token: she gets nothing, and it changes nothing.
	s.forget()
	late.id, late.member = custody.NewID(), s.eve
	s.want(t, s.send(late), custody.CodeReconnect, 0, 0)
	s.want(t, s.send(s.order(next, "whoami", `{}`)), "ok", 1, 0)
})

var _ = threat("R9_no_hand_back", func(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	d := s.delivery(s.order(c, "whoami", `{}`))

	// Nobody is known for the message: there is no key to which a pair could be sealed.
	d.Author = custody.PublicKey{}
	if _, err := s.Handle(t.Context(), d); !errors.Is(err, custody.ErrForged) {
		t.Errorf("no author: %v", err)
	}
	// A pair that could not be counted on is not asked for.
	o := s.order(c, "whoami", `{}`)
	o.grant.Pair = 1 << 52
	s.want(t, s.send(o), custody.CodeNoHandBack, 0, 0)
	if must(s.Counters(t.Context())).Rotations != 0 {
		t.Error("a rotation is counted")
	}
	// A disk that takes nothing: nothing is redeemed.
	o = s.order(c, "whoami", `{}`)
	d = s.delivery(o)
	s.store.db.Close()
	out := s.read(s.ada, d)
	if out.code() == "ok" {
		t.Error("it ran without a disk")
	}
	if p, b := s.calls(); p != 0 || b != 0 {
		t.Errorf("%d and %d calls", p, b)
	}
})

var _ = threat("R9_disk_fails_in_between", func(t *testing.T) {
	// The disk fails while the broker is asked: the pair goes back all the same, and is not used.
	for _, access := range []integrations.Access{integrations.Read, integrations.Write} {
		var s *stage
		s = newStage(t, func(c *Config) {
			c.Step = func(name string) {
				if name == "rotate" {
					s.store.db.Close()
				}
			}
		})
		s.rotates(3600)
		s.provider.answer(opened)
		c := s.connection("github", access, 10*time.Second)
		o := s.order(c, "whoami", `{}`)
		if access == integrations.Write {
			o = s.order(c, "open_issue", openIssue)
		}
		out := s.send(o)
		s.want(t, out, custody.CodeNoHandBack, 0, 1)
		if next := s.take(c, out); next.Refresh.Reveal() != "rt1.k.fake2" {
			t.Errorf("%s: the pair is %s", access, next.Refresh.Reveal())
		}
	}
})
