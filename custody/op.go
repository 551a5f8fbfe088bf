package custody

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/elevenmessenger/connect/integrations"
)

// An Op asks a bot to run one operation. Its id is the op of the envelope around it; Grant
// is an envelope of its own inside.
type Op struct {
	V       int             `json:"v"`
	ID      string          `json:"id"`
	Service string          `json:"service"`
	Op      string          `json:"op"`
	Args    json.RawMessage `json:"args"` // an object
	Grant   *Envelope       `json:"grant"`
}

// A Result answers an Op. It goes to the from of the grant, whoever posted the op.
type Result struct {
	V        int             `json:"v"`
	ID       string          `json:"id"` // the op's
	OK       bool            `json:"ok"`
	Result   json.RawMessage `json:"result,omitzero"` // what was picked; may be null
	Error    *ResultError    `json:"error,omitzero"`
	Next     json.RawMessage `json:"next,omitzero"` // the args that ask for the next page
	Handback *Envelope       `json:"handback,omitzero"`
}

// A ResultError says in a code and in words why an operation did not go through.
// docs/protocol.md lists the codes.
type ResultError struct {
	Code       string         `json:"code"`
	Message    string         `json:"message"`
	RetryAfter int64          `json:"retry_after,omitzero"` // seconds
	Details    *ResultDetails `json:"details,omitzero"`
}

// ResultDetails are the facts of an error.
type ResultDetails struct {
	Arg    string    `json:"arg,omitzero"`
	Until  int64     `json:"until,omitzero"` // seconds since 1970 UTC
	Status int       `json:"status,omitzero"`
	Size   int64     `json:"size,omitzero"`  // bytes
	Proof  *Digest   `json:"proof,omitzero"` // of CodeRotated alone: see RotatedProof
	Day    PublicKey `json:"day,omitzero"`   // of CodeDay alone: the present key of the day, until Until
}

// The codes of a result's error that come before the operation itself, beside
// [integrations.Code]: docs/protocol.md, section 7.
const (
	CodeNotMine       = "not_mine"
	CodeVersion       = "version"
	CodeAuthor        = "author"
	CodeExpired       = "expired"
	CodeRestarted     = "restarted"
	CodeService       = "service"
	CodeOp            = "op"
	CodeNeedsNewer    = "needs_newer_bot"
	CodeAccess        = "access"
	CodeArgs          = "args"
	CodeConsent       = "consent"
	CodeEnded         = "ended"
	CodeBusy          = "busy"
	CodeNoHandBack    = "no_hand_back"
	CodeNeedsPair     = "needs_pair"
	CodeReconnect     = "reconnect"
	CodeTemporary     = "temporary"
	CodeMisconfigured = "misconfigured"

	// Of integrations.Code, those that a sidecar says by itself too.
	CodeRefused  = "refused"
	CodeTooLarge = "too_large"
	CodeUnknown  = "unknown_outcome"

	// Two carry something of their own.
	CodeRotated = "rotated" // the hand-back beside it is the newest pair, for whoever came with an old one
	CodeDay     = "day"     // the op was sealed to a key of another day
)

// ErrAuthor means that a grant was sealed by another member, for another thread or for
// another op than the message that carries it.
var ErrAuthor = errors.New("granted to another message than the one that carries it")

// OpenGrant opens the grant that an op carries. e is the envelope in which the op came,
// which bot has opened already, and member the key for its from. A grant that was lifted
// from another member's message, another space or thread, or another op, is refused.
func (o *Op) OpenGrant(bot *Identity, e *Envelope, member PublicKey, day *Identity) (*Grant, error) {
	g, err := openCarried(o.Grant, bot, e, member, day)
	if err != nil {
		return nil, err
	}
	if g.Use == UseOnce && g.Once == nil {
		return nil, fmt.Errorf("%w grant: it is for a revoke, not for an op", ErrMalformed)
	}
	return g, nil
}

func openCarried(grant *Envelope, bot *Identity, e *Envelope, member PublicKey, day *Identity) (*Grant, error) {
	if grant.To != bot.id {
		return nil, ErrNotMine
	}
	if grant.From != e.From || grant.Space != e.Space || grant.Thread != e.Thread || grant.Op != "" && grant.Op != e.Op {
		return nil, ErrAuthor
	}
	return OpenGrant(bot, grant, member, day) // which holds the empty op to every use but once
}

// SealResult seals a result with its hand-back. Where both do not fit in one message the
// hand-back goes first, as a message of its own: what is returned is sent in its order,
// also beside an error, since a fresh pair must reach its member in any case.
func (i *Identity) SealResult(to PublicKey, h Header, r *Result) ([]*Envelope, error) {
	e, err := i.SealMessage(to, nil, h, r)
	if err == nil {
		return []*Envelope{e}, nil
	}
	if r.Handback == nil || r.code() == CodeRotated {
		return nil, err
	}
	first := []*Envelope{r.Handback}
	rest := *r
	rest.Handback = nil
	if e, err = i.SealMessage(to, nil, h, &rest); err != nil {
		return first, err
	}
	return append(first, e), nil
}

func (r *Result) code() string {
	if r.Error == nil {
		return ""
	}
	return r.Error.Code
}

var codePattern = lazily(`^[a-z_]{1,32}$`)

func (*Op) purpose() Purpose                 { return PurposeOp }
func (*Op) version() int                     { return 2 }
func (o *Op) bound(h Header, day bool) error { return boundTo(o.ID, h) }

func (o *Op) check() error {
	bad := func(what string) error { return fmt.Errorf("%w op: %s", ErrMalformed, what) }
	switch {
	case o.V != 2:
		return versionError(o.V)
	case !randomID.MatchString(o.ID):
		return bad("id is not 128 random bits")
	case !serviceID.MatchString(o.Service) || !idPattern.MatchString(o.Op):
		return bad("service or op is not an id")
	case !isObject(o.Args):
		return bad("args are not an object")
	case o.Grant == nil:
		return bad("there is no grant")
	}
	return o.Grant.checkAs(PurposeGrant)
}

func (*Result) purpose() Purpose                 { return PurposeResult }
func (*Result) version() int                     { return 2 }
func (r *Result) bound(h Header, day bool) error { return boundTo(r.ID, h) }

func (r *Result) check() error {
	bad := func(what string) error { return fmt.Errorf("%w result: %s", ErrMalformed, what) }
	switch {
	case r.V != 2:
		return versionError(r.V)
	case !randomID.MatchString(r.ID):
		return bad("id is not 128 random bits")
	case r.OK == (r.Error != nil) || r.OK == (r.Result == nil):
		return bad("it has a result when ok, an error when not")
	case len(r.Result) > integrations.MaxResult:
		return fmt.Errorf("%w result: %d bytes", ErrTooBig, len(r.Result))
	case r.Next != nil && (!r.OK || !isObject(r.Next)):
		return bad("next is not an object beside a result")
	}
	if e := r.Error; e != nil {
		var d ResultDetails
		if e.Details != nil {
			d = *e.Details
		}
		switch {
		case !codePattern.MatchString(e.Code):
			return bad("the error has no code")
		case !goodCount(e.RetryAfter) || !goodTime(d.Until) || !goodCount(int64(d.Status)) || !goodCount(d.Size):
			return bad("a number is out of range")
		case (e.Code == CodeRotated) != (d.Proof != nil) || d.Proof != nil && r.Handback == nil:
			return bad("a proof stands with rotated, beside the newest hand-back")
		case !d.Day.IsZero() && (e.Code != CodeDay || d.Until == 0):
			return bad("a key of the day stands with day, beside its end")
		}
	}
	if r.Handback != nil {
		return r.Handback.checkAs(PurposeHandback)
	}
	return nil
}
