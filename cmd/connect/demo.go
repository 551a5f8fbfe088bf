package main

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/integrations"
)

// The providers' own recorded and published answers; demo/README.md says from where.
//
//go:embed demo/*.json
var demoAnswers embed.FS

// The practice: two reads and a write, with the args of the recorded exchanges.
var demoSteps = []struct {
	service, op string
	words       []string
	say         string
}{
	{"github", "list_issues", []string{"owner=octokit-fixture-org", "repo=paginate-issues", "per_page=3"},
		"A read. GitHub sends all that it knows of three issues; only the listed fields flow back."},
	{"stripe", "list_charges", []string{"limit=3"},
		"Another service, by the same program: what differs is a manifest, which is data."},
	{"github", "open_issue", []string{"owner=octokit-fixture-org", "repo=add-labels-to-issue", "title=Issue without a label"},
		"A write. Nothing is sent before a person confirms this sentence:"},
}

func (c *cli) demoCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See operations run against a practice peer, without an account",
		Long: `Demo starts a small TLS server on this machine that answers what GitHub and Stripe
answered when they were recorded, and runs two reads and one confirmed write against it,
by the same code that "connect op" uses. Nothing leaves this machine.`,
		Args: words(0, 0, "connect demo takes no words"),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.demo(cmd.Context(), yes) },
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "confirm the write without being asked")
	return cmd
}

func (c *cli) demo(ctx context.Context, yes bool) error {
	reg, err := integrations.Default()
	if err != nil {
		return err
	}
	exchanges, err := peer.ReadExchanges(demoAnswers, "demo/*.json")
	if err != nil {
		return err
	}
	var wire wireLog
	hosts := make(map[string]bool)
	var names []string
	for _, step := range demoSteps {
		if h := reg.Get(step.service).Host; !hosts[h] {
			hosts[h] = true
			names = append(names, h)
		}
	}
	srv, err := peer.Start(&peer.Replay{Exchanges: exchanges, Seen: wire.add}, names...)
	if err != nil {
		return fmt.Errorf("the practice peer cannot start: %w", err)
	}
	defer srv.Close()
	exec := &integrations.Executor{RootCAs: srv.Pool(), ConnectTo: make(map[string]string), UserAgent: "connect/" + version()}
	for _, h := range names {
		exec.ConnectTo[h+":443"] = srv.Addr
	}
	defer exec.CloseIdleConnections()

	p := &page{w: c.out}
	p.line("PRACTICE: a peer on %s gives recorded answers for %s.", srv.Addr, strings.Join(names, " and "))
	p.line("Nothing leaves this machine, and the token is made up.")
	// All in one place, so that it reads in order.
	all := &cli{in: c.in, out: c.out, err: c.out}
	term := all.terminal()
	if term != nil {
		defer term.close()
	}
	token := "practice-" + rand.Text()
	for i, step := range demoSteps {
		m := reg.Get(step.service)
		o := m.Op(step.op)
		args, err := parseArgs(o, step.words)
		if err != nil {
			return err
		}
		p.line("\n%d. %s\n", i+1, step.say)
		p.line("$ %s", demoCommandLine(step.service, step.op, step.words))
		r := &runner{c: all, m: m, exec: exec, term: term, yes: yes || term == nil,
			answer: "Yes, answered for you, since this is only practice.",
			cred:   integrations.Credential{Kind: integrations.PAT, Secret: integrations.NewSecret(token)}}
		res, err := r.run(ctx, o, args)
		if errors.Is(err, integrations.ErrRefused) && o.Access == integrations.Write && ctx.Err() == nil {
			p.line("You did not confirm it, so nothing was sent.")
			continue
		}
		if err != nil {
			return err
		}
		sent := 0
		for _, rq := range wire.take() {
			p.line("→ %s https://%s%s", rq.Method, rq.Host, rq.URI)
			p.line("  Authorization: %s", strings.ReplaceAll(rq.Header.Get("Authorization"), token, "[secret]"))
			if len(rq.Body) > 0 {
				p.line("  %s", strings.ReplaceAll(string(rq.Body), token, "[secret]"))
			}
			sent += rq.Sent
		}
		p.line("← %d: %d bytes came, %d flow back:", res.Status, sent, res.Size)
		if err := all.printResult(o, res); err != nil {
			return err
		}
		if res.Next != nil {
			next, err := json.Marshal(res.Next)
			if err != nil {
				return err
			}
			p.line("There is more: the same operation with %s gives the next page.", next)
		}
	}
	p.line("\nNext: connect services, connect show github, and with a token of your own connect op.")
	return p.err
}

func demoCommandLine(service, op string, words []string) string {
	line := []string{"connect", "op", service, op}
	for _, w := range words {
		s, _ := shellWord(w)
		line = append(line, s)
	}
	return strings.Join(line, " ")
}

// A wireLog keeps what the practice peer saw until it is shown.
type wireLog struct {
	mu   sync.Mutex
	seen []peer.Request
}

func (l *wireLog) add(r peer.Request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = append(l.seen, r)
}

func (l *wireLog) take() []peer.Request {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.seen
	l.seen = nil
	return seen
}
