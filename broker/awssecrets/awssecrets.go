// Package awssecrets keeps OAuth clients and the broker's own keys in AWS Secrets Manager.
//
// A service's client is the secret <prefix>/<service>, which its operator makes:
// {"client_id": …, "client_secret": …, "hosts"?: […]}. Its present version is AWSCURRENT, the
// one before AWSPREVIOUS. The caching is [broker.Cache]'s.
package awssecrets

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/broker"
)

// Stages of a secret's versions. A stage is always named: without one, some
// implementations answer from a cache that a rotation has overtaken.
const (
	current  = "AWSCURRENT"
	previous = "AWSPREVIOUS"
)

// A Store is a [broker.Store] over Secrets Manager.
type Store struct {
	Client *Client
	Prefix string // "" means connect/oauth
}

// New returns a SecretSource over Secrets Manager. Its other fields may be set before it is
// used.
func New(c *Client, prefix string) *broker.Cache {
	return &broker.Cache{Store: Store{c, prefix}}
}

// isServiceID: a lower-case letter, then at most 19 letters, digits or hyphens. The patterns
// here are code: compiled at start, they would take as long as all else that a function does
// before its first event.
func isServiceID(s string) bool {
	return s != "" && len(s) <= 20 && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

// Version reads one version of a service's client.
func (s Store) Version(ctx context.Context, service string, before bool) (broker.Client, error) {
	if !isServiceID(service) {
		return broker.Client{}, broker.ErrNoClient
	}
	prefix := s.Prefix
	if prefix == "" {
		prefix = "connect/oauth"
	}
	stage := current
	if before {
		stage = previous
	}
	text, err := s.Client.value(ctx, prefix+"/"+service, stage)
	if err != nil {
		return broker.Client{}, err
	}
	c, err := broker.ParseClient([]byte(text))
	if err != nil {
		return c, fmt.Errorf("awssecrets: %s, %s: %w", service, stage, err)
	}
	return c, nil
}

// An Error is a question that Secrets Manager did not answer. It holds the code of the
// failure and nothing else: what lies under it names hosts, and what an answer says is a text
// from outside.
type Error struct {
	Code string // such as AccessDeniedException; "" where there was no answer
}

func (e *Error) Error() string {
	if e.Code == "" {
		return "awssecrets: Secrets Manager did not answer"
	}
	return "awssecrets: Secrets Manager answered " + e.Code
}

// Keys is a [broker.KeySource] over one secret: state or wrapping keys. The present version's
// keys come first, so that they seal; those of the one before still open.
//
// A version holds one generated text of at least 43 letters and digits, as CloudFormation's
// GenerateSecretString makes it, from which the key and its id are derived; or several such
// texts, or keys as "<id>:<base64url of 32 bytes>", with spaces or line breaks between them,
// where more than two must still open.
type Keys struct {
	Client   *Client
	SecretID string // a name or ARN
	// Timeout bounds one question; zero means a second and a half.
	Timeout time.Duration

	mu   sync.Mutex
	last []broker.Key // of the one before, which is asked for only where the present changes
	of   string       // the id of the present key that last goes with
}

// Keys reads the keys.
func (k *Keys) Keys(ctx context.Context) ([]broker.Key, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	timeout := k.Timeout
	if timeout <= 0 {
		timeout = 1500 * time.Millisecond
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	text, err := k.Client.value(ctx, k.SecretID, current)
	if errors.Is(err, broker.ErrNoClient) {
		return nil, errors.New("awssecrets: there is no such key")
	} else if err != nil {
		return nil, err
	}
	list, err := ParseKeys(text)
	if err != nil {
		return nil, err
	}
	if k.of != list[0].ID {
		// Where this fails, what seals is known all the same, and the next question asks again.
		before, err := k.Client.value(ctx, k.SecretID, previous)
		if err == nil {
			if k.last, err = ParseKeys(before); err == nil {
				k.of = list[0].ID
			}
		} else if errors.Is(err, broker.ErrNoClient) {
			k.last, k.of = nil, list[0].ID
		}
	}
	for _, o := range k.last {
		if !has(list, o.ID) {
			list = append(list, o)
		}
	}
	return list, nil
}

func has(list []broker.Key, id string) bool {
	for _, k := range list {
		if k.ID == id {
			return true
		}
	}
	return false
}

// isGenerated: 43 to 512 letters and digits.
func isGenerated(s string) bool {
	const alphanumeric = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	return len(s) >= 43 && len(s) <= 512 && strings.Trim(s, alphanumeric) == ""
}

// ParseKeys reads a secret's text as [Keys] describes it. The error holds none of it.
func ParseKeys(text string) ([]broker.Key, error) {
	var list []broker.Key
	for _, w := range strings.Fields(text) {
		key, err := parseKey(w)
		if err != nil {
			return nil, fmt.Errorf("awssecrets: %w", err)
		}
		if has(list, key.ID) {
			return nil, errors.New("awssecrets: two keys have one id")
		}
		list = append(list, key)
	}
	if len(list) == 0 {
		return nil, errors.New("awssecrets: the secret of the keys is empty")
	}
	return list, nil
}

func parseKey(w string) (broker.Key, error) {
	if !isGenerated(w) {
		return broker.ParseKey(w)
	}
	secret := sha256.Sum256([]byte("connect/v1 key\x00" + w))
	id := sha256.Sum256(append([]byte("connect/v1 kid\x00"), secret[:]...))
	return broker.Key{ID: base64.RawURLEncoding.EncodeToString(id[:6]), Secret: secret}, nil
}
