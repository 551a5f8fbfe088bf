package sidecar

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A site is a server over TLS whose certificate is good for some hosts, with what it was
// asked.
type site struct {
	*httptest.Server
	pool *x509.CertPool

	mu      sync.Mutex
	handler http.HandlerFunc
	seen    []asked
}

type asked struct {
	Method, URI, Authorization, Body string
	Header                           http.Header
}

func newSite(t testing.TB, h http.HandlerFunc, hosts ...string) *site {
	t.Helper()
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: hosts, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der := must(x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key))
	s := &site{pool: x509.NewCertPool(), handler: h}
	s.pool.AddCert(must(x509.ParseCertificate(der)))
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		s.mu.Lock()
		s.seen = append(s.seen, asked{r.Method, r.RequestURI, r.Header.Get("Authorization"), string(body), r.Header.Clone()})
		h := s.handler
		s.mu.Unlock()
		h(w, r)
	}))
	s.Server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.Server.StartTLS()
	t.Cleanup(s.Server.Close)
	return s
}

func (s *site) requests() []asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]asked(nil), s.seen...)
}

func (s *site) answer(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handler = h
}

func (s *site) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.pool}}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// A stage is a sidecar with one bot, a provider, a broker that answers as docs/protocol.md
// section 9 says, and two members.
type stage struct {
	t        testing.TB
	dir      string
	bot      *custody.Identity
	ada, eve *custody.Identity
	provider *site
	broker   *site
	registry *integrations.Registry
	now      *clock
	cfg      Config

	*Sidecar
}

// A clock is moved by hand.
type clock struct {
	mu  sync.Mutex
	add time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.add)
}

func (c *clock) forward(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add += d
}

const (
	testSpace  = "space-1"
	testThread = "thread-1"
)

// builtIn is the registry that the program has; it is read once, since that takes long.
var builtIn = sync.OnceValue(func() *integrations.Registry { return must(integrations.Default()) })

// newStage starts one. The process is a minute old, so that writes run; opts change the
// configuration before.
func newStage(t testing.TB, opts ...func(*Config)) *stage {
	t.Helper()
	s := &stage{t: t, dir: t.TempDir(), bot: must(custody.NewIdentity()), ada: must(custody.NewIdentity()), eve: must(custody.NewIdentity()),
		registry: builtIn(), now: new(clock)}
	var hosts []string
	to := make(map[string]string)
	for _, m := range s.registry.All() {
		hosts = append(hosts, m.Host)
	}
	s.provider = newSite(t, jsonAnswer(200, `[]`), hosts...)
	for _, h := range hosts {
		to[h+":443"] = s.provider.Listener.Addr().String()
	}
	s.broker = newSite(t, func(w http.ResponseWriter, r *http.Request) { http.Error(w, "{}", 500) })
	s.cfg = Config{
		Bots: []*custody.Identity{s.bot}, Registry: s.registry, Dir: s.dir, Group: "group-1", Now: s.now.now,
		Executor: &integrations.Executor{ConnectTo: to, RootCAs: s.provider.pool},
		Brokers:  []*Broker{{Origin: s.broker.URL, Token: integrations.NewSecret("instance-token-fake"), Client: s.broker.client()}},
	}
	for _, o := range opts {
		o(&s.cfg)
	}
	s.registry = s.cfg.Registry
	s.start()
	s.now.forward(time.Minute)
	t.Cleanup(func() { s.Sidecar.Close(context.Background()) })
	return s
}

func (s *stage) start() {
	s.t.Helper()
	var err error
	if s.Sidecar, err = New(s.t.Context(), s.cfg); err != nil {
		s.t.Fatal(err)
	}
}

// restart stops the sidecar and starts it anew in the same folder.
func (s *stage) restart() {
	s.t.Helper()
	if err := s.Sidecar.Close(context.Background()); err != nil {
		s.t.Fatal(err)
	}
	s.start()
}

func jsonAnswer(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// rotates answers refreshes with pairs that are numbered: at2 and rt2, then at3 and rt3. A
// token that was redeemed is dead.
func (s *stage) rotates(expiresIn int64) {
	var mu sync.Mutex
	n, used := 1, make(map[string]bool)
	s.broker.answer(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		body := must(io.ReadAll(r.Body))
		var req struct{ Service, Refresh, Key string }
		json.Unmarshal(body, &req)
		if used[req.Refresh] {
			jsonAnswer(409, `{"class":"dead","code":"invalid_grant"}`)(w, r)
			return
		}
		used[req.Refresh] = true
		n++
		s.sealed(w, body, &custody.RefreshAnswer{Secret: integrations.NewSecret(fmt.Sprintf("at%d-fake", n)), Refresh: integrations.NewSecret(fmt.Sprintf("rt1.k.fake%d", n)), ExpiresIn: expiresIn})
	})
}

// sealed answers a refresh as the broker does.
func (s *stage) sealed(w http.ResponseWriter, body []byte, a *custody.RefreshAnswer) {
	var req struct{ Key custody.PublicKey }
	if err := json.Unmarshal(body, &req); err != nil {
		http.Error(w, `{"error":"malformed"}`, 400)
		return
	}
	e := must(custody.SealAnswer(req.Key, custody.RefreshOp(body), a))
	w.Header().Set("Content-Type", "application/json")
	w.Write(must(e.Marshal()))
}

// connection is Ada's, of a service, with a pair that ends in some time.
func (s *stage) connection(service string, access integrations.Access, left time.Duration) *custody.Credential {
	c := &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: service, Kind: custody.KindOAuth, Secret: integrations.NewSecret("at1-fake"),
		Cap: access, ConnectedAt: s.now.now().Unix(), ObtainedAt: s.now.now().Unix(), Account: &custody.Account{ID: "1", Label: "ada"}}
	if left != 0 {
		c.Refresh, c.Broker, c.ExpiresAt = integrations.NewSecret("rt1.k.fake1"), s.broker.URL, s.now.now().Add(left).Unix()
	}
	return c
}

// An order is an op on its way, with all that can be changed about it.
type order struct {
	id       string
	member   *custody.Identity
	bot      custody.PublicKey
	day      *custody.PublicKey
	grant    *custody.Grant
	envelope *custody.Envelope // the grant's; nil is made
	service  string
	op       string
	args     string
}

// order mints a grant for one operation and writes the op around it.
func (s *stage) order(c *custody.Credential, op, args string, edit ...func(*custody.GrantRequest)) *order {
	s.t.Helper()
	m := s.registry.Get(c.Service)
	call := must(m.Bind(op, must(integrations.ParseArgs([]byte(args))), c.For().Connection))
	req := custody.GrantRequest{Use: custody.UseOnce, Call: call, Group: s.cfg.Group}
	for _, e := range edit {
		e(&req)
	}
	if o := m.Auth.OAuth; c.Lent == nil && !c.Refresh.IsZero() && o != nil && o.Refresh != nil && o.Refresh.Rotates || c.Lent != nil && c.Lent.Group == s.cfg.Group && c.Lent.Until < s.now.now().Add(5*time.Minute).Unix() {
		lent := must(c.Lend(s.cfg.Group, s.now.now().Add(time.Hour), s.now.now(), false))
		*c = *lent
	}
	g, err := custody.MintGrant(m, c, req, s.now.now())
	if err != nil {
		s.t.Fatal(err)
	}
	return &order{id: custody.NewID(), member: s.ada, bot: s.bot.Public(), grant: g, service: c.Service, op: op, args: args}
}

// delivery seals an order as it is posted.
func (s *stage) delivery(o *order) Delivery {
	s.t.Helper()
	grant := o.envelope
	if grant == nil {
		op := o.id
		if o.grant.Use != custody.UseOnce {
			op = ""
		}
		grant = must(o.grant.Seal(o.member, o.bot, o.day, testSpace, testThread, op))
	}
	e := must(o.member.SealMessage(o.bot, o.day, custody.Header{Space: testSpace, Thread: testThread, Op: o.id},
		&custody.Op{V: 2, ID: o.id, Service: o.service, Op: o.op, Args: json.RawMessage(o.args), Grant: grant}))
	return Delivery{Space: testSpace, Thread: testThread, Author: o.member.Public(), Data: must(e.Marshal())}
}

// outcome is a result as its member reads it.
type outcome struct {
	*custody.Result
	handbacks []*custody.Envelope
}

func (o outcome) code() string {
	if o.Result == nil {
		return "none"
	}
	if o.Error == nil {
		return "ok"
	}
	return o.Error.Code
}

// send hands an order over and opens what comes back.
func (s *stage) send(o *order) outcome {
	s.t.Helper()
	return s.read(o.member, s.delivery(o))
}

func (s *stage) read(member *custody.Identity, d Delivery) outcome {
	s.t.Helper()
	all, err := s.Handle(context.Background(), d)
	if err != nil {
		return outcome{}
	}
	return s.open(member, all)
}

func (s *stage) open(member *custody.Identity, all []*custody.Envelope) outcome {
	s.t.Helper()
	var out outcome
	for _, e := range all {
		switch e.Purpose {
		case custody.PurposeHandback:
			out.handbacks = append(out.handbacks, e)
		case custody.PurposeResult:
			r := new(custody.Result)
			if err := member.OpenMessage(e, s.bot.Public(), nil, r); err != nil {
				s.t.Fatalf("the result does not open: %v", err)
			}
			out.Result = r
			if r.Handback != nil {
				out.handbacks = append(out.handbacks, r.Handback)
			}
		default:
			s.t.Fatalf("an envelope of purpose %s came back", e.Purpose)
		}
	}
	return out
}

// take opens the hand-back of an outcome and takes it into the connection.
func (s *stage) take(c *custody.Credential, out outcome) *custody.Credential {
	s.t.Helper()
	if len(out.handbacks) != 1 {
		s.t.Fatalf("%d hand-backs came (%s)", len(out.handbacks), out.code())
	}
	h := new(custody.Handback)
	if err := s.ada.OpenMessage(out.handbacks[0], s.bot.Public(), nil, h); err != nil {
		s.t.Fatal(err)
	}
	next, err := c.Take(h)
	if err != nil {
		s.t.Fatalf("the hand-back is not taken: %v", err)
	}
	return next
}
