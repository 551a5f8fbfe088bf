package faults_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

const (
	space  = "space-1"
	thread = "thread-1"
	group  = "group-1"
)

// A member is a client that follows docs/protocol.md: it mints grants, takes hand-backs, and
// acknowledges what it has stored and read back.
type member struct {
	id  *custody.Identity
	bot custody.PublicKey
	reg *integrations.Registry
	now func() time.Time

	blob *custody.Envelope // the connection, as it is stored
}

// An order is an operation with its ids, which may be sent again.
type order struct {
	id, grant string
	op, args  string
	needsPair bool
}

func read() *order {
	return &order{id: custody.NewID(), grant: custody.NewID(), op: "whoami", args: `{}`}
}

func write(text string) *order {
	return &order{id: custody.NewID(), grant: custody.NewID(), op: "write", args: string(must(json.Marshal(map[string]string{"text": text})))}
}

// store seals a connection and reads it back.
func (m *member) store(c *custody.Credential) { m.blob = must(c.Seal(m.id, space)) }

func (m *member) credential() *custody.Credential { return must(custody.OpenCredential(m.id, m.blob)) }

// post mints a grant and seals an op around it, for a bot.
func (m *member) post(o *order) (command, error) {
	c, now := m.credential(), m.now()
	manifest := m.reg.Get(c.Service)
	if manifest.Auth.OAuth.Refresh.Rotates {
		lent, err := c.Lend(group, now.Add(10*time.Minute), now, true)
		if err != nil {
			return command{}, err
		}
		m.store(lent)
		c = lent
	}
	call, err := manifest.Bind(o.op, must(integrations.ParseArgs([]byte(o.args))), c.For().Connection)
	if err != nil {
		return command{}, err
	}
	g, err := custody.MintGrant(manifest, c, custody.GrantRequest{ID: o.grant, Use: custody.UseOnce, Call: call, Group: group, NeedsPair: o.needsPair}, now)
	if err != nil {
		return command{}, err
	}
	ge, err := g.Seal(m.id, m.bot, nil, space, thread, o.id)
	if err != nil {
		return command{}, err
	}
	e, err := m.id.SealMessage(m.bot, nil, custody.Header{Space: space, Thread: thread, Op: o.id},
		&custody.Op{V: 2, ID: o.id, Service: c.Service, Op: o.op, Args: json.RawMessage(o.args), Grant: ge})
	if err != nil {
		return command{}, err
	}
	return m.command(e), nil
}

func (m *member) command(e *custody.Envelope) command {
	from := m.id.Public()
	return command{Do: "handle", Data: must(e.Marshal()), Space: space, Thread: thread, Author: &from}
}

// take reads what a bot sent: its result, and the hand-backs beside it. acked is true where
// a newer pair is stored since.
func (m *member) take(all []json.RawMessage) (r *custody.Result, acked bool, err error) {
	var backs []*custody.Envelope
	for _, data := range all {
		e, err := custody.ParseEnvelope(data)
		if err != nil {
			return nil, false, err
		}
		if e.To != m.id.ID() {
			continue // the outbox has other members' too
		}
		if e.Purpose == custody.PurposeHandback {
			backs = append(backs, e)
			continue
		}
		r = new(custody.Result)
		if err := m.id.OpenMessage(e, m.bot, nil, r); err != nil {
			return nil, false, err
		}
		if r.Handback != nil {
			backs = append(backs, r.Handback)
		}
	}
	for _, e := range backs {
		took, err := m.handback(e, r)
		if err != nil {
			return r, acked, err
		}
		acked = acked || took
	}
	return r, acked, nil
}

func (m *member) handback(e *custody.Envelope, r *custody.Result) (bool, error) {
	h := new(custody.Handback)
	if err := m.id.OpenMessage(e, m.bot, nil, h); err != nil {
		return false, fmt.Errorf("a hand-back: %w", err)
	}
	c := m.credential()
	if h.Credential != c.ID {
		return false, nil // of a connection that was replaced
	}
	next, err := c.Take(h)
	if err != nil && r != nil && r.Error != nil && r.Error.Code == custody.CodeRotated && r.Handback == e && r.Error.Details != nil && r.Error.Details.Proof != nil {
		next, err = c.TakeRotated(h, e, *r.Error.Details.Proof)
	}
	switch {
	case errors.Is(err, custody.ErrOlder), errors.Is(err, custody.ErrGap):
		return false, nil // dropped; kept by the outbox until the one before it is there
	case err != nil:
		return false, fmt.Errorf("a hand-back: %w", err)
	}
	m.store(next)
	return true, nil
}

// ack is what follows, once the pair is stored and was read back.
func (m *member) ack() command {
	c := m.credential()
	return m.command(must(m.id.SealMessage(m.bot, nil, custody.Header{Space: space, Thread: thread}, &custody.Ack{Credential: c.ID, Pair: c.Pair})))
}
