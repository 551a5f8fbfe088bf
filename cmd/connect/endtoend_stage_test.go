package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/integrations"
)

const (
	endSpace  = "home"
	endThread = "kitchen"
	endInvite = "an-obviously-fake-invite"
	// How long one thing is waited for, on a machine that has much else to do.
	endPatience = 20 * time.Second
)

// An endStage is everything that an operation passes, each part the real one: the built
// program as instance and as sidecar, a broker, and Stripe's own server. What is wired
// between them listens.
type endStage struct {
	t        *testing.T // of the part that runs
	whole    *testing.T
	bin      string
	dir      string // of everything below
	broker   *brokertest.Server
	provider *endFront
	wire     *endWire // before the instance
	instance *endProcess
	sidecars []*endProcess // all that were started
	registry *integrations.Registry
	secrets  []endSecret // what may be found nowhere

	mu     sync.Mutex
	errors bytes.Buffer // each error that the test saw, in all ways to print it
}

func newEndStage(t *testing.T) *endStage {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs stripe-mock")
	}
	dir, err := os.MkdirTemp("", "end") // short, for the sockets' paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &endStage{t: t, whole: t, dir: dir, bin: buildConnect(t), broker: brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.AllowWiderRevoke = true }})}
	s.broker.Clock.Advance(time.Since(s.broker.Clock.Now()))
	builtin, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	s.provider = newEndFront(t, builtin)
	s.write("ca.pem", append(s.provider.CA, s.broker.CA.PEM()...))
	s.write("invite", []byte(endInvite))
	token := s.broker.Token()
	s.write("token", []byte(token))
	s.hide("the token for the broker", token, false)
	s.hide("the invite", endInvite, true)
	s.hide("what the provider marks its secrets with", brokertest.Sentinel, false)
	s.wire = newEndWire(t)
	s.instance = s.run("instance", "--home", filepath.Join(dir, "instance"), "--space", endSpace, "--listen", "127.0.0.1:0",
		"--origin", s.wire.origin(), "--invite-file", filepath.Join(dir, "invite"))
	ready := s.instance.await(regexp.MustCompile(`(?m)^ready: .* on (127\.0\.0\.1:\d+), as `))
	s.wire.to.Store(&ready[1])
	s.registry = s.catalog()
	return s
}

// part runs a part of the test.
func (s *endStage) part(name string, f func(*testing.T)) {
	around := s.t
	around.Run(name, func(t *testing.T) {
		s.t = t
		defer func() { s.t = around }()
		f(t)
	})
}

func (s *endStage) write(name string, data []byte) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), data, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// catalog is what a member's client knows of services: what the instance says of them.
func (s *endStage) catalog() *integrations.Registry {
	s.t.Helper()
	status, body := askBroker(s.t, http.DefaultClient, s.wire.origin()+"/api/integrations")
	var shown struct{ Services []json.RawMessage }
	if err := json.Unmarshal([]byte(body), &shown); err != nil || status != http.StatusOK {
		s.t.Fatalf("the catalog: %d %v", status, err)
	}
	files := make(fstest.MapFS)
	for _, raw := range shown.Services {
		var m struct{ ID string }
		if err := json.Unmarshal(raw, &m); err != nil {
			s.t.Fatal(err)
		}
		files[m.ID+".json"] = &fstest.MapFile{Data: raw}
	}
	reg, err := integrations.Load(files)
	if err != nil {
		s.t.Fatal(err)
	}
	return reg
}

// starts runs connect sidecar on the one folder, with a socket of that name.
func (s *endStage) starts(socket string) *endProcess {
	s.t.Helper()
	words := []string{"--home", filepath.Join(s.dir, "bot"), "--bot", "helper", "--bot", "other",
		"--instance", s.wire.origin(), "--space", endSpace, "--invite-file", filepath.Join(s.dir, "invite"),
		"--broker", s.broker.URL, "--instance-token-file", filepath.Join(s.dir, "token"),
		"--listen", "unix:" + filepath.Join(s.dir, socket), "--cacert", filepath.Join(s.dir, "ca.pem"),
		"--connect-to", "broker.test:443:" + s.broker.Addr, "--op-timeout", "5s"}
	for _, host := range s.provider.hosts {
		words = append(words, "--connect-to", host+":443:"+s.provider.Addr)
	}
	p := s.run("sidecar", words...)
	p.socket = filepath.Join(s.dir, socket)
	s.sidecars = append(s.sidecars, p)
	p.await(regexp.MustCompile(`"msg":"ready"`))
	return p
}

// settle waits for the start's first two seconds: a change that is confirmed 29 seconds
// ahead of the clock is taken from then on.
func (s *endStage) settle() { time.Sleep(2100 * time.Millisecond) }

// saw keeps an error for the sentinel, and gives it back.
func (s *endStage) saw(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		fmt.Fprintf(&s.errors, "%v\n%+v\n%#v\n", err, err, err)
	}
	return err
}

// An endProcess is the built program, with all that it says.
type endProcess struct {
	*exec.Cmd
	s      *endStage
	socket string
	said   endBuffer
	ended  chan struct{}
	err    error
}

func (s *endStage) run(command string, words ...string) *endProcess {
	s.t.Helper()
	p := &endProcess{Cmd: exec.Command(s.bin, append([]string{command}, words...)...), s: s, ended: make(chan struct{})}
	p.Stdout, p.Stderr = &p.said, &p.said
	if err := p.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		p.err = p.Wait()
		close(p.ended)
	}()
	s.whole.Cleanup(p.kill)
	return p
}

// await waits until the program has said something, and returns it with its groups.
func (p *endProcess) await(what *regexp.Regexp) []string {
	p.s.t.Helper()
	for end := time.Now().Add(endPatience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if m := what.FindStringSubmatch(p.said.String()); m != nil {
			return m
		}
		select {
		case <-p.ended:
			p.s.t.Fatalf("it ended: %v\n%s", p.err, p.said.String())
		default:
		}
	}
	p.s.t.Fatalf("it does not say %s:\n%s", what, p.said.String())
	return nil
}

// kill ends the program as a power cut does.
func (p *endProcess) kill() {
	p.Process.Kill()
	<-p.ended
}

// stop ends it as systemd does, and holds that it ends well.
func (p *endProcess) stop() {
	p.s.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.s.t.Fatal(err)
	}
	<-p.ended
	if p.err != nil {
		p.s.t.Errorf("after SIGTERM: %v\n%s", p.err, p.said.String())
	}
}

// An endBuffer is written by one and read by another.
type endBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *endBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *endBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// An endWire stands before the instance and keeps each byte that crosses: its way in is the
// instance's own address.
type endWire struct {
	net.Listener
	to   atomic.Pointer[string]
	up   endBuffer // to the instance
	down endBuffer // from it
}

func newEndWire(t *testing.T) *endWire {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	w := &endWire{Listener: ln}
	go func() {
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			go w.carry(conn)
		}
	}()
	return w
}

func (w *endWire) origin() string { return "http://" + w.Addr().String() }

func (w *endWire) carry(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", *w.to.Load())
	if err != nil {
		return
	}
	defer far.Close()
	go func() {
		io.Copy(io.MultiWriter(far, &w.up), near)
		far.Close()
	}()
	io.Copy(io.MultiWriter(near, &w.down), far)
}

// An endFront is where every service's host leads. It keeps what came, and hands on what is
// for Stripe to Stripe's own server.
type endFront struct {
	*peer.Server
	hosts []string

	mu      sync.Mutex
	seen    []endRequest
	hold    chan struct{} // while it is there, writes wait for its end
	reached chan struct{} // one a write that waits
	answer  func(http.ResponseWriter, *http.Request) bool
}

// An endRequest is what the provider was asked.
type endRequest struct {
	method, host, uri, body string
	header                  http.Header
}

func newEndFront(t *testing.T, reg *integrations.Registry) *endFront {
	t.Helper()
	f := &endFront{reached: make(chan struct{}, 8)}
	for _, m := range reg.All() {
		f.hosts = append(f.hosts, m.Host)
	}
	stripe := startStripe(t)
	authority, err := os.ReadFile(stripe.ca)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "https", Host: "api.stripe.com"})
			r.Out.Host = "api.stripe.com"
		},
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableCompression: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, stripe.addr)
		}},
		ErrorLog: log.New(io.Discard, "", 0),
	}
	f.Server, err = peer.Start(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		f.mu.Lock()
		f.seen = append(f.seen, endRequest{r.Method, r.Host, r.RequestURI, string(body), r.Header.Clone()})
		hold, answer := f.hold, f.answer
		f.mu.Unlock()
		if hold != nil && r.Method == http.MethodPost {
			f.reached <- struct{}{}
			<-hold
		}
		switch {
		case answer != nil && answer(w, r):
		case r.Host != "api.stripe.com":
			http.Error(w, "{}", http.StatusInternalServerError)
		default:
			proxy.ServeHTTP(w, r)
		}
	}), f.hosts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// requests returns all that came after the first n.
func (f *endFront) requests(n int) []endRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]endRequest(nil), f.seen[n:]...)
}

// writes counts those of them that change something.
func writes(all []endRequest) (n int) {
	for _, r := range all {
		if r.method != http.MethodGet {
			n++
		}
	}
	return n
}

// held makes writes wait until what it returns is called.
func (f *endFront) held() (release func()) {
	hold := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hold = hold
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.hold = nil
		close(hold)
	})
}

// awaits waits until something is reached.
func (s *endStage) awaits(reached <-chan struct{}) {
	s.t.Helper()
	select {
	case <-reached:
	case <-time.After(endPatience):
		s.t.Fatal("the provider is not reached")
	}
}

// says sets who answers first; what it returns takes it back. An answer of false leaves a
// request to Stripe's server.
func (f *endFront) says(answer func(http.ResponseWriter, *http.Request) bool) (back func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.answer = nil
	}
}
