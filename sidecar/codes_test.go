package sidecar

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A shot is an op with all that can be wrong about it, also what custody would not seal.
type shot struct {
	*order
	v         int
	tampered  bool
	opDay     *custody.PublicKey
	grantTo   custody.PublicKey
	grantPath string // the thread of the grant
}

func (s *stage) deliver(x *shot) Delivery {
	grant := must(x.grant.Seal(x.member, x.grantTo, nil, testSpace, x.grantPath, x.id))
	plain := fmt.Sprintf(`{"v":%d,"id":%q,"service":%q,"op":%q,"args":%s,"grant":%s}`, x.v, x.id, x.service, x.op, x.args, must(grant.Marshal()))
	e := must(x.member.Seal(x.bot, x.opDay, custody.Header{Purpose: custody.PurposeOp, Space: testSpace, Thread: testThread, Op: x.id}, []byte(plain)))
	if x.tampered {
		e.Tag[0] ^= 1
	}
	return Delivery{Space: testSpace, Thread: testThread, Author: x.member.Public(), Data: must(e.Marshal())}
}

// A flaw is one way for a message to be wrong, and the code that it gets.
type flaw struct {
	code string
	make func(s *stage, x *shot)
}

// flaws are in the order of docs/protocol.md, section 7.
var flaws = []flaw{
	{"none", func(s *stage, x *shot) { x.tampered = true }}, // forged
	{custody.CodeNotMine, func(s *stage, x *shot) { x.grantTo = s.eve.Public() }},
	{custody.CodeDay, func(s *stage, x *shot) { k := must(custody.NewIdentity()).Public(); x.opDay = &k }},
	{custody.CodeVersion, func(s *stage, x *shot) { x.v = 3 }},
	{custody.CodeAuthor, func(s *stage, x *shot) { x.grantPath = "thread-2" }},
	{"ok", func(s *stage, x *shot) { // used
		started, most := s.Sidecar.started, s.bounds.max
		s.Sidecar.started, s.bounds.max = s.now.now().Add(-time.Hour), 10
		defer func() { s.Sidecar.started, s.bounds.max = started, most }()
		first := s.order(s.connection("github", integrations.Write, 0), "open_issue", openIssue)
		if code := s.send(first).code(); code != "ok" {
			s.t.Fatal(code)
		}
		s.forget()
		x.id = first.id
	}},
	{custody.CodeExpired, func(s *stage, x *shot) { x.grant.IAT -= 600; x.grant.Exp -= 600 }},
	{custody.CodeRestarted, func(s *stage, x *shot) { s.Sidecar.started = s.now.now() }},
	{custody.CodeService, func(s *stage, x *shot) { x.service = "unheard-of" }},
	{custody.CodeOp, func(s *stage, x *shot) { x.op = "no_such_op" }},
	{custody.CodeNeedsNewer, func(s *stage, x *shot) { x.op, x.grant.Once.Op = "no_such_op", "no_such_op" }},
	{custody.CodeAccess, func(s *stage, x *shot) { x.grant.Once.Op = "comment" }},
	{custody.CodeArgs, func(s *stage, x *shot) { x.args = `{"owner":"golang","repo":"go"}` }},
	{custody.CodeConsent, func(s *stage, x *shot) { x.grant.Once.Say = custody.Digest{1} }},
	{custody.CodeEnded, func(s *stage, x *shot) {
		s.tell(s.ada, &custody.End{At: s.now.now().Unix(), Grants: []string{x.grant.ID}})
	}},
	{custody.CodeBusy, func(s *stage, x *shot) { s.bounds.max = 0 }},
}

// TestCodesInOrder makes each code by what makes it, and every pair of them: what is wrong in
// two ways gets the earlier code. The pair is due, so that a broker would be asked, and
// neither it nor the provider ever is.
func TestCodesInOrder(t *testing.T) {
	for i, a := range flaws {
		for j := i; j < len(flaws); j++ {
			if testing.Short() && j > i+1 {
				break
			}
			b := flaws[j]
			if a.code == custody.CodeOp && b.code == custody.CodeNeedsNewer || a.code == custody.CodeNeedsNewer && b.code == custody.CodeAccess {
				continue // one undoes the other
			}
			if a.code == custody.CodeNotMine && (b.code == custody.CodeDay || b.code == custody.CodeVersion) {
				continue // the grant is inside: nobody sees whose it is before the op has been opened
			}
			s := newStage(t)
			s.now.forward(time.Hour)
			s.provider.answer(opened)
			s.rotates(3600)
			x := &shot{order: s.order(s.connection("github", integrations.Write, 10*time.Second), "open_issue", openIssue), v: 2, grantTo: s.bot.Public(), grantPath: testThread}
			// The later one first: an earlier one must win over what stands already.
			if j > i {
				b.make(s, x)
			}
			a.make(s, x)
			out := s.read(s.ada, s.deliver(x))
			if out.code() != a.code {
				t.Errorf("%s and %s: %s (%+v)", a.code, b.code, out.code(), out.Error)
			}
			if p, k := s.calls(); p != 0 || k != 0 {
				t.Errorf("%s and %s: %d calls of the provider, %d of the broker", a.code, b.code, p, k)
			}
			if a.code == custody.CodeArgs && (out.Error.Details == nil || out.Error.Details.Arg != "title") {
				t.Errorf("args: %+v", out.Error.Details)
			}
			if err := s.Sidecar.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestCodesOfTheCall makes each code that comes after the checks.
func TestCodesOfTheCall(t *testing.T) {
	dead := func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
		return says(w, 409, `{"class":"dead","code":"bad_refresh_token"}`)
	}
	due := 10 * time.Second
	for _, x := range []struct {
		name, code       string
		provider, broker int
		left             time.Duration // of the pair; 0: no refresh token
		access           integrations.Access
		set              func(s *stage, c *custody.Credential)
		check            func(e *custody.ResultError) bool
	}{
		{name: "a count at its end, before another broker's", code: custody.CodeNoHandBack, left: due, set: func(s *stage, c *custody.Credential) { c.Pair, c.Broker = 1<<52, "https://elsewhere.example" }},
		{name: "a 401 without the key", code: custody.CodeNeedsPair, provider: 1, set: func(s *stage, c *custody.Credential) { s.accepts(me) }},
		{name: "another broker's", code: custody.CodeReconnect, left: due, set: func(s *stage, c *custody.Credential) { c.Broker = "https://elsewhere.example" }},
		{name: "dead", code: custody.CodeReconnect, broker: 1, left: due, set: func(s *stage, c *custody.Credential) { s.refreshes(dead) }},
		{name: "temporary", code: custody.CodeTemporary, broker: 1, left: due, set: func(s *stage, c *custody.Credential) {
			s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
				return says(w, 429, `{"class":"temporary","code":"rate_limited","retry_after":90}`)
			})
		}, check: func(e *custody.ResultError) bool { return e.RetryAfter == 90 }},
		{name: "misconfigured", code: custody.CodeMisconfigured, broker: 1, left: due, set: func(s *stage, c *custody.Credential) {
			s.refreshes(func(w http.ResponseWriter, _ int, _ string) *custody.RefreshAnswer {
				return says(w, 502, `{"class":"misconfigured","code":"invalid_client"}`)
			})
		}},
		{name: "no instance token", code: custody.CodeMisconfigured, left: due, set: func(s *stage, c *custody.Credential) {
			s.brokers[s.broker.URL].Token = integrations.Secret{}
		}},
		{name: "a no", code: "provider", provider: 1, set: func(s *stage, c *custody.Credential) { s.provider.answer(jsonAnswer(404, `{"message":"Not Found"}`)) },
			check: func(e *custody.ResultError) bool {
				return e.Details.Status == 404 && strings.Contains(e.Message, "Not Found")
			}},
		{name: "a pasted token's 401", code: "unauthorised", provider: 1, set: func(s *stage, c *custody.Credential) { c.Kind = custody.KindPAT; s.accepts(me) },
			check: func(e *custody.ResultError) bool { return e.Details.Status == 401 }},
		{name: "a limit", code: "rate_limited", provider: 1, set: func(s *stage, c *custody.Credential) {
			s.provider.answer(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Retry-After", "3000")
				jsonAnswer(429, `{"message":"slow down"}`)(w, r)
			})
		}, check: func(e *custody.ResultError) bool {
			return e.RetryAfter > 2900 && e.RetryAfter <= 3000 && e.Details.Until > time.Now().Unix()+2900
		}},
		{name: "too much", code: custody.CodeTooLarge, provider: 1, set: func(s *stage, c *custody.Credential) {
			s.provider.answer(jsonAnswer(200, `{"id":7,"login":"`+strings.Repeat("a", 50_000)+`"}`))
		}, check: func(e *custody.ResultError) bool { return e.Details.Size > 50_000 }},
		{name: "nobody there", code: "unreachable", set: func(s *stage, c *custody.Credential) {
			s.exec.ConnectTo["api.github.com:443"] = "127.0.0.1:1"
		}},
		{name: "a write whose answer is lost", code: custody.CodeUnknown, provider: 1, access: integrations.Write, set: func(s *stage, c *custody.Credential) {
			s.provider.answer(func(w http.ResponseWriter, r *http.Request) { lost(w) })
		}},
	} {
		t.Run(x.name, func(t *testing.T) {
			s := newStage(t)
			s.provider.answer(me)
			if x.access == "" {
				x.access = integrations.Read
			}
			c := s.connection("github", x.access, x.left)
			x.set(s, c)
			o := s.order(c, "whoami", `{}`)
			if x.access == integrations.Write {
				o = s.order(c, "open_issue", openIssue)
			}
			out := s.send(o)
			s.want(t, out, x.code, x.provider, x.broker)
			if out.Error != nil && x.check != nil && !x.check(out.Error) {
				t.Errorf("%+v %+v", out.Error, out.Error.Details)
			}
			// The same message again gets the same answer and calls nobody, but where the
			// connection was not to blame and the message may come again.
			if x.code != custody.CodeNeedsPair {
				s.want(t, s.read(s.ada, s.delivery(o)), x.code, x.provider, x.broker)
			}
		})
	}
	t.Run("rotated", func(t *testing.T) {
		s := newStage(t)
		s.rotates(3600)
		s.provider.answer(me)
		c := s.connection("github", integrations.Read, 10*time.Second)
		s.send(s.order(c, "whoami", `{}`))
		s.now.forward(15 * time.Minute)
		s.forget()
		s.want(t, s.send(s.order(c, "whoami", `{}`)), custody.CodeRotated, 0, 0)
	})
	t.Run("refused", func(t *testing.T) {
		s := newStage(t)
		o := s.order(s.connection("github", integrations.Write, 0), "open_issue", openIssue)
		e := must(s.ada.Seal(s.bot.Public(), nil, custody.Header{Purpose: custody.PurposeOp, Space: testSpace, Thread: testThread, Op: o.id}, []byte(`{"v":2,"id":"x","more":"SENTINEL"}`)))
		out := s.read(s.ada, Delivery{Space: testSpace, Thread: testThread, Author: s.ada.Public(), Data: must(e.Marshal())})
		s.want(t, out, custody.CodeRefused, 0, 0)
		if strings.Contains(out.Error.Message, "SENTINEL") {
			t.Error("it repeats what stood there")
		}
	})
}

// TestWritesUnderReadGrants: for every write of every manifest, no grant for reading lets it
// run, whatever it holds; nobody is called.
func TestWritesUnderReadGrants(t *testing.T) {
	s := newStage(t)
	n := 0
	for _, m := range s.registry.All() {
		var truth struct {
			Connection map[string]string
			Args       map[string]json.RawMessage
		}
		if err := json.Unmarshal(must(os.ReadFile(filepath.Join("..", "integrations", "testdata", "providers", m.ID, "proof.json"))), &truth); err != nil {
			t.Fatal(err)
		}
		for _, op := range m.Ops {
			if op.Access != integrations.Write {
				continue
			}
			n++
			args := truth.Args[op.Name]
			call, err := m.Bind(op.Name, must(integrations.ParseArgs(args)), truth.Connection)
			if err != nil {
				t.Fatalf("%s %s: %v", m.ID, op.Name, err)
			}
			text := must(custody.OpDigest(m, op.Name))
			base := custody.Grant{V: 1, Service: m.ID, Access: integrations.Read, Kind: custody.KindOAuth, Secret: secret("at1-fake"), Credential: "c1", Pair: 1,
				IAT: s.now.now().Unix(), Exp: s.now.now().Add(time.Minute).Unix(), Account: &custody.Account{ID: "1", Label: "ada"}}
			for k, v := range truth.Connection {
				if base.Connection == nil {
					base.Connection = make(map[string]custody.ConnectionValue)
				}
				base.Connection[k] = custody.ConnectionValue{Value: v}
			}
			once, research, standing := base, base, base
			once.Use, once.Once = custody.UseOnce, &custody.Once{Op: op.Name, Text: text, Args: must(custody.ArgsDigest(call)), Say: custody.SayDigest(call), Lang: "en"}
			research.Use, research.Question, research.Ops = custody.UseResearch, "say-1", map[string]custody.Digest{op.Name: text}
			standing.Use, standing.Charter, standing.Ops = custody.UseStanding, "charter-1", map[string]custody.Digest{op.Name: text}
			legacy := once // of a connection from before
			legacy.Access, legacy.Kind, legacy.Account = "", "", nil
			all := []*custody.Grant{&once, &research, &standing, &legacy}
			if op.Has(integrations.Money) || op.Has(integrations.Irreversible) {
				asks := base
				asks.Use, asks.Access, asks.Ops = custody.UseAsks, integrations.Write, map[string]custody.Digest{op.Name: text}
				all = append(all, &asks)
			}
			for _, g := range all {
				g.ID = custody.NewID()
				for _, a := range []string{string(args), `{"no_such_arg":1}`} { // and access comes before args
					o := &order{id: custody.NewID(), member: s.ada, bot: s.bot.Public(), grant: g, service: m.ID, op: op.Name, args: a}
					if out := s.send(o); out.code() != custody.CodeAccess {
						t.Errorf("%s %s under %s: %s %+v", m.ID, op.Name, g.Use, out.code(), out.Error)
					}
				}
			}
		}
	}
	s.want(t, outcome{}, "none", 0, 0)
	if n < 15 {
		t.Errorf("%d writes", n)
	}
	t.Logf("%d writes of %d manifests", n, len(s.registry.All()))
}
