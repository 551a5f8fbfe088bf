package custody

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"github.com/elevenmessenger/connect/integrations"
)

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
	Same      bool                `json:"same"`                // whether Refresh is the very token that was redeemed
	ExpiresIn int64               `json:"expires_in,omitzero"` // seconds from receipt
	Scopes    []string            `json:"scopes,omitempty"`
	Keep      map[string]string   `json:"keep,omitempty"`
}

// TabOp is the op of the envelope of a tab's outcome.
func TabOp(service string, access integrations.Access) string { return service + "." + string(access) }

// RefreshOp is the op of the envelope that answers a refresh: base64url(SHA-256(the body of
// the request as it was sent)).
func RefreshOp(body []byte) string {
	sum := sha256.Sum256(body)
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Fragment writes an envelope for a tab as the fragment of an address, without "#":
// v1.<to>.<service>.<access>.<ct>. All else in such an envelope is known.
func (e *Envelope) Fragment() (string, error) {
	if err := e.checkAs(PurposeTab); err != nil {
		return "", err
	}
	return "v1." + string(e.To) + "." + e.Op + "." + base64.RawURLEncoding.EncodeToString(e.CT), nil
}

// ParseFragment reads what Fragment wrote.
func ParseFragment(s string) (*Envelope, error) {
	if len(s) > MaxMessage {
		return nil, fmt.Errorf("%w: a fragment of %d bytes", ErrTooBig, len(s))
	}
	part := strings.Split(s, ".")
	if len(part) != 5 || part[0] != "v1" {
		return nil, fmt.Errorf("%w fragment: it is not v1 and four parts", ErrMalformed)
	}
	e := &Envelope{V: 1, Suite: Suite, Purpose: PurposeTab, To: KeyID(part[1]), Op: part[2] + "." + part[3]}
	if err := e.CT.UnmarshalText([]byte(part[4])); err != nil {
		return nil, fmt.Errorf("%w fragment: %w", ErrMalformed, err)
	}
	if err := e.checkSealed(); err != nil {
		return nil, err
	}
	return e, nil
}

var tabErrors = []string{"cancelled", "denied", "expired", "provider", "missing_scopes"}

func (*TabOutcome) purpose() Purpose { return PurposeTab }
func (*TabOutcome) version() int     { return 1 }

func (o *TabOutcome) bound(h Header, _ bool) error {
	if o.Error != "" && strings.HasPrefix(h.Op, o.Service+".") {
		return nil
	}
	return boundTo(TabOp(o.Service, o.Access), h)
}

func (o *TabOutcome) check() error {
	bad := func(what string) error { return fmt.Errorf("%w outcome: %s", ErrMalformed, what) }
	switch {
	case o.V != 1:
		return versionError(o.V)
	case !serviceID.MatchString(o.Service):
		return bad("service is not an id")
	case o.Error != "":
		if !slices.Contains(tabErrors, o.Error) {
			return bad("the error is not known")
		}
		if !o.Secret.IsZero() || !o.Refresh.IsZero() {
			return bad("a pair stands beside an error")
		}
		return nil
	case o.Kind != KindOAuth || o.Access != integrations.Read && o.Access != integrations.Write:
		return bad("kind or access is not known")
	case !goodCount(o.ExpiresIn):
		return bad("expires_in is out of range")
	}
	return checkPair("outcome", o.Secret, o.Refresh)
}

func (*RefreshAnswer) purpose() Purpose         { return PurposeRefresh }
func (*RefreshAnswer) version() int             { return 0 }
func (*RefreshAnswer) bound(Header, bool) error { return nil }

func (a *RefreshAnswer) check() error {
	if a.Refresh.IsZero() || !goodCount(a.ExpiresIn) {
		return fmt.Errorf("%w answer to a refresh: there is no refresh token, or expires_in is out of range", ErrMalformed)
	}
	return checkPair("answer to a refresh", a.Secret, a.Refresh)
}
