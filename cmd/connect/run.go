package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A runner runs operations of one service with one credential, and asks before a write.
type runner struct {
	c    *cli
	term *terminal // nil where nobody can be asked
	exec *integrations.Executor
	m    *integrations.Manifest
	cred integrations.Credential // of a stored connection no more than what it has learnt
	bot  *localBot               // runs what is done with a stored connection; nil where the token is given otherwise

	yes    bool
	answer string // what is printed instead of the question, where yes
}

// run runs one operation: what the connection must learn first, the question before a
// write, then the call.
func (r *runner) run(ctx context.Context, o *integrations.Op, args integrations.Args) (*integrations.Result, error) {
	if err := r.learn(ctx, o, args); err != nil {
		return nil, err
	}
	call, err := r.m.Bind(o.Name, args, r.cred.Connection)
	if err != nil {
		return nil, err
	}
	var shown *integrations.Result
	if o.Access == integrations.Write {
		if shown, err = r.confirm(ctx, call); err != nil {
			return nil, err
		}
	}
	res, err := r.do(ctx, call, shown)
	if be := new(botError); shown != nil && errors.As(err, &be) && be.code == custody.CodeConsent {
		_, say, err := r.preview(ctx, call)
		return nil, changed(say, err)
	}
	return res, err
}

// do runs a call. shown is what a person was shown where that is part of the consent: then a
// local bot looks again right before it writes.
func (r *runner) do(ctx context.Context, call *integrations.Call, shown *integrations.Result) (*integrations.Result, error) {
	if r.bot != nil {
		return r.bot.do(ctx, call, r.cred.Connection, shown)
	}
	return r.exec.Do(ctx, call, r.cred)
}

// read runs a read of the manifest's own.
func (r *runner) read(ctx context.Context, op string) (*integrations.Result, error) {
	call, err := r.m.Bind(op, nil, r.cred.Connection)
	if err != nil {
		return nil, err
	}
	return r.do(ctx, call, nil)
}

// check finds what is wrong with the args before a token is asked for or anything is
// sent, and whether a write can be confirmed at all.
func (r *runner) check(o *integrations.Op, args integrations.Args) error {
	// What the connection is still to learn is stood in for: its own form is looked at
	// when it is known.
	var missing []*integrations.Arg
	standIn := make(map[string]string)
	for _, a := range o.Args {
		if _, given := args[a.Name]; !given && a.Connection != "" {
			missing = append(missing, a)
			standIn[a.Connection] = "1"
		}
	}
	_, err := r.m.Bind(o.Name, args, standIn)
	var refused *integrations.RefusedError
	if errors.As(err, &refused) {
		for _, a := range missing {
			if refused.Arg == a.Name {
				err = nil
			}
		}
	}
	if err != nil {
		return &hintedError{err, fmt.Sprintf("connect show %s %s tells its args", r.m.ID, o.Name)}
	}
	if o.Access == integrations.Write && !r.yes && r.term == nil {
		return &integrations.RefusedError{Reason: "this changes something, and there is no terminal to ask on", Hint: "--yes confirms it without being asked"}
	}
	return nil
}

// maxChoices is how many choices a message lists.
const maxChoices = 20

// learn fills what the connection must know for an operation and the caller left out, by
// the manifest's own reads. Of several choices none is taken.
func (r *runner) learn(ctx context.Context, o *integrations.Op, args integrations.Args) error {
	for _, a := range o.Args {
		if _, given := args[a.Name]; given || a.Connection == "" {
			continue
		}
		if _, known := r.cred.Connection[a.Connection]; known {
			continue
		}
		for _, cn := range r.m.Connect {
			if cn.Name != a.Connection {
				continue
			}
			res, err := r.read(ctx, cn.Op)
			if err != nil {
				return &hintedError{fmt.Errorf("looking up %s: %w", a.Name, err), "or give it: " + a.Name + "=…"}
			}
			all, err := choices(cn, res)
			if err != nil {
				return err
			}
			switch {
			case len(all) == 0:
				return &integrations.RefusedError{Arg: a.Name, Reason: "this token reaches none"}
			case len(all) > 1 || res.Next != nil:
				return &integrations.RefusedError{Arg: a.Name, Reason: "this token reaches several: " + listed(all), Hint: "say which: " + a.Name + "=" + all[0].value}
			}
			if r.cred.Connection == nil {
				r.cred.Connection = make(map[string]string)
			}
			r.cred.Connection[cn.Name] = all[0].value
			r.c.note("note: %s is %s, the only one that this token reaches", a.Name, all[0])
		}
	}
	return nil
}

// A choice is a value that a connection can learn.
type choice struct{ value, label string }

// String is one short line: both parts are the service's words.
func (c choice) String() string {
	value, label := oneLine(c.value), oneLine(c.label)
	if label == "" || label == value {
		return value
	}
	return value + " (" + label + ")"
}

// oneLine keeps a service's words from looking like lines of our own.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(printable(s)), " ")
	if r := []rune(s); len(r) > 80 {
		return string(r[:79]) + "…"
	}
	return s
}

func listed(all []choice) string {
	var texts []string
	for i, ch := range all {
		if i == maxChoices {
			texts = append(texts, fmt.Sprintf("and %d more", len(all)-i))
			break
		}
		texts = append(texts, ch.String())
	}
	return strings.Join(texts, ", ")
}

// choices reads what the manifest says of them in what was picked.
func choices(cn *integrations.Connect, res *integrations.Result) ([]choice, error) {
	v, err := decode(res.JSON)
	if err != nil {
		return nil, err
	}
	items, isList := v.([]any)
	if !isList && v != nil {
		items = []any{v}
	}
	var all []choice
	for _, it := range items {
		if value := textAt(it, cn.Value); value != "" {
			all = append(all, choice{value, textAt(it, cn.Label)})
		}
	}
	return all, nil
}

// textAt returns the scalar at a dot path, "" where there is none.
func textAt(v any, path string) string {
	for _, seg := range strings.Split(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return ""
		}
		v = m[seg]
	}
	switch v := v.(type) {
	case string:
		return v
	case json.Number:
		return v.String()
	}
	return ""
}

// decode reads JSON with the digits of its numbers.
func decode(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	var v any
	err := dec.Decode(&v)
	return v, err
}

// confirm shows a person what a write will do, and returns no error when it may be done. What
// was shown comes back where the write must still find it so.
func (r *runner) confirm(ctx context.Context, call *integrations.Call) (shown *integrations.Result, err error) {
	o := call.Op
	grave := o.Has(integrations.Money) || o.Has(integrations.Irreversible)
	var out io.Writer = r.c.err
	if !r.yes && r.term != nil {
		out = r.term
	}
	before, say, err := r.preview(ctx, call)
	switch {
	case err != nil && grave:
		return nil, fmt.Errorf("what it would do could not be looked up, so nothing was changed: %w", err)
	case err != nil:
		fmt.Fprintf(out, "What is there now could not be looked up: %v\n", err)
	case say != "":
		fmt.Fprintln(out, say)
	}
	sentence := call.Sentence()
	fmt.Fprintln(out, sentence.Text)
	showRest(out, sentence.Rest, o.Has(integrations.Irreversible))
	if w := effectWords(o); w != "" {
		fmt.Fprintln(out, w)
	}
	if r.yes {
		fmt.Fprintln(out, r.answer)
	} else if err := r.ask(ctx, call); err != nil {
		return nil, err
	}
	switch {
	case !grave || before == nil:
		return nil, nil
	case r.bot != nil:
		return before, nil
	}
	// The answer took a person's time; what was shown must still be so.
	now, say, err := r.preview(ctx, call)
	if err != nil {
		return nil, fmt.Errorf("what it would do could not be looked up again, so nothing was changed: %w", err)
	}
	if same, err := equalJSON(before.JSON, now.JSON); err != nil || !same {
		return nil, changed(say, nil)
	}
	return before, nil
}

// changed refuses a write that a person has seen otherwise. say is how it reads now, where
// that could be looked up.
func changed(say string, err error) error {
	reason := "it is not as it was shown any more"
	if err == nil && say != "" {
		reason += ". It now reads: " + strings.TrimSuffix(say, ".")
	}
	return &integrations.RefusedError{Reason: reason, Hint: "run the command again, if this is still what you want"}
}

// preview runs the operation's preview, and returns nil and "" where it has none.
func (r *runner) preview(ctx context.Context, call *integrations.Call) (*integrations.Result, string, error) {
	p, err := call.Preview()
	if p == nil || err != nil {
		return nil, "", err
	}
	res, err := r.do(ctx, p, nil)
	if err != nil {
		return nil, "", err
	}
	say, err := call.Say(res)
	if err != nil {
		return nil, "", err
	}
	return res, say, nil
}

func equalJSON(a, b []byte) (bool, error) {
	va, err := decode(a)
	if err != nil {
		return false, err
	}
	vb, err := decode(b)
	return reflect.DeepEqual(va, vb), err
}

// ask returns nil when a person agrees.
func (r *runner) ask(ctx context.Context, call *integrations.Call) error {
	no := &integrations.RefusedError{Reason: "it was not confirmed"}
	if call.Op.Has(integrations.Irreversible) {
		s, err := r.term.line(ctx, fmt.Sprintf("Type the %s to go ahead: ", strings.ReplaceAll(call.Op.Target, "_", " ")))
		if err != nil || s != call.TargetValue() {
			return no
		}
		return nil
	}
	prompt := "[y/N] "
	var long []integrations.Shown
	for _, sh := range call.Sentence().Rest {
		if sh.Text != sh.Full {
			long = append(long, sh)
		}
	}
	if len(long) > 0 {
		prompt = "[y/N, a: show all] "
	}
	for {
		s, err := r.term.line(ctx, prompt)
		switch {
		case err != nil:
			return no
		case strings.EqualFold(s, "y") || strings.EqualFold(s, "yes"):
			return nil
		case strings.EqualFold(s, "a") && len(long) > 0:
			showRest(r.term, long, true)
		default:
			return no
		}
	}
}

// showRest prints the args that the sentence does not show whole.
func showRest(w io.Writer, rest []integrations.Shown, full bool) {
	for _, sh := range rest {
		switch {
		case full || sh.Text == sh.Full:
			fmt.Fprintf(w, "  %s: %s\n", sh.Arg, sh.Full)
		default:
			fmt.Fprintf(w, "  %s: %s (%d characters)\n", sh.Arg, sh.Text, sh.Length)
		}
	}
}

// effectWords says what a write does beyond itself.
func effectWords(o *integrations.Op) string {
	var words []string
	for _, e := range []struct{ effect, words string }{
		{integrations.Visible, "others see it"},
		{integrations.Money, "it moves money"},
		{integrations.Irreversible, "it cannot be undone"},
	} {
		if o.Has(e.effect) {
			words = append(words, e.words)
		}
	}
	if len(words) == 0 {
		return ""
	}
	s := strings.Join(words, "; ") + "."
	return strings.ToUpper(s[:1]) + s[1:]
}
