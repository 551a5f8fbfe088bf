package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// ask seals an order, hands it to the core, and stores what comes back beside the answer. took
// says that the connection has another pair than before.
func (b *localBot) ask(ctx context.Context, o *order, grant *custody.Grant) (r *custody.Result, took bool, err error) {
	member, bot := b.v.member, b.key.Public()
	args, err := json.Marshal(o.call.Args())
	if err != nil {
		return nil, false, err
	}
	sealed, err := grant.Seal(member, bot, nil, vaultSpace, "", o.op)
	if err != nil {
		return nil, false, err
	}
	data, err := b.seal(custody.Header{Op: o.op}, &custody.Op{V: 2, ID: o.op, Service: b.m.ID, Op: o.call.Op.Name, Args: args, Grant: sealed})
	if errors.Is(err, custody.ErrTooBig) {
		return nil, false, &integrations.RefusedError{Reason: fmt.Sprintf("the args have %d KB, and do not fit in one message to the local bot", len(args)>>10),
			Hint: "give less; with a token of its own (--token-env NAME) up to 64 KB go"}
	}
	if err != nil {
		return nil, false, err
	}
	write := o.call.Op.Access == integrations.Write
	if write {
		defer context.AfterFunc(ctx, func() {
			b.c.note("note: what was begun is finished first; Ctrl-C again ends the program at once")
		})()
	}
	answer, err := b.core.Handle(ctx, sidecar.Delivery{Space: vaultSpace, Author: member.Public(), Data: data, Own: true})
	var proof *custody.Digest
	for _, e := range answer {
		if e.Purpose != custody.PurposeResult {
			continue
		}
		r = new(custody.Result)
		if err := member.OpenMessage(e, bot, nil, r); err != nil || r.ID != o.op {
			r = nil
			continue
		}
		if r.Error != nil && r.Error.Details != nil {
			proof = r.Error.Details.Proof
		}
		if r.Handback != nil {
			took = b.keep(ctx, r.Handback, proof) || took
		}
	}
	for _, e := range answer {
		if e.Purpose == custody.PurposeHandback {
			took = b.keep(ctx, e, nil) || took
		}
	}
	switch {
	case r != nil:
		return r, took, nil
	case err == nil:
		err = errors.New("its answer does not open")
	}
	err = fmt.Errorf("the local bot gave no answer: %w", err)
	if write {
		return nil, took, &integrations.UnknownOutcomeError{Service: "the local bot", Err: err}
	}
	return nil, took, err
}

// seal seals what the member says to the bot.
func (b *localBot) seal(h custody.Header, m custody.Message) ([]byte, error) {
	h.Space = vaultSpace
	e, err := b.v.member.SealMessage(b.key.Public(), nil, h, m)
	if err != nil {
		return nil, err
	}
	return e.Marshal()
}

// keep stores a hand-back, and says where it cannot be stored yet: the bot holds it until then.
func (b *localBot) keep(ctx context.Context, e *custody.Envelope, proof *custody.Digest) bool {
	took, err := b.take(ctx, e, proof)
	if errors.Is(err, custody.ErrGap) {
		took, err = b.collect(ctx), nil
	}
	if err != nil {
		b.c.note("warning: the renewed token could not be stored, and stays with the local bot until the next command: %v", err)
	}
	return took
}

// collect stores the hand-backs that are still with the bot: those of a process that ended
// before it could store them.
func (b *localBot) collect(ctx context.Context) (took bool) {
	all, err := b.core.Waiting(context.WithoutCancel(ctx))
	if err != nil {
		b.c.note("warning: the local bot: %v", err)
	}
	for _, e := range all {
		if e.To != b.v.member.ID() || e.From != b.key.ID() {
			continue // of a key that was put aside
		}
		one, err := b.take(ctx, e, nil)
		if err != nil && !errors.Is(err, custody.ErrGap) {
			b.c.note("warning: a renewed token could not be stored, and stays with the local bot until the next command: %v", err)
		}
		took = took || one
	}
	return took
}

// take stores a hand-back over the pair that is stored now, and tells the bot.
func (b *localBot) take(ctx context.Context, e *custody.Envelope, proof *custody.Digest) (took bool, err error) {
	ctx = context.WithoutCancel(ctx) // a pair comes once
	h := new(custody.Handback)
	if err := b.v.member.OpenMessage(e, b.key.Public(), nil, h); err != nil {
		return false, err
	}
	lock, err := b.v.lock(ctx, h.Credential)
	if err != nil {
		return false, err
	}
	defer lock.release()
	c, err := b.v.get(h.Credential)
	if errors.Is(err, fs.ErrNotExist) {
		b.orphan(ctx, h)
		b.v.forget(h.Credential)
		return false, b.ack(ctx, h)
	}
	if err != nil {
		return false, err
	}
	next, err := c.Take(h)
	if proof != nil {
		next, err = c.TakeRotated(h, e, *proof)
	}
	switch {
	case errors.Is(err, custody.ErrOlder):
		// It is stored, or the connection was made anew: then there is another pair to go on with.
		return true, b.ack(ctx, h)
	case errors.Is(err, custody.ErrLink) && proof != nil:
		return true, nil // another process has stored a newer pair than the one that the bot was shown
	case errors.Is(err, custody.ErrLink):
		return false, b.ack(ctx, h) // it belongs to what was there before
	case err != nil:
		return false, err
	}
	if err := b.v.put(next); err != nil {
		return false, err
	}
	if now, err := b.v.get(next.ID); err != nil || now.Pair != h.Pair {
		return false, errors.Join(errors.New("it is not there after it was written"), err)
	}
	return true, b.ack(ctx, h)
}

// ack tells the bot that a hand-back need not be kept any more.
func (b *localBot) ack(ctx context.Context, h *custody.Handback) error {
	data, err := b.seal(custody.Header{}, &custody.Ack{Credential: h.Credential, Pair: h.Pair})
	if err != nil {
		return err
	}
	_, err = b.core.Handle(ctx, sidecar.Delivery{Space: vaultSpace, Author: b.v.member.Public(), Data: data, Own: true})
	return err
}

// orphan ends the fresh pair of a connection that was removed while it was renewed: whoever
// removed it ended the pair before. Where that would end more than this pair it is left.
func (b *localBot) orphan(ctx context.Context, h *custody.Handback) {
	if h.Credential != b.id || !b.canAskBroker() {
		return
	}
	o := b.m.Auth.OAuth
	if o == nil || o.Revoke == nil || o.Revoke.None != "" || o.Revoke.Reach == "account" || o.Revoke.Reach == "app" {
		return
	}
	a, err := b.broker.Revoke(ctx, sidecar.RevokeRequest{Service: b.m.ID, Secret: h.Secret, Refresh: h.Refresh, Keep: h.Keep})
	if err == nil && a.Revoked {
		b.c.note("note: this connection was removed meanwhile, and its renewed token was ended at %s too", b.m.Name)
		return
	}
	b.c.note("warning: this connection was removed meanwhile, and its renewed token was not ended at %s; it works until it ends, or until you remove the app in your settings there", b.m.Name)
}

// resultOf reads a result as the executor gives it. What the service says of its limits stays
// with the bot.
func resultOf(o *integrations.Op, r *custody.Result) (*integrations.Result, error) {
	res := &integrations.Result{JSON: r.Result, Size: len(r.Result), Limits: integrations.RateLimit{Remaining: -1}}
	if r.Next == nil {
		return res, nil
	}
	v, err := decode(r.Next)
	if err != nil {
		return nil, err
	}
	next, _ := v.(map[string]any)
	for name := range next {
		res.Next = &integrations.NextPage{Arg: name, Value: textAt(v, name)}
	}
	return res, nil
}

// notRenewed says whether a code means that the pair could not be renewed.
func notRenewed(code string) bool {
	return code == custody.CodeTemporary || code == custody.CodeMisconfigured || code == custody.CodeReconnect || code == custody.CodeNoHandBack
}

// A botError is the bot's answer where it is no result, as one of the classes that have an
// exit code.
type botError struct {
	code, say string
	class     error
	details   custody.ResultDetails
}

func (e *botError) Error() string { return e.say }
func (e *botError) Unwrap() error { return e.class }

// ownPause is the longest that the core waits of its own accord after one failure, in
// seconds. Whoever is told to wait longer is told by the service or the broker.
const ownPause = 7

// failure says what the bot's answer means to the person.
func (b *localBot) failure(ctx context.Context, c *custody.Credential, e *custody.ResultError) error {
	be := &botError{code: e.Code, say: e.Message, class: integrations.ErrRefused}
	if e.Details != nil {
		be.details = *e.Details
	}
	ended := "the stored token has ended, or was removed there; " + reconnect(c)
	wait := time.Duration(e.RetryAfter) * time.Second
	switch e.Code {
	case custody.CodeNeedsPair:
		be.say, be.class, be.details.Status = (&integrations.UnauthorisedError{Service: b.m.Name, Status: 401}).Error(), integrations.ErrUnauthorised, 401
		return &hintedError{be, ended}
	case "unauthorised":
		be.class = integrations.ErrUnauthorised
		return &hintedError{be, ended}
	case custody.CodeReconnect, custody.CodeRotated:
		be.class = integrations.ErrUnauthorised
		b.mark(ctx, c)
		return &hintedError{be, reconnect(c)}
	case custody.CodeTemporary:
		if e.RetryAfter <= ownPause {
			be.class = integrations.ErrUnreachable
			return &hintedError{be, "run the command again in a while; nothing is lost"}
		}
		be.class, be.details.Until = integrations.ErrRateLimited, time.Now().Add(wait).Unix()
		be.say = fmt.Sprintf("%s, and not before %s is over", e.Message, wait)
		return &hintedError{be, "run the command again then; nothing is lost"}
	case custody.CodeMisconfigured:
		be.class = integrations.ErrProvider
		return &hintedError{be, "the operator of " + c.Broker + " can mend that, or sign another token for this program, which --broker-token-file takes; nothing is lost"}
	case custody.CodeNoHandBack:
		return &hintedError{be, botHint}
	}
	for _, class := range []error{integrations.ErrProvider, integrations.ErrRateLimited, integrations.ErrTooLarge, integrations.ErrUnknownOutcome, integrations.ErrUnreachable} {
		if integrations.Code(class) == e.Code {
			be.class = class
		}
	}
	return be
}

// mark notes for whoever lists connections that this one is not renewed any more.
func (b *localBot) mark(ctx context.Context, c *custody.Credential) {
	lock, err := b.v.lock(ctx, c.ID)
	if err != nil {
		return
	}
	defer lock.release()
	if now, err := b.v.get(c.ID); err == nil && now.Pair == c.Pair {
		lock.mark(c.Pair)
	}
}

// reconnect is the command that makes a connection anew.
func reconnect(c *custody.Credential) string {
	s := "connect add " + c.Service
	if c.Broker != "" {
		s += " --broker " + c.Broker
	}
	if c.CapAllows(integrations.Write) {
		s += " --write"
	}
	return s + " connects it again"
}
