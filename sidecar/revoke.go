package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// revoke ends a connection at its provider, through the broker.
func (s *Sidecar) revoke(ctx context.Context, j *job, e *custody.Envelope) (answer []*custody.Envelope, err error) {
	var r custody.Revoke
	day := j.bot.dayFor(e.Day, s.now())
	if err := j.bot.id.OpenMessage(e, j.author, day, &r); err != nil {
		return s.unopened(j, err)
	}
	k := opKey{j.from, j.op}
	run, fresh := s.reads.start(k)
	for !fresh {
		select {
		case <-run.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if run.answer != nil {
			return run.answer, nil
		}
		run, fresh = s.reads.start(k)
	}
	keep := false
	defer func() { s.reads.finish(k, run, answer, keep) }()
	if g := r.Grant; g.Day != e.Day {
		day = j.bot.dayFor(g.Day, s.now())
	}
	if j.grant, err = r.OpenGrant(j.bot.id, e, j.author, day); err != nil {
		j.refused = true
		return s.answer(j, s.opening(j, err))
	}
	g := j.grant
	if err := g.Live(s.now()); err != nil {
		j.refused = true
		return s.answer(j, fail(codeExpired, "the grant's time is over, or has not begun"))
	}
	if j.manifest = s.registry.Get(g.Service); j.manifest == nil {
		j.refused = true
		return s.answer(j, fail(codeService, "this bot does not know the service"))
	}
	broker := s.brokers[g.Broker]
	if g.Broker == "" && len(s.brokers) == 1 {
		for _, broker = range s.brokers {
		}
	}
	if broker == nil {
		j.refused = true
		return s.answer(j, fail(codeReconnect, "this connection was made through another broker, which alone can end it at %s", j.manifest.Name))
	}
	ctx, cancel := context.WithTimeout(ctx, s.opTimeout)
	defer cancel()
	if !s.bounds.enter(ctx, j.from) {
		s.count(&s.counters.Busy)
		j.refused = true
		return s.answer(j, fail(codeBusy, "the bot has too much to do just now").after(2*time.Second))
	}
	defer s.bounds.leave(j.from)
	out, err := broker.Revoke(context.WithoutCancel(ctx), RevokeRequest{Service: g.Service, Secret: g.Secret, Refresh: g.Refresh, Keep: g.Keep})
	if err != nil {
		var b *BrokerError
		if !errors.As(err, &b) {
			b = &BrokerError{Class: Temporary}
		}
		f := fail(codeTemporary, "the connection could not be ended at %s just now", j.manifest.Name).after(b.RetryAfter)
		if b.Class == Misconfigured {
			f = fail(codeMisconfigured, "the connection could not be ended at %s until an operator mends the %s", j.manifest.Name, misconfiguredWhere(b))
		}
		return s.answer(j, f)
	}
	keep = true
	said, err := json.Marshal(out)
	if err != nil {
		return nil, err
	}
	e, err = j.bot.id.SealMessage(j.author, nil, custody.Header{Space: j.space, Thread: j.thread, Op: j.op}, &custody.Result{V: 2, ID: j.op, OK: true, Result: said})
	if err != nil {
		return nil, err
	}
	return []*custody.Envelope{e}, nil
}
