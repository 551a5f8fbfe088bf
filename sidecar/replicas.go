package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/elevenmessenger/connect/custody"
)

// A backend is what replicas share: which writes were begun, which tokens were redeemed, and
// who redeems one just now. A folder is one; a bucket of NATS JetStream is the other.
type backend interface {
	seen(ctx context.Context, member custody.KeyID, op string) (*entry, error)
	begin(ctx context.Context, member custody.KeyID, op string, pair, until int64, reopened bool) (bool, error)
	finish(ctx context.Context, member custody.KeyID, op, state string, answer []*custody.Envelope) error

	lease(ctx context.Context, id string, ttl time.Duration, now time.Time) (bool, error)
	release(ctx context.Context, id string) error
	token(ctx context.Context, id string, member custody.KeyID) (row *tokenRow, oldElsewhere bool, err error)
	redeem(ctx context.Context, id string, member custody.KeyID, line string, now, until int64) error
	unredeemed(ctx context.Context, id string, member custody.KeyID) error
	redeemed(ctx context.Context, r *rotation) error
	tail(ctx context.Context, line string, member custody.KeyID, now int64) (*tail, error)
}

// OpenBucket opens the bucket that the replicas of a group share, and makes it where there is
// none. copies is on how many servers it is kept: 1, 3 or 5.
func OpenBucket(ctx context.Context, js jetstream.JetStream, group string, copies int) (jetstream.KeyValue, error) {
	kv, err := js.CreateOrUpdateKeyValue(ctx, jetstream.KeyValueConfig{
		Bucket: "connect-" + group, Description: "Replicas of a Connect sidecar", History: 1, Storage: jetstream.FileStorage, Replicas: copies,
		TTL: tokenKept + 24*time.Hour, LimitMarkerTTL: time.Minute, // without it no key may have an end of its own
	})
	if err != nil {
		return nil, fmt.Errorf("sidecar: the replicas' bucket: %w", err)
	}
	return kv, nil
}

// A bucket is the backend of replicas on several machines. Each has its folder for the
// outbox and for what members ended, which reach every replica. A key that is written once
// has its own end; none is ever updated to move its end, since an update drops it.
type bucket struct {
	local *store
	kv    jetstream.KeyValue

	mu     sync.Mutex
	leases map[string]uint64 // of this process: the revision is the fence
}

// bucketTimeout bounds one call: no store means no write and no rotation, soon.
const bucketTimeout = 5 * time.Second

func (b *bucket) get(ctx context.Context, key string, v any) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	e, err := b.kv.Get(ctx, key)
	if errors.Is(err, jetstream.ErrKeyNotFound) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("the replicas' store: %w", err)
	}
	if v != nil {
		if err := json.Unmarshal(e.Value(), v); err != nil {
			return 0, fmt.Errorf("the replicas' store: %w", err)
		}
	}
	return e.Revision(), nil
}

// create writes a key that must not be there. ttl is its end, zero the bucket's.
func (b *bucket) create(ctx context.Context, key string, v any, ttl time.Duration) (revision uint64, ok bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	data, err := json.Marshal(v)
	if err != nil {
		return 0, false, err
	}
	var opts []jetstream.KVCreateOpt
	if ttl > 0 {
		opts = append(opts, jetstream.KeyTTL(max(ttl, time.Second)))
	}
	revision, err = b.kv.Create(ctx, key, data, opts...)
	if errors.Is(err, jetstream.ErrKeyExists) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("the replicas' store: %w", err)
	}
	return revision, true, nil
}

// put writes a key that only the holder of a lease writes; revision is what he saw of it.
func (b *bucket) put(ctx context.Context, key string, v any, revision uint64) error {
	if revision == 0 {
		_, ok, err := b.create(ctx, key, v, 0)
		if err == nil && !ok {
			err = errors.New("the replicas' store: another replica was faster")
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if _, err := b.kv.Update(ctx, key, data, revision); err != nil {
		return fmt.Errorf("the replicas' store: %w", err)
	}
	return nil
}

// A write has up to four keys, each written once: that it began; that nothing was done, so
// that the same ids may come again; that they did; and its answer.
func opKeys(member custody.KeyID, op string) (began, reopen, again, answered string) {
	name := string(member) + "." + op
	return "op." + name, "reopen." + name, "again." + name, "done." + name
}

type bucketEntry struct {
	Pair   int64               `json:"pair,omitempty"`
	Until  int64               `json:"until,omitempty"`
	Answer []*custody.Envelope `json:"answer,omitempty"`
}

func (b *bucket) seen(ctx context.Context, member custody.KeyID, op string) (*entry, error) {
	began, reopen, again, answered := opKeys(member, op)
	var e bucketEntry
	rev, err := b.get(ctx, began, &e)
	if rev == 0 || err != nil {
		return nil, err
	}
	out := &entry{state: begun, pair: e.Pair}
	for _, k := range []struct{ key, state string }{{answered, done}, {again, begun}, {reopen, reopens}} {
		var e bucketEntry
		rev, err := b.get(ctx, k.key, &e)
		if err != nil {
			return nil, err
		}
		if rev != 0 {
			out.state, out.answer = k.state, e.Answer
			return out, nil
		}
	}
	return out, nil
}

func (b *bucket) begin(ctx context.Context, member custody.KeyID, op string, pair, until int64, reopened bool) (bool, error) {
	began, _, again, _ := opKeys(member, op)
	key := began
	if reopened {
		key = again
	}
	_, ok, err := b.create(ctx, key, bucketEntry{Pair: pair, Until: until}, b.left(until))
	return ok, err
}

func (b *bucket) left(until int64) time.Duration {
	return max(time.Until(time.Unix(until, 0)), time.Minute)
}

func (b *bucket) finish(ctx context.Context, member custody.KeyID, op, state string, answer []*custody.Envelope) error {
	began, reopen, _, answered := opKeys(member, op)
	var e bucketEntry
	if _, err := b.get(ctx, began, &e); err != nil {
		return err
	}
	key := answered
	if state == reopens {
		key = reopen
	}
	_, _, err := b.create(ctx, key, bucketEntry{Answer: answer}, b.left(e.Until))
	return err
}

func (b *bucket) lease(ctx context.Context, id string, ttl time.Duration, _ time.Time) (bool, error) {
	rev, ok, err := b.create(ctx, "lock."+id, b.local.holder, ttl)
	if !ok || err != nil {
		return false, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leases == nil {
		b.leases = make(map[string]uint64)
	}
	b.leases[id] = rev
	return true, nil
}

func (b *bucket) release(ctx context.Context, id string) error {
	b.mu.Lock()
	rev, ok := b.leases[id]
	delete(b.leases, id)
	b.mu.Unlock()
	if !ok {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bucketTimeout)
	defer cancel()
	if err := b.kv.Purge(ctx, "lock."+id, jetstream.LastRevision(rev), jetstream.PurgeTTL(time.Minute)); err != nil {
		return fmt.Errorf("the replicas' store: %w", err)
	}
	return nil
}

// A bucketToken is what is known of a refresh token, by member.
type bucketToken struct {
	Line  string `json:"line"`
	State string `json:"state"`
	Tries int    `json:"tries"`
	At    int64  `json:"at"`
}

type bucketTokens map[custody.KeyID]bucketToken

func (b *bucket) tokens(ctx context.Context, id string) (bucketTokens, uint64, error) {
	var all bucketTokens
	rev, err := b.get(ctx, "token."+id, &all)
	if all == nil {
		all = make(bucketTokens)
	}
	return all, rev, err
}

func (b *bucket) token(ctx context.Context, id string, member custody.KeyID) (row *tokenRow, oldElsewhere bool, err error) {
	all, _, err := b.tokens(ctx, id)
	if err != nil {
		return nil, false, err
	}
	for who, t := range all {
		if who == member {
			row = &tokenRow{t.Line, t.State, t.Tries, t.At}
		} else if t.State == old {
			oldElsewhere = true
		}
	}
	return row, oldElsewhere, nil
}

func (b *bucket) redeem(ctx context.Context, id string, member custody.KeyID, line string, now, until int64) error {
	all, rev, err := b.tokens(ctx, id)
	if err != nil {
		return err
	}
	t := all[member]
	if t.Tries == 0 {
		t.At = now
	}
	t.Line, t.State, t.Tries = line, redeeming, t.Tries+1
	all[member] = t
	return b.put(ctx, "token."+id, all, rev)
}

func (b *bucket) unredeemed(ctx context.Context, id string, member custody.KeyID) error {
	all, rev, err := b.tokens(ctx, id)
	if err != nil {
		return err
	}
	t := all[member]
	if t.State != redeeming {
		return nil
	}
	t.State, t.Tries = live, max(t.Tries-1, 0)
	all[member] = t
	return b.put(ctx, "token."+id, all, rev)
}

type bucketLine struct {
	Pair         int64             `json:"pair"`
	Handback     *custody.Envelope `json:"handback"`
	Bot          custody.KeyID     `json:"bot"`
	Handoff      *custody.Envelope `json:"handoff"`
	HandoffUntil int64             `json:"handoff_until"`
}

// redeemed writes the pair to this replica's disk first: from then on nothing loses it.
func (b *bucket) redeemed(ctx context.Context, r *rotation) error {
	if r.next != "" {
		all, _, err := b.tokens(ctx, r.next)
		for _, t := range all {
			if err == nil && t.State == old {
				return errCycle
			}
		}
	}
	if err := b.local.redeemed(ctx, r); err != nil {
		return err
	}
	share := func() error {
		line := bucketLine{Pair: r.pair, Bot: r.bot, HandoffUntil: r.handoffUntil}
		var err error
		if line.Handback, err = custody.ParseEnvelope(r.handback); err != nil {
			return err
		}
		if line.Handoff, err = custody.ParseEnvelope(r.handoff); err != nil {
			return err
		}
		key := "line." + r.line + "." + string(r.member)
		rev, err := b.get(ctx, key, nil)
		if err != nil {
			return err
		}
		if err := b.put(ctx, key, line, rev); err != nil {
			return err
		}
		if r.next != "" {
			all, rev, err := b.tokens(ctx, r.next)
			if err != nil {
				return err
			}
			if t, ok := all[r.member]; !ok || t.Line != r.line {
				all[r.member] = bucketToken{Line: r.line, State: live, At: r.now}
				if err := b.put(ctx, "token."+r.next, all, rev); err != nil {
					return err
				}
			}
		}
		all, rev, err := b.tokens(ctx, r.id)
		if err != nil {
			return err
		}
		t := bucketToken{Line: r.line, State: live, At: r.now}
		if r.next != "" {
			t.State = old
		}
		all[r.member] = t
		return b.put(ctx, "token."+r.id, all, rev)
	}
	// The pair is safe and may be used; that the others learn of it is worth some tries.
	var err error
	for wait := 50 * time.Millisecond; wait < 2*time.Second; wait *= 3 {
		if err = share(); err == nil {
			return nil
		}
		time.Sleep(wait)
	}
	return fmt.Errorf("%w: %w", errUnshared, err)
}

// errUnshared means that a fresh pair is on this replica's disk alone.
var errUnshared = errors.New("the other replicas do not know of the renewed key")

func (b *bucket) tail(ctx context.Context, line string, member custody.KeyID, now int64) (*tail, error) {
	var l bucketLine
	rev, err := b.get(ctx, "line."+line+"."+string(member), &l)
	if rev == 0 || err != nil {
		return nil, err
	}
	t := &tail{pair: l.Pair, handback: l.Handback, bot: l.Bot, until: l.HandoffUntil}
	if now < l.HandoffUntil {
		t.handoff = l.Handoff
	}
	return t, nil
}
