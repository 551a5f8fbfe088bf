package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// fewCalls is how many remaining calls are worth a word.
const fewCalls = 20

func (c *cli) opCommand() *cobra.Command {
	var (
		registry registryFlag
		network  networkFlags
		token    tokenFlags
		stored   storedFlags
		at       brokerTokenFlag
		yes      bool
		asJSON   bool
	)
	cmd := &cobra.Command{
		Use:   "op SERVICE OPERATION [arg=value …]",
		Short: "Run one operation of a service",
		Long: `Op runs one operation. "connect show SERVICE OPERATION" tells its args.

  arg=value       a text, number, date or one of the listed words
  arg=a arg=b     a list
  arg=key=value   an entry of a map
  arg=@file       what is in the file, at most 64 KB; @@ begins a text that begins with @
  arg:=JSON       any JSON: null to clear, a list of objects

The token is that of a stored connection ("connect add"), or comes from --token-env,
--token-file or a hidden prompt, never an argument. A stored connection is lent for this one
operation to a bot of your own in the same folder, which runs it as any bot would. It renews
one that was made in a browser through its broker before its end, where the broker's token
was given: to "connect add", here with --broker-token-file, or in $CONNECT_BROKER_TOKEN.
A write shows what it will do and asks; --yes answers for you. What cannot be undone
is confirmed by typing what it hits. Nothing but the listed fields flows back.`,
		Example: `  connect op github list_issues owner=golang repo=go labels=Tools --token-env GITHUB_TOKEN
  connect op github open_issue owner=me repo=notes title="Buy milk" body=@milk.md`,
		Args:              words(2, 1000, "connect services lists the services, connect show SERVICE its operations"),
		ValidArgsFunction: registry.complete(c, true),
		RunE: func(cmd *cobra.Command, words []string) error {
			ctx := cmd.Context()
			reg, err := registry.load(c)
			if err != nil {
				return err
			}
			m, err := service(reg, words[0])
			if err != nil {
				return err
			}
			o, err := operation(m, words[1])
			if err != nil {
				return err
			}
			args, err := parseArgs(o, words[2:])
			if err != nil {
				return err
			}
			r := &runner{c: c, m: m, yes: yes, answer: "Yes, by --yes."}
			if r.term = c.terminal(); r.term != nil {
				defer r.term.close()
			}
			v, conn, err := stored.connection(c, m, &token, &registry)
			if err != nil {
				return err
			}
			if conn != nil && !conn.CapAllows(o.Access) {
				return &integrations.RefusedError{Reason: "this connection is read-only, and " + o.Name + " changes something",
					Hint: "connect add " + m.ID + " --write allows writes"}
			}
			// All that can be said without the token is said before it is asked for.
			if err := r.check(o, args); err != nil {
				return err
			}
			broker := ""
			if conn != nil {
				broker = conn.Broker
				if err := c.agreed(ctx, v, conn, m, o, r.term); err != nil {
					return err
				}
				c.note("note: as %s", printable(accountLabel(conn)))
			} else if r.cred, err = token.check(m); err != nil {
				return err
			}
			if err := network.read(c, m, broker); err != nil {
				return err
			}
			r.exec = network.executor(m)
			if conn == nil {
				if r.cred.Secret, err = token.read(ctx, c, r.term, m); err != nil {
					return err
				}
			} else {
				if err := r.use(reg, v, conn, &at, &network); err != nil {
					return err
				}
				defer r.bot.close()
			}
			res, err := r.run(ctx, o, args)
			if err != nil && conn != nil {
				return err // with advice of its own
			}
			if err != nil {
				return withAdvice(m, err)
			}
			c.rest(m, res)
			if asJSON {
				return done(o, writeJSON(c.out, success{OK: true, Result: res.JSON, Next: nextArgs(o, res.Next)}))
			}
			if res.Next != nil {
				c.note("next page: %s", nextCommand(cmd.Flags(), words, res.Next))
			}
			return done(o, c.printResult(o, res))
		},
	}
	registry.add(cmd)
	network.add(cmd)
	token.add(cmd)
	stored.add(cmd)
	at.add(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm a write without being asked")
	cmd.Flags().BoolVar(&asJSON, "json", false, `print {"ok", "result", "next"} or {"ok", "error"} on one line`)
	cmd.Flags().SortFlags = false
	return cmd
}

// use makes a stored connection the one that operations run with.
func (r *runner) use(reg *integrations.Registry, v *vault, conn *custody.Credential, at *brokerTokenFlag, network *networkFlags) error {
	r.cred.Connection = conn.For().Connection
	r.bot = &localBot{c: r.c, v: v, reg: reg, m: r.m, id: conn.ID, exec: r.exec, timeout: network.timeout}
	if conn.Broker == "" {
		return nil
	}
	var err error
	if r.bot.broker, err = at.client(r.c, v, network, conn.Broker); err != nil {
		return err
	}
	if !r.bot.canAskBroker() && conn.Due(time.Now(), custody.RefreshSkew) {
		r.c.note("note: this connection can be renewed, with the broker's token: --broker-token-file FILE, or $%s", envBrokerToken)
	}
	return nil
}

// done says of a write that went through that it did, though its result could not be
// printed: whoever reads only the exit code must not take it for one that can be repeated.
func done(o *integrations.Op, err error) error {
	if err == nil || o.Access == integrations.Read {
		return err
	}
	return &hintedError{&integrations.UnknownOutcomeError{Service: "the service", Status: 200, Err: fmt.Errorf("printing it: %w", err)}, "it was done; only its result could not be printed"}
}

// success has the shape of a connect.result that went well.
type success struct {
	OK     bool            `json:"ok"`
	Result json.RawMessage `json:"result"`
	Next   map[string]any  `json:"next,omitempty"`
}

// nextArgs is the arg that asks for the next page, a whole number as one.
func nextArgs(o *integrations.Op, next *integrations.NextPage) map[string]any {
	if next == nil {
		return nil
	}
	if a := o.Args.Get(next.Arg); a != nil && a.Kind() == "integer" {
		return map[string]any{next.Arg: json.Number(next.Value)}
	}
	return map[string]any{next.Arg: next.Value}
}

// printResult prints what flowed back, its numbers' digits as they came.
func (c *cli) printResult(o *integrations.Op, res *integrations.Result) error {
	if o.Pick.Nothing != "" {
		c.note("Done. Nothing flows back: %s", o.Pick.Nothing)
		return nil
	}
	var b bytes.Buffer
	if err := json.Indent(&b, res.JSON, "", "  "); err != nil {
		return err
	}
	b.WriteByte('\n')
	_, err := c.out.Write(escapeJSON(b.Bytes()))
	return err
}

// rest says how many calls the service allows, where they are few.
func (c *cli) rest(m *integrations.Manifest, res *integrations.Result) {
	l := res.Limits
	if l.Remaining < 0 || l.Remaining > fewCalls {
		return
	}
	until := ""
	if !l.Reset.IsZero() {
		until = " until " + l.Reset.UTC().Format(time.DateTime) + " UTC"
	}
	c.note("note: %s allows %d more calls%s", m.Name, l.Remaining, until)
}

// nextCommand is the command for the next page: the same one with one arg changed.
func nextCommand(flags *pflag.FlagSet, words []string, next *integrations.NextPage) string {
	line := []string{"connect", "op"}
	for _, w := range words {
		if !strings.HasPrefix(w, next.Arg+"=") && !strings.HasPrefix(w, next.Arg+":=") {
			line = append(line, w)
		}
	}
	value := next.Value
	if strings.HasPrefix(value, "@") {
		value = "@" + value
	}
	line = append(line, next.Arg+"="+value)
	flags.Visit(func(f *pflag.Flag) {
		switch v := f.Value.(type) {
		case pflag.SliceValue:
			for _, s := range v.GetSlice() {
				line = append(line, "--"+f.Name, s)
			}
		default:
			if f.Value.Type() == "bool" {
				line = append(line, "--"+f.Name)
			} else {
				line = append(line, "--"+f.Name, f.Value.String())
			}
		}
	})
	for i, w := range line {
		s, ok := shellWord(w)
		if !ok {
			return fmt.Sprintf("the same with another %s, which --json shows", next.Arg)
		}
		line[i] = s
	}
	return strings.Join(line, " ")
}

// shellWord quotes s for a shell; ok is false where s holds what does not print.
func shellWord(s string) (word string, ok bool) {
	plain := s != ""
	for _, c := range s {
		if !unicode.IsPrint(c) {
			return "", false
		}
		plain = plain && c < unicode.MaxASCII && (unicode.IsLetter(c) || unicode.IsDigit(c) || strings.ContainsRune("_@%+=:,./-", c))
	}
	if plain {
		return s, true
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'", true
}
