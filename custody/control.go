package custody

import "fmt"

// An Ack says what the client holds and has read back: it clears every entry of the outbox
// up to that pair.
type Ack struct {
	Credential string `json:"credential"`
	Pair       int64  `json:"pair"`
}

// An End stops grants at once, until their own end: those named, or a connection's that
// were minted at or before At; or it pauses them until Pause. It reaches only grants of the
// member who sent it.
type End struct {
	At         int64    `json:"at"`
	Grants     []string `json:"grants,omitempty"`
	Credential string   `json:"credential,omitzero"`
	Pause      int64    `json:"pause,omitzero"`
}

// A Revoke asks the sidecar to end a connection at the provider. Its grant carries the pair
// and nothing else runs under it: see [MintRevoke].
type Revoke struct {
	V       int       `json:"v"`
	ID      string    `json:"id"`
	Service string    `json:"service"`
	Grant   *Envelope `json:"grant"`
}

// OpenGrant opens the grant that a revoke carries, as [Op.OpenGrant] does.
func (r *Revoke) OpenGrant(bot *Identity, e *Envelope, member PublicKey, day *Identity) (*Grant, error) {
	g, err := openCarried(r.Grant, bot, e, member, day)
	if err != nil {
		return nil, err
	}
	switch {
	case g.Use != UseOnce || g.Once != nil:
		return nil, fmt.Errorf("%w grant: it is for an op, not for a revoke", ErrMalformed)
	case g.Service != r.Service:
		return nil, fmt.Errorf("%w: the grant is for %s", ErrService, g.Service)
	}
	return g, nil
}

func (*Ack) purpose() Purpose         { return PurposeAck }
func (*Ack) version() int             { return 0 }
func (*Ack) bound(Header, bool) error { return nil }

func (a *Ack) check() error {
	if !idPattern.MatchString(a.Credential) || !goodCount(a.Pair) {
		return fmt.Errorf("%w ack: it names no connection, or pair is out of range", ErrMalformed)
	}
	return nil
}

func (*End) purpose() Purpose         { return PurposeEnd }
func (*End) version() int             { return 0 }
func (*End) bound(Header, bool) error { return nil }

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

func (*Revoke) purpose() Purpose               { return PurposeRevoke }
func (*Revoke) version() int                   { return 1 }
func (r *Revoke) bound(h Header, _ bool) error { return boundTo(r.ID, h) }

func (r *Revoke) check() error {
	bad := func(what string) error { return fmt.Errorf("%w revoke: %s", ErrMalformed, what) }
	switch {
	case r.V != 1:
		return versionError(r.V)
	case !randomID.MatchString(r.ID):
		return bad("id is not 128 random bits")
	case !serviceID.MatchString(r.Service):
		return bad("service is not an id")
	case r.Grant == nil:
		return bad("there is no grant")
	}
	return r.Grant.checkAs(PurposeGrant)
}
