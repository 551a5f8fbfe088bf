package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/integrations"
)

// An endMember is one key's client, which hears its log over the WebSocket: a person's, or
// that of a bot's own program.
type endMember struct {
	s   *endStage
	id  *custody.Identity
	c   *client.Client
	bot *client.Member // that she grants to

	mu   sync.Mutex
	came []*custody.Envelope
}

// enters makes a client of a key, which joins the space where it is new.
func (s *endStage) enters(id *custody.Identity, join *client.Join) *endMember {
	s.t.Helper()
	c, err := client.Dial(s.t.Context(), s.wire.origin(), id, client.Options{Space: endSpace, Join: join})
	if err != nil {
		s.t.Fatal(err)
	}
	m := &endMember{s: s, id: id, c: c}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.saw(c.Receive(ctx, 0, func(_ context.Context, msg *client.Message) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.came = append(m.came, msg.Envelope)
			return nil
		}))
	}()
	s.whole.Cleanup(func() { stop(); <-done })
	return m
}

// joins makes a member.
func (s *endStage) joins(name string) *endMember {
	s.t.Helper()
	id, err := custody.NewIdentity()
	if err != nil {
		s.t.Fatal(err)
	}
	return s.enters(id, &client.Join{Kind: "member", Name: name, Invite: endInvite})
}

// device is a bot's own program, which has the key that the sidecar made.
func (s *endStage) device(name string) *endMember {
	s.t.Helper()
	k, err := keyStore{dir: filepath.Join(s.dir, "bot")}.get(name)
	if err != nil {
		s.t.Fatalf("the key of %s: %v", name, err)
	}
	return s.enters(k.id, nil)
}

// record waits until a bot has published its record, and returns it.
func (m *endMember) record(name string) *client.Member {
	m.s.t.Helper()
	for end := time.Now().Add(endPatience); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		all, err := m.c.Members(m.s.t.Context())
		if err != nil {
			m.s.t.Fatal(err)
		}
		for _, r := range all {
			if r.Kind == "bot" && r.Name == name && r.Day != nil && r.Group != "" {
				return r
			}
		}
	}
	m.s.t.Fatalf("%s does not publish its record", name)
	return nil
}

// heard returns what came of a purpose, and for an op where one is named.
func (m *endMember) heard(p custody.Purpose, op string) (all []*custody.Envelope) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, e := range m.came {
		if e.Purpose == p && (op == "" || e.Op == op) {
			all = append(all, e)
		}
	}
	return all
}

// awaits waits for the n-th of those.
func (m *endMember) awaits(p custody.Purpose, op string, n int) *custody.Envelope {
	m.s.t.Helper()
	for end := time.Now().Add(endPatience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if all := m.heard(p, op); len(all) >= n {
			return all[n-1]
		}
	}
	m.s.t.Fatalf("no %s comes", p)
	return nil
}

// result waits for the n-th result of an op, and opens it.
func (m *endMember) result(op string, n int) *custody.Result {
	m.s.t.Helper()
	return m.opens(m.awaits(custody.PurposeResult, op, n))
}

// opens opens a result, which nobody else does.
func (m *endMember) opens(e *custody.Envelope) *custody.Result {
	m.s.t.Helper()
	r := new(custody.Result)
	if err := m.id.OpenMessage(e, m.bot.Key, nil, r); err != nil {
		m.s.t.Errorf("the result does not open: %v", err)
		return r
	}
	stranger, err := custody.NewIdentity()
	if err != nil {
		m.s.t.Error(err)
		return r
	}
	if err := m.s.saw(stranger.OpenMessage(e, m.bot.Key, nil, new(custody.Result))); !errors.Is(err, custody.ErrNotMine) {
		m.s.t.Errorf("another key opens her result: %v", err)
	}
	if r.Error != nil {
		m.s.saw(errors.New(r.Error.Code + ": " + r.Error.Message))
	}
	return r
}

// says seals something to one reader of the thread.
func (m *endMember) says(to custody.PublicKey, say *custody.Say) {
	m.s.t.Helper()
	say.V, say.ID, say.At = 1, custody.NewID(), time.Now().Unix()
	m.tells(to, say)
}

// tells posts a message that has no answer.
func (m *endMember) tells(to custody.PublicKey, msg custody.Message) {
	m.s.t.Helper()
	e, err := m.id.SealMessage(to, nil, custody.Header{Space: endSpace, Thread: endThread}, msg)
	if err != nil {
		m.s.t.Fatal(err)
	}
	m.posts(e, time.Time{})
}

func (m *endMember) posts(e *custody.Envelope, until time.Time) {
	m.s.t.Helper()
	if _, err := m.c.Post(m.s.t.Context(), "", e, until); err != nil {
		m.s.t.Fatal(err)
	}
}

// connects signs in at a service, through the broker's page, and stores what comes of it. What
// it returns was read back.
func (m *endMember) connects(service, token string) *custody.Credential {
	m.s.t.Helper()
	t := m.s.t
	m.s.gives(token)
	out := m.s.broker.Connect(t, brokertest.Ask{Service: service, Access: integrations.Write})
	if out.Error != "" || out.Secret.Reveal() != token || out.Refresh.IsZero() {
		t.Fatalf("the sign-in ended with %q", out.Error)
	}
	m.s.hide("the wrap of the first pair", out.Refresh.Reveal(), false)
	now := time.Now()
	c := &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: service, Kind: custody.KindOAuth, Secret: out.Secret, Refresh: out.Refresh,
		Broker: m.s.broker.URL, ExpiresAt: now.Unix() + out.ExpiresIn, ObtainedAt: now.Unix(), Scopes: out.Scopes, Wider: out.Wider, Keep: out.Keep,
		Cap: integrations.Write, ConnectedAt: now.Unix()}
	return m.stores(c)
}

// gives says which access token the provider gives from now on.
func (s *endStage) gives(token string) {
	s.broker.Upstream.SetExtra(map[string]any{"access_token": token, "stripe_user_id": "acct_123"})
	s.hide("the access token that ends with "+token[len(token)-4:], token, false)
}

// stores seals a connection, replaces the blob of the generation before, and reads it back.
func (m *endMember) stores(c *custody.Credential) *custody.Credential {
	m.s.t.Helper()
	t := m.s.t
	e, err := c.Seal(m.id, endSpace)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.c.PutBlob(t.Context(), c.ID, c.Generation-1, c.Generation, e); err != nil {
		t.Fatal(err)
	}
	late := *c
	late.Generation += 2
	if e, err = late.Seal(m.id, endSpace); err != nil {
		t.Fatal(err)
	}
	if err := m.s.saw(m.c.PutBlob(t.Context(), c.ID, c.Generation+1, late.Generation, e)); !errors.Is(err, client.ErrConflict) {
		t.Errorf("another generation than the one that is there is replaced: %v", err)
	}
	b, err := m.c.Blob(t.Context(), c.ID)
	if err != nil {
		t.Fatal(err)
	}
	back, err := custody.OpenCredential(m.id, b.Envelope)
	if err != nil {
		t.Fatal(err)
	}
	if b.Generation != c.Generation || !reflect.DeepEqual(back, c) {
		t.Errorf("generation %d is not what was stored", b.Generation)
	}
	return back
}

// An endOrder is an op on its way, with all that may be changed about it.
type endOrder struct {
	id      string
	thread  string
	bot     custody.PublicKey
	grant   *custody.Grant
	lent    *custody.Envelope // the grant, sealed; nil is made
	service string
	op      string
	args    json.RawMessage
}

// ahead is what a member's clock says: within what is allowed, and past the time after its
// start in which a sidecar takes no changes, which a test does not wait for.
func ahead() time.Time { return time.Now().Add(29 * time.Second) }

// grants mints a grant for one operation, as a tap does, and writes the op.
func (m *endMember) grants(c *custody.Credential, op, args string, preview *integrations.Result) *endOrder {
	m.s.t.Helper()
	return m.grantsAt(ahead(), m.s.registry.Get(c.Service), c, op, args, preview)
}

func (m *endMember) grantsAt(now time.Time, man *integrations.Manifest, c *custody.Credential, op, args string, preview *integrations.Result) *endOrder {
	m.s.t.Helper()
	g, err := custody.MintGrant(man, c, custody.GrantRequest{Use: custody.UseOnce, Call: m.s.binds(man, op, args), Preview: preview, Group: m.bot.Group}, now)
	if err != nil {
		m.s.t.Fatal(err)
	}
	return &endOrder{id: custody.NewID(), thread: endThread, bot: m.bot.Key, grant: g, service: c.Service, op: op, args: json.RawMessage(args)}
}

func (s *endStage) binds(man *integrations.Manifest, op, args string) *integrations.Call {
	s.t.Helper()
	given, err := integrations.ParseArgs([]byte(args))
	if err != nil {
		s.t.Fatal(err)
	}
	call, err := man.Bind(op, given, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	return call
}

// lends seals an order's grant.
func (m *endMember) lends(o *endOrder) *custody.Envelope {
	m.s.t.Helper()
	op := o.id
	if o.grant.Use != custody.UseOnce {
		op = ""
	}
	e, err := o.grant.Seal(m.id, o.bot, nil, endSpace, o.thread, op)
	if err != nil {
		m.s.t.Fatal(err)
	}
	return e
}

// seals seals an order as it is posted.
func (m *endMember) seals(o *endOrder) *custody.Envelope {
	m.s.t.Helper()
	lent := o.lent
	if lent == nil {
		lent = m.lends(o)
	}
	e, err := m.id.SealMessage(m.bot.Key, nil, custody.Header{Space: endSpace, Thread: endThread, Op: o.id},
		&custody.Op{V: 2, ID: o.id, Service: o.service, Op: o.op, Args: o.args, Grant: lent})
	if err != nil {
		m.s.t.Fatal(err)
	}
	return e
}

// sends posts an order until its grant's end, and waits for the outcome.
func (m *endMember) sends(o *endOrder) *custody.Result {
	m.s.t.Helper()
	until := time.Unix(o.grant.Exp, 0).Add(custody.Skew)
	if until.Before(time.Now()) {
		until = time.Time{} // the instance would not take it
	}
	m.posts(m.seals(o), until)
	return m.result(o.id, 1)
}

// reads runs one read, for a preview, say.
func (m *endMember) reads(c *custody.Credential, op, args string) *integrations.Result {
	m.s.t.Helper()
	r := m.sends(m.grants(c, op, args, nil))
	if !r.OK {
		m.s.t.Fatalf("%s: %+v", op, r.Error)
	}
	return &integrations.Result{JSON: r.Result}
}

// brings hands a message to the sidecar itself, as a transport does that has authenticated
// its author.
func (p *endProcess) brings(t *testing.T, author custody.PublicKey, e *custody.Envelope) (status int, code string, replies []*custody.Envelope) {
	t.Helper()
	body, err := json.Marshal(map[string]any{"space": e.Space, "thread": e.Thread, "author": author, "message": e})
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	c := &http.Client{Timeout: endPatience, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", p.socket)
	}}}
	res, err := c.Post("http://sidecar/v1/messages", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Error(err)
		return 0, "", nil
	}
	defer res.Body.Close()
	var out struct {
		Replies []*custody.Envelope
		Error   struct{ Code string }
	}
	if err := json.NewDecoder(res.Body).Decode(&out); err != nil {
		t.Error(err)
	}
	return res.StatusCode, out.Error.Code, out.Replies
}
