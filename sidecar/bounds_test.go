package sidecar

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A gate holds the provider's answers until it is opened.
type gate struct {
	in   chan bool // one for each call that arrived
	shut chan bool
	once sync.Once
}

func (g *gate) open() { g.once.Do(func() { close(g.shut) }) }

func (s *stage) gate(h http.HandlerFunc) *gate {
	g := &gate{in: make(chan bool, 1000), shut: make(chan bool)}
	s.t.Cleanup(g.open) // also where the test has failed
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		g.in <- true
		<-g.shut
		h(w, r)
	})
	return g
}

// waits until so many run and so many wait.
func (s *stage) until(running, waiting int64) {
	s.t.Helper()
	for range 5000 {
		if r, w := s.bounds.now(); r == running && w == waiting {
			return
		}
		time.Sleep(time.Millisecond)
	}
	r, w := s.bounds.now()
	s.t.Fatalf("%d run and %d wait, want %d and %d", r, w, running, waiting)
}

func TestQueueIsFull(t *testing.T) {
	s := newStage(t, func(c *Config) { c.MaxOperations, c.MaxQueue = 2, 3 })
	g := s.gate(me)
	c := s.connection("github", integrations.Read, 0)
	done := make(chan string, 10)
	for range 5 {
		o := s.order(c, "whoami", `{}`)
		go func() { done <- s.send(o).code() }()
	}
	s.until(2, 3)
	start := time.Now()
	out := s.send(s.order(c, "whoami", `{}`))
	if out.code() != custody.CodeBusy || out.Error.RetryAfter < 1 || time.Since(start) > 500*time.Millisecond {
		t.Errorf("%s after %s, to be tried again after %d s", out.code(), time.Since(start), out.Error.RetryAfter)
	}
	n := must(s.Counters(t.Context()))
	if n.Running != 2 || n.Waiting != 3 || n.Busy != 1 || n.Refused != 1 {
		t.Errorf("%+v", n)
	}
	g.open()
	for range 5 {
		if code := <-done; code != "ok" {
			t.Errorf("one that waited: %s", code)
		}
	}
	s.until(0, 0)
	s.want(t, s.send(s.order(c, "whoami", `{}`)), "ok", 6, 0)
	// What was refused for want of room is not remembered: the same message runs later.
	b := newStage(t, func(c *Config) { c.MaxOperations, c.MaxQueue = 1, -1 })
	bg := b.gate(opened)
	w := b.connection("github", integrations.Write, 0)
	first, second := b.order(w, "open_issue", openIssue), b.order(w, "open_issue", openIssue)
	go func() { done <- b.send(first).code() }()
	<-bg.in
	d := b.delivery(second)
	b.want(t, b.read(b.ada, d), custody.CodeBusy, 1, 0)
	bg.open()
	<-done
	b.until(0, 0)
	b.want(t, b.read(b.ada, d), "ok", 2, 0)
}

func TestOneMemberLeavesRoom(t *testing.T) {
	for _, x := range []struct {
		name      string
		set       func(*Config)
		sent, ran int
	}{
		{"as it is set", func(c *Config) { c.MaxOperations, c.MaxPerMember = 4, 3 }, 10, 3},
		{"by default", func(c *Config) { c.MaxOperations = 20 }, 40, 10},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newStage(t, x.set)
			g := s.gate(me)
			c := s.connection("github", integrations.Read, 0)
			var wg sync.WaitGroup
			var busy atomic.Int64
			for range x.sent {
				o := s.order(c, "whoami", `{}`)
				o.member = s.eve
				wg.Go(func() {
					if all := must(s.Handle(context.Background(), s.delivery(o))); s.open(s.eve, all).code() == custody.CodeBusy {
						busy.Add(1)
					}
				})
			}
			for range x.ran {
				<-g.in
			}
			for range 5000 {
				if busy.Load() == int64(x.sent-x.ran) {
					break
				}
				time.Sleep(time.Millisecond)
			}
			s.until(int64(x.ran), 0)
			// Eve has all that she may have; Ada is served at once.
			ran := make(chan string)
			go func() { ran <- s.send(s.order(c, "whoami", `{}`)).code() }()
			select {
			case <-g.in:
			case code := <-ran:
				t.Errorf("Ada is answered %s", code)
			case <-time.After(5 * time.Second):
				t.Error("Ada waits for Eve")
			}
			g.open()
			if code := <-ran; code != "ok" {
				t.Errorf("Ada: %s", code)
			}
			wg.Wait()
			if busy.Load() != int64(x.sent-x.ran) {
				t.Errorf("%d of %d were refused", busy.Load(), x.sent)
			}
		})
	}
}

func TestClose(t *testing.T) {
	s := newStage(t)
	g := s.gate(opened)
	c := s.connection("github", integrations.Write, 0)
	o, other := s.order(c, "open_issue", openIssue), s.order(c, "open_issue", openIssue)
	done := make(chan outcome, 1)
	ctx, gone := context.WithCancel(t.Context())
	go func() {
		all, _ := s.Handle(ctx, s.delivery(o))
		done <- s.open(s.ada, all)
	}()
	<-g.in
	gone() // whoever sent it does not wait any more
	closed := make(chan error, 1)
	go func() { closed <- s.Sidecar.Close(context.Background()) }()
	refused := func() bool {
		_, err := s.Handle(t.Context(), s.delivery(other))
		return errors.Is(err, ErrStopping)
	}
	for range 1000 {
		if s.mu.Lock(); s.stopped {
			s.mu.Unlock()
			break
		}
		s.mu.Unlock()
		time.Sleep(time.Millisecond)
	}
	if !refused() {
		t.Error("a message is taken while it stops")
	}
	if _, err := s.HandleLegacy(t.Context(), s.bot.Public().ID(), s.ada.Public().ID(), s.before("at-fake")); !errors.Is(err, ErrStopping) {
		t.Errorf("a message of before: %v", err)
	}
	select {
	case <-closed:
		t.Error("it does not wait for the write")
	case <-time.After(50 * time.Millisecond):
	}
	g.open()
	if err := <-closed; err != nil {
		t.Error(err)
	}
	if out := <-done; out.code() != "ok" {
		t.Errorf("the write: %s", out.code())
	}
	// It is journalled: after the restart it is answered, and does not run again.
	s.start()
	s.want(t, s.send(o), "ok", 1, 0)

	// It does not wait for ever.
	g = s.gate(opened)
	s.now.forward(time.Hour)
	late := s.order(c, "open_issue", openIssue)
	go s.Handle(context.Background(), s.delivery(late))
	<-g.in
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Sidecar.Close(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closed with a write under way: %v", err)
	}
	g.open()
	s.start()
	out := s.send(late)
	if out.code() != custody.CodeUnknown { // nobody could note how it ended
		t.Errorf("%s", out.code())
	}
}

func TestNothingIsLeft(t *testing.T) {
	// Whatever came, the memory of what runs is empty afterwards, and what is remembered bounded.
	s := newStage(t)
	s.provider.answer(jsonAnswer(200, `{"login":"ada","id":7}`))
	c := s.connection("github", integrations.Read, 0)
	for range 50 {
		s.send(s.order(c, "whoami", `{}`))
	}
	if n := len(s.reads.all); n != 50 || len(s.reads.order) != 50 {
		t.Errorf("%d reads are remembered", n)
	}
	var r readJournal
	for range maxReadEntries + 500 {
		k := opKey{"m", custody.NewID()}
		run, fresh := r.start(k)
		if !fresh {
			t.Fatal("it was there")
		}
		r.finish(k, run, []*custody.Envelope{{CT: make([]byte, 2000)}}, true)
	}
	if len(r.all) != len(r.order) || len(r.all) > maxReadEntries || r.size > maxReadJournal {
		t.Errorf("%d, %d, %d bytes", len(r.all), len(r.order), r.size)
	}
	// One without an answer is never remembered: whoever brings it again is not kept waiting.
	k := opKey{"m", "x"}
	run, _ := r.start(k)
	r.finish(k, run, nil, true)
	if _, fresh := r.start(k); !fresh {
		t.Error("an op without an answer is remembered")
	}
	// Failures of tokens that somebody makes up do not fill the memory.
	var b rests
	for range maxFresh + 100 {
		b.put(custody.NewID(), time.Now(), &BrokerError{Class: Temporary}, fail(custody.CodeTemporary, ""))
	}
	if len(b.all) > maxFresh {
		t.Errorf("%d rests", len(b.all))
	}
}
