package instance_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/hpke"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
)

// A clock is real time plus what a test skips.
type clock struct {
	mu   sync.Mutex
	skip time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Add(c.skip)
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skip += d
}

// A place is an instance behind a real HTTP server.
type place struct {
	*httptest.Server
	in    *instance.Instance
	clock *clock
	db    string
	log   *syncBuffer
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

const space = "home"

func start(t testing.TB, change func(*instance.Config)) *place {
	t.Helper()
	p := &place{clock: new(clock), db: filepath.Join(t.TempDir(), "instance.db"), log: new(syncBuffer)}
	cfg := instance.Config{Space: space, DB: p.db, Now: p.clock.now, Logger: slog.New(slog.NewJSONHandler(p.log, nil)), Rate: 100000}
	if change != nil {
		change(&cfg)
	}
	in, err := instance.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.in = in
	instance.NoStrangerLimit(in)
	p.Server = httptest.NewUnstartedServer(in)
	p.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		c.(*net.TCPConn).SetWriteBuffer(64 << 10) // so that a slow reader is soon noticed
		return ctx
	}
	p.Start()
	t.Cleanup(p.stop)
	return p
}

func (p *place) stop() {
	p.in.Close()
	p.Server.Close()
}

func identity(t testing.TB) *custody.Identity {
	t.Helper()
	i, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// join logs a fresh key in.
func (p *place) join(t testing.TB, kind string) (*client.Client, *custody.Identity) {
	t.Helper()
	i := identity(t)
	return p.dial(t, i, &client.Join{Kind: kind, Name: kind}), i
}

func (p *place) dial(t testing.TB, i *custody.Identity, join *client.Join) *client.Client {
	t.Helper()
	c, err := client.Dial(t.Context(), p.URL, i, client.Options{Space: space, Join: join})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// say seals a text.
func say(t testing.TB, from *custody.Identity, to custody.PublicKey, thread, text string) *custody.Envelope {
	t.Helper()
	return seal(t, from, to, custody.Header{Space: space, Thread: thread}, &custody.Say{V: 1, ID: custody.NewID(), At: time.Now().Unix(), Text: text})
}

func seal(t testing.TB, from *custody.Identity, to custody.PublicKey, h custody.Header, m custody.Message) *custody.Envelope {
	t.Helper()
	e, err := from.SealMessage(to, nil, h, m)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func marshal(t testing.TB, e *custody.Envelope) json.RawMessage {
	t.Helper()
	text, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// An answer is what came, with the error's code where it was one.
type answer struct {
	status int
	header http.Header
	body   string
	code   string
}

// ask sends one request as it is.
func (p *place) ask(t testing.TB, method, path, session string, body any, headers ...string) answer {
	t.Helper()
	var r io.Reader
	switch b := body.(type) {
	case nil:
	case string:
		r = strings.NewReader(b)
	default:
		data, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		r = bytes.NewReader(data)
	}
	req, err := http.NewRequestWithContext(context.Background(), method, p.URL+path, r)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if session != "" {
		req.Header.Set("Authorization", "Bearer "+session)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Set(name, value)
	}
	client := &http.Client{Timeout: 20 * time.Second, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	a := answer{status: res.StatusCode, header: res.Header, body: string(data)}
	var e struct {
		Error struct{ Code, Message string }
	}
	if json.Unmarshal(data, &e) == nil {
		a.code = e.Error.Code
		if a.code != "" && len(e.Error.Message) < 10 {
			t.Errorf("%s %s: %s has no words", method, path, a.code)
		}
	}
	return a
}

// session returns a raw session of i.
func (p *place) session(t testing.TB, i *custody.Identity) string {
	t.Helper()
	nonce := p.nonce(t, i)
	a := p.ask(t, "POST", "/api/session", "", map[string]any{"key": i.Public(), "nonce": nonce})
	var out struct{ Session string }
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.status != 200 {
		t.Fatalf("session: %d %s", a.status, a.body)
	}
	return out.Session
}

func (p *place) nonce(t testing.TB, i *custody.Identity) custody.Bytes {
	t.Helper()
	a := p.ask(t, "POST", "/api/login", "", map[string]any{"key": i.Public()})
	var out struct{ Sealed custody.Bytes }
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.status != 200 {
		t.Fatalf("login: %d %s", a.status, a.body)
	}
	return openLogin(t, i, space, out.Sealed)
}

// openLogin opens a nonce as protocol.md has it, with nothing of the client's.
func openLogin(t testing.TB, i *custody.Identity, space string, sealed []byte) custody.Bytes {
	t.Helper()
	der, err := i.MarshalPKCS8()
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		t.Fatal(err)
	}
	key, err := parsed.(*ecdsa.PrivateKey).ECDH()
	if err != nil {
		t.Fatal(err)
	}
	own, err := hpke.NewDHKEMPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	info := "connect/v1 login" + string([]byte{0, 0, 0, byte(len(space))}) + space
	nonce, err := hpke.Open(own, hpke.HKDFSHA256(), hpke.AES256GCM(), []byte(info), sealed)
	if err != nil {
		t.Fatal(err)
	}
	return nonce
}

// eventually waits for what another goroutine does.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatal("did not happen: " + what)
}

func ids(n int) string { return fmt.Sprintf("m%d", n) }
