package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

func (c *cli) removeCommand() *cobra.Command {
	var (
		home    homeFlag
		network networkFlags
		r       remover
	)
	cmd := &cobra.Command{
		Use:   "remove SERVICE",
		Short: "End a connection at the service and remove it here",
		Long: `Remove ends a connection that was made in a browser at the service, through its broker,
and deletes it from this machine. Where that ends more than this connection it says so and
asks first. What does not work at the service is said, with the place where you can do it
yourself, and removes the connection here all the same. "connect disconnect --everything"
does so with all of them.

A pasted token is its owner's: remove says where it is deleted, and it works until then.`,
		Args:              words(1, 1, "connect list tells what is stored"),
		ValidArgsFunction: new(registryFlag).complete(c, false),
		RunE: func(cmd *cobra.Command, words []string) error {
			v, list, _, err := c.connections(&home, words)
			switch {
			case err != nil:
				return err
			case v == nil:
				return usagef("", "nothing is connected")
			case len(list) == 0:
				return usagef("connect list tells what is stored", "there is no such connection%s", quoted(words[0]))
			}
			reg, err := integrations.Default()
			if err != nil {
				return err
			}
			// A service that this version no longer knows can still be removed.
			m := reg.Get(words[0])
			if m == nil {
				m = &integrations.Manifest{ID: list[0].Service, Name: list[0].Service}
			}
			cr, err := pick(list, m, r.account)
			if err != nil {
				return err
			}
			if err := network.read(c, m, cr.Broker); err != nil {
				return err
			}
			r.c, r.v, r.m, r.network = c, v, m, &network
			if r.term = c.terminal(); r.term != nil {
				defer r.term.close()
			}
			return r.remove(cmd.Context(), cr)
		},
	}
	home.add(cmd)
	network.addReach(cmd)
	r.at.add(cmd)
	cmd.Flags().StringVar(&r.account, "account", "", "which one, where a service has several: `NAME` or id")
	cmd.Flags().BoolVar(&r.keep, "keep-at-service", false, "remove it here alone; at the service it works on")
	cmd.Flags().BoolVar(&r.yes, "yes", false, "go on without being asked where more than this connection ends")
	cmd.Flags().SortFlags = false
	return cmd
}

// A remover removes one connection.
type remover struct {
	c       *cli
	v       *vault
	m       *integrations.Manifest
	network *networkFlags
	term    *terminal
	at      brokerTokenFlag

	account   string
	keep, yes bool
}

func (r *remover) remove(ctx context.Context, cr *custody.Credential) error {
	b, why, err := r.broker(cr)
	if err != nil {
		return err
	}
	if b != nil {
		if err := r.wider(ctx, cr); err != nil {
			return err
		}
	}
	return r.end(ctx, cr, b, why)
}

// end ends a connection at the service, where there is a broker that can, and removes it here.
func (r *remover) end(ctx context.Context, cr *custody.Credential, b *sidecar.Broker, why string) error {
	// What is revoked is the newest pair: one that is still with the local bot is taken first, and
	// nobody stores another one meanwhile.
	r.collect(ctx)
	lock, err := r.v.lock(ctx, cr.ID)
	if err != nil {
		return err
	}
	defer lock.release()
	now, err := r.v.get(cr.ID)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return removedMeanwhile()
	case err != nil:
		return err
	}
	revoked, where := false, ""
	if b != nil {
		revoked, why, where = r.revoke(ctx, b, now)
	}
	if err := r.v.remove(now); err != nil {
		return err
	}
	r.tidy()
	if revoked {
		r.c.note("%s has ended the connection.", r.m.Name)
	} else if why != "" {
		r.c.note("warning: it was not ended at %s: %s", r.m.Name, why)
	}
	r.c.note("%s is no longer connected here: %s.", r.m.Name, printable(accountLabel(now)))
	switch {
	case revoked:
	case where != "":
		r.c.note("%s.", strings.TrimSuffix(where, "."))
	default:
		r.c.note("%s", whereToRemove(r.m, now))
	}
	return nil
}

// collect stores what is still with the local bot. That it cannot be opened keeps nothing here.
func (r *remover) collect(ctx context.Context) {
	if !r.v.hasBot() {
		return
	}
	b := &localBot{c: r.c, v: r.v}
	if err := b.open(ctx); err != nil {
		r.c.note("warning: %v", err)
		return
	}
	b.close()
}

// tidy removes the local bot with the last connection: nothing of one that was removed is left
// with it, sealed or not.
func (r *remover) tidy() {
	if list, damaged, err := r.v.all(); err != nil || len(list)+len(damaged) > 0 {
		return
	}
	if err := r.v.removeBot(); err != nil {
		r.c.note("warning: the local bot's folder: %v", err)
	}
}

// broker returns the broker that can end a connection, or nil and why there is none; a token
// that the person pasted needs no reason.
func (r *remover) broker(cr *custody.Credential) (*sidecar.Broker, string, error) {
	o := r.m.Auth.OAuth
	switch {
	case cr.Kind != custody.KindOAuth || r.keep || o == nil || o.Revoke == nil || o.Revoke.None != "":
		return nil, "", nil
	case cr.Broker == "":
		return nil, "its broker is not known", nil
	}
	b, err := r.at.client(r.c, r.v, r.network, cr.Broker)
	switch {
	case err != nil:
		return nil, "", err
	case b.Token.IsZero():
		return nil, "there is no token for the broker at " + cr.Broker + "; --broker-token-file gives one", nil
	}
	return b, "", nil
}

// wideReach says what else ends with a connection at its service, "" where nothing does.
func wideReach(m *integrations.Manifest, cr *custody.Credential) string {
	account := printable(accountLabel(cr))
	switch m.Auth.OAuth.Revoke.Reach {
	case "account":
		return fmt.Sprintf("This ends more than this connection: %s ends every connection of %s through this broker's app, on other machines and other people's too.", m.Name, account)
	case "app":
		return fmt.Sprintf("This ends more than this connection: %s removes the broker's app from %s, and with it everybody's connection there.", m.Name, account)
	}
	return ""
}

// wider says what else ends, and returns nil when a person agrees to that.
func (r *remover) wider(ctx context.Context, cr *custody.Credential) error {
	what := wideReach(r.m, cr)
	if what == "" {
		return nil
	}
	alone := "--keep-at-service removes it here alone"
	switch {
	case r.yes:
		r.c.note("%s", what)
		return nil
	case r.term == nil:
		return &integrations.RefusedError{Reason: what + " There is no terminal to ask on", Hint: "--yes goes on without being asked; " + alone}
	}
	fmt.Fprintln(r.term, what)
	s, err := r.term.line(ctx, "Go on? [y/N] ")
	if err != nil || !strings.EqualFold(s, "y") && !strings.EqualFold(s, "yes") {
		return &integrations.RefusedError{Reason: "it was not confirmed", Hint: alone}
	}
	return nil
}

// revoke ends a connection at the service, or says why it is not ended and, where the broker
// knows, where a person can do it.
func (r *remover) revoke(ctx context.Context, b *sidecar.Broker, cr *custody.Credential) (done bool, why, where string) {
	a, err := b.Revoke(ctx, sidecar.RevokeRequest{Service: cr.Service, Secret: cr.Secret, Refresh: cr.Refresh, Keep: cr.Keep})
	var be *sidecar.BrokerError
	switch {
	case err == nil && a.Revoked:
		return true, "", ""
	case err == nil:
		return false, printable(a.Why), printable(a.Where)
	case !errors.As(err, &be):
		return false, err.Error(), ""
	case be.Class == sidecar.Temporary && be.Sent:
		return false, "no answer came, so that it may have ended or not", ""
	case be.Class == sidecar.Temporary:
		return false, "it cannot be reached at the moment", ""
	case be.Code == "unauthorized":
		return false, "the broker did not take this program's token", ""
	case be.Code != "":
		return false, "the broker could not do it (" + be.Code + ")", ""
	}
	return false, "the broker could not do it", ""
}

// whereToRemove says how a token is ended by hand.
func whereToRemove(m *integrations.Manifest, cr *custody.Credential) string {
	if o := m.Auth.OAuth; cr.Kind == custody.KindOAuth {
		switch {
		case o != nil && o.Revoke != nil && o.Revoke.None != "":
			return "The token itself still works until it ends. " + o.Revoke.None + "."
		default:
			return "The token itself still works until it ends, or until you remove the app in your settings at " + m.Name + "."
		}
	}
	if m.Auth.PATHelp != "" {
		return "The token itself still works until you delete it: its page is where it was made, " + m.Auth.PATHelp
	}
	return "The token itself still works until you delete it at " + m.Name + "."
}
