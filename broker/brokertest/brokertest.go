// Package brokertest runs a real broker for tests: over TLS, with a clock that the test
// moves and a provider that counts what reaches it.
//
//	s := brokertest.New(t, brokertest.Options{})
//	out := s.Connect(t, brokertest.Ask{Service: "acme"})   // the whole flow, opened
//	s.Upstream.Count(brokertest.Token)                     // 1
//
// Besides the built-in services there is "acme", a provider that conforms.
package brokertest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// The origins of a broker and of an instance in tests.
const (
	Origin   = "https://broker.test"
	Instance = "https://chat.test"
)

//go:embed acme.json
var acme []byte

// quiet drops what net/http would write about faults that tests provoke.
var quiet = log.New(io.Discard, "", 0)

// Options change what New makes. The zero value is a broker for the built-in services and
// "acme".
type Options struct {
	// Edit changes a manifest before it is loaded.
	Edit func(service string, manifest map[string]any)
	// More are further manifests, by id.
	More map[string][]byte
	// Config has the last word on the broker's configuration.
	Config func(*broker.Config)
	// Addr is where the broker listens; "" means a free port of 127.0.0.1.
	Addr string
	// Wrap stands before the broker: an adapter, or something else that serves in its place.
	Wrap func(http.Handler) http.Handler
	// Hosts are further "host:443" → "address:port" that clients of the server reach, and
	// the broker too.
	Hosts map[string]string
}

// A Server is a running broker with its provider.
type Server struct {
	URL      string // Origin, or what Config made of it
	Addr     string // where it listens
	Broker   *broker.Broker
	Config   broker.Config // what the broker was made of
	Registry *integrations.Registry
	Upstream *Upstream
	Clock    *Clock
	CA       *CA

	instance ed25519.PrivateKey
	log      buffer
	metrics  buffer
	hosts    map[string]string
	server   *httptest.Server
	plain    *http.Transport
}

// A Clock stands still until a test moves it.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// Now returns what the broker takes for now.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// clients is a SecretSource with a client for every service.
type clients struct{ own map[string][]string } // service → hosts that are not built in

func clientOf(service string) (id, secret string) {
	return "client-" + service, "secret_" + Sentinel + "_" + service + "+/=%"
}

func (c clients) Client(_ context.Context, service string) (broker.Client, error) {
	id, secret := clientOf(service)
	return broker.Client{ID: id, Secret: integrations.NewSecret(secret), Hosts: c.own[service]}, nil
}

func (clients) Other(context.Context, string, []broker.Client) (broker.Client, error) {
	return broker.Client{}, broker.ErrNoClient
}

func (clients) Worked(string, broker.Client) {}

// New starts a broker, which ends with the test.
func New(t testing.TB, o Options) *Server {
	t.Helper()
	s, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// Start starts a broker outside a test.
func Start(o Options) (*Server, error) {
	reg, own, err := load(o)
	if err != nil {
		return nil, err
	}
	ca, err := sharedCA()
	if err != nil {
		return nil, err
	}
	s := &Server{URL: Origin, Registry: reg, CA: ca, Clock: &Clock{now: time.Date(2026, 12, 1, 12, 0, 0, 0, time.UTC)}, hosts: make(map[string]string)}
	s.Upstream = newUpstream(ca, reg, clientOf)
	for _, h := range s.Upstream.hosts() {
		s.hosts[h+":443"] = s.Upstream.Addr
	}
	for h, to := range o.Hosts {
		s.hosts[h] = to
	}
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	s.instance = priv
	s.Config = broker.Config{
		Registry: reg, PublicURL: Origin, Secrets: clients{own},
		StateKeys: []broker.Key{NewKey("s1")}, WrapKeys: []broker.Key{NewKey("w1")},
		InstanceKeys: []broker.InstanceKey{{ID: "i1", Key: pub}},
		ConnectTo:    make(map[string]string), RootCAs: ca.Pool(),
		UpstreamTimeout: 5 * time.Second,
		Logger:          slog.New(slog.NewJSONHandler(&s.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Metrics:         &s.metrics, Now: s.Clock.Now,
	}
	for h, to := range s.hosts {
		s.Config.ConnectTo[h] = to
	}
	if o.Config != nil {
		o.Config(&s.Config)
	}
	s.URL = s.Config.PublicURL
	if s.Broker, err = broker.New(s.Config); err != nil {
		s.Upstream.server.Close()
		return nil, err
	}
	var h http.Handler = s.Broker
	if o.Wrap != nil {
		h = o.Wrap(h)
	}
	s.server = httptest.NewUnstartedServer(h)
	if o.Addr != "" {
		s.server.Listener.Close()
		if s.server.Listener, err = net.Listen("tcp", o.Addr); err != nil {
			s.Upstream.server.Close()
			return nil, err
		}
	}
	s.server.TLS = ca.TLS()
	s.server.Config.ErrorLog = quiet
	s.server.EnableHTTP2 = true
	s.server.StartTLS()
	s.Addr = s.server.Listener.Addr().String()
	s.hosts[strings.TrimPrefix(s.URL, "https://")+":443"] = s.Addr
	s.plain = s.Transport()
	return s, nil
}

// Close ends the broker and its provider.
func (s *Server) Close() {
	s.plain.CloseIdleConnections()
	s.server.CloseClientConnections()
	s.server.Close()
	s.Upstream.server.CloseClientConnections()
	s.Upstream.server.Close()
}

// load returns the registry, and for each service that is not built in, or is changed, its
// hosts.
func load(o Options) (*integrations.Registry, map[string][]string, error) {
	if o.Edit == nil && len(o.More) == 0 {
		l, err := plain()
		if err != nil {
			return nil, nil, err
		}
		return l.registry, maps.Clone(l.own), nil
	}
	return loadAnew(o)
}

type loaded struct {
	registry *integrations.Registry
	own      map[string][]string
}

// plain is what most tests want, and takes the longest of all that a broker is made of.
var plain = sync.OnceValues(func() (loaded, error) {
	reg, own, err := loadAnew(Options{})
	return loaded{reg, own}, err
})

var builtins = sync.OnceValues(integrations.Default)

func loadAnew(o Options) (*integrations.Registry, map[string][]string, error) {
	builtin, err := builtins()
	if err != nil {
		return nil, nil, err
	}
	files := fstest.MapFS{"acme.json": {Data: acme}}
	for _, m := range builtin.All() {
		files[m.ID+".json"] = &fstest.MapFile{Data: m.Raw()}
	}
	for id, data := range o.More {
		files[id+".json"] = &fstest.MapFile{Data: data}
	}
	if o.Edit != nil {
		for name, f := range files {
			var m map[string]any
			if err := json.Unmarshal(f.Data, &m); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", name, err)
			}
			o.Edit(strings.TrimSuffix(name, ".json"), m)
			if f.Data, err = json.MarshalIndent(m, "", "  "); err != nil {
				return nil, nil, err
			}
		}
	}
	reg, err := integrations.Load(files)
	if err != nil {
		return nil, nil, err
	}
	own := make(map[string][]string)
	for _, m := range reg.All() {
		if builtin.Get(m.ID) == nil {
			u := &Upstream{registry: mustOne(m)}
			own[m.ID] = u.hosts()
		}
	}
	return reg, own, nil
}

func mustOne(m *integrations.Manifest) *integrations.Registry {
	reg, err := integrations.Load(fstest.MapFS{m.ID + ".json": {Data: m.Raw()}})
	if err != nil {
		panic(err)
	}
	return reg
}

// NewKey makes a key for flows or refresh tokens.
func NewKey(id string) broker.Key {
	k := broker.Key{ID: id}
	rand.Read(k.Secret[:])
	return k
}

// Token makes an instance's token for the origins; Instance where none is named.
func (s *Server) Token(origins ...string) string {
	if len(origins) == 0 {
		origins = []string{Instance}
	}
	now := s.Clock.Now()
	c := broker.Claims{Origins: origins, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "instance-1", Audience: jwt.ClaimStrings{s.URL}, ID: "jti-1", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(24 * time.Hour)),
	}}
	t, err := broker.SignToken(s.instance, "i1", c)
	if err != nil {
		panic(err)
	}
	return t
}

// InstanceKey signs instances' tokens, with the key id "i1".
func (s *Server) InstanceKey() ed25519.PrivateKey { return s.instance }

// Logs returns all that the broker logged.
func (s *Server) Logs() string { return s.log.String() }

// Metrics returns all that the broker wrote for alarms.
func (s *Server) Metrics() string { return s.metrics.String() }

// Transport reaches the broker, the provider and Options.Hosts under their names; anything
// else is refused.
func (s *Server) Transport() *http.Transport {
	return &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: s.CA.Pool()}, ForceAttemptHTTP2: true, DisableCompression: true,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to, ok := s.hosts[addr]
			if !ok {
				return nil, fmt.Errorf("brokertest: nothing stands at %s", addr)
			}
			var d net.Dialer
			return d.DialContext(ctx, network, to)
		},
	}
}

// Client is a program's: no cookies, and no redirect is followed.
func (s *Server) Client() *http.Client {
	return &http.Client{Transport: s.plain, Timeout: time.Minute, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// PostJSON sends v, or the string or bytes that it is, to a route of the broker with an
// instance's token ("" sends none).
func (s *Server) PostJSON(path, token string, v any) (*Page, error) {
	var body []byte
	switch v := v.(type) {
	case string:
		body = []byte(v)
	case []byte:
		body = v
	default:
		var err error
		if body, err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	req, err := http.NewRequest(http.MethodPost, s.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return do(s.Client(), req)
}

// NewIdentity makes a one-time key.
func NewIdentity(t testing.TB) *custody.Identity {
	t.Helper()
	i, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return i
}
