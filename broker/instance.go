package broker

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
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
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if !ok || err != nil || len(b) != ed25519.PublicKeySize || !kidPattern.MatchString(id) {
		return InstanceKey{}, errors.New("an instance key is written <kid>:<base64url of a 32-byte Ed25519 public key>")
	}
	return InstanceKey{id, b}, nil
}

// Claims are those of an instance's token.
type Claims struct {
	Origins []string `json:"origins"` // whose wrapped tokens its holder may have refreshed
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
	now     func() time.Time
}

func newTokenChecker(cfg Config, origin string) (*tokenChecker, error) {
	c := &tokenChecker{keys: make(map[string]ed25519.PublicKey), refused: cfg.Refused, now: cfg.Now}
	for _, k := range cfg.InstanceKeys {
		if !kidPattern.MatchString(k.ID) || len(k.Key) != ed25519.PublicKeySize {
			return nil, errors.New("a key has an id of 1 to 32 letters, digits, _ or - and 32 bytes")
		}
		if c.keys[k.ID] != nil {
			return nil, fmt.Errorf("two keys are called %q", k.ID)
		}
		c.keys[k.ID] = k.Key
	}
	c.parser = jwt.NewParser(jwt.WithValidMethods([]string{"EdDSA"}), jwt.WithAudience(origin), jwt.WithIssuedAt(),
		jwt.WithExpirationRequired(), jwt.WithLeeway(time.Minute), jwt.WithTimeFunc(cfg.Now), jwt.WithStrictDecoding())
	return c, nil
}

var errToken = errors.New("no valid instance token")

// check returns the claims of a request's token. Every fault is the same error: what is
// wrong with a token is nothing for its holder to learn here.
func (c *tokenChecker) check(r *http.Request) (*Claims, error) {
	auth := r.Header.Values("Authorization")
	if len(auth) != 1 || len(auth[0]) > 8192 {
		return nil, errToken
	}
	scheme, text, ok := strings.Cut(auth[0], " ")
	if !ok || !strings.EqualFold(scheme, "Bearer") {
		return nil, errToken
	}
	claims := new(Claims)
	_, err := c.parser.ParseWithClaims(text, claims, func(t *jwt.Token) (any, error) {
		kid, _ := t.Header["kid"].(string)
		if k, ok := c.keys[kid]; ok {
			return k, nil
		}
		return nil, errToken
	})
	if err != nil || claims.IssuedAt == nil || claims.ExpiresAt.Sub(claims.IssuedAt.Time) > maxTokenLife || claims.ID == "" || claims.Issuer == "" ||
		checkOrigins(claims.Origins) != nil || slices.Contains(c.refused, claims.ID) || slices.Contains(c.refused, claims.Issuer) {
		return nil, errToken
	}
	return claims, nil
}
