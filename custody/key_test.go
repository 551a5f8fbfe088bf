package custody

import (
	"crypto/ecdh"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"errors"
	"testing"
)

func TestParseIdentity(t *testing.T) {
	i := newTestIdentity(t)
	der := must(i.MarshalPKCS8())
	if got := must(ParseIdentity(der)); got.ID() != i.ID() {
		t.Errorf("it became %s", got.ID())
	}
	ec := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) // PKCS #8 does not tell them apart
	if _, err := ParseIdentity(must(x509.MarshalPKCS8PrivateKey(ec))); err != nil {
		t.Errorf("a key of P-256 that was made for ECDSA: %v", err)
	}
	p384 := must(ecdh.P384().GenerateKey(rand.Reader))
	x := must(ecdh.X25519().GenerateKey(rand.Reader))
	for name, bad := range map[string][]byte{
		"empty": nil, "no DER": []byte("key"), "cut": der[:len(der)-1], "trailing": append(der[:len(der):len(der)], 0),
		"P-384": must(x509.MarshalPKCS8PrivateKey(p384)), "X25519": must(x509.MarshalPKCS8PrivateKey(x)), "public": must(x509.MarshalPKIXPublicKey(i.key.PublicKey())),
	} {
		if _, err := ParseIdentity(bad); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPublicKeyText(t *testing.T) {
	p := newTestIdentity(t).Public()
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var q PublicKey
	if err := json.Unmarshal(b, &q); err != nil || q.ID() != p.ID() {
		t.Errorf("%s became %s: %v", b, q.ID(), err)
	}
	if err := q.UnmarshalText([]byte("AAAA")); !errors.Is(err, ErrMalformed) || !q.IsZero() {
		t.Errorf("three bytes: %v", err)
	}
	var zero PublicKey
	if _, err := zero.MarshalText(); err == nil || zero.ID() != "" || zero.Bytes() != nil {
		t.Error("the zero value is written")
	}
}

func TestIdentityTravels(t *testing.T) {
	s := newStage(t)
	next := newTestIdentity(t)
	e := must(s.ada.SealIdentity(next.pub, "space"))
	if got := must(next.OpenIdentity(e, s.ada.pub)); got.ID() != s.ada.ID() {
		t.Errorf("it became %s", got.ID())
	}
	own := must(s.ada.SealIdentity(s.ada.pub, "space"))
	if _, err := s.ada.OpenIdentity(own, s.ada.pub); err != nil {
		t.Errorf("sealed to itself: %v", err)
	}
	// Mallory offers a key of her own making, and Ada's own under her name.
	if _, err := next.OpenIdentity(must(s.mallory.SealIdentity(next.pub, "space")), s.ada.pub); !errors.Is(err, ErrForged) {
		t.Errorf("from another member: %v", err)
	}
	lifted := must(s.mallory.Seal(next.pub, nil, Header{Purpose: PurposeIdentity}, must(s.ada.MarshalPKCS8())))
	if _, err := next.OpenIdentity(lifted, s.mallory.pub); !errors.Is(err, ErrMalformed) {
		t.Errorf("another's key: %v", err)
	}
	if _, err := next.OpenIdentity(must(s.ada.Seal(next.pub, nil, Header{Purpose: PurposeSay}, must(s.ada.MarshalPKCS8()))), s.ada.pub); !errors.Is(err, ErrPurpose) {
		t.Errorf("as a say: %v", err)
	}
}
