package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strings"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// pins returns the digests of the operations that a connection may use: what the person
// agrees to by connecting.
func pins(m *integrations.Manifest, c *custody.Credential) (map[string]custody.Digest, error) {
	all := make(map[string]custody.Digest)
	for _, o := range m.Ops {
		if !c.CapAllows(o.Access) {
			continue
		}
		d, err := custody.OpDigest(m, o.Name)
		if err != nil {
			return nil, err
		}
		all[o.Name] = d
	}
	return all, nil
}

// agreed holds that an operation reads as it did when the connection was made. Another version
// of this program may know it otherwise; then a person is asked, and --yes does not answer.
// A connection from before there were pins has none.
func (c *cli) agreed(ctx context.Context, v *vault, cr *custody.Credential, m *integrations.Manifest, o *integrations.Op, term *terminal) error {
	if cr.Ops == nil {
		return nil
	}
	now, err := custody.OpDigest(m, o.Name)
	if err != nil {
		return err
	}
	then, known := cr.Ops[o.Name]
	if known && then == now {
		return nil
	}
	what := fmt.Sprintf("%s reads otherwise than when you connected %s", o.Name, m.Name)
	if !known {
		what = fmt.Sprintf("%s was not there when you connected %s", o.Name, m.Name)
	}
	no := &integrations.RefusedError{Reason: what, Hint: fmt.Sprintf("connect show %s %s tells what it does now; agree on a terminal, or by connect add %s", m.ID, o.Name, m.ID)}
	if term == nil {
		return no
	}
	fmt.Fprintf(term, "%s. It is now: %s. %s\n", what, o.Title, o.About)
	s, err := term.line(ctx, "Use it as it is now, from here on? [y/N] ")
	if err != nil || !strings.EqualFold(s, "y") && !strings.EqualFold(s, "yes") {
		return no
	}
	return v.pin(ctx, cr.ID, o.Name, now)
}

// pin stores that a person agreed to an operation.
func (v *vault) pin(ctx context.Context, id, op string, d custody.Digest) error {
	lock, err := v.lock(ctx, id)
	if err != nil {
		return err
	}
	defer lock.release()
	c, err := v.get(id)
	if errors.Is(err, fs.ErrNotExist) {
		return &integrations.RefusedError{Reason: "this connection was removed meanwhile"}
	}
	if err != nil {
		return err
	}
	c.Generation++
	c.Ops = maps.Clone(c.Ops)
	c.Ops[op] = d
	return v.put(c)
}
