package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

func (c *cli) disconnectCommand() *cobra.Command {
	d := disconnecter{r: remover{c: c}}
	var everything bool
	cmd := &cobra.Command{
		Use:   "disconnect --everything",
		Short: "End every connection at its service and remove all of them here",
		Long: `Disconnect --everything ends each stored connection at its service where that can be done
from here, and removes all of them from this machine, with the tokens of their brokers and
the key and folder of your own bot. First it lists what it will do and asks. What does not
work at a service is said, with the place where you can do it yourself, and keeps nothing
here. The key of this member stays, so that "connect key" shows the same id; --forget-me
removes it too. What a sidecar or an instance keeps in the same folder is not touched.

One connection is ended by "connect remove SERVICE".`,
		Args: func(_ *cobra.Command, words []string) error {
			if len(words) > 0 {
				return usagef("connect remove SERVICE ends one connection", "connect disconnect takes no service; it is for all of them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !everything {
				return usagef("connect remove SERVICE ends one connection; connect disconnect --everything all of them", "--everything is missing")
			}
			return d.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&everything, "everything", false, "end and remove every connection")
	cmd.Flags().BoolVar(&d.forget, "forget-me", false, "remove the key of this member too")
	d.home.add(cmd)
	d.network.addReach(cmd)
	d.r.at.add(cmd)
	cmd.Flags().BoolVar(&d.r.keep, "keep-at-service", false, "remove them here alone; at the services they work on")
	cmd.Flags().BoolVar(&d.r.yes, "yes", false, "do it without being asked")
	cmd.Flags().SortFlags = false
	return cmd
}

// A disconnecter ends and removes all that a vault holds.
type disconnecter struct {
	r       remover
	home    homeFlag
	network networkFlags
	forget  bool
}

// A plan is what becomes of one connection.
type plan struct {
	m      *integrations.Manifest
	cr     *custody.Credential
	broker *sidecar.Broker // nil: it is removed here alone
	why    string          // why it is not ended at the service, where that is not as it should be
}

func (d *disconnecter) run(ctx context.Context) error {
	v, err := d.home.open()
	if errors.Is(err, errNoVault) {
		d.r.c.note("Nothing is connected.")
		return nil
	}
	if err != nil {
		return err
	}
	d.r.v, d.r.network = v, &d.network
	if d.r.term = d.r.c.terminal(); d.r.term != nil {
		defer d.r.term.close()
	}
	list, damaged, err := v.all()
	if err != nil {
		return err
	}
	plans, err := d.plans(list)
	if err != nil {
		return err
	}
	if err := d.agreed(ctx, plans, damaged); err != nil {
		return err
	}
	for _, p := range plans {
		d.r.m = p.m
		if err := d.r.end(ctx, p.cr, p.broker, p.why); err != nil {
			if ctx.Err() != nil {
				return &integrations.RefusedError{Reason: "it was left; what was not removed yet is still connected"}
			}
			d.r.c.note("warning: %s, %s: %v", p.m.Name, printable(accountLabel(p.cr)), err)
		}
	}
	return d.wipe(damaged)
}

// plans says for each connection how it ends.
func (d *disconnecter) plans(list []*custody.Credential) ([]plan, error) {
	reg, err := integrations.Default()
	if err != nil {
		return nil, err
	}
	var brokers, hosts []string
	for _, cr := range list {
		if cr.Broker != "" && !slices.Contains(brokers, cr.Broker) {
			brokers = append(brokers, cr.Broker)
			hosts = append(hosts, strings.TrimPrefix(cr.Broker, "https://")+":443")
		}
	}
	if d.r.at.file != "" && len(brokers) > 1 {
		return nil, usagef("connect remove SERVICE takes it for one of them", "--broker-token-file is for one broker, and the connections have several")
	}
	if err := d.network.readHosts(d.r.c, "no connection", hosts); err != nil {
		return nil, err
	}
	var all []plan
	for _, cr := range list {
		p := plan{m: reg.Get(cr.Service), cr: cr}
		if p.m == nil {
			p.m = &integrations.Manifest{ID: cr.Service, Name: cr.Service}
		}
		d.r.m = p.m
		if p.broker, p.why, err = d.r.broker(cr); err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// agreed lists what will be done, and returns nil when a person agrees to it.
func (d *disconnecter) agreed(ctx context.Context, plans []plan, damaged []string) error {
	var out io.Writer = d.r.c.err
	if d.r.term != nil && !d.r.yes {
		out = d.r.term
	}
	if len(plans)+len(damaged) > 0 {
		fmt.Fprintln(out, "These connections end:")
	}
	for _, p := range plans {
		how := "removed here alone; its token works on"
		switch {
		case p.broker != nil:
			how = "ended at " + p.m.Name + " through " + p.cr.Broker + ", and removed here"
		case p.why != "":
			how += " (" + p.why + ")"
		}
		fmt.Fprintf(out, "  %s, %s: %s.\n", p.m.Name, printable(accountLabel(p.cr)), how)
		if p.broker != nil {
			if w := wideReach(p.m, p.cr); w != "" {
				fmt.Fprintf(out, "    %s\n", w)
			}
		}
	}
	for _, file := range damaged {
		fmt.Fprintf(out, "  %s does not open, so that nothing can be ended by it: removed here alone.\n", file)
	}
	stays := "The key of this member stays."
	if d.forget {
		stays = "The key of this member is removed too: nothing that was sealed to it ever opens again."
	}
	fmt.Fprintln(out, "The brokers' tokens, and your own bot's key and folder, are removed. "+stays)
	switch {
	case d.r.yes:
		return nil
	case d.r.term == nil:
		return &integrations.RefusedError{Reason: "there is no terminal to ask on", Hint: "--yes does it without being asked; --keep-at-service removes them here alone"}
	}
	s, err := d.r.term.line(ctx, "Disconnect everything? [y/N] ")
	if err != nil || !strings.EqualFold(s, "y") && !strings.EqualFold(s, "yes") {
		return &integrations.RefusedError{Reason: "it was not confirmed"}
	}
	return nil
}

// wipe removes what is left, unless a connection is still there.
func (d *disconnecter) wipe(damaged []string) error {
	v, c := d.r.v, d.r.c
	var failed []error
	for _, file := range damaged {
		if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = append(failed, fmt.Errorf("%s: %w", file, withoutPath(err)))
		}
	}
	left, _, err := v.all()
	if err != nil {
		return err
	}
	for _, cr := range left {
		failed = append(failed, fmt.Errorf("%s, %s, is still connected", cr.Service, printable(accountLabel(cr))))
	}
	if len(failed) > 0 {
		return &hintedError{fmt.Errorf("not everything is removed: %w", errors.Join(failed...)), "run the command again"}
	}
	temps := files(v.dir, tempFiles) // of a process that was killed
	failed = append(failed, v.removeBot())
	for _, name := range append(temps, filepath.Join(v.dir, vaultFolder), filepath.Join(v.dir, vaultBrokers), filepath.Join(v.dir, vaultAddLock)) {
		failed = append(failed, withoutPath(os.RemoveAll(name)))
	}
	if d.forget {
		failed = append(failed, withoutPath(os.Remove(filepath.Join(v.dir, vaultKey))))
	}
	if err := errors.Join(failed...); err != nil {
		return &hintedError{fmt.Errorf("not everything is removed: %w", err), "remove " + v.dir + " yourself"}
	}
	if !d.forget {
		c.note("Nothing is connected here any more. The key of this member stays, for another time.")
		return syncFolder(v.dir)
	}
	c.note("Nothing is connected here any more, and the key of this member is gone.")
	if os.Remove(v.dir) != nil { // it is not empty
		c.note("note: %s stays, since there is more in it", v.dir)
	}
	return nil
}
