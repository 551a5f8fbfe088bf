package broker

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
)

// A Key is 32 random bytes with a name.
type Key struct {
	ID     string
	Secret [32]byte
}

// ParseKey reads "<id>:<base64url of 32 bytes>", as "connect broker token keys" writes it.
func ParseKey(s string) (Key, error) {
	var k Key
	for i := range len(s) {
		if s[i] != ':' {
			continue
		}
		b, err := base64.RawURLEncoding.Strict().DecodeString(s[i+1:])
		if err != nil || len(b) != len(k.Secret) {
			break
		}
		k.ID = s[:i]
		copy(k.Secret[:], b)
		return k, nil
	}
	return k, errors.New("a key is written <id>:<base64url of 32 bytes>")
}

var kidPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

// Why something sealed does not open.
var (
	errUnknownKey = errors.New("sealed with a key that is not known here")
	errSealed     = errors.New("does not open")
)

// A keyring seals with its first key and opens with any, for one purpose: keys of two
// purposes never open each other's, even where an operator uses one secret for both.
type keyring struct {
	purpose string
	current string
	aead    map[string]cipher.AEAD
}

func newKeyring(purpose string, keys []Key) (*keyring, error) {
	if len(keys) == 0 {
		return nil, errors.New("there is no key")
	}
	r := &keyring{purpose: purpose, current: keys[0].ID, aead: make(map[string]cipher.AEAD)}
	for _, k := range keys {
		if !kidPattern.MatchString(k.ID) {
			return nil, errors.New("a key's id is 1 to 32 letters, digits, _ or -")
		}
		if _, twice := r.aead[k.ID]; twice {
			return nil, fmt.Errorf("two keys are called %q", k.ID)
		}
		if k.Secret == [32]byte{} {
			return nil, fmt.Errorf("the key %q is all zeros", k.ID)
		}
		sub, err := hkdf.Key(sha256.New, k.Secret[:], nil, "connect/v1 "+purpose, 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(sub)
		if err != nil {
			return nil, err
		}
		if r.aead[k.ID], err = cipher.NewGCM(block); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// seal returns the current key's id and nonce ‖ ciphertext. with is bound to it.
func (r *keyring) seal(plaintext []byte, with ...string) (kid string, sealed []byte) {
	a := r.aead[r.current]
	nonce := make([]byte, a.NonceSize(), a.NonceSize()+len(plaintext)+a.Overhead())
	rand.Read(nonce)
	return r.current, a.Seal(nonce, nonce, plaintext, r.ad(r.current, with))
}

func (r *keyring) open(kid string, sealed []byte, with ...string) ([]byte, error) {
	a, ok := r.aead[kid]
	if !ok {
		return nil, errUnknownKey
	}
	if len(sealed) < a.NonceSize() {
		return nil, errSealed
	}
	pt, err := a.Open(nil, sealed[:a.NonceSize()], sealed[a.NonceSize():], r.ad(kid, with))
	if err != nil {
		return nil, errSealed
	}
	return pt, nil
}

// ad is the associated data: each part behind its length, so that no two lists are one.
func (r *keyring) ad(kid string, with []string) []byte {
	var b []byte
	for _, s := range append([]string{"connect/v1 " + r.purpose, kid}, with...) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}
