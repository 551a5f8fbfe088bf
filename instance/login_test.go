package instance_test

import (
	"encoding/json"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
)

func TestLogin(t *testing.T) {
	p := start(t, nil)
	_, anna := p.join(t, "member")
	_, boris := p.join(t, "member")
	post := func(i *custody.Identity, nonce []byte) answer {
		t.Helper()
		return p.ask(t, "POST", "/api/session", "", map[string]any{"key": i.Public(), "nonce": custody.Bytes(nonce)})
	}
	nonce := p.nonce(t, anna)
	if a := post(boris, nonce); a.status != 403 || a.code != "nonce" {
		t.Errorf("another key's nonce: %d %s", a.status, a.body)
	}
	for at := range nonce {
		changed := append([]byte{}, nonce...)
		changed[at] ^= 1
		if a := post(anna, changed); a.code != "nonce" {
			t.Fatalf("a nonce changed at %d: %d %s", at, a.status, a.body)
		}
	}
	if a := post(anna, nonce[:len(nonce)-1]); a.code != "nonce" {
		t.Errorf("a short nonce: %d %s", a.status, a.body)
	}
	a := post(anna, nonce)
	if a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if again := post(anna, nonce); again.code != "nonce" {
		t.Errorf("a nonce twice: %d %s", again.status, again.body)
	}
	var out struct {
		Session string
		Until   int64
		Me      struct{ ID, Name, Kind string }
	}
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || out.Me.ID != string(anna.ID()) || out.Me.Kind != "member" {
		t.Errorf("%s %v", a.body, err)
	}
	if left := time.Until(time.Unix(out.Until, 0)); left < 23*time.Hour || left > 24*time.Hour+time.Second {
		t.Errorf("a session of %s", left)
	}
	late := p.nonce(t, anna)
	p.clock.advance(2*time.Minute + time.Second)
	if a := post(anna, late); a.code != "nonce" {
		t.Errorf("a nonce after two minutes: %d %s", a.status, a.body)
	}
	if a := p.ask(t, "GET", "/api/threads", out.Session, nil); a.status != 200 {
		t.Errorf("a session: %d %s", a.status, a.body)
	}
	p.clock.advance(24 * time.Hour)
	if a := p.ask(t, "GET", "/api/threads", out.Session, nil); a.status != 401 || a.code != "session" || a.header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("a session of yesterday: %d %s", a.status, a.body)
	}
	s := p.session(t, anna)
	if a := p.ask(t, "DELETE", "/api/session", s, nil); a.status != 200 {
		t.Errorf("logout: %d %s", a.status, a.body)
	}
	for name, session := range map[string]string{"after logout": s, "none": "", "made up": strings.Repeat("A", 43), "too long": strings.Repeat("A", 4000), "its digest": custodyDigest(s)} {
		if a := p.ask(t, "GET", "/api/members", session, nil); a.status != 401 || a.code != "session" {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
}

func custodyDigest(s string) string {
	// What the database holds of a session is no session.
	b, _ := custody.Bytes(instance.TokenHash(s)).MarshalText()
	return string(b)
}

// TestOldestSessionEnds: one key has 64 sessions at most.
func TestOldestSessionEnds(t *testing.T) {
	p := start(t, nil)
	_, anna := p.join(t, "member")
	first := p.session(t, anna)
	for range 64 {
		p.clock.advance(time.Second)
		p.session(t, anna)
	}
	if a := p.ask(t, "GET", "/api/threads", first, nil); a.code != "session" {
		t.Errorf("the oldest of 66 sessions: %d", a.status)
	}
}

func TestJoin(t *testing.T) {
	p := start(t, func(c *instance.Config) { c.Invite = "open sesame" })
	if a := p.ask(t, "GET", "/api/space", "", nil); !strings.Contains(a.body, `"invite":true`) || !strings.Contains(a.body, `"space":"home"`) {
		t.Error(a.body)
	}
	anna := identity(t)
	dial := func(join *client.Join) error {
		_, err := client.Dial(t.Context(), p.URL, anna, client.Options{Join: join})
		return err
	}
	if err := dial(nil); !errors.Is(err, client.ErrUnknownKey) {
		t.Errorf("without joining: %v", err)
	}
	for _, invite := range []string{"", "open sesam", "open sesame "} {
		if err := dial(&client.Join{Kind: "member", Invite: invite}); !errors.Is(err, client.ErrInvite) || strings.Contains(err.Error(), "sesam") {
			t.Errorf("with %q: %v", invite, err)
		}
	}
	for name, join := range map[string]*client.Join{
		"kind": {Kind: "robot", Invite: "open sesame"}, "name": {Kind: "member", Name: "a\x00b", Invite: "open sesame"},
		"long name": {Kind: "member", Name: strings.Repeat("ä", 65), Invite: "open sesame"}, "a member's group": {Kind: "member", Group: "g", Invite: "open sesame"},
	} {
		var e *client.Error
		if err := dial(join); !errors.As(err, &e) || e.Code != "malformed" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := dial(&client.Join{Kind: "member", Name: "Änna 🙂", Invite: "open sesame"}); err != nil {
		t.Fatal(err)
	}
	if err := dial(nil); err != nil {
		t.Errorf("who has joined needs no invite: %v", err)
	}
	// A key that joined stays what it is.
	if err := dial(&client.Join{Kind: "bot", Name: "x"}); err != nil {
		t.Error(err)
	}
	c := p.dial(t, anna, nil)
	if m, err := c.Member(t.Context(), anna.ID()); err != nil || m.Kind != "member" || m.Name != "Änna 🙂" {
		t.Errorf("%+v %v", m, err)
	}
}

// TestWrongSpace: a client that expects a space logs in to no other.
func TestWrongSpace(t *testing.T) {
	p := start(t, nil)
	_, err := client.Dial(t.Context(), p.URL, identity(t), client.Options{Space: "elsewhere", Join: &client.Join{Kind: "member"}})
	if err == nil || !strings.Contains(err.Error(), "another space") {
		t.Error(err)
	}
}

func TestMembers(t *testing.T) {
	p := start(t, nil)
	c, anna := p.join(t, "member")
	i := identity(t)
	b := p.dial(t, i, &client.Join{Kind: "bot", Name: "Helper", Group: "one"})
	ctx := t.Context()
	all, err := c.Members(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%d members, %v", len(all), err)
	}
	if _, err := c.Member(ctx, identity(t).ID()); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("nobody: %v", err)
	}
	if err := c.SetName(ctx, "Anna"); err != nil {
		t.Error(err)
	}
	if err := b.SetGroup(ctx, "two"); err != nil {
		t.Error(err)
	}
	if err := c.SetGroup(ctx, "two"); err == nil {
		t.Error("a member has a group")
	}
	day := identity(t).Public()
	if err := c.PublishDay(ctx, day, time.Now().Add(time.Hour)); err == nil {
		t.Error("a member has a key of the day")
	}
	for name, until := range map[string]time.Duration{"past": -time.Second, "too long": 25 * time.Hour} {
		var e *client.Error
		if err := b.PublishDay(ctx, day, time.Now().Add(until)); !errors.As(err, &e) || e.Code != "until" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := b.PublishDay(ctx, i.Public(), time.Now().Add(time.Hour)); err == nil {
		t.Error("the bot's own key is its key of the day")
	}
	until := time.Now().Add(24 * time.Hour)
	if err := b.PublishDay(ctx, day, until); err != nil {
		t.Fatal(err)
	}
	m, err := c.Member(ctx, i.ID())
	if err != nil || m.Group != "two" || m.Name != "Helper" || m.Kind != "bot" || m.Key.ID() != i.ID() || m.Day == nil || m.Day.Key.ID() != day.ID() || m.Day.Until != until.Unix() {
		t.Errorf("%+v %v", m, err)
	}
	if me, err := b.Member(ctx, anna.ID()); err != nil || me.Name != "Anna" || me.Day != nil || me.Group != "" {
		t.Errorf("%+v %v", me, err)
	}
	p.clock.advance(24*time.Hour + time.Second)
	if m, err := c.Member(ctx, i.ID()); err != nil || m.Day != nil { // and both log in anew by themselves
		t.Errorf("a key of yesterday is still shown: %+v %v", m, err)
	}
}

// TestFullSpace: a space holds ten thousand keys, and those that are in it go on.
func TestFullSpace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "full.db")
	db, err := instance.OldStore(path, instance.LastVersion())
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Exec(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9999)
		INSERT INTO members (id, key, kind, joined_at) SELECT printf('%043d', i), x'', 'member', 1 FROM n`)
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	p := start(t, func(c *instance.Config) { c.DB = path })
	_, last := p.join(t, "member")
	var e *client.Error
	if _, err := client.Dial(t.Context(), p.URL, identity(t), client.Options{Join: &client.Join{Kind: "member"}}); !errors.As(err, &e) || e.Code != "full" {
		t.Errorf("one too many: %v", err)
	}
	p.dial(t, last, nil)
}
