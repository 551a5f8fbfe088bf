package brokertest

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/elevenmessenger/connect/integrations"
)

// Sentinel is part of every code, token and secret here: a test looks for it where none of
// them may stand.
const Sentinel = "SENTINEL"

// What an Upstream is asked.
const (
	Authorize = "authorize"
	Token     = "token" // a code becomes a pair
	Refresh   = "refresh"
	Revoke    = "revoke"
	Other     = "other"
)

// A Call is one request that reached the provider.
type Call struct {
	Kind    string
	Service string
	Method  string
	Host    string
	Path    string
	Header  http.Header
	Query   url.Values
	Form    url.Values // the body, form or JSON alike
	Body    string
	// ClientID and ClientSecret are as they came, by Basic or in the body.
	ClientID, ClientSecret string
}

// An Answer is what the provider says.
type Answer struct {
	Status int // zero means 200
	Header http.Header
	Body   string
	// Raw, where it is not nil, answers in place of all that: to reset, to drip, to hang.
	Raw http.HandlerFunc
}

// JSON returns an answer of a status with v as its body.
func JSON(status int, v any) *Answer {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return &Answer{Status: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: string(b)}
}

// An Upstream is the providers of all services in one server: an authorization server that
// approves at once, checks client, redirect address, PKCE and single use, rotates refresh
// tokens, and remembers every call.
type Upstream struct {
	// Addr is where it listens.
	Addr string

	server   *httptest.Server
	registry *integrations.Registry
	clients  func(service string) (id, secret string)

	mu      sync.Mutex
	answer  func(*Call) *Answer
	extra   map[string]any
	calls   []*Call
	codes   map[string]*code
	refresh map[string]string // live refresh token → scope
	n       int
}

type code struct {
	service, challenge, redirectURI, scope string
	used                                   bool
}

func newUpstream(ca *CA, reg *integrations.Registry, clients func(string) (string, string)) *Upstream {
	u := &Upstream{registry: reg, clients: clients, codes: make(map[string]*code), refresh: make(map[string]string)}
	u.server = httptest.NewUnstartedServer(u)
	u.server.TLS = ca.TLS()
	u.server.Config.ErrorLog = quiet
	u.server.EnableHTTP2 = true
	u.server.StartTLS()
	u.Addr = u.server.Listener.Addr().String()
	return u
}

// hosts are those of every manifest's OAuth.
func (u *Upstream) hosts() []string {
	var out []string
	for _, m := range u.registry.All() {
		for _, s := range oauthURLs(m) {
			if p, err := url.Parse(strings.NewReplacer("{", "", "}", "").Replace(s)); err == nil && p.Host != "" && !slices.Contains(out, p.Host) {
				out = append(out, p.Host)
			}
		}
	}
	return out
}

func oauthURLs(m *integrations.Manifest) []string {
	o := m.Auth.OAuth
	if o == nil {
		return nil
	}
	urls := []string{o.AuthorizeURL, o.TokenURL, o.RefreshURL}
	if o.Revoke != nil {
		urls = append(urls, o.Revoke.URL)
	}
	return urls
}

// SetAnswer sets who answers in place of the conforming server; nil takes it back, and a nil
// answer leaves one call to it.
func (u *Upstream) SetAnswer(f func(*Call) *Answer) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.answer = f
}

// SetExtra sets fields of every token answer, over its own; a nil value leaves one out.
func (u *Upstream) SetExtra(fields map[string]any) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.extra = fields
}

// Calls returns every call of the kinds, in order; of all kinds where none is named.
func (u *Upstream) Calls(kinds ...string) []*Call {
	u.mu.Lock()
	defer u.mu.Unlock()
	var out []*Call
	for _, c := range u.calls {
		if len(kinds) == 0 || slices.Contains(kinds, c.Kind) {
			out = append(out, c)
		}
	}
	return out
}

// Count returns how many calls of the kinds there were.
func (u *Upstream) Count(kinds ...string) int { return len(u.Calls(kinds...)) }

// Secret returns how many calls there were to anything but the authorize address, which the
// browser calls and not the broker.
func (u *Upstream) Secret() int { return u.Count(Token, Refresh, Revoke, Other) }

// Reset forgets the calls.
func (u *Upstream) Reset() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls = nil
}

// NewRefresh makes a refresh token that the provider will redeem.
func (u *Upstream) NewRefresh(scope string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.newRefresh(scope)
}

func (u *Upstream) newRefresh(scope string) string {
	u.n++
	t := fmt.Sprintf("rt_%s_%d+/=", Sentinel, u.n)
	u.refresh[t] = scope
	return t
}

// Live says whether a refresh token would be redeemed.
func (u *Upstream) Live(refresh string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, ok := u.refresh[refresh]
	return ok
}

// NewCode makes a code as if the provider had asked the person and sent her back.
func (u *Upstream) NewCode(service, challenge, redirectURI, scope string) string {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.n++
	c := fmt.Sprintf("code_%s_%d", Sentinel, u.n)
	u.codes[c] = &code{service: service, challenge: challenge, redirectURI: redirectURI, scope: scope}
	return c
}

// ServeHTTP answers one call.
func (u *Upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c, m := u.read(r)
	u.mu.Lock()
	u.calls = append(u.calls, c)
	f := u.answer
	u.mu.Unlock()
	if f != nil {
		if a := f(c); a != nil {
			a.write(w, r)
			return
		}
	}
	switch c.Kind {
	case Authorize:
		u.authorize(w, r, c, m)
	case Token:
		u.exchange(c, m).write(w, r)
	case Refresh:
		u.rotate(c, m).write(w, r)
	case Revoke:
		u.revoke(c).write(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (a *Answer) write(w http.ResponseWriter, r *http.Request) {
	if a.Raw != nil {
		a.Raw(w, r)
		return
	}
	for k, v := range a.Header {
		w.Header()[k] = v
	}
	if a.Status != 0 {
		w.WriteHeader(a.Status)
	}
	io.WriteString(w, a.Body)
}

// read notes a call and finds whose it is.
func (u *Upstream) read(r *http.Request) (*Call, *integrations.Manifest) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	r.Body = io.NopCloser(bytes.NewReader(body))
	c := &Call{Kind: Other, Method: r.Method, Host: r.Host, Path: r.URL.Path, Header: r.Header.Clone(), Query: r.URL.Query(), Form: url.Values{}, Body: string(body)}
	if strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		var m map[string]any
		json.Unmarshal(body, &m)
		for k, v := range m {
			c.Form.Set(k, fmt.Sprint(v))
		}
	} else if q, err := url.ParseQuery(string(body)); err == nil {
		c.Form = q
	}
	var found *integrations.Manifest
	for _, m := range u.registry.All() {
		o := m.Auth.OAuth
		if o == nil {
			continue
		}
		param := func(name string) string {
			if own, ok := o.ParamNames.Get(name); ok {
				name = own
			}
			return c.Form.Get(name)
		}
		is := func(s string) bool {
			p, err := url.Parse(strings.ReplaceAll(s, "{client_id}", "*"))
			if err != nil || s == "" || p.Host != r.Host {
				return false
			}
			if p.Path == "" {
				p.Path = "/"
			}
			id, _ := u.clients(m.ID)
			return strings.ReplaceAll(p.Path, "*", id) == r.URL.Path
		}
		switch {
		case is(o.AuthorizeURL) && r.Method == http.MethodGet:
			c.Kind = Authorize
		case o.Revoke != nil && is(o.Revoke.URL):
			c.Kind = Revoke
		case (is(o.TokenURL) || is(o.RefreshURL)) && param("grant_type") == "refresh_token":
			c.Kind = Refresh
		case is(o.TokenURL):
			c.Kind = Token
		default:
			continue
		}
		found, c.Service = m, m.ID
		c.ClientID, c.ClientSecret = param("client_id"), param("client_secret")
		break
	}
	if user, pass, ok := r.BasicAuth(); ok {
		c.ClientID, c.ClientSecret = user, pass
		if found != nil && found.Auth.OAuth.ClientAuth == "basic_secret" {
			c.ClientID, _ = u.clients(found.ID)
			c.ClientSecret = user
		}
		if found != nil && found.Auth.OAuth.ClientAuth == "basic" {
			if v, err := url.QueryUnescape(user); err == nil {
				c.ClientID = v
			}
			if v, err := url.QueryUnescape(pass); err == nil {
				c.ClientSecret = v
			}
		}
	}
	return c, found
}

// authorize sends the browser back at once, as a provider does that was asked before.
func (u *Upstream) authorize(w http.ResponseWriter, r *http.Request, c *Call, m *integrations.Manifest) {
	name := func(n string) string {
		if own, ok := m.Auth.OAuth.ParamNames.Get(n); ok {
			return own
		}
		return n
	}
	back, err := url.Parse(c.Query.Get("redirect_uri"))
	if id, _ := u.clients(m.ID); err != nil || c.Query.Get(name("client_id")) != id ||
		(c.Query.Get("response_type") != "code") != slices.Contains(m.Auth.OAuth.AuthorizeOmit, "response_type") {
		http.Error(w, "the provider does not know this client", http.StatusBadRequest)
		return
	}
	q := url.Values{"code": {u.NewCode(m.ID, c.Query.Get("code_challenge"), c.Query.Get("redirect_uri"), c.Query.Get(name("scope")))}, "state": {c.Query.Get("state")}}
	if m.Auth.OAuth.Issuer != "" {
		q.Set("iss", m.Auth.OAuth.Issuer)
	}
	back.RawQuery = q.Encode()
	http.Redirect(w, r, back.String(), http.StatusFound)
}

func oauthError(status int, code string) *Answer {
	return JSON(status, map[string]any{"error": code, "error_description": "said by the provider, with " + Sentinel})
}

func (u *Upstream) known(c *Call, m *integrations.Manifest) bool {
	id, secret := u.clients(m.ID)
	return c.ClientID == id && (m.Auth.OAuth.ClientAuth == "none" || c.ClientSecret == secret)
}

func (u *Upstream) exchange(c *Call, m *integrations.Manifest) *Answer {
	if !u.known(c, m) {
		return oauthError(http.StatusUnauthorized, "invalid_client")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	k := u.codes[c.Form.Get("code")]
	if k == nil || k.used || k.service != m.ID || k.redirectURI != c.Form.Get("redirect_uri") {
		return oauthError(http.StatusBadRequest, "invalid_grant")
	}
	k.used = true
	if k.challenge != "" {
		sum := sha256.Sum256([]byte(c.Form.Get("code_verifier")))
		if base64.RawURLEncoding.EncodeToString(sum[:]) != k.challenge {
			return oauthError(http.StatusBadRequest, "invalid_grant")
		}
	}
	return u.pair(m, k.scope)
}

func (u *Upstream) rotate(c *Call, m *integrations.Manifest) *Answer {
	if !u.known(c, m) {
		return oauthError(http.StatusUnauthorized, "invalid_client")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	old := c.Form.Get("refresh_token")
	scope, ok := u.refresh[old]
	if !ok {
		return oauthError(http.StatusBadRequest, "invalid_grant")
	}
	if r := m.Auth.OAuth.Refresh; r != nil && r.Rotates {
		delete(u.refresh, old)
	}
	return u.pair(m, scope)
}

// pair answers a fresh pair; mu is held.
func (u *Upstream) pair(m *integrations.Manifest, scope string) *Answer {
	u.n++
	out := map[string]any{"access_token": fmt.Sprintf("at_%s_%d", Sentinel, u.n), "token_type": "bearer", "expires_in": 3600}
	if scope != "" {
		o := m.Auth.OAuth
		out["scope"] = strings.ReplaceAll(scope, separator(o.ScopeSeparator), separator(o.ScopeSeparatorAnswer))
	}
	if r := m.Auth.OAuth.Refresh; r == nil || r.None == "" {
		out["refresh_token"] = u.newRefresh(scope)
	}
	for k, v := range u.extra {
		if v == nil {
			delete(out, k)
			continue
		}
		out[k] = v
	}
	return JSON(http.StatusOK, out)
}

func separator(s string) string {
	if s == "" {
		return " "
	}
	return s
}

func (u *Upstream) revoke(c *Call) *Answer {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, vs := range c.Form {
		for _, v := range vs {
			delete(u.refresh, v)
		}
	}
	return &Answer{}
}
