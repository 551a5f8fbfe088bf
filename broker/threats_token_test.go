package broker_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// noStore fails where an answer could be kept by somebody, or read by a page.
func noStore(t *testing.T, h http.Header) {
	t.Helper()
	if h.Get("Cache-Control") != "no-store" || h.Get("Pragma") != "no-cache" || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("headers %v: want no-store, no-cache and nosniff", h)
	}
	for name := range h {
		if strings.HasPrefix(name, "Access-Control-") {
			t.Errorf("header %s is there", name)
		}
	}
}

// exchangeCode runs a flow whose exchange the provider answers so; it returns the outcome's
// error, "" for a pair.
func exchangeCode(t *testing.T, s *brokertest.Server, service string) string {
	t.Helper()
	return s.Connect(t, brokertest.Ask{Service: service}).Error
}

var _ = threat("T1_no_probing_of_client_auth", func(t *testing.T) {
	for _, style := range []string{"post", "basic", "basic_raw", "basic_secret"} {
		s := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
			if id == "acme" {
				oauthOf(m)["client_auth"] = style
			}
		}})
		for _, a := range []*brokertest.Answer{
			jsonAnswer(401, `{"error":"invalid_client"}`), jsonAnswer(400, `{"error":"invalid_grant"}`), jsonAnswer(400, `{"error":"unsupported"}`),
			answer(401, "text/html", "<h1>401"), jsonAnswer(403, `{}`),
		} {
			answers(s, a)
			s.Upstream.Reset()
			if got := exchangeCode(t, s, "acme"); got != "provider" {
				t.Errorf("%s, exchange answered %d %s: outcome %q", style, a.Status, a.Body, got)
			}
			if n := s.Upstream.Secret(); n != 1 {
				t.Errorf("%s, exchange answered %d %s: %d requests, want 1", style, a.Status, a.Body, n)
			}
			s.Upstream.Reset()
			redeem(t, s, "acme", live(s, "acme"))
			if n := s.Upstream.Secret(); n != 1 {
				t.Errorf("%s, refresh answered %d %s: %d requests, want 1", style, a.Status, a.Body, n)
			}
			c := s.Upstream.Calls()[0]
			_, _, basic := (&http.Request{Header: c.Header}).BasicAuth()
			inBody := c.Form.Has("client_secret")
			if basic == (style == "post") || inBody != (style == "post") {
				t.Errorf("%s: Basic %v, in the body %v", style, basic, inBody)
			}
		}
	}
	builtin, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{`"auto"`, `""`, `"BASIC"`, `null`} {
		text := regexp.MustCompile(`"client_auth":\s*"post"`).ReplaceAllString(string(builtin.Get("github").Raw()), `"client_auth": `+bad)
		if _, err := integrations.Parse([]byte(text)); err == nil {
			t.Errorf("a manifest with client_auth %s loads", bad)
		}
	}
})

// oauthOf is where a manifest describes its OAuth.
func oauthOf(m map[string]any) map[string]any {
	return m["auth"].(map[string]any)["oauth"].(map[string]any)
}

// counting is a server that stands somewhere else, and counts.
func counting(t *testing.T) (addr string, n *atomic.Int64) {
	t.Helper()
	n = new(atomic.Int64)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			n.Add(1)
			c.Close()
		}
	}()
	return l.Addr().String(), n
}

var _ = threat("T2_no_redirect_is_followed", func(t *testing.T) {
	elsewhere, n := counting(t)
	s := brokertest.New(t, brokertest.Options{Hosts: map[string]string{"evil.example:443": elsewhere}, Config: func(c *broker.Config) { c.AllowWiderRevoke = true }})
	for _, status := range []int{301, 302, 303, 307, 308, 300, 304} {
		for _, to := range []string{"https://evil.example/token", "https://auth.acme.example/other", "/other", "http://evil.example/"} {
			answers(s, &brokertest.Answer{Status: status, Header: http.Header{"Location": {to}, "Content-Type": {"application/json"}}, Body: `{"error":"invalid_grant","access_token":"x"}`})
			s.Upstream.Reset()
			if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "temporary:redirect" {
				t.Errorf("%d to %s: %s", status, to, got)
			}
			if got := exchangeCode(t, s, "acme"); got != "provider" {
				t.Errorf("%d to %s: the exchange came to %q", status, to, got)
			}
			p, err := s.PostJSON("/api/revoke", instanceToken(s), map[string]string{"service": "acme", "refresh": live(s, "acme")})
			if err != nil || !strings.Contains(p.Body, `"temporary"`) {
				t.Errorf("%d to %s: the revocation came to %s %v", status, to, p.Body, err)
			}
			if got := s.Upstream.Secret(); got != 3 {
				t.Errorf("%d to %s: %d requests, want 3", status, to, got)
			}
		}
	}
	if n.Load() != 0 {
		t.Errorf("the other host saw %d connections", n.Load())
	}
})

// private are addresses in every guise that leads to a place which is not public.
var private = []string{
	"127.0.0.1", "127.1", "127.255.255.254", "0x7f.1", "0177.0.0.1", "2130706433", "0", "0.0.0.0", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
	"169.254.169.254", "169.254.0.1", "100.64.0.1", "100.127.255.254", "192.0.0.8", "192.0.2.1", "198.18.0.1", "198.51.100.7", "203.0.113.9",
	"224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "::1", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "::ffff:10.0.0.1",
	"::127.0.0.1", "::169.254.169.254", "fe80::1", "fe80::1%25lo", "fe80::1%lo", "febf::1", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1",
	"2002:a9fe:a9fe::", "2002:7f00:1::", "64:ff9b::a9fe:a9fe", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2001::1", "2001:db8::1", "3fff::1", "100::1",
}

var _ = threat("T3_private_addresses", func(t *testing.T) {
	n := 0
	for _, lit := range private {
		c, err := broker.DialUpstream(broker.Config{UpstreamTimeout: time.Second, Now: time.Now}, net.JoinHostPort(lit, "443"))
		if err == nil {
			t.Errorf("%s was dialled", lit)
			c.Close()
		}
		n++
	}
	if _, err := broker.DialUpstream(broker.Config{Now: time.Now}, "127.0.0.1:80"); err == nil {
		t.Error("another port was dialled")
	}
	// What stands in a manifest: a name and nothing else.
	for _, host := range append([]string{"localhost", "metadata", "auth.acme.example:444", "user@auth.acme.example", "auth.acme.example.", "169.254.169.254", "[::1]", "{shop}.acme.example", "${x}.acme.example"}, private...) {
		if strings.Contains(host, ":") && host[0] != '[' && !strings.Contains(host, "example") {
			host = "[" + host + "]"
		}
		m := acme(t, func(o map[string]any) { o["token_url"] = "https://" + host + "/oauth/token" })
		if _, err := integrations.Parse(m); err == nil {
			t.Errorf("a manifest with the token host %s loads", host)
		}
		n++
	}
	if n < 80 {
		t.Errorf("%d addresses were tried", n)
	}

	// A name that leads to a private place, at once or the second time: what is dialled is
	// what is checked, so there is nothing between.
	listener, reached := counting(t)
	dns := newDNS(t, []string{"10.0.0.1", "127.0.0.1", "169.254.169.254"})
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.ConnectTo = nil
		broker.WithResolver(c, dns.resolver())
	}})
	for range 6 {
		s.Upstream.Reset()
		if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "temporary:unreachable" {
			t.Errorf("a name that leads to a private address: %s", got)
		}
		if s.Upstream.Secret() != 0 || reached.Load() != 0 {
			t.Error("something was reached")
		}
	}
	if dns.asked.Load() == 0 {
		t.Error("the resolver was not asked")
	}
	t.Setenv("HTTPS_PROXY", "http://"+listener)
	t.Setenv("HTTP_PROXY", "http://"+listener)
	redeem(t, s, "acme", live(s, "acme"))
	if reached.Load() != 0 {
		t.Error("the environment's proxy was used")
	}
})

// acme is brokertest's provider with its OAuth changed.
func acme(t testing.TB, edit func(map[string]any)) []byte {
	t.Helper()
	data, err := os.ReadFile("brokertest/acme.json")
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	edit(oauthOf(m))
	if data, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	return data
}

// acmeOAuth parses it.
func acmeOAuth(t testing.TB, edit func(map[string]any)) *integrations.OAuth {
	t.Helper()
	m, err := integrations.Parse(acme(t, edit))
	if err != nil {
		t.Fatal(err)
	}
	return m.Auth.OAuth
}

// A dnsServer answers every question for an IPv4 address with the next of its list.
type dnsServer struct {
	conn  net.PacketConn
	list  []net.IP
	asked atomic.Int64
}

func newDNS(t *testing.T, list []string) *dnsServer {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &dnsServer{conn: conn}
	for _, s := range list {
		d.list = append(d.list, net.ParseIP(s).To4())
	}
	t.Cleanup(func() { conn.Close() })
	go d.serve()
	return d
}

func (d *dnsServer) resolver() *net.Resolver {
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var dialer net.Dialer
		return dialer.DialContext(ctx, "udp", d.conn.LocalAddr().String())
	}}
}

func (d *dnsServer) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		q := buf[:n]
		end := 12
		for end < n && q[end] != 0 {
			end += int(q[end]) + 1
		}
		end += 5
		if end > n {
			continue
		}
		qtype := binary.BigEndian.Uint16(q[end-4:])
		out := append([]byte(nil), q[:end]...)
		out[2], out[3] = 0x81, 0x80
		binary.BigEndian.PutUint16(out[6:], 0)
		binary.BigEndian.PutUint32(out[8:], 0)
		if qtype == 1 {
			ip := d.list[int(d.asked.Add(1)-1)%len(d.list)]
			binary.BigEndian.PutUint16(out[6:], 1)
			out = append(out, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
			out = append(out, ip...)
		}
		d.conn.WriteTo(out, from)
	}
}

var _ = threat("T4_endless_answers", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.UpstreamTimeout = 400 * time.Millisecond }})
	// 2 GiB of zeros in some 2 MB: one member, again and again.
	var member bytes.Buffer
	z, _ := gzip.NewWriterLevel(&member, gzip.BestCompression)
	z.Write(make([]byte, 1<<20))
	z.Close()
	bomb := bytes.Repeat(member.Bytes(), 2048)

	for _, tt := range []struct {
		name string
		a    *brokertest.Answer
		want string
	}{
		{"compressed zeros", &brokertest.Answer{Header: http.Header{"Content-Encoding": {"gzip"}, "Content-Type": {"application/json"}}, Body: string(bomb)}, "temporary:unreadable"},
		{"a pair, then zeros", raw(func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `{"access_token":"at","x":"`)
			io.Copy(w, io.LimitReader(zeros{}, 64<<20))
		}), "temporary:unreadable"},
		{"one byte over", jsonAnswer(200, `{"access_token":"at","x":"`+strings.Repeat("x", 1<<20)+`"}`), "temporary:unreadable"},
		{"a byte a time", raw(func(w http.ResponseWriter, r *http.Request) {
			for range 100 {
				io.WriteString(w, " ")
				http.NewResponseController(w).Flush()
				select {
				case <-r.Context().Done():
					return
				case <-time.After(50 * time.Millisecond):
				}
			}
		}), "temporary:unreadable"},
		{"no answer", raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), "temporary:no_answer"},
		{"endless headers", raw(func(w http.ResponseWriter, _ *http.Request) {
			for i := range 2000 {
				w.Header().Set(fmt.Sprintf("X-%d", i), strings.Repeat("x", 100))
			}
		}), "temporary:no_answer"},
		{"compressed, unasked", func() *brokertest.Answer {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			io.WriteString(z, `{"access_token":"at","refresh_token":"rt2"}`)
			z.Close()
			return &brokertest.Answer{Header: http.Header{"Content-Encoding": {"gzip"}}, Body: b.String()}
		}(), "ok"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answers(s, tt.a)
			s.Upstream.Reset()
			var before, after runtime.MemStats
			wrapped := live(s, "acme")
			runtime.ReadMemStats(&before)
			start := time.Now()
			if got := redeem(t, s, "acme", wrapped).outcome(); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
			took := time.Since(start)
			runtime.ReadMemStats(&after)
			if took > 3*time.Second {
				t.Errorf("it took %v", took)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 48<<20 {
				t.Errorf("%d MB were allocated", n>>20)
			}
			c := s.Upstream.Calls()
			if len(c) != 1 || c[0].Header.Get("Accept-Encoding") != "identity" {
				t.Errorf("%d requests", len(c))
			}
		})
	}
})

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

var _ = threat("T5_errors_in_200", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	for _, tt := range []struct{ service, body, want string }{
		{"github", `{"error":"bad_refresh_token","error_description":"The refresh token passed is incorrect or expired."}`, "dead:bad_refresh_token"},
		{"github", `{"error":"bad_refresh_token","access_token":"at"}`, "dead:bad_refresh_token"},
		{"github", `{"error":"incorrect_client_credentials"}`, "misconfigured:incorrect_client_credentials"},
		{"github", `{"error":"redirect_uri_mismatch"}`, "misconfigured:redirect_uri_mismatch"},
		{"github", `{"error":"unverified_user_email"}`, "temporary:unknown"},
		{"github", `{"error":"slow_down"}`, "temporary:unknown"},
		{"acme", `{"ok":false,"error":"invalid_refresh_token"}`, "temporary:unknown"},
		{"acme", `{"ok":false,"access_token":"at"}`, "temporary:no_token"},
		{"acme", `{"error":{"message":"x","type":"OAuthException","code":190},"access_token":"at"}`, "temporary:unknown"},
		{"acme", `{"access_token":""}`, "temporary:no_token"},
		{"acme", `{"access_token":null}`, "temporary:no_token"},
		{"acme", `{"access_token":{"a":"b"}}`, "temporary:no_token"},
		{"acme", `{"access_token":12}`, "temporary:no_token"},
		{"acme", `{"access_token":["at"]}`, "temporary:no_token"},
		{"acme", `{}`, "temporary:no_token"},
		{"acme", `[]`, "temporary:not_json"},
		{"acme", `null`, "temporary:not_json"},
		{"acme", ``, "temporary:not_json"},
		{"acme", `error=invalid_grant`, "dead:invalid_grant"},
		{"acme", `{"error":null,"access_token":"at"}`, "ok"},
		{"acme", `{"error":"","access_token":"at"}`, "ok"},
		{"acme", `{"ok":true,"access_token":"at"}`, "ok"},
	} {
		if tt.service == "github" && s.Registry.Get("github") == nil {
			t.Fatal("there is no github")
		}
		answers(s, jsonAnswer(200, tt.body))
		s.Upstream.Reset()
		if got := redeem(t, s, tt.service, live(s, tt.service)).outcome(); got != tt.want {
			t.Errorf("%s, %s: %s, want %s", tt.service, tt.body, got, tt.want)
		}
		if n := s.Upstream.Secret(); n != 1 {
			t.Errorf("%s: %d requests", tt.body, n)
		}
		if got := exchangeCode(t, s, tt.service); (got == "") != (tt.want == "ok") {
			t.Errorf("%s, %s: the exchange came to %q", tt.service, tt.body, got)
		}
	}
})

var _ = threat("T6_three_classes", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.UpstreamTimeout = 300 * time.Millisecond }})
	hang := raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	for _, tt := range []struct {
		service string
		a       *brokertest.Answer
		want    string
		status  int // of the broker
	}{
		{"acme", answer(502, "text/html", "<html><h1>502 Bad Gateway</h1>"), "temporary:server", 503},
		{"acme", jsonAnswer(503, `{"error":"invalid_grant"}`), "temporary:server", 503},
		{"acme", jsonAnswer(500, `{"error":"invalid_client"}`), "temporary:server", 503},
		{"acme", jsonAnswer(500, `{"access_token":"at"}`), "temporary:server", 503},
		{"acme", jsonAnswer(429, `{"error":"invalid_grant"}`), "temporary:rate_limited", 429},
		{"acme", answer(429, "text/plain", "slow down"), "temporary:rate_limited", 429},
		{"acme", jsonAnswer(408, `{"error":"invalid_grant"}`), "temporary:server", 503},
		{"acme", jsonAnswer(425, `{"error":"invalid_grant"}`), "temporary:server", 503},
		{"acme", answer(403, "text/html", "Rate limit"), "temporary:not_json", 503},
		{"acme", answer(400, "text/html", "<html>error=invalid_grant</html>"), "temporary:not_json", 503},
		{"acme", jsonAnswer(200, `<!DOCTYPE html>`), "temporary:not_json", 503},
		{"acme", jsonAnswer(200, ``), "temporary:not_json", 503},
		{"acme", jsonAnswer(400, `{"error":"something_new"}`), "temporary:unknown", 503},
		{"acme", jsonAnswer(400, `{"error":"invalid_request"}`), "temporary:unknown", 503},
		{"acme", jsonAnswer(400, `{}`), "temporary:unknown", 503},
		{"acme", jsonAnswer(401, `{"error":"invalid_client"}`), "misconfigured:invalid_client", 502},
		{"acme", jsonAnswer(400, `{"error":"unauthorized_client"}`), "misconfigured:unauthorized_client", 502},
		{"acme", jsonAnswer(400, `{"error":"redirect_uri_mismatch"}`), "misconfigured:redirect_uri_mismatch", 502},
		{"acme", jsonAnswer(400, `{"error":"unsupported_grant_type"}`), "misconfigured:unsupported_grant_type", 502},
		{"acme", jsonAnswer(400, `{"error":"invalid_grant"}`), "dead:invalid_grant", 409},
		{"acme", jsonAnswer(403, `{"error":"invalid_grant","error_description":"Unknown or invalid refresh token."}`), "dead:invalid_grant", 409},
		{"github", jsonAnswer(200, `{"error":"bad_refresh_token"}`), "dead:bad_refresh_token", 409},
		{"hubspot", jsonAnswer(400, `{"status":"BAD_REFRESH_TOKEN","message":"missing or unknown refresh token"}`), "dead:BAD_REFRESH_TOKEN", 409},
		{"hubspot", jsonAnswer(400, `{"status":"BAD_REFRESH_TOKEN","message":"the refresh token was not issued to this client"}`), "misconfigured:BAD_REFRESH_TOKEN", 502},
		{"acme", raw(reset), "temporary:no_answer", 503},
		{"acme", hang, "temporary:no_answer", 503},
	} {
		answers(s, tt.a)
		s.Upstream.Reset()
		r := redeem(t, s, tt.service, live(s, tt.service))
		if r.outcome() != tt.want || r.Status != tt.status {
			t.Errorf("%s answered %d %s: %s at %d, want %s at %d", tt.service, tt.a.Status, tt.a.Body, r.outcome(), r.Status, tt.want, tt.status)
		}
		if n := s.Upstream.Secret(); n != 1 {
			t.Errorf("%s answered %d %s: %d requests", tt.service, tt.a.Status, tt.a.Body, n)
		}
		noStore(t, r.Header)
	}
})

var _ = threat("T7_nothing_is_sent_twice", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.UpstreamTimeout = 300 * time.Millisecond }})
	half := raw(func(w http.ResponseWriter, _ *http.Request) {
		c, buf, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		buf.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n{\"access_token\":")
		buf.Flush()
		c.Close()
	})
	for name, a := range map[string]*brokertest.Answer{
		"reset": raw(reset), "half an answer": half,
		"time-out": raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
		"closed":   raw(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
	} {
		answers(s, a)
		s.Upstream.Reset()
		for i := range 3 { // new connections and used ones
			if got := redeem(t, s, "acme", live(s, "acme")); got.Class != broker.Temporary {
				t.Errorf("%s: %s", name, got.outcome())
			}
			if n := s.Upstream.Secret(); n != i+1 {
				t.Errorf("%s: %d requests after %d calls", name, n, i+1)
			}
		}
		s.Upstream.Reset()
		if got := exchangeCode(t, s, "acme"); got != "provider" {
			t.Errorf("%s: the exchange came to %q", name, got)
		}
		if n := s.Upstream.Secret(); n != 1 {
			t.Errorf("%s: the exchange made %d requests", name, n)
		}
	}

	// Where nothing was sent, once more: a front that drops the first connection of two before
	// anything is said.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s = brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.ConnectTo["auth.acme.example:443"] = l.Addr().String() }})
	var dials atomic.Int64
	go func(to string) {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if dials.Add(1)%2 == 1 {
				c.Close()
				continue
			}
			go splice(c, to)
		}
	}(s.Upstream.Addr)
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" {
		t.Errorf("after a connection that broke before it began: %s", got)
	}
	if n := s.Upstream.Secret(); dials.Load() != 2 || n != 1 {
		t.Errorf("%d connections and %d requests, want 2 and 1", dials.Load(), n)
	}
	// Nothing there at all: twice, then temporary.
	s = brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.ConnectTo["auth.acme.example:443"] = "127.0.0.1:1" }})
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "temporary:unreachable" {
		t.Errorf("nothing there: %s", got)
	}
})

// splice joins a connection with an address.
func splice(c net.Conn, addr string) {
	defer c.Close()
	d, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer d.Close()
	go func() { io.Copy(d, c); d.Close() }()
	io.Copy(c, d)
}

var _ = threat("T8_nothing_secret_is_said", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	var said strings.Builder
	for _, body := range []string{
		`{"error":"invalid_grant","error_description":"token %s is bad","refresh_token":"%s"}`,
		`{"error":"%s"}`, `<html>%s</html>`, `{"access_token":"%s bad"}`, `{"error":"invalid_client","message":"client_secret=%s"}`, `%s`,
	} {
		s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
			if c.Kind == brokertest.Authorize {
				return nil
			}
			return jsonAnswer(400, strings.ReplaceAll(body, "%s", c.Form.Get("refresh_token")+c.Form.Get("code")+c.ClientSecret))
		})
		r := redeem(t, s, "acme", live(s, "acme"))
		fmt.Fprint(&said, r.Body, r.Header)
		b := s.Browser()
		ask := &brokertest.Ask{Service: "acme"}
		p := b.Get(t, b.Approve(t, ask))
		fmt.Fprint(&said, p.Body, p.Header)
	}
	said.WriteString(s.Logs() + s.Metrics())
	if s.Logs() == "" {
		t.Fatal("nothing was logged")
	}
	if i := strings.Index(said.String(), brokertest.Sentinel); i >= 0 {
		t.Errorf("the broker said …%.200s", said.String()[max(0, i-80):])
	}
	err := error(&broker.RefreshError{Class: broker.Dead, Code: "invalid_grant"})
	if got := err.Error(); got != "broker: dead (invalid_grant)" {
		t.Errorf("an error says %q", got)
	}
})

var _ = threat("T9_basic_encoding", func(t *testing.T) {
	const id, secret = "1PpG/Q 1", "a+b/c=:d%"
	for style, want := range map[string]string{
		"basic": "1PpG%2FQ+1:a%2Bb%2Fc%3D%3Ad%25", "basic_raw": id + ":" + secret, "basic_secret": secret + ":",
	} {
		s := brokertest.New(t, brokertest.Options{
			Edit: func(service string, m map[string]any) {
				if service == "acme" {
					oauthOf(m)["client_auth"] = style
				}
			},
			Config: func(c *broker.Config) {
				c.Secrets = &broker.Cache{Store: &versions{current: client(id, secret, acmeHosts)}, Now: c.Now}
			},
		})
		answers(s, jsonAnswer(200, `{"access_token":"at"}`))
		redeem(t, s, "acme", live(s, "acme"))
		calls := s.Upstream.Calls(brokertest.Refresh)
		if len(calls) != 1 {
			t.Fatalf("%s: %d calls", style, len(calls))
		}
		got, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(calls[0].Header.Get("Authorization"), "Basic "))
		if err != nil || string(got) != want {
			t.Errorf("%s: %q, want %q", style, got, want)
		}
		if calls[0].Form.Has("client_secret") || calls[0].Form.Has("client_id") {
			t.Errorf("%s: the client stands in the body too", style)
		}
	}
	if !client(id, secret).BasicDiffers() || client("id", "sec_ret-1.").BasicDiffers() {
		t.Error("BasicDiffers does not tell the two apart")
	}
})

var _ = threat("T10_secret_rotated_while_cached", func(t *testing.T) {
	store := &versions{current: client("id", "old", acmeHosts)}
	var valid atomic.Value
	valid.Store("old")
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.Secrets = &broker.Cache{Store: store, Now: c.Now}
	}})
	s.Upstream.SetAnswer(knows(func() string { return valid.Load().(string) }))
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" {
		t.Fatal(got)
	}
	store.turn(client("id", "new", acmeHosts))
	valid.Store("new")
	s.Upstream.Reset()
	var wg sync.WaitGroup
	for range 100 {
		wg.Go(func() {
			r, err := tryRedeem(s, "acme", live(s, "acme"))
			if err != nil || r.outcome() != "ok" {
				t.Errorf("%v %v", r, err)
			}
		})
	}
	wg.Wait()
	current, previous := store.reads()
	if current != 2 || previous != 0 {
		t.Errorf("the store was read %d times, and %d for the version before; want 2 and 0", current, previous)
	}
	if n := s.Upstream.Secret(); n < 101 || n > 200 {
		t.Errorf("100 calls made %d requests, want 101 to 200", n)
	}
	s.Upstream.Reset()
	redeem(t, s, "acme", live(s, "acme"))
	if n := s.Upstream.Secret(); n != 1 {
		t.Errorf("afterwards a call makes %d requests", n)
	}
	if s.Metrics() != "" {
		t.Errorf("a rotation that worked is an alarm: %s", s.Metrics())
	}

	// The provider behind the store: the version before, and remembered.
	store.turn(client("id", "newest", acmeHosts))
	s.Clock.Advance(6 * time.Minute)
	for i := range 3 {
		s.Upstream.Reset()
		if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" {
			t.Errorf("call %d while the provider is behind: %s", i, got)
		}
		if n := s.Upstream.Secret(); n != 1+max(0, 1-i) {
			t.Errorf("call %d while the provider is behind: %d requests", i, n)
		}
	}

	// Neither: the operator's, once for each version, and never the member's loss.
	valid.Store("none of them")
	s.Upstream.Reset()
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "misconfigured:invalid_client" {
		t.Errorf("an unknown client: %s", got)
	}
	if n := s.Upstream.Secret(); n != 2 {
		t.Errorf("an unknown client: %d requests, want 2", n)
	}
	if n := strings.Count(s.Metrics(), `"InvalidClient":1`); n != 1 {
		t.Errorf("an unknown client: %d events for the alarm", n)
	}

	// A provider that uses the token up when it refuses the client: one request, and the next
	// call has the new secret.
	store = &versions{current: client("id", "old", acmeHosts)}
	s = brokertest.New(t, brokertest.Options{
		Config: func(c *broker.Config) { c.Secrets = &broker.Cache{Store: store, Now: c.Now} },
		Edit: func(id string, m map[string]any) {
			if id == "acme" {
				oauthOf(m)["client_once"] = true
			}
		},
	})
	s.Upstream.SetAnswer(knows(func() string { return "new" }))
	s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "acme"})) // the cache has "old" now
	for i, want := range []string{"temporary:client_changed", "ok"} {
		if i == 0 {
			store.turn(client("id", "new", acmeHosts))
		}
		s.Upstream.Reset()
		if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != want || s.Upstream.Secret() != 1 {
			t.Errorf("client_once, call %d: %s with %d requests, want %s with 1", i, got, s.Upstream.Secret(), want)
		}
	}
})

var _ = threat("T11_whatever_it_is_called", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	bodies := map[string]string{
		"json": `{"access_token":"at2","refresh_token":"rt2","expires_in":3600,"scope":"profile"}`,
		"form": `access_token=at2&refresh_token=rt2&expires_in=3600&scope=profile`,
		"bom":  "\xef\xbb\xbf" + `{"access_token":"at2","refresh_token":"rt2","expires_in":"3600","scope":"profile"}`,
		"line": "access_token=at2&refresh_token=rt2&expires_in=3600&scope=profile\r\n",
		"more": `{"access_token":"at2","refresh_token":"rt2","expires_in":3600,"scope":"profile"}` + "\n<!-- 3 ms -->",
	}
	for name, body := range bodies {
		for _, ct := range []string{"application/json", "application/json; charset=utf-8", "text/plain", "text/html", "text/javascript", "application/x-www-form-urlencoded", "application/xml", ""} {
			answers(s, answer(200, ct, body))
			r := redeem(t, s, "acme", live(s, "acme"))
			if r.Answer == nil || r.Answer.Secret.Reveal() != "at2" || r.Answer.Same || r.Answer.ExpiresIn != 3600 || len(r.Answer.Scopes) != 1 {
				t.Errorf("%s as %q: %s %+v", name, ct, r.outcome(), r.Answer)
				continue
			}
			if rt, _, err := s.Broker.Unwrap("acme", []string{brokertest.Instance}, r.Answer.Refresh.Reveal()); err != nil || rt != "rt2" {
				t.Errorf("%s as %q: refresh token %q %v", name, ct, rt, err)
			}
		}
	}
	for _, c := range s.Upstream.Calls(brokertest.Refresh) {
		if c.Header.Get("Accept") != "application/json" {
			t.Fatalf("Accept is %q", c.Header.Get("Accept"))
		}
	}
})

var _ = threat("T12_odd_metadata", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	for text, want := range map[string]int64{
		`3600`: 3600, `"3600"`: 3600, `3600.0`: 3600, `"3600.0"`: 3600, `1e3`: 1000, `" 3600 "`: 3600, `null`: 0, `""`: 0, `0`: 0, `-1`: 0, `9e18`: 0,
		`99999999999999999999999`: 0, `{}`: 0, `[]`: 0, `true`: 0, `"soon"`: 0, `"NaN"`: 0, `"Infinity"`: 0, `1e999`: 0, `0.5`: 0, `"PT1H"`: 0,
	} {
		for _, more := range []string{"", `,"token_type":null`, `,"token_type":7`, `,"scope":null`, `,"scope":17`, `,"scope":{"a":1}`, `,"scope":["profile",null,3]`, `,"id_token":{}`, `,"expires_at":"x"`} {
			answers(s, jsonAnswer(200, `{"access_token":"at2","refresh_token":"rt2","expires_in":`+text+more+`}`))
			r := redeem(t, s, "acme", live(s, "acme"))
			if r.Answer == nil || r.Answer.Secret.Reveal() != "at2" || r.Answer.Same || r.Answer.ExpiresIn != want {
				t.Errorf("expires_in %s%s: %s %+v, want %d", text, more, r.outcome(), r.Answer, want)
			}
		}
	}
	answers(s, jsonAnswer(200, `{"access_token":"at2","refresh_token":"rt2"}`))
	if r := redeem(t, s, "acme", live(s, "acme")); r.Answer == nil || r.Answer.ExpiresIn != 0 {
		t.Errorf("no expires_in: %s", r.outcome())
	}
})

var _ = threat("T13_tls", func(t *testing.T) {
	for name, edit := range map[string]func(*tls.Config){
		"a certificate of nobody's": nil,
		"TLS 1.1":                   func(c *tls.Config) { c.MaxVersion = tls.VersionTLS11 },
	} {
		var n atomic.Int64
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.Add(1) }))
		srv.Config.ErrorLog = discardLog
		if edit != nil {
			s := brokertest.New(t, brokertest.Options{})
			srv.TLS = s.CA.TLS()
			edit(srv.TLS)
		}
		srv.StartTLS()
		defer srv.Close()
		s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.ConnectTo["auth.acme.example:443"] = srv.Listener.Addr().String() }})
		if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "temporary:unreachable" {
			t.Errorf("%s: %s", name, got)
		}
		if n.Load() != 0 {
			t.Errorf("%s: %d requests were sent", name, n.Load())
		}
	}
	for _, dir := range []string{".", "awssecrets", "public"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("no file in %s: %v", dir, err)
		}
		for _, f := range files {
			if data, _ := os.ReadFile(f); !strings.HasSuffix(f, "_test.go") && bytes.Contains(data, []byte("InsecureSkipVerify")) {
				t.Errorf("%s mentions InsecureSkipVerify", f)
			}
		}
	}
})

var _ = threat("R1_no_oracle", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	key := brokertest.NewIdentity(t)
	rt := s.Upstream.NewRefresh("")
	body := func(wrapped string) []byte {
		b, err := refreshBody("acme", wrapped, key)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	mine := s.Broker.Wrap("acme", brokertest.Instance, rt)
	other := brokertest.New(t, brokertest.Options{}) // another broker, with keys of its own
	old := s.Token()
	if p, err := s.PostJSON("/api/refresh", old, `{"service":"nosuch"}`); err != nil || p.Status != http.StatusNotFound {
		t.Fatalf("a good token: %v %v", p, err) // and remembered: its end counts all the same
	}
	s.Clock.Advance(25 * time.Hour)
	now := s.Token()
	var bodies []string
	for name, tt := range map[string]struct{ token, wrapped string }{
		"no token": {"", mine}, "not a token": {"x", mine}, "another broker's token": {other.Token(), mine}, "expired": {old, mine},
		"none": {"eyJhbGciOiJub25lIn0.e30.", mine}, "half a token": {now[:len(now)/2], mine}, "a changed token": {now[:len(now)-4] + "AAAA", mine},
		"another instance's origin": {s.Token("https://evil.example"), mine},
		"the member's CLI":          {s.Token("cli:" + strings.Repeat("A", 43)), mine},
		"the provider's own token":  {now, rt},
		"another origin's wrap":     {now, s.Broker.Wrap("acme", "https://evil.example", rt)},
		"another service's wrap":    {now, s.Broker.Wrap("github", brokertest.Instance, rt)},
		"another key of that name":  {now, other.Broker.Wrap("acme", brokertest.Instance, rt)},
		"a changed wrap":            {now, mine[:len(mine)-2] + "xx"},
		"a wrap with a line break":  {now, mine[:30] + "\n" + mine[30:]},
		"a padded wrap":             {now, mine + "="},
		"a wrap of cli":             {now, s.Broker.Wrap("acme", "cli", rt)},
		"an empty wrap":             {now, "rt1.w1."},
		"a long wrap":               {now, "rt1.w1." + strings.Repeat("A", 11264)},
	} {
		p, err := s.PostJSON("/api/refresh", tt.token, body(tt.wrapped))
		if err != nil {
			t.Fatal(err)
		}
		if p.Status != http.StatusUnauthorized {
			t.Errorf("%s: %d %s", name, p.Status, p.Body)
		}
		bodies = append(bodies, p.Body)
		noStore(t, p.Header)
	}
	for _, b := range bodies {
		if b != bodies[0] {
			t.Errorf("the answer tells: %q and %q", b, bodies[0])
		}
	}
	// An unknown key of this broker's is the operator's to mend.
	unknown := strings.Replace(mine, "rt1.w1.", "rt1.w9.", 1)
	if p, _ := s.PostJSON("/api/refresh", now, body(unknown)); p.Status != http.StatusBadGateway || !strings.Contains(p.Body, `"misconfigured"`) {
		t.Errorf("an unknown wrapping key: %d %s", p.Status, p.Body)
	}
	if n := s.Upstream.Secret(); n != 0 {
		t.Fatalf("%d requests reached the provider", n)
	}
	// Two Authorization headers are none.
	req, _ := http.NewRequest("POST", s.URL+"/api/refresh", bytes.NewReader(body(mine)))
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + now, "Bearer " + now}}
	if resp, err := s.Client().Do(req); err != nil || resp.StatusCode != 401 {
		t.Errorf("two headers: %v %v", resp, err)
	}
	// Refused by name, and by the token's own id.
	for _, refused := range []string{"instance-1", "jti-1"} {
		s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.Refused = []string{refused} }})
		if got := redeem(t, s, "acme", live(s, "acme")); got.Status != 401 || s.Upstream.Secret() != 0 {
			t.Errorf("refused %s: %d", refused, got.Status)
		}
	}
	// And whoever has all that right has it only so often.
	s = brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.InstanceRate = 1 }})
	last := &refreshed{}
	for range 61 {
		last = redeem(t, s, "acme", "rt1.w1.AAAA")
	}
	if last.Status != http.StatusTooManyRequests || last.outcome() != "temporary:too_many" || last.Retry != 1 {
		t.Errorf("the 61st call of a minute: %d %s, retry after %d", last.Status, last.outcome(), last.Retry)
	}
	s.Clock.Advance(time.Second)
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" {
		t.Errorf("a second later: %s", got)
	}
})

var _ = threat("R2_one_service_one_host", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	answers(s, jsonAnswer(400, `{"error":"invalid_grant"}`))
	redeem(t, s, "stripe", s.Broker.Wrap("stripe", brokertest.Instance, "ghr_ofgithub"))
	calls := s.Upstream.Calls()
	if len(calls) != 1 || calls[0].Host != "connect.stripe.com" {
		t.Errorf("calls %+v: want one to connect.stripe.com", calls)
	}
	s.Upstream.Reset()
	if got := redeem(t, s, "stripe", s.Broker.Wrap("github", brokertest.Instance, "ghr_ofgithub")); got.Status != 401 {
		t.Errorf("GitHub's token at Stripe: %d", got.Status)
	}
	for _, service := range []string{"nosuch", "", "GitHub", "github ", "../github", "github\x00"} {
		if got := redeem(t, s, service, s.Broker.Wrap("github", brokertest.Instance, "ghr")); got.Status != 404 || got.Error != "no_such_service" {
			t.Errorf("%q: %d %s", service, got.Status, got.Error)
		}
	}
	if n := s.Upstream.Secret(); n != 0 {
		t.Errorf("%d requests", n)
	}
	off := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.Services = []string{"github"} }})
	if got := redeem(t, off, "stripe", live(off, "stripe")); got.Status != 404 || off.Upstream.Secret() != 0 {
		t.Errorf("a service that is not offered: %d", got.Status)
	}
})

var _ = threat("R3_answer_is_sealed", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	wrapped := live(s, "acme")
	r := redeem(t, s, "acme", wrapped)
	if r.Answer == nil {
		t.Fatal(r.outcome())
	}
	noStore(t, r.Header)
	for _, secret := range []string{r.Answer.Secret.Reveal(), r.Answer.Refresh.Reveal(), brokertest.Sentinel} {
		if strings.Contains(r.Body, secret) {
			t.Error("the pair is in clear in the answer")
		}
	}
	if strings.Contains(r.Answer.Refresh.Reveal(), brokertest.Sentinel) || !strings.HasPrefix(r.Answer.Refresh.Reveal(), "rt1.w1.") {
		t.Error("the provider's refresh token left the broker in clear")
	}
	// Only for the request that asked, and its key.
	key := brokertest.NewIdentity(t)
	body, _ := refreshBody("acme", r.Answer.Refresh.Reveal(), key)
	p, err := s.PostJSON("/api/refresh", instanceToken(s), body)
	if err != nil {
		t.Fatal(err)
	}
	env, err := custody.ParseEnvelope([]byte(strings.TrimSpace(p.Body)))
	if err != nil {
		t.Fatal(err)
	}
	if err := brokertest.NewIdentity(t).OpenAnswer(env, custody.RefreshOp(body), new(custody.RefreshAnswer)); err == nil {
		t.Error("another key opens the answer")
	}
	if err := key.OpenAnswer(env, custody.RefreshOp([]byte("another request")), new(custody.RefreshAnswer)); err == nil {
		t.Error("the answer is taken for another request")
	}
	for _, path := range []string{"/api/refresh", "/api/revoke"} {
		for _, method := range []string{"OPTIONS", "GET", "HEAD", "PUT", "DELETE"} {
			req, _ := http.NewRequest(method, s.URL+path, nil)
			req.Header.Set("Origin", "https://chat.test")
			req.Header.Set("Access-Control-Request-Method", "POST")
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			noStore(t, resp.Header)
			if resp.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s %s: %d", method, path, resp.StatusCode)
			}
		}
	}
	// No key, no answer, and no request either.
	s.Upstream.Reset()
	for _, key := range []string{"", "AAAA", strings.Repeat("A", 87), "BA" + strings.Repeat("A", 85)} {
		p, _ := s.PostJSON("/api/refresh", instanceToken(s), map[string]string{"service": "acme", "refresh": live(s, "acme"), "key": key})
		if p.Status != http.StatusBadRequest {
			t.Errorf("key %q: %d", key, p.Status)
		}
	}
	if n := s.Upstream.Secret(); n != 0 {
		t.Errorf("%d requests", n)
	}
})

var _ = threat("R4_no_browser", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	token := instanceToken(s)
	body, _ := refreshBody("acme", live(s, "acme"), brokertest.NewIdentity(t))
	for _, path := range []string{"/api/refresh", "/api/revoke"} {
		for _, tt := range []struct {
			name   string
			header http.Header
			want   int
		}{
			{"form", http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}, 415},
			{"multipart", http.Header{"Content-Type": {"multipart/form-data; boundary=x"}}, 415},
			{"plain text", http.Header{"Content-Type": {"text/plain"}}, 415},
			{"text with JSON in its name", http.Header{"Content-Type": {"text/plain; application/json"}}, 415},
			{"none", http.Header{}, 415},
			{"broken", http.Header{"Content-Type": {"application/json;;;="}}, 415},
			{"origin", http.Header{"Content-Type": {"application/json"}, "Origin": {"https://chat.test"}}, 403},
			{"our own origin", http.Header{"Content-Type": {"application/json"}, "Origin": {s.URL}}, 403},
			{"null origin", http.Header{"Content-Type": {"application/json"}, "Origin": {"null"}}, 403},
			{"empty origin", http.Header{"Content-Type": {"application/json"}, "Origin": {""}}, 403},
			{"a token in a cookie", http.Header{"Content-Type": {"application/json"}, "Cookie": {"Authorization=" + token}, "Authorization": {""}}, 401},
		} {
			req, _ := http.NewRequest("POST", s.URL+path, bytes.NewReader(body))
			req.Header = tt.header
			if req.Header["Authorization"] == nil {
				req.Header.Set("Authorization", "Bearer "+token)
			}
			resp, err := s.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != tt.want {
				t.Errorf("%s, %s: %d, want %d", path, tt.name, resp.StatusCode, tt.want)
			}
			noStore(t, resp.Header)
		}
	}
	if n := s.Upstream.Secret(); n != 0 {
		t.Errorf("%d requests", n)
	}
})

var _ = threat("R5_strict_bodies", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{Config: unlimited})
	good, _ := refreshBody("acme", live(s, "acme"), brokertest.NewIdentity(t))
	member := func(add string) string { return strings.TrimSuffix(string(good), "}") + add + "}" }
	const marker = "zq9marker"
	for name, tt := range map[string]struct {
		body string
		want int
	}{
		"empty":            {"", 400},
		"not JSON":         {marker, 400},
		"a list":           {"[" + string(good) + "]", 400},
		"two values":       {string(good) + string(good), 400},
		"trailing":         {string(good) + " " + marker, 400},
		"unknown":          {member(`,"` + marker + `":1`), 400},
		"another case":     {strings.Replace(string(good), `"service"`, `"Service"`, 1), 400},
		"a name twice":     {member(`,"service":"acme"`), 400},
		"a name escaped":   {member(`,"servic\u0065":"acme"`), 400},
		"a number":         {`{"service":1,"refresh":"` + marker + `","key":"x"}`, 400},
		"an object":        {`{"service":{"` + marker + `":1}}`, 400},
		"not UTF-8":        {member(`,"x":"` + marker + "\xff" + `"`), 400},
		"a lone surrogate": {`{"service":"\ud800","refresh":"x","key":"x"}`, 400},
		"a raw line break": {"{\"service\":\"acme\n\"}", 400},
		"a comment":        {"/*" + marker + "*/" + string(good), 400},
		"deep":             {strings.Repeat(`{"service":`, 2000), 400},
		"over 24 KiB":      {`{"service":"acme","refresh":"` + strings.Repeat("A", 24<<10) + `"}`, 413},
		"control in key":   {`{"service":"acme","refresh":"rt1.w1.A","key":"` + marker + `\u0000"}`, 400},
	} {
		for _, path := range []string{"/api/refresh", "/api/revoke"} {
			p, err := s.PostJSON(path, instanceToken(s), tt.body)
			if err != nil {
				t.Fatal(err)
			}
			if p.Status != tt.want {
				t.Errorf("%s, %s: %d %s, want %d", path, name, p.Status, p.Body, tt.want)
			}
			if strings.Contains(p.Body, marker) || len(p.Body) > 100 {
				t.Errorf("%s, %s: the answer holds some of the request: %s", path, name, p.Body)
			}
			noStore(t, p.Header)
		}
	}
	for name, body := range map[string]map[string]any{
		"a secret with a space":     {"service": "acme", "secret": "a " + marker},
		"a secret over 8 KiB":       {"service": "acme", "secret": strings.Repeat("a", 8193)},
		"a kept value with a break": {"service": "acme", "keep": map[string]string{"id": marker + "\n"}},
		"a long kept value":         {"service": "acme", "keep": map[string]string{"id": strings.Repeat("a", 513)}},
		"a kept number":             {"service": "acme", "keep": map[string]any{"id": 1}},
	} {
		p, err := s.PostJSON("/api/revoke", instanceToken(s), body)
		if err != nil || p.Status != 400 || strings.Contains(p.Body, marker) {
			t.Errorf("%s: %d %s %v", name, p.Status, p.Body, err)
		}
	}
	if n := s.Upstream.Secret(); n != 0 {
		t.Errorf("%d requests", n)
	}
	if strings.Contains(s.Logs(), marker) {
		t.Error("the log holds some of a request")
	}
})

var _ = threat("R6_bound_tokens", proofRows)

var _ = threat("R7_lost_pair", func(t *testing.T) {
	begun, release := make(chan struct{}, 1), make(chan struct{})
	soon := func(c <-chan struct{}, what string) {
		t.Helper()
		select {
		case <-c:
		case <-time.After(5 * time.Second):
			t.Fatalf("%s: nothing happens", what)
		}
	}
	s := brokertest.New(t, brokertest.Options{})
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind != brokertest.Refresh {
			return nil
		}
		return raw(func(w http.ResponseWriter, r *http.Request) {
			begun <- struct{}{}
			select {
			case <-release:
			case <-r.Context().Done():
			}
			if r.Context().Err() != nil {
				t.Error("the broker gave the request up")
			}
			io.WriteString(w, `{"access_token":"at2","refresh_token":"rt2"}`)
		})
	})
	// In process, where the answer can be looked at although nobody waits for it.
	key := brokertest.NewIdentity(t)
	body, _ := refreshBody("acme", live(s, "acme"), key)
	ctx, hangUp := context.WithCancel(context.Background())
	req := httptest.NewRequestWithContext(ctx, "POST", "/api/refresh", bytes.NewReader(body))
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + instanceToken(s)}}
	rec, done := httptest.NewRecorder(), make(chan struct{})
	go func() {
		s.Broker.ServeHTTP(rec, req)
		close(done)
	}()
	soon(begun, "the provider is asked")
	hangUp()
	select {
	case <-done:
		t.Error("the handler came back before the provider did")
	case <-time.After(50 * time.Millisecond):
	}
	select {
	case release <- struct{}{}:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody waits for the provider any more")
	}
	soon(done, "the handler comes to its end")
	r, err := openRefresh(&brokertest.Page{Status: rec.Code, Body: rec.Body.String()}, body, key)
	if err != nil || r.Answer == nil || r.Answer.Secret.Reveal() != "at2" {
		t.Errorf("the sealed answer: %v %v", r, err)
	}
	// Over HTTP, with a connection that is dropped.
	ctx, hangUp = context.WithCancel(context.Background())
	gone := make(chan error, 1)
	body, _ = refreshBody("acme", live(s, "acme"), key)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, "POST", s.URL+"/api/refresh", bytes.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + instanceToken(s)}}
		_, err := s.Client().Do(req)
		gone <- err
	}()
	soon(begun, "the provider is asked")
	hangUp()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the client got %v", err)
	}
	lines := strings.Count(s.Logs(), "\n")
	time.Sleep(20 * time.Millisecond)
	select {
	case release <- struct{}{}:
	case <-time.After(5 * time.Second):
		t.Fatal("nobody waits for the provider any more")
	}
	for range 200 {
		if strings.Count(s.Logs(), "\n") > lines {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	if got := strings.Count(s.Logs(), `"status":200`); got != 2 {
		t.Errorf("%d refreshes came to their end", got)
	}
	// A function's own deadline ends it before the function ends, and says so.
	ctx, cancel := context.WithTimeout(context.Background(), 1200*time.Millisecond)
	defer cancel()
	s.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer {
		return raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	})
	req = httptest.NewRequestWithContext(ctx, "POST", "/api/refresh", bytes.NewReader(body))
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + instanceToken(s)}}
	rec = httptest.NewRecorder()
	s.Broker.ServeHTTP(rec, req)
	if ctx.Err() != nil || rec.Code != http.StatusServiceUnavailable {
		t.Errorf("with a deadline: %v, %d %s", ctx.Err(), rec.Code, rec.Body)
	}
	// What can fail here is done first: R3 shows it for the key, here for the keys' store and
	// the client's.
	s = brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.Secrets = &broker.Cache{Store: &versions{err: errors.New("no")}, Now: c.Now}
	}})
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "temporary:secret_store" || s.Upstream.Secret() != 0 {
		t.Errorf("a store that does not answer: %s, %d requests", got, s.Upstream.Secret())
	}
})

var _ = threat("R10_retry_after", func(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	now := s.Clock.Now()
	for _, tt := range []struct {
		after, date string
		want        int64
	}{
		{"30", "", 30}, {" 30 ", "", 30}, {"0", "", 0}, {"", "", 0}, {"-5", "", 0}, {"soon", "", 0}, {"1m", "", 0}, {"1.5", "", 0}, {"86401", "", 86400}, {"99999999999999999999", "", 86400},
		{now.Add(90 * time.Second).Format(http.TimeFormat), now.Format(http.TimeFormat), 90},
		// The provider's own clock counts: it is two hours off, and the wait is not.
		{now.Add(2*time.Hour + 90*time.Second).Format(http.TimeFormat), now.Add(2 * time.Hour).Format(http.TimeFormat), 90},
		{now.Add(-time.Hour).Format(http.TimeFormat), now.Format(http.TimeFormat), 0},
		{now.Add(90 * 24 * time.Hour).Format(http.TimeFormat), now.Format(http.TimeFormat), 86400},
	} {
		for _, status := range []int{429, 503} {
			h := http.Header{"Content-Type": {"application/json"}, "Date": {now.Format(http.TimeFormat)}}
			if tt.after != "" {
				h.Set("Retry-After", tt.after)
			}
			if tt.date != "" {
				h.Set("Date", tt.date)
			}
			answers(s, &brokertest.Answer{Status: status, Header: h, Body: `{"error":"slow_down"}`})
			s.Upstream.Reset()
			r := redeem(t, s, "acme", live(s, "acme"))
			if r.Class != broker.Temporary || r.Status != status || r.Retry != tt.want {
				t.Errorf("%d, Retry-After %q: %s at %d, %d s, want %d s", status, tt.after, r.outcome(), r.Status, r.Retry, tt.want)
			}
			if got := r.Header.Get("Retry-After"); (got == "") != (tt.want == 0) {
				t.Errorf("%d, Retry-After %q: passed on as %q", status, tt.after, got)
			}
			if n := s.Upstream.Secret(); n != 1 {
				t.Errorf("%d requests", n)
			}
		}
	}
})

var _ = threat("X14_secret_stays_with_its_hosts", func(t *testing.T) {
	for _, at := range []string{"token_url", "refresh_url", "revoke"} {
		edit := func(id string, m map[string]any) {
			if id != "github" {
				return
			}
			if o := oauthOf(m); at == "revoke" {
				o["revoke"] = map[string]any{"style": "form", "url": "https://gist.github.com/steal", "param": "token", "takes": "refresh", "reach": "token"}
			} else {
				o[at] = "https://gist.github.com/steal"
			}
		}
		s := brokertest.New(t, brokertest.Options{Edit: edit})
		wrapped := live(s, "github")
		p, err := s.PostJSON("/api/revoke", instanceToken(s), map[string]string{"service": "github", "refresh": wrapped, "secret": "gho_x"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		if at == "revoke" {
			got = append(got, p.Body)
		} else {
			got = append(got, redeem(t, s, "github", wrapped).Body)
			if at == "token_url" {
				page := s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "github"}))
				if page.Status != http.StatusNotFound || page.SetsCookie("") {
					t.Errorf("the consent page: %d", page.Status)
				}
				cfg, _ := s.Client().Get(s.URL + "/api/oauth/config?service=github")
				text, _ := io.ReadAll(cfg.Body)
				cfg.Body.Close()
				if !strings.Contains(string(text), `"configured":false`) {
					t.Errorf("config says %s", text)
				}
			}
		}
		for _, body := range got {
			if !strings.Contains(body, `"misconfigured"`) || !strings.Contains(body, `"host"`) {
				t.Errorf("%s changed: %s", at, body)
			}
		}
		for _, c := range s.Upstream.Calls() {
			if c.Host == "gist.github.com" {
				t.Errorf("%s changed: a request left for the other host", at)
			}
		}
		if at != "refresh_url" && s.Upstream.Count(brokertest.Token, brokertest.Refresh, brokertest.Other) != 0 {
			t.Errorf("%s changed: %d requests left", at, s.Upstream.Secret())
		}
		// An operator who wrote the host beside the secret meant it.
		s = brokertest.New(t, brokertest.Options{Edit: edit, Config: func(c *broker.Config) {
			c.Secrets = &broker.Cache{Store: &versions{current: client("id", "x", "gist.github.com", "github.com")}, Now: c.Now}
		}})
		answers(s, jsonAnswer(200, `{"access_token":"at"}`))
		if at != "revoke" {
			if got := redeem(t, s, "github", live(s, "github")).outcome(); got != "ok" {
				t.Errorf("%s changed, with the operator's word: %s", at, got)
			}
		}
	}
	// A host that only looks alike.
	for _, host := range []string{"auth.acme.example.evil.example", "AUTH.acme.example", "auth.acme.example:443", "acme.example", ""} {
		s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
			c.Secrets = &broker.Cache{Store: &versions{current: client("id", "x", host)}, Now: c.Now}
		}})
		if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "misconfigured:host" || s.Upstream.Secret() != 0 {
			t.Errorf("hosts %q: %s, %d requests", host, got, s.Upstream.Secret())
		}
	}
})

var _ = threat("X15_revoke_reaches_no_further", func(t *testing.T) {
	revoke := func(s *brokertest.Server, body map[string]any) *brokertest.Page {
		t.Helper()
		p, err := s.PostJSON("/api/revoke", instanceToken(s), body)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	s := brokertest.New(t, brokertest.Options{})
	p := revoke(s, map[string]any{"service": "github", "secret": "gho_1", "refresh": live(s, "github")})
	calls := s.Upstream.Calls()
	if p.Body != "{\"revoked\":true}" || len(calls) != 1 {
		t.Fatalf("%s, %d calls", p.Body, len(calls))
	}
	if c := calls[0]; c.Method != "DELETE" || c.Host != "api.github.com" || c.Path != "/applications/client-github/token" || c.Form.Get("access_token") != "gho_1" {
		t.Errorf("the call is %s %s%s %s", c.Method, c.Host, c.Path, c.Body)
	}
	// HubSpot's and Stripe's reach further: only where the operator allows it.
	for _, service := range []string{"hubspot", "stripe"} {
		s.Upstream.Reset()
		p := revoke(s, map[string]any{"service": service, "secret": "x", "refresh": live(s, service), "keep": map[string]string{"stripe_user_id": "acct_1"}})
		if p.Status != 200 || !strings.Contains(p.Body, `"revoked":false`) || !strings.Contains(p.Body, "operator") || s.Upstream.Secret() != 0 {
			t.Errorf("%s: %d %s, %d calls", service, p.Status, p.Body, s.Upstream.Secret())
		}
	}
	wide := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.AllowWiderRevoke = true }})
	for _, service := range []string{"hubspot", "stripe"} {
		wide.Upstream.Reset()
		wrap := wide.Broker.WrapKept(service, brokertest.Instance, wide.Upstream.NewRefresh(""), "acct_1")
		p := revoke(wide, map[string]any{"service": service, "secret": "x", "refresh": wrap, "keep": map[string]string{"stripe_user_id": "acct_1"}})
		if p.Body != "{\"revoked\":true}" || wide.Upstream.Secret() != 1 {
			t.Errorf("%s, allowed: %s, %d calls", service, p.Body, wide.Upstream.Secret())
		}
	}
	app := brokertest.New(t, brokertest.Options{Edit: func(id string, m map[string]any) {
		if id == "acme" {
			oauthOf(m)["revoke"].(map[string]any)["reach"] = "app"
		}
	}})
	if p := revoke(app, map[string]any{"service": "acme", "refresh": live(app, "acme")}); !strings.Contains(p.Body, `"revoked":false`) || app.Upstream.Secret() != 0 {
		t.Errorf("the whole app: %s", p.Body)
	}
	// What GitHub takes is an access token. One that has run out does not end the connection:
	// a fresh one does.
	s.Upstream.Reset()
	wrapped := live(s, "github")
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		switch {
		case c.Kind == brokertest.Revoke && c.Form.Get("access_token") == "gho_old":
			return jsonAnswer(422, `{"message":"Validation Failed"}`)
		case c.Kind == brokertest.Revoke:
			return &brokertest.Answer{Status: 204}
		}
		return nil
	})
	if p := revoke(s, map[string]any{"service": "github", "secret": "gho_old", "refresh": wrapped}); p.Body != "{\"revoked\":true}" {
		t.Errorf("an old access token: %s", p.Body)
	}
	var kinds []string
	for _, c := range s.Upstream.Calls() {
		kinds = append(kinds, c.Kind)
	}
	if got := strings.Join(kinds, " "); got != "revoke refresh revoke" {
		t.Errorf("an old access token: %s", got)
	}
})
