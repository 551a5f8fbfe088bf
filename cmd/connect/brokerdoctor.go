package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/integrations"
)

func (c *cli) brokerDoctorCommand() *cobra.Command {
	d := &doctor{c: c, getenv: os.Getenv, environ: os.Environ}
	cmd := &cobra.Command{
		Use:   "doctor [SERVICE]",
		Short: "Say what is wrong with a broker before its members notice",
		Long: `Doctor reads the environment and --secrets-file of "connect broker" and looks at what
members depend on: keys, clock, the OAuth app of each service, where its secret may go, the
redirect address, whether CONNECT_PUBLIC_URL reaches this very broker, and whether each
provider knows its app. A SERVICE limits it to that one.

Every line is ok, a note, a warning or a fault, and a fault says how to mend it. No secret,
token or code is printed. It asks each provider's token endpoint once, as a sign-in would,
to exchange a code that does not exist, and once for the page that a browser would see; it
begins a sign-in at the broker and leaves it there. --offline sends nothing at all.

--elsewhere is for a broker that does not run from this environment, such as the Lambda
functions: keys that are not here are not missed. CONNECT_PUBLIC_URL alone is enough then;
with --secrets-file the apps are held against the providers too.

It ends with 0 where no fault was found, with 1 where there are faults, and with 6 where
there is none and something that should have answered could not be asked.`,
		Example: `  connect broker doctor --secrets-file secrets.json
  connect broker doctor github --instance-token chat.token
  CONNECT_PUBLIC_URL=https://connect.example connect broker doctor --elsewhere`,
		Args: words(0, 1, "such as connect broker doctor, or connect broker doctor github"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				d.service = args[0]
			}
			return d.run(cmd.Context())
		},
	}
	f := cmd.Flags()
	f.StringVar(&d.secrets, "secrets-file", "", "take the OAuth clients from this JSON `FILE`, as connect broker does")
	f.StringVar(&d.tokenFile, "instance-token", "", "look whether the instance's token in this `FILE` would be taken")
	f.BoolVar(&d.elsewhere, "elsewhere", false, "the broker runs elsewhere: keys that are not in this environment are not missed")
	f.BoolVar(&d.offline, "offline", false, "send nothing: look at the configuration alone")
	f.BoolVar(&d.asJSON, "json", false, "print the findings as one line of JSON")
	d.network.addReach(cmd)
	f.DurationVar(&d.timeout, "timeout", 10*time.Second, "give up one call after this `DURATION`")
	return cmd
}

// A doctor looks at one broker's configuration and surroundings.
type doctor struct {
	c       *cli
	getenv  func(string) string
	environ func() []string

	service, secrets, tokenFile string
	network                     networkFlags
	elsewhere, offline, asJSON  bool
	timeout                     time.Duration

	findings []finding
	scoped   bool    // scopes were said
	unasked  bool    // something that should have answered could not be asked
	clocks   []clock // what the others' clocks said
}

// The levels of a finding, the words that are printed.
const (
	levelOK      = "ok"
	levelNote    = "note"
	levelWarning = "warning"
	levelFault   = "fault"
)

// aboutBroker is what a finding is about that belongs to no service.
const aboutBroker = "broker"

// A finding is one line. No field holds a secret, a token or a code.
type finding struct {
	About string `json:"about"` // aboutBroker, or a service's id
	Check string `json:"check"`
	Level string `json:"level"`
	Text  string `json:"text"`
	Mend  string `json:"mend,omitempty"`
}

func (d *doctor) say(about, check, level, mend, format string, args ...any) {
	d.findings = append(d.findings, finding{about, check, level, fmt.Sprintf(format, args...), mend})
}

func (d *doctor) ok(about, check, format string, args ...any) {
	d.say(about, check, levelOK, "", format, args...)
}

func (d *doctor) note(about, check, format string, args ...any) {
	d.say(about, check, levelNote, "", format, args...)
}

func (d *doctor) warn(about, check, mend, format string, args ...any) {
	d.say(about, check, levelWarning, mend, format, args...)
}

func (d *doctor) fault(about, check, mend, format string, args ...any) {
	d.say(about, check, levelFault, mend, format, args...)
}

// notAsked is a warning that leaves a question open.
func (d *doctor) notAsked(about, check, mend, format string, args ...any) {
	d.unasked = true
	d.warn(about, check, mend, format, args...)
}

func (d *doctor) run(ctx context.Context) error {
	if d.timeout <= 0 || d.timeout > maxTimeout {
		return usagef("such as --timeout 10s", "--timeout is above zero and at most %s", maxTimeout)
	}
	if err := d.network.readReach(nil, "connect.example:443", nil, func(string, string) {}); err != nil {
		return err
	}
	token := ""
	if d.tokenFile != "" {
		data, err := readFile(d.tokenFile, maxKeyFile)
		if err != nil {
			return usagef("", "--instance-token: the file %w", err)
		}
		token = strings.TrimSpace(string(data))
	}
	if d.service != "" {
		reg, err := integrations.Default()
		if err != nil {
			return err
		}
		if m := reg.Get(d.service); m == nil || m.Auth.OAuth == nil {
			return usagef("connect services lists them", "there is no service%s with OAuth", quoted(d.service))
		}
	}
	s, err := d.configure(ctx, func(cfg *broker.Config) {
		cfg.ConnectTo, cfg.RootCAs, cfg.UpstreamTimeout = d.network.to, d.network.roots, d.timeout
	})
	if err != nil {
		return err
	}
	d.examine(ctx, s, token)
	return d.finish()
}

// examine looks at everything.
func (d *doctor) examine(ctx context.Context, s *subject, token string) {
	d.keys(s)
	if token != "" {
		d.token(s, token)
	}
	var there *brokerThere
	if !d.offline && s.url {
		there = d.reach(ctx, s)
	}
	var without []string
	for _, m := range s.cfg.Registry.All() {
		if m.Auth.OAuth == nil || d.service != "" && m.ID != d.service {
			continue
		}
		if ctx.Err() != nil {
			d.notAsked(m.ID, "run", "", "it was left before all was looked at")
			return
		}
		if !d.examineService(ctx, s, there, m) {
			without = append(without, m.ID)
		}
	}
	if len(without) > 0 {
		d.note(aboutBroker, "without", "no app, so not offered: %s", strings.Join(without, ", "))
	}
	if d.scoped {
		d.note(aboutBroker, "granted", "what a provider granted goes sealed to whoever connects, whose client says where it is more than was asked; nothing of it stays here")
	}
	d.sayClock()
}

// examineService looks at one service. It returns false for one that is not offered and that
// nobody asked for.
func (d *doctor) examineService(ctx context.Context, s *subject, there *brokerThere, m *integrations.Manifest) bool {
	offered, asked := d.app(ctx, s, m)
	begins := there != nil && d.atBroker(ctx, s, there, m, offered)
	if !asked && !begins {
		return false
	}
	if s.url {
		d.note(m.ID, "redirect", "redirect address to register: %s", s.b.RedirectURI(m.ID))
	}
	d.scopes(m)
	if offered && s.url && !d.offline {
		d.provider(ctx, s, m)
	}
	return true
}

func (d *doctor) scopes(m *integrations.Manifest) {
	d.scoped = true
	o := m.Auth.OAuth
	if len(o.Scopes)+len(o.ScopesWrite) == 0 {
		d.note(m.ID, "scopes", "asks for no scopes: what a token may do is set in the app and by the member")
		return
	}
	d.note(m.ID, "scopes", "asks for, to read: %s", strings.Join(o.Scopes, " "))
	var more []string
	for _, sc := range o.ScopesWrite {
		if !slices.Contains(o.Scopes, sc) {
			more = append(more, sc)
		}
	}
	if len(more) > 0 {
		d.note(m.ID, "scopes", "to write, also: %s", strings.Join(more, " "))
	} else {
		d.note(m.ID, "scopes", "to write: the same")
	}
}

// errUnasked is the end of a run that found no fault and could not ask everyone.
var errUnasked = fmt.Errorf("%w: %w", errFindings, integrations.ErrUnreachable)

// finish prints the findings and says how the program ends.
func (d *doctor) finish() error {
	count := make(map[string]int)
	for _, f := range d.findings {
		count[f.Level]++
	}
	var err error
	switch {
	case count[levelFault] > 0:
		err = errFindings
	case d.unasked:
		err = errUnasked
	}
	if d.asJSON {
		out := struct {
			OK       bool      `json:"ok"`
			Faults   int       `json:"faults"`
			Warnings int       `json:"warnings"`
			Findings []finding `json:"findings"`
		}{err == nil, count[levelFault], count[levelWarning], d.findings}
		return errors.Join(err, writeJSON(d.c.out, out))
	}
	if printed := printFindings(d.c.out, d.findings); printed != nil {
		return printed
	}
	end := "No fault was found."
	switch n := count[levelFault]; {
	case n == 1:
		end = "There is one fault."
	case n > 1:
		end = fmt.Sprintf("There are %d faults.", n)
	case d.unasked:
		end = "No fault was found, and not everyone could be asked."
	}
	_, printed := fmt.Fprintf(d.c.out, "\n%s\n", end)
	return errors.Join(err, printed)
}

// doctorWidth is where lines end: an operator reads them in a terminal, often a remote one.
const doctorWidth = 80

// printFindings prints them by what they are about. A word that is longer than a line, such
// as an address, is left whole, to be copied.
func printFindings(w io.Writer, all []finding) error {
	p := &page{w: w}
	var order []string
	for _, f := range all {
		if !slices.Contains(order, f.About) {
			order = append(order, f.About)
		}
	}
	row := func(word, text string) {
		for _, line := range wrap(text, doctorWidth-11) {
			p.line("  %-7s  %s", word, line)
			word = ""
		}
	}
	for i, about := range order {
		if i > 0 {
			p.line("")
		}
		p.line("%s", about)
		for _, f := range all {
			if f.About != about {
				continue
			}
			row(f.Level, f.Text)
			if f.Mend != "" {
				row("  mend", f.Mend)
			}
		}
	}
	return p.err
}
