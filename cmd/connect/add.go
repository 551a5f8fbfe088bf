package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

func (c *cli) addCommand() *cobra.Command {
	var (
		home    homeFlag
		network networkFlags
		token   tokenFlags
		a       adder

		at        brokerTokenFlag
		noBrowser bool
	)
	cmd := &cobra.Command{
		Use:   "add SERVICE",
		Short: "Connect a service by a pasted token, or in a browser",
		Long: `Add takes a token, asks the service whose it is, and stores it sealed to this member's own
key, in a folder that nobody else reads. "connect op" then needs no token. The connection
is read-only unless --write says otherwise. A service may be connected with several
accounts; adding one that is stored already replaces its token.

With --broker no token is pasted: the service asks on its own page in a browser on this
machine, and what comes back is sealed to this program alone. To be renewed before its end,
and to be ended at the service by "connect remove", such a connection needs a token for the
broker: its operator signs one for the id that "connect key" shows. Give it once, with
--broker-token-file or in $CONNECT_BROKER_TOKEN; it is kept sealed like a connection.`,
		Example: `  connect add github
  connect add dnsimple --write --choose account=1010 --token-env DNSIMPLE_TOKEN
  connect add linear --broker https://connect.example
  connect add linear --broker https://connect.example --broker-token-file token`,
		Args:              words(1, 1, "connect services lists the services"),
		ValidArgsFunction: new(registryFlag).complete(c, false),
		RunE: func(cmd *cobra.Command, words []string) error {
			ctx := cmd.Context()
			// Only what is built in: another manifest could lead a stored token elsewhere.
			reg, err := integrations.Default()
			if err != nil {
				return err
			}
			if a.m, err = service(reg, words[0]); err != nil {
				return err
			}
			a.c = c
			if err := a.readChosen(); err != nil {
				return err
			}
			if a.broker != "" {
				if token.given() {
					return usagef("", "--broker does not go with a token of its own")
				}
				if err := checkBrokerOrigin(a.broker); err != nil {
					return usagef("", "--broker: %w", err)
				}
				if a.m.Auth.OAuth == nil {
					return usagef("connect add "+a.m.ID+" takes a token", "%s has no sign-in by a browser", a.m.Name)
				}
			} else if at.file != "" {
				return usagef("", "--broker-token-file goes with --broker")
			} else if a.cred, err = token.check(a.m); err != nil {
				return err
			}
			if err := network.read(c, a.m, a.broker); err != nil {
				return err
			}
			a.exec = network.executor(a.m)
			v, err := home.make()
			if err != nil {
				return err
			}
			if a.term = c.terminal(); a.term != nil {
				defer a.term.close()
			}
			if a.broker != "" {
				b, err := at.client(c, v, &network, a.broker)
				if err != nil {
					return err
				}
				if err := a.offered(ctx, b); err != nil {
					return err
				}
				a.sayRenewal(b)
				if a.outcome, err = a.flow(ctx, v.member, a.term != nil && !noBrowser); err != nil {
					return err
				}
				o := a.outcome
				a.cred = integrations.Credential{Kind: o.Kind, Secret: o.Secret, Fields: o.Keep, Scopes: o.Scopes}
			} else if a.cred.Secret, err = token.read(ctx, c, a.term, a.m); err != nil {
				return err
			}
			return a.add(ctx, v)
		},
	}
	home.add(cmd)
	network.add(cmd)
	token.add(cmd)
	at.add(cmd)
	cmd.Flags().StringVar(&a.broker, "broker", "", "sign in with a browser through the broker at this `URL`")
	cmd.Flags().BoolVar(&noBrowser, "no-browser", false, "print the address and open no browser")
	cmd.Flags().BoolVar(&a.write, "write", false, "allow writes too; each is still confirmed")
	cmd.Flags().StringVar(&a.label, "account", "", "call the account `NAME`, not what the service calls it")
	cmd.Flags().StringArrayVar(&a.choose, "choose", nil, "of several that the token reaches take this one, as `NAME=VALUE`")
	cmd.Flags().SortFlags = false
	return cmd
}

// An adder connects one service.
type adder struct {
	c      *cli
	term   *terminal
	exec   *integrations.Executor
	m      *integrations.Manifest
	cred   integrations.Credential
	write  bool
	label  string
	choose []string
	chosen map[string]string

	broker  string
	app     string              // the public name of the broker's app at the service, or ""
	outcome *custody.TabOutcome // of the browser flow, or nil
}

func (a *adder) readChosen() error {
	var known []string
	for _, cn := range a.m.Connect {
		known = append(known, cn.Name)
	}
	a.chosen = make(map[string]string)
	for _, s := range a.choose {
		name, value, ok := strings.Cut(s, "=")
		switch {
		case !ok || value == "":
			return usagef("", "--choose is written NAME=VALUE")
		case len(known) == 0:
			return usagef("", "--choose: %s has nothing to choose", a.m.Name)
		case !slices.Contains(known, name):
			return usagef(a.m.Name+" has: "+strings.Join(known, ", "), "--choose names nothing that %s has", a.m.Name)
		}
		a.chosen[name] = value
	}
	return nil
}

// maxLabel bounds what an account is called.
const maxLabel = 100

func (a *adder) add(ctx context.Context, v *vault) error {
	now := time.Now().Unix()
	n := &custody.Credential{
		V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: a.m.ID, Kind: a.cred.Kind, Secret: a.cred.Secret,
		Cap: integrations.Read, Keep: a.cred.Fields, ObtainedAt: now, ConnectedAt: now,
	}
	if a.write {
		n.Cap = integrations.Write
	}
	if o := a.outcome; o != nil {
		n.Refresh, n.Scopes, n.Wider = o.Refresh, o.Scopes, o.Wider
		if !o.Refresh.IsZero() {
			n.Broker = a.broker
		}
		if o.ExpiresIn > 0 {
			n.ExpiresAt = now + o.ExpiresIn
		}
		if o.Wider {
			a.c.note("note: %s granted more than was asked; what is %s here stays so", a.m.Name, capWords(n))
		}
	}
	account, err := a.viewer(ctx)
	if err != nil {
		return &hintedError{withAdvice(a.m, err), "nothing was stored"}
	}
	n.Account = account
	if a.label != "" {
		if len(a.label) > maxLabel || strings.ContainsFunc(a.label, func(r rune) bool { return r < ' ' || r == 0x7f }) {
			return usagef("", "--account is at most %d bytes, on one line", maxLabel)
		}
		if n.Account == nil {
			n.Account = new(custody.Account)
		}
		n.Account.Label = a.label
	}
	if n.Connection, err = a.learn(ctx); err != nil {
		return &hintedError{withAdvice(a.m, err), "nothing was stored"}
	}
	if n.Ops, err = pins(a.m, n); err != nil {
		return err
	}
	replaced, err := a.store(ctx, v, n)
	if err != nil {
		return err
	}
	what := "connected"
	if replaced {
		what = "connected anew, in place of the token before"
	}
	a.c.note("%s is %s: %s, %s.", a.m.Name, what, printable(accountLabel(n)), capWords(n))
	a.ready(ctx, n)
	return nil
}

// ready says what a person still has to do at the service before the connection sees
// anything. That it cannot be asked is no fault of the connection.
func (a *adder) ready(ctx context.Context, n *custody.Credential) {
	r := a.m.Ready
	if r == nil || r.For == "oauth" && n.Kind != custody.KindOAuth || r.For == "pasted" && n.Kind != custody.KindPAT {
		return
	}
	res, err := a.exec.ExecuteAs(ctx, a.m, r.Op, nil, n.For())
	if err != nil {
		return
	}
	v, err := decode(res.JSON)
	for _, seg := range strings.FieldsFunc(r.NotEmpty, func(c rune) bool { return c == '.' }) {
		m, _ := v.(map[string]any)
		v = m[seg]
	}
	list, isList := v.([]any)
	if err != nil || v != nil && (!isList || len(list) > 0) {
		return
	}
	a.c.note("%s", r.Say)
	// Without the app's public name there is no page to name.
	if mend := r.Mend; a.app != "" || !strings.Contains(mend, "{app}") {
		a.c.note("It is mended at %s", strings.ReplaceAll(mend, "{app}", a.app))
	}
}

func capWords(c *custody.Credential) string {
	if c.CapAllows(integrations.Write) {
		return "reads and writes"
	}
	return "read-only"
}

// store stores n, as the next generation of the connection with the same account where there
// is one. Meanwhile nobody renews that one.
func (a *adder) store(ctx context.Context, v *vault, n *custody.Credential) (replaced bool, err error) {
	id, err := a.same(v, n)
	if err != nil {
		return false, err
	}
	if id == "" {
		return false, v.put(n)
	}
	lock, err := v.lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer lock.release()
	old, err := v.get(id)
	if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
		return false, v.put(n)
	}
	if err != nil {
		return false, err
	}
	n.ID, n.Generation, n.Pair, n.ConnectedAt = old.ID, old.Generation+1, old.Pair+1, old.ConnectedAt
	if a.label == "" {
		n.Account.Label = old.Account.Label
	}
	return true, v.put(n)
}

// same returns the id of the stored connection with n's account, or "".
func (a *adder) same(v *vault, n *custody.Credential) (string, error) {
	list, _, err := v.all()
	if err != nil {
		return "", err
	}
	for _, old := range list {
		if old.Service == n.Service && n.Account != nil && n.Account.ID != "" && old.Account != nil && old.Account.ID == n.Account.ID && old.Kind == n.Kind {
			return old.ID, nil
		}
	}
	return "", nil
}

// viewer asks whose the token is. Only a 401, or no answer, keeps it from being stored: a
// token may work without the right to ask that.
func (a *adder) viewer(ctx context.Context) (*custody.Account, error) {
	if a.m.Viewer == "" || a.m.Account == nil {
		a.c.note("note: %s does not tell whose a token is", a.m.Name)
		return nil, nil
	}
	res, err := a.exec.ExecuteAs(ctx, a.m, a.m.Viewer, nil, a.cred)
	var provider *integrations.ProviderError
	if errors.As(err, &provider) && provider.Status == 403 {
		a.c.note("warning: %s does not tell this token whose it is (403), so it could not be checked", a.m.Name)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	got, err := decode(res.JSON)
	if err != nil {
		return nil, err
	}
	account := &custody.Account{ID: firstText(got, a.m.Account.ID), Label: firstText(got, a.m.Account.Label)}
	if account.ID == "" && account.Label == "" {
		return nil, nil
	}
	a.c.note("This token belongs to %s.", printable(accountLabel(&custody.Credential{ID: account.ID, Account: account})))
	return account, nil
}

func firstText(v any, paths []string) string {
	for _, p := range paths {
		if s := textAt(v, p); s != "" {
			return s
		}
	}
	return ""
}

// learn asks for what a connection must know. Of several choices a person takes one.
func (a *adder) learn(ctx context.Context) (map[string]custody.ConnectionValue, error) {
	var learnt map[string]custody.ConnectionValue
	for _, cn := range a.m.Connect {
		res, err := a.exec.ExecuteAs(ctx, a.m, cn.Op, nil, a.cred)
		if err != nil {
			return nil, fmt.Errorf("looking up %s: %w", cn.Name, err)
		}
		all, err := choices(cn, res)
		if err != nil {
			return nil, err
		}
		ch, err := a.take(ctx, cn.Name, all, res.Next != nil)
		if err != nil {
			return nil, err
		}
		if learnt == nil {
			learnt = make(map[string]custody.ConnectionValue)
		}
		learnt[cn.Name] = custody.ConnectionValue{Value: ch.value, Label: ch.label}
	}
	return learnt, nil
}

func (a *adder) take(ctx context.Context, name string, all []choice, more bool) (choice, error) {
	if want, given := a.chosen[name]; given {
		i := slices.IndexFunc(all, func(ch choice) bool { return ch.value == want })
		switch {
		case i >= 0:
			return all[i], nil
		case more: // it may be on a later page
			return choice{value: want}, nil
		}
		return choice{}, &integrations.RefusedError{Arg: name, Reason: "this token does not reach that one", Hint: "it reaches: " + listed(all)}
	}
	switch {
	case len(all) == 0:
		return choice{}, &integrations.RefusedError{Arg: name, Reason: "this token reaches none"}
	case len(all) == 1 && !more:
		a.c.note("note: %s is %s, the only one that this token reaches", name, all[0])
		return all[0], nil
	case a.term == nil || len(all) > maxChoices:
		return choice{}, &integrations.RefusedError{Arg: name, Reason: "this token reaches several: " + listed(all), Hint: "say which: --choose " + name + "=" + all[0].value}
	}
	fmt.Fprintf(a.term, "This token reaches several (%s):\n", name)
	for i, ch := range all {
		fmt.Fprintf(a.term, "  %d  %s\n", i+1, ch)
	}
	s, err := a.term.line(ctx, "Which one? ")
	n, bad := strconv.Atoi(s)
	if err != nil || bad != nil || n < 1 || n > len(all) {
		return choice{}, &integrations.RefusedError{Arg: name, Reason: "none was chosen"}
	}
	return all[n-1], nil
}
