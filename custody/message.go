package custody

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"regexp"

	"github.com/elevenmessenger/connect/integrations"
)

// An Op asks a bot to run one operation. It stands in an envelope of purpose op; Grant is
// an envelope of its own inside.
type Op struct {
	V       int             `json:"v"`
	ID      string          `json:"id"`
	Service string          `json:"service"`
	Op      string          `json:"op"`
	Args    json.RawMessage `json:"args"`
	Grant   *Envelope       `json:"grant"`
}

// A Result answers an Op.
type Result struct {
	V        int             `json:"v"`
	ID       string          `json:"id"`
	OK       bool            `json:"ok"`
	Result   json.RawMessage `json:"result,omitzero"`
	Error    *ResultError    `json:"error,omitzero"`
	Next     map[string]any  `json:"next,omitempty"`
	Handback *Envelope       `json:"handback,omitzero"`
}

// A ResultError says in a code and in words why an operation did not go through.
type ResultError struct {
	Code       string         `json:"code"`
	Message    string         `json:"message"`
	RetryAfter int64          `json:"retry_after,omitzero"` // seconds
	Details    *ResultDetails `json:"details,omitzero"`
}

// ResultDetails are the facts of an error.
type ResultDetails struct {
	Arg    string `json:"arg,omitzero"`
	Until  int64  `json:"until,omitzero"`
	Status int    `json:"status,omitzero"`
	Size   int64  `json:"size,omitzero"`
}

// A Handback brings a rotated pair to its member. Link proves that whoever made it held the
// refresh token that the member stores.
type Handback struct {
	V          int                 `json:"v"`
	Credential string              `json:"credential"`
	Pair       int64               `json:"pair"`
	Secret     integrations.Secret `json:"secret"`
	Refresh    integrations.Secret `json:"refresh,omitzero"`
	ExpiresAt  int64               `json:"expires_at,omitzero"`
	ObtainedAt int64               `json:"obtained_at"`
	Keep       map[string]string   `json:"keep,omitempty"`
	Link       Digest              `json:"link"`
}

// link is HMAC-SHA256(old refresh, JCS(the rest)).
func (h Handback) link(old integrations.Secret) (Digest, error) {
	h.Link = Digest{}
	data, err := marshal(h)
	if err != nil {
		return Digest{}, err
	}
	var rest map[string]json.RawMessage
	if err := json.Unmarshal(data, &rest); err != nil {
		return Digest{}, err
	}
	delete(rest, "link")
	if data, err = jcs(rest); err != nil {
		return Digest{}, err
	}
	m := hmac.New(sha256.New, []byte(old.Reveal()))
	m.Write(data)
	return Digest(m.Sum(nil)), nil
}

// Sign sets the link under the refresh token that the member stores.
func (h *Handback) Sign(old integrations.Secret) (err error) {
	h.Link, err = h.link(old)
	return err
}

// Why a hand-back is not taken, for [errors.Is] beside ErrMalformed and ErrOlder.
var (
	ErrLink = fmt.Errorf("%w: the hand-back was not made with the pair that is stored", ErrForged)
	ErrGap  = fmt.Errorf("%w: a hand-back before this one is missing", ErrMalformed)
)

// Take returns the credential with the pair replaced, one generation further. It refuses a
// hand-back for another connection, one that is not newer (ErrOlder), one that skips a pair
// (ErrGap), and one whose link does not verify under the stored refresh token (ErrLink).
func (c *Credential) Take(h *Handback) (*Credential, error) {
	if err := h.check(); err != nil {
		return nil, err
	}
	switch {
	case h.Credential != c.ID:
		return nil, fmt.Errorf("%w: it belongs to another connection", ErrLink)
	case h.Pair <= c.Pair:
		return nil, ErrOlder
	case c.Refresh.IsZero():
		return nil, ErrLink
	}
	want, err := h.link(c.Refresh)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(want[:], h.Link[:]) {
		// Of several, only the next verifies: a later one waits for those before it.
		if h.Pair > c.Pair+1 {
			return nil, ErrGap
		}
		return nil, ErrLink
	}
	if h.Pair != c.Pair+1 {
		return nil, ErrGap
	}
	n := *c
	n.Generation++
	n.Pair = h.Pair
	n.Secret, n.ExpiresAt, n.ObtainedAt = h.Secret, h.ExpiresAt, h.ObtainedAt
	if !h.Refresh.IsZero() {
		n.Refresh = h.Refresh
	}
	if h.Keep != nil {
		n.Keep = h.Keep
	}
	return &n, nil
}

func (h *Handback) check() error {
	bad := func(what string) error { return fmt.Errorf("%w hand-back: %s", ErrMalformed, what) }
	switch {
	case h.V != 1:
		return bad("v is not 1")
	case !idPattern.MatchString(h.Credential):
		return bad("credential is not an id")
	case h.Pair < 1 || h.Pair > 1<<52:
		return bad("pair is out of range")
	case !validToken(h.Secret):
		return bad("secret is not a token")
	case !h.Refresh.IsZero() && !validWrap(h.Refresh):
		return bad("refresh is not a broker's wrap")
	case !goodTime(h.ExpiresAt) || !goodTime(h.ObtainedAt):
		return bad("a time is out of range")
	}
	return nil
}

// An Ack says what the client holds and has read back: it clears every entry of the outbox
// up to that pair.
type Ack struct {
	Credential string `json:"credential"`
	Pair       int64  `json:"pair"`
}

// An End stops grants at once, until their own end: those named, or a connection's that
// were minted at or before At; or it pauses them until Pause.
type End struct {
	At         int64    `json:"at"`
	Grants     []string `json:"grants,omitempty"`
	Credential string   `json:"credential,omitzero"`
	Pause      int64    `json:"pause,omitzero"`
}

// A Revoke asks the sidecar to end a connection at the provider. Its grant carries the pair.
type Revoke struct {
	V       int       `json:"v"`
	ID      string    `json:"id"`
	Service string    `json:"service"`
	Grant   *Envelope `json:"grant"`
}

// A TabOutcome is what an OAuth flow gave, sealed to the key of the tab that began it.
type TabOutcome struct {
	V         int                 `json:"v"`
	Service   string              `json:"service"`
	Access    integrations.Access `json:"access,omitzero"`
	Kind      string              `json:"kind,omitzero"`
	Secret    integrations.Secret `json:"secret,omitzero"`
	Refresh   integrations.Secret `json:"refresh,omitzero"`
	ExpiresIn int64               `json:"expires_in,omitzero"` // seconds from receipt
	Scopes    []string            `json:"scopes,omitempty"`
	Wider     bool                `json:"wider,omitzero"`
	Keep      map[string]string   `json:"keep,omitempty"`
	Error     string              `json:"error,omitzero"` // cancelled, denied, expired, provider, missing_scopes
}

// A RefreshAnswer is what the broker seals to the caller's one-time key.
type RefreshAnswer struct {
	Secret    integrations.Secret `json:"secret"`
	Refresh   integrations.Secret `json:"refresh"`
	Same      bool                `json:"same"`
	ExpiresIn int64               `json:"expires_in,omitzero"` // seconds from receipt
	Scopes    []string            `json:"scopes,omitempty"`
	Keep      map[string]string   `json:"keep,omitempty"`
}

var codePattern = regexp.MustCompile(`^[a-z_]{1,32}$`)

// A message is what travels under one purpose.
type message interface{ check() error }

func (o *Op) check() error {
	bad := func(what string) error { return fmt.Errorf("%w op: %s", ErrMalformed, what) }
	switch {
	case o.V != 2:
		return bad("v is not 2")
	case !randomID.MatchString(o.ID):
		return bad("id is not 128 random bits")
	case !serviceID.MatchString(o.Service) || !idPattern.MatchString(o.Op):
		return bad("service or op is not an id")
	case o.Grant == nil:
		return bad("there is no grant")
	}
	return o.Grant.checkAs(PurposeGrant)
}

func (r *Result) check() error {
	bad := func(what string) error { return fmt.Errorf("%w result: %s", ErrMalformed, what) }
	switch {
	case r.V != 2:
		return bad("v is not 2")
	case !randomID.MatchString(r.ID):
		return bad("id is not 128 random bits")
	case r.OK == (r.Error != nil) || r.OK == (r.Result == nil):
		return bad("it has a result when ok, an error when not")
	case len(r.Result) > integrations.MaxResult:
		return fmt.Errorf("%w result: %d bytes", ErrTooBig, len(r.Result))
	case r.Error != nil && !codePattern.MatchString(r.Error.Code):
		return bad("the error has no code")
	}
	if r.Handback != nil {
		return r.Handback.checkAs(PurposeHandback)
	}
	return nil
}

func (a *Ack) check() error {
	if !idPattern.MatchString(a.Credential) || a.Pair < 0 {
		return fmt.Errorf("%w ack", ErrMalformed)
	}
	return nil
}

func (x *End) check() error {
	bad := func(what string) error { return fmt.Errorf("%w end: %s", ErrMalformed, what) }
	if (len(x.Grants) > 0) == (x.Credential != "") {
		return bad("it names grants or a connection")
	}
	if !goodTime(x.At) || x.At == 0 || !goodTime(x.Pause) {
		return bad("a time is out of range")
	}
	if x.Credential != "" && !idPattern.MatchString(x.Credential) {
		return bad("credential is not an id")
	}
	for _, g := range x.Grants {
		if !randomID.MatchString(g) {
			return bad("a grant's id is not 128 random bits")
		}
	}
	return nil
}

func (r *Revoke) check() error {
	if r.V != 1 || !randomID.MatchString(r.ID) || !serviceID.MatchString(r.Service) || r.Grant == nil {
		return fmt.Errorf("%w revoke", ErrMalformed)
	}
	return r.Grant.checkAs(PurposeGrant)
}

func (o *TabOutcome) check() error {
	bad := func(what string) error { return fmt.Errorf("%w outcome: %s", ErrMalformed, what) }
	if o.V != 1 || !serviceID.MatchString(o.Service) {
		return bad("v or service")
	}
	if o.Error != "" {
		switch o.Error {
		case "cancelled", "denied", "expired", "provider", "missing_scopes":
			return nil
		}
		return bad("the error is not known")
	}
	if !validToken(o.Secret) || o.Kind != KindOAuth || o.Access != integrations.Read && o.Access != integrations.Write {
		return bad("it is neither a connection nor an error")
	}
	if !o.Refresh.IsZero() && !validWrap(o.Refresh) {
		return bad("refresh is not a broker's wrap")
	}
	return nil
}

func (a *RefreshAnswer) check() error {
	if !validToken(a.Secret) || !validWrap(a.Refresh) || a.ExpiresIn < 0 {
		return fmt.Errorf("%w answer to a refresh", ErrMalformed)
	}
	return nil
}

// checkAs holds an envelope inside a message against its purpose.
func (e *Envelope) checkAs(p Purpose) error {
	if e.Purpose != p {
		return fmt.Errorf("%w: an envelope for %s where one for %s belongs", ErrMalformed, e.Purpose, p)
	}
	return e.checkSealed()
}

func purposeOf(m message) Purpose {
	switch m.(type) {
	case *Op:
		return PurposeOp
	case *Result:
		return PurposeResult
	case *Handback:
		return PurposeHandback
	case *Ack:
		return PurposeAck
	case *End:
		return PurposeEnd
	case *Revoke:
		return PurposeRevoke
	case *TabOutcome:
		return PurposeTab
	case *RefreshAnswer:
		return PurposeRefresh
	}
	return ""
}

// SealMessage seals an Op, Result, Handback, Ack, End or Revoke.
func (i *Identity) SealMessage(to PublicKey, day *PublicKey, h Header, m message) (*Envelope, error) {
	pt, err := encode(&h, m)
	if err != nil {
		return nil, err
	}
	return i.Seal(to, day, h, pt)
}

// SealAnswer seals a TabOutcome or RefreshAnswer to a one-time key.
func SealAnswer(to PublicKey, op string, m message) (*Envelope, error) {
	h := Header{Op: op}
	pt, err := encode(&h, m)
	if err != nil {
		return nil, err
	}
	return SealOneTime(to, h, pt)
}

func encode(h *Header, m message) ([]byte, error) {
	h.Purpose = purposeOf(m)
	if err := m.check(); err != nil {
		return nil, err
	}
	return marshal(m)
}

// OpenMessage opens an envelope into m, which decides the purpose that it must have.
func (i *Identity) OpenMessage(e *Envelope, from PublicKey, day *Identity, m message) error {
	pt, err := openAs(i, e, purposeOf(m), from, day)
	if err != nil {
		return err
	}
	if err := parse(pt, MaxMessage, m); err != nil {
		return err
	}
	return m.check()
}
