package custody

import (
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

var bookPreview = &integrations.Result{JSON: json.RawMessage(`{"price":1200,"currency":"gbp"}`)}

func bookCall(t testing.TB) *integrations.Call {
	t.Helper()
	return must(parseManifest(t, practice(t)).Bind("book", integrations.Args{"room": "r1"}, nil))
}

// shipped are the manifests that the program has.
func shipped(t testing.TB) []*integrations.Manifest {
	t.Helper()
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	all := append(slices.Clone(reg.All()), parseManifest(t, practice(t)))
	if len(all) < 6 {
		t.Fatalf("there are %d manifests", len(all))
	}
	return all
}

// argsFor gives every required arg of an operation some value that it takes.
func argsFor(t testing.TB, op *integrations.Op) integrations.Args {
	t.Helper()
	args := make(integrations.Args)
	one := 0
	for _, a := range op.Args {
		inOneOf := slices.Contains(op.OneOf, a.Name)
		if !a.Required() && a.Connection == "" && (!inOneOf || one > 0) {
			continue
		}
		if inOneOf {
			one++
		}
		args[a.Name] = valueFor(a)
	}
	return args
}

func valueFor(a *integrations.Arg) any {
	switch a.Kind() {
	case "integer", "number":
		if a.Min != nil {
			return json.Number(a.Min.Text)
		}
		return json.Number("1")
	case "boolean":
		return true
	case "enum":
		return a.Values[0]
	case "date":
		return "2026-12-02"
	case "datetime":
		return "2026-12-02T15:04:05Z"
	case "list":
		if a.Of != nil && a.Of.Object != nil {
			obj := make(map[string]any)
			for _, f := range a.Of.Object {
				if f.Required() {
					obj[f.Name] = valueFor(f)
				}
			}
			return []any{obj}
		}
		if a.Of != nil && a.Of.Arg != nil {
			return []any{valueFor(a.Of.Arg)}
		}
		return []any{"x"}
	case "map":
		return map[string]any{"k": "v"}
	}
	for _, s := range []string{"example.com", "a", "1.50", "name:asc", "abc", "A", "https://example.com/"} {
		if a.Kind() != "id" && (a.Pattern == "" || matches(a.Pattern, s)) {
			return s
		}
	}
	return "abc"
}

func credentialFor(m *integrations.Manifest, cap integrations.Access) *Credential {
	return &Credential{
		V: 1, ID: "c1", Generation: 1, Pair: 1, Service: m.ID, Kind: KindOAuth, Secret: integrations.NewSecret("secret-a"),
		Refresh: integrations.NewSecret(wrapA), Broker: brokerA, ExpiresAt: noon + 30*24*3600, ObtainedAt: noon - 60, Cap: cap, ConnectedAt: noon - 60,
	}
}

// TestGrantRefusals tries, for every operation of every manifest, every use with every cap:
// what is minted is exactly what may be, and everything else has its own error.
func TestGrantRefusals(t *testing.T) {
	now := time.Unix(noon, 0)
	tried, minted := 0, 0
	for _, m := range shipped(t) {
		for _, op := range m.Ops {
			call, err := m.Bind(op.Name, argsFor(t, op), nil)
			if err != nil {
				t.Fatalf("%s %s: %v", m.ID, op.Name, err)
			}
			write := op.Access == integrations.Write
			grave := op.Has(integrations.Money) || op.Has(integrations.Irreversible)
			for _, cap := range []integrations.Access{"", integrations.Read, integrations.Write} {
				c := credentialFor(m, cap)
				for _, r := range []struct {
					name string
					req  GrantRequest
					want error
				}{
					{"once", GrantRequest{Use: UseOnce, Call: call, Preview: previewFor(op)}, first(write && cap != integrations.Write, ErrCap)},
					{"once, its preview not shown", GrantRequest{Use: UseOnce, Call: call}, first(op.Preview != nil && grave, ErrOnce, write && cap != integrations.Write, ErrCap)},
					{"once, for 121 s", GrantRequest{Use: UseOnce, Call: call, Preview: previewFor(op), Until: now.Add(121 * time.Second)}, ErrExpiry},
					{"once and ops", GrantRequest{Use: UseOnce, Call: call, Ops: []string{op.Name}}, ErrOnce},
					{"once without a call", GrantRequest{Use: UseOnce, Ops: []string{op.Name}}, ErrOnce},
					{"research", GrantRequest{Use: UseResearch, Ops: []string{op.Name}, Question: "q1"}, first(write, ErrOnce, posts(op), ErrUnattended)},
					{"research, for 601 s", GrantRequest{Use: UseResearch, Ops: []string{op.Name}, Question: "q1", Until: now.Add(601 * time.Second)}, ErrExpiry},
					{"research and a call", GrantRequest{Use: UseResearch, Ops: []string{op.Name}, Question: "q1", Call: call}, ErrMalformed},
					{"standing", GrantRequest{Use: UseStanding, Ops: []string{op.Name}, Charter: "ch1"}, first(write, ErrOnce, posts(op), ErrUnattended)},
					{"standing, for a week and a second", GrantRequest{Use: UseStanding, Ops: []string{op.Name}, Charter: "ch1", Until: now.Add(7*24*time.Hour + time.Second)}, ErrExpiry},
					{"asks", GrantRequest{Use: UseAsks, Ops: []string{op.Name}}, first(!write, ErrNoOp, grave, ErrAsks, cap != integrations.Write, ErrCap)},
					{"asks, for 8 h and a second", GrantRequest{Use: UseAsks, Ops: []string{op.Name}, Until: now.Add(8*time.Hour + time.Second)}, ErrExpiry},
					{"another use", GrantRequest{Use: "ever", Ops: []string{op.Name}}, ErrMalformed},
					{"an operation that is not there", GrantRequest{Use: UseResearch, Ops: []string{op.Name + "_x"}, Question: "q1"}, ErrNoOp},
					{"an end in the past", GrantRequest{Use: UseResearch, Ops: []string{op.Name}, Question: "q1", Until: now.Add(-time.Second)}, ErrExpiry},
				} {
					tried++
					g, err := MintGrant(m, c, r.req, now)
					if !errors.Is(err, r.want) || r.want == nil && err != nil {
						t.Errorf("%s %s, cap %q, %s: got %v, want %v", m.ID, op.Name, cap, r.name, err, r.want)
						continue
					}
					if err == nil {
						minted++
						if g.Access == integrations.Write && cap != integrations.Write {
							t.Errorf("%s %s: a read-only connection minted a write", m.ID, op.Name)
						}
						if !g.Refresh.IsZero() {
							t.Errorf("%s %s: a refresh token that is not needed was lent", m.ID, op.Name)
						}
					}
				}
			}
			other := credentialFor(m, integrations.Write)
			other.Service = "another"
			if _, err := MintGrant(m, other, GrantRequest{Use: UseOnce, Call: call}, now); !errors.Is(err, ErrService) {
				t.Errorf("%s: another service's connection: %v", m.ID, err)
			}
		}
	}
	t.Logf("%d requests, %d grants", tried, minted)
	if minted == 0 || minted == tried {
		t.Error("this test shows nothing")
	}
}

// first returns the error after the first condition that holds.
func first(pairs ...any) error {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].(bool) {
			return pairs[i+1].(error)
		}
	}
	return nil
}

func posts(op *integrations.Op) bool {
	return op.SafePost != "" && !op.IsGraphQL() && op.Unattended == ""
}

func previewFor(op *integrations.Op) *integrations.Result {
	if op.Preview == nil {
		return nil
	}
	return bookPreview
}

// TestGrantLends: the refresh token goes along only when it is needed, and only to the group
// that it was lent to where the service rotates.
func TestGrantLends(t *testing.T) {
	m := parseManifest(t, practice(t))
	now := time.Unix(noon, 0)
	for _, c := range []struct {
		name      string
		expires   int64 // after now, in seconds; 0: not known
		needsPair bool
		lent      *Lent
		rotates   bool
		want      error
		lends     bool
	}{
		{"long", 3600, false, nil, true, nil, false},
		{"just long enough", 120 + 61, false, nil, true, nil, false},
		{"just too short", 120 + 60, false, &Lent{"g1", noon + 120}, true, nil, true},
		{"not known", 0, false, nil, true, nil, false},
		{"not known, stale", 0, true, &Lent{"g1", noon + 120}, true, nil, true},
		{"long, stale", 3600, true, &Lent{"g1", noon + 120}, true, nil, true},
		{"not lent", 60, false, nil, true, ErrLent, false},
		{"lent to others", 60, false, &Lent{"g2", noon + 120}, true, ErrLent, false},
		{"lent too short", 60, false, &Lent{"g1", noon + 119}, true, ErrLent, false},
		{"does not rotate", 60, false, nil, false, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := m
			if !c.rotates {
				m = parseManifest(t, strings.Replace(practice(t), `"rotates": true`, `"rotates": false`, 1))
			}
			cred := credentialFor(m, integrations.Read)
			cred.Lent = c.lent
			if cred.ExpiresAt = 0; c.expires != 0 {
				cred.ExpiresAt = noon + c.expires
			}
			call := must(m.Bind("whoami", nil, nil))
			g, err := MintGrant(m, cred, GrantRequest{Use: UseOnce, Call: call, Group: "g1", NeedsPair: c.needsPair}, now)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if err == nil && g.Refresh.IsZero() == c.lends {
				t.Errorf("lends: %v, want %v", !g.Refresh.IsZero(), c.lends)
			}
		})
	}
}

func TestLend(t *testing.T) {
	base := credentialFor(parseManifest(t, practice(t)), integrations.Read)
	now := time.Unix(noon, 0)
	for _, c := range []struct {
		name     string
		lent     *Lent
		returned bool
		want     error
	}{
		{"free", nil, false, nil},
		{"the same group", &Lent{"g1", noon + 60}, false, nil},
		{"another, running", &Lent{"g2", noon + 60}, true, ErrLent},
		{"another, within the skew", &Lent{"g2", noon - 29}, true, ErrLent},
		{"another, over and answered", &Lent{"g2", noon - 30}, true, nil},
		{"another, over and silent", &Lent{"g2", noon - 3600}, false, ErrLent},
	} {
		t.Run(c.name, func(t *testing.T) {
			cred := *base
			cred.Lent = c.lent
			n, err := cred.Lend("g1", now.Add(time.Minute), now, c.returned)
			if !errors.Is(err, c.want) {
				t.Fatalf("got %v, want %v", err, c.want)
			}
			if err == nil && (n.Lent.Group != "g1" || n.Lent.Until != noon+60 || n.Generation != cred.Generation+1) {
				t.Errorf("got %+v, generation %d", *n.Lent, n.Generation)
			}
		})
	}
}

func TestLive(t *testing.T) {
	g := &Grant{IAT: noon, Exp: noon + 120}
	for after, want := range map[int64]error{-31: ErrExpired, -30: nil, 0: nil, 119: nil, 149: nil, 150: ErrExpired, 1 << 30: ErrExpired} {
		if err := g.Live(time.Unix(noon+after, 0)); !errors.Is(err, want) {
			t.Errorf("%d s after it was made: got %v, want %v", after, err, want)
		}
	}
}

// TestAllows changes, one at a time, everything between the tap and the run.
func TestAllows(t *testing.T) {
	bookNow := bookCall(t)
	m := bookNow.Manifest
	now := time.Unix(noon, 0)
	c := credentialFor(m, integrations.Write)
	once := func(call *integrations.Call, preview *integrations.Result) *Grant {
		return must(MintGrant(m, c, GrantRequest{Use: UseOnce, Call: call, Preview: preview}, now))
	}
	note := func(m *integrations.Manifest, text string) *integrations.Call {
		return must(m.Bind("add_note", integrations.Args{"room": "r1", "text": text}, nil))
	}
	other := func(old, new string) *integrations.Manifest {
		return parseManifest(t, strings.Replace(practice(t), old, new, 1))
	}
	rest := note(m, "hello")
	rest.IdempotencyKey = "anything"
	hidden := must(m.Bind("add_note", integrations.Args{"room": "r1", "text": "hello", "stars": 1}, nil)) // the sentence is the same
	reads := must(MintGrant(m, c, GrantRequest{Use: UseResearch, Ops: []string{"whoami"}, Question: "q1"}, now))
	asks := must(MintGrant(m, c, GrantRequest{Use: UseAsks, Ops: []string{"add_note"}}, now))
	book := once(bookNow, bookPreview)
	noPreview := *book
	unshown := *book.Once
	unshown.Preview = nil
	noPreview.Once = &unshown
	forAll := *reads
	forAll.Ops = maps.Clone(reads.Ops)
	forAll.Ops["add_note"] = must(OpDigest(m, "add_note"))
	writing := forAll
	writing.Access = integrations.Write
	asksBook := *asks
	asksBook.Ops = map[string]Digest{"book": must(OpDigest(m, "book"))}
	otherSay := *once(note(m, "hello"), nil)
	said := *otherSay.Once
	said.Say = digest("say", []byte("Add a note?"))
	otherSay.Once = &said
	revoke := must(MintRevoke(c, now))
	for _, tc := range []struct {
		name string
		g    *Grant
		call *integrations.Call
		want error
	}{
		{"what was read", once(note(m, "hello"), nil), note(m, "hello"), nil},
		{"the same, with a key", once(note(m, "hello"), nil), rest, nil},
		{"other words about it", once(note(m, "hello"), nil), note(other("Add a note", "Note"), "hello"), nil},
		{"another text", once(note(m, "hello"), nil), note(m, "hello!"), ErrConsent},
		{"an arg more", once(note(m, "hello"), nil), hidden, ErrConsent},
		{"another operation", once(note(m, "hello"), nil), bookCall(t), ErrNoOp},
		{"another sentence", once(note(m, "hello"), nil), note(other("in {room}?", "to {room}?"), "hello"), ErrConsent},
		{"a sentence that the client made otherwise", &otherSay, note(m, "hello"), ErrConsent},
		{"another path", once(note(m, "hello"), nil), note(other("/rooms/{room}/notes", "/rooms/{room}/note"), "hello"), ErrConsent},
		{"another service", once(note(m, "hello"), nil), note(other(`"id": "practice"`, `"id": "practise"`), "hello"), ErrService},
		{"a preview that was shown", book, bookCall(t), nil},
		{"one that was not", &noPreview, bookCall(t), ErrConsent},
		{"a read for research", reads, must(m.Bind("whoami", nil, nil)), nil},
		{"a read that is not named", reads, must(m.Bind("list_rooms", nil, nil)), ErrNoOp},
		{"a read whose text differs", reads, must(other(`"path": "/me"`, `"path": "/you"`).Bind("whoami", nil, nil)), ErrConsent},
		{"a write for research", reads, note(m, "hello"), ErrCap},
		{"a write that a grant for research names", &forAll, note(m, "hello"), ErrCap},
		{"and that says it may write", &writing, note(m, "hello"), ErrOnce},
		{"a search for research", &Grant{Service: "practice", Use: UseResearch, Access: integrations.Read, Ops: map[string]Digest{"search": must(OpDigest(m, "search"))}}, must(m.Bind("search", integrations.Args{"query": "x"}, nil)), ErrUnattended},
		{"a write that is asked for", asks, note(m, "anything"), nil},
		{"a read that is asked for", asks, must(m.Bind("whoami", nil, nil)), ErrNoOp},
		{"money that is asked for", &asksBook, bookCall(t), ErrAsks},
		{"anything under a revoke's grant", revoke, must(m.Bind("whoami", nil, nil)), ErrNoOp},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.g.Allows(tc.call); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
	for picked, want := range map[string]error{
		`{"price":1200,"currency":"gbp"}`: nil, `{"currency":"gbp","price":1200}`: nil, `{"price":1201,"currency":"gbp"}`: ErrConsent,
		`{"price":1200.0,"currency":"gbp"}`: ErrConsent, `{"price":1200}`: ErrConsent, `null`: ErrConsent, ``: ErrMalformed,
	} {
		if err := book.AllowsPreview(&integrations.Result{JSON: json.RawMessage(picked)}); !errors.Is(err, want) {
			t.Errorf("preview %s: got %v, want %v", picked, err, want)
		}
	}
}

// TestCarriedGrants: a grant serves only the message that it was sealed for.
func TestCarriedGrants(t *testing.T) {
	s := newStage(t)
	call := bookCall(t)
	m := call.Manifest
	c := credentialFor(m, integrations.Write)
	now := time.Unix(noon, 0)
	once := must(MintGrant(m, c, GrantRequest{Use: UseOnce, Call: call, Preview: bookPreview}, now))
	research := must(MintGrant(m, c, GrantRequest{Use: UseResearch, Ops: []string{"whoami"}, Question: "q1"}, now))
	opB := NewID()
	seal := func(g *Grant, from *Identity, to PublicKey, space, thread, op string) *Envelope {
		return must(g.Seal(from, to, nil, space, thread, op))
	}
	for _, tc := range []struct {
		name  string
		grant *Envelope
		from  *Identity
		want  error
	}{
		{"its own", seal(once, s.ada, s.bot.pub, "space", "thread", opA), s.ada, nil},
		{"for research", seal(research, s.ada, s.bot.pub, "space", "thread", ""), s.ada, nil},
		{"Ada's, in Mallory's op", seal(once, s.ada, s.bot.pub, "space", "thread", opA), s.mallory, ErrAuthor},
		{"another thread's", seal(once, s.ada, s.bot.pub, "space", "thread2", opA), s.ada, ErrAuthor},
		{"no thread's", seal(once, s.ada, s.bot.pub, "space", "", opA), s.ada, ErrAuthor},
		{"another space's", seal(once, s.ada, s.bot.pub, "space2", "thread", opA), s.ada, ErrAuthor},
		{"another op's", seal(once, s.ada, s.bot.pub, "space", "thread", opB), s.ada, ErrAuthor},
		{"another bot's", seal(once, s.ada, s.tab.pub, "space", "thread", opA), s.ada, ErrNotMine},
		{"for research, another thread's", seal(research, s.ada, s.bot.pub, "space", "thread2", ""), s.ada, ErrAuthor},
		{"a revoke's", seal(must(MintRevoke(c, now)), s.ada, s.bot.pub, "space", "thread", opA), s.ada, ErrMalformed},
		{"forged", func() *Envelope {
			e := seal(once, s.mallory, s.bot.pub, "space", "thread", opA)
			e.From = s.ada.id
			return e
		}(), s.ada, ErrForged},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &Op{V: 2, ID: opA, Service: "practice", Op: "book", Args: []byte(`{"room":"r1"}`), Grant: tc.grant}
			e := must(tc.from.SealMessage(s.bot.pub, nil, Header{Space: "space", Thread: "thread", Op: opA}, o))
			got := new(Op)
			if err := s.bot.OpenMessage(e, tc.from.pub, nil, got); err != nil {
				t.Fatal(err)
			}
			g, err := got.OpenGrant(s.bot, e, tc.from.pub, nil)
			if !errors.Is(err, tc.want) {
				t.Fatalf("got %v, want %v", err, tc.want)
			}
			if err == nil && g.Secret.Reveal() != "secret-a" {
				t.Error("it holds another secret")
			}
		})
	}

	revoke := must(MintRevoke(c, now))
	if revoke.Refresh.IsZero() {
		t.Error("a revoke's grant carries the whole pair")
	}
	for name, tc := range map[string]struct {
		service string
		grant   *Grant
		want    error
	}{"its own": {"practice", revoke, nil}, "an op's": {"practice", once, ErrMalformed}, "another service's": {"other", revoke, ErrService}} {
		r := &Revoke{V: 1, ID: opA, Service: tc.service, Grant: must(tc.grant.Seal(s.ada, s.bot.pub, nil, "space", "", opA))}
		e := must(s.ada.SealMessage(s.bot.pub, &s.day.pub, Header{Space: "space", Op: opA}, r))
		got := new(Revoke)
		if err := s.bot.OpenMessage(e, s.ada.pub, s.day, got); err != nil {
			t.Fatal(err)
		}
		if _, err := got.OpenGrant(s.bot, e, s.ada.pub, s.day); !errors.Is(err, tc.want) {
			t.Errorf("revoke with %s grant: got %v, want %v", name, err, tc.want)
		}
	}
}

// TestDayKey: an op of a past day does not open with the bot's key alone, nor with the next
// day's.
func TestDayKey(t *testing.T) {
	s := newStage(t)
	m := parseManifest(t, practice(t))
	c := credentialFor(m, integrations.Read)
	g := must(MintGrant(m, c, GrantRequest{Use: UseResearch, Ops: []string{"whoami"}, Question: "q1"}, time.Unix(noon, 0)))
	e := must(g.Seal(s.ada, s.bot.pub, &s.day.pub, "space", "thread", ""))
	for name, day := range map[string]*Identity{"none": nil, "another": s.tab, "the bot's own": s.bot} {
		if _, err := OpenGrant(s.bot, e, s.ada.pub, day); !errors.Is(err, ErrDay) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := OpenGrant(s.bot, e, s.ada.pub, s.day); err != nil {
		t.Error(err)
	}
	for _, req := range []GrantRequest{
		{Use: UseStanding, Ops: []string{"whoami"}, Charter: "ch1"},
		{Use: UseAsks, Ops: []string{"add_note"}},
	} {
		g := must(MintGrant(m, credentialFor(m, integrations.Write), req, time.Unix(noon, 0)))
		if _, err := g.Seal(s.ada, s.bot.pub, &s.day.pub, "space", "thread", ""); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s outlives the key of the day: %v", req.Use, err)
		}
	}
}

// TestLegacyConnection: a connection of before reads, by the manifest's own scheme.
func TestLegacyConnection(t *testing.T) {
	s := newStage(t)
	sealed := must(hpkeSeal(s.ada.pub, nil, []byte(`{"token":"dnsimple-token"}`)))
	c := must(OpenLegacyCredential(s.ada, sealed))
	reg := must(integrations.Default())
	m := reg.Get(c.Service)
	if m == nil {
		t.Fatalf("there is no %s", c.Service)
	}
	list := must(m.Bind("list_domains", integrations.Args{"account": 1}, nil))
	g := must(MintGrant(m, c, GrantRequest{Use: UseOnce, Call: list}, time.Unix(noon, 0)))
	e := must(g.Seal(s.ada, s.bot.pub, nil, "space", "thread", opA))
	got := must(OpenGrant(s.bot, e, s.ada.pub, nil))
	if err := got.Allows(list); err != nil || got.For().Kind != "" {
		t.Errorf("a read: %v, kind %q", err, got.For().Kind)
	}
	write := must(m.Bind("create_record", integrations.Args{"account": 1, "zone": "example.com", "type": "TXT", "name": "", "content": "x"}, nil))
	if _, err := MintGrant(m, c, GrantRequest{Use: UseOnce, Call: write}, time.Unix(noon, 0)); !errors.Is(err, ErrCap) {
		t.Errorf("a write: %v", err)
	}
	if err := got.Allows(write); !errors.Is(err, ErrCap) {
		t.Errorf("a write under its grant: %v", err)
	}
}

func TestWindow(t *testing.T) {
	at := func(s string) time.Time { return must(time.Parse(time.RFC3339, s)) }
	office := &Window{[]string{"mon", "tue", "wed", "thu", "fri"}, "08:00", "18:00", "Europe/London"}
	night := &Window{[]string{"fri"}, "22:00", "06:00", "Europe/London"}
	for _, c := range []struct {
		w    *Window
		at   string
		want bool
	}{
		{office, "2026-12-02T08:00:00Z", true}, // a Wednesday, winter
		{office, "2026-12-02T07:59:59Z", false},
		{office, "2026-12-02T17:59:59Z", true},
		{office, "2026-12-02T18:00:00Z", false},
		{office, "2026-12-05T12:00:00Z", false}, // a Saturday
		{office, "2026-07-01T07:00:00Z", true},  // eight in summer
		{office, "2026-07-01T17:00:00Z", false},
		{night, "2026-12-04T22:00:00Z", true}, // Friday night
		{night, "2026-12-05T05:59:59Z", true}, // into Saturday
		{night, "2026-12-05T06:00:00Z", false},
		{night, "2026-12-05T22:00:00Z", false}, // Saturday night
		{night, "2026-12-04T05:00:00Z", false}, // Friday morning is Thursday's night
		{&Window{[]string{"wed"}, "00:00", "23:59", "Mars/Olympus"}, "2026-12-02T12:00:00Z", false},
	} {
		if got := c.w.Contains(at(c.at)); got != c.want {
			t.Errorf("%v at %s: %v, want %v", *c.w, c.at, got, c.want)
		}
	}
	m := parseManifest(t, practice(t))
	req := GrantRequest{Use: UseStanding, Ops: []string{"whoami"}, Charter: "ch1", Window: &Window{[]string{"wed"}, "00:00", "23:59", "Mars/Olympus"}}
	if _, err := MintGrant(m, credentialFor(m, integrations.Read), req, time.Unix(noon, 0)); !errors.Is(err, ErrMalformed) {
		t.Errorf("a zone that is not there: %v", err)
	}
}

func TestDue(t *testing.T) {
	for _, c := range []struct {
		obtained, expires, at int64
		skew                  time.Duration
		want                  bool
	}{
		{0, 0, noon, time.Minute, false},                         // unknown
		{noon, noon + 3600, noon + 3539, time.Minute, false},     //
		{noon, noon + 3600, noon + 3540, time.Minute, true},      //
		{noon, noon + 60, noon + 29, time.Minute, false},         // half its life at most
		{noon, noon + 60, noon + 30, time.Minute, true},          //
		{0, noon + 60, noon, time.Minute, true},                  // obtained nobody knows when
		{noon, noon - 1, noon, time.Minute, true},                // ended before it was obtained
		{0, noon + 3600, noon + 3600 + 86400, time.Minute, true}, // long ago
		{noon, 253402300799, noon, time.Minute, false},
	} {
		cred := Credential{ObtainedAt: c.obtained, ExpiresAt: c.expires}
		if got := cred.Due(time.Unix(c.at, 0), c.skew); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}
