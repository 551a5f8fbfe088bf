package broker

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// Wrap is what a refresh token of the provider's leaves the broker as.
func (b *Broker) Wrap(service, origin, refresh string) string {
	return b.wrapToken(service, wrapped{refresh: refresh, origin: origin})
}

// WrapKept is Wrap where the provider gave a value beside the pair, by which it ends the
// connection.
func (b *Broker) WrapKept(service, origin, refresh, value string) string {
	return b.wrapToken(service, wrapped{refresh, origin, vouch(value)})
}

// Unwrap is the way back.
func (b *Broker) Unwrap(service string, origins []string, wrapped string) (refresh, origin string, err error) {
	w, err := b.unwrapToken(service, origins, wrapped)
	return w.refresh, w.origin, err
}

// DialUpstream dials as the client of token endpoints does.
func DialUpstream(cfg Config, addr string) (net.Conn, error) {
	u, err := newUpstream(cfg)
	if err != nil {
		return nil, err
	}
	return u.transport.DialContext(context.Background(), "tcp", addr)
}

// WithResolver makes a configuration look names up elsewhere.
func WithResolver(cfg *Config, r *net.Resolver) { cfg.resolver = r }

// A TokenAnswer is what ReadToken made of an answer.
type TokenAnswer struct {
	Access, Refresh string
	ExpiresIn       int64
	Scopes          []string
	Scoped          bool
	Keep            map[string]string
}

// ReadToken reads a token endpoint's answer.
func ReadToken(o *integrations.OAuth, status int, header http.Header, body []byte, now time.Time) (*TokenAnswer, error) {
	a, err := readToken(o, &reply{status, header, body}, now)
	if err != nil {
		return nil, err
	}
	return &TokenAnswer{a.access, a.refresh, a.expiresIn, a.scopes, a.scoped, a.keep}, nil
}

// GoodToken says whether a text can be a provider's token.
var GoodToken = goodToken

// MissingScopes compares what was granted with what was asked.
func MissingScopes(o *integrations.OAuth, asked []string, a *TokenAnswer) (missing []string, wider bool) {
	v := compareScopes(o, asked, &tokenAnswer{scopes: a.Scopes, scoped: a.Scoped})
	return v.missing, v.wider
}
