package integrations

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// The classes of failure of an operation. Each error of this package's executor is one
// of them for [errors.Is]; the structs beside them hold the facts for [errors.As].
var (
	// ErrRefused means that nothing was sent.
	ErrRefused = errors.New("refused before sending")
	// ErrProvider means that the service answered no.
	ErrProvider = errors.New("the service said no")
	// ErrRateLimited means that the service asks to wait.
	ErrRateLimited = errors.New("the service asks to wait")
	// ErrUnauthorised means that the service did not accept the credential.
	ErrUnauthorised = errors.New("the service did not accept the credential")
	// ErrTooLarge means that what was picked does not fit in one message.
	ErrTooLarge = errors.New("the result is too large")
	// ErrUnknownOutcome means that a write may or may not have happened.
	ErrUnknownOutcome = errors.New("the outcome is unknown")
	// ErrUnreachable means that the service could not be reached; nothing was sent.
	ErrUnreachable = errors.New("the service cannot be reached")
)

// Code returns the protocol's name of the class of err: refused, provider,
// rate_limited, unauthorised, too_large, unknown_outcome or unreachable. It returns ""
// for an error of no class.
func Code(err error) string {
	for _, c := range []struct {
		err  error
		code string
	}{
		// A write whose outcome is unknown stays that, whatever kept its answer away.
		{ErrUnknownOutcome, "unknown_outcome"}, {ErrRefused, "refused"}, {ErrRateLimited, "rate_limited"},
		{ErrUnauthorised, "unauthorised"}, {ErrTooLarge, "too_large"}, {ErrUnreachable, "unreachable"},
		{ErrProvider, "provider"},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return ""
}

// A RefusedError says why nothing was sent.
type RefusedError struct {
	Arg    string // the arg that is at fault; "" where it is none
	Reason string // what is wrong with it, never its value
	Hint   string // what to do; may be ""
}

func (e *RefusedError) Error() string {
	s := e.Reason
	if e.Arg != "" {
		s = e.Arg + ": " + s
	}
	return s + "; nothing was sent"
}

// Unwrap makes the error an [ErrRefused].
func (e *RefusedError) Unwrap() error { return ErrRefused }

// A ProviderError says that the service refused, or answered something else than its
// manifest says.
type ProviderError struct {
	Service string // the manifest's name
	Status  int    // the HTTP status
	Message string // the one message that may flow back, at most 500 characters; may be ""
	Say     string // the manifest's own words for the status; may be ""
	Err     error  // what is wrong with the answer; nil where the service said no in order
}

func (e *ProviderError) Error() string {
	var b strings.Builder
	if e.Err != nil {
		fmt.Fprintf(&b, "%s answered %d, but %v", e.Service, e.Status, e.Err)
	} else {
		fmt.Fprintf(&b, "%s said no (%d)", e.Service, e.Status)
	}
	if e.Message != "" {
		b.WriteString(": " + e.Message)
	}
	if e.Say != "" {
		b.WriteString(" (" + e.Say + ")")
	}
	return b.String()
}

// Unwrap makes the error an [ErrProvider], and what Err is.
func (e *ProviderError) Unwrap() []error { return withCause(ErrProvider, e.Err) }

// A RateLimitError says until when to wait.
type RateLimitError struct {
	Service string
	Status  int
	Until   time.Time // zero where the service did not say
	Message string
}

func (e *RateLimitError) Error() string {
	s := e.Service + " asks to wait"
	if !e.Until.IsZero() {
		s += " until " + e.Until.UTC().Format("2006-01-02 15:04:05 UTC")
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Unwrap makes the error an [ErrRateLimited].
func (e *RateLimitError) Unwrap() error { return ErrRateLimited }

// An UnauthorisedError says that the service did not accept the credential.
type UnauthorisedError struct {
	Service string
	Status  int
	Message string
}

func (e *UnauthorisedError) Error() string {
	s := fmt.Sprintf("%s did not accept the token (%d)", e.Service, e.Status)
	if e.Message != "" {
		s += ": " + e.Message
	}
	return s
}

// Unwrap makes the error an [ErrUnauthorised].
func (e *UnauthorisedError) Unwrap() error { return ErrUnauthorised }

// A TooLargeError says that the picked result does not fit in one message, or the
// answer was larger than is read at all. Nothing is ever cut.
type TooLargeError struct {
	Size  int64  // bytes that were picked; where Raw, the bytes that were read before giving up
	Limit int64  // bytes that fit
	Arg   string // the arg that would make it smaller; "" where there is none
	Raw   bool   // it was the whole answer, not what was picked, that was over its limit
}

func (e *TooLargeError) Error() string {
	var s string
	if e.Raw {
		s = "the answer is larger than " + group(e.Limit) + " bytes, which is more than is read"
	} else {
		s = "the result has " + group(e.Size) + " bytes and " + group(e.Limit) + " fit in one message"
	}
	if e.Arg != "" {
		s += "; a smaller " + e.Arg + " makes it smaller"
	}
	return s
}

// Unwrap makes the error an [ErrTooLarge].
func (e *TooLargeError) Unwrap() error { return ErrTooLarge }

// An UnknownOutcomeError says that a write was sent and its answer lost. It was not
// sent again, unless Repeated.
type UnknownOutcomeError struct {
	Service  string
	Status   int    // 0 where no answer came
	Message  string // the service's message, where an answer came
	Repeated bool   // it was tried again, under an idempotency key that makes that harmless
	Err      error
}

func (e *UnknownOutcomeError) Error() string {
	s := "it is not known whether this happened: "
	switch {
	case e.Status >= 200 && e.Status < 300 && e.Err == nil:
		s += fmt.Sprintf("%s says both that it was done (%d) and that something failed", e.Service, e.Status)
	case e.Status >= 200 && e.Status < 300:
		s += fmt.Sprintf("%s accepted it (%d), but its answer could not be read", e.Service, e.Status)
	case e.Status != 0:
		s += fmt.Sprintf("%s answered %d", e.Service, e.Status)
	default:
		s += "it was sent and no answer came from " + e.Service
	}
	if e.Message != "" {
		s += ": " + e.Message
	}
	if e.Repeated {
		return s + "; it was tried again under the same idempotency key, so it happened at most once; look there before asking again"
	}
	return s + "; it was not tried again, look there first"
}

// Unwrap makes the error an [ErrUnknownOutcome], and what Err is.
func (e *UnknownOutcomeError) Unwrap() []error { return withCause(ErrUnknownOutcome, e.Err) }

// An UnreachableError says that the service could not be reached. Of a write nothing
// was sent; a read may have been, and harms nothing.
type UnreachableError struct {
	Service string
	Err     error
}

func (e *UnreachableError) Error() string {
	return fmt.Sprintf("%s cannot be reached: %v", e.Service, e.Err)
}

// Unwrap makes the error an [ErrUnreachable], and what Err is.
func (e *UnreachableError) Unwrap() []error { return withCause(ErrUnreachable, e.Err) }

func withCause(class, cause error) []error {
	if cause == nil {
		return []error{class}
	}
	return []error{class, cause}
}

// group writes n with a comma every three digits.
func group(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
