package main

import (
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// endWrites are args for each operation that changes something. One that is not here fails
// the test, so that a new one is not forgotten.
var endWrites = map[string]string{
	"dnsimple.create_record":   `{"account":7,"zone":"example.com","type":"A","name":"www","content":"192.0.2.1"}`,
	"dnsimple.update_record":   `{"account":7,"zone":"example.com","record":5,"content":"192.0.2.1"}`,
	"dnsimple.delete_record":   `{"account":7,"zone":"example.com","record":5}`,
	"dnsimple.register_domain": `{"account":7,"domain":"example.com","registrant":3}`,
	"dnsimple.renew_domain":    `{"account":7,"domain":"example.com"}`,
	"github.open_issue":        openIssue,
	"github.comment":           `{"owner":"golang","repo":"go","issue":1,"body":"Hello"}`,
	"github.close_issue":       `{"owner":"golang","repo":"go","issue":1,"reason":"completed"}`,
	"hubspot.create_contact":   `{"email":"ada@example.com"}`,
	"hubspot.update_contact":   `{"contact":"51","firstname":"Ada"}`,
	"hubspot.create_deal":      `{"dealname":"A deal"}`,
	"linear.create_issue":      `{"team":"ENG","title":"Buy milk"}`,
	"linear.comment":           `{"issue":"ENG-123","body":"Hello"}`,
	"linear.update_issue":      `{"issue":"ENG-123","title":"Buy milk"}`,
	"stripe.create_customer":   `{"name":"Ada"}`,
	"stripe.refund":            endRefund,
	"stripe.void_invoice":      `{"invoice":"in_123"}`,
}

// readGrants brings each operation that changes something under grants to read. A client
// mints none that names it, so they are made by hand: what is held here is the sidecar.
func (s *endCast) readGrants(t *testing.T) {
	all := make(map[string]*endOrder)
	known := 0
	for _, m := range s.registry.All() {
		c := *s.conn
		c.Service, c.Refresh, c.Broker, c.ExpiresAt = m.ID, integrations.Secret{}, "", 0
		for _, op := range m.Ops {
			if op.Access == integrations.Read {
				continue
			}
			name := m.ID + "." + op.Name
			args, ok := endWrites[name]
			if !ok {
				t.Fatalf("endWrites has no args for %s", name)
			}
			known++
			for use, g := range s.readGrantsOf(t, m, &c, op, args) {
				all[name+" under "+use] = &endOrder{id: custody.NewID(), thread: endThread, bot: s.helper.Key, grant: g, service: m.ID, op: op.Name, args: []byte(args)}
			}
		}
	}
	if known != len(endWrites) {
		t.Errorf("endWrites has args for %d operations, the manifests have %d", len(endWrites), known)
	}
	s.touched(t, 0, 0, func() {
		for _, o := range all {
			s.ada.posts(s.ada.seals(o), time.Unix(o.grant.IAT, 0).Add(2*time.Minute))
		}
		for what, o := range all {
			if r := s.ada.result(o.id, 1); outcome(r) != "access" || r.Result != nil {
				t.Errorf("%s is answered %q", what, outcome(r))
			}
		}
	})
	t.Logf("%d operations, %d grants", known, len(all))
}

// readGrantsOf are the grants to read that come closest to covering a change, after a client
// has refused to mint them.
func (s *endCast) readGrantsOf(t *testing.T, m *integrations.Manifest, c *custody.Credential, op *integrations.Op, args string) map[string]*custody.Grant {
	t.Helper()
	once := custody.GrantRequest{Use: custody.UseOnce, Call: s.binds(m, op.Name, args)}
	if op.Preview != nil {
		once.Preview = s.preview
	}
	for _, req := range []custody.GrantRequest{
		{Use: custody.UseResearch, Ops: []string{op.Name}, Question: "q1"},
		{Use: custody.UseStanding, Ops: []string{op.Name}, Charter: "c1"},
	} {
		if _, err := custody.MintGrant(m, c, req, ahead()); !errors.Is(s.saw(err), custody.ErrOnce) {
			t.Errorf("%s.%s is minted for %s: %v", m.ID, op.Name, req.Use, err)
		}
	}
	readOnly := *c
	readOnly.Cap = integrations.Read
	if _, err := custody.MintGrant(m, &readOnly, once, ahead()); !errors.Is(s.saw(err), custody.ErrCap) {
		t.Errorf("%s.%s is minted for a read-only connection: %v", m.ID, op.Name, err)
	}
	text, err := custody.OpDigest(m, op.Name)
	if err != nil {
		t.Fatal(err)
	}
	ops := map[string]custody.Digest{op.Name: text}
	grants := make(map[string]*custody.Grant)
	for use, edit := range map[string]func(*custody.Grant){
		"once":              func(*custody.Grant) {},
		"research":          func(g *custody.Grant) { g.Use, g.Once, g.Ops, g.Question = custody.UseResearch, nil, ops, "q1" },
		"standing":          func(g *custody.Grant) { g.Use, g.Once, g.Ops, g.Charter = custody.UseStanding, nil, ops, "c1" },
		"another operation": func(g *custody.Grant) { g.Once.Op = s.reading(m) },
	} {
		g, err := custody.MintGrant(m, c, once, ahead())
		if err != nil {
			t.Fatal(err)
		}
		g.Access = integrations.Read
		edit(g)
		grants[use] = g
	}
	return grants
}

// reading is an operation of a service that only reads.
func (s *endCast) reading(m *integrations.Manifest) string {
	i := slices.IndexFunc(m.Ops, func(o *integrations.Op) bool { return o.Access == integrations.Read })
	if i < 0 {
		s.t.Fatalf("%s reads nothing", m.ID)
	}
	return m.Ops[i].Name
}

// replayed brings what has run again: it gets the answer that there was, and runs no more.
func (s *endCast) replayed(t *testing.T) {
	o := s.refund()
	e := s.ada.seals(o)
	var first *custody.Result
	s.touched(t, 2, 1, func() {
		s.ada.posts(e, time.Time{})
		first = s.ada.result(o.id, 1)
	})
	if !first.OK {
		t.Fatalf("it is answered %q", outcome(first))
	}
	came := 1
	again := func(e *custody.Envelope) {
		t.Helper()
		came++
		s.ada.posts(e, time.Time{})
		if r := s.ada.result(o.id, came); !r.OK || string(r.Result) != string(first.Result) {
			t.Errorf("time %d it is answered %q %s", came, outcome(r), r.Result)
		}
	}
	s.touched(t, 0, 0, func() {
		again(e)
		again(s.ada.seals(o)) // sealed anew
		more := *o
		more.args = []byte(`{"charge":"ch_123","amount":41}`)
		again(s.ada.seals(&more)) // with other args under the id
		// The one-shot grant in a message of another id.
		lifted := *o
		lifted.id, lifted.lent = custody.NewID(), s.ada.lends(o)
		if r := s.ada.sends(&lifted); outcome(r) != "author" {
			t.Errorf("the grant in another message is answered %q", outcome(r))
		}
	})
	s.sidecar.kill()
	s.touched(t, 0, 0, func() {
		s.sidecar = s.starts("one.sock")
		again(e)
	})
	// All that the bot's log holds, once more: the two reads of the beginning are run again,
	// since ids of reads are kept in memory alone; no change is.
	s.sidecar.kill()
	cursorOf(t, filepath.Join(s.dir, "bot"), s.helper.ID, s.wire.origin(), 0)
	s.touched(t, 2, 0, func() {
		s.sidecar = s.starts("one.sock")
		again(e)
		s.caughtUp(t)
	})
}

// caughtUp waits until the sidecar has handled all of the log of its bot.
func (s *endCast) caughtUp(t *testing.T) {
	t.Helper()
	page, err := s.device("helper").c.Since(t.Context(), 0)
	for err == nil && page.More {
		page, err = s.device("helper").c.Since(t.Context(), page.Cursor)
	}
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(endPatience); cursorOf(t, filepath.Join(s.dir, "bot"), s.helper.ID, s.wire.origin(), -1) < page.Cursor; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the sidecar does not come to the end of its log")
		}
	}
}

// twoAtOnce brings one message to two processes of one folder, many times at once.
func (s *endCast) twoAtOnce(t *testing.T) {
	second := s.starts("two.sock")
	defer second.stop()
	s.settle()
	codes := make(map[string]int)
	for round := range 4 {
		o := s.refund()
		e := s.ada.seals(o)
		results := make(chan *custody.Result, 16)
		bring := func(p *endProcess) string {
			status, code, replies := p.brings(t, s.ada.id.Public(), e)
			if len(replies) != 1 {
				t.Errorf("%d replies, %d %s", len(replies), status, code)
				return ""
			}
			r := s.ada.opens(replies[0])
			results <- r
			return outcome(r)
		}
		came := s.touched(t, 2, 1, func() {
			var all sync.WaitGroup
			defer all.Wait()
			if round == 0 { // the change is under way for as long as the others come
				release := s.provider.held()
				defer release()
				s.ada.posts(e, time.Time{})
				s.awaits(s.provider.reached)
				for range 3 {
					if code := bring(second); code != "unknown_outcome" {
						t.Fatalf("while the change is under way the other process answers %q", code)
					}
				}
			} else {
				s.ada.posts(e, time.Time{}) // one of the two receives it
			}
			for range 4 {
				all.Go(func() { bring(s.sidecar) })
				all.Go(func() { bring(second) })
			}
			if round == 0 {
				// The other's have come; its own wait.
				for end := time.Now().Add(endPatience); len(results) < 3+4 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
				}
			}
		})
		results <- s.ada.result(o.id, 1)
		close(results)
		answers := make(map[string]bool)
		for r := range results {
			codes[outcome(r)]++
			switch {
			case r.OK:
				answers[string(r.Result)] = true
			case outcome(r) != "unknown_outcome":
				t.Errorf("round %d: one of them is answered %q", round, outcome(r))
			}
		}
		if len(answers) != 1 {
			t.Errorf("round %d: there are %d different answers", round, len(answers))
		}
		if came[1].header.Get("Idempotency-Key") == "" {
			t.Error("the change has no idempotency key")
		}
	}
	t.Logf("answers: %v", codes)
}

// powerCut ends the process while the provider has the change: nobody knows how it ended, and
// it does not run again.
func (s *endCast) powerCut(t *testing.T) {
	o := s.refund()
	e := s.ada.seals(o)
	release := s.provider.held()
	defer release()
	s.touched(t, 2, 1, func() {
		s.ada.posts(e, time.Time{})
		s.awaits(s.provider.reached)
		s.sidecar.kill()
		release()
		s.sidecar = s.starts("one.sock")
		for n := 1; n <= 2; n++ {
			if r := s.ada.result(o.id, n); outcome(r) != "unknown_outcome" {
				t.Errorf("time %d it is answered %q", n, outcome(r))
			}
			if n == 1 {
				s.ada.posts(e, time.Time{})
			}
		}
	})
	// What was tapped before the start is asked for again.
	late := s.ada.grantsAt(time.Now(), s.registry.Get("stripe"), s.conn, "refund", endRefund, s.preview)
	s.touched(t, 0, 0, func() {
		if r := s.ada.sends(late); outcome(r) != "restarted" || r.Error.RetryAfter < 1 {
			t.Errorf("it is answered %q", outcome(r))
		}
	})
	s.settle()
	s.touched(t, 2, 1, func() {
		if r := s.ada.sends(s.refund()); !r.OK {
			t.Errorf("a new tap is answered %q", outcome(r))
		}
	})
}
