package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// botGroup is the group that the local bot is.
const botGroup = "cli"

// A localBot is the device that runs what its member does with her stored connections: the
// sidecar's own core, with a key and a folder in the vault. The member's half, which mints
// grants and stores what is handed back, is here too. It is opened when it is first needed.
type localBot struct {
	c *cli
	v *vault

	// What one command does with one connection; not needed to collect alone.
	reg     *integrations.Registry
	m       *integrations.Manifest
	id      string // the connection's
	exec    *integrations.Executor
	timeout time.Duration   // of a call
	broker  *sidecar.Broker // nil where the connection has none
	asIs    bool            // it could not be renewed, and is used as it is

	key  *custody.Identity
	core *sidecar.Sidecar
}

const botHint = "make room, or the folder writable, and run the command again"

// open starts the core, and stores what another process left to be stored.
func (b *localBot) open(ctx context.Context) error {
	if b.core != nil {
		return nil
	}
	key, err := b.v.bot()
	if err != nil {
		return err
	}
	cfg := sidecar.Config{
		Bots: []*custody.Identity{key}, Registry: b.reg, Executor: b.exec, Dir: filepath.Join(b.v.dir, vaultBotFolder), Group: botGroup, NoLegacy: true,
		MaxOperations: 4, MaxQueue: -1,
		OpTimeout: 2*b.timeout + time.Minute, // a preview, the operation, a renewal
	}
	if b.canAskBroker() {
		cfg.Brokers = []*sidecar.Broker{b.broker}
	}
	core, err := sidecar.New(ctx, cfg)
	if err != nil {
		return &hintedError{fmt.Errorf("the local bot does not start: %w", withoutPath(err)), botHint}
	}
	b.key, b.core = key, core
	b.collect(ctx)
	return nil
}

// close waits for what was sent.
func (b *localBot) close() {
	if b.core == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := b.core.Close(ctx); err != nil {
		b.c.note("warning: the local bot: %v", err)
	}
	b.core = nil
}

func (b *localBot) canAskBroker() bool { return b.broker != nil && !b.broker.Token.IsZero() }

// bot returns the local bot's key, and makes it where there is none.
func (v *vault) bot() (*custody.Identity, error) {
	const what = "the local bot's key"
	file := filepath.Join(v.dir, vaultBotKey)
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := makeKey(v.dir, vaultBotKey, what); err != nil {
			return nil, &hintedError{err, botHint}
		}
	case err != nil:
		return nil, fmt.Errorf("%s: %w", what, withoutPath(err))
	case othersRead(info):
		return nil, refusedf("chmod go= "+file, "%s can be read by others", what)
	}
	return readKey(file, what)
}

// hasBot says whether the local bot has ever run.
func (v *vault) hasBot() bool {
	_, err := os.Stat(filepath.Join(v.dir, vaultBotFolder))
	return err == nil
}

// removeBot removes the local bot's key and folder.
func (v *vault) removeBot() error {
	err := os.RemoveAll(filepath.Join(v.dir, vaultBotFolder))
	if e := os.Remove(filepath.Join(v.dir, vaultBotKey)); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return withoutPath(err)
}

// An order is one call on its way to the bot.
type order struct {
	call   *integrations.Call
	learnt map[string]string    // what the connection learnt in this command
	shown  *integrations.Result // the preview that a person was shown, where the call is bound to it

	grant, op string // ids
	again     bool   // these ids have come back once, with nothing done
	needsPair int64  // the pair whose access token was turned away; 0: none was
	rotated   bool   // the newest pair was taken on the way
	waited    bool   // a lost answer was asked for once more
}

// anew gives an order the ids of its next try. Where nothing was done the same ids may come
// once more; after that, and where an answer stands, they are other ones.
func (o *order) anew(same bool) {
	if same && !o.again {
		o.again = true
		return
	}
	o.grant, o.op, o.again = custody.NewID(), custody.NewID(), false
}

// turnedAway says whether the service did not accept the pair that is stored now.
func (o *order) turnedAway(c *custody.Credential) bool {
	return o.needsPair != 0 && o.needsPair == c.Pair
}

// do runs a call with the stored connection.
func (b *localBot) do(ctx context.Context, call *integrations.Call, learnt map[string]string, shown *integrations.Result) (*integrations.Result, error) {
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	o := &order{call: call, learnt: learnt, shown: shown, grant: custody.NewID(), op: custody.NewID()}
	for {
		conn, grant, err := b.mint(ctx, o)
		if err != nil {
			return nil, err
		}
		r, took, err := b.ask(ctx, o, grant)
		if err != nil {
			return nil, err
		}
		if r.Error == nil {
			return resultOf(call.Op, r)
		}
		lent, e := !grant.Refresh.IsZero(), r.Error
		switch {
		case e.Code == custody.CodeNeedsPair && b.can(conn) && !b.asIs && o.needsPair != grant.Pair:
			o.needsPair = grant.Pair
			o.anew(true)
		case e.Code == custody.CodeRotated && took && !o.rotated:
			o.rotated = true
			o.anew(true)
		case e.Code == custody.CodeTemporary && lent && !o.waited && e.RetryAfter == 1:
			// A service that renewed it takes the same token once more, for a short time.
			o.waited = true
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return nil, b.failure(ctx, conn, e)
			}
			o.anew(false)
		case lent && notRenewed(e.Code) && o.needsPair == 0 && time.Now().Before(time.Unix(conn.ExpiresAt, 0)):
			// What is not over yet is used though it could not be renewed.
			err := b.failure(ctx, conn, e)
			b.c.note("warning: %v", err)
			for _, h := range hintsOf(err) {
				b.c.note("hint: %s", h)
			}
			b.asIs = true
			o.anew(false)
		default:
			return nil, b.failure(ctx, conn, e)
		}
	}
}

// removedMeanwhile is said where another process has removed the connection.
func removedMeanwhile() error {
	return &integrations.RefusedError{Reason: "this connection was removed meanwhile"}
}

// can says whether the connection can be renewed here at all.
func (b *localBot) can(c *custody.Credential) bool {
	return c.Kind == custody.KindOAuth && !c.Refresh.IsZero() && b.canAskBroker() && (c.Lent == nil || c.Lent.Group == botGroup)
}

// mint makes the grant of an order from what is stored now. The key that renews the
// connection goes along only where it is needed, and where a fresh pair could be stored.
func (b *localBot) mint(ctx context.Context, o *order) (*custody.Credential, *custody.Grant, error) {
	c, err := b.v.get(b.id)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, removedMeanwhile()
	}
	if err != nil {
		return nil, nil, err
	}
	if err := o.call.CheckScopes(c.Scopes); err != nil {
		return nil, nil, err
	}
	needs := func() bool {
		return b.can(c) && !b.asIs && (o.turnedAway(c) || c.Due(time.Now(), custody.RefreshSkew))
	}
	lend := needs()
	if lend {
		lock, err := b.v.lock(ctx, b.id)
		if err != nil {
			return nil, nil, err
		}
		defer lock.release()
		switch c, err = b.v.get(b.id); {
		case errors.Is(err, fs.ErrNotExist):
			return nil, nil, removedMeanwhile()
		case err != nil:
			return nil, nil, err
		}
		// Another process may have renewed it meanwhile.
		if lend = needs(); lend {
			if c, err = b.lend(c); err != nil {
				return nil, nil, err
			}
		}
	}
	now := time.Now()
	with := *c
	req := custody.GrantRequest{ID: o.grant, Use: custody.UseOnce, Call: o.call, Preview: o.shown, Group: botGroup}
	switch {
	case !lend:
		with.Refresh, with.Broker = integrations.Secret{}, ""
	case o.turnedAway(c):
		req.NeedsPair = true
		with.ExpiresAt = now.Unix() // the service has said so
	}
	if len(o.learnt) > 0 {
		with.Connection = make(map[string]custody.ConnectionValue)
		for name, value := range o.learnt {
			v := c.Connection[name]
			if v.Value != value {
				v = custody.ConnectionValue{Value: value}
			}
			with.Connection[name] = v
		}
	}
	g, err := custody.MintGrant(b.m, &with, req, now)
	if err != nil {
		return nil, nil, &refusedError{fmt.Sprintf("this connection is not lent for that: %v", err)}
	}
	return c, g, nil
}

// lentFor is how long the key that renews a connection is lent: a little longer than the
// grants of one command live.
const lentFor = 5 * time.Minute

// lend stores that the key which renews the connection is lent to the bot, where the service
// gives a new one each time. Whatever the service does, nothing is redeemed that could not be
// stored. The caller holds the connection's lock.
func (b *localBot) lend(c *custody.Credential) (*custody.Credential, error) {
	full := func(err error) error {
		return &hintedError{fmt.Errorf("the token is not renewed, since a fresh one could not be stored: %w", err), botHint}
	}
	if err := b.v.writable(c); err != nil {
		return nil, full(err)
	}
	now := time.Now()
	mint, _ := custody.UseOnce.Lifetime()
	if o := b.m.Auth.OAuth; o == nil || o.Refresh == nil || !o.Refresh.Rotates || c.Lent != nil && !time.Unix(c.Lent.Until, 0).Before(now.Add(mint+time.Second)) {
		return c, nil
	}
	lent, err := c.Lend(botGroup, now.Add(lentFor), now, false)
	if err != nil {
		return nil, err
	}
	if err := b.v.put(lent); err != nil {
		return nil, full(err)
	}
	return lent, nil
}
