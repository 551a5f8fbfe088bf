package integrations

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// A peer stands in for a service: a TLS server whose certificate comes from an authority
// of its own. It answers as its handler says and remembers what it was asked.
type peer struct {
	*Executor
	addr string

	mu      sync.Mutex
	handler http.Handler
	seen    []*seenRequest
}

// A seenRequest is what came over the wire.
type seenRequest struct {
	Method, URI, Host string
	Header            http.Header
	Body              string
	Conn              string // the client's address: one for each connection
}

func (s *seenRequest) path() string  { p, _, _ := strings.Cut(s.URI, "?"); return p }
func (s *seenRequest) query() string { _, q, _ := strings.Cut(s.URI, "?"); return q }

// The one name of the services that tests make up.
const peerHost = "api.example.com"

// An authority signs the certificates of peers. They are valid in the years of synctest's
// clock too, which begins in 2000.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(name string) *authority {
	a := &authority{pool: x509.NewCertPool()}
	a.key = must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC),
		KeyUsage: x509.KeyUsageCertSign,
	}
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, tmpl, tmpl, &a.key.PublicKey, a.key))))
	a.pool.AddCert(a.cert)
	return a
}

func (a *authority) issue(notAfter time.Time, names ...string) tls.Certificate {
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: names[0]}, DNSNames: names,
		NotBefore: a.cert.NotBefore, NotAfter: notAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der := must(x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key))
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

var testAuthority = sync.OnceValue(func() *authority { return newAuthority("the tests' authority") })

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newPeer starts a peer on the loopback that stands in for hosts, peerHost where none is
// said, with an executor that is led to it as --connect-to does.
func newPeer(t testing.TB, h http.HandlerFunc, hosts ...string) *peer {
	t.Helper()
	return newPeerTLS(t, nil, h, hosts...)
}

func newPeerTLS(t testing.TB, cfg *tls.Config, h http.HandlerFunc, hosts ...string) *peer {
	t.Helper()
	if len(hosts) == 0 {
		hosts = []string{peerHost}
	}
	if cfg == nil {
		cfg = &tls.Config{Certificates: []tls.Certificate{testAuthority().issue(testAuthority().cert.NotAfter, hosts...)}}
	}
	p := &peer{handler: h}
	srv := httptest.NewUnstartedServer(p)
	srv.TLS = cfg
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	p.addr = srv.Listener.Addr().String()
	p.Executor = &Executor{RootCAs: testAuthority().pool, ConnectTo: make(map[string]string), Timeout: 20 * time.Second}
	for _, host := range hosts {
		p.ConnectTo[host+":443"] = p.addr
	}
	t.Cleanup(p.CloseIdleConnections)
	return p
}

// newPipePeer starts a peer that is reached through memory alone, so that both sides may
// live in a synctest bubble, where waiting takes no time. The peer ends with close.
func newPipePeer(h http.HandlerFunc) (p *peer, close func()) {
	p = &peer{handler: h, Executor: &Executor{RootCAs: testAuthority().pool}}
	pipes := &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
	p.client().DialContext = func(ctx context.Context, _, addr string) (net.Conn, error) {
		if addr != peerHost+":443" {
			return nil, fmt.Errorf("a connection to %s", addr)
		}
		return pipes.dial(ctx)
	}
	srv := &http.Server{Handler: p, ErrorLog: log.New(io.Discard, "", 0)}
	cfg := &tls.Config{Certificates: []tls.Certificate{testAuthority().issue(testAuthority().cert.NotAfter, peerHost)}}
	go srv.Serve(tls.NewListener(pipes, cfg))
	return p, func() {
		p.CloseIdleConnections()
		srv.Close()
	}
}

type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
	done  chan struct{}
}

func (l *pipeListener) dial(ctx context.Context) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- newQueuedConn(server):
		return newQueuedConn(client), nil
	case <-l.done:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A queuedConn is an end of a pipe whose writes do not wait for a reader, as those of a
// socket do not. Otherwise two ends that are closed at once wait for each other's last
// words, and the transport does so with a lock held, which stops the bubble's clock.
type queuedConn struct {
	net.Conn
	queue chan []byte
	once  sync.Once
	done  chan struct{}
}

func newQueuedConn(c net.Conn) *queuedConn {
	q := &queuedConn{Conn: c, queue: make(chan []byte, 1024), done: make(chan struct{})}
	go func() {
		defer c.Close()
		for {
			select {
			case b := <-q.queue:
				if _, err := c.Write(b); err != nil {
					q.once.Do(func() { close(q.done) }) // nobody reads: the next write fails
					return
				}
			case <-q.done:
				for len(q.queue) > 0 {
					c.Write(<-q.queue)
				}
				return
			}
		}
	}()
	return q
}

func (q *queuedConn) Write(b []byte) (int, error) {
	select {
	case <-q.done:
		return 0, net.ErrClosed
	default:
	}
	select {
	case q.queue <- bytes.Clone(b):
		return len(b), nil
	case <-q.done:
		return 0, net.ErrClosed
	}
}

func (q *queuedConn) Close() error {
	q.once.Do(func() {
		close(q.done)
		q.Conn.SetReadDeadline(time.Unix(1, 0))
		q.Conn.SetWriteDeadline(time.Now().Add(time.Second)) // for what is in the queue
	})
	return nil
}

// SetDeadline is for reads alone: writes do not wait.
func (q *queuedConn) SetDeadline(t time.Time) error      { return q.SetReadDeadline(t) }
func (q *queuedConn) SetWriteDeadline(t time.Time) error { return nil }

func (q *queuedConn) SetReadDeadline(t time.Time) error {
	select {
	case <-q.done:
		return nil
	default:
		return q.Conn.SetReadDeadline(t)
	}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.done) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "pipe"} }

func (p *peer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	r.Body = io.NopCloser(bytes.NewReader(body))
	p.mu.Lock()
	p.seen = append(p.seen, &seenRequest{Method: r.Method, URI: r.RequestURI, Host: r.Host, Header: r.Header, Body: string(body), Conn: r.RemoteAddr})
	h := p.handler
	p.mu.Unlock()
	h.ServeHTTP(w, r)
}

// answerWith changes how the peer answers and forgets what it was asked.
func (p *peer) answerWith(h http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler, p.seen = h, nil
}

// requests returns what the peer was asked since answerWith.
func (p *peer) requests() []*seenRequest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen
}

// one returns the only request that the peer saw.
func (p *peer) one(t testing.TB) *seenRequest {
	t.Helper()
	seen := p.requests()
	if len(seen) != 1 {
		t.Fatalf("the service saw %d requests, want 1", len(seen))
	}
	return seen[0]
}

// answer is a handler that answers with a status, a body and headers, "Name: value".
func answer(status int, body string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Add(name, value)
		}
		w.WriteHeader(status)
		io.WriteString(w, body)
	}
}

// inTurn is a handler that gives each request to the next of hs, the last of them to all
// that follow.
func inTurn(hs ...http.HandlerFunc) http.HandlerFunc {
	var mu sync.Mutex
	next := 0
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		h := hs[min(next, len(hs)-1)]
		next++
		mu.Unlock()
		h(w, r)
	}
}

// broken is a handler that writes raw bytes to the connection and ends it.
func broken(raw string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		conn, buf, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		buf.WriteString(raw)
		buf.Flush()
		conn.Close()
	}
}

// silent is a handler that answers nothing, not even when the client has gone: the end of
// a handler would be an answer, and one that the client may still see.
func silent(_ http.ResponseWriter, r *http.Request) {
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// service parses a manifest for peerHost from its operations and further members.
func service(t testing.TB, ops string, members ...string) *Manifest {
	t.Helper()
	text := `{"manifest": 1, "id": "example", "version": "1.0.0", "name": "Example", "about": "A service made up for a test", "host": "` + peerHost + `",`
	auth := `"auth": {"authorization": "bearer"}`
	for _, m := range members {
		if strings.HasPrefix(m, `"auth"`) {
			auth = m
			continue
		}
		text += m + ","
	}
	m, err := Parse([]byte(text + auth + `, "ops": {` + ops + `}}`))
	if err != nil {
		t.Fatalf("the test's own manifest: %v", err)
	}
	return m
}

// Operations that many tests run.
const (
	opGet  = `"get": {"title": "Get", "access": "read", "method": "GET", "path": "/things", "pick": {"fields": ["id", "text", "list"]}}`
	opPost = `"post": {"title": "Post", "access": "write", "method": "POST", "path": "/things", "args": {"text": {}},
		"body_json": {"text": "{text}"}, "confirm": "Post {text}?", "pick": {"fields": ["id", "text"]}}`
	opPostOnce = `"post_once": {"title": "Post once", "access": "write", "method": "POST", "path": "/things", "args": {"text": {}},
		"body_json": {"text": "{text}"}, "confirm": "Post {text}?", "idempotency": {"header": "Idempotency-Key"}, "pick": {"fields": ["id", "text"]}}`
	opDelete = `"delete": {"title": "Delete", "access": "write", "method": "DELETE", "path": "/things/{id}", "args": {"id": {"type": "id"}},
		"confirm": "Delete {id}?", "pick": {"nothing": "it answers 204"}}`
	opSearch = `"search": {"title": "Search", "access": "read", "method": "POST", "path": "/search", "args": {"text": {}},
		"body_json": {"text": "{text}"}, "safe_post": "a search", "pick": {"fields": ["id"]}}`
)

// testToken is the credential of most tests. It is found nowhere else.
const testToken = "tok_S3cr3t-Sentinel/4711+x"

var testSecret = NewSecret(testToken)
