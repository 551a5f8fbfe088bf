package integrations

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var background = context.Background()

// wantCode fails unless err is of the class.
func wantCode(t testing.TB, err error, code string) {
	t.Helper()
	if got := Code(err); got != code || code == "" && err != nil {
		t.Fatalf("the error is %q (%v), want %q", got, err, code)
	}
}

func TestExecutorOneHost(t *testing.T) {
	m := service(t, opGet)
	p := newPeer(t, answer(200, `{"id": 1}`), peerHost, "other.example.com")
	res, err := p.Execute(background, m, "get", nil, testSecret)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(res.JSON), `{"id":1}`; got != want || res.Status != 200 || res.Tries != 1 || res.Size != len(want) {
		t.Errorf("got %s, status %d, %d tries, size %d; want %s, 200, 1, %d", got, res.Status, res.Tries, res.Size, want, len(want))
	}
	r := p.one(t)
	if r.Method != "GET" || r.URI != "/things" || r.Host != peerHost {
		t.Errorf("the request was %s %s at %s", r.Method, r.URI, r.Host)
	}
	want := map[string]string{
		"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": "connect", "Authorization": "Bearer " + testToken,
	}
	for name := range r.Header {
		if r.Header.Get(name) != want[name] {
			t.Errorf("the header %s is %q, want %q", name, r.Header.Get(name), want[name])
		}
	}
	if len(r.Header) != len(want) {
		t.Errorf("the request had %d headers, want %d: %v", len(r.Header), len(want), r.Header)
	}
}

func TestExecutorUserAgent(t *testing.T) {
	p := newPeer(t, answer(200, `{"id": 1}`))
	p.UserAgent = "elevenmessenger-connect/1.0 (+https://example.com)"
	if _, err := p.Execute(background, service(t, opGet), "get", nil, testSecret); err != nil {
		t.Fatal(err)
	}
	if got := p.one(t).Header.Get("User-Agent"); got != p.UserAgent {
		t.Errorf("User-Agent is %q, want %q", got, p.UserAgent)
	}
}

// TestExecutorPort shows that port 443 is the only one, whatever ConnectTo says of others.
func TestExecutorPort(t *testing.T) {
	p := newPeer(t, answer(200, `{"id": 1}`))
	p.ConnectTo = map[string]string{peerHost + ":80": p.addr, peerHost + ":8443": p.addr, peerHost: p.addr}
	var asked []string
	p.client().DialContext = func(_ context.Context, network, addr string) (net.Conn, error) {
		asked = append(asked, network+" "+addr)
		return nil, errors.New("no")
	}
	_, err := p.Execute(background, service(t, opDelete), "delete", Args{"id": "x"}, testSecret)
	wantCode(t, err, "unreachable")
	if len(asked) != 1 || asked[0] != "tcp "+peerHost+":443" {
		t.Errorf("it dialled %q", asked)
	}
}

func TestExecutorTLS(t *testing.T) {
	own := testAuthority()
	stranger := newAuthority("a stranger's authority")
	for name, cfg := range map[string]*tls.Config{
		"wrong authority": {Certificates: []tls.Certificate{stranger.issue(stranger.cert.NotAfter, peerHost)}},
		"wrong name":      {Certificates: []tls.Certificate{own.issue(own.cert.NotAfter, "evil.example.org", "SENTINEL.example.org")}},
		"expired":         {Certificates: []tls.Certificate{own.issue(time.Now().Add(-time.Hour), peerHost)}},
		"TLS 1.1": {Certificates: []tls.Certificate{own.issue(own.cert.NotAfter, peerHost)},
			MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11},
	} {
		t.Run(name, func(t *testing.T) {
			for _, op := range []string{opGet, opPost} {
				p := newPeerTLS(t, cfg, answer(200, `{"id": 1}`))
				m := service(t, op)
				args := Args{}
				if m.Ops[0].Access == Write {
					args["text"] = "x"
				}
				_, err := p.Execute(background, m, m.Ops[0].Name, args, testSecret)
				wantCode(t, err, "unreachable")
				if n := len(p.requests()); n != 0 {
					t.Errorf("%d requests were sent", n)
				}
				if strings.Contains(err.Error(), "SENTINEL") {
					t.Errorf("what the other side wrote flowed back: %v", err)
				}
			}
		})
	}
}

// TestExecutorTLSName shows that ConnectTo moves the connection and not the name.
func TestExecutorTLSName(t *testing.T) {
	p := newPeer(t, answer(200, `{"id": 1}`), "other.example.com")
	p.ConnectTo[peerHost+":443"] = p.addr
	_, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
	wantCode(t, err, "unreachable")
	if n := len(p.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
}

func TestExecutorPlainHTTP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := make(chan string, 8)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			b := make([]byte, 4096)
			n, _ := c.Read(b)
			got <- string(b[:n])
			io.WriteString(c, "HTTP/1.1 200 OK\r\nX-SENTINEL: 1\r\nContent-Length: 8\r\n\r\n"+`{"id":1}`)
			c.Close()
		}
	}()
	e := &Executor{ConnectTo: map[string]string{peerHost + ":443": l.Addr().String()}, Timeout: 5 * time.Second}
	_, err = e.Execute(background, service(t, opPost), "post", Args{"text": "x"}, testSecret)
	wantCode(t, err, "unreachable")
	if s := <-got; strings.Contains(s, "S3cr3t") || strings.Contains(s, "Authorization") {
		t.Errorf("the token was sent in the clear: %q", s)
	}
	if strings.Contains(err.Error(), "SENTINEL") {
		t.Errorf("what the other side wrote flowed back: %v", err)
	}
}

func TestExecutorNoProxy(t *testing.T) {
	var mu sync.Mutex
	proxied := 0
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			proxied++
			mu.Unlock()
			c.Close()
		}
	}()
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"} {
		t.Setenv(name, "http://"+l.Addr().String())
	}
	t.Setenv("NO_PROXY", "")
	p := newPeer(t, answer(200, `{"id": 1}`))
	if _, err := p.Execute(background, service(t, opGet), "get", nil, testSecret); err != nil {
		t.Fatal(err)
	}
	if p.client().Proxy != nil {
		t.Error("the transport has a proxy function")
	}
	mu.Lock()
	defer mu.Unlock()
	if proxied != 0 {
		t.Errorf("%d connections went to the proxy", proxied)
	}
}

func TestExecutorNoCookies(t *testing.T) {
	p := newPeer(t, answer(200, `{"id": 1}`, "Set-Cookie: session=SENTINEL; Path=/; Secure"))
	m := service(t, opGet)
	for range 3 {
		if _, err := p.Execute(background, m, "get", nil, testSecret); err != nil {
			t.Fatal(err)
		}
	}
	p.answerWith(inTurn(answer(302, "", "Set-Cookie: session=SENTINEL; Path=/; Secure", "Location: /elsewhere"), answer(200, `{"id": 1}`)))
	if _, err := p.Execute(background, m, "get", nil, testSecret); err != nil {
		t.Fatal(err)
	}
	for _, r := range p.requests() {
		if c := r.Header.Get("Cookie"); c != "" {
			t.Errorf("%s carried the cookie %q", r.URI, c)
		}
	}
}

// TestExecutorKeepsConnections shows that an answer's end is read, so that the connection
// serves the next call.
func TestExecutorKeepsConnections(t *testing.T) {
	zipped := string(gzipped(t, []byte(`{"id": 1}`)))
	p := newPeer(t, inTurn(
		answer(200, `{"id": 1}`), answer(404, `{"message": "no"}`), answer(200, zipped, "Content-Encoding: gzip"),
		answer(302, "moved", "Location: /b"), answer(200, `{"id": 1}`), answer(200, `{"id": 1}`),
	))
	m := service(t, opGet, `"error": {"message": "message"}`)
	for range 5 {
		p.Execute(background, m, "get", nil, testSecret)
	}
	seen := p.requests()
	for _, r := range seen {
		if r.Conn != seen[0].Conn {
			t.Errorf("%s came over another connection", r.URI)
		}
	}
	if len(seen) != 6 {
		t.Errorf("%d requests, want 6", len(seen))
	}
}

func TestExecutorAuthorization(t *testing.T) {
	basic := base64.StdEncoding.EncodeToString([]byte("me@example.com/token:" + testToken))
	for _, tc := range []struct {
		name, auth string
		cred       Credential
		header     string
		want       string // "" where nothing is sent
	}{
		{"bearer", `"authorization": "bearer"`, Credential{Kind: PAT}, "Authorization", "Bearer " + testToken},
		{"legacy kind", `"authorization": "bearer"`, Credential{}, "Authorization", "Bearer " + testToken},
		{"none", `"authorization": "none"`, Credential{Kind: PAT}, "Authorization", testToken},
		{"none, legacy kind", `"authorization": "none"`, Credential{}, "Authorization", testToken},
		{"none, OAuth", `"authorization": "none"`, Credential{Kind: OAuth2}, "Authorization", "Bearer " + testToken},
		{"prefix", `"authorization": {"prefix": "Bot"}`, Credential{Kind: PAT}, "Authorization", "Bot " + testToken},
		{"prefix, OAuth", `"authorization": {"prefix": "Bot"}`, Credential{Kind: OAuth2}, "Authorization", "Bearer " + testToken},
		{"header", `"authorization": {"header": "X-Example-Token"}`, Credential{Kind: PAT}, "X-Example-Token", testToken},
		{"header, OAuth", `"authorization": {"header": "X-Example-Token"}`, Credential{Kind: OAuth2}, "Authorization", "Bearer " + testToken},
		{"basic", `"authorization": {"basic": ["{email}/token", "{token}"]}, "pasted_fields": [{"name": "email", "label": "E-mail"}]`,
			Credential{Kind: PAT, Fields: map[string]string{"email": "me@example.com"}}, "Authorization", "Basic " + basic},
		{"basic, legacy kind", `"authorization": {"basic": ["{email}/token", "{token}"]}, "pasted_fields": [{"name": "email", "label": "E-mail"}]`,
			Credential{Fields: map[string]string{"email": "me@example.com"}}, "Authorization", "Basic " + basic},
		{"basic, OAuth", `"authorization": {"basic": ["{email}/token", "{token}"]}, "pasted_fields": [{"name": "email", "label": "E-mail"}]`,
			Credential{Kind: OAuth2}, "Authorization", "Bearer " + testToken},
		{"basic without its field", `"authorization": {"basic": ["{email}", "{token}"]}, "pasted_fields": [{"name": "email", "label": "E-mail"}]`,
			Credential{Kind: PAT}, "", ""},
		{"basic, a colon in the field", `"authorization": {"basic": ["{email}", "{token}"]}, "pasted_fields": [{"name": "email", "label": "E-mail"}]`,
			Credential{Kind: PAT, Fields: map[string]string{"email": "me:other"}}, "", ""},
		{"no pasted token", `"authorization": {"pasted": "no", "why": "OAuth only"}, "oauth": ` + testOAuth(""), Credential{Kind: PAT}, "", ""},
		{"no pasted token, OAuth", `"authorization": {"pasted": "no", "why": "OAuth only"}, "oauth": ` + testOAuth(""), Credential{Kind: OAuth2}, "Authorization", "Bearer " + testToken},
		{"unknown kind", `"authorization": "bearer"`, Credential{Kind: "password"}, "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m := service(t, opGet, `"auth": {`+tc.auth+`}`)
			p := newPeer(t, answer(200, `{"id": 1}`))
			tc.cred.Secret = testSecret
			_, err := p.ExecuteAs(background, m, "get", nil, tc.cred)
			if tc.want == "" {
				wantCode(t, err, "refused")
				if n := len(p.requests()); n != 0 {
					t.Errorf("%d requests were sent", n)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			h := p.one(t).Header
			if got := h.Get(tc.header); got != tc.want {
				t.Errorf("%s is %q, want %q", tc.header, got, tc.want)
			}
			if tc.header != "Authorization" && h.Get("Authorization") != "" {
				t.Errorf("Authorization is %q too", h.Get("Authorization"))
			}
		})
	}
}

// testOAuth is a provider's description with further members.
func testOAuth(more string) string {
	return `{"authorize_url": "https://example.com/authorize", "token_url": "https://example.com/token", "scopes": ["read"], "scopes_write": ["read", "write"],
		"client_auth": "post", "token_body": "form", "pkce": "supported"` + more + `}`
}

func TestExecutorTokens(t *testing.T) {
	p := newPeer(t, answer(200, `{"id": 1}`))
	m := service(t, opGet)
	for _, token := range []string{"", "a b", "a\r\nX-Evil: 1", "a\n", " a", "a\x00", "a\x7f", "tök", "a\u200b", "\xff\xff\xff", strings.Repeat("a", 8193)} {
		_, err := p.Execute(background, m, "get", nil, NewSecret(token))
		wantCode(t, err, "refused")
		if len(token) > 2 && strings.Contains(err.Error(), token) {
			t.Errorf("the error repeats the token: %v", err)
		}
	}
	if n := len(p.requests()); n != 0 {
		t.Errorf("%d requests were sent", n)
	}
	if _, err := p.Execute(background, m, "get", nil, NewSecret(strings.Repeat("a", 8192))); err != nil {
		t.Errorf("a token of 8,192 characters: %v", err)
	}
}

func TestExecutorRedirects(t *testing.T) {
	ops := opGet + "," + opPost + "," + opDelete + "," + opSearch
	for _, tc := range []struct {
		name     string
		op       string
		status   int
		location string
		requests int // that the pinned host sees
		ok       bool
	}{
		{"301, same host", "get", 301, "/b?x=1", 2, true},
		{"302, same host", "get", 302, "/b", 2, true},
		{"303, same host", "get", 303, "/b", 2, true},
		{"307, same host", "get", 307, "/b", 2, true},
		{"308, same host", "get", 308, "/b", 2, true},
		{"absolute, same host", "get", 302, "https://" + peerHost + "/b", 2, true},
		{"scheme-relative, same host", "get", 302, "//" + peerHost + "/b", 2, true},
		{"another host", "get", 302, "https://other.example.com/b", 1, false},
		{"another host, 307", "get", 307, "https://other.example.com/b", 1, false},
		{"another host, 308", "get", 308, "https://other.example.com/b", 1, false},
		{"scheme-relative, another host", "get", 302, "//other.example.com/b", 1, false},
		{"backslashes", "get", 302, `\\other.example.com\b`, 1, false},
		{"plain http", "get", 302, "http://" + peerHost + "/b", 1, false},
		{"another port", "get", 302, "https://" + peerHost + ":8443/b", 1, false},
		{"the port spelt out", "get", 302, "https://" + peerHost + ":443/b", 1, false},
		{"subdomain", "get", 302, "https://sub." + peerHost + "/b", 1, false},
		{"parent domain", "get", 302, "https://example.com/b", 1, false},
		{"trailing dot", "get", 302, "https://" + peerHost + "./b", 1, false},
		{"upper case", "get", 302, "https://API.EXAMPLE.COM/b", 1, false},
		{"user info", "get", 302, "https://user:pw@" + peerHost + "/b", 1, false},
		{"empty user info", "get", 302, "https://@" + peerHost + "/b", 1, false},
		{"host in the user info", "get", 302, "https://" + peerHost + "@other.example.com/b", 1, false},
		{"IP address", "get", 302, "https://169.254.169.254/latest/meta-data", 1, false},
		{"IPv6 zone", "get", 302, "https://[::1%25." + peerHost + "]/b", 1, false},
		{"data URL", "get", 302, "data:application/json,{}", 1, false},
		{"opaque", "get", 302, "https:other.example.com/b", 1, false},
		{"no location", "get", 302, "", 1, false},
		{"does not parse", "get", 302, "https://%zz/", 1, false},
		{"304", "get", 304, "/b", 1, false},
		{"300", "get", 300, "/b", 1, false},
		{"POST, 302", "post", 302, "/b", 1, false},
		{"POST, 307", "post", 307, "/b", 1, false},
		{"POST, 308", "post", 308, "/b", 1, false},
		{"DELETE, 307", "delete", 307, "/b", 1, false},
		{"safe POST, 307", "search", 307, "/b", 1, false},
		{"safe POST, 303", "search", 303, "/b", 1, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			other := newPeer(t, answer(200, `{"id": "stolen"}`), "other.example.com", "sub."+peerHost, "example.com")
			headers := []string{"Location: " + tc.location}
			if tc.location == "" {
				headers = nil
			}
			p := newPeer(t, inTurn(answer(tc.status, "", headers...), answer(200, `{"id": 1}`)))
			for host := range other.ConnectTo {
				p.ConnectTo[host] = other.addr
			}
			args := map[string]Args{"post": {"text": "x"}, "search": {"text": "x"}, "delete": {"id": "x"}}[tc.op]
			res, err := p.Execute(background, service(t, ops), tc.op, args, testSecret)
			if tc.ok {
				if err != nil || string(res.JSON) != `{"id":1}` {
					t.Errorf("got %v, %v", res, err)
				}
			} else {
				if res != nil {
					t.Fatalf("got %s, want an error", res.JSON)
				}
				want := "provider"
				if tc.status == 303 && tc.op == "post" {
					want = "unknown_outcome"
				}
				wantCode(t, err, want)
				if tc.location != "" && strings.Contains(err.Error(), tc.location) {
					t.Errorf("the address flowed back: %v", err)
				}
			}
			seen := p.requests()
			if len(seen) != tc.requests {
				t.Errorf("the host saw %d requests, want %d", len(seen), tc.requests)
			}
			for _, r := range seen {
				if r.Host != peerHost || r.Header.Get("Authorization") != "Bearer "+testToken {
					t.Errorf("%s at %s carried %q", r.URI, r.Host, r.Header.Get("Authorization"))
				}
			}
			if n := len(other.requests()); n != 0 {
				t.Errorf("another server saw %d requests: %+v", n, other.requests()[0])
			}
		})
	}
}

// TestExecutorRedirectsOfWrites: a 303 says that the write was done and its result stands
// elsewhere; another redirect that it was not taken here.
func TestExecutorRedirectsOfWrites(t *testing.T) {
	p := newPeer(t, answer(303, "", "Location: /things/1"))
	_, err := p.Execute(background, service(t, opPost), "post", Args{"text": "x"}, testSecret)
	wantCode(t, err, "unknown_outcome")
	p.one(t)
}

func TestExecutorRedirectLoop(t *testing.T) {
	hop := 0
	p := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
		hop++
		w.Header().Set("Location", fmt.Sprintf("/hop/%d", hop))
		w.WriteHeader(302)
	})
	_, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
	wantCode(t, err, "provider")
	if n := len(p.requests()); n != 1+3 {
		t.Errorf("%d requests, want the first and three redirects", n)
	}

	// Three are followed to their end.
	p.answerWith(inTurn(answer(302, "", "Location: /1"), answer(307, "", "Location: /2"), answer(308, "", "Location: 3"), answer(200, `{"id": 3}`)))
	res, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
	if err != nil || string(res.JSON) != `{"id":3}` {
		t.Errorf("three redirects: %v, %v", res, err)
	}
}

func gzipped(t testing.TB, data []byte) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestExecutorEncodings(t *testing.T) {
	plain := []byte(`{"id": 1, "text": "häuser"}`)
	zipped := gzipped(t, plain)
	flipped := bytes.Clone(zipped)
	flipped[len(flipped)-6] ^= 1 // in the checksum
	corrupt := bytes.Clone(zipped)
	for i := 12; i < len(corrupt)-8; i++ {
		corrupt[i] = 0xff
	}
	for _, tc := range []struct {
		name, encoding string
		body           []byte
		code           string
	}{
		{"none", "", plain, ""},
		{"identity", "identity", plain, ""},
		{"gzip", "gzip", zipped, ""},
		{"GZIP", " GZIP ", zipped, ""},
		{"x-gzip", "x-gzip", zipped, ""},
		{"two members", "gzip", append(gzipped(t, plain[:9]), gzipped(t, plain[9:])...), ""},
		{"gzip that is none", "gzip", plain, "provider"},
		{"gzip of nothing", "gzip", nil, "provider"},
		{"wrong checksum", "gzip", flipped, "provider"},
		{"corrupt", "gzip", corrupt, "provider"},
		{"not said", "", zipped, "provider"},
		{"twice", "gzip, gzip", gzipped(t, zipped), "provider"},
		{"br", "br", plain, "provider"},
		{"deflate", "deflate", plain, "provider"},
		{"zstd", "zstd", plain, "provider"},
		{"unknown", "rot13", plain, "provider"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var headers []string
			if tc.encoding != "" {
				headers = append(headers, "Content-Encoding: "+tc.encoding)
			}
			p := newPeer(t, answer(200, string(tc.body), headers...))
			m := service(t, opGet+","+opPost)
			res, err := p.Execute(background, m, "get", nil, testSecret)
			wantCode(t, err, tc.code)
			if err == nil && string(res.JSON) != `{"id":1,"text":"häuser"}` {
				t.Errorf("got %s", res.JSON)
			}
			p.one(t) // none of this gets better when it is asked again
			if tc.code != "" {
				tc.code = "unknown_outcome"
			}
			_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
			wantCode(t, err, tc.code)
		})
	}
}

// chunks is a handler that writes size bytes of c between two texts, without a length.
func chunks(before string, c byte, size int, after string, headers ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		n := size
		for _, h := range headers {
			name, value, _ := strings.Cut(h, ": ")
			w.Header().Set(name, value)
		}
		io.WriteString(w, before)
		w.(http.Flusher).Flush()
		block := bytes.Repeat([]byte{c}, 1<<16)
		for n > 0 {
			k, err := w.Write(block[:min(n, len(block))])
			if err != nil {
				return
			}
			n -= k
		}
		io.WriteString(w, after)
	}
}

// bomb is a gzip of n bytes of c inside a JSON text.
func bomb(t testing.TB, c byte, n int) string {
	return string(gzipped(t, append(append([]byte(`{"id":`), bytes.Repeat([]byte{c}, n)...), `1}`...)))
}

func TestExecutorSizes(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends 200 MB over the loopback")
	}
	for _, tc := range []struct {
		name  string
		h     http.HandlerFunc
		limit int64 // 0 where the answer is read
	}{
		{"16 MB as received", chunks(`{"id":`, ' ', maxRawBytes-8, `1}`), 0},
		{"a byte more", chunks(`{"id":`, ' ', maxRawBytes-7, `1}`), maxRawBytes},
		{"much more", chunks(`{"id":`, ' ', 3*maxRawBytes, `1}`), maxRawBytes},
		{"much more in what is not picked", chunks(`{"x":"`, 'a', 3*maxRawBytes, `"}`), maxRawBytes},
		{"more than it said", broken("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 8\r\n\r\n" + `{"id":1}` + strings.Repeat(" ", 1<<20)), 0},
		{"32 MB decoded", answer(200, bomb(t, ' ', maxDecodedBytes-8), "Content-Encoding: gzip"), 0},
		{"a byte more decoded", answer(200, bomb(t, ' ', maxDecodedBytes-7), "Content-Encoding: gzip"), maxDecodedBytes},
		{"a bomb", answer(200, bomb(t, ' ', 40<<20), "Content-Encoding: gzip"), maxDecodedBytes},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPeer(t, tc.h)
			m := service(t, opGet+","+opPost)
			res, err := p.Execute(background, m, "get", nil, testSecret)
			if tc.limit == 0 {
				if err != nil || string(res.JSON) != `{"id":1}` {
					t.Fatalf("got %v, %v", res, err)
				}
				return
			}
			wantCode(t, err, "too_large")
			var large *TooLargeError
			if !errors.As(err, &large) || large.Limit != tc.limit || !large.Raw {
				t.Errorf("got %+v, want the limit %d", large, tc.limit)
			}
			p.one(t)
			// Of a write the result is not known then.
			_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
			wantCode(t, err, "unknown_outcome")
		})
	}
}

func TestExecutorErrorBodySize(t *testing.T) {
	p := newPeer(t, chunks(`{"message": "no such thing", "x": "`, 'a', 64<<20, `"}`))
	p.answerWith(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(404)
		chunks(`{"message": "no such thing", "x": "`, 'a', 64<<20, `"}`)(w, r)
	})
	start := time.Now()
	_, err := p.Execute(background, service(t, opGet, `"error": {"message": "message"}`), "get", nil, testSecret)
	wantCode(t, err, "provider")
	var pe *ProviderError
	if errors.As(err, &pe); pe.Message != "" || pe.Status != 404 {
		t.Errorf("got %+v: what is too long to read has no message", pe)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v", d)
	}
}

func TestExecutorHeaderFlood(t *testing.T) {
	flood := "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n"
	for i := range 2000 {
		flood += fmt.Sprintf("X-SENTINEL-%d: %s\r\n", i, strings.Repeat("v", 100))
	}
	long := "HTTP/1.1 200 OK\r\nX-SENTINEL: " + strings.Repeat("v", 1<<20) + "\r\nContent-Length: 8\r\n"
	info := strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: <"+strings.Repeat("x", 1000)+">\r\n\r\n", 200) + "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n"
	for name, head := range map[string]string{"many": flood, "long": long, "informational": info} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(broken(head + "\r\n" + `{"id":1}`))
				m := service(t, opGet+","+opPost)
				_, err := p.Execute(background, m, "get", nil, testSecret)
				wantCode(t, err, "unreachable")
				if strings.Contains(err.Error(), "SENTINEL") {
					t.Errorf("a header flowed back: %v", err)
				}
				_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
				wantCode(t, err, "unknown_outcome")
			})
		})
	}
}

// TestExecutorNotHTTP: whatever the other side writes, none of it is in the error.
func TestExecutorNotHTTP(t *testing.T) {
	for name, raw := range map[string]string{
		"no HTTP":             "SENTINEL hello\r\n\r\n",
		"status line":         "HTTP/1.1 SENTINEL\r\n\r\n",
		"status code":         "HTTP/1.1 2SENTINEL OK\r\n\r\n",
		"version":             "HTTP/SENTINEL 200 OK\r\n\r\n",
		"header line":         "HTTP/1.1 200 OK\r\nSENTINEL\r\n\r\n",
		"header name":         "HTTP/1.1 200 OK\r\nX SENTINEL: 1\r\n\r\n",
		"length":              "HTTP/1.1 200 OK\r\nContent-Length: SENTINEL\r\n\r\n",
		"two lengths":         "HTTP/1.1 200 OK\r\nContent-Length: 8\r\nContent-Length: 9\r\nX-SENTINEL: 1\r\n\r\n" + `{"id":1}`,
		"transfer encoding":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: SENTINEL\r\n\r\n",
		"chunk size":          "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nSENTINEL\r\n",
		"trailer":             "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: SENTINEL\r\n\r\n1\r\n{\r\n0\r\nSENTINEL\r\n\r\n",
		"HTTP/2 preface":      "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nSENTINEL",
		"switching protocols": "HTTP/1.1 101 Switching Protocols\r\nUpgrade: SENTINEL\r\nConnection: Upgrade\r\n\r\nSENTINEL",
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(broken(raw))
				m := service(t, opGet+","+opPost)
				_, err := p.Execute(background, m, "get", nil, testSecret)
				if code := Code(err); code != "unreachable" && code != "provider" {
					t.Errorf("the error is %q (%v)", code, err)
				}
				if strings.Contains(fmt.Sprint(err), "SENTINEL") {
					t.Errorf("what the other side wrote flowed back: %v", err)
				}
				_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
				wantCode(t, err, "unknown_outcome")
				if strings.Contains(err.Error(), "SENTINEL") {
					t.Errorf("what the other side wrote flowed back: %v", err)
				}
			})
		})
	}
}

func TestExecutorDepth(t *testing.T) {
	nested := func(n int) string {
		return `{"id": 1, "x": ` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	p := newPeer(t, answer(200, nested(maxDepth)))
	m := service(t, opGet)
	if _, err := p.Execute(background, m, "get", nil, testSecret); err != nil {
		t.Errorf("%d deep: %v", maxDepth, err)
	}
	for _, n := range []int{maxDepth + 1, 100, 100000} {
		p.answerWith(answer(200, nested(n)))
		_, err := p.Execute(background, m, "get", nil, testSecret)
		wantCode(t, err, "provider")
		p.one(t)
	}
}

// inBubble runs f with a peer that is reached through memory, on a clock that moves only
// when everybody waits.
func inBubble(t *testing.T, f func(t *testing.T, p *peer)) {
	t.Helper()
	testAuthority()
	synctest.Test(t, func(t *testing.T) {
		p, end := newPipePeer(nil)
		defer func() {
			end()
			time.Sleep(time.Minute) // in which all that is left ends
		}()
		f(t, p)
	})
}

func TestExecutorSlowAnswers(t *testing.T) {
	drip := func(before, part string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			io.WriteString(w, before)
			for {
				if _, err := io.WriteString(w, part); err != nil {
					return
				}
				w.(http.Flusher).Flush()
				select {
				case <-time.After(time.Second):
				case <-r.Context().Done():
					panic(http.ErrAbortHandler) // not a clean end
				}
			}
		}
	}
	dripHeaders := func(w http.ResponseWriter, r *http.Request) {
		conn, buf, _ := w.(http.Hijacker).Hijack()
		defer conn.Close()
		go io.Copy(io.Discard, conn)
		buf.WriteString("HTTP/1.1 200 OK\r\n")
		for i := 0; ; i++ {
			fmt.Fprintf(buf, "X-%d: 1\r\n", i)
			if buf.Flush() != nil {
				return
			}
			time.Sleep(time.Second)
		}
	}
	for name, h := range map[string]http.HandlerFunc{
		"silence":             silent,
		"spaces before":       drip("", " "),
		"a list without end":  drip(`{"list": [1`, `,1`),
		"spaces after":        drip(`{"id": 1}`, " "),
		"headers without end": dripHeaders,
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(h)
				p.Timeout = 7 * time.Second
				m := service(t, opGet+","+opPost)
				start := time.Now()
				_, err := p.Execute(background, m, "get", nil, testSecret)
				wantCode(t, err, "unreachable")
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the error is %v, want a deadline", err)
				}
				if d := time.Since(start); d < 6*time.Second || d > 8*time.Second {
					t.Errorf("it gave up after %v, want 7 s", d)
				}
				_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
				wantCode(t, err, "unknown_outcome")
			})
		})
	}
}

// TestExecutorDeadline shows the default, and that tries share it.
func TestExecutorDeadline(t *testing.T) {
	inBubble(t, func(t *testing.T, p *peer) {
		m := service(t, opGet)
		p.answerWith(silent)
		start := time.Now()
		_, err := p.Execute(background, m, "get", nil, testSecret)
		wantCode(t, err, "unreachable")
		if d := time.Since(start); d != 30*time.Second {
			t.Errorf("it gave up after %v, want 30 s", d)
		}
		// Two tries of 12 s leave the third 6.
		p.answerWith(func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-time.After(12 * time.Second):
				w.WriteHeader(503)
			case <-r.Context().Done():
				panic(http.ErrAbortHandler)
			}
		})
		start = time.Now()
		_, err = p.Execute(background, m, "get", nil, testSecret)
		wantCode(t, err, "unreachable")
		if d := time.Since(start); d != 30*time.Second || len(p.requests()) != 3 {
			t.Errorf("%d tries took %v, want 3 within 30 s", len(p.requests()), d)
		}
	})
}

// TestExecutorUnreadBody: what is dropped is not waited for.
func TestExecutorUnreadBody(t *testing.T) {
	inBubble(t, func(t *testing.T, p *peer) {
		m := service(t, opDelete+","+opGet)
		slow := func(status int, headers ...string) http.HandlerFunc {
			return func(w http.ResponseWriter, r *http.Request) {
				answer(status, "x", headers...)(w, r)
				w.(http.Flusher).Flush()
				<-r.Context().Done()
			}
		}
		p.answerWith(slow(200))
		start := time.Now()
		res, err := p.Execute(background, m, "delete", Args{"id": "x"}, testSecret)
		if err != nil || string(res.JSON) != "null" {
			t.Errorf("got %v, %v", res, err)
		}
		p.answerWith(inTurn(slow(302, "Location: /b"), answer(200, `{"id": 1}`)))
		if _, err = p.Execute(background, m, "get", nil, testSecret); err != nil {
			t.Error(err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
}

func TestExecutorRetries(t *testing.T) {
	httpDate := func(d time.Duration) string {
		return "Retry-After: " + time.Now().Add(d).UTC().Format(http.TimeFormat)
	}
	fine := answer(200, `{"id": 1}`)
	for _, tc := range []struct {
		name     string
		op       string
		first    func() http.HandlerFunc
		requests int
		code     string
		least    time.Duration // of the wait before the second request
		most     time.Duration
	}{
		{"429", "get", func() http.HandlerFunc { return answer(429, "") }, 2, "", 0, 2 * time.Second},
		{"502", "get", func() http.HandlerFunc { return answer(502, "<html>") }, 2, "", 0, 2 * time.Second},
		{"503", "get", func() http.HandlerFunc { return answer(503, "") }, 2, "", 0, 2 * time.Second},
		{"504", "get", func() http.HandlerFunc { return answer(504, "") }, 2, "", 0, 2 * time.Second},
		{"500", "get", func() http.HandlerFunc { return answer(500, "") }, 1, "provider", 0, 0},
		{"501", "get", func() http.HandlerFunc { return answer(501, "") }, 1, "provider", 0, 0},
		{"400", "get", func() http.HandlerFunc { return answer(400, "") }, 1, "provider", 0, 0},
		{"401", "get", func() http.HandlerFunc { return answer(401, "") }, 1, "unauthorised", 0, 0},
		{"408", "get", func() http.HandlerFunc { return answer(408, "") }, 1, "provider", 0, 0},
		{"429, seconds", "get", func() http.HandlerFunc { return answer(429, "", "Retry-After: 7") }, 2, "", 7 * time.Second, 8 * time.Second},
		{"429, zero seconds", "get", func() http.HandlerFunc { return answer(429, "", "Retry-After: 0") }, 2, "", 0, 2 * time.Second},
		{"429, date", "get", func() http.HandlerFunc { return answer(429, "", httpDate(9*time.Second)) }, 2, "", 8 * time.Second, 10 * time.Second},
		{"429, date in the past", "get", func() http.HandlerFunc { return answer(429, "", httpDate(-time.Hour)) }, 2, "", 0, 2 * time.Second},
		{"503, seconds", "get", func() http.HandlerFunc { return answer(503, "", "Retry-After: 5") }, 2, "", 5 * time.Second, 6 * time.Second},
		{"429, after the deadline", "get", func() http.HandlerFunc { return answer(429, "", "Retry-After: 3600") }, 1, "rate_limited", 0, 0},
		{"503, after the deadline", "get", func() http.HandlerFunc { return answer(503, "", "Retry-After: 3600") }, 1, "provider", 0, 0},
		{"429, nonsense", "get", func() http.HandlerFunc { return answer(429, "", "Retry-After: soon") }, 2, "", 0, 2 * time.Second},
		{"429, negative", "get", func() http.HandlerFunc { return answer(429, "", "Retry-After: -5") }, 2, "", 0, 2 * time.Second},
		{"429, reset within the deadline", "get", func() http.HandlerFunc { return answer(429, "", "X-RateLimit-Reset: 6") }, 2, "", 6 * time.Second, 7 * time.Second},
		{"safe POST, 503", "search", func() http.HandlerFunc { return answer(503, "") }, 2, "", 0, 2 * time.Second},
		{"safe POST, broken", "search", func() http.HandlerFunc { return broken("") }, 2, "", 0, 2 * time.Second},
		{"broken before the answer", "get", func() http.HandlerFunc { return broken("") }, 2, "", 0, 2 * time.Second},
		{"broken in the status line", "get", func() http.HandlerFunc { return broken("HTTP/1.1 20") }, 2, "", 0, 2 * time.Second},
		{"broken in the headers", "get", func() http.HandlerFunc { return broken("HTTP/1.1 200 OK\r\nContent-Le") }, 2, "", 0, 2 * time.Second},
		{"broken before the body", "get", func() http.HandlerFunc { return broken("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n") }, 2, "", 0, 2 * time.Second},
		{"broken in the body", "get", func() http.HandlerFunc { return broken("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{\"id\"") }, 2, "", 0, 2 * time.Second},
		{"broken after the JSON", "get", func() http.HandlerFunc { return broken("HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n{\"id\": 2}") }, 2, "", 0, 2 * time.Second},
		{"broken between chunks", "get", func() http.HandlerFunc {
			return broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"id\"\r\n")
		}, 2, "", 0, 2 * time.Second},
		{"broken in a chunk", "get", func() http.HandlerFunc {
			return broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{\"id\"")
		}, 2, "", 0, 2 * time.Second},
		{"broken before the last chunk", "get", func() http.HandlerFunc {
			return broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n{\"id\":2}\r\n")
		}, 2, "", 0, 2 * time.Second},
		{"broken in the gzip header", "get", func() http.HandlerFunc {
			return broken("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 80\r\n\r\n\x1f\x8b")
		}, 2, "", 0, 2 * time.Second},
		{"broken in the gzip body", "get", func() http.HandlerFunc {
			return broken("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 800\r\n\r\n" + bomb(t, ' ', 1000)[:20])
		}, 2, "", 0, 2 * time.Second},
		{"ends early, yet in order", "get", func() http.HandlerFunc { return answer(200, `{"id": 1`) }, 1, "provider", 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				var first, second time.Time
				h := tc.first()
				p.answerWith(inTurn(
					func(w http.ResponseWriter, r *http.Request) { first = time.Now(); h(w, r) },
					func(w http.ResponseWriter, r *http.Request) { second = time.Now(); fine(w, r) },
				))
				args := Args{}
				if tc.op == "search" {
					args["text"] = "x"
				}
				res, err := p.Execute(background, service(t, opGet+","+opSearch), tc.op, args, testSecret)
				wantCode(t, err, tc.code)
				if err == nil && (string(res.JSON) != `{"id":1}` || res.Tries != tc.requests) {
					t.Errorf("got %s after %d tries", res.JSON, res.Tries)
				}
				if n := len(p.requests()); n != tc.requests {
					t.Fatalf("%d requests, want %d", n, tc.requests)
				}
				if tc.requests == 2 {
					if wait := second.Sub(first); wait < tc.least || wait > tc.most {
						t.Errorf("it waited %v, want %v to %v", wait, tc.least, tc.most)
					}
				}
			})
		})
	}
}

// TestExecutorTries: three tries, then the last answer's own class.
func TestExecutorTries(t *testing.T) {
	for _, tc := range []struct {
		name string
		h    http.HandlerFunc
		code string
	}{
		{"429", answer(429, `{"message": "slow down"}`, "Retry-After: 2"), "rate_limited"},
		{"503", answer(503, `{"message": "away"}`), "provider"},
		{"broken", broken(""), "unreachable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(tc.h)
				_, err := p.Execute(background, service(t, opGet, `"error": {"message": "message"}`), "get", nil, testSecret)
				wantCode(t, err, tc.code)
				if n := len(p.requests()); n != 3 {
					t.Errorf("%d tries, want 3", n)
				}
				var rl *RateLimitError
				if errors.As(err, &rl) {
					if d := time.Until(rl.Until); d < time.Second || d > 2*time.Second || rl.Message != "slow down" || rl.Status != 429 {
						t.Errorf("got %+v, %v from now", rl, d)
					}
				}
			})
		})
	}
}

func TestExecutorWrites(t *testing.T) {
	fine := answer(200, `{"id": 1}`)
	for _, tc := range []struct {
		name     string
		first    http.HandlerFunc
		plain    string // the class where there is no idempotency key
		keyed    string // and where a second request is answered well
		requests int    // with a key
	}{
		{"broken before the answer", broken(""), "unknown_outcome", "", 2},
		{"broken in the headers", broken("HTTP/1.1 200 OK\r\nConte"), "unknown_outcome", "", 2},
		{"broken in the body", broken("HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{"), "unknown_outcome", "", 2},
		{"broken in a chunk", broken("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\n{"), "unknown_outcome", "", 2},
		{"502", answer(502, ""), "unknown_outcome", "", 2},
		{"503", answer(503, ""), "unknown_outcome", "", 2},
		{"504", answer(504, ""), "unknown_outcome", "", 2},
		{"500", answer(500, "<html>SENTINEL"), "unknown_outcome", "unknown_outcome", 1},
		{"408", answer(408, ""), "unknown_outcome", "unknown_outcome", 1},
		{"501", answer(501, ""), "provider", "provider", 1},
		{"429", answer(429, ""), "rate_limited", "", 2},
		{"400", answer(400, `{"message": "bad"}`), "provider", "provider", 1},
		{"401", answer(401, ""), "unauthorised", "unauthorised", 1},
		{"402", answer(402, ""), "provider", "provider", 1},
		{"403", answer(403, ""), "provider", "provider", 1},
		{"404", answer(404, ""), "provider", "provider", 1},
		{"409", answer(409, ""), "provider", "provider", 1},
		{"422", answer(422, ""), "provider", "provider", 1},
		{"200 HTML", answer(200, "<html>SENTINEL"), "unknown_outcome", "unknown_outcome", 1},
		{"204 where fields are expected", answer(204, ""), "unknown_outcome", "unknown_outcome", 1},
		{"200 with another shape", answer(200, `"SENTINEL"`), "unknown_outcome", "unknown_outcome", 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				m := service(t, opPost+","+opPostOnce)
				p.answerWith(inTurn(tc.first, fine))
				_, err := p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
				wantCode(t, err, tc.plain)
				p.one(t)
				checkUnknown(t, err, false)

				p.answerWith(inTurn(tc.first, fine))
				_, err = p.Execute(background, m, "post_once", Args{"text": "x"}, testSecret)
				wantCode(t, err, tc.keyed)
				checkUnknown(t, err, false)
				seen := p.requests()
				if len(seen) != tc.requests {
					t.Fatalf("%d requests with a key, want %d", len(seen), tc.requests)
				}
				for _, r := range seen {
					if key := r.Header.Get("Idempotency-Key"); !uuid4.MatchString(key) || key != seen[0].Header.Get("Idempotency-Key") {
						t.Errorf("the keys are %q and %q", seen[0].Header.Get("Idempotency-Key"), key)
					}
					if r.Body != `{"text":"x"}` || r.Body != seen[0].Body {
						t.Errorf("the bodies are %s and %s", seen[0].Body, r.Body)
					}
				}
			})
		})
	}
}

// checkUnknown looks at the words of an unknown outcome.
func checkUnknown(t *testing.T, err error, repeated bool) {
	t.Helper()
	var u *UnknownOutcomeError
	if !errors.As(err, &u) {
		return
	}
	if u.Repeated != repeated {
		t.Errorf("Repeated is %v: %v", u.Repeated, err)
	}
	if s := err.Error(); strings.Contains(s, "SENTINEL") || strings.Contains(s, "was not tried again") == repeated || !strings.Contains(s, "not known whether") {
		t.Errorf("it reads %q", s)
	}
}

// TestExecutorWritesToTheEnd: when a keyed write is never answered well.
func TestExecutorWritesToTheEnd(t *testing.T) {
	for _, tc := range []struct {
		name     string
		hs       []http.HandlerFunc
		code     string
		repeated bool
		requests int
	}{
		{"always broken", []http.HandlerFunc{broken("")}, "unknown_outcome", true, 3},
		{"always 503", []http.HandlerFunc{answer(503, "")}, "unknown_outcome", true, 3},
		{"always 429", []http.HandlerFunc{answer(429, "")}, "rate_limited", false, 3},
		{"broken, then refused", []http.HandlerFunc{broken(""), answer(409, "")}, "unknown_outcome", true, 2},
		{"broken, then told to wait", []http.HandlerFunc{broken(""), answer(429, "", "Retry-After: 3600")}, "unknown_outcome", true, 2},
		{"broken, then refused for what it holds", []http.HandlerFunc{broken(""), answer(402, "")}, "provider", false, 2},
		{"broken, wait, then refused", []http.HandlerFunc{broken(""), answer(429, ""), answer(409, "")}, "unknown_outcome", true, 3},
		{"broken, then not let in", []http.HandlerFunc{broken(""), answer(401, "")}, "unknown_outcome", true, 2},
		{"told to wait, then not let in", []http.HandlerFunc{answer(429, ""), answer(401, "")}, "unauthorised", false, 2},
		{"told to wait, then refused", []http.HandlerFunc{answer(429, ""), answer(409, "")}, "provider", false, 2},
		{"told to wait, then broken", []http.HandlerFunc{answer(429, ""), broken(""), answer(409, "")}, "unknown_outcome", true, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(inTurn(tc.hs...))
				_, err := p.Execute(background, service(t, opPostOnce), "post_once", Args{"text": "x"}, testSecret)
				wantCode(t, err, tc.code)
				checkUnknown(t, err, tc.repeated)
				seen := p.requests()
				if len(seen) != tc.requests {
					t.Errorf("%d requests, want %d", len(seen), tc.requests)
				}
				for _, r := range seen {
					if r.Header.Get("Idempotency-Key") != seen[0].Header.Get("Idempotency-Key") {
						t.Error("the key changed")
					}
				}
			})
		})
	}
}

// TestExecutorStaleConnection: a kept connection that the service has closed is noticed
// only while it is used. A read goes out again; a write that may have been seen does not.
func TestExecutorStaleConnection(t *testing.T) {
	m := service(t, opGet+","+opPost+","+opDelete)
	for _, op := range []string{"post", "delete"} {
		p := newPeer(t, inTurn(answer(200, `{"id": 1}`), broken("")))
		if _, err := p.Execute(background, m, "get", nil, testSecret); err != nil {
			t.Fatal(err)
		}
		_, err := p.Execute(background, m, op, map[string]Args{"post": {"text": "x"}, "delete": {"id": "x"}}[op], testSecret)
		wantCode(t, err, "unknown_outcome")
		if n := len(p.requests()); n != 2 {
			t.Errorf("%s: %d requests, want 2", op, n)
		}
	}
}

// TestExecutorHTTP1 holds the reason why HTTP/2 is off: there the transport itself sends
// a request again whose stream was reset.
func TestExecutorHTTP1(t *testing.T) {
	cfg := &tls.Config{
		Certificates: []tls.Certificate{testAuthority().issue(testAuthority().cert.NotAfter, peerHost)},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	proto := ""
	p := newPeerTLS(t, cfg, func(w http.ResponseWriter, r *http.Request) { proto = r.Proto; io.WriteString(w, `{"id": 1}`) })
	if _, err := p.Execute(background, service(t, opGet), "get", nil, testSecret); err != nil {
		t.Fatal(err)
	}
	if proto != "HTTP/1.1" {
		t.Errorf("it spoke %s", proto)
	}
}

func TestExecutorConnectionRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	e := &Executor{ConnectTo: map[string]string{peerHost + ":443": addr}, Timeout: 5 * time.Second}
	m := service(t, opGet+","+opPost+","+opPostOnce)
	for _, op := range []string{"get", "post", "post_once"} {
		args := Args{"text": "x"}
		if op == "get" {
			args = nil
		}
		_, err := e.Execute(background, m, op, args, testSecret)
		wantCode(t, err, "unreachable")
		if strings.Contains(err.Error(), testToken) {
			t.Errorf("the token is in the error: %v", err)
		}
	}
}

func TestExecutorCancelled(t *testing.T) {
	m := service(t, opGet+","+opPost+","+opPostOnce)
	t.Run("before", func(t *testing.T) {
		p := newPeer(t, answer(200, `{"id": 1}`))
		ctx, cancel := context.WithCancel(background)
		cancel()
		for op, args := range map[string]Args{"get": nil, "post": {"text": "x"}, "post_once": {"text": "x"}} {
			_, err := p.Execute(ctx, m, op, args, testSecret)
			wantCode(t, err, "unreachable")
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v is not a cancelled context", op, err)
			}
		}
		if n := len(p.requests()); n != 0 {
			t.Errorf("%d requests were sent", n)
		}
	})
	for op, want := range map[string]string{"get": "unreachable", "post": "unknown_outcome", "post_once": "unknown_outcome"} {
		t.Run("after sending "+op, func(t *testing.T) {
			ctx, cancel := context.WithCancel(background)
			p := newPeer(t, func(w http.ResponseWriter, r *http.Request) { cancel(); silent(w, r) })
			args := Args{"text": "x"}
			if op == "get" {
				args = nil
			}
			_, err := p.Execute(ctx, m, op, args, testSecret)
			wantCode(t, err, want)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v is not a cancelled context", err)
			}
			p.one(t)
		})
	}
	t.Run("between tries", func(t *testing.T) {
		inBubble(t, func(t *testing.T, p *peer) {
			p.answerWith(answer(429, "", "Retry-After: 20"))
			ctx, cancel := context.WithTimeout(background, 25*time.Second)
			defer cancel()
			go func() { time.Sleep(3 * time.Second); cancel() }()
			start := time.Now()
			_, err := p.Execute(ctx, m, "get", nil, testSecret)
			wantCode(t, err, "rate_limited")
			if d := time.Since(start); d != 3*time.Second {
				t.Errorf("it ended after %v, want 3 s", d)
			}
			p.one(t)
		})
	})
}

// TestExecutorScopes: what a connection lacks is said before anything is sent.
func TestExecutorScopes(t *testing.T) {
	op := `"post": {"title": "Post", "access": "write", "method": "POST", "path": "/things", "confirm": "Post?", "scopes": ["write"], "pick": {"nothing": "no body"}},
		"get": {"title": "Get", "access": "read", "method": "GET", "path": "/things", "scopes": ["read"], "pick": {"fields": ["id"]}}`
	more := `, "scope_implies": {"all": ["write"], "write": ["read"]}, "scope_alias": {"read": "https://example.com/auth/read"}`
	m := service(t, op, `"auth": {"authorization": "bearer", "oauth": `+testOAuth(more)+`}`)
	for _, tc := range []struct {
		op      string
		granted []string
		ok      bool
	}{
		{"get", nil, true}, // not known
		{"get", []string{}, false},
		{"get", []string{"read"}, true},
		{"get", []string{"write"}, true},
		{"get", []string{"all"}, true},
		{"get", []string{"https://example.com/auth/read"}, true},
		{"get", []string{"READ"}, false},
		{"get", []string{"rea", "reads"}, false},
		{"post", []string{"read"}, false},
		{"post", []string{"https://example.com/auth/read"}, false},
		{"post", []string{"read", "write"}, true},
		{"post", []string{"all"}, true},
	} {
		p := newPeer(t, answer(200, `{"id": 1}`))
		_, err := p.ExecuteAs(background, m, tc.op, nil, Credential{Kind: OAuth2, Secret: testSecret, Scopes: tc.granted})
		want, sent := "", 1
		if !tc.ok {
			want, sent = "refused", 0
		}
		if Code(err) != want {
			t.Errorf("%s with %q: %v, want %q", tc.op, tc.granted, err, want)
		}
		if n := len(p.requests()); n != sent {
			t.Errorf("%s with %q: %d requests", tc.op, tc.granted, n)
		}
	}
}

func TestExecutorConcurrent(t *testing.T) {
	p := newPeer(t, func(w http.ResponseWriter, r *http.Request) {
		json.NewEncoder(w).Encode(map[string]string{"id": strings.TrimPrefix(r.URL.Path, "/things/"), "text": r.Header.Get("Authorization")})
	})
	m := service(t, `"show": {"title": "Show", "access": "read", "method": "GET", "path": "/things/{id}", "args": {"id": {"type": "id"}}, "pick": {"fields": ["id"]}}`)
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			id := fmt.Sprintf("thing-%d", i)
			res, err := p.Execute(background, m, "show", Args{"id": id}, NewSecret(fmt.Sprintf("token-%08d", i)))
			if err != nil {
				t.Error(err)
			} else if got, want := string(res.JSON), `{"id":"`+id+`"}`; got != want {
				t.Errorf("got %s, want %s", got, want)
			}
		})
	}
	wg.Wait()
}

// TestExecutorSecrets walks through failures of every kind and looks for the token, and
// for what the service wrote, in all that a caller can print.
func TestExecutorSecrets(t *testing.T) {
	m := service(t, opGet+","+opPost, `"error": {"message": "message"}`)
	bodies := map[string]http.HandlerFunc{
		"401":           answer(401, `{"token": "`+testToken+`", "x": "SENTINEL"}`),
		"403":           answer(403, `SENTINEL `+testToken),
		"404 message":   answer(404, `{"message": "no `+testToken+`", "x": "SENTINEL"}`),
		"429":           answer(429, `{"message": "`+testToken+`"}`, "Retry-After: 3600"),
		"500":           answer(500, `<html>SENTINEL `+testToken),
		"200 no JSON":   answer(200, `<html>SENTINEL `+testToken),
		"200 name":      answer(200, `{"`+testToken+`": {"SENTINEL": tru}}`),
		"200 twice":     answer(200, `{"SENTINEL": 1, "SENTINEL": 2}`),
		"200 result":    answer(200, `{"text": "`+testToken+`", "x": "SENTINEL"}`),
		"200 scalar":    answer(200, `"SENTINEL `+testToken+`"`),
		"302":           answer(302, "SENTINEL", "Location: https://SENTINEL.example.org/"+testToken),
		"status text":   broken("HTTP/1.1 400 SENTINEL " + testToken + "\r\nContent-Length: 0\r\n\r\n"),
		"not HTTP":      broken("SENTINEL " + testToken + "\r\n\r\n"),
		"header":        broken("HTTP/1.1 200 OK\r\nSENTINEL " + testToken + "\r\n\r\n"),
		"encoding":      answer(200, "x", "Content-Encoding: SENTINEL "+testToken),
		"retry after":   answer(429, "", "Retry-After: SENTINEL "+testToken),
		"broken length": broken("HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\n{\"SENTINEL\":"),
	}
	for name, h := range bodies {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(h)
				for op, args := range map[string]Args{"get": nil, "post": {"text": "x"}} {
					_, err := p.Execute(background, m, op, args, testSecret)
					if err == nil || Code(err) == "" {
						t.Fatalf("%s: the error is %v", op, err)
					}
					enc, _ := json.Marshal(err)
					for _, s := range []string{err.Error(), fmt.Sprintf("%v %+v %#v %q", err, err, err, err), string(enc)} {
						if strings.Contains(s, "SENTINEL") || strings.Contains(s, testToken) || strings.Contains(s, "S3cr3t") {
							t.Errorf("%s: it prints %s", op, s)
						}
					}
				}
			})
		})
	}
	cred := Credential{Kind: PAT, Secret: testSecret}
	enc, _ := json.Marshal(cred)
	if s := fmt.Sprintf("%v %+v %#v %s %x %q", cred, cred, cred, cred.Secret, cred.Secret, cred.Secret) + string(enc); strings.Contains(s, "S3cr3t") || strings.Contains(s, fmt.Sprintf("%x", "S3cr3t")) {
		t.Errorf("a credential prints its secret: %s", s)
	}
}
