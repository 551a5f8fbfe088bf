package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// refreshSkew is how long before its end a pair is renewed.
const refreshSkew = time.Minute

// A refresher renews the pair of a stored connection. The fresh pair is on disk before it is
// used, and a single-use refresh token is sent once, whatever becomes of the answer.
type refresher struct {
	v      *vault
	m      *integrations.Manifest
	broker *sidecar.Broker
}

// A refreshError says why a pair could not be renewed.
type refreshError struct {
	say   string
	class error // of the classes that have an exit code
}

func (e *refreshError) Error() string { return e.say }
func (e *refreshError) Unwrap() error { return e.class }

// can says whether a connection can be renewed here at all.
func (r *refresher) can(c *custody.Credential) bool {
	lent := c.Lent != nil && time.Now().Before(time.Unix(c.Lent.Until, 0).Add(custody.Skew))
	return c.Kind == custody.KindOAuth && !c.Refresh.IsZero() && !r.broker.Token.IsZero() && !lent
}

// due returns the connection to use now: renewed where its end is near. What is not over yet
// is used though it could not be renewed, and that is said.
func (r *refresher) due(ctx context.Context, cli *cli, c *custody.Credential) (*custody.Credential, error) {
	now := time.Now()
	if !r.can(c) || !c.Due(now, refreshSkew) {
		return c, nil
	}
	fresh, err := r.renew(ctx, c)
	if err != nil && now.Before(time.Unix(c.ExpiresAt, 0)) {
		cli.note("warning: %v", err)
		for _, h := range hintsOf(err) {
			cli.note("hint: %s", h)
		}
		return c, nil
	}
	return fresh, err
}

// renew returns a connection with another pair than old's: the one that another process has
// stored meanwhile, or a fresh one.
func (r *refresher) renew(ctx context.Context, old *custody.Credential) (*custody.Credential, error) {
	lock, err := r.v.lock(ctx, old.ID)
	if err != nil {
		return nil, err
	}
	defer lock.release()
	c, err := r.v.get(old.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, &integrations.RefusedError{Reason: "this connection was removed meanwhile"}
	case err != nil:
		return nil, err
	case c.Pair != old.Pair || !r.can(c):
		return c, nil
	}
	once := singleUse(r.m)
	sent, err := lock.sent()
	if err != nil {
		return nil, err
	}
	if once && sent == c.Pair {
		return nil, r.lost(c)
	}
	if err := r.v.writable(c); err != nil {
		return nil, &hintedError{fmt.Errorf("the token is not renewed, since a fresh one could not be stored: %w", err), "make room, or the folder writable, and run the command again"}
	}
	if once {
		if err := lock.mark(c.Pair); err != nil {
			return nil, err
		}
	}
	// Ctrl-C does not cut off an answer that comes once. The client has an end of its own.
	answer, err := r.broker.Refresh(context.WithoutCancel(ctx), c.Service, c.Refresh)
	if err != nil {
		var be *sidecar.BrokerError
		if !errors.As(err, &be) {
			return nil, err
		}
		if once && be.Sent {
			return nil, r.lost(c)
		}
		return nil, errors.Join(r.failed(c, be), unmark(lock, once))
	}
	fresh := renewed(c, answer, time.Now())
	if err := r.v.put(fresh); err != nil {
		return nil, &hintedError{fmt.Errorf("the fresh token could not be stored: %w", err), reconnect(c)}
	}
	return fresh, unmark(lock, once)
}

func unmark(l *vaultLock, once bool) error {
	if !once {
		return nil
	}
	return l.mark(-1)
}

// singleUse says whether a refresh token is good for one use. Where the manifest does not
// say, it may be.
func singleUse(m *integrations.Manifest) bool {
	o := m.Auth.OAuth
	return o == nil || o.Refresh == nil || o.Refresh.Rotates
}

// renewed is the next generation of a connection, with the pair of an answer.
func renewed(c *custody.Credential, a *custody.RefreshAnswer, now time.Time) *custody.Credential {
	n := *c
	n.Generation++
	n.Pair++
	n.Secret, n.Refresh, n.ObtainedAt, n.ExpiresAt = a.Secret, a.Refresh, now.Unix(), 0
	if a.ExpiresIn > 0 {
		n.ExpiresAt = now.Unix() + a.ExpiresIn
	}
	if a.Scopes != nil {
		n.Scopes = a.Scopes
	}
	if len(a.Keep) > 0 {
		n.Keep = maps.Clone(c.Keep)
		if n.Keep == nil {
			n.Keep = make(map[string]string)
		}
		maps.Copy(n.Keep, a.Keep)
	}
	return &n
}

// lost is said of a single-use token that was sent and never answered: sending it again would
// read to the service as theft.
func (r *refresher) lost(c *custody.Credential) error {
	return &hintedError{&refreshError{"the token was sent to be renewed and the answer was lost; " + r.m.Name + " renews each token once, so it is not sent again", integrations.ErrUnauthorised}, reconnect(c)}
}

// failed says what a broker's answer means to the person.
func (r *refresher) failed(c *custody.Credential, e *sidecar.BrokerError) error {
	code := ""
	if e.Code != "" {
		code = " (" + e.Code + ")"
	}
	switch {
	case e.Class == sidecar.Dead:
		return &hintedError{&refreshError{r.m.Name + " has ended this connection" + code, integrations.ErrUnauthorised}, reconnect(c)}
	case e.Class == sidecar.Temporary && e.RetryAfter > 0:
		until := time.Now().Add(e.RetryAfter)
		return &hintedError{&refreshError{fmt.Sprintf("the token cannot be renewed at the moment%s, and not before %s is over", code, e.RetryAfter),
			&integrations.RateLimitError{Service: r.m.Name, Status: e.Status, Until: until}}, "run the command again then; nothing is lost"}
	case e.Class == sidecar.Temporary:
		return &hintedError{&refreshError{"the token cannot be renewed at the moment" + code, integrations.ErrUnreachable}, "run the command again in a while; nothing is lost"}
	}
	return &hintedError{&refreshError{"the broker at " + c.Broker + " cannot renew the token" + code, integrations.ErrProvider}, misconfiguredHint(e)}
}

func misconfiguredHint(e *sidecar.BrokerError) string {
	if e.Code == "unauthorized" {
		return "it did not take this program's token: ask its operator for another, and give it with --broker-token-file"
	}
	return "its operator can mend that; nothing is lost"
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
