package sidecar

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// later is an order with an old connection, minted now.
func (s *stage) later(o *order) *order {
	n := o.anew()
	n.grant.IAT = s.now.now().Unix()
	n.grant.Exp = n.grant.IAT + 60
	return n
}

func TestLateComers(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	o := s.order(c, "whoami", `{}`)
	first := s.send(o)
	s.want(t, first, "ok", 1, 1)
	// For minutes from memory, and after a restart from the hand-off; each time with the hand-back.
	for _, restart := range []bool{false, true} {
		if restart {
			s.restart()
		}
		s.now.forward(4 * time.Minute)
		s.forget()
		out := s.send(s.later(o))
		s.want(t, out, "ok", 1, 0)
		if len(out.handbacks) != 1 || s.handback(out.handbacks[0]).Secret.Reveal() != "at2-fake" {
			t.Errorf("%d hand-backs", len(out.handbacks))
		}
		if a := s.provider.requests()[0].Authorization; a != "Bearer at2-fake" {
			t.Errorf("it ran with %s", a)
		}
	}
	// Later, the newest sealed pair and a proof, which only the one who showed the token can check.
	s.now.forward(4 * time.Minute)
	s.forget()
	late := s.later(o)
	out := s.send(late)
	s.want(t, out, custody.CodeRotated, 0, 0)
	next, err := c.TakeRotated(s.handback(out.handbacks[0]), out.handbacks[0], *out.Error.Details.Proof)
	if err != nil || next.Secret.Reveal() != "at2-fake" {
		t.Fatalf("%v %v", next, err)
	}
	s.want(t, s.send(s.remint(late, next)), "ok", 1, 0) // the same ids, with the newest pair
	// Also after it was acknowledged, and after many days.
	s.tell(s.ada, &custody.Ack{Credential: c.ID, Pair: 2})
	s.now.forward(29 * 24 * time.Hour)
	if err := s.store.sweep(t.Context(), s.Sidecar.now().Unix()); err != nil {
		t.Fatal(err)
	}
	s.restart()
	s.forget()
	out = s.send(s.later(o))
	s.want(t, out, custody.CodeRotated, 0, 0)
	if _, err := c.TakeRotated(s.handback(out.handbacks[0]), out.handbacks[0], *out.Error.Details.Proof); err != nil {
		t.Error(err)
	}
}

// A write that comes with an old pair is answered rotated, and may come once more.
func TestRotatedWrite(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(opened)
	c := s.connection("github", integrations.Write, 10*time.Second)
	s.want(t, s.send(s.order(c, "open_issue", openIssue)), "ok", 1, 1)
	s.now.forward(15 * time.Minute)
	s.forget()
	o := s.order(c, "open_issue", openIssue)
	out := s.send(o)
	s.want(t, out, custody.CodeRotated, 0, 0)
	s.want(t, s.send(o), custody.CodeRotated, 0, 0) // with the old pair again: the journal's answer
	next, err := c.TakeRotated(s.handback(out.handbacks[0]), out.handbacks[0], *out.Error.Details.Proof)
	if err != nil {
		t.Fatal(err)
	}
	again := s.remint(o, next)
	s.want(t, s.send(again), "ok", 1, 0)
	s.want(t, s.send(again), "ok", 1, 0)
}

// The next unattended run works, with the grant that holds the old pair, and the one after a
// restart, and the one after somebody else's operation renewed the line.
func TestStandingRuns(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 2*time.Hour)
	lent := must(c.Lend(s.cfg.Group, s.now.now().Add(7*24*time.Hour), s.now.now(), false))
	run := s.standing(lent, "whoami", `{}`, 6*24*time.Hour)
	s.want(t, s.send(run), "ok", 1, 0)
	for i := range 5 {
		s.now.forward(6 * time.Hour)
		if i%2 == 1 {
			s.restart()
		}
		s.forget()
		s.want(t, s.send(run.again()), "ok", 1, 1)
		s.want(t, s.send(run.again()), "ok", 2, 1)
	}
	// All of them wait for their member, in order.
	next := lent
	var err error
	for _, e := range must(s.Waiting(t.Context())) {
		if next, err = next.Take(s.handback(e)); err != nil {
			t.Fatal(err)
		}
	}
	if next.Pair != 6 || next.Secret.Reveal() != "at6-fake" {
		t.Fatalf("she holds %d %s", next.Pair, next.Secret.Reveal())
	}
	s.tell(s.ada, &custody.Ack{Credential: c.ID, Pair: 6})
	// She renews it by an operation of her own.
	s.now.forward(3 * time.Hour)
	s.forget()
	if next = s.take(next, s.send(s.order(next, "whoami", `{}`))); next.Pair != 7 {
		t.Errorf("she holds %d", next.Pair)
	}
	s.now.forward(3 * time.Hour)
	s.restart()
	s.forget()
	s.want(t, s.send(run.again()), "ok", 1, 1)
	// Past its end nothing of it opens.
	s.now.forward(6 * 24 * time.Hour)
	s.forget()
	s.want(t, s.send(run.again()), custody.CodeExpired, 0, 0)
}

func TestSurprise(t *testing.T) {
	key := func(r *custody.GrantRequest) { r.NeedsPair = true }
	t.Run("a write runs once", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		var ran atomic.Int64
		s.accepts(func(w http.ResponseWriter, r *http.Request) { ran.Add(1); opened(w, r) }, "at2-fake")
		c := s.connection("github", integrations.Write, 3*time.Hour)
		o := s.order(c, "open_issue", openIssue, key)
		out := s.send(o)
		s.want(t, out, "ok", 2, 1)
		if s.take(c, out).Secret.Reveal() != "at2-fake" || ran.Load() != 1 {
			t.Errorf("it ran %d times", ran.Load())
		}
		s.want(t, s.send(o), "ok", 2, 1)
	})
	t.Run("no more than once", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.accepts(me)
		c := s.connection("github", integrations.Read, 3*time.Hour)
		out := s.send(s.order(c, "whoami", `{}`, key))
		s.want(t, out, "unauthorised", 2, 1)
		if next := s.take(c, out); next.Pair != 2 { // it rides on failures too
			t.Errorf("the pair is %d", next.Pair)
		}
	})
	t.Run("not after a rotation of its own", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.accepts(me)
		c := s.connection("github", integrations.Read, 10*time.Second)
		out := s.send(s.order(c, "whoami", `{}`))
		s.want(t, out, "unauthorised", 1, 1)
		if len(out.handbacks) != 1 {
			t.Error("the pair is not handed back")
		}
		// Nor after one that the line made.
		s.restart()
		s.now.forward(2 * time.Minute)
		s.forget()
		s.want(t, s.send(s.order(c, "whoami", `{}`)), "unauthorised", 2, 1)
	})
	t.Run("with the pair, once", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.accepts(opened)
		c := s.connection("github", integrations.Write, 3*time.Hour)
		o := s.order(c, "open_issue", openIssue)
		s.want(t, s.send(o), custody.CodeNeedsPair, 1, 0)
		again := s.remint(o, c, key)
		s.want(t, s.send(again), "unauthorised", 3, 1)
		s.want(t, s.send(again), "unauthorised", 3, 1)
		s.want(t, s.send(s.remint(o, c, key)), "unauthorised", 3, 1)
		s.restart()
		s.want(t, s.send(s.remint(o, c, key)), "unauthorised", 3, 1)
	})
	t.Run("a read with the pair", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.accepts(me, "at2-fake")
		c := s.connection("github", integrations.Read, 3*time.Hour)
		o := s.order(c, "whoami", `{}`)
		s.want(t, s.send(o), custody.CodeNeedsPair, 1, 0)
		s.want(t, s.send(s.remint(o, c, key)), "ok", 3, 1)
		s.want(t, s.send(s.remint(o, c, key)), "ok", 3, 1)
	})
	t.Run("an id that ended otherwise", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.provider.answer(jsonAnswer(404, `{"message":"Not Found"}`))
		c := s.connection("github", integrations.Write, 3*time.Hour)
		o := s.order(c, "open_issue", openIssue)
		s.want(t, s.send(o), "provider", 1, 0)
		s.want(t, s.send(s.remint(o, c, key)), "provider", 1, 0)
	})
}

// Whatever is said of the lifetime, each operation renews once at most, and the pair is kept.
func TestAbsurdLifetimes(t *testing.T) {
	for _, in := range []int64{0, 1, 2, 59, 1 << 40, 1 << 52} {
		t.Run(fmt.Sprint(in), func(t *testing.T) {
			s := newStage(t)
			s.rotates(in)
			s.provider.answer(me)
			c := s.connection("github", integrations.Read, 10*time.Second)
			for i := range 4 {
				s.forget()
				out := s.send(s.order(c, "whoami", `{}`))
				if p, b := s.calls(); out.code() != "ok" || p != 1 || b > 1 || b == 1 && len(out.handbacks) != 1 {
					t.Fatalf("%s %+v: %d and %d calls, %d hand-backs", out.code(), out.Error, p, b, len(out.handbacks))
				}
				for _, e := range out.handbacks {
					if h := s.handback(e); h.Pair > c.Pair {
						c = must(c.Take(h))
					}
				}
				if i == 0 && c.Pair != 2 {
					t.Errorf("the pair is %d", c.Pair)
				}
				s.now.forward(time.Second)
			}
			if (in == 0 || in > 1<<30) && (c.ExpiresAt != 0 || c.Pair != 2) {
				t.Errorf("it ends at %d, and is the pair %d", c.ExpiresAt, c.Pair)
			}
		})
	}
}

// What comes back may be odd: the pair gets to its member all the same.
func TestOddAnswers(t *testing.T) {
	for _, x := range []struct {
		name, refresh string
		same          bool
		keep          map[string]string
	}{
		{"same, and yet another", "rt1.k2.rewrapped", true, nil},
		{"not the same, and yet it is", "rt1.k.fake1", false, nil},
		{"more to keep than fits", "rt1.k.fake2", false, map[string]string{"a": strings.Repeat("x", 47_000)}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newStage(t)
			s.provider.answer(me)
			s.refreshes(func(_ http.ResponseWriter, n int, _ string) *custody.RefreshAnswer {
				return &custody.RefreshAnswer{Secret: secret(fmt.Sprintf("at%d-fake", n+1)), Refresh: secret(x.refresh), Same: x.same, ExpiresIn: 3600, Keep: x.keep}
			})
			c := s.connection("github", integrations.Read, 10*time.Second)
			out := s.send(s.order(c, "whoami", `{}`))
			s.want(t, out, "ok", 1, 1)
			next := s.take(c, out)
			if next.Refresh.Reveal() != x.refresh || next.Secret.Reveal() != "at2-fake" {
				t.Errorf("the pair is %s %s", next.Secret.Reveal(), next.Refresh.Reveal())
			}
			// And it can be renewed again.
			s.now.forward(2 * time.Hour)
			s.restart()
			s.forget()
			if x.keep == nil {
				out = s.send(s.order(next, "whoami", `{}`))
				s.want(t, out, "ok", 1, 1)
				s.take(next, out)
			}
		})
	}
}

// An ack of one connection leaves another's hand-back on its results.
func TestAckOfAnother(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	o := s.order(c, "whoami", `{}`)
	s.send(o)
	s.tell(s.ada, &custody.Ack{Credential: "another", Pair: 9})
	if out := s.send(o.anew()); len(out.handbacks) != 1 {
		t.Error("the hand-back does not ride on the result")
	}
	s.tell(s.ada, &custody.Ack{Credential: c.ID, Pair: 2})
	if out := s.send(o.anew()); len(out.handbacks) != 0 {
		t.Error("it rides though she has it")
	}
}

// A refresh repeats only what the token endpoint tells. What came with the callback alone, such
// as the account that every address needs, stays with the connection.
func TestKeptValuesOutliveARefresh(t *testing.T) {
	s := newStage(t)
	n := 1
	s.broker.answer(func(w http.ResponseWriter, r *http.Request) {
		n++
		seen := s.broker.requests()
		s.sealed(w, []byte(seen[len(seen)-1].Body), &custody.RefreshAnswer{Secret: secret(fmt.Sprintf("at%d-fake", n)), Refresh: secret(fmt.Sprintf("rt1.k.fake%d", n)),
			ExpiresIn: 1, Keep: map[string]string{"told": fmt.Sprint(n)}})
	})
	s.provider.answer(jsonAnswer(200, `{"login":"ada","id":7}`))
	c := s.connection("github", integrations.Read, 10*time.Second)
	c.Keep = map[string]string{"callback": "1", "told": "1"}
	for range 2 {
		c = s.take(c, s.send(s.order(c, "whoami", `{}`)))
		if c.Keep["callback"] != "1" || c.Keep["told"] != fmt.Sprint(n) || len(c.Keep) != 2 {
			t.Errorf("after refresh %d there is kept %v", n-1, c.Keep)
		}
		s.now.forward(2 * time.Second)
	}
}
