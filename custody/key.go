package custody

import (
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/hpke"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"sync"
)

// A KeyID names a public key: base64url(SHA-256(its 65-byte uncompressed point)).
type KeyID string

// A PublicKey is the identity key of a member or a bot: ECDH on P-256.
type PublicKey struct {
	key *ecdh.PublicKey
	id  KeyID
}

func newPublicKey(k *ecdh.PublicKey) PublicKey {
	sum := sha256.Sum256(k.Bytes())
	return PublicKey{k, KeyID(base64.RawURLEncoding.EncodeToString(sum[:]))}
}

// ParsePublicKey reads a 65-byte uncompressed point (SEC 1, section 2.3.3).
func ParsePublicKey(b []byte) (PublicKey, error) {
	if len(b) != 65 {
		return PublicKey{}, fmt.Errorf("%w: a public key is an uncompressed point of 65 bytes, not %d", ErrMalformed, len(b))
	}
	k, err := ecdh.P256().NewPublicKey(b)
	if err != nil {
		return PublicKey{}, fmt.Errorf("%w: this is not a point of P-256", ErrMalformed)
	}
	return newPublicKey(k), nil
}

// Bytes returns the uncompressed point, or nil for the zero value.
func (p PublicKey) Bytes() []byte {
	if p.key == nil {
		return nil
	}
	return p.key.Bytes()
}

// ID returns the key's id, "" for the zero value.
func (p PublicKey) ID() KeyID { return p.id }

// IsZero says whether there is no key.
func (p PublicKey) IsZero() bool { return p.key == nil }

// MarshalText writes the point in base64url.
func (p PublicKey) MarshalText() ([]byte, error) {
	if p.key == nil {
		return nil, errors.New("custody: no public key")
	}
	return Bytes(p.key.Bytes()).MarshalText()
}

// UnmarshalText reads a point in base64url.
func (p *PublicKey) UnmarshalText(text []byte) error {
	var b Bytes
	if err := b.UnmarshalText(text); err != nil {
		return err
	}
	k, err := ParsePublicKey(b)
	*p = k
	return err
}

// CheckNumber returns the six digits that a person compares on two screens before a
// connection is handed over: the first four bytes, big-endian, of
// SHA-256("connect/v1 check" ‖ point), mod 1,000,000.
func (p PublicKey) CheckNumber() string {
	h := sha256.New()
	h.Write([]byte("connect/v1 check"))
	h.Write(p.Bytes())
	sum := h.Sum(nil)
	n := uint32(sum[0])<<24 | uint32(sum[1])<<16 | uint32(sum[2])<<8 | uint32(sum[3])
	return fmt.Sprintf("%06d", n%1_000_000)
}

// An Identity is a private key with what is derived from it. It never prints its key. It is
// safe for use by several goroutines, and must not be copied.
type Identity struct {
	key  *ecdh.PrivateKey
	hpke hpke.PrivateKey
	pub  PublicKey
	id   KeyID

	mu   sync.Mutex
	tags map[KeyID]tagKeys // what both sides share with a peer; a few dozen at most
}

type tagKeys struct{ sent, received []byte }

// maxTagKeys bounds the cache of tag keys; past it the cache begins anew.
const maxTagKeys = 4096

// NewIdentity makes a key.
func NewIdentity() (*Identity, error) {
	k, err := ecdh.P256().GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	return newIdentity(k)
}

// ParseIdentity reads a key in PKCS #8, as WebCrypto exports it.
func ParseIdentity(der []byte) (*Identity, error) {
	var whole asn1.RawValue
	rest, err := asn1.Unmarshal(der, &whole)
	if err != nil || len(rest) > 0 { // which x509 would pass over
		return nil, fmt.Errorf("%w: this is not one private key in PKCS #8", ErrMalformed)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("%w: this is not a private key in PKCS #8", ErrMalformed)
	}
	var k *ecdh.PrivateKey
	switch p := parsed.(type) {
	case *ecdh.PrivateKey:
		k = p
	case interface {
		ECDH() (*ecdh.PrivateKey, error)
	}: // PKCS #8 does not tell ECDH from ECDSA
		if k, err = p.ECDH(); err != nil {
			return nil, fmt.Errorf("%w: this is not a key of P-256", ErrMalformed)
		}
	}
	if k == nil || k.Curve() != ecdh.P256() {
		return nil, fmt.Errorf("%w: this is not a key of P-256", ErrMalformed)
	}
	return newIdentity(k)
}

func newIdentity(k *ecdh.PrivateKey) (*Identity, error) {
	h, err := hpke.NewDHKEMPrivateKey(k)
	if err != nil {
		return nil, err
	}
	pub := newPublicKey(k.PublicKey())
	return &Identity{key: k, hpke: h, pub: pub, id: pub.id}, nil
}

// MarshalPKCS8 returns the private key itself, to be sealed or kept where only its owner reads.
func (i *Identity) MarshalPKCS8() ([]byte, error) { return x509.MarshalPKCS8PrivateKey(i.key) }

// SealIdentity seals the private key itself: to its own public key when it is made, or to
// the one-time key of the member's next device.
func (i *Identity) SealIdentity(to PublicKey, space string) (*Envelope, error) {
	der, err := i.MarshalPKCS8()
	if err != nil {
		return nil, err
	}
	return i.Seal(to, nil, Header{Purpose: PurposeIdentity, Space: space}, der)
}

// OpenIdentity opens a key that member sealed to i. What comes out is member's private key:
// any other is refused.
func (i *Identity) OpenIdentity(e *Envelope, member PublicKey) (*Identity, error) {
	der, err := openAs(i, e, PurposeIdentity, member, nil)
	if err != nil {
		return nil, err
	}
	opened, err := ParseIdentity(der)
	if err != nil {
		return nil, err
	}
	if opened.id != member.ID() {
		return nil, fmt.Errorf("%w identity: it holds another key than the one that sealed it", ErrMalformed)
	}
	return opened, nil
}

// Public returns the public key.
func (i *Identity) Public() PublicKey { return i.pub }

// ID returns the public key's id.
func (i *Identity) ID() KeyID { return i.id }

func (i *Identity) String() string { return "identity " + string(i.id) }

// GoString keeps %#v from printing the key.
func (i *Identity) GoString() string { return i.String() }

// Format keeps every verb from printing the key.
func (i *Identity) Format(f fmt.State, _ rune) { fmt.Fprint(f, i.String()) }

// LogValue keeps log/slog from printing the key.
func (i *Identity) LogValue() slog.Value { return slog.StringValue(i.String()) }

// tagKeys returns the keys of the tags that go to and come from peer.
func (i *Identity) tagKeys(peer PublicKey) (tagKeys, error) {
	id := peer.ID()
	i.mu.Lock()
	defer i.mu.Unlock()
	if k, ok := i.tags[id]; ok {
		return k, nil
	}
	shared, err := i.key.ECDH(peer.key)
	if err != nil {
		return tagKeys{}, err
	}
	sent, err := hkdf.Key(sha256.New, shared, nil, authInfo(i.id, id), 32)
	if err != nil {
		return tagKeys{}, err
	}
	received, err := hkdf.Key(sha256.New, shared, nil, authInfo(id, i.id), 32)
	if err != nil {
		return tagKeys{}, err
	}
	if i.tags == nil || len(i.tags) >= maxTagKeys {
		i.tags = make(map[KeyID]tagKeys)
	}
	k := tagKeys{sent, received}
	i.tags[id] = k
	return k, nil
}

func authInfo(from, to KeyID) string {
	b := []byte("connect/v1 auth")
	b = lp(b, string(from))
	return string(lp(b, string(to)))
}
