package main

import (
	"errors"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// Every code of docs/protocol.md ends in an exit code, keeps the bot's words, and is advised.
func TestBotFailures(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	b, c := w.bot(t, false), w.one(t)
	again := "connect add github --broker https://broker.test connects it again"
	for _, x := range []struct {
		code  string
		retry int64
		exit  int
		hint  string
	}{
		{"not_mine", 0, 3, ""}, {"version", 0, 3, ""}, {"author", 0, 3, ""}, {"expired", 0, 3, ""}, {"restarted", 30, 3, ""},
		{"service", 0, 3, ""}, {"op", 0, 3, ""}, {"needs_newer_bot", 0, 3, ""}, {"access", 0, 3, ""}, {"args", 0, 3, ""}, {"consent", 0, 3, ""},
		{"ended", 0, 3, ""}, {"busy", 2, 3, ""}, {"refused", 0, 3, ""}, {"no_hand_back", 0, 3, botHint},
		{"needs_pair", 0, 1, "the stored token has ended, or was removed there; " + again},
		{"unauthorised", 0, 1, "the stored token has ended, or was removed there; " + again},
		{"rotated", 0, 1, again}, {"reconnect", 0, 1, again},
		{"temporary", 6, 6, "run the command again in a while; nothing is lost"},
		{"temporary", 30, 1, "run the command again then; nothing is lost"},
		{"misconfigured", 0, 1, "the operator of https://broker.test can mend that, or sign another token for this program, which --broker-token-file takes; nothing is lost"},
		{"provider", 0, 1, ""}, {"rate_limited", 9, 1, ""}, {"too_large", 0, 4, ""}, {"unreachable", 0, 6, ""}, {"unknown_outcome", 0, 5, ""},
		{"of_another_version", 0, 3, ""},
	} {
		err := b.failure(t.Context(), c, &custody.ResultError{Code: x.code, Message: "the bot's words", RetryAfter: x.retry})
		hints := hintsOf(err)
		if got := exitCode(err); got != x.exit || x.hint == "" && len(hints) > 0 || x.hint != "" && (len(hints) != 1 || hints[0] != x.hint) {
			t.Errorf("%s: exit code %d, want %d; hints %q", x.code, got, x.exit, hints)
		}
		if say := err.Error(); x.code != "needs_pair" && len(say) < len("the bot's words") {
			t.Errorf("%s says %q", x.code, say)
		}
	}
	if f := failure(b.failure(t.Context(), c, &custody.ResultError{Code: "args", Message: "title: too long", Details: &custody.ResultDetails{Arg: "title"}}), nil); f.Error.Code != "refused" || f.Error.Details == nil || f.Error.Details.Arg != "title" {
		t.Errorf("an arg: %+v", f.Error)
	}
}

// What a bot is given are the args in their one form: bound again they are the same.
func TestArgsBoundAgain(t *testing.T) {
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, m := range reg.All() {
		for _, o := range m.Ops {
			values := make(map[string]string)
			for _, a := range o.Args {
				if a.Connection != "" {
					values[a.Connection] = "7"
				}
			}
			call, err := m.Bind(o.Name, sample(o), values)
			if err != nil {
				continue // what a sample does not fit
			}
			n++
			twice, err := m.Bind(o.Name, integrations.Args(call.Args()), values)
			if err != nil {
				t.Errorf("%s %s: %v", m.ID, o.Name, err)
				continue
			}
			a, err1 := custody.ArgsDigest(call)
			b, err2 := custody.ArgsDigest(twice)
			if err := errors.Join(err1, err2); err != nil || a != b || custody.SayDigest(call) != custody.SayDigest(twice) {
				t.Errorf("%s %s: bound again it is another call (%v)", m.ID, o.Name, err)
			}
		}
	}
	if n < 50 {
		t.Errorf("only %d operations were tried", n)
	}
}

// sample gives every arg that a plain value fits.
func sample(o *integrations.Op) integrations.Args {
	args := make(integrations.Args)
	for _, a := range o.Args {
		if !a.Required() && len(o.OneOf) > 0 {
			continue
		}
		switch a.Kind() {
		case "integer", "number", "id":
			args[a.Name] = "7"
		case "boolean":
			args[a.Name] = "true"
		case "enum":
			args[a.Name] = a.Values[0]
		case "date":
			args[a.Name] = "2026-12-02"
		case "datetime":
			args[a.Name] = "2026-12-02T09:00:00+02:00"
		case "list", "map":
		default:
			args[a.Name] = "a@example.com"
			if a.Pattern != "" {
				args[a.Name] = "abc"
			}
		}
	}
	if len(o.OneOf) > 0 {
		args[o.OneOf[0]] = "7"
	}
	return args
}
