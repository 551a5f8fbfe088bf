package broker

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"code.dny.dev/ssrf"

	"github.com/elevenmessenger/connect/integrations"
)

// maxAnswer bounds a token endpoint's answer; a longer one fails, it is never cut.
const maxAnswer = 1 << 20

// An upstream calls providers' token and revocation endpoints. It follows no redirect (a
// 307 would carry the secret elsewhere), uses no proxy, and never sends twice what may have
// been received.
type upstream struct {
	transport *http.Transport
	timeout   time.Duration
}

func newUpstream(cfg Config) (*upstream, error) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second, Resolver: cfg.resolver}
		to, ok := cfg.ConnectTo[addr]
		if !ok {
			to = addr
			if !cfg.AllowPrivate {
				d.Control = ssrf.New(ssrf.WithPorts(443)).Safe
			}
		}
		c, err := d.DialContext(ctx, network, to)
		if err != nil {
			return nil, err
		}
		return &countedConn{Conn: c}, nil
	}
	// HTTP/1.1: what becomes of one call says nothing of another's, and what was written for
	// it can be counted.
	one := new(http.Protocols)
	one.SetHTTP1(true)
	return &upstream{
		timeout: cfg.UpstreamTimeout,
		transport: &http.Transport{
			DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
			Protocols: one, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 64,
			// A frozen function finds its connections dead, and only by using them: they
			// are not kept for long. The clock that counts here goes on while it sleeps.
			IdleConnTimeout: 20 * time.Second, TLSHandshakeTimeout: 5 * time.Second,
		},
	}, nil
}

// A countedConn knows whether anything was written to it.
type countedConn struct {
	net.Conn
	written atomic.Int64
}

func (c *countedConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	return n, err
}

// A reply is what a provider answered.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// within bounds what is done at a provider for one request. It outlives the caller's
// connection, since a pair may be on its way, but not the deadline that a function has: a
// little of that is left to seal and to answer.
func (u *upstream) within(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), u.timeout)
	if !ok {
		return ctx, cancel
	}
	inner, stop := context.WithDeadline(ctx, end.Add(-time.Second))
	return inner, func() { stop(); cancel() }
}

// do sends one request. Where nothing was sent it tries once more; after that any failure is
// temporary, since the provider may have acted.
func (u *upstream) do(ctx context.Context, build func() (*http.Request, error)) (*reply, error) {
	for try := 0; ; try++ {
		req, err := build()
		if err != nil {
			return nil, &RefreshError{Class: Misconfigured, Code: "request"}
		}
		r, sent, err := u.once(ctx, req)
		switch {
		case err == nil:
			return r, nil
		case r != nil:
			return nil, &RefreshError{Class: Temporary, Code: "unreadable", Status: r.status, Spent: true}
		case !sent && try == 0 && ctx.Err() == nil:
			continue
		}
		if sent {
			// The caller learns that the token may be spent: it is not redeemed again lightly.
			return nil, &RefreshError{Class: Temporary, Code: "no_answer", Spent: true}
		}
		return nil, &RefreshError{Class: Temporary, Code: "unreachable"}
	}
}

// once sends one request, once. sent says whether the provider may have received any of it;
// the reply that comes with an error has no body.
func (u *upstream) once(ctx context.Context, req *http.Request) (r *reply, sent bool, err error) {
	var conn *countedConn
	var before int64
	req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		c := info.Conn
		if t, ok := c.(*tls.Conn); ok {
			c = t.NetConn()
		}
		if conn, _ = c.(*countedConn); conn != nil {
			before = conn.written.Load()
		}
	}}))
	req.GetBody = nil // nothing below sends it again
	resp, err := u.transport.RoundTrip(req)
	if err != nil {
		return nil, conn != nil && conn.written.Load() != before, err
	}
	r = &reply{status: resp.StatusCode, header: resp.Header}
	r.body, err = readBody(resp)
	return r, true, err
}

// readBody reads an answer whole. One that is compressed although nobody asked for that is
// unpacked: there may be a pair in it. What counts is its size then.
func readBody(resp *http.Response) ([]byte, error) {
	defer resp.Body.Close()
	var r io.Reader = resp.Body
	if strings.EqualFold(resp.Header.Get("Content-Encoding"), "gzip") {
		z, err := gzip.NewReader(resp.Body)
		if err != nil {
			return nil, err
		}
		r = z
	}
	body, err := io.ReadAll(io.LimitReader(r, maxAnswer+1))
	if err == nil && len(body) > maxAnswer {
		err = errors.New("the answer is too long")
	}
	return body, err
}

// A grantRequest is what is asked of a token endpoint.
type grantRequest struct {
	url    string
	params []integrations.Pair // the protocol's own names, in order
	extra  integrations.Pairs  // the manifest's fixed ones
}

// tokenRequest builds the request to a token endpoint as the manifest describes it.
func tokenRequest(o *integrations.OAuth, c Client, g grantRequest) (*http.Request, error) {
	params := slices.Clone(g.params)
	switch o.ClientAuth {
	case "post":
		params = append(params, integrations.Pair{Name: "client_id", Value: c.ID}, integrations.Pair{Name: "client_secret", Value: c.Secret.Reveal()})
	case "none":
		params = append(params, integrations.Pair{Name: "client_id", Value: c.ID})
	}
	for i, p := range params {
		if name, ok := o.ParamNames.Get(p.Name); ok {
			params[i].Name = name
		}
	}
	params = append(params, g.extra...)
	req, err := formOrJSON(http.MethodPost, g.url, o.TokenBody, params)
	if err != nil {
		return nil, err
	}
	basicAuth(req, o.ClientAuth, c)
	return req, nil
}

func basicAuth(req *http.Request, style string, c Client) {
	user, pass := c.ID, c.Secret.Reveal()
	switch style {
	case "basic": // RFC 6749, section 2.3.1: encoded as a form before base64
		user, pass = url.QueryEscape(user), url.QueryEscape(pass)
	case "basic_raw":
	case "basic_secret": // the secret as the user's name, and no password
		user, pass = c.Secret.Reveal(), ""
	default:
		return
	}
	req.Header.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":"+pass)))
}

func formOrJSON(method, to, encoding string, params []integrations.Pair) (*http.Request, error) {
	var body []byte
	contentType := "application/x-www-form-urlencoded"
	if encoding == "json" {
		m := make(map[string]string, len(params))
		for _, p := range params {
			m[p.Name] = p.Value
		}
		var err error
		if body, err = json.Marshal(m); err != nil {
			return nil, err
		}
		contentType = "application/json"
	} else {
		body = make([]byte, 0, 512)
		for i, p := range params {
			if i > 0 {
				body = append(body, '&')
			}
			body = append(body, url.QueryEscape(p.Name)...)
			body = append(body, '=')
			body = append(body, url.QueryEscape(p.Value)...)
		}
	}
	req, err := http.NewRequest(method, to, bytes.NewReader(body))
	if err != nil || req.URL.Scheme != "https" {
		return nil, errors.New("not an https address")
	}
	req.Header = http.Header{"Content-Type": {contentType}, "Accept": {"application/json"}, "Accept-Encoding": {"identity"}, "User-Agent": {"connect-broker"}}
	return req, nil
}

// exchange turns a code into a pair: exactly one request, whatever comes of it, but for a
// client that the provider did not know.
func (b *Broker) exchange(ctx context.Context, m *integrations.Manifest, code, verifier, state string) (*tokenAnswer, error) {
	return b.token(ctx, m, b.codeGrant(m, code, verifier, state))
}

// codeGrant is what is asked when a code comes back.
func (b *Broker) codeGrant(m *integrations.Manifest, code, verifier, state string) grantRequest {
	o := m.Auth.OAuth
	params := []integrations.Pair{{Name: "grant_type", Value: "authorization_code"}, {Name: "code", Value: code}, {Name: "redirect_uri", Value: b.RedirectURI(m.ID)}}
	if verifier != "" {
		params = append(params, integrations.Pair{Name: "code_verifier", Value: verifier})
	}
	if o.TokenSendsState {
		params = append(params, integrations.Pair{Name: "state", Value: state})
	}
	return grantRequest{o.TokenURL, params, o.TokenParams}
}

// refreshAt asks for a new pair.
func (b *Broker) refreshAt(ctx context.Context, m *integrations.Manifest, refresh string) (*tokenAnswer, error) {
	o := m.Auth.OAuth
	params := []integrations.Pair{{Name: "grant_type", Value: "refresh_token"}, {Name: "refresh_token", Value: refresh}}
	if o.RefreshRedirectURI {
		params = append(params, integrations.Pair{Name: "redirect_uri", Value: b.RedirectURI(m.ID)})
	}
	to := o.RefreshURL
	if to == "" {
		to = o.TokenURL
	}
	return b.token(ctx, m, grantRequest{to, params, o.RefreshParams})
}

// token asks a token endpoint with the service's client, and, where the provider does not
// know that client, with other versions of it, each once: a secret may just be rotating, and
// a provider that refuses the client has not looked at the code or token. All else that can
// fail is done before the first request, and all of it ends in Config.UpstreamTimeout.
func (b *Broker) token(ctx context.Context, m *integrations.Manifest, g grantRequest) (*tokenAnswer, error) {
	ctx, cancel := b.upstream.within(ctx)
	defer cancel()
	if err := b.wrap.ready(ctx); err != nil {
		return nil, &RefreshError{Class: Temporary, Code: "key_store"}
	}
	var a *tokenAnswer
	err := b.withClient(ctx, m, g.url, func(c Client) error {
		r, err := b.upstream.do(ctx, func() (*http.Request, error) { return tokenRequest(m.Auth.OAuth, c, g) })
		if err == nil {
			a, err = readToken(m.Auth.OAuth, r, b.cfg.Now())
		}
		var re *RefreshError
		if errors.As(err, &re) && re.Code == "not_json" && ctx.Err() != nil {
			re.Code, re.Spent = "unreadable", true // the provider ended its answer when it was hung up on
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return a, nil
}

// withClient calls f with the client of a service, and, while f says that the provider does
// not know it, with others, three in all. It counts one event for the operator where none was
// known.
func (b *Broker) withClient(ctx context.Context, m *integrations.Manifest, to string, f func(Client) error) error {
	c, err := b.client(ctx, m.ID, to)
	if err != nil {
		return err
	}
	var failed []Client
	for {
		err := f(c)
		var re *RefreshError
		if !errors.As(err, &re) || !unknownClient(re) {
			if err == nil {
				b.cfg.Secrets.Worked(m.ID, c)
			}
			return err
		}
		if failed = append(failed, c); len(failed) < 3 && ctx.Err() == nil {
			other, err := b.cfg.Secrets.Other(ctx, m.ID, failed)
			if err == nil && mayGo(other, m, to) {
				if m.Auth.OAuth.ClientOnce {
					b.cfg.Secrets.Worked(m.ID, other) // the next caller begins with it
					return &RefreshError{Class: Temporary, Code: "client_changed", Status: re.Status}
				}
				c = other
				continue
			}
		}
		b.count("InvalidClient", m.ID)
		return re
	}
}

// client returns the client of a service, which may be sent to the host of to.
func (b *Broker) client(ctx context.Context, service, to string) (Client, error) {
	m := b.cfg.Registry.Get(service)
	c, err := b.cfg.Secrets.Client(ctx, service)
	switch {
	case errors.Is(err, ErrNoClient):
		return c, &RefreshError{Class: Misconfigured, Code: "no_client"}
	case err != nil:
		return c, &RefreshError{Class: Temporary, Code: "secret_store"}
	case c.Secret.IsZero() && m.Auth.OAuth.ClientAuth != "none":
		return c, &RefreshError{Class: Misconfigured, Code: "no_client"}
	case !mayGo(c, m, to):
		return c, &RefreshError{Class: Misconfigured, Code: "host"}
	}
	return c, nil
}

// offered returns the client of a service where a connection can start here. A secret that
// may not go to every host of the manifest's is no reason to begin: what came of it could be
// neither refreshed nor ended.
func (b *Broker) offered(ctx context.Context, m *integrations.Manifest) (Client, error) {
	c, err := b.client(ctx, m.ID, m.Auth.OAuth.TokenURL)
	if err == nil && len(barredHosts(c, m)) > 0 {
		err = &RefreshError{Class: Misconfigured, Code: "host"}
	}
	return c, err
}

// mayGo says whether a client may be sent to the host of to.
func mayGo(c Client, m *integrations.Manifest, to string) bool {
	return slices.Contains(allowedHosts(c, m.ID), hostOf(to))
}

// hostOf returns the host of an address that the loader has checked: https, a name, no port.
func hostOf(s string) string {
	s, _ = strings.CutPrefix(s, "https://")
	if i := strings.IndexAny(s, "/?#"); i >= 0 {
		s = s[:i]
	}
	return s
}

// maxRetryAfter is the longest wait that is passed on.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads Retry-After (RFC 9110, section 10.2.3): seconds, or a date, which is held
// against the answer's own Date where it has one.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	if v == "" {
		return 0
	}
	if strings.Trim(v, "0123456789") == "" {
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return maxRetryAfter
		}
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	t, err := http.ParseTime(v)
	if err != nil {
		return 0
	}
	return max(0, min(t.Sub(dateOf(h, now)), maxRetryAfter))
}

// dateOf is when an answer was made, by the clock of whoever made it.
func dateOf(h http.Header, now time.Time) time.Time {
	if t, err := http.ParseTime(h.Get("Date")); err == nil {
		return t
	}
	return now
}
