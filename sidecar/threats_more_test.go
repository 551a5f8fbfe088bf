package sidecar

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

var _ = threat("G5_another_members_window", func(t *testing.T) {
	s := newStage(t)
	s.provider.answer(me)
	c := s.connection("github", integrations.Write, 0)
	for _, use := range []custody.Use{custody.UseResearch, custody.UseStanding} {
		req := custody.GrantRequest{Use: use, Ops: []string{"whoami"}}
		if use == custody.UseResearch {
			req.Question = "say-1"
		} else {
			req.Charter = "charter-1"
		}
		s.forget()
		o := s.kept(c, req, "whoami", `{}`)
		o.envelope = must(o.grant.Seal(s.ada, s.bot.Public(), nil, testSpace, testThread, ""))
		s.want(t, s.send(o), "ok", 1, 0)
		// Mallory asks in the same thread.
		m := *o
		m.id, m.member = custody.NewID(), s.eve
		s.want(t, s.send(&m), custody.CodeAuthor, 1, 0)
		d := s.delivery(o)
		d.Author = s.eve.Public()
		s.want(t, s.read(s.eve, d), "none", 1, 0)
		// And a model that was talked into a change has no grant for it, whatever it names.
		w := *o
		w.id, w.op, w.args = custody.NewID(), "open_issue", openIssue
		s.want(t, s.send(&w), custody.CodeAccess, 1, 0)
		g := *o.grant
		g.Ops = map[string]custody.Digest{"open_issue": must(custody.OpDigest(s.registry.Get("github"), "open_issue"))}
		w.id, w.grant, w.envelope = custody.NewID(), &g, nil
		s.want(t, s.send(&w), custody.CodeAccess, 1, 0)
	}
})

var _ = threat("G6_what_was_read_is_what_runs", func(t *testing.T) {
	s := newStage(t)
	issue := jsonAnswer(200, `{"number":1,"title":"Buy milk","state":"open","html_url":"https://github.com/golang/go/issues/1"}`)
	s.provider.answer(func(w http.ResponseWriter, r *http.Request) { issue(w, r) })
	c := s.connection("github", integrations.Write, 0)
	other := custody.Digest{1}
	for name, f := range map[string]func(*custody.Grant){
		"the operation's text": func(g *custody.Grant) { g.Once.Text = other },
		"the args":             func(g *custody.Grant) { g.Once.Args = other },
		"the sentence":         func(g *custody.Grant) { g.Once.Say = other },
	} {
		o := s.order(c, "open_issue", openIssue)
		f(o.grant)
		out := s.send(o)
		s.want(t, out, custody.CodeConsent, 0, 0)
		if t.Failed() {
			t.Fatal(name)
		}
	}
	o := s.order(c, "open_issue", openIssue)
	o.args = `{"owner":"golang","repo":"go","title":"Sell milk"}`
	s.want(t, s.send(o), custody.CodeConsent, 0, 0)
	// A kept grant whose operation has another text by now.
	k := s.kept(c, custody.GrantRequest{Use: custody.UseAsks, Ops: []string{"open_issue"}}, "open_issue", openIssue)
	k.grant.Ops["open_issue"] = other
	s.want(t, s.send(k), custody.CodeConsent, 0, 0)

	// The preview is looked at again, just before: only what was shown is closed.
	args := `{"owner":"golang","repo":"go","issue":1}`
	call := must(s.registry.Get("github").Bind("close_issue", must(integrations.ParseArgs([]byte(args))), nil))
	shown := must(s.exec.Do(t.Context(), must(call.Preview()), c.For()))
	s.forget()
	preview := func(r *custody.GrantRequest) { r.Preview = shown }
	s.want(t, s.send(s.order(c, "close_issue", args, preview)), "ok", 2, 0)
	issue = jsonAnswer(200, `{"number":1,"title":"Buy oat milk","state":"open","html_url":"https://github.com/golang/go/issues/1"}`)
	s.forget()
	s.want(t, s.send(s.order(c, "close_issue", args, preview)), custody.CodeConsent, 1, 0)
	if m := s.provider.requests()[0].Method; m != "GET" {
		t.Errorf("what was sent is %s", m)
	}
	// A grave operation without one does not run, whatever the grant says.
	renew := must(s.registry.Get("dnsimple").Bind("renew_domain", must(integrations.ParseArgs([]byte(`{"domain":"example.com","period":1}`))), map[string]string{"account": "1"}))
	g := *o.grant
	g.ID, g.Service, g.Connection = custody.NewID(), "dnsimple", map[string]custody.ConnectionValue{"account": {Value: "1"}}
	g.Once = &custody.Once{Op: "renew_domain", Text: must(custody.OpDigest(renew.Manifest, "renew_domain")), Args: must(custody.ArgsDigest(renew)), Say: custody.SayDigest(renew), Lang: "en"}
	grave := &order{id: custody.NewID(), member: s.ada, bot: s.bot.Public(), grant: &g, service: "dnsimple", op: "renew_domain", args: `{"domain":"example.com","period":1}`}
	s.forget()
	s.want(t, s.send(grave), custody.CodeConsent, 0, 0)
})

var _ = threat("G7_poisoned_rotation", func(t *testing.T) {
	t.Run("one token, two members", func(t *testing.T) {
		// HubSpot gives everybody of one account the same refresh token.
		s := newStage(t)
		s.constant(3600)
		s.provider.answer(jsonAnswer(200, `{"portalId":1}`))
		for range 2 {
			s.forget()
			for _, who := range []*custody.Identity{s.ada, s.eve} {
				o := s.order(s.connection("hubspot", integrations.Read, 10*time.Second), "account_details", `{}`)
				o.member = who
				all := must(s.Handle(t.Context(), s.delivery(o)))
				if out := s.open(who, all); out.code() != "ok" || len(out.handbacks) != 1 {
					t.Errorf("%s, %d hand-backs", out.code(), len(out.handbacks))
				}
			}
			if p, b := s.calls(); p != 2 || b != 2 {
				t.Errorf("%d and %d calls", p, b)
			}
			s.now.forward(2 * time.Hour) // each for himself, and again
		}
	})
	t.Run("a constant token", func(t *testing.T) {
		s := newStage(t)
		s.constant(3600)
		s.provider.answer(jsonAnswer(200, `{"portalId":1}`))
		c := s.connection("hubspot", integrations.Read, 10*time.Second)
		for i := range 4 {
			s.forget()
			out := s.send(s.order(c, "account_details", `{}`))
			s.want(t, out, "ok", 1, 1)
			c = s.take(c, out)
			if c.Refresh.Reveal() != "rt1.k.fake1" || c.Secret.Reveal() != fmt.Sprintf("at%d-fake", i+2) || c.Pair != int64(i+2) {
				t.Errorf("the pair is %s %s %d", c.Secret.Reveal(), c.Refresh.Reveal(), c.Pair)
			}
			s.want(t, s.send(s.order(c, "account_details", `{}`)), "ok", 2, 1)
			s.now.forward(2 * time.Hour)
			if i == 1 {
				s.restart()
			}
		}
	})
	t.Run("a cycle", func(t *testing.T) {
		s := newStage(t)
		s.provider.answer(me)
		s.refreshes(func(_ http.ResponseWriter, n int, _ string) *custody.RefreshAnswer {
			return &custody.RefreshAnswer{Secret: secret("at-fake"), Refresh: secret(fmt.Sprintf("rt1.k.fake%d", []int{2, 1}[n-1])), ExpiresIn: 20}
		})
		c := s.connection("github", integrations.Read, 10*time.Second)
		c = s.take(c, s.send(s.order(c, "whoami", `{}`)))
		s.now.forward(time.Minute)
		s.forget()
		out := s.send(s.order(c, "whoami", `{}`))
		s.want(t, out, custody.CodeReconnect, 0, 1)
		if len(out.handbacks) != 0 {
			t.Error("the old token is handed back")
		}
	})
	t.Run("a stolen old token", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.provider.answer(me)
		c := s.connection("github", integrations.Read, 10*time.Second)
		stolen := s.order(c, "whoami", `{}`)
		next := s.take(c, s.send(s.order(c, "whoami", `{}`)))
		rows := func() (n int) {
			for _, table := range []string{"tokens", "lines", "outbox"} {
				var k int
				if err := s.store.db.QueryRow(`SELECT count(*) FROM ` + table).Scan(&k); err != nil {
					t.Fatal(err)
				}
				n += k
			}
			return n
		}
		before := rows()
		s.forget()
		stolen.member = s.eve
		s.want(t, s.send(stolen), custody.CodeReconnect, 0, 0)
		s.restart()
		s.want(t, s.send(stolen.anew()), custody.CodeReconnect, 0, 0)
		if n := rows(); n != before {
			t.Errorf("%d rows were kept for her", n-before)
		}
		s.want(t, s.send(s.order(next, "whoami", `{}`)), "ok", 1, 0)
	})
	t.Run("tokens that are made up", func(t *testing.T) {
		// They cost the broker's refusal, and leave nothing on the disk.
		s := newStage(t)
		s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
			return says(w, 401, `{"error":"unauthorized"}`)
		})
		for i := range 20 {
			c := s.connection("github", integrations.Read, 10*time.Second)
			c.Refresh = secret(fmt.Sprintf("rt1.k.junk%d", i))
			if out := s.send(s.order(c, "whoami", `{}`)); out.code() != custody.CodeMisconfigured {
				t.Fatalf("%s", out.code())
			}
		}
		var n int
		if err := s.store.db.QueryRow(`SELECT count(*) FROM tokens`).Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows, %v", n, err)
		}
	})
})

var _ = threat("G8_lent_to_one_group", func(t *testing.T) {
	s := newStage(t)
	s.rotates(3600)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 10*time.Second)
	now := s.now.now()
	lent := must(c.Lend("group-1", now.Add(10*time.Minute), now, false))
	// The second group gets nothing while the first holds it: not even a grant.
	if _, err := lent.Lend("group-2", now.Add(10*time.Minute), now, false); !errors.Is(err, custody.ErrLent) {
		t.Errorf("lent twice: %v", err)
	}
	m := s.registry.Get("github")
	call := must(m.Bind("whoami", nil, nil))
	if _, err := custody.MintGrant(m, lent, custody.GrantRequest{Use: custody.UseOnce, Call: call, Group: "group-2"}, now); !errors.Is(err, custody.ErrLent) {
		t.Errorf("minted for another group: %v", err)
	}
	// What that group gets is a token without its key: it cannot redeem.
	two := newStage(t, func(c *Config) {
		c.Group = "group-2"
		c.Brokers[0].Origin = s.broker.URL
		c.Brokers[0].Client = s.broker.client()
	})
	two.accepts(me)
	o := two.order(two.connection("github", integrations.Read, 0), "whoami", `{}`)
	two.want(t, two.send(o), custody.CodeNeedsPair, 1, 0)
	s.want(t, s.send(s.order(lent, "whoami", `{}`)), "ok", 1, 1)
	if n := len(s.broker.requests()); n != 1 {
		t.Errorf("%d redemptions", n)
	}
})

var _ = threat("G9_stolen_bot_key", func(t *testing.T) {
	s := newStage(t)
	s.rotates(20)
	s.provider.answer(me)
	day := s.Records()[0].Day
	c := s.connection("github", integrations.Read, 0)
	once := s.order(c, "whoami", `{}`)
	once.day = &day
	research := s.kept(c, custody.GrantRequest{Use: custody.UseResearch, Question: "say-1", Ops: []string{"whoami"}}, "whoami", `{}`)
	research.day = &day
	opened, kept := s.delivery(once), must(research.grant.Seal(s.ada, s.bot.Public(), &day, testSpace, testThread, ""))
	s.want(t, s.read(s.ada, opened), "ok", 1, 0)
	s.want(t, s.send(research), "ok", 2, 0)
	// A renewal leaves a hand-off to the bot on the disk, for minutes.
	old := s.connection("github", integrations.Read, 10*time.Second)
	s.want(t, s.send(s.order(old, "whoami", `{}`)), "ok", 3, 1)
	var sealed []byte
	if err := s.store.db.QueryRow(`SELECT handoff FROM lines`).Scan(&sealed); err != nil || len(sealed) < 200 {
		t.Fatalf("%d bytes, %v", len(sealed), err)
	}
	mark := sealed[len(sealed)-120:] // of the ciphertext

	// A day later everything is stolen but the memory: the disk, the messages, the bot's key.
	s.now.forward(25 * time.Hour)
	if err := s.store.sweep(t.Context(), s.Sidecar.now().Unix()); err != nil {
		t.Fatal(err)
	}
	for _, f := range must(os.ReadDir(s.dir)) {
		if data := must(os.ReadFile(filepath.Join(s.dir, f.Name()))); bytes.Contains(data, mark) {
			t.Errorf("%s still holds a hand-off of yesterday", f.Name())
		}
	}
	stolen := t.TempDir()
	copyDir(t, s.dir, stolen)
	thief := *s
	thief.cfg.Dir = stolen
	thief.start()
	t.Cleanup(func() { thief.Sidecar.Close(t.Context()) })
	out := thief.read(s.ada, opened)
	thief.want(t, out, custody.CodeDay, 3, 1)
	if d := out.Error.Details; d == nil || d.Day.IsZero() || d.Day.ID() == day.ID() || d.Until <= s.now.now().Unix() {
		t.Errorf("the present key is not said: %+v", d)
	}
	if _, err := custody.OpenGrant(s.bot, kept, s.ada.Public(), nil); !errors.Is(err, custody.ErrDay) {
		t.Errorf("the research grant: %v", err)
	}
	// The bot itself does not open them any more either, and says which key to use.
	s.want(t, s.read(s.ada, opened), custody.CodeDay, 3, 1)
})

var _ = threat("G10_ends", func(t *testing.T) {
	s := newStage(t)
	s.provider.answer(me)
	c := s.connection("github", integrations.Read, 0)
	unix := func() int64 { return s.now.now().Unix() }
	standing := s.standing(c, "whoami", `{}`, 6*24*time.Hour)
	mine := s.standing(c, "whoami", `{}`, 6*24*time.Hour)
	s.want(t, s.send(standing), "ok", 1, 0)
	// Nobody else ends it.
	s.tell(s.eve, &custody.End{At: unix(), Grants: []string{standing.grant.ID}})
	s.tell(s.eve, &custody.End{At: unix(), Credential: c.ID})
	s.want(t, s.send(standing.again()), "ok", 2, 0)

	s.tell(s.ada, &custody.End{At: unix(), Grants: []string{standing.grant.ID}})
	s.want(t, s.send(standing.again()), custody.CodeEnded, 2, 0)
	s.want(t, s.send(mine.again()), "ok", 3, 0)
	s.restart()
	s.want(t, s.send(standing.again()), custody.CodeEnded, 3, 0)
	// A pause afterwards opens nothing.
	s.tell(s.ada, &custody.End{At: unix(), Grants: []string{standing.grant.ID}, Pause: unix() + 5})
	s.now.forward(time.Minute)
	s.want(t, s.send(standing.again()), custody.CodeEnded, 3, 0)

	// A pause, and after it.
	s.tell(s.ada, &custody.End{At: unix(), Grants: []string{mine.grant.ID}, Pause: unix() + 3600})
	s.want(t, s.send(mine.again()), custody.CodeEnded, 3, 0)
	s.restart()
	s.want(t, s.send(mine.again()), custody.CodeEnded, 3, 0)
	s.now.forward(time.Hour + time.Second)
	s.want(t, s.send(mine.again()), "ok", 4, 0)

	// A connection: what was minted up to then, and nothing later. A pause beside it takes nothing back.
	s.tell(s.ada, &custody.End{At: unix(), Credential: c.ID})
	s.tell(s.ada, &custody.End{At: unix(), Credential: c.ID, Pause: unix() + 1})
	s.restart()
	s.now.forward(2 * time.Second)
	s.want(t, s.send(mine.again()), custody.CodeEnded, 4, 0)
	late := s.standing(c, "whoami", `{}`, 6*24*time.Hour)
	s.want(t, s.send(late), "ok", 5, 0)
	// An end from the future does not reach what is minted later.
	s.tell(s.ada, &custody.End{At: unix() + 1_000_000, Credential: c.ID})
	s.want(t, s.send(late.again()), custody.CodeEnded, 5, 0)
	s.now.forward(time.Minute)
	later := s.standing(c, "whoami", `{}`, 6*24*time.Hour)
	s.want(t, s.send(later), "ok", 6, 0)
	// Kept until the grants' own end, over every sweep.
	s.now.forward(6*24*time.Hour - 2*time.Minute)
	if err := s.store.sweep(t.Context(), unix()); err != nil {
		t.Fatal(err)
	}
	s.want(t, s.send(late.again()), custody.CodeEnded, 6, 0)

	// What stands in the queue when the end comes does not run.
	q := newStage(t, func(c *Config) { c.MaxOperations = 1 })
	hold, in := make(chan bool), make(chan bool, 1)
	q.provider.answer(func(w http.ResponseWriter, r *http.Request) { in <- true; <-hold; me(w, r) })
	cq := q.connection("github", integrations.Read, 0)
	first, second := q.order(cq, "whoami", `{}`), q.order(cq, "whoami", `{}`)
	done := make(chan outcome, 2)
	go func() { done <- q.send(first) }()
	<-in
	go func() { done <- q.send(second) }()
	for _, waiting := q.bounds.now(); waiting == 0; _, waiting = q.bounds.now() {
		time.Sleep(time.Millisecond)
	}
	time.Sleep(150 * time.Millisecond)
	q.tell(q.ada, &custody.End{At: q.now.now().Unix(), Grants: []string{second.grant.ID}})
	close(hold)
	codes := map[string]int{(<-done).code(): 1}
	codes[(<-done).code()]++
	if codes["ok"] != 1 || codes[custody.CodeEnded] != 1 {
		t.Errorf("%v", codes)
	}
})
