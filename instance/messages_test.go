package instance_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
)

// A party is one key of a test's conversation.
type party struct {
	*client.Client
	*custody.Identity
	session string
}

func (p *place) party(t testing.TB, kind string) *party {
	t.Helper()
	c, i := p.join(t, kind)
	return &party{c, i, p.session(t, i)}
}

func post(t testing.TB, p *place, session, id, thread string, envelope any, until int64) answer {
	t.Helper()
	m := map[string]any{"id": id, "thread": thread, "envelope": envelope}
	if until != 0 {
		m["until"] = until
	}
	if thread == "" {
		delete(m, "thread")
	}
	return p.ask(t, "POST", "/api/messages", session, m)
}

func TestMessagesReachTheirReaderOnly(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris, carla := p.party(t, "member"), p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID(), carla.ID()); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if seq, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", fmt.Sprint(n)), time.Time{}); err != nil || seq != int64(n+1) {
			t.Fatalf("seq %d, %v", seq, err)
		}
	}
	page, err := boris.Since(ctx, 0)
	if err != nil || len(page.Messages) != 3 || page.Cursor != 3 || page.More {
		t.Fatalf("%+v %v", page, err)
	}
	for n, m := range page.Messages {
		var s custody.Say
		if err := boris.OpenMessage(m.Envelope, anna.Public(), nil, &s); err != nil || s.Text != fmt.Sprint(n) || m.Seq != int64(n+1) {
			t.Errorf("%d: %+v %v", n, s, err)
		}
	}
	for name, other := range map[string]*party{"the author": anna, "another in the thread": carla} {
		if page, err := other.Since(ctx, 0); err != nil || len(page.Messages) != 0 || page.Cursor != 0 {
			t.Errorf("%s: %+v %v", name, page, err)
		}
	}
	// What the wire says of the author is whom the instance has logged in.
	a := p.ask(t, "GET", "/api/messages?since=2&limit=1&thread=t1", boris.session, nil)
	var wire struct {
		Messages []struct {
			Seq      int64
			Author   custody.KeyID
			Envelope json.RawMessage
		}
		Cursor int64
		More   bool
	}
	if err := json.Unmarshal([]byte(a.body), &wire); err != nil || len(wire.Messages) != 1 || wire.Messages[0].Author != anna.ID() || wire.Messages[0].Seq != 3 {
		t.Errorf("%s %v", a.body, err)
	}
	if a := p.ask(t, "GET", "/api/messages?thread=t2", boris.session, nil); strings.Contains(a.body, "envelope") || !strings.Contains(a.body, `"cursor":3`) {
		t.Errorf("another thread: %s", a.body)
	}
	if page, err := boris.SinceIn(ctx, "t1", 1); err != nil || len(page.Messages) != 2 {
		t.Errorf("%+v %v", page, err)
	}
	// Pages follow each other without a gap.
	var seen []int64
	for cursor, more := int64(0), true; more; {
		a := p.ask(t, "GET", fmt.Sprintf("/api/messages?limit=2&since=%d", cursor), boris.session, nil)
		if err := json.Unmarshal([]byte(a.body), &wire); err != nil {
			t.Fatal(err)
		}
		for _, m := range wire.Messages {
			seen = append(seen, m.Seq)
		}
		cursor, more = wire.Cursor, wire.More
	}
	if fmt.Sprint(seen) != "[1 2 3]" {
		t.Errorf("pages hold %v", seen)
	}
	if _, err := boris.Since(ctx, 4); !errors.Is(err, client.ErrCursor) {
		t.Errorf("a cursor ahead: %v", err)
	}
	// A reader forgets her own copies, and nobody else's.
	if err := carla.Forget(ctx, 1); err != nil {
		t.Error(err)
	}
	if err := boris.Forget(ctx, 2); err != nil {
		t.Error(err)
	}
	if page, err := boris.Since(ctx, 0); err != nil || len(page.Messages) != 2 || page.Cursor != 3 {
		t.Errorf("%+v %v", page, err)
	}
}

func TestMessageRefused(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris, carla, bot := p.party(t, "member"), p.party(t, "member"), p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(ctx, "t1", boris.ID(), bot.ID()); err != nil {
		t.Fatal(err)
	}
	good := say(t, anna.Identity, boris.Public(), "t1", "hello")
	text := string(marshal(t, good))
	foreign := seal(t, anna.Identity, boris.Public(), custody.Header{Space: "elsewhere", Thread: "t1"}, &custody.Say{V: 1, ID: custody.NewID(), At: 1, Text: "x"})
	tab, err := custody.SealOneTime(boris.Public(), custody.Header{Purpose: custody.PurposeTab, Op: "github.read"}, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	copyOf, err := anna.SealIdentity(anna.Public(), space)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, id, thread string
		envelope         any
		until            int64
		status           int
		code             string
	}{
		{"no id", "", "t1", good, 0, 400, "malformed"},
		{"an id of dots", "..", "t1", good, 0, 400, "malformed"},
		{"a long id", strings.Repeat("a", 65), "t1", good, 0, 400, "malformed"},
		{"another's envelope", "a", "t1", say(t, boris.Identity, anna.Public(), "t1", "x"), 0, 403, "not_yours"},
		{"another space", "a", "t1", foreign, 0, 400, "space"},
		{"another thread", "a", "t2", good, 0, 400, "thread"},
		{"no thread", "a", "", good, 0, 400, "thread"},
		{"a say outside of threads", "a", "", say(t, anna.Identity, boris.Public(), "", "x"), 0, 400, "thread"},
		{"a thread that is not there", "a", "t9", say(t, anna.Identity, boris.Public(), "t9", "x"), 0, 404, "no_such_thread"},
		{"a reader outside", "a", "t1", say(t, anna.Identity, carla.Public(), "t1", "x"), 0, 403, "reader"},
		{"a reader of no space", "a", "t1", say(t, anna.Identity, identity(t).Public(), "t1", "x"), 0, 403, "reader"},
		{"from nobody", "a", "t1", tab, 0, 403, "not_yours"},
		{"an identity", "a", "", copyOf, 0, 400, "purpose"},
		{"over", "a", "t1", good, time.Now().Unix() - 1, 400, "until"},
		{"before 1970", "a", "t1", good, -1, 400, "until"},
		{"no envelope", "a", "t1", 1, 0, 400, "envelope"},
		{"null", "a", "t1", nil, 0, 400, "malformed"},
		{"an empty object", "a", "t1", map[string]any{}, 0, 400, "envelope"},
		{"a later version", "a", "t1", json.RawMessage(strings.Replace(text, `"v":1`, `"v":2`, 1)), 0, 400, "version"},
		{"another suite", "a", "t1", json.RawMessage(strings.Replace(text, "p256-", "x25519-", 1)), 0, 400, "version"},
		{"an unknown field", "a", "t1", json.RawMessage(strings.Replace(text, `"v":1`, `"v":1,"w":1`, 1)), 0, 400, "envelope"},
		{"a field twice", "a", "t1", json.RawMessage(strings.Replace(text, `"v":1`, `"v":1,"v":1`, 1)), 0, 400, "malformed"},
		{"loose base64url", "a", "t1", json.RawMessage(strings.Replace(text, `"ct":"`, `"ct":"=`, 1)), 0, 400, "envelope"},
		{"too large", "a", "t1", json.RawMessage(strings.Replace(text, `{`, `{`+strings.Repeat(" ", custody.MaxMessage+1-len(text)), 1)), 0, 413, "too_large"},
		{"far too large", "a", "t1", json.RawMessage(`"` + strings.Repeat("A", 100_000) + `"`), 0, 413, "too_large"},
	} {
		body := fmt.Sprintf(`{"id":%q,"thread":%q,"envelope":%s,"until":%d}`, c.id, c.thread, mustJSON(t, c.envelope), c.until)
		if c.thread == "" {
			body = strings.Replace(body, `"thread":"",`, "", 1)
		}
		if c.until == 0 {
			body = strings.Replace(body, `,"until":0`, "", 1)
		}
		if a := p.ask(t, "POST", "/api/messages", anna.session, body); a.status != c.status || a.code != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, a.status, a.body, c.status, c.code)
		}
	}
	if page, err := boris.Since(ctx, 0); err != nil || len(page.Messages) != 0 {
		t.Errorf("something was relayed: %+v %v", page, err)
	}
	if a := post(t, p, carla.session, "a", "t1", say(t, carla.Identity, boris.Public(), "t1", "x"), 0); a.code != "no_such_thread" {
		t.Errorf("an author outside: %d %s", a.status, a.body)
	}
	// Exactly the limit is taken: the largest message that may be sent.
	largest := json.RawMessage(strings.Replace(text, `{`, `{`+strings.Repeat(" ", custody.MaxMessage-len(text)), 1))
	if a := p.ask(t, "POST", "/api/messages", anna.session, fmt.Sprintf(`{"id":"largest","thread":"t1","envelope":%s}`, largest)); a.status != 200 {
		t.Errorf("%d bytes: %d %s", len(largest), a.status, a.body)
	}
	if page, err := boris.Since(ctx, 0); err != nil || len(page.Messages) != 1 {
		t.Errorf("%+v %v", page, err)
	}
}

// mustJSON writes v without the spaces being taken out of a RawMessage.
func mustJSON(t testing.TB, v any) string {
	if raw, ok := v.(json.RawMessage); ok {
		return string(raw)
	}
	if e, ok := v.(*custody.Envelope); ok {
		return string(marshal(t, e))
	}
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestPostTwiceIsOnce: a retry after a lost answer is no second message, not even when the
// first has been deleted meanwhile.
func TestPostTwiceIsOnce(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris := p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID()); err != nil {
		t.Fatal(err)
	}
	e := say(t, anna.Identity, boris.Public(), "t1", "once")
	until := time.Now().Add(time.Minute).Unix()
	first := post(t, p, anna.session, "m", "t1", e, until)
	if first.status != 200 {
		t.Fatal(first.body)
	}
	p.clock.advance(2 * time.Second)
	if a := post(t, p, anna.session, "m", "t1", e, until); a.body != first.body {
		t.Errorf("%s, want %s", a.body, first.body)
	}
	if a := post(t, p, anna.session, "m", "t1", say(t, anna.Identity, boris.Public(), "t1", "once"), until); a.status != 409 || a.code != "id_taken" {
		t.Errorf("another envelope: %d %s", a.status, a.body)
	}
	if a := post(t, p, anna.session, "m", "t1", e, 0); a.code != "id_taken" {
		t.Errorf("another until: %d %s", a.status, a.body)
	}
	// The id is the author's own: another's is another message.
	if a := post(t, p, boris.session, "m", "t1", say(t, boris.Identity, anna.Public(), "t1", "x"), 0); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	p.clock.advance(2 * time.Minute)
	if err := instance.Sweep(p.in); err != nil {
		t.Fatal(err)
	}
	if a := post(t, p, anna.session, "m", "t1", e, until); a.body != first.body {
		t.Errorf("after its end: %s, want %s", a.body, first.body)
	}
	if page, err := boris.Since(ctx, 0); err != nil || len(page.Messages) != 0 || page.Cursor != 1 {
		t.Errorf("%+v %v", page, err)
	}
}

// TestUntil: what holds a grant goes in any case, and what has come to its end is not read
// even before it is swept.
func TestUntil(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, bot := p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	raw := func(purpose custody.Purpose, op string) *custody.Envelope {
		e, err := anna.Seal(bot.Public(), nil, custody.Header{Purpose: purpose, Space: space, Thread: "t1", Op: op}, []byte("sealed"))
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	week := int64((7*24*time.Hour + custody.Skew) / time.Second)
	for n, c := range []struct {
		purpose  custody.Purpose
		op       string
		until    int64 // from now; 0: not said
		from, to int64
	}{
		{custody.PurposeOp, custody.NewID(), 0, 3600, 3605},
		{custody.PurposeOp, custody.NewID(), 120, 120, 120},
		{custody.PurposeOp, custody.NewID(), 90 * 86400, week, week + 5},
		{custody.PurposeRevoke, custody.NewID(), 0, 3600, 3605},
		{custody.PurposeGrant, "", 0, week, week + 5},
		{custody.PurposeGrant, "", 8 * 3600, 8 * 3600, 8 * 3600},
		{custody.PurposeGrant, "", 1000 * 86400, week, week + 5},
		{custody.PurposeSay, "", 0, 0, 0},
		{custody.PurposeSay, "", 5, 5, 5},
		{custody.PurposeAck, "", 1000 * 86400, 400 * 86400, 400*86400 + 5},
		{custody.PurposeEnd, "", 0, 0, 0},
	} {
		until := c.until
		if until > 0 {
			until += now
		}
		a := post(t, p, anna.session, ids(n), "t1", raw(c.purpose, c.op), until)
		var out struct{ Until int64 }
		if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.status != 200 {
			t.Errorf("%s: %d %s", c.purpose, a.status, a.body)
			continue
		}
		if out.Until > 0 {
			out.Until -= now
		}
		if out.Until < c.from || out.Until > c.to {
			t.Errorf("%s, until %d: kept %d, want %d to %d", c.purpose, c.until, out.Until, c.from, c.to)
		}
	}
	count := func() (n int) {
		t.Helper()
		page, err := bot.Since(ctx, 0)
		if err != nil || page.Cursor != 11 {
			t.Fatalf("%+v %v", page, err)
		}
		return len(page.Messages)
	}
	if n := count(); n != 11 {
		t.Errorf("%d messages", n)
	}
	p.clock.advance(3 * time.Minute) // no sweep: reading looks at the time too
	if n := count(); n != 9 {
		t.Errorf("after three minutes: %d messages", n)
	}
	p.clock.advance(8 * 24 * time.Hour)
	if err := instance.Sweep(p.in); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 3 { // a say, an ack and an end
		t.Errorf("after a week: %d messages", n)
	}
}

// TestSettlingReachesWhoHasLeft: a pair that was rotated, and the end of a grant, are not lost
// because somebody left the thread.
func TestSettlingReachesWhoHasLeft(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, bot, carla := p.party(t, "member"), p.party(t, "bot"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", bot.ID(), carla.ID()); err != nil {
		t.Fatal(err)
	}
	if err := bot.Leave(ctx, "t1", anna.ID()); err == nil {
		t.Error("a bot puts a member out")
	}
	if err := carla.Leave(ctx, "t1", anna.ID()); err != nil {
		t.Fatal(err)
	}
	send := func(from *party, to custody.PublicKey, purpose custody.Purpose, thread, op string) error {
		e, err := from.Seal(to, nil, custody.Header{Purpose: purpose, Space: space, Thread: thread, Op: op}, []byte("sealed"))
		if err != nil {
			t.Fatal(err)
		}
		_, err = from.Post(ctx, "", e, time.Time{})
		return err
	}
	for _, thread := range []string{"t1", ""} {
		if err := send(bot, anna.Public(), custody.PurposeHandback, thread, ""); err != nil {
			t.Errorf("a hand-back in %q: %v", thread, err)
		}
		if err := send(bot, anna.Public(), custody.PurposeResult, thread, custody.NewID()); err != nil {
			t.Errorf("a result in %q: %v", thread, err)
		}
		if err := send(anna, bot.Public(), custody.PurposeEnd, thread, ""); err != nil {
			t.Errorf("an end in %q: %v", thread, err)
		}
		if err := send(anna, bot.Public(), custody.PurposeAck, thread, ""); err != nil {
			t.Errorf("an ack in %q: %v", thread, err)
		}
		if err := send(anna, bot.Public(), custody.PurposeOp, thread, custody.NewID()); err == nil {
			t.Errorf("an op in %q of a member who has left", thread)
		}
	}
	if err := send(bot, anna.Public(), custody.PurposeSay, "t1", ""); !errors.Is(err, client.ErrReader) {
		t.Errorf("a say to a member who has left: %v", err)
	}
	if err := send(carla, bot.Public(), custody.PurposeOp, "", custody.NewID()); err != nil {
		t.Errorf("an op outside of threads: %v", err)
	}
	if err := send(bot, bot.Public(), custody.PurposeHandoff, "", string(bot.ID())); err != nil {
		t.Errorf("a hand-off to itself: %v", err)
	}
	stranger := p.party(t, "member")
	if err := send(stranger, bot.Public(), custody.PurposeEnd, "", ""); !errors.Is(err, client.ErrReader) {
		t.Errorf("an end from a stranger: %v", err)
	}
}

// TestQuota: who floods a reader is stopped, and nobody else.
func TestQuota(t *testing.T) {
	p := start(t, func(c *instance.Config) { c.Quota = 3000 })
	ctx := t.Context()
	anna, boris, carla := p.party(t, "member"), p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID(), carla.ID()); err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("x", 1200)
	if _, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", long), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", long), time.Time{}); !errors.Is(err, client.ErrQuota) {
		t.Errorf("over the quota: %v", err)
	}
	if _, err := anna.Post(ctx, "", say(t, anna.Identity, carla.Public(), "t1", long), time.Time{}); err != nil {
		t.Errorf("another reader: %v", err)
	}
	if _, err := carla.Post(ctx, "", say(t, carla.Identity, boris.Public(), "t1", long), time.Time{}); err != nil {
		t.Errorf("another author: %v", err)
	}
	if err := boris.Forget(ctx, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", long), time.Time{}); err != nil {
		t.Errorf("after the reader made room: %v", err)
	}
}

func TestThreads(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris, bot := p.party(t, "member"), p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Fatal(err)
	}
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Errorf("a retry: %v", err)
	}
	if err := boris.NewThread(ctx, "t1"); !errors.Is(err, client.ErrTaken) {
		t.Errorf("another's id: %v", err)
	}
	if err := bot.NewThread(ctx, "t2"); err == nil {
		t.Error("a bot begins a thread")
	}
	if err := anna.NewThread(ctx, "t3", identity(t).ID()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("with nobody: %v", err)
	}
	if err := bot.Enter(ctx, "t1", boris.ID()); err == nil {
		t.Error("a bot lets somebody in")
	}
	if err := boris.Enter(ctx, "t1", boris.ID()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("by himself: %v", err)
	}
	if a := p.ask(t, "GET", "/api/threads/t1", boris.session, nil); a.code != "no_such_thread" {
		t.Errorf("from outside: %d %s", a.status, a.body)
	}
	if err := anna.Enter(ctx, "t1", boris.ID()); err != nil {
		t.Fatal(err)
	}
	list, err := boris.Threads(ctx)
	if err != nil || len(list) != 1 || list[0].ID != "t1" || list[0].Creator != anna.ID() || len(list[0].Members) != 3 {
		t.Errorf("%+v %v", list, err)
	}
	if a := p.ask(t, "GET", "/api/threads/t1", boris.session, nil); a.status != 200 || strings.Count(a.body, string(bot.ID())) != 1 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if err := bot.Leave(ctx, "t1", bot.ID()); err != nil {
		t.Error(err)
	}
	if list, err := bot.Threads(ctx); err != nil || len(list) != 0 {
		t.Errorf("%+v %v", list, err)
	}
	if err := bot.Leave(ctx, "t1", bot.ID()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("twice: %v", err)
	}
}
