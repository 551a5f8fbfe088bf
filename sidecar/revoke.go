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
	if err := j.bot.id.OpenMessage(e, j.author, j.bot.dayFor(e.Day, s.now()), &r); err != nil {
		return s.unopened(j, err)
	}
	k := opKey{j.from, j.op}
	run, answer, err := s.reads.join(ctx, k)
	if run == nil {
		return answer, err
	}
	keep := false
	defer func() { s.reads.finish(k, run, answer, keep) }()
	if j.grant, err = r.OpenGrant(j.bot.id, e, j.author, j.bot.dayFor(r.Grant.Day, s.now())); err != nil {
		return s.refuse(j, s.opening(j, err))
	}
	g := j.grant
	if err := g.Live(s.now()); err != nil {
		return s.refuse(j, fail(custody.CodeExpired, "the grant's time is over, or has not begun"))
	}
	if j.manifest = s.registry.Get(g.Service); j.manifest == nil {
		return s.refuse(j, fail(custody.CodeService, "this bot does not know the service"))
	}
	broker := s.brokers[g.Broker]
	if g.Broker == "" && len(s.brokers) == 1 {
		for _, broker = range s.brokers {
		}
	}
	if broker == nil {
		return s.refuse(j, fail(custody.CodeReconnect, "this connection was made through another broker, which alone can end it at %s", j.manifest.Name))
	}
	ctx, cancel := context.WithTimeout(ctx, s.opTimeout)
	defer cancel()
	if _, ok := s.bounds.enter(ctx, j.from); !ok {
		s.counters.Busy.Add(1)
		return s.refuse(j, fail(custody.CodeBusy, "the bot has too much to do just now").after(2*time.Second))
	}
	defer s.bounds.leave(j.from)
	out, err := broker.Revoke(context.WithoutCancel(ctx), RevokeRequest{Service: g.Service, Secret: g.Secret, Refresh: g.Refresh, Keep: g.Keep})
	if err != nil {
		var b *BrokerError
		if !errors.As(err, &b) {
			b = &BrokerError{Class: Temporary}
		}
		f := fail(custody.CodeTemporary, "the connection could not be ended at %s just now", j.manifest.Name).after(b.RetryAfter)
		if b.Class == Misconfigured {
			f = fail(custody.CodeMisconfigured, "the connection could not be ended at %s until an operator mends the %s", j.manifest.Name, misconfiguredWhere(b))
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
