package main

import (
	"fmt"
	"io"
	"net/url"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

func (c *cli) showCommand() *cobra.Command {
	var registry registryFlag
	cmd := &cobra.Command{
		Use:               "show SERVICE [OPERATION]",
		Short:             "Tell in words what a service or one of its operations can do",
		Args:              words(1, 2, "connect services lists the services"),
		ValidArgsFunction: registry.complete(c, false),
		RunE: func(_ *cobra.Command, args []string) error {
			reg, err := registry.load(c)
			if err != nil {
				return err
			}
			m, err := service(reg, args[0])
			if err != nil {
				return err
			}
			p := &page{w: c.out}
			if len(args) == 1 {
				p.service(m)
				c.note("\nconnect show %s OPERATION tells what one takes and gives back.", m.ID)
				return p.err
			}
			o, err := operation(m, args[1])
			if err != nil {
				return err
			}
			p.operation(m, o)
			return p.err
		},
	}
	registry.add(cmd)
	return cmd
}

// pageWidth is where lines are broken.
const pageWidth = 96

// A page writes text for people and keeps the first error.
type page struct {
	w   io.Writer
	err error
}

func (p *page) line(format string, args ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", args...)
	}
}

// rows writes pairs of name and text in two columns, the texts broken between words.
func (p *page) rows(rows [][2]string) {
	width := 0
	for _, r := range rows {
		width = max(width, utf8.RuneCountInString(r[0]))
	}
	for _, r := range rows {
		name := r[0]
		for _, text := range wrap(r[1], pageWidth-width-4) {
			p.line("  %s", strings.TrimRight(fmt.Sprintf("%-*s  %s", width, name, text), " "))
			name = ""
		}
	}
}

// para writes a text under its heading.
func (p *page) para(heading, text string) {
	p.line("\n%s", heading)
	p.text(text)
}

// text writes a text, broken between words.
func (p *page) text(s string) {
	for _, l := range wrap(s, pageWidth-2) {
		p.line("  %s", l)
	}
}

func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.Fields(s) {
		if line != "" && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width {
			lines = append(lines, line)
			line = ""
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}

func (p *page) service(m *integrations.Manifest) {
	p.line("%s (%s %s)", m.Name, m.ID, m.Version)
	p.line("%s", m.About)
	p.line("Everything is sent to %s, and nowhere else.", m.Host)

	if a := m.Auth.Authorization; a.Scheme != "no" {
		p.line("\nConnect by a token")
		if m.Auth.PATHelp != "" {
			p.line("  It is made at %s", m.Auth.PATHelp)
		}
		for i, step := range m.Auth.PATSteps {
			p.line("  %d. %s", i+1, step)
		}
		var rows [][2]string
		for _, f := range m.Auth.PastedFields {
			rows = append(rows, [2]string{"--field " + f.Name + "=…", "beside it: " + f.Label})
		}
		for _, r := range m.Auth.Pasted {
			verdict := map[string]string{"good": "taken", "warn": "taken with a warning", "refuse": "refused"}[r.Verdict]
			rows = append(rows, [2]string{r.Prefix + "…", join(": ", verdict, r.Say)})
		}
		p.rows(rows)
	}
	if oa := m.Auth.OAuth; oa != nil {
		p.line("\nConnect by OAuth")
		if oa.Say != "" {
			p.text(oa.Say)
		}
		p.rows([][2]string{
			{"consent at", hostOf(oa.AuthorizeURL)},
			{"to read", scopes(oa.Scopes)},
			{"to write too", scopes(oa.ScopesWrite)},
			{"to end it", ending(oa.Revoke)},
		})
	}

	for _, part := range []struct {
		heading string
		access  integrations.Access
	}{{"It can read", integrations.Read}, {"It can change, each time after a person confirms", integrations.Write}} {
		var rows [][2]string
		for _, o := range m.Ops {
			if o.Access != part.access {
				continue
			}
			text := join(". ", o.Title, o.About)
			if w := effectWords(o); w != "" {
				text += " [" + strings.TrimSuffix(strings.ToLower(w), ".") + "]"
			}
			rows = append(rows, [2]string{o.Name, text})
		}
		if len(rows) > 0 {
			p.line("\n%s", part.heading)
			p.rows(rows)
		}
	}
}

func (p *page) operation(m *integrations.Manifest, o *integrations.Op) {
	kind := "reads only"
	if o.Access == integrations.Write {
		kind = "changes something"
	}
	p.line("%s: %s (%s)", m.Name, o.Title, kind)
	if o.About != "" {
		p.line("%s", o.About)
	}
	if o.Deprecated != nil {
		p.line("Deprecated since %s. %s", o.Deprecated.Since, join(" ", o.Deprecated.Note, prefixed("Use instead: ", o.Deprecated.Use)))
	}
	p.line("\n  %s https://%s%s", o.Method, m.Host, o.Path)
	if o.IsGraphQL() {
		p.line("  a fixed GraphQL document, to which only variables are given")
	} else if o.SafePost != "" {
		p.line("  a POST that only reads: %s", o.SafePost)
	}

	if len(o.Args) > 0 {
		p.line("\nIt takes")
		var rows [][2]string
		for _, a := range o.Args {
			rows = append(rows, argRows(a, "")...)
		}
		p.rows(rows)
	}
	if len(o.OneOf) > 0 {
		p.text("Exactly one of these is given: " + strings.Join(o.OneOf, ", "))
	}

	if o.Access == integrations.Write {
		p.line("\nA person confirms")
		rows := [][2]string{}
		if o.Preview != nil {
			rows = append(rows, [2]string{"from " + o.Preview.Op, o.Preview.Say})
		}
		rows = append(rows, [2]string{"always", o.Confirm})
		for _, ci := range o.ConfirmIf {
			rows = append(rows, [2]string{"with " + ci.Name, ci.Value})
		}
		p.rows(rows)
		if w := effectWords(o); w != "" {
			p.line("  %s", w)
		}
		if o.Has(integrations.Irreversible) {
			p.line("  The person types the %s.", strings.ReplaceAll(o.Target, "_", " "))
		}
		if o.Idempotency != nil && o.Idempotency.Header != "" {
			p.line("  It carries an idempotency key, so that a second try is harmless.")
		}
	}

	if o.Pick.Nothing != "" {
		p.para("Nothing flows back", o.Pick.Nothing)
	} else {
		heading := "What flows back, and nothing else"
		if o.Pick.Root != "" {
			heading += ", from " + o.Pick.Root
		}
		p.line("\n%s", heading)
		var rows [][2]string
		for _, f := range o.Pick.Fields {
			rows = append(rows, [2]string{f.Path, fieldWords(f)})
		}
		p.rows(rows)
	}
	if o.Next != nil {
		p.line("  A list that goes on says %s for its next page.", o.Next.Arg)
	}
	if len(o.Scopes) > 0 {
		p.para("Scopes that it needs", strings.Join(o.Scopes, ", "))
	}
	p.para("How it was proved", proof(o.Status))

	words := []string{"connect op", m.ID, o.Name}
	for _, a := range o.Args {
		if a.Required() {
			words = append(words, a.Name+"=…")
		}
	}
	p.line("\n%s --token-env NAME", strings.Join(words, " "))
}

// proof says how an operation was checked against the provider.
func proof(s *integrations.Status) string {
	if s == nil {
		return "not checked against a response or schema; only the provider's documentation was read"
	}
	words := map[string]string{
		"example": "checked against the provider's recorded or published response",
		"schema":  "checked against a response generated from the provider's schema",
		"live":    "checked with a real account",
	}[s.Checked]
	return join(", ", words, s.Date)
}

// argRows describes an arg, and each field of the objects that a list holds.
func argRows(a *integrations.Arg, under string) [][2]string {
	rows := [][2]string{{under + a.Name, join("; ", argWords(a), need(a), a.About)}}
	if a.Of != nil {
		for _, f := range a.Of.Object {
			rows = append(rows, argRows(f, under+a.Name+"[].")...)
		}
	}
	return rows
}

// argWords says what an arg may be.
func argWords(a *integrations.Arg) string {
	var s string
	switch a.Kind() {
	case "integer":
		s = "whole number" + bounds(a, " from %s to %s", " from %s", " up to %s")
	case "number":
		s = "number" + bounds(a, " from %s to %s", " from %s", " up to %s")
	case "boolean":
		s = "true or false"
	case "date":
		s = "date such as 2026-12-02"
	case "datetime":
		s = "date and time such as 2026-12-02T15:04:05Z"
	case "enum":
		var values []string
		for _, v := range a.Values {
			if w, ok := a.Words.Get(v); ok && w != v {
				v += " (" + w + ")"
			}
			values = append(values, v)
		}
		s = "one of: " + strings.Join(values, ", ")
	case "list":
		s = "list"
		if a.MaxItems > 0 {
			s += fmt.Sprintf(" of at most %d", a.MaxItems)
		}
		switch {
		case a.Of != nil && a.Of.Object != nil:
			s += ", each an object, given as " + a.Name + ":=JSON"
		case a.Of != nil && a.Of.Arg != nil:
			s += ", each " + argWords(a.Of.Arg)
		default:
			s += ", each text"
		}
	case "map":
		s = "map"
		if a.MaxItems > 0 {
			s += fmt.Sprintf(" of at most %d", a.MaxItems)
		}
		s += ", given as " + a.Name + "=key=value"
	case "id":
		s = "id of letters, digits, _ and -" + bounds(a, ", %s to %s of them", ", at least %s", ", at most %s")
	case "path":
		s = "path of several segments" + bounds(a, ", %s to %s characters", ", at least %s characters", ", at most %s characters")
	default:
		s = "text" + bounds(a, " of %s to %s characters", " of at least %s characters", " of at most %s characters")
	}
	if a.Pattern != "" {
		s += " of the form " + a.Pattern
	}
	if a.Money != nil {
		s += ", an amount in the currency's smallest unit"
	}
	return s
}

func bounds(a *integrations.Arg, both, least, most string) string {
	switch {
	case a.Min != nil && a.Max != nil:
		return fmt.Sprintf(both, a.Min.Text, a.Max.Text)
	case a.Min != nil:
		return fmt.Sprintf(least, a.Min.Text)
	case a.Max != nil:
		return fmt.Sprintf(most, a.Max.Text)
	}
	return ""
}

// need says when an arg may be left out.
func need(a *integrations.Arg) string {
	var s string
	switch {
	case a.Connection != "":
		s = "found by itself where the token reaches only one"
	case a.Default != nil:
		s = a.Default.Text + " unless said"
	case a.Optional:
		s = "optional"
	}
	if a.Clear {
		s = join(", ", s, "null clears")
	}
	return s
}

// fieldWords says what a picked field is.
func fieldWords(f integrations.Field) string {
	var kind string
	switch {
	case f.Money != nil && f.Money.Currency != "":
		kind = "an amount in the smallest unit of " + f.Money.Currency
	case f.Money != nil:
		kind = "an amount in the currency's smallest unit"
	case f.Time == "epoch_s":
		kind = "a time, in seconds since 1970"
	case f.Time == "epoch_ms":
		kind = "a time, in milliseconds since 1970"
	case f.Time != "":
		kind = "a time"
	default:
		kind = f.Type
	}
	return join("; ", kind, f.About, f.Why)
}

func scopes(list []string) string {
	if len(list) == 0 {
		return "no scopes are asked for"
	}
	return strings.Join(list, ", ")
}

// ending says how a connection is ended at the provider.
func ending(r *integrations.Revoke) string {
	switch {
	case r == nil:
		return "not by a call"
	case r.None != "":
		return r.None
	}
	return map[string]string{
		"token":   "by a call that ends this token",
		"account": "by a call that ends the account's whole connection to the app",
		"app":     "by a call that ends the app's whole installation",
	}[r.Reach]
}

func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Host
}

// join puts sep between the texts that are not empty.
func join(sep string, texts ...string) string {
	var some []string
	for _, t := range texts {
		if t != "" {
			some = append(some, t)
		}
	}
	return strings.Join(some, sep)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}
