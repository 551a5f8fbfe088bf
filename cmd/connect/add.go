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
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
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
accounts; adding one that is stored already replaces its token, and the one before is ended
at the service where that can be done alone. Otherwise it is said that it works on.

With --broker no token is pasted: the service asks on its own page in a browser on this
machine, and what comes back is sealed to this program alone. Look whose account it says: with --write
it is asked once more. To be renewed before its end,
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
			if err := checkLabel(a.label); err != nil {
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
			a.exec, a.network = network.executor(a.m), &network
			v, err := home.make()
			if err != nil {
				return err
			}
			if a.term = c.terminal(); a.term != nil {
				defer a.term.close()
			}
			if a.broker != "" {
				if a.client, err = at.client(c, v, &network, a.broker); err != nil {
					return err
				}
				if err := a.offered(ctx, a.client); err != nil {
					return err
				}
				a.sayRenewal(a.client)
				if a.outcome, err = a.flow(ctx, v.member, a.term != nil && !noBrowser); err != nil {
					return err
				}
				o := a.outcome
				a.cred = integrations.Credential{Kind: o.Kind, Secret: o.Secret, Fields: o.Keep, Scopes: o.Scopes}
			} else if a.cred.Secret, err = token.read(ctx, c, a.term, a.m); err != nil {
				return err
			}
			if err := a.add(ctx, v); err != nil {
				return a.undo(ctx, err)
			}
			return nil
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

	network *networkFlags
	broker  string
	client  *sidecar.Broker     // of the browser flow, or nil
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

func checkLabel(s string) error {
	if len(s) > maxLabel || !utf8.ValidString(s) || strings.ContainsFunc(s, unprintable) || strings.TrimSpace(s) != s {
		return usagef("", "--account is at most %d bytes, on one line, of characters that can be seen", maxLabel)
	}
	return nil
}

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
		return a.notStored(err)
	}
	if err := a.agreed(ctx, account); err != nil {
		return err
	}
	n.Account = account
	if a.label != "" {
		if n.Account == nil {
			n.Account = new(custody.Account)
		}
		n.Account.Label = a.label
	}
	if n.Connection, err = a.learn(ctx); err != nil {
		return a.notStored(err)
	}
	if n.Ops, err = pins(a.m, n); err != nil {
		return err
	}
	old, err := a.store(ctx, v, n)
	if err != nil {
		return err
	}
	what := "connected"
	if old != nil {
		what = "connected anew, in place of the token before"
	}
	a.c.note("%s is %s: %s, %s.", a.m.Name, what, accountLabel(n), capWords(n))
	if old != nil && old.Secret != n.Secret {
		a.replaced(ctx, v, old)
	}
	a.ready(ctx, n)
	return nil
}

// notStored says of what went wrong that nothing was stored. Advice about pasted tokens is no
// use after a sign-in.
func (a *adder) notStored(err error) error {
	if a.outcome == nil {
		err = withAdvice(a.m, err)
	}
	return &hintedError{err, "nothing was stored"}
}

// agreed asks whether a connection that was made in a browser, and may write, is with the right
// account: whoever knew the flow's address could have brought another one.
func (a *adder) agreed(ctx context.Context, account *custody.Account) error {
	if a.outcome == nil || !a.write || a.term == nil {
		return nil
	}
	whose := "an account that it does not tell"
	if account != nil {
		whose = accountLabel(&custody.Credential{ID: account.ID, Account: account})
	}
	s, err := a.term.line(ctx, fmt.Sprintf("Connect %s, %s, for writes too? [y/N] ", a.m.Name, whose))
	if err != nil || !strings.EqualFold(s, "y") && !strings.EqualFold(s, "yes") {
		return &hintedError{&integrations.RefusedError{Reason: "it was not confirmed"}, "nothing was stored"}
	}
	return nil
}

// endWait bounds how long a pair that is not kept is ended.
const endWait = 20 * time.Second

// end ends a pair at the service, where that ends nothing else.
func (a *adder) end(ctx context.Context, b *sidecar.Broker, cr *custody.Credential) bool {
	o := a.m.Auth.OAuth
	if cr.Kind != custody.KindOAuth || b == nil || b.Token.IsZero() || o == nil || o.Revoke == nil || o.Revoke.None != "" || o.Revoke.Reach != "token" {
		return false
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWait)
	defer cancel()
	done, _, _ := (&remover{c: a.c, m: a.m}).revoke(ctx, b, cr)
	return done
}

// undo ends what a sign-in brought and was not stored, or says that it lives on.
func (a *adder) undo(ctx context.Context, err error) error {
	o := a.outcome
	if o == nil {
		return err
	}
	cr := &custody.Credential{Service: a.m.ID, Kind: o.Kind, Secret: o.Secret, Refresh: o.Refresh, Keep: o.Keep}
	if a.end(ctx, a.client, cr) {
		return &hintedError{err, "the sign-in was ended at " + a.m.Name + " again"}
	}
	return &hintedError{err, "the sign-in was not ended at " + a.m.Name + ". " + whereToRemove(a.m, cr)}
}

// replaced ends the pair that another one was stored in place of, or says that it lives on.
func (a *adder) replaced(ctx context.Context, v *vault, old *custody.Credential) {
	switch {
	case old.Kind != custody.KindOAuth:
		a.c.note("The token before was not ended. %s", whereToRemove(a.m, old))
		return
	case old.Refresh.IsZero() && old.ExpiresAt > 0 && time.Now().Unix() >= old.ExpiresAt:
		return // it is over
	}
	b := a.client
	if old.Broker != "" && old.Broker != a.broker {
		var err error
		if b, err = new(brokerTokenFlag).client(a.c, v, a.network, old.Broker); err != nil {
			a.c.note("warning: %v", err)
		}
	}
	if a.end(ctx, b, old) {
		a.c.note("The token before was ended at %s.", a.m.Name)
		return
	}
	a.c.note("The token before was not ended at %s, and works until it ends. Removing the app in your settings there ends this one too.", a.m.Name)
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
// is one, and returns what that was. Meanwhile nobody renews that one, and nobody adds another.
func (a *adder) store(ctx context.Context, v *vault, n *custody.Credential) (old *custody.Credential, err error) {
	if n.Kind == custody.KindOAuth {
		// What is replaced is the newest pair: one that is still with the local bot is taken first.
		(&remover{c: a.c, v: v}).collect(ctx)
	}
	adding, err := v.lockAdd(ctx)
	if err != nil {
		return nil, err
	}
	defer adding.release()
	id, err := a.same(v, n)
	if err != nil {
		return nil, err
	}
	if id == "" {
		return nil, v.put(n)
	}
	lock, err := v.lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer lock.release()
	old, err = v.get(id)
	if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
		return nil, v.put(n)
	}
	if err != nil {
		return nil, err
	}
	n.ID, n.Generation, n.Pair, n.ConnectedAt = old.ID, old.Generation+1, old.Pair+1, old.ConnectedAt
	if a.label == "" {
		n.Account.Label = old.Account.Label
	}
	return old, v.put(n)
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
	a.c.note("This token belongs to %s.", accountLabel(&custody.Credential{ID: account.ID, Account: account}))
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
