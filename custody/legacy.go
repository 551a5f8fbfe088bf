package custody

import (
	"encoding/base64"
	"fmt"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// legacyService is the one service of the messages from before version 1, which name none.
const legacyService = "dnsimple"

// A LegacyOp is an operation of before: it knows only "list", and its author is whom the
// transport authenticated.
type LegacyOp struct {
	Type  string `json:"type"` // "connect.op"
	ID    string `json:"id"`
	Op    string `json:"op"`    // "list"
	Grant Bytes  `json:"grant"` // encapsulated key ‖ ciphertext, empty info
}

// OpenLegacyCredential opens a blob of before, {"token": "…"} sealed to the member with empty
// info: DNSimple's, no cap, no kind. Nothing says who sealed it, so a client whose [Memory]
// knows a newer one does not take it.
func OpenLegacyCredential(member *Identity, sealed Bytes) (*Credential, error) {
	pt, err := hpkeOpen(member, nil, sealed)
	if err != nil {
		return nil, err
	}
	var old struct {
		Token integrations.Secret `json:"token"`
	}
	if err := parse(pt, MaxMessage, 0, &old); err != nil {
		return nil, err
	}
	if !validToken(old.Token) {
		return nil, fmt.Errorf("%w credential of before: token is not a token", ErrMalformed)
	}
	return &Credential{V: 1, ID: "legacy", Service: legacyService, Secret: old.Token}, nil
}

// A LegacyGrant lends a token for reading DNSimple's domains.
type LegacyGrant struct {
	Token     integrations.Secret `json:"token"`
	ExpiresAt int64               `json:"expires_at"`
}

// A LegacyResult answers a LegacyOp.
type LegacyResult struct {
	Type    string         `json:"type"` // "connect.result"
	ID      string         `json:"id"`
	OK      bool           `json:"ok"`
	Domains []LegacyDomain `json:"domains,omitempty"`
	Error   string         `json:"error,omitzero"`
}

// A LegacyDomain is a domain with its end, as the provider writes it.
type LegacyDomain struct {
	Name      string `json:"name"`
	ExpiresAt string `json:"expires_at"`
}

// ParseLegacyOp reads an op of before: one with no v.
func ParseLegacyOp(data []byte) (*LegacyOp, error) {
	o := new(LegacyOp)
	if err := parse(data, MaxMessage, 0, o); err != nil {
		return nil, err
	}
	if o.Type != "connect.op" || o.Op != "list" || !idPattern.MatchString(o.ID) || len(o.Grant) < encSize+gcmTag {
		return nil, fmt.Errorf("%w op of before: only list is known", ErrMalformed)
	}
	return o, nil
}

// OpenLegacyGrant opens the grant of an op of before.
func (i *Identity) OpenLegacyGrant(o *LegacyOp, now time.Time) (*LegacyGrant, error) {
	pt, err := hpkeOpen(i, nil, o.Grant)
	if err != nil {
		return nil, err
	}
	g := new(LegacyGrant)
	if err := parse(pt, MaxMessage, 0, g); err != nil {
		return nil, err
	}
	if !validToken(g.Token) || !goodTime(g.ExpiresAt) {
		return nil, fmt.Errorf("%w grant of before", ErrMalformed)
	}
	if g.ExpiresAt == 0 || !now.Before(time.Unix(g.ExpiresAt, 0).Add(Skew)) {
		return nil, fmt.Errorf("%w: it has ended", ErrExpired)
	}
	return g, nil
}

// SealLegacyGrant seals a grant of before, for clients that still speak it.
func SealLegacyGrant(to PublicKey, g LegacyGrant) (string, error) {
	pt, err := marshal(g)
	if err != nil {
		return "", err
	}
	ct, err := hpkeSeal(to, nil, pt)
	return base64.RawURLEncoding.EncodeToString(ct), err
}
