package sidecar

import (
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

const openIssue = `{"owner":"golang","repo":"go","title":"Buy milk"}`

func TestRead(t *testing.T) {
	s := newStage(t)
	s.provider.answer(jsonAnswer(200, `{"login":"ada","id":7,"token":"SENTINEL"}`))
	c := s.connection("github", integrations.Read, 0)
	out := s.send(s.order(c, "whoami", `{}`))
	if out.code() != "ok" {
		t.Fatalf("%s: %+v", out.code(), out.Error)
	}
	if got := s.provider.requests(); len(got) != 1 || got[0].Authorization != "Bearer at1-fake" {
		t.Errorf("the provider saw %+v", got)
	}
}

func TestWriteRunsOnce(t *testing.T) {
	s := newStage(t)
	s.provider.answer(jsonAnswer(201, `{"number":1,"html_url":"https://github.com/golang/go/issues/1"}`))
	c := s.connection("github", integrations.Write, 0)
	o := s.order(c, "open_issue", openIssue)
	d := s.delivery(o)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if out := s.read(s.ada, d); out.code() != "ok" {
				t.Errorf("%s: %+v", out.code(), out.Error)
			}
		})
	}
	wg.Wait()
	s.restart()
	if out := s.read(s.ada, d); out.code() != "ok" {
		t.Errorf("after a restart: %s: %+v", out.code(), out.Error)
	}
	s.now.forward(time.Hour)
	if out := s.read(s.ada, d); out.code() != "ok" {
		t.Errorf("after its end: %s: %+v", out.code(), out.Error)
	}
	if n := len(s.provider.requests()); n != 1 {
		t.Errorf("the provider was called %d times", n)
	}
}

func TestRotation(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(jsonAnswer(200, `{"login":"ada","id":7}`))
	c := s.connection("github", integrations.Read, 10*time.Second)
	out := s.send(s.order(c, "whoami", `{}`))
	if out.code() != "ok" {
		t.Fatalf("%s: %+v", out.code(), out.Error)
	}
	next := s.take(c, out)
	if next.Secret.Reveal() != "at2-fake" || next.Refresh.Reveal() != "rt1.k.fake2" || next.Pair != 2 {
		t.Errorf("the pair is %s %s %d", next.Secret.Reveal(), next.Refresh.Reveal(), next.Pair)
	}
	// Whoever comes late with the old pair is served from memory, and after a restart by the
	// newest sealed pair.
	late := s.send(s.order(c, "whoami", `{}`))
	if late.code() != "ok" || len(s.broker.requests()) != 1 {
		t.Fatalf("late: %s, %d redemptions", late.code(), len(s.broker.requests()))
	}
	s.restart()
	s.now.forward(15 * time.Minute)
	c.ExpiresAt += 15 * 60
	o := s.order(c, "whoami", `{}`)
	out = s.send(o)
	if out.code() != custody.CodeRotated || len(out.handbacks) != 1 {
		t.Fatalf("after a restart: %s %+v", out.code(), out.Error)
	}
	h := new(custody.Handback)
	if err := s.ada.OpenMessage(out.handbacks[0], s.bot.Public(), nil, h); err != nil {
		t.Fatal(err)
	}
	if _, err := c.TakeRotated(h, out.handbacks[0], *out.Error.Details.Proof); err != nil {
		t.Error(err)
	}
	if n := len(s.broker.requests()); n != 1 {
		t.Errorf("%d redemptions", n)
	}
	if w := must(s.Waiting(t.Context())); len(w) != 1 {
		t.Errorf("%d hand-backs wait", len(w))
	}
}
