package broker

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A Key is 32 random bytes with a name.
type Key struct {
	ID     string
	Secret [32]byte
}

func (k Key) String() string { return "key " + k.ID }

// GoString keeps %#v from printing the key.
func (k Key) GoString() string { return k.String() }

// Format keeps every verb from printing the key.
func (k Key) Format(f fmt.State, _ rune) { fmt.Fprint(f, k.String()) }

// MarshalText keeps encoders from writing the key.
func (k Key) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// LogValue keeps log/slog from printing the key.
func (k Key) LogValue() slog.Value { return slog.StringValue(k.String()) }

// A KeySource holds the keys of one purpose where they may change while a broker runs. It is
// asked at the first use, never at start.
type KeySource interface {
	// Keys returns the keys: the first seals, all open.
	Keys(ctx context.Context) ([]Key, error)
}

// ParseKey reads "<id>:<base64url of 32 bytes>", as "connect broker token keys" writes it.
func ParseKey(s string) (Key, error) {
	var k Key
	for i := range len(s) {
		if s[i] != ':' {
			continue
		}
		b, err := decode64(s[i+1:])
		if err != nil || len(b) != len(k.Secret) {
			break
		}
		k.ID = s[:i]
		copy(k.Secret[:], b)
		return k, nil
	}
	return k, errors.New("a key is written <id>:<base64url of 32 bytes>")
}

// decode64 reads base64url without padding in its one form: the library's decoder passes over
// line breaks.
func decode64(s string) ([]byte, error) {
	if strings.ContainsAny(s, "\r\n") {
		return nil, errors.New("a line break in base64url")
	}
	return base64.RawURLEncoding.Strict().DecodeString(s)
}

var kidPattern = word{1, 32}

// Why something sealed does not open.
var (
	errUnknownKey = errors.New("sealed with a key that is not known here")
	errSealed     = errors.New("does not open")
)

// A keyring seals with its first key and opens with any, for one purpose: keys of two
// purposes never open each other's, even where an operator uses one secret for both.
type keyring struct {
	purpose string
	source  KeySource // nil: the keys are fixed
	now     func() time.Time
	keys    atomic.Pointer[keys]

	mu    sync.Mutex // held while the source is asked
	asked time.Time
	read  time.Time // when the source last answered
}

type keys struct {
	current string
	aead    map[string]cipher.AEAD
}

const (
	keyLife = 5 * time.Minute // for which a source's answer is taken as it is
	keyRest = 5 * time.Second // between two questions that an unknown key gives rise to
)

// newKeyring makes a keyring of fixed keys, or of a source's.
func newKeyring(purpose string, fixed []Key, source KeySource, now func() time.Time) (*keyring, error) {
	r := &keyring{purpose: purpose, source: source, now: now}
	if source != nil {
		if len(fixed) > 0 {
			return nil, errors.New("there are keys, and a source of keys too")
		}
		return r, nil
	}
	k, err := newKeys(purpose, fixed)
	r.keys.Store(k)
	return r, err
}

func newKeys(purpose string, list []Key) (*keys, error) {
	if len(list) == 0 {
		return nil, errors.New("there is no key")
	}
	r := &keys{current: list[0].ID, aead: make(map[string]cipher.AEAD)}
	for _, k := range list {
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

// ready makes sure that seal has a key. Where the source does not answer, what it said before
// goes on being used.
func (r *keyring) ready(ctx context.Context) error {
	if r.source == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.keys.Load() != nil && r.now().Sub(r.read) < keyLife {
		return nil
	}
	return r.ask(ctx, keyRest)
}

// ask asks the source, unless it was asked within rest; mu is held.
func (r *keyring) ask(ctx context.Context, rest time.Duration) error {
	known := r.keys.Load() != nil
	if known && r.now().Sub(r.asked) < rest {
		return nil
	}
	r.asked = r.now()
	list, err := r.source.Keys(ctx)
	if err == nil {
		var k *keys
		if k, err = newKeys(r.purpose, list); err == nil {
			r.keys.Store(k)
			r.read = r.now()
			return nil
		}
	}
	if known {
		return nil
	}
	return err
}

// seal returns the current key's id and nonce ‖ ciphertext. with is bound to it. The keyring
// is ready.
func (r *keyring) seal(plaintext []byte, with ...string) (kid string, sealed []byte) {
	k := r.keys.Load()
	a := k.aead[k.current]
	nonce := make([]byte, a.NonceSize(), a.NonceSize()+len(plaintext)+a.Overhead())
	rand.Read(nonce)
	return k.current, a.Seal(nonce, nonce, plaintext, r.ad(k.current, with))
}

// key returns the key called kid. One that is not known may be newer than what is: another
// process seals with it already.
func (r *keyring) key(kid string) cipher.AEAD {
	if k := r.keys.Load(); k != nil && k.aead[kid] != nil || r.source == nil {
		return k.aead[kid]
	}
	if !kidPattern.MatchString(kid) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ask(context.Background(), keyRest) != nil {
		return nil
	}
	return r.keys.Load().aead[kid]
}

func (r *keyring) open(kid string, sealed []byte, with ...string) ([]byte, error) {
	a := r.key(kid)
	if a == nil {
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
	b := make([]byte, 0, 256)
	for _, s := range append([]string{"connect/v1 " + r.purpose, kid}, with...) {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	return b
}
