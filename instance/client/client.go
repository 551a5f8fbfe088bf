// Package client speaks to an instance: it logs in with an identity, posts and receives
// envelopes, and keeps blobs by compare-and-set.
//
// What an instance says of keys may be a lie: whoever calls Member or Members pins what it
// takes. Envelopes go in and come out sealed; nothing of them is logged, and the session is
// in memory alone.
package client

import (
	"bytes"
	"context"
	"crypto/ecdh"
	"crypto/hpke"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/elevenmessenger/connect/custody"
)

// The bounds of one request.
const (
	requestTimeout = 30 * time.Second
	maxAnswer      = 4 << 20
	tries          = 4 // of a request that may be sent again
)

// Options say how an instance is reached and joined. The zero value works for a key that has
// joined before.
type Options struct {
	// Space is the space that is expected; empty takes the one that the instance names.
	Space string
	// Join is what a key that is not known yet joins with; nil joins nothing.
	Join *Join
	// HTTPClient is used for everything; nil means one with bounded times. Redirects are not
	// followed.
	HTTPClient *http.Client
}

// A Join says what a key is in its space.
type Join struct {
	Kind   string `json:"kind"` // "member" or "bot"
	Name   string `json:"name,omitzero"`
	Group  string `json:"group,omitzero"`  // of a bot
	Invite string `json:"invite,omitzero"` // the space's, where it asks for one
}

// A Client is one key's way to an instance. It is safe for use by several goroutines.
type Client struct {
	origin   string
	identity *custody.Identity
	opt      Options
	http     *http.Client
	space    string

	mu      sync.Mutex // held while logging in
	session string
}

// Dial logs in to the instance at origin, such as https://chat.example.
func Dial(ctx context.Context, origin string, identity *custody.Identity, opt Options) (*Client, error) {
	if identity == nil {
		return nil, errors.New("client: there is no identity")
	}
	c, err := newClient(origin, opt)
	if err != nil {
		return nil, err
	}
	c.identity = identity
	if _, err := c.login(ctx, ""); err != nil {
		return nil, err
	}
	return c, nil
}

func newClient(origin string, opt Options) (*Client, error) {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" || u.User != nil || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, errors.New("client: an instance is named by its origin, such as https://chat.example")
	}
	ip := net.ParseIP(u.Hostname())
	if local := u.Hostname() == "localhost" || ip != nil && ip.IsLoopback(); u.Scheme == "http" && !local {
		return nil, errors.New("client: plain http is for an instance on this machine; a session would travel in it")
	}
	base := http.Client{Transport: http.DefaultTransport}
	if opt.HTTPClient != nil {
		base = *opt.HTTPClient
	}
	base.Timeout = 0 // a stream lasts; requests have a deadline each
	base.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{origin: u.Scheme + "://" + u.Host, opt: opt, http: &base, space: opt.Space}, nil
}

// Space returns the id of the instance's space, which every envelope names.
func (c *Client) Space() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.space
}

// Logout ends the session.
func (c *Client) Logout(ctx context.Context) error {
	c.mu.Lock()
	session := c.session
	c.session = ""
	c.mu.Unlock()
	if session == "" {
		return nil
	}
	return c.once(ctx, http.MethodDelete, "/api/session", session, nil, nil)
}

// login returns a session that is not stale, a new one where there is no other.
func (c *Client) login(ctx context.Context, stale string) (string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != "" && c.session != stale {
		return c.session, nil
	}
	var begun struct {
		Space  string        `json:"space"`
		Sealed custody.Bytes `json:"sealed"`
	}
	key := map[string]any{"key": c.identity.Public()}
	if err := c.once(ctx, http.MethodPost, "/api/login", "", key, &begun); err != nil {
		return "", err
	}
	switch {
	case c.space == "":
		c.space = begun.Space
	case begun.Space != c.space:
		return "", fmt.Errorf("client: the instance is of another space than %q", c.space)
	}
	nonce, err := openNonce(c.identity, c.space, begun.Sealed)
	if err != nil {
		return "", err
	}
	proof := map[string]any{"key": c.identity.Public(), "nonce": custody.Bytes(nonce)}
	if c.opt.Join != nil {
		proof["join"] = c.opt.Join
	}
	var done struct {
		Session string `json:"session"`
	}
	if err := c.once(ctx, http.MethodPost, "/api/session", "", proof, &done); err != nil {
		return "", err
	}
	if done.Session == "" {
		return "", errAnswer
	}
	c.session = done.Session
	return c.session, nil
}

// openNonce opens what only the key opens: it is bound to the login of one space, so that no
// envelope can be passed off as a nonce.
func openNonce(identity *custody.Identity, space string, sealed []byte) ([]byte, error) {
	der, err := identity.MarshalPKCS8()
	if err != nil {
		return nil, err
	}
	defer clear(der)
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	k, ok := parsed.(interface {
		ECDH() (*ecdh.PrivateKey, error)
	})
	if !ok {
		return nil, errors.New("client: the identity is not a key of P-256")
	}
	key, err := k.ECDH()
	if err != nil {
		return nil, err
	}
	own, err := hpke.NewDHKEMPrivateKey(key)
	if err != nil {
		return nil, err
	}
	info := binary.BigEndian.AppendUint32([]byte("connect/v1 login"), uint32(len(space)))
	nonce, err := hpke.Open(own, hpke.HKDFSHA256(), hpke.AES256GCM(), append(info, space...), sealed)
	if err != nil {
		return nil, errors.New("client: the instance's nonce does not open with this key")
	}
	return nonce, nil
}

// call sends a request of the session's. One that was answered with a passing failure, or
// whose answer was lost, is sent again: every route takes the same request twice as once.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	session, err := c.login(ctx, "")
	renewed := false
	for try := 0; ; try++ {
		if err == nil {
			err = c.once(ctx, method, path, session, in, out)
		}
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case errors.Is(err, ErrSession) && !renewed:
			renewed = true
			session, err = c.login(ctx, session)
			continue
		case !passing(err) || try+1 >= tries:
			return err
		}
		if err := pause(ctx, try, err); err != nil {
			return err
		}
		session, err = c.login(ctx, "")
	}
}

// pause waits before another try: as long as the instance says, else a random part of a time
// that doubles.
func pause(ctx context.Context, try int, cause error) error {
	wait := rand.N(min(250*time.Millisecond<<min(try, 7), 30*time.Second)) + 10*time.Millisecond
	var e *Error
	if errors.As(cause, &e) {
		wait = max(wait, min(e.RetryAfter, time.Minute))
	}
	t := time.NewTimer(wait)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// once sends one request and reads its answer.
func (c *Client) once(ctx context.Context, method, path, session string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.origin+path, body)
	if err != nil {
		return err
	}
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if session != "" {
		req.Header.Set("Authorization", "Bearer "+session)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return unreachable(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer+1))
	switch {
	case err != nil:
		return unreachable(err)
	case len(data) > maxAnswer:
		return fmt.Errorf("%w: it has more than %d bytes", errAnswer, maxAnswer)
	case res.StatusCode != http.StatusOK:
		return answerError(res, data)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return errAnswer
	}
	return nil
}

func answerError(res *http.Response, data []byte) error {
	var in struct {
		Error struct {
			Code       string `json:"code"`
			Message    string `json:"message"`
			Generation int64  `json:"generation"`
		} `json:"error"`
	}
	e := &Error{Status: res.StatusCode}
	if json.Unmarshal(data, &in) == nil {
		e.Code, e.Message, e.Generation = word(in.Error.Code), line(in.Error.Message), in.Error.Generation
	}
	if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
		e.RetryAfter = time.Duration(min(s, 3600)) * time.Second
	}
	return e
}

// word and line keep an instance from writing whatever it likes into an error.
func word(s string) string {
	if len(s) > 40 || strings.Trim(s, "abcdefghijklmnopqrstuvwxyz_") != "" {
		return ""
	}
	return s
}

func line(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, s)
	return strings.ToValidUTF8(s[:min(len(s), 300)], "")
}
