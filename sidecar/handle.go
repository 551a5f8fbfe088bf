package sidecar

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// Times of the journal and of ends.
const (
	journalKept = 24 * time.Hour     // past a grant's end
	endKept     = 8 * 24 * time.Hour // longer than any grant lives
)

// A Delivery is a message as a transport brought it.
type Delivery struct {
	Space  string
	Thread string
	Author custody.PublicKey // whom the transport authenticated, by the key that is pinned for him
	Data   []byte            // the envelope

	// Own says that the op's id was made by this very process, so that no restored disk can
	// have forgotten it.
	Own bool
}

// Why a message gets no answer, for errors.Is; beside custody's ErrMalformed and ErrForged.
var (
	ErrStopping = errors.New("the sidecar is stopping")
	ErrPurpose  = errors.New("an envelope that is not for a sidecar")
)

// A job is one op on its way.
type job struct {
	bot           *bot
	author        custody.PublicKey
	from          custody.KeyID
	space, thread string
	op            string // its id
	own           bool

	msg      *custody.Op
	grant    *custody.Grant
	manifest *integrations.Manifest
	call     *integrations.Call
	pair     *pair // in place of the grant's own
	renewed  bool  // a 401 has been answered by a rotation
	refused  bool  // by a check: nothing of it is remembered
}

// Handle takes one message and returns what is to be sent to its author, in that order, in
// the same space and thread. An error means that there is no answer: the message is not from
// whom it says, not for this sidecar, or could not be taken now (ErrStopping, or the store's
// error; then it may be brought again).
func (s *Sidecar) Handle(ctx context.Context, d Delivery) ([]*custody.Envelope, error) {
	if !s.begin() {
		return nil, ErrStopping
	}
	defer s.inFlight.Done()
	answer, err := s.handle(ctx, d)
	if err != nil {
		s.counters.Dropped.Add(1)
		s.log.Info("a message got no answer", "reason", err)
	}
	return answer, err
}

func (s *Sidecar) handle(ctx context.Context, d Delivery) ([]*custody.Envelope, error) {
	e, err := custody.ParseEnvelope(d.Data)
	if err != nil {
		return nil, err
	}
	if d.Author.IsZero() || e.From != d.Author.ID() || e.Space != d.Space || e.Thread != d.Thread {
		return nil, fmt.Errorf("%w: it was posted by another, or elsewhere", custody.ErrForged)
	}
	b := s.bots[e.To]
	if b == nil {
		return nil, custody.ErrNotMine
	}
	j := &job{bot: b, author: d.Author, from: e.From, space: e.Space, thread: e.Thread, op: e.Op, own: d.Own}
	switch e.Purpose {
	case custody.PurposeOp:
		return s.op(ctx, j, e)
	case custody.PurposeRevoke:
		return s.revoke(ctx, j, e)
	case custody.PurposeAck:
		var a custody.Ack
		if err := b.id.OpenMessage(e, d.Author, nil, &a); err != nil {
			return nil, err
		}
		s.warm.acknowledged(e.From, &a)
		return nil, s.store.ack(ctx, e.From, &a)
	case custody.PurposeEnd:
		var x custody.End
		if err := b.id.OpenMessage(e, d.Author, nil, &x); err != nil {
			return nil, err
		}
		now := s.now()
		x.At = min(x.At, now.Add(custody.Skew).Unix()) // what is minted later is not ended
		return nil, s.store.end(ctx, e.From, &x, max(now.Add(endKept).Unix(), x.Pause))
	}
	return nil, fmt.Errorf("%w: %s", ErrPurpose, e.Purpose)
}

// op runs one operation. Of those that come with the same id one runs, and the others get
// its answer.
func (s *Sidecar) op(ctx context.Context, j *job, e *custody.Envelope) ([]*custody.Envelope, error) {
	j.msg = new(custody.Op)
	if err := j.bot.id.OpenMessage(e, j.author, j.bot.dayFor(e.Day, s.now()), j.msg); err != nil {
		return s.unopened(j, err)
	}
	var err error
	if j.grant, err = j.msg.OpenGrant(j.bot.id, e, j.author, j.bot.dayFor(j.msg.Grant.Day, s.now())); err != nil {
		return s.refuse(j, s.opening(j, err))
	}
	k := opKey{j.from, j.op}
	run, answer, err := s.reads.join(ctx, k)
	if run == nil {
		return answer, err
	}
	return s.run(ctx, j, k, run)
}

// unopened answers what did not open; a message whose tag is wrong gets no answer.
func (s *Sidecar) unopened(j *job, err error) ([]*custody.Envelope, error) {
	if errors.Is(err, custody.ErrForged) {
		return nil, err
	}
	return s.refuse(j, s.opening(j, err))
}

// opening says why an op, or its grant, does not open.
func (s *Sidecar) opening(j *job, err error) *failure {
	switch {
	case errors.Is(err, custody.ErrDay):
		f := fail(custody.CodeDay, "the bot's key of the day has changed")
		if k := j.bot.today(s.now()); k.key != nil {
			f.with(custody.ResultDetails{Day: k.key.Public(), Until: k.until.Unix()})
		}
		return f
	case errors.Is(err, custody.ErrVersion):
		return fail(custody.CodeVersion, "this bot does not know that version")
	case errors.Is(err, custody.ErrNotMine):
		return fail(custody.CodeNotMine, "the grant is sealed to another key")
	case errors.Is(err, custody.ErrAuthor), errors.Is(err, custody.ErrForged):
		return fail(custody.CodeAuthor, "the grant was not made for this message by whoever posted it")
	case errors.Is(err, custody.ErrExpiry):
		return fail(custody.CodeExpired, "the grant lives longer than such a grant may")
	case errors.Is(err, custody.ErrService):
		return fail(custody.CodeService, "the grant is for another service")
	case errors.Is(err, custody.ErrOnce):
		return fail(custody.CodeAccess, "a change is granted once, for one operation")
	}
	return fail(custody.CodeRefused, "the message is not in order: %v", err)
}

// run checks and runs an op, and answers it.
func (s *Sidecar) run(ctx context.Context, j *job, k opKey, run *opRun) (answer []*custody.Envelope, err error) {
	keep := false
	defer func() { s.reads.finish(k, run, answer, keep) }()
	write := j.grant.Access == integrations.Write
	reopened := false
	if write {
		seen, err := s.shared.seen(ctx, j.from, j.op)
		switch {
		case err != nil:
			return s.refuse(j, s.storeFailure(err))
		case seen == nil:
		case seen.state == reopens && seen.pair < brings(j.grant):
			reopened = true
		case seen.state == begun:
			return s.refuse(j, fail(custody.CodeUnknown, "this was begun before, and how it ended is not known (yet); look there first"))
		default:
			return seen.answer, nil
		}
	}
	if f := s.check(ctx, j); f != nil {
		return s.refuse(j, f)
	}
	ctx, cancel := context.WithTimeout(ctx, s.opTimeout)
	defer cancel()
	waited, ok := s.bounds.enter(ctx, j.from)
	if !ok {
		s.counters.Busy.Add(1)
		return s.refuse(j, fail(custody.CodeBusy, "the bot has too much to do just now").after(2*time.Second))
	}
	defer s.bounds.leave(j.from)
	if waited { // meanwhile it may have ended
		if f := s.over(ctx, j); f != nil {
			return s.refuse(j, f)
		}
	}
	if write {
		// No note, no write.
		ok, err := s.shared.begin(ctx, j.from, j.op, brings(j.grant), j.grant.Exp+int64(journalKept/time.Second), reopened)
		if err != nil {
			return s.refuse(j, s.storeFailure(err))
		}
		if !ok {
			return s.refuse(j, fail(custody.CodeUnknown, "this was begun elsewhere, and how it ended is not known (yet); look there first"))
		}
		s.step("journal")
		// From here on it is finished, whoever waits for it.
		var stop context.CancelFunc
		ctx, stop = context.WithTimeout(context.WithoutCancel(ctx), s.opTimeout)
		defer stop()
	}
	res, f := s.perform(ctx, j)
	again := f != nil && (f.code == custody.CodeNeedsPair || f.code == custody.CodeRotated)
	keep = !write && !again
	if answer, err = s.answerWith(j, res, f); err != nil {
		return nil, err
	}
	if write {
		state := done
		if again && !reopened {
			state = reopens
		}
		if err := s.shared.finish(context.WithoutCancel(ctx), j.from, j.op, state, answer); err != nil {
			s.log.Error("the journal does not take an answer", "error", err)
		}
	}
	s.step("send")
	return answer, nil
}

// brings orders grants by what they bring of a connection: a newer pair is more than an older
// one, and a pair with the key that renews it more than the same without. Only what brings
// more than before may come again under the same ids.
func brings(g *custody.Grant) int64 {
	n := 2 * g.Pair
	if !g.Refresh.IsZero() {
		n++
	}
	return n
}

// check holds an op against its grant, in the order of the protocol.
func (s *Sidecar) check(ctx context.Context, j *job) *failure {
	now := s.now()
	g, o := j.grant, j.msg
	write := g.Access == integrations.Write
	if err := g.Live(now); err != nil {
		return fail(custody.CodeExpired, "the grant's time is over, or has not begun")
	}
	if start := s.started.Add(custody.Skew).Unix(); write && !j.own && g.IAT < start {
		return fail(custody.CodeRestarted, "the bot was restarted a moment ago, and takes changes that were confirmed from then on").
			after(max(time.Unix(start, 0).Sub(now), time.Second))
	}
	j.manifest = s.registry.Get(o.Service)
	switch {
	case j.manifest == nil:
		return fail(custody.CodeService, "this bot does not know the service")
	case g.Service != o.Service:
		return fail(custody.CodeService, "the grant is for another service")
	}
	op := j.manifest.Op(o.Op)
	if op == nil {
		if _, named := g.Ops[o.Op]; named || g.Once != nil && g.Once.Op == o.Op {
			return fail(custody.CodeNeedsNewer, "this bot is older than the operation")
		}
		return fail(custody.CodeOp, "%s has no such operation", j.manifest.Name)
	}
	if f := covers(g, op, now); f != nil {
		return f
	}
	args, err := integrations.ParseArgs(o.Args)
	if err == nil {
		j.call, err = j.manifest.Bind(op.Name, args, g.For().Connection)
	}
	if err == nil {
		_, err = custody.ArgsDigest(j.call)
	}
	if err != nil {
		f := fail(custody.CodeArgs, "%v", err)
		var r *integrations.RefusedError
		if errors.As(err, &r) && r.Arg != "" {
			f.with(custody.ResultDetails{Arg: r.Arg})
		}
		return f
	}
	if err := s.texts.Allows(g, j.call); err != nil {
		if errors.Is(err, custody.ErrConsent) {
			return fail(custody.CodeConsent, "this is %v", err)
		}
		return fail(custody.CodeAccess, "%v", err)
	}
	if f := s.over(ctx, j); f != nil {
		return f
	}
	sum := sha256.Sum256([]byte("connect/v1 idempotency" + g.ID + j.op))
	j.call.IdempotencyKey = base64.RawURLEncoding.EncodeToString(sum[:])
	return nil
}

// over says whether a grant's time is over, or its member has stopped it.
func (s *Sidecar) over(ctx context.Context, j *job) *failure {
	now := s.now()
	if err := j.grant.Live(now); err != nil {
		return fail(custody.CodeExpired, "the grant's time is over, or has not begun")
	}
	switch ended, err := s.store.ended(ctx, j.from, j.grant, now.Unix()); {
	case err != nil:
		return s.storeFailure(err)
	case ended:
		return fail(custody.CodeEnded, "this grant was ended, or is paused")
	}
	return nil
}

// covers says whether a grant is for such an operation at all; Allows holds the rest.
func covers(g *custody.Grant, op *integrations.Op, now time.Time) *failure {
	named := g.Once != nil && g.Once.Op == op.Name
	if _, ok := g.Ops[op.Name]; ok {
		named = true
	}
	switch {
	case op.Access != integrations.Read && g.Access != integrations.Write:
		return fail(custody.CodeAccess, "the grant is for reading, and this changes something")
	case op.Access != integrations.Read && g.Use != custody.UseOnce && g.Use != custody.UseAsks:
		return fail(custody.CodeAccess, "a change is granted once, for one operation")
	case !named:
		return fail(custody.CodeAccess, "the grant is not for this operation")
	case g.Use == custody.UseAsks && (op.Access == integrations.Read || op.Has(integrations.Money) || op.Has(integrations.Irreversible)):
		return fail(custody.CodeAccess, "such a grant is for changes that can be undone and cost nothing")
	case g.Use != custody.UseOnce && op.SafePost != "" && !op.IsGraphQL() && op.Unattended == "":
		return fail(custody.CodeAccess, "this operation does not run without a person")
	case g.Window != nil && !g.Window.Contains(now):
		return fail(custody.CodeAccess, "the grant may not be used at this time of the week")
	}
	return nil
}

// perform brings the pair up to date, looks at the preview again, and runs the operation.
func (s *Sidecar) perform(ctx context.Context, j *job) (*integrations.Result, *failure) {
	var f *failure
	if j.pair, f = s.current(ctx, j); f != nil {
		return nil, f
	}
	s.counters.Operations.Add(1)
	if j.grant.Once != nil && j.grant.Once.Preview != nil {
		p, err := j.call.Preview()
		if err != nil {
			return nil, executed(err)
		}
		if p == nil {
			return nil, fail(custody.CodeConsent, "the operation has no preview here")
		}
		shown, f := s.do(ctx, j, p)
		if f != nil {
			return nil, f
		}
		if err := j.grant.AllowsPreview(shown); err != nil {
			return nil, fail(custody.CodeConsent, "it is not as it was shown any more")
		}
	}
	return s.do(ctx, j, j.call)
}

// do runs a call, once more after a 401 that nobody expected.
func (s *Sidecar) do(ctx context.Context, j *job, call *integrations.Call) (*integrations.Result, *failure) {
	for {
		cred := j.grant.For()
		if j.pair != nil {
			cred.Secret = j.pair.secret
			if len(j.pair.keep) > 0 {
				cred.Fields = j.pair.keep
			}
		}
		s.step("use")
		res, err := s.exec.Do(ctx, call, cred)
		s.step("used")
		if err == nil {
			return res, nil
		}
		if !errors.Is(err, integrations.ErrUnauthorised) || errors.Is(err, integrations.ErrUnknownOutcome) || j.grant.Kind != integrations.OAuth2 || j.renewed {
			return nil, executed(err)
		}
		j.renewed = true
		if j.grant.Refresh.IsZero() && !s.renews(j) {
			return nil, executed(err) // a token that nothing renews
		}
		p, f := s.renew(ctx, j, cred.Secret)
		if f != nil {
			return nil, f
		}
		j.pair = p
	}
}

// renews says whether connections to a service are renewed at all.
func (s *Sidecar) renews(j *job) bool {
	o := j.manifest.Auth.OAuth
	return o != nil && (o.Refresh == nil || o.Refresh.None == "")
}

// executed says what the executor's error means.
func executed(err error) *failure {
	code := integrations.Code(err)
	if code == "" {
		code = custody.CodeRefused
	}
	f := fail(code, "%v", err)
	var refused *integrations.RefusedError
	var provider *integrations.ProviderError
	var limit *integrations.RateLimitError
	var unauthorised *integrations.UnauthorisedError
	var large *integrations.TooLargeError
	var unknown *integrations.UnknownOutcomeError
	switch {
	case errors.As(err, &unknown):
		f.with(custody.ResultDetails{Status: unknown.Status})
	case errors.As(err, &refused):
		f.with(custody.ResultDetails{Arg: refused.Arg})
	case errors.As(err, &limit):
		d := custody.ResultDetails{Status: limit.Status}
		if !limit.Until.IsZero() {
			d.Until = limit.Until.Unix()
			f.retryAfter = min(max(time.Until(limit.Until), time.Second), 24*time.Hour)
		}
		f.with(d)
	case errors.As(err, &unauthorised):
		f.with(custody.ResultDetails{Status: unauthorised.Status})
	case errors.As(err, &large):
		f.with(custody.ResultDetails{Size: large.Size, Arg: large.Arg})
	case errors.As(err, &provider):
		f.with(custody.ResultDetails{Status: provider.Status})
	}
	return f
}

// refuse answers an op that a check turned away: nothing of it is remembered.
func (s *Sidecar) refuse(j *job, f *failure) ([]*custody.Envelope, error) {
	j.refused = true
	return s.answer(j, f)
}

func (s *Sidecar) answer(j *job, f *failure) ([]*custody.Envelope, error) {
	return s.answerWith(j, nil, f)
}

// answerWith seals an outcome to the op's author, with the hand-back of a pair that was
// renewed for it.
func (s *Sidecar) answerWith(j *job, res *integrations.Result, f *failure) ([]*custody.Envelope, error) {
	r := &custody.Result{V: 2, ID: j.op, OK: f == nil}
	if j.pair != nil {
		r.Handback = j.pair.handback
	}
	if f != nil {
		s.refusal(j, f)
		r.Error = &custody.ResultError{Code: f.code, Message: clip(f.message), RetryAfter: int64((f.retryAfter + time.Second - 1) / time.Second)}
		r.Error.Details = f.details
		if f.handback != nil {
			r.Handback = f.handback
		}
	} else {
		r.Result = res.JSON
		if res.Next != nil {
			next, err := json.Marshal(res.Next)
			if err != nil {
				return nil, err
			}
			r.Next = next
		}
	}
	h := custody.Header{Space: j.space, Thread: j.thread, Op: j.op}
	all, err := j.bot.id.SealResult(j.author, h, r)
	if err == nil || !errors.Is(err, custody.ErrTooBig) {
		return all, err
	}
	large := &custody.Result{V: 2, ID: j.op, Error: &custody.ResultError{Code: custody.CodeTooLarge, Message: "the result does not fit in one message"}}
	e, err := j.bot.id.SealMessage(j.author, nil, h, large)
	if err != nil {
		return nil, err
	}
	return append(all, e), nil
}

// refusal counts and logs an op that did not go through: its code, and no content.
func (s *Sidecar) refusal(j *job, f *failure) {
	c := &s.counters.Failed
	if j.refused {
		c = &s.counters.Refused
	}
	c.Add(1)
	service := ""
	if j.manifest != nil {
		service = j.manifest.ID
	}
	s.log.Info("an op did not go through", "code", f.code, "service", service)
}

// maxWords bounds a message in bytes.
const maxWords = 2000

func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxWords {
		return s
	}
	s = s[:maxWords]
	for len(s) > 0 && s[len(s)-1]&0xc0 == 0x80 {
		s = s[:len(s)-1]
	}
	return s[:max(len(s)-1, 0)] + "…"
}
