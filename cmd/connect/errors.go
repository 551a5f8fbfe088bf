package main

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/elevenmessenger/connect/integrations"
)

// exits is the one table of exit codes of the whole program, with the error codes of
// --json that end in each.
var exits = []struct {
	code  int
	about string
	codes []string
}{
	{0, "done", nil},
	{1, "findings, or the other side said no", []string{"provider", "rate_limited", "unauthorised"}},
	{2, "usage: the command itself is at fault", []string{codeUsage}},
	{3, "refused: nothing was sent, or nothing but reads", []string{"refused"}},
	{4, "the result is too large; nothing is ever cut", []string{"too_large"}},
	{5, "it is not known whether a write happened", []string{"unknown_outcome"}},
	{6, "the service cannot be reached", []string{"unreachable"}},
	{7, "a person needs to review this", nil},
}

const codeUsage = "usage"

// errUsage is what every error in the command itself is; errFindings what was printed
// already.
var (
	errUsage    = errors.New("usage")
	errFindings = errors.New("findings")
)

func exitCode(err error) int {
	if err == nil {
		return 0
	}
	code := errorCode(err)
	for _, e := range exits {
		if slices.Contains(e.codes, code) {
			return e.code
		}
	}
	return 1
}

// errorCode returns the name that --json gives the error's class, "" where it has none.
func errorCode(err error) string {
	if errors.Is(err, errUsage) {
		return codeUsage
	}
	return integrations.Code(err)
}

func exitCodesHelp() string {
	var b strings.Builder
	b.WriteString("Exit codes of every command, with the error codes that --json gives:\n\n")
	for _, e := range exits {
		fmt.Fprintf(&b, "  %d  %s", e.code, e.about)
		if len(e.codes) > 0 {
			fmt.Fprintf(&b, " (%s)", strings.Join(e.codes, ", "))
		}
		b.WriteByte('\n')
	}
	b.WriteString(`
Ctrl-C ends with 3 at a question, with 6 while a read is under way, and with 5 while a
write is: then it is not known whether it happened. A write with a stored connection is
finished first, and ends as it went; Ctrl-C a second time ends the program at once.`)
	return b.String()
}

// A hintedError says what to do about an error.
type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }

type usageError struct{ error }

func (e usageError) Unwrap() []error { return []error{errUsage, e.error} }

// usagef returns an error in the command itself. It must not repeat what could be a token.
func usagef(hint, format string, args ...any) error {
	return &hintedError{usageError{fmt.Errorf(format, args...)}, hint}
}

var plainWord = regexp.MustCompile(`^[a-z-]{1,20}$`)

// quoted returns ` "s"` where s is a plain word; what could be a token that was given in
// its place is not repeated.
func quoted(s string) string {
	if plainWord.MatchString(s) {
		return fmt.Sprintf(" %q", s)
	}
	return ""
}

// flagError says what is wrong with a flag, without the value that pflag would repeat.
func flagError(cmd *cobra.Command, err error) error {
	hint := cmd.CommandPath() + " --help lists the flags"
	var unknown *pflag.NotExistError
	var empty *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown) && strings.Contains(unknown.GetSpecifiedName(), "token"):
		return usagef(tokenHint, "a token is never an argument")
	case errors.As(err, &unknown):
		return usagef(hint, "there is no such flag%s", quoted(unknown.GetSpecifiedName()))
	case errors.As(err, &empty):
		return usagef(hint, "--%s needs a value", empty.GetFlag().Name)
	case errors.As(err, &invalid):
		return usagef(hint, "--%s takes %s", invalid.GetFlag().Name, invalid.GetFlag().Value.Type())
	}
	return usagef(hint, "a flag has no known form")
}

// report prints an error with its hints, and for --json also as one object.
func (c *cli) report(cmd *cobra.Command, err error, asJSON bool) {
	if errors.Is(err, errFindings) {
		return
	}
	c.note("error: %v", err)
	hints := hintsOf(err)
	for _, h := range hints {
		c.note("hint: %s", h)
	}
	if asJSON && cmd.Flags().Lookup("json") != nil {
		if err := writeJSON(c.out, failure(err, hints)); err != nil {
			c.note("error: %v", err)
		}
	}
}

// hintsOf returns what there is to do about an error.
func hintsOf(err error) []string {
	var hints []string
	var refused *integrations.RefusedError
	if errors.As(err, &refused) && refused.Hint != "" {
		hints = append(hints, refused.Hint)
	}
	for e := err; ; {
		var h *hintedError
		if !errors.As(e, &h) {
			break
		}
		if h.hint != "" {
			hints = append(hints, h.hint)
		}
		e = h.error
	}
	if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
		hints = append(hints, "--cacert names the authority of a server that --connect-to stands in")
	}
	return hints
}

// A failureObject has the shape of a connect.result that went wrong.
type failureObject struct {
	OK    bool `json:"ok"`
	Error struct {
		Code    string          `json:"code"`
		Message string          `json:"message"`
		Details *failureDetails `json:"details,omitempty"`
	} `json:"error"`
}

type failureDetails struct {
	Arg    string     `json:"arg,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
	Status int        `json:"status,omitempty"`
	Size   int64      `json:"size,omitempty"`
}

func failure(err error, hints []string) failureObject {
	var f failureObject
	f.Error.Code = errorCode(err)
	f.Error.Message = strings.Join(append([]string{err.Error()}, hints...), "; ")
	var d failureDetails
	var (
		refused  *integrations.RefusedError
		provider *integrations.ProviderError
		limited  *integrations.RateLimitError
		denied   *integrations.UnauthorisedError
		large    *integrations.TooLargeError
		unknown  *integrations.UnknownOutcomeError
		bot      *botError
	)
	if errors.As(err, &refused) {
		d.Arg = refused.Arg
	}
	if errors.As(err, &provider) {
		d.Status = provider.Status
	}
	if errors.As(err, &denied) {
		d.Status = denied.Status
	}
	if errors.As(err, &limited) {
		d.Status = limited.Status
		if !limited.Until.IsZero() {
			until := limited.Until.UTC().Truncate(time.Second)
			d.Until = &until
		}
	}
	if errors.As(err, &large) {
		d.Arg, d.Size = large.Arg, large.Size
	}
	if errors.As(err, &unknown) {
		d.Status = unknown.Status
	}
	if errors.As(err, &bot) {
		d.Arg, d.Status, d.Size = bot.details.Arg, bot.details.Status, bot.details.Size
		if bot.details.Until != 0 && bot.class == integrations.ErrRateLimited {
			until := unixTime(bot.details.Until)
			d.Until = &until
		}
	}
	if d != (failureDetails{}) {
		f.Error.Details = &d
	}
	return f
}

// writeJSON writes v as one line; numbers and text stay as they are, but that what would act on
// a terminal is escaped.
func writeJSON(w io.Writer, v any) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return err
	}
	_, err := w.Write(escapeJSON(b.Bytes()))
	return err
}

// escapeJSON escapes what JSON may hold as it is and a terminal would act on. It can only
// stand inside a text.
func escapeJSON(data []byte) []byte {
	if !bytes.ContainsFunc(data, escaped) {
		return data
	}
	var out []byte
	for _, r := range string(data) {
		switch {
		case !escaped(r):
			out = utf8.AppendRune(out, r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			out = fmt.Appendf(out, `\u%04x\u%04x`, hi, lo)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
	}
	return out
}

func escaped(r rune) bool { return r != '\n' && unprintable(r) }
