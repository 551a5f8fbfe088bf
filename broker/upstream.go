package broker

import (
	"bytes"
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
	"strings"
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
	now       func() time.Time
}

func newUpstream(cfg Config) (*upstream, error) {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second}
		if to, ok := cfg.ConnectTo[addr]; ok {
			return d.DialContext(ctx, network, to)
		}
		if !cfg.AllowPrivate {
			d.Control = ssrf.New(ssrf.WithPorts(443)).Safe
		}
		return d.DialContext(ctx, network, addr)
	}
	return &upstream{
		timeout: cfg.UpstreamTimeout,
		now:     cfg.Now,
		transport: &http.Transport{
			DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: cfg.RootCAs, MinVersion: tls.VersionTLS12},
			ForceAttemptHTTP2: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10, MaxIdleConnsPerHost: 64,
			IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 5 * time.Second,
		},
	}, nil
}

// A reply is what a provider answered.
type reply struct {
	status int
	header http.Header
	body   []byte
}

// do sends one request. Where nothing can have been received it tries once more; after that
// any failure is temporary, since the provider may have acted.
func (u *upstream) do(ctx context.Context, build func() (*http.Request, error)) (*reply, error) {
	ctx, cancel := context.WithTimeout(ctx, u.timeout)
	defer cancel()
	for try := 0; ; try++ {
		req, err := build()
		if err != nil {
			return nil, &RefreshError{Class: Misconfigured, Code: "request"}
		}
		connected := false
		req = req.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected = true }}))
		req.GetBody = nil // nothing below sends it again
		resp, err := u.transport.RoundTrip(req)
		if err != nil {
			if !connected && try == 0 && ctx.Err() == nil {
				continue
			}
			return nil, &RefreshError{Class: Temporary, Code: "unreachable"}
		}
		body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
		resp.Body.Close()
		if err != nil || len(body) > maxAnswer {
			return nil, &RefreshError{Class: Temporary, Code: "unreadable", Status: resp.StatusCode}
		}
		return &reply{resp.StatusCode, resp.Header, body}, nil
	}
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
		var b strings.Builder
		for i, p := range params {
			if i > 0 {
				b.WriteByte('&')
			}
			b.WriteString(url.QueryEscape(p.Name) + "=" + url.QueryEscape(p.Value))
		}
		body = []byte(b.String())
	}
	req, err := http.NewRequest(method, to, bytes.NewReader(body))
	if err != nil || req.URL.Scheme != "https" {
		return nil, errors.New("not an https address")
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Accept", "application/json")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "connect-broker")
	return req, nil
}

// exchange turns a code into a pair: exactly one request, whatever comes of it, but for a
// client that the provider did not know.
func (b *Broker) exchange(ctx context.Context, m *integrations.Manifest, code, verifier, state string) (*tokenAnswer, error) {
	o := m.Auth.OAuth
	params := []integrations.Pair{{Name: "grant_type", Value: "authorization_code"}, {Name: "code", Value: code}, {Name: "redirect_uri", Value: b.redirectURI(m.ID)}}
	if verifier != "" {
		params = append(params, integrations.Pair{Name: "code_verifier", Value: verifier})
	}
	if o.TokenSendsState {
		params = append(params, integrations.Pair{Name: "state", Value: state})
	}
	return b.token(ctx, m, grantRequest{o.TokenURL, params, o.TokenParams})
}

// refreshAt asks for a new pair.
func (b *Broker) refreshAt(ctx context.Context, m *integrations.Manifest, refresh string) (*tokenAnswer, error) {
	o := m.Auth.OAuth
	params := []integrations.Pair{{Name: "grant_type", Value: "refresh_token"}, {Name: "refresh_token", Value: refresh}}
	if o.RefreshRedirectURI {
		params = append(params, integrations.Pair{Name: "redirect_uri", Value: b.redirectURI(m.ID)})
	}
	to := o.RefreshURL
	if to == "" {
		to = o.TokenURL
	}
	return b.token(ctx, m, grantRequest{to, params, o.RefreshParams})
}

// token asks a token endpoint with the service's client, and, where the provider does not
// know that client, once more with another version of it: a secret may just be rotating,
// and a provider that refuses the client has not looked at the code or token.
func (b *Broker) token(ctx context.Context, m *integrations.Manifest, g grantRequest) (*tokenAnswer, error) {
	o := m.Auth.OAuth
	c, err := b.client(ctx, m.ID, g.url)
	if err != nil {
		return nil, err
	}
	var failed []Client
	for {
		r, err := b.upstream.do(ctx, func() (*http.Request, error) { return tokenRequest(o, c, g) })
		if err != nil {
			return nil, err
		}
		ans, err := readToken(o, r, b.cfg.Now())
		var re *RefreshError
		if err == nil || !errors.As(err, &re) || !unknownClient(re) {
			if err == nil {
				b.cfg.Secrets.Worked(m.ID, c)
			}
			return ans, err
		}
		b.count("InvalidClient", m.ID)
		if failed = append(failed, c); len(failed) > 2 {
			return nil, err
		}
		if c, err = b.cfg.Secrets.Other(ctx, m.ID, failed); err != nil {
			return nil, re
		}
		if !slices.Contains(allowedHosts(c, m.ID), hostOf(g.url)) {
			return nil, re
		}
	}
}

// client returns the client of a service, which may be sent to the host of to.
func (b *Broker) client(ctx context.Context, service, to string) (Client, error) {
	c, err := b.cfg.Secrets.Client(ctx, service)
	switch {
	case errors.Is(err, ErrNoClient):
		return c, &RefreshError{Class: Misconfigured, Code: "no_client"}
	case err != nil:
		return c, &RefreshError{Class: Temporary, Code: "secret_store"}
	case !slices.Contains(allowedHosts(c, service), hostOf(to)):
		return c, &RefreshError{Class: Misconfigured, Code: "host"}
	}
	return c, nil
}

func hostOf(s string) string {
	u, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(s))
	if err != nil {
		return ""
	}
	return u.Host
}

// retryAfter reads Retry-After (RFC 9110, section 10.2.3), at most a day.
func retryAfter(h http.Header, now time.Time) time.Duration {
	v := strings.TrimSpace(h.Get("Retry-After"))
	var d time.Duration
	if n, err := time.ParseDuration(v + "s"); err == nil && v != "" {
		d = n
	} else if t, err := http.ParseTime(v); err == nil {
		d = t.Sub(now)
	}
	return max(0, min(d, 24*time.Hour))
}
