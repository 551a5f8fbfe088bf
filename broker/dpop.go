package broker

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// A Confirmation binds an instance's token to a key (RFC 7800): whoever uses it shows a DPoP
// proof (RFC 9449) with every call, so that a stolen token alone is worth nothing.
type Confirmation struct {
	// JKT is the key's thumbprint, base64url(SHA-256) as RFC 7638 has it; see [Thumbprint].
	JKT string `json:"jkt"`
}

// proofSkew is how far the clock of a proof may be off, either way.
const proofSkew = 120 * time.Second

// A clockError is a proof that is right but for its time. Its holder has shown the key, and
// is told: a clock that is off looks like nothing else.
type clockError struct{ off time.Duration } // how far the caller's clock is ahead

func (e *clockError) Error() string { return "a proof's time is off" }

// A jwk is a public key (RFC 7517) of one of the two kinds that proofs are signed with.
type jwk struct {
	Kty string `json:"kty"`
	Crv string `json:"crv"`
	X   string `json:"x"`
	Y   string `json:"y,omitempty"`
}

var errProof = errors.New("no valid proof")

// key returns the public key, and the signature algorithm that goes with it.
func (k *jwk) key() (key crypto.PublicKey, alg string, err error) {
	x, err := decode64(k.X)
	if err != nil || len(x) != 32 {
		return nil, "", errProof
	}
	switch {
	case k.Kty == "OKP" && k.Crv == "Ed25519" && k.Y == "":
		return ed25519.PublicKey(x), "EdDSA", nil
	case k.Kty == "EC" && k.Crv == "P-256":
		y, err := decode64(k.Y)
		if err != nil || len(y) != 32 {
			return nil, "", errProof
		}
		pk, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), append(append([]byte{4}, x...), y...))
		if err != nil {
			return nil, "", errProof
		}
		return pk, "ES256", nil
	}
	return nil, "", errProof
}

// thumbprint is RFC 7638's: the required members alone, in order.
func (k *jwk) thumbprint() string {
	s := fmt.Sprintf(`{"crv":%q,"kty":%q,"x":%q}`, k.Crv, k.Kty, k.X)
	if k.Kty == "EC" {
		s = fmt.Sprintf(`{"crv":%q,"kty":%q,"x":%q,"y":%q}`, k.Crv, k.Kty, k.X, k.Y)
	}
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

func jwkOf(key crypto.PublicKey) (*jwk, error) {
	enc := base64.RawURLEncoding.EncodeToString
	switch k := key.(type) {
	case ed25519.PublicKey:
		return &jwk{Kty: "OKP", Crv: "Ed25519", X: enc(k)}, nil
	case *ecdsa.PublicKey:
		b, err := k.Bytes()
		if err != nil || k.Curve != elliptic.P256() {
			break
		}
		return &jwk{Kty: "EC", Crv: "P-256", X: enc(b[1:33]), Y: enc(b[33:])}, nil
	}
	return nil, errors.New("a key of proofs is Ed25519 or ECDSA on P-256")
}

// Thumbprint returns what binds a token to a key: Ed25519 or ECDSA on P-256.
func Thumbprint(key crypto.PublicKey) (string, error) {
	k, err := jwkOf(key)
	if err != nil {
		return "", err
	}
	return k.thumbprint(), nil
}

// A proof's claims.
type proofClaims struct {
	Method string `json:"htm"`
	URL    string `json:"htu"`
	Token  string `json:"ath"` // base64url(SHA-256(the access token))
	ID     string `json:"jti"`
	Issued int64  `json:"iat"`
}

// Nothing is left to the library's own look at times: iat alone counts, below.
func (c proofClaims) GetExpirationTime() (*jwt.NumericDate, error) { return nil, nil }
func (c proofClaims) GetIssuedAt() (*jwt.NumericDate, error)       { return nil, nil }
func (c proofClaims) GetNotBefore() (*jwt.NumericDate, error)      { return nil, nil }
func (c proofClaims) GetIssuer() (string, error)                   { return "", nil }
func (c proofClaims) GetSubject() (string, error)                  { return "", nil }
func (c proofClaims) GetAudience() (jwt.ClaimStrings, error)       { return nil, nil }

// checkProof holds a request's proof against the key that its token is bound to. What it
// returns is remembered by whoever takes the proof.
func (c *tokenChecker) checkProof(r *http.Request, token, jkt string) (id string, err error) {
	hs := r.Header.Values("DPoP")
	if len(hs) != 1 || len(hs[0]) > 4096 {
		return "", errProof
	}
	var claims proofClaims
	parser := jwt.NewParser(jwt.WithValidMethods([]string{"EdDSA", "ES256"}), jwt.WithStrictDecoding(), jwt.WithoutClaimsValidation())
	_, err = parser.ParseWithClaims(hs[0], &claims, func(t *jwt.Token) (any, error) {
		if t.Header["typ"] != "dpop+jwt" || t.Header["crit"] != nil {
			return nil, errProof
		}
		raw, err := json.Marshal(t.Header["jwk"])
		if err != nil {
			return nil, errProof
		}
		var k jwk
		var private struct {
			D string `json:"d"`
		}
		if json.Unmarshal(raw, &k) != nil || json.Unmarshal(raw, &private) != nil || private.D != "" {
			return nil, errProof
		}
		key, alg, err := k.key()
		if err != nil || t.Method.Alg() != alg || subtle.ConstantTimeCompare([]byte(k.thumbprint()), []byte(jkt)) != 1 {
			return nil, errProof
		}
		return key, nil
	})
	sum := sha256.Sum256([]byte(token))
	if err != nil || claims.Method != r.Method || claims.URL != c.origin+r.URL.Path || claims.ID == "" || len(claims.ID) > 128 ||
		claims.Token != base64.RawURLEncoding.EncodeToString(sum[:]) {
		return "", errProof
	}
	now := c.now()
	if claims.Issued <= 0 || claims.Issued > 1<<40 {
		return "", errProof
	}
	if off := time.Unix(claims.Issued, 0).Sub(now.Truncate(time.Second)); off > proofSkew || off < -proofSkew {
		return "", &clockError{off}
	}
	if id = jkt + "." + claims.ID; c.proofs.known(id) {
		return "", errProof // without a call of the holder's: whoever replays it is somebody else
	}
	return id, nil
}

// A proofSet remembers the proofs of the last minutes, so that none is taken twice by this
// process. Where more come than it holds, the oldest half goes: what one instance may call
// in that time fits six times into a half.
type proofSet struct {
	mu       sync.Mutex
	new, old map[string]bool
	turned   time.Time
}

// maxProofs bounds each half.
const maxProofs = 20_000

// known says whether a proof is remembered.
func (s *proofSet) known(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.new[id] || s.old[id]
}

// first remembers a proof, and says whether it was not yet. Between known and first another
// request may have brought it.
func (s *proofSet) first(id string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	// A proof is good from 120 s before now to 120 s after: it is kept for as long.
	if s.new == nil || now.Sub(s.turned) > 2*proofSkew || len(s.new) >= maxProofs {
		s.old, s.new, s.turned = s.new, make(map[string]bool), now
	}
	if s.new[id] || s.old[id] {
		return false
	}
	s.new[id] = true
	return true
}

// SignProof makes a proof for one call: for whoever holds the key, never for the broker. to
// is the address without a query.
func SignProof(key crypto.Signer, method, to, token, id string, at time.Time) (string, error) {
	k, err := jwkOf(key.Public())
	if err != nil {
		return "", err
	}
	var m jwt.SigningMethod = jwt.SigningMethodEdDSA
	if k.Kty == "EC" {
		m = jwt.SigningMethodES256
	}
	sum := sha256.Sum256([]byte(token))
	t := jwt.NewWithClaims(m, proofClaims{method, to, base64.RawURLEncoding.EncodeToString(sum[:]), id, at.Unix()})
	t.Header["typ"], t.Header["jwk"] = "dpop+jwt", k
	return t.SignedString(key)
}
