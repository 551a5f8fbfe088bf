package custody

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
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

// Seal seals the credential to its member. The generation is part of the header, so that an
// older blob cannot pass for a newer one.
func (c *Credential) Seal(member *Identity, space string) (*Envelope, error) {
	return member.SealMessage(member.Public(), nil, Header{Space: space, Op: c.blobName()}, c)
}

func (c *Credential) blobName() string { return c.ID + "." + strconv.FormatInt(c.Generation, 10) }

// OpenCredential opens a blob that the member sealed to herself: only her own clients can
// have made it. [Memory] tells whether it is the newest.
func OpenCredential(member *Identity, e *Envelope) (*Credential, error) {
	c := new(Credential)
	if err := member.OpenMessage(e, member.Public(), nil, c); err != nil {
		return nil, err
	}
	return c, nil
}

// Lend returns the credential, one generation further, with its refresh token lent to a
// group until the end of a grant. It is stored by compare-and-set before the grant is
// posted. To another group than before it goes (else ErrLent) only when the lease is over
// and its holder has answered since, which the caller says by returned.
func (c *Credential) Lend(group string, until, now time.Time, returned bool) (*Credential, error) {
	if l := c.Lent; l != nil && l.Group != group && (!returned || now.Before(time.Unix(l.Until, 0).Add(Skew))) {
		return nil, fmt.Errorf("%w: to %s", ErrLent, l.Group)
	}
	n := *c
	n.Generation++
	n.Lent = &Lent{Group: group, Until: until.Unix()}
	if c.Lent != nil && c.Lent.Group == group {
		n.Lent.Until = max(n.Lent.Until, c.Lent.Until)
	}
	return &n, n.check()
}

// ErrLent means that the refresh token is with another group of sidecars, or has not been
// lent to this one.
var ErrLent = errors.New("the refresh token is lent elsewhere")

func (*Credential) purpose() Purpose               { return PurposeCredential }
func (*Credential) version() int                   { return 1 }
func (c *Credential) bound(h Header, _ bool) error { return boundTo(c.blobName(), h) }

func (c *Credential) check() error {
	bad := func(what string) error { return fmt.Errorf("%w credential: %s", ErrMalformed, what) }
	switch {
	case c.V != 1:
		return versionError(c.V)
	case !idPattern.MatchString(c.ID):
		return bad("id is not an id")
	case !goodCount(c.Generation) || !goodCount(c.Pair):
		return bad("a counter is out of range")
	case !serviceID.MatchString(c.Service):
		return bad("service is not an id")
	case c.Kind != KindPAT && c.Kind != KindOAuth:
		return bad("kind is not known")
	case !goodBroker(c.Broker, c.Refresh):
		return bad("broker is the origin of whoever wrapped refresh, and stands with it")
	case c.Cap != "" && c.Cap != integrations.Read && c.Cap != integrations.Write:
		return bad("cap is not known")
	case !goodTime(c.ExpiresAt) || !goodTime(c.ObtainedAt) || !goodTime(c.ConnectedAt):
		return bad("a time is out of range")
	case c.Lent != nil && (!idPattern.MatchString(c.Lent.Group) || !goodTime(c.Lent.Until)):
		return bad("lent has no group, or no end")
	case !goodOps(c.Ops):
		return bad("ops holds what is no operation's digest")
	}
	return checkPair("credential", c.Secret, c.Refresh)
}

var (
	serviceID = serviceName{}
	opID      = lazily(`^[a-z][a-z0-9_]{0,26}$`)
	origin    = lazily(`^https?://[A-Za-z0-9.:\[\]-]{1,255}$`)
)

// A serviceName is a lower-case letter, then at most 19 letters, digits or hyphens.
type serviceName struct{}

func (serviceName) MatchString(s string) bool {
	return s != "" && len(s) <= 20 && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func goodBroker(broker string, refresh integrations.Secret) bool {
	return refresh.IsZero() == (broker == "") && (broker == "" || origin.MatchString(broker))
}

func goodOps(ops map[string]Digest) bool {
	for name, d := range ops {
		if !opID.MatchString(name) || d == (Digest{}) {
			return false
		}
	}
	return true
}

// A wrap is rt1.<key id>.<bytes>.
var (
	wrapKey = word{1, 32, false}
	wrapped = word{1, MaxWrap, false}
)

// MaxWrap is the length of the longest wrapped refresh token.
const MaxWrap = 11264

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
	rest, ok := strings.CutPrefix(s.Reveal(), "rt1.")
	kid, sealed, two := strings.Cut(rest, ".")
	return ok && two && len(s.Reveal()) <= MaxWrap && wrapKey.MatchString(kid) && wrapped.MatchString(sealed)
}

// goodTime takes 0 (unknown) to the year 9999.
func goodTime(t int64) bool { return t >= 0 && t < 253402300800 }

func goodCount(n int64) bool { return n >= 0 && n <= maxCount }

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
