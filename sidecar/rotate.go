package sidecar

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// Times of rotation.
const (
	defaultLease = time.Minute
	warm         = 10 * time.Minute    // how long a fresh pair is served from memory
	tokenKept    = 30 * 24 * time.Hour // how long old tokens and the last pair of a line are remembered
	backoffFirst = 5 * time.Second
	backoffMax   = 10 * time.Minute
	unknownMax   = 8 // refusals in a row that no list explains, before the member is asked
	maxFresh     = 10_000
	maxExpiresIn = 10 * 365 * 24 * 3600 // seconds; of what is said to live longer the end is not known
	maxPair      = 1 << 52              // as docs/protocol.md counts
)

// A pair is what a rotation gave, in the clear, for minutes.
type pair struct {
	number    int64
	secret    integrations.Secret
	refresh   integrations.Secret
	expiresAt int64     // 0: not known
	obtained  time.Time // by this machine's clock
	keep      map[string]string
	owner     string            // the connection's id
	handback  *custody.Envelope // nil where the member has it
}

// due says whether a pair is to be rotated before it is used.
func (p *pair) due(now time.Time) bool {
	if p.expiresAt == 0 {
		return false
	}
	end := time.Unix(p.expiresAt, 0)
	skew := min(custody.RefreshSkew, max(end.Sub(p.obtained), 0)/2)
	return !now.Before(end.Add(-skew))
}

type pairKey struct {
	id     string
	member custody.KeyID
}

// warmPairs are fresh pairs by the token that they were redeemed with, and by their own.
type warmPairs struct {
	mu  sync.Mutex
	all map[pairKey]warmPair
}

type warmPair struct {
	*pair
	until time.Time
}

func (w *warmPairs) get(k pairKey, now time.Time) *pair {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok := w.all[k]
	if !ok || now.After(p.until) {
		return nil
	}
	return p.pair
}

func (w *warmPairs) put(p *pair, now time.Time, keys ...pairKey) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[pairKey]warmPair)
	}
	if len(w.all) >= maxFresh {
		for k, v := range w.all {
			if now.After(v.until) {
				delete(w.all, k)
			}
		}
	}
	if len(w.all) >= maxFresh {
		clear(w.all) // whoever comes late is answered from the store
	}
	for _, k := range keys {
		w.all[k] = warmPair{p, now.Add(warm)}
	}
}

// acknowledged notes that a member holds the pairs of one connection herself by now: their
// hand-back need not ride on every result.
func (w *warmPairs) acknowledged(member custody.KeyID, a *custody.Ack) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for k, v := range w.all {
		if k.member == member && v.owner == a.Credential && v.handback != nil && v.number <= a.Pair {
			p := *v.pair
			p.handback = nil
			w.all[k] = warmPair{&p, v.until}
		}
	}
}

// tokenID names a refresh token in what is kept: whoever does not hold the token and the
// group's key learns nothing from it.
func (s *Sidecar) tokenID(service, broker string, refresh integrations.Secret) string {
	m := hmac.New(sha256.New, s.store.group)
	for _, x := range []string{service, broker, refresh.Reveal()} {
		m.Write(binary.BigEndian.AppendUint32(nil, uint32(len(x))))
		m.Write([]byte(x))
	}
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// A rest says how long a token is left alone after a failure.
type rest struct {
	until    time.Time
	failures int // in a row
	unknown  int // of those, refusals that no list explains
	err      *failure
}

type rests struct {
	mu  sync.Mutex
	all map[string]rest
}

func (r *rests) get(id string, now time.Time) *failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	x, ok := r.all[id]
	if !ok || x.err == nil || !now.Before(x.until) {
		return nil
	}
	f := *x.err
	if f.code != custody.CodeReconnect {
		f.retryAfter = x.until.Sub(now)
	}
	return &f
}

func (r *rests) put(id string, now time.Time, b *BrokerError, f *failure) *failure {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.all == nil {
		r.all = make(map[string]rest)
	}
	if len(r.all) >= maxFresh {
		for k, x := range r.all {
			if now.After(x.until) {
				delete(r.all, k)
			}
		}
	}
	x, ok := r.all[id]
	if !ok && len(r.all) >= maxFresh {
		for k := range r.all {
			delete(r.all, k) // any: whoever makes tokens up does not fill the memory
			break
		}
	}
	x.failures++
	if x.unknown++; b.Class != Temporary || b.Code != "unknown" {
		x.unknown = 0
	}
	wait := b.RetryAfter
	if wait == 0 {
		// Doubled each time, and not at the same moment for everybody.
		wait = min(backoffFirst<<min(x.failures-1, 10), backoffMax)
		wait += time.Duration(rand.Int64N(int64(wait)/4 + 1))
	}
	if x.unknown >= unknownMax {
		f = fail(custody.CodeReconnect, "%s has refused to renew this connection %d times in a row", f.service, x.unknown)
	}
	if f.code == custody.CodeReconnect {
		wait = max(wait, backoffMax)
	} else {
		f.retryAfter = wait
	}
	x.until, x.err = now.Add(wait), f
	r.all[id] = x
	return f
}

func (r *rests) clear(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.all, id)
}

// current returns the pair that a grant's operation uses: the grant's own, or, where that is
// due, a fresher one. A nil pair means the grant's own.
func (s *Sidecar) current(ctx context.Context, j *job) (*pair, *failure) {
	g := j.grant
	if g.Refresh.IsZero() {
		return nil, nil
	}
	now := s.now()
	k := pairKey{s.tokenID(g.Service, g.Broker, g.Refresh), j.from}
	if p := s.warm.get(k, now); p != nil && p.number > g.Pair && !p.due(now) {
		return p, nil
	}
	if !due(g, now) {
		return nil, nil
	}
	return s.rotate(ctx, j, k, integrations.Secret{})
}

func due(g *custody.Grant, now time.Time) bool {
	return g.ExpiresAt != 0 && !now.Before(time.Unix(g.ExpiresAt, 0).Add(-custody.RefreshSkew))
}

// renew is what follows a 401: spoilt is the token that was not accepted. It happens once an
// operation.
func (s *Sidecar) renew(ctx context.Context, j *job, spoilt integrations.Secret) (*pair, *failure) {
	g := j.grant
	if g.Refresh.IsZero() {
		return nil, fail(custody.CodeNeedsPair, "the access token of this connection was not accepted, and the key that renews it was not lent")
	}
	return s.rotate(ctx, j, pairKey{s.tokenID(g.Service, g.Broker, g.Refresh), j.from}, spoilt)
}

// rotate returns a pair that is fresher than the grant's. Of all that come for the same
// token one asks the broker, here and in every process that shares the store; whoever comes
// late is served what came of it.
func (s *Sidecar) rotate(ctx context.Context, j *job, k pairKey, spoilt integrations.Secret) (*pair, *failure) {
	unlock, err := s.flights.lock(ctx, k.id)
	if err != nil {
		return nil, fail(custody.CodeTemporary, "another operation is renewing this connection").after(time.Second)
	}
	defer unlock()
	usable := func(p *pair) bool {
		return p != nil && p.number > j.grant.Pair && !p.due(s.now()) && (spoilt.IsZero() || p.secret.Reveal() != spoilt.Reveal())
	}
	if p := s.warm.get(k, s.now()); usable(p) {
		return p, nil
	}
	if f := s.rests.get(k.id, s.now()); f != nil {
		return nil, f
	}
	if err := s.takeLease(ctx, k.id); err != nil {
		return nil, fail(custody.CodeTemporary, "the connection cannot be renewed just now: %v", err).after(5 * time.Second)
	}
	defer func() {
		if err := s.shared.release(context.WithoutCancel(ctx), k.id); err != nil {
			s.log.Warn("a lease could not be given back", "error", err)
		}
	}()
	row, oldElsewhere, err := s.shared.token(ctx, k.id, k.member)
	if err != nil {
		return nil, s.storeFailure(err)
	}
	line := k.id
	o := j.manifest.Auth.OAuth
	switch {
	case row == nil && oldElsewhere:
		return nil, fail(custody.CodeReconnect, "the key that renews this connection was replaced for somebody else")
	case row == nil:
	case row.state == old:
		return s.late(ctx, j, row.line, usable)
	case row.state == redeeming && o != nil && o.Refresh != nil && o.Refresh.Rotates:
		// It was redeemed, and the answer never came: a second time could end all that came of it.
		grace := time.Duration(o.Refresh.ReuseGraceS) * time.Second
		if grace == 0 || row.tries > 1 || s.now().Sub(time.Unix(row.at, 0)) > grace {
			return nil, fail(custody.CodeReconnect, "%s may have renewed this connection, and its answer was lost on the way", j.manifest.Name)
		}
		line = row.line
	default:
		line = row.line
	}
	return s.redeem(ctx, j, k, line)
}

// takeLease waits until no other process redeems the token.
func (s *Sidecar) takeLease(ctx context.Context, id string) error {
	for wait := 5 * time.Millisecond; ; wait = min(wait*2, 100*time.Millisecond) {
		ok, err := s.shared.lease(ctx, id, s.leaseTTL, s.now())
		if ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return errors.New("another process is at it")
		case <-time.After(wait/2 + time.Duration(rand.Int64N(int64(wait)))):
		}
	}
}

// late serves whoever comes with a token that was redeemed before.
func (s *Sidecar) late(ctx context.Context, j *job, line string, usable func(*pair) bool) (*pair, *failure) {
	t, err := s.shared.tail(ctx, line, j.from, s.now().Unix())
	if err != nil {
		return nil, s.storeFailure(err)
	}
	if t == nil {
		return nil, fail(custody.CodeReconnect, "the key that renews this connection was replaced, and what came in its place is forgotten")
	}
	if bot := s.bots[t.bot]; bot != nil && t.handoff != nil {
		var h custody.Handoff
		if err := bot.id.OpenMessage(t.handoff, bot.id.Public(), nil, &h); err == nil && h.Member == j.from && h.Until > s.now().Unix() {
			p := &pair{number: h.Pair, secret: h.Secret, refresh: h.Refresh, expiresAt: h.ExpiresAt, obtained: time.Unix(h.ObtainedAt, 0), keep: h.Keep, owner: h.Credential, handback: t.handback}
			if usable(p) {
				return p, nil
			}
			if !p.refresh.IsZero() && h.Credential == j.grant.Credential && p.number > j.grant.Pair {
				// The line goes on from its newest token, which may be redeemed. It is never the
				// presented one, so this ends.
				next := *j
				g := *j.grant
				g.Refresh, g.Pair, g.ExpiresAt = p.refresh, p.number, p.expiresAt
				next.grant = &g
				nk := pairKey{s.tokenID(g.Service, g.Broker, g.Refresh), j.from}
				if row, _, err := s.shared.token(ctx, nk.id, nk.member); err == nil && row != nil && row.state == live {
					p, f := s.rotate(ctx, &next, nk, integrations.Secret{})
					j.renewed = j.renewed || next.renewed
					return p, f
				}
			}
		}
	}
	proof := custody.RotatedProof(j.grant.Refresh, t.handback)
	f := fail(custody.CodeRotated, "this connection was renewed meanwhile; take the newest key, which is here").with(custody.ResultDetails{Proof: &proof})
	f.handback = t.handback
	return nil, f
}

// redeem asks the broker. What can fail here is done first; once it is asked, neither the
// caller's impatience nor a full disk loses what it answers.
func (s *Sidecar) redeem(ctx context.Context, j *job, k pairKey, line string) (*pair, *failure) {
	g := j.grant
	broker := s.brokers[g.Broker]
	switch {
	case j.author.IsZero():
		return nil, fail(custody.CodeNoHandBack, "there is nobody to whom a renewed key could be given")
	case g.Pair >= maxPair:
		return nil, fail(custody.CodeNoHandBack, "the count of this connection's keys is at its end; reconnect it")
	case broker == nil:
		return nil, fail(custody.CodeReconnect, "this connection was made through another broker, whose keys this bot cannot renew")
	}
	now := s.now()
	// Another grant of the line may still count on the hand-off.
	var standing int64
	if t, err := s.shared.tail(ctx, line, k.member, now.Unix()); err != nil {
		return nil, s.storeFailure(err)
	} else if t != nil && t.handoff != nil {
		standing = t.until
	}
	until := now.Add(tokenKept).Unix()
	if err := s.shared.redeem(ctx, k.id, k.member, line, now.Unix(), until); err != nil {
		return nil, s.storeFailure(err)
	}
	s.step("rotate")
	asked, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.leaseTTL*2/3)
	defer cancel()
	a, err := broker.Refresh(asked, g.Service, g.Refresh)
	received := s.now()
	after := context.WithoutCancel(ctx)
	if err != nil {
		return nil, s.notRedeemed(after, j, k, received, err)
	}
	s.rests.clear(k.id)
	s.counters.Rotations.Add(1)
	j.renewed = true // what is refused now is not refused for its age
	p := &pair{number: g.Pair + 1, secret: a.Secret, refresh: a.Refresh, obtained: received, keep: g.Keep, owner: g.Credential}
	if a.ExpiresIn > 0 && a.ExpiresIn <= maxExpiresIn {
		p.expiresAt = received.Unix() + a.ExpiresIn
	}
	if len(a.Keep) > 0 {
		// A refresh repeats only what the token endpoint tells: what came with the callback stays.
		p.keep = maps.Clone(g.Keep)
		if p.keep == nil {
			p.keep = make(map[string]string)
		}
		maps.Copy(p.keep, a.Keep)
	}
	if f := s.keepPair(after, j, k, line, a, p, received, standing); f != nil {
		f.handback = p.handback
		return nil, f
	}
	s.step("outbox")
	return p, nil
}

// keepPair seals a fresh pair and writes it where a crash cannot reach it. Where that fails
// the failure carries the sealed pair: it is sent all the same.
func (s *Sidecar) keepPair(ctx context.Context, j *job, k pairKey, line string, a *custody.RefreshAnswer, p *pair, received time.Time, standing int64) *failure {
	g := j.grant
	h := &custody.Handback{V: 1, Credential: g.Credential, Pair: p.number, Secret: p.secret, ExpiresAt: p.expiresAt, ObtainedAt: received.Unix()}
	if len(a.Keep) > 0 {
		h.Keep = p.keep
	}
	other := a.Refresh.Reveal() != g.Refresh.Reveal()
	if other {
		h.Refresh = a.Refresh
	}
	unsealed := func(err error) *failure {
		s.log.Error("a renewed key could not be sealed", "service", g.Service, "error", err)
		return fail(custody.CodeNoHandBack, "the renewed key of this connection could not be sealed")
	}
	if err := h.Sign(g.Refresh); err != nil {
		return unsealed(err)
	}
	head := custody.Header{Space: j.space, Thread: j.thread, Op: j.op}
	e, err := j.bot.id.SealMessage(j.author, nil, head, h)
	if errors.Is(err, custody.ErrTooBig) && len(h.Keep) > 0 {
		// The pair goes first; what else the provider said is asked for again at the next renewal.
		h.Keep, p.keep = nil, g.Keep
		if err = h.Sign(g.Refresh); err == nil {
			e, err = j.bot.id.SealMessage(j.author, nil, head, h)
		}
	}
	if err != nil {
		return unsealed(err)
	}
	p.handback = e
	handoffUntil := max(received.Add(warm).Unix(), standing)
	if g.Use == custody.UseStanding {
		handoffUntil = max(handoffUntil, g.Exp)
	}
	handoff, err := j.bot.id.SealMessage(j.bot.id.Public(), nil, custody.Header{Op: line}, &custody.Handoff{
		V: 1, Member: j.from, Credential: g.Credential, Pair: p.number, Secret: p.secret, Refresh: p.refresh,
		ExpiresAt: p.expiresAt, ObtainedAt: received.Unix(), Keep: p.keep, Until: handoffUntil})
	if err != nil {
		return unsealed(err)
	}
	r := &rotation{id: k.id, member: k.member, line: line, credential: g.Credential, pair: p.number, bot: j.bot.id.ID(),
		handoffUntil: handoffUntil, now: received.Unix(), until: max(received.Add(tokenKept).Unix(), p.expiresAt)}
	if r.handback, err = e.Marshal(); err != nil {
		return unsealed(err)
	}
	if r.handoff, err = handoff.Marshal(); err != nil {
		return unsealed(err)
	}
	keys := []pairKey{k}
	if !a.Same && other {
		r.next = s.tokenID(g.Service, g.Broker, a.Refresh)
		keys = append(keys, pairKey{r.next, k.member})
	}
	switch err := s.shared.redeemed(ctx, r); {
	case errors.Is(err, errCycle):
		s.log.Error("a provider answered with a refresh token that it had replaced", "service", g.Service)
		p.handback = nil
		return fail(custody.CodeReconnect, "%s answered with a key that it had replaced before; it is not taken", j.manifest.Name)
	case errors.Is(err, errUnshared):
		s.log.Error("a renewed key is on this disk alone", "service", g.Service, "error", err)
	case err != nil:
		s.log.Error("a renewed key could not be written", "service", g.Service, "error", err)
		return fail(custody.CodeNoHandBack, "the renewed key of this connection could not be written to the bot's disk; it is handed back here, and nothing else was done")
	}
	s.warm.put(p, received, keys...)
	return nil
}

// notRedeemed says what a failed refresh means, and writes it.
func (s *Sidecar) notRedeemed(ctx context.Context, j *job, k pairKey, now time.Time, err error) *failure {
	var b *BrokerError
	if !errors.As(err, &b) {
		b = &BrokerError{Class: Temporary, Err: err}
	}
	s.log.Warn("a connection was not renewed", "service", j.grant.Service, "class", string(b.Class), "code", b.Code, "status", b.Status, "lost", b.Sent)
	s.counters.NotRotated.Add(1)
	o := j.manifest.Auth.OAuth
	strict := o != nil && o.Refresh != nil && o.Refresh.Rotates
	if !b.Sent || !strict {
		if err := s.shared.unredeemed(ctx, k.id, k.member); err != nil {
			s.log.Error("the store does not take a note", "error", err)
		}
	}
	name := j.manifest.Name
	var f *failure
	switch {
	case b.Class == Dead:
		f = fail(custody.CodeReconnect, "%s has ended this connection", name)
	case b.Class == Misconfigured:
		f = fail(custody.CodeMisconfigured, "this connection cannot be renewed until an operator mends the %s (%s)", misconfiguredWhere(b), printableCode(b.Code))
	case b.Sent && strict && o.Refresh.ReuseGraceS > 0:
		f = fail(custody.CodeTemporary, "%s may have renewed this connection, and its answer was lost on the way; it is asked once more", name)
		f.retryAfter = time.Second
		return f // the grace is short
	case b.Sent && strict:
		return fail(custody.CodeReconnect, "%s may have renewed this connection, and its answer was lost on the way", name)
	case b.Code == "rate_limited":
		f = fail(custody.CodeTemporary, "%s asks to wait before this connection is renewed", name)
	default:
		f = fail(custody.CodeTemporary, "this connection cannot be renewed just now")
	}
	f.service = name
	return s.rests.put(k.id, now, b, f)
}

func misconfiguredWhere(b *BrokerError) string {
	switch b.Code {
	case "no_instance_token", "unauthorized", "clock":
		return "bot's access to the broker"
	}
	return "broker's app at the service"
}

func printableCode(s string) string {
	if s == "" {
		return "no code"
	}
	return s
}

func (s *Sidecar) storeFailure(err error) *failure {
	s.log.Error("the store does not answer", "error", err)
	return fail(custody.CodeTemporary, "the bot cannot write to its disk just now").after(10 * time.Second)
}

// A failure is an outcome that is not a result.
type failure struct {
	code, message string
	service       string
	retryAfter    time.Duration
	details       *custody.ResultDetails
	handback      *custody.Envelope
}

func fail(code, format string, args ...any) *failure {
	return &failure{code: code, message: fmt.Sprintf(format, args...)}
}

func (f *failure) after(d time.Duration) *failure { f.retryAfter = d; return f }

func (f *failure) with(d custody.ResultDetails) *failure { f.details = &d; return f }
