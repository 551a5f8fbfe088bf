package custody

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// The kinds of credential, as integrations.Credential has them.
const (
	KindPAT   = integrations.PAT
	KindOAuth = integrations.OAuth2
)

// Account says whose a connection is.
type Account struct {
	ID    string `json:"id"`
	Label string `json:"label"`
}

// ConnectionValue is what a connection has learnt once.
type ConnectionValue struct {
	Value string `json:"value"`
	Label string `json:"label"`
}

// Lent says which group holds the refresh token, and until when.
type Lent struct {
	Group string `json:"group"`
	Until int64  `json:"until"`
}

// A Credential is one connection of a member, sealed to herself. {Secret, Refresh,
// ExpiresAt} are the pair. Times are seconds since 1970 UTC.
type Credential struct {
	V           int                        `json:"v"`
	ID          string                     `json:"id"`
	Generation  int64                      `json:"generation"` // rises by one with every change of the blob
	Pair        int64                      `json:"pair"`       // rises by one when the pair itself is replaced
	Service     string                     `json:"service"`
	Kind        string                     `json:"kind"`
	Secret      integrations.Secret        `json:"secret"`
	Refresh     integrations.Secret        `json:"refresh,omitzero"` // wrapped by the broker, never the provider's own
	Broker      string                     `json:"broker,omitzero"`  // the origin of the broker that wrapped it
	ExpiresAt   int64                      `json:"expires_at,omitzero"`
	ObtainedAt  int64                      `json:"obtained_at,omitzero"`
	Scopes      []string                   `json:"scopes,omitempty"`
	Wider       bool                       `json:"wider,omitzero"` // more was granted than the cap asked for
	Cap         integrations.Access        `json:"cap,omitzero"`
	Account     *Account                   `json:"account,omitzero"`
	Connection  map[string]ConnectionValue `json:"connection,omitempty"`
	Keep        map[string]string          `json:"keep,omitempty"`
	Ops         map[string]Digest          `json:"ops,omitempty"` // the operations as they were consented to
	Lent        *Lent                      `json:"lent,omitzero"`
	ConnectedAt int64                      `json:"connected_at"`
}

// CapAllows says whether a connection may be used so. A connection from before caps reads.
func (c *Credential) CapAllows(access integrations.Access) bool {
	switch access {
	case integrations.Read:
		return c.Cap == "" || c.Cap == integrations.Read || c.Cap == integrations.Write
	case integrations.Write:
		return c.Cap == integrations.Write
	}
	return false
}

// For returns the credential as the executor takes it.
func (c *Credential) For() integrations.Credential {
	return integrations.Credential{Kind: c.Kind, Secret: c.Secret, Fields: c.Keep, Scopes: c.Scopes, Connection: connectionValues(c.Connection)}
}

func connectionValues(m map[string]ConnectionValue) map[string]string {
	if m == nil {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[k] = v.Value
	}
	return out
}

// maxCredential leaves room for the sealed form.
const maxCredential = 40 << 10

// Seal seals the credential to its member. The generation is part of the header, so that an
// older blob cannot pass for a newer one.
func (c *Credential) Seal(member *Identity, space string) (*Envelope, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	pt, err := marshal(c)
	if err != nil {
		return nil, err
	}
	return member.Seal(member.Public(), nil, Header{Purpose: PurposeCredential, Space: space, Op: c.blobName()}, pt)
}

func (c *Credential) blobName() string { return c.ID + "." + strconv.FormatInt(c.Generation, 10) }

// OpenCredential opens a blob that the member sealed to herself: only her own clients can
// have made it.
func OpenCredential(member *Identity, e *Envelope) (*Credential, error) {
	pt, err := openAs(member, e, PurposeCredential, member.Public(), nil)
	if err != nil {
		return nil, err
	}
	c := new(Credential)
	if err := parse(pt, maxCredential, c); err != nil {
		if old, ok := parseLegacyCredential(pt); ok {
			return old, nil
		}
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if e.Op != c.blobName() {
		return nil, fmt.Errorf("%w credential: the header names another generation", ErrMalformed)
	}
	return c, nil
}

// parseLegacyCredential reads the blob {"token": "…"} of before: DNSimple's, no cap, no kind.
func parseLegacyCredential(pt []byte) (*Credential, bool) {
	var old struct {
		Token integrations.Secret `json:"token"`
	}
	if parse(pt, maxCredential, &old) != nil || !validToken(old.Token) {
		return nil, false
	}
	return &Credential{V: 1, ID: "legacy", Service: legacyService, Secret: old.Token}, true
}

var serviceID = regexp.MustCompile(`^[a-z][a-z0-9-]{0,19}$`)

func (c *Credential) check() error {
	bad := func(what string) error { return fmt.Errorf("%w credential: %s", ErrMalformed, what) }
	switch {
	case c.V != 1:
		return bad("v is not 1")
	case !idPattern.MatchString(c.ID):
		return bad("id is not an id")
	case c.Generation < 0 || c.Pair < 0 || c.Generation > 1<<52 || c.Pair > 1<<52:
		return bad("a counter is out of range")
	case !serviceID.MatchString(c.Service):
		return bad("service is not an id")
	case c.Kind != KindPAT && c.Kind != KindOAuth:
		return bad("kind is not known")
	case !validToken(c.Secret):
		return bad("secret is not a token")
	case !c.Refresh.IsZero() && !validWrap(c.Refresh):
		return bad("refresh is not a broker's wrap")
	case c.Refresh.IsZero() != (c.Broker == ""):
		return bad("refresh and broker stand together")
	case c.Cap != "" && c.Cap != integrations.Read && c.Cap != integrations.Write:
		return bad("cap is not known")
	case !goodTime(c.ExpiresAt) || !goodTime(c.ObtainedAt) || !goodTime(c.ConnectedAt):
		return bad("a time is out of range")
	}
	return nil
}

var (
	wrapPattern = regexp.MustCompile(`^rt1\.[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]+$`)
)

// maxWrap is the length of the longest wrapped refresh token.
const maxWrap = 11264

// Go's regexp counts a repetition to 1,000 only, so lengths are looked at apart.
func validToken(s integrations.Secret) bool {
	t := s.Reveal()
	if len(t) < 1 || len(t) > 8192 {
		return false
	}
	for i := range len(t) {
		if t[i] < 0x21 || t[i] > 0x7e {
			return false
		}
	}
	return true
}

func validWrap(s integrations.Secret) bool {
	return len(s.Reveal()) <= maxWrap && wrapPattern.MatchString(s.Reveal())
}

// goodTime takes 0 (unknown) to the year 9999.
func goodTime(t int64) bool { return t >= 0 && t < 253402300800 }

// Due says whether the pair is to be rotated before it is used: now is within skew of its
// end, and skew is never more than half its lifetime. An unknown end is never due.
func (c *Credential) Due(now time.Time, skew time.Duration) bool {
	return due(c.ObtainedAt, c.ExpiresAt, now, skew)
}

func due(obtained, expires int64, now time.Time, skew time.Duration) bool {
	if expires == 0 {
		return false
	}
	if obtained > 0 && expires > obtained {
		skew = min(skew, time.Duration(expires-obtained)*time.Second/2)
	}
	return !now.Before(time.Unix(expires, 0).Add(-skew))
}

// openAs opens an envelope that must be of one purpose.
func openAs(me *Identity, e *Envelope, p Purpose, from PublicKey, day *Identity) ([]byte, error) {
	if e.Purpose != p {
		return nil, fmt.Errorf("%w: this is an envelope for %s, not for %s", ErrMalformed, e.Purpose, p)
	}
	return me.Open(e, from, day)
}

// ErrOlder means that a blob or pair is older than one that this device has seen.
var ErrOlder = errors.New("older than what this device has seen")
