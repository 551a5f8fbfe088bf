package broker

import (
	"crypto/ed25519"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// maxTokenLife bounds an instance's token.
const maxTokenLife = 90 * 24 * time.Hour

// An InstanceKey checks instances' tokens. The private half stays with the operator.
type InstanceKey struct {
	ID  string
	Key ed25519.PublicKey
}

// ParseInstanceKey reads "<kid>:<base64url of 32 bytes>".
func ParseInstanceKey(s string) (InstanceKey, error) {
	id, text, ok := strings.Cut(s, ":")
	b, err := decode64(text)
	if !ok || err != nil || len(b) != ed25519.PublicKeySize || !kidPattern.MatchString(id) {
		return InstanceKey{}, errors.New("an instance key is written <kid>:<base64url of a 32-byte Ed25519 public key>")
	}
	return InstanceKey{id, b}, nil
}

// Claims are those of an instance's token.
type Claims struct {
	Origins []string      `json:"origins"`       // whose wrapped tokens its holder may have refreshed
	Bound   *Confirmation `json:"cnf,omitempty"` // the key whose proof every call needs; nil: none
	jwt.RegisteredClaims
}

// SignToken makes an instance's token: for an operator's machine, never for the broker.
func SignToken(key ed25519.PrivateKey, kid string, c Claims) (string, error) {
	if c.ExpiresAt == nil || c.IssuedAt == nil || c.ExpiresAt.Sub(c.IssuedAt.Time) > maxTokenLife || c.ID == "" || c.Issuer == "" || len(c.Audience) != 1 {
		return "", errors.New("a token has iss, aud, iat, exp of at most 90 days, and jti")
	}
	if err := checkOrigins(c.Origins); err != nil {
		return "", err
	}
	if c.Bound != nil && !keyID.MatchString(c.Bound.JKT) {
		return "", errors.New("a token is bound to a key's thumbprint: base64url of 32 bytes")
	}
	t := jwt.NewWithClaims(jwt.SigningMethodEdDSA, c)
	t.Header["kid"] = kid
	return t.SignedString(key)
}

func checkOrigins(origins []string) error {
	if len(origins) == 0 || len(origins) > 64 {
		return errors.New("a token holds 1 to 64 origins")
	}
	for _, o := range origins {
		if member, ok := strings.CutPrefix(o, "cli:"); ok && keyID.MatchString(member) {
			continue
		}
		if c, err := parseOrigin(o); err != nil || c != o {
			return fmt.Errorf("%q is neither a canonical origin nor cli:<key id>", o)
		}
	}
	return nil
}

type tokenChecker struct {
	keys    map[string]ed25519.PublicKey
	refused []string
	parser  *jwt.Parser
	times   *jwt.Validator
	origin  string // of the broker
	now     func() time.Time
	proofs  proofSet

	mu    sync.Mutex
	known map[[32]byte]*Claims // whose signature was checked, by the token's digest
	rate  buckets
}

func newTokenChecker(cfg Config, origin string) (*tokenChecker, error) {
	c := &tokenChecker{keys: make(map[string]ed25519.PublicKey), refused: cfg.Refused, origin: origin, now: cfg.Now}
	switch {
	case cfg.InstanceRate == 0:
		c.rate.perSecond = 10
	case cfg.InstanceRate > 0:
		c.rate.perSecond = float64(cfg.InstanceRate)
	}
	for _, k := range cfg.InstanceKeys {
		if !kidPattern.MatchString(k.ID) || len(k.Key) != ed25519.PublicKeySize {
			return nil, errors.New("a key has an id of 1 to 32 letters, digits, _ or - and 32 bytes")
		}
		if c.keys[k.ID] != nil {
			return nil, fmt.Errorf("two keys are called %q", k.ID)
		}
		c.keys[k.ID] = k.Key
	}
	claims := []jwt.ParserOption{jwt.WithAudience(origin), jwt.WithIssuedAt(), jwt.WithExpirationRequired(), jwt.WithLeeway(time.Minute), jwt.WithTimeFunc(cfg.Now)}
	c.times = jwt.NewValidator(claims...)
	c.parser = jwt.NewParser(append(claims, jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithStrictDecoding())...)
	return c, nil
}

var errToken = errors.New("no valid instance token")

// maxAuthorization bounds the header that carries a token.
const maxAuthorization = 8192

// check returns the claims of a request's token, and takes one call of its instance's. Every
// fault of the token is the same error, but for a clockError: what else is wrong with it is
// nothing for its holder to learn here. A call too many is a *RefreshError, with the claims.
func (c *tokenChecker) check(r *http.Request) (*Claims, error) {
	auth := r.Header.Values("Authorization")
	if len(auth) != 1 || len(auth[0]) > maxAuthorization {
		return nil, errToken
	}
	scheme, text, ok := strings.Cut(auth[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") && !strings.EqualFold(scheme, "DPoP") {
		return nil, errToken
	}
	claims, err := c.read(text)
	if err != nil {
		return nil, err
	}
	proof := ""
	if claims.Bound != nil {
		if proof, err = c.checkProof(r, text, claims.Bound.JKT); err != nil {
			return nil, err
		}
	}
	if wait := c.rate.take(claims.Issuer, c.now()); wait > 0 {
		return claims, &RefreshError{Class: Temporary, Code: "too_many", RetryAfter: wait}
	}
	// Only now: a holder over the limit would push others' proofs out of the memory.
	if proof != "" && !c.proofs.first(proof, c.now()) {
		return nil, errProof
	}
	return claims, nil
}

// maxKnown bounds how many tokens are remembered.
const maxKnown = 1024

// read returns the claims of a token. An instance sends the same one for weeks: its signature
// is checked once, its times whenever it comes.
func (c *tokenChecker) read(text string) (*Claims, error) {
	digest := sha256.Sum256([]byte(text))
	c.mu.Lock()
	claims := c.known[digest]
	c.mu.Unlock()
	if claims != nil {
		if c.times.Validate(claims) != nil {
			return nil, errToken
		}
		return claims, nil
	}
	claims = new(Claims)
	_, err := c.parser.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		if k, ok := c.keys[kid]; ok && t.Header["crit"] == nil {
			return k, nil
		}
		return nil, errToken
	})
	if err != nil || claims.IssuedAt == nil || claims.ExpiresAt.Sub(claims.IssuedAt.Time) > maxTokenLife || claims.ID == "" || claims.Issuer == "" ||
		checkOrigins(claims.Origins) != nil || slices.Contains(c.refused, claims.ID) || slices.Contains(c.refused, claims.Issuer) {
		return nil, errToken
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= maxKnown {
		c.known = make(map[[32]byte]*Claims)
	}
	c.known[digest] = claims
	return claims, nil
}

// explain says why a token is turned away. Whether it is, read alone decides.
func (c *tokenChecker) explain(text string) (*Claims, error) {
	claims, err := c.read(text)
	long := len("Bearer ")+len(text) > maxAuthorization
	if err == nil && !long {
		return claims, nil
	}
	claims = new(Claims)
	t, parts, err := jwt.NewParser().ParseUnverified(text, claims)
	if err != nil || long {
		return nil, errors.New("it is not a token that \"connect broker token sign\" makes")
	}
	kid, _ := t.Header["kid"].(string)
	key, known := c.keys[kid]
	sig, err := decode64(parts[2])
	now := c.now()
	switch {
	case !known && len(c.keys) == 0:
		return nil, errors.New("no instance key is configured, so that no token is taken")
	case !known && kidPattern.MatchString(kid):
		return nil, fmt.Errorf("it names the key %q, which is none of the instance keys", kid)
	case !known:
		return nil, errors.New("it names no key")
	case t.Method.Alg() != "EdDSA" || err != nil || !ed25519.Verify(key, []byte(parts[0]+"."+parts[1]), sig):
		return nil, fmt.Errorf("its signature is not by the instance key %q: two pairs have that name, or the file was cut", kid)
	case !slices.Contains(claims.Audience, c.origin):
		return nil, fmt.Errorf("it is for another broker: its audience is not %s, letter for letter", c.origin)
	case claims.ExpiresAt == nil || claims.IssuedAt == nil:
		return nil, errors.New("it does not say from when to when it is valid")
	case now.After(claims.ExpiresAt.Add(time.Minute)):
		return nil, fmt.Errorf("it ended on %s", claims.ExpiresAt.UTC().Format(time.DateOnly))
	case claims.IssuedAt.After(now.Add(time.Minute)):
		return nil, fmt.Errorf("it was made at %s, which has not come yet by this clock", claims.IssuedAt.UTC().Format(time.RFC3339))
	case claims.ExpiresAt.Sub(claims.IssuedAt.Time) > maxTokenLife:
		return nil, errors.New("it lives longer than 90 days")
	case slices.Contains(c.refused, claims.ID) || slices.Contains(c.refused, claims.Issuer):
		return nil, errors.New("its id or its issuer is among those that are refused")
	case checkOrigins(claims.Origins) != nil:
		return nil, errors.New("its origins are none, over 64, or not in their canonical form")
	}
	return nil, errors.New("it lacks an id or an issuer, is not valid yet, or says what is not known here")
}

// buckets hold how many calls each instance may still make of this process: a stolen token
// is no tireless oracle. They are one process's memory; behind a gateway its throttle stands
// beside them.
type buckets struct {
	perSecond float64 // 0: no limit; a minute's worth at once

	mu sync.Mutex
	of map[string]*bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// maxBuckets bounds the memory; those that are full again go first.
const maxBuckets = 10_000

// take takes one call of an instance's. wait is how long until there is one, 0 where there was.
func (b *buckets) take(instance string, now time.Time) (wait time.Duration) {
	if b.perSecond <= 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	most := 60 * b.perSecond
	if b.of == nil || len(b.of) >= maxBuckets && b.of[instance] == nil {
		full := func(_ string, e *bucket) bool { return e.left+now.Sub(e.at).Seconds()*b.perSecond >= most }
		maps.DeleteFunc(b.of, full)
		if b.of == nil || len(b.of) >= maxBuckets {
			b.of = make(map[string]*bucket)
		}
	}
	e := b.of[instance]
	if e == nil {
		e = &bucket{most, now}
		b.of[instance] = e
	}
	if d := now.Sub(e.at); d > 0 {
		e.left = min(most, e.left+d.Seconds()*b.perSecond)
		e.at = now
	}
	if e.left < 1 {
		return time.Duration((1 - e.left) / b.perSecond * float64(time.Second))
	}
	e.left--
	return 0
}
