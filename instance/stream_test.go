package instance_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
)

func (p *place) stream(t testing.TB, hello string, headers ...string) (*websocket.Conn, *http.Response, error) {
	t.Helper()
	h := make(http.Header)
	for _, s := range headers {
		name, value, _ := strings.Cut(s, ": ")
		h.Set(name, value)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			c.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return c, err
	}
	conn, res, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(p.URL, "http")+"/api/stream",
		&websocket.DialOptions{HTTPHeader: h, HTTPClient: &http.Client{Transport: &http.Transport{DialContext: dial}}})
	if err != nil {
		return nil, res, err
	}
	t.Cleanup(func() { conn.CloseNow() })
	conn.SetReadLimit(1 << 20)
	if hello != "" {
		if err := conn.Write(ctx, websocket.MessageText, []byte(hello)); err != nil {
			t.Fatal(err)
		}
	}
	return conn, res, nil
}

func read(t testing.TB, conn *websocket.Conn) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_, data, err := conn.Read(ctx)
	return string(data), err
}

func TestStream(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris := p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID()); err != nil {
		t.Fatal(err)
	}
	send := func(n int) {
		t.Helper()
		if _, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", fmt.Sprint(n)), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	for n := 1; n <= 3; n++ {
		send(n)
	}
	// Two devices of one key, from where each is.
	for _, cursor := range []int{0, 2} {
		conn, _, err := p.stream(t, fmt.Sprintf(`{"session":%q,"cursor":%d}`, boris.session, cursor))
		if err != nil {
			t.Fatal(err)
		}
		for n := cursor + 1; n <= 3; n++ {
			text, err := read(t, conn)
			var m struct {
				Seq      int
				Author   custody.KeyID
				Envelope json.RawMessage
			}
			if err != nil || json.Unmarshal([]byte(text), &m) != nil || m.Seq != n || m.Author != anna.ID() {
				t.Fatalf("%s %v", text, err)
			}
			if _, err := custody.ParseEnvelope(m.Envelope); err != nil {
				t.Error(err)
			}
		}
		if text, err := read(t, conn); err != nil || text != `{"cursor":3}` {
			t.Errorf("caught up: %s %v", text, err)
		}
		defer func() {
			if text, err := read(t, conn); err != nil || !strings.HasPrefix(text, `{"seq":4,`) {
				t.Errorf("what came meanwhile: %s %v", text, err)
			}
		}()
	}
	send(4)
}

func TestStreamRefused(t *testing.T) {
	p := start(t, func(c *instance.Config) {
		instance.SetStream(c, 300*time.Millisecond, 20*time.Millisecond, time.Second, time.Second)
	})
	anna := p.party(t, "member")
	hello := func(cursor int) string { return fmt.Sprintf(`{"session":%q,"cursor":%d}`, anna.session, cursor) }
	for name, c := range map[string]struct{ hello, reason string }{
		"no session":        {`{"session":"","cursor":0}`, "session"},
		"a made up session": {`{"session":"` + strings.Repeat("A", 43) + `","cursor":0}`, "session"},
		"not JSON":          {`hello`, "malformed"},
		"an unknown field":  {strings.Replace(hello(0), "{", `{"x":1,`, 1), "malformed"},
		"a cursor below 0":  {hello(-1), "malformed"},
		"a cursor ahead":    {hello(1), "cursor"},
	} {
		conn, _, err := p.stream(t, c.hello)
		if err != nil {
			t.Fatal(err)
		}
		_, err = read(t, conn)
		var closed websocket.CloseError
		if !errors.As(err, &closed) || closed.Code != websocket.StatusPolicyViolation || closed.Reason != c.reason {
			t.Errorf("%s: %v", name, err)
		}
	}
	// In an address or a header a session is none.
	if a := p.ask(t, "GET", "/api/stream?session="+anna.session, anna.session, nil); a.status != 426 || a.code != "upgrade" {
		t.Errorf("%d %s", a.status, a.body)
	}
	for name, wrong := range map[string]struct {
		headers []string
		hello   string
	}{"silent": {nil, ""}, "too much": {nil, `{"session":"` + strings.Repeat("A", 600) + `"}`}} {
		conn, _, err := p.stream(t, wrong.hello, wrong.headers...)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := read(t, conn); err == nil || time.Since(began) > 5*time.Second {
			t.Errorf("%s: %v after %s", name, err, time.Since(began))
		}
	}
	for name, headers := range map[string][]string{"another origin": {"Origin: https://evil.example"}, "another site": {"Sec-Fetch-Site: cross-site"}} {
		if _, res, err := p.stream(t, hello(0), headers...); err == nil || res == nil || res.StatusCode != 403 {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Who says more than hello is cut.
	conn, _, err := p.stream(t, hello(0))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := read(t, conn); err != nil || text != `{"cursor":0}` {
		t.Errorf("%s %v", text, err)
	}
	if err := conn.Write(t.Context(), websocket.MessageText, []byte("more")); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, conn); websocket.CloseStatus(err) != websocket.StatusPolicyViolation {
		t.Errorf("more was said: %v", err)
	}
	// A session that ends ends its streams: here at the next ping.
	if conn, _, err = p.stream(t, hello(0)); err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, conn); err != nil {
		t.Fatal(err)
	}
	if a := p.ask(t, "DELETE", "/api/session", anna.session, nil); a.status != 200 {
		t.Fatal(a.body)
	}
	var closed websocket.CloseError
	if _, err := read(t, conn); !errors.As(err, &closed) || closed.Reason != "session" {
		t.Errorf("after logout: %v", err)
	}
}

// TestManyStreams: a key has sixteen at most.
func TestManyStreams(t *testing.T) {
	p := start(t, nil)
	anna := p.party(t, "member")
	for n := range 17 {
		conn, _, err := p.stream(t, fmt.Sprintf(`{"session":%q,"cursor":0}`, anna.session))
		if err != nil {
			t.Fatal(err)
		}
		_, err = read(t, conn)
		if n < 16 && err != nil || n == 16 && websocket.CloseStatus(err) != websocket.StatusTryAgainLater {
			t.Errorf("stream %d: %v", n+1, err)
		}
	}
}

// TestSlowReaderIsCut: who does not read is cut within the time of one write, fills nothing,
// holds nobody up, and goes on where it was.
func TestSlowReaderIsCut(t *testing.T) {
	p := start(t, func(c *instance.Config) {
		instance.SetStream(c, time.Second, time.Minute, time.Second, 200*time.Millisecond)
	})
	ctx := t.Context()
	anna, boris := p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID()); err != nil {
		t.Fatal(err)
	}
	conn, _, err := p.stream(t, fmt.Sprintf(`{"session":%q,"cursor":0}`, boris.session))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, conn); err != nil {
		t.Fatal(err)
	}
	// More than the buffers of both sockets hold.
	const count = 40
	text := strings.Repeat("x", 16000)
	for range count {
		if _, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", text), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the stream is cut", func() bool { return strings.Contains(p.log.String(), `"code":"cut"`) })
	last, got := 0, 0
	for {
		text, err := read(t, conn)
		if err != nil {
			break
		}
		var m struct{ Seq int }
		if json.Unmarshal([]byte(text), &m) == nil && m.Seq > 0 {
			if m.Seq != last+1 {
				t.Fatalf("after %d came %d", last, m.Seq)
			}
			last = m.Seq
			got++
		}
	}
	if got == 0 || got >= count {
		t.Fatalf("%d of %d came before it was cut", got, count)
	}
	reading, stop := context.WithCancel(ctx)
	err = boris.Receive(reading, int64(last), func(_ context.Context, m *client.Message) error {
		if m.Seq != int64(last+1) {
			return fmt.Errorf("after %d came %d", last, m.Seq)
		}
		if last = int(m.Seq); last == count {
			stop()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || last != count {
		t.Errorf("resumed to %d: %v", last, err)
	}
	stop()
}

// A cutter is a listener's way to lose every connection.
type cutter struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
}

func (c *cutter) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.mu.Lock()
		c.conns = append(c.conns, conn)
		c.mu.Unlock()
	}
	return conn, err
}

func (c *cutter) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// TestReceiveResumes: over lost connections each message comes once, in order.
func TestReceiveResumes(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris := p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID()); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	front := &cutter{Listener: ln}
	srv := &http.Server{Handler: p.in}
	go srv.Serve(front)
	defer srv.Close()
	c, err := client.Dial(ctx, "http://"+ln.Addr().String(), boris.Identity, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const count = 40
	var came atomic.Int64
	done := make(chan error, 1)
	reading, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		done <- c.Receive(reading, 0, func(_ context.Context, m *client.Message) error {
			if m.Seq != came.Load()+1 {
				return fmt.Errorf("after %d came %d", came.Load(), m.Seq)
			}
			if came.Add(1) == count {
				stop()
			}
			return nil
		})
	}()
	for n := range count {
		if _, err := anna.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", fmt.Sprint(n)), time.Time{}); err != nil {
			t.Fatal(err)
		}
		if n%13 == 12 {
			eventually(t, "some came", func() bool { return came.Load() > int64(n-13) })
			front.cut()
		}
	}
	if err := <-done; !errors.Is(err, context.Canceled) || came.Load() != count {
		t.Errorf("%d came: %v", came.Load(), err)
	}
}

// TestReceiveEnds: with what another try does not change.
func TestReceiveEnds(t *testing.T) {
	p := start(t, nil)
	anna := p.party(t, "member")
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	nothing := func(context.Context, *client.Message) error { return nil }
	if err := anna.Receive(ctx, 7, nothing); !errors.Is(err, client.ErrCursor) {
		t.Errorf("a cursor ahead: %v", err)
	}
	if err := anna.NewThread(ctx, "t1"); err != nil {
		t.Fatal(err)
	}
	if _, err := anna.Post(ctx, "", say(t, anna.Identity, anna.Public(), "t1", "to myself"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	own := errors.New("enough")
	if err := anna.Receive(ctx, 0, func(context.Context, *client.Message) error { return own }); err != own {
		t.Errorf("the caller's error: %v", err)
	}
	// A session that ended is renewed on the way.
	p.clock.advance(25 * time.Hour)
	if err := anna.Receive(ctx, 0, func(context.Context, *client.Message) error { return own }); err != own {
		t.Errorf("after a day: %v", err)
	}
	began := time.Now()
	soon, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if err := anna.Receive(soon, 1, nothing); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > 5*time.Second {
		t.Errorf("its time is over: %v after %s", err, time.Since(began))
	}
}

// TestCloseEndsStreams: whoever listens is told, and Close does not wait for them.
func TestCloseEndsStreams(t *testing.T) {
	p := start(t, nil)
	anna := p.party(t, "member")
	conn, _, err := p.stream(t, fmt.Sprintf(`{"session":%q,"cursor":0}`, anna.session))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := read(t, conn); err != nil {
		t.Fatal(err)
	}
	told := make(chan error, 1)
	go func() {
		_, err := read(t, conn)
		told <- err
	}()
	began := time.Now()
	if err := p.in.Close(); err != nil {
		t.Error(err)
	}
	if err := <-told; websocket.CloseStatus(err) != websocket.StatusGoingAway || time.Since(began) > 4*time.Second {
		t.Errorf("%v after %s", err, time.Since(began))
	}
}
