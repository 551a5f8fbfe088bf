package custody

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/elevenmessenger/connect/integrations"
)

// A Handback brings a rotated pair to its member. Link proves that whoever made it held the
// refresh token that the member stores.
type Handback struct {
	V          int                 `json:"v"`
	Credential string              `json:"credential"`
	Pair       int64               `json:"pair"`
	Secret     integrations.Secret `json:"secret"`
	Refresh    integrations.Secret `json:"refresh,omitzero"` // absent: the old one stays
	ExpiresAt  int64               `json:"expires_at,omitzero"`
	ObtainedAt int64               `json:"obtained_at"`
	Keep       map[string]string   `json:"keep,omitempty"`
	Link       Digest              `json:"link"`
}

// A Handoff brings a rotated pair from one replica of a bot to the others, or from one
// unattended run to the next. The op of its envelope is the id of the line of pairs.
type Handoff struct {
	V          int                 `json:"v"`
	Member     KeyID               `json:"member"` // the from of the grants that it is for
	Credential string              `json:"credential"`
	Pair       int64               `json:"pair"`
	Secret     integrations.Secret `json:"secret"`
	Refresh    integrations.Secret `json:"refresh,omitzero"`
	ExpiresAt  int64               `json:"expires_at,omitzero"`
	ObtainedAt int64               `json:"obtained_at"`
	Keep       map[string]string   `json:"keep,omitempty"`
	Until      int64               `json:"until"` // after it the pair is forgotten
}

// Why a hand-back is not taken, for [errors.Is].
var (
	ErrLink  = fmt.Errorf("%w: the hand-back was not made with the pair that is stored", ErrForged)
	ErrGap   = errors.New("a hand-back before this one is missing")
	ErrOlder = errors.New("older than what this device has seen")
)

// maxSkip is how far ahead of the stored pair a hand-back may be. A counter near its end would shut
// out every later hand-back.
const maxSkip = 1 << 16

// link is HMAC-SHA256(old refresh, JCS(the rest)).
func (h Handback) link(old integrations.Secret) (Digest, error) {
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
	return mac(old, data), nil
}

func mac(key integrations.Secret, data ...[]byte) Digest {
	m := hmac.New(sha256.New, []byte(key.Reveal()))
	for _, d := range data {
		m.Write(d)
	}
	return Digest(m.Sum(nil))
}

// Sign sets the link under the refresh token that the member stores.
func (h *Handback) Sign(old integrations.Secret) (err error) {
	if old.IsZero() {
		return ErrLink
	}
	h.Link, err = h.link(old)
	return err
}

// RotatedProof shows that the newest sealed hand-back belongs to the line of the refresh
// token that was presented just now: HMAC-SHA256(it, "connect/v1 rotated" ‖ ct).
func RotatedProof(presented integrations.Secret, handback *Envelope) Digest {
	return mac(presented, []byte("connect/v1 rotated"), handback.CT)
}

// Take returns the credential with the pair replaced, one generation further. It refuses a
// hand-back for another connection or one whose link does not verify under the stored
// refresh token (ErrLink), one that is not newer (ErrOlder, to be dropped), and one that
// skips a pair (ErrGap, to be kept until the one before it is there).
func (c *Credential) Take(h *Handback) (*Credential, error) {
	if err := c.takes(h); err != nil {
		return nil, err
	}
	if h.Pair != c.Pair+1 {
		return nil, ErrGap // its link is under a token that is not here yet
	}
	want, err := h.link(c.Refresh)
	if err != nil {
		return nil, err
	}
	if !hmac.Equal(want[:], h.Link[:]) {
		return nil, ErrLink
	}
	return c.take(h), nil
}

// TakeRotated returns the credential with the newest pair of its line, which may skip some.
// e is the envelope of h, and proof came with it in the answer to a grant that held the
// refresh token of c: the caller reads its blob anew before.
func (c *Credential) TakeRotated(h *Handback, e *Envelope, proof Digest) (*Credential, error) {
	if err := c.takes(h); err != nil {
		return nil, err
	}
	want := RotatedProof(c.Refresh, e)
	if !hmac.Equal(want[:], proof[:]) {
		return nil, ErrLink
	}
	return c.take(h), nil
}

func (c *Credential) takes(h *Handback) error {
	if err := h.check(); err != nil {
		return err
	}
	switch {
	case h.Credential != c.ID:
		return fmt.Errorf("%w: it belongs to another connection", ErrLink)
	case h.Pair <= c.Pair:
		return ErrOlder
	case h.Pair-c.Pair > maxSkip:
		return fmt.Errorf("%w hand-back: it skips %d pairs", ErrMalformed, h.Pair-c.Pair-1)
	case c.Refresh.IsZero():
		return ErrLink
	}
	return nil
}

func (c *Credential) take(h *Handback) *Credential {
	n := *c
	n.Generation++
	n.Pair = h.Pair
	n.Secret, n.ExpiresAt, n.ObtainedAt = h.Secret, h.ExpiresAt, h.ObtainedAt
	if !h.Refresh.IsZero() {
		n.Refresh = h.Refresh
	}
	if len(h.Keep) > 0 { // an empty one and none are the same
		n.Keep = h.Keep
	}
	return &n
}

func (*Handback) purpose() Purpose         { return PurposeHandback }
func (*Handback) version() int             { return 1 }
func (*Handback) bound(Header, bool) error { return nil }

func (h *Handback) check() error {
	bad := func(what string) error { return fmt.Errorf("%w hand-back: %s", ErrMalformed, what) }
	switch {
	case h.V != 1:
		return versionError(h.V)
	case !idPattern.MatchString(h.Credential):
		return bad("credential is not an id")
	case h.Pair < 1 || !goodCount(h.Pair):
		return bad("pair is out of range")
	case !goodTime(h.ExpiresAt) || !goodTime(h.ObtainedAt):
		return bad("a time is out of range")
	case h.Link == Digest{}:
		return bad("there is no link")
	}
	return checkPair("hand-back", h.Secret, h.Refresh)
}

func (*Handoff) purpose() Purpose         { return PurposeHandoff }
func (*Handoff) version() int             { return 1 }
func (*Handoff) bound(Header, bool) error { return nil }

func (h *Handoff) check() error {
	bad := func(what string) error { return fmt.Errorf("%w hand-off: %s", ErrMalformed, what) }
	switch {
	case h.V != 1:
		return versionError(h.V)
	case !keyIDPattern.MatchString(string(h.Member)):
		return bad("member is not a key's id")
	case !idPattern.MatchString(h.Credential):
		return bad("credential is not an id")
	case h.Pair < 1 || !goodCount(h.Pair):
		return bad("pair is out of range")
	case !goodTime(h.ExpiresAt) || !goodTime(h.ObtainedAt) || !goodTime(h.Until) || h.Until == 0:
		return bad("a time is out of range")
	}
	return checkPair("hand-off", h.Secret, h.Refresh)
}

// checkPair holds an access token, and the wrapped refresh token where there is one,
// against their forms.
func checkPair(what string, secret, refresh integrations.Secret) error {
	switch {
	case !validToken(secret):
		return fmt.Errorf("%w %s: secret is not a token", ErrMalformed, what)
	case !refresh.IsZero() && !validWrap(refresh):
		return fmt.Errorf("%w %s: refresh is not a broker's wrap", ErrMalformed, what)
	}
	return nil
}
