package event_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/broker/public"
	"github.com/elevenmessenger/connect/functions/internal/event"
	"github.com/elevenmessenger/connect/functions/internal/event/eventtest"
	"github.com/elevenmessenger/connect/functions/internal/prebuilt"
)

// registry is the functions' own: a broker would compress its registry anew for each kind.
var registry = sync.OnceValue(func() http.Handler {
	r, err := prebuilt.Registry()
	if err != nil {
		panic(err)
	}
	return public.New(public.Config{Registry: r})
})

// through runs a broker behind the adapter, as a gateway of a kind would call it.
func through(t *testing.T, kind string) *brokertest.Server {
	t.Helper()
	return brokertest.New(t, brokertest.Options{Wrap: func(h http.Handler) http.Handler {
		return eventtest.Front(kind, func(r *http.Request, payload []byte) ([]byte, error) {
			if strings.HasPrefix(r.URL.Path, "/registry") {
				return event.Handler{HTTP: registry()}.Invoke(r.Context(), payload)
			}
			return event.Handler{HTTP: h}.Invoke(r.Context(), payload)
		})
	}})
}

func brokerStatus(t *testing.T, kind string, payload []byte) int {
	t.Helper()
	s := brokertest.New(t, brokertest.Options{})
	return send(t, s.Broker.ServeHTTP, kind, payload).Status
}

// refreshBody is the body of a refresh, with a new one-time key.
func refreshBody(t *testing.T, service, wrapped string) []byte {
	t.Helper()
	key, err := brokertest.NewIdentity(t).Public().MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(map[string]string{"service": service, "refresh": wrapped, "key": string(key)})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func refreshRequest(t *testing.T, s *brokertest.Server, service, wrapped string) eventtest.Request {
	t.Helper()
	return eventtest.Request{Method: "POST", Target: "/api/refresh", Body: refreshBody(t, service, wrapped),
		Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + s.Token()}}}
}

// TestThreats holds the rows of docs/threat-model.md that are the adapter's.
func TestThreats(t *testing.T) {
	t.Run("X2_path_confusion", func(t *testing.T) {
		s := brokertest.New(t, brokertest.Options{})
		ask := "?" + strings.SplitN(s.URLOf(&brokertest.Ask{Service: "github"}), "?", 2)[1]
		// What a canonical address answers, to tell whether an odd one reached the same.
		plain := send(t, s.Broker.ServeHTTP, "http-2.0", eventtest.Event("http-2.0", get("/oauth/github/authorize"+ask)))
		if plain.Status != 200 || !strings.Contains(string(plain.Body), "GitHub") {
			t.Fatalf("the canonical address answers %d", plain.Status)
		}
		for _, target := range []string{
			"/oauth/github/../stripe/authorize", "/oauth/github/..%2fstripe/authorize", "/oauth/github%2f..%2fstripe/authorize", "/oauth/github/%2e%2e/stripe/authorize",
			"//oauth/github/authorize", "/oauth//github/authorize", "/oauth/github//authorize", "/oauth/github/authorize/", "/oauth/github/./authorize", "/./oauth/github/authorize",
			"/OAuth/github/authorize", "/oauth/GitHub/authorize", "/oauth/github/Authorize", "/oauth/github%20/authorize", "/oauth/github/authorize%20", "/oauth/github/authorize%00",
			"/oauth/github/authorize%0d%0aX:1", "/oauth/github%3fservice=stripe/authorize", "/oauth/github/authorize%3faccess=write", "/oauth/github/authorize%23x", "/oauth/github;a=b/authorize",
			"/oauth/github/authorize;a=b", "/oauth/github%252fauthorize", "/oauth/github%5c..%5cstripe/authorize", "/oauth/%ef%bd%87ithub/authorize",
			"/oauth/g%c4%b1thub/authorize", "/registry/..", "/registry/%2e%2e", "/registry/%2e%2e/oauth/github/authorize", "/registry/github/", "/registry//", "/prod/oauth/github/authorize",
			"/oauth/github/authorize/../callback", "/oauth/%/authorize", "/%", "/api/refresh/", "/api//refresh", "/api/refresh%2f", "/api/%72efresh/..", "",
		} {
			for _, kind := range eventtest.Kinds {
				resp := send(t, s.Broker.ServeHTTP, kind, eventtest.Event(kind, get(target+ask)))
				// An error of the page's kind is 400; what never gets to a route is 404.
				if resp.Status != 404 || strings.Contains(string(resp.Body), "GitHub") || strings.Contains(string(resp.Body), "Stripe") || resp.Header["Set-Cookie"] != nil || resp.Header["Location"] != nil {
					t.Errorf("%s, %q: %d %v %.80s", kind, target, resp.Status, resp.Header, resp.Body)
				}
			}
			if target == "" {
				continue // no request line can say it
			}
			// The local server refuses the same.
			if status, body := local(t, s, target+ask); status != 404 && status != 400 || strings.Contains(body, "GitHub") {
				t.Errorf("local, %q: %d %.80s", target, status, body)
			}
		}
		// One that is only written in another way is that address, or none: never another.
		for _, target := range []string{"/oauth/git%68ub/authorize", "/oauth%2fgithub%2Fauthorize", "%2foauth/github/authorize"} {
			for _, kind := range eventtest.Kinds {
				resp := send(t, s.Broker.ServeHTTP, kind, eventtest.Event(kind, get(target+ask)))
				want := 404
				if kind == "http-2.0" || kind == "http-1.0" || kind == "rest" {
					want = 200 // the gateway decoded it before it chose the function
				}
				if resp.Status != want || want == 200 && !strings.Contains(string(resp.Body), "GitHub") {
					t.Errorf("%s, %q: %d", kind, target, resp.Status)
				}
			}
			if status, _ := local(t, s, target+ask); status != 404 && status != 400 {
				t.Errorf("local, %q: %d", target, status)
			}
		}
		if n := len(s.Upstream.Calls()); n != 0 {
			t.Errorf("%d calls reached a provider", n)
		}
	})

	t.Run("X3_event_traps", func(t *testing.T) {
		for _, kind := range eventtest.Kinds {
			t.Run(kind, func(t *testing.T) { everyRoute(t, kind) })
		}
	})
}

// everyRoute drives each route through a gateway of a kind: a base64 form, several cookies
// both ways, a compressed registry, a 304, and a refresh.
func everyRoute(t *testing.T, kind string) {
	s := through(t, kind)
	b := s.Browser()
	a := brokertest.Ask{Service: "acme"}
	p := b.Begin(t, &a)
	if p.Status != http.StatusSeeOther || len(p.Cookies(brokertest.FlowCookie)) != 1 {
		t.Fatalf("the press: %d %v", p.Status, p.Header)
	}
	// A second flow beside it: three cookies go up from here on.
	if p := b.Begin(t, &brokertest.Ask{Service: "github"}); p.Status != http.StatusSeeOther {
		t.Fatalf("the second press: %d", p.Status)
	}
	back := b.Get(t, p.Location())
	done := b.Get(t, back.Location())
	out, err := a.Open(done)
	if err != nil {
		t.Fatalf("callback: %d: %v", done.Status, err)
	}
	if n := s.Upstream.Count(brokertest.Token); n != 1 {
		t.Errorf("%d exchanges", n)
	}
	r, err := s.PostJSON("/api/refresh", s.Token(), refreshBody(t, "acme", out.Refresh.Reveal()))
	if err != nil || r.Status != 200 || s.Upstream.Count(brokertest.Refresh) != 1 {
		t.Errorf("refresh: %+v, %v, %d calls", r, err, s.Upstream.Count(brokertest.Refresh))
	}
	if r, err = s.PostJSON("/api/revoke", s.Token(), map[string]string{"service": "acme", "secret": out.Secret.Reveal()}); err != nil || r.Status != 200 {
		t.Errorf("revoke: %+v, %v", r, err)
	}
	if r, err = s.PostJSON("/api/refresh", s.Token(), []byte("{")); err != nil || r.Status != 400 {
		t.Errorf("malformed: %+v, %v", r, err)
	}
	if r, err = s.PostJSON("/api/refresh", "", refreshBody(t, "acme", "rt1.a.b")); err != nil || r.Status != 401 || r.Header.Get("WWW-Authenticate") != "Bearer" {
		t.Errorf("no token: %+v, %v", r, err)
	}
	for _, enc := range []string{"", "gzip", "br"} {
		var headers []string
		if enc != "" {
			headers = []string{"Accept-Encoding: " + enc}
		}
		p := b.Get(t, s.URL+"/registry", headers...)
		direct := send(t, registry().ServeHTTP, "http-2.0", eventtest.Event("http-2.0", eventtest.Request{Method: "GET", Target: "/registry", Header: http.Header{"Accept-Encoding": {enc}}}))
		if p.Status != 200 || p.Header.Get("Content-Encoding") != enc || p.Body != string(direct.Body) || p.Header.Get("Etag") == "" || p.Header.Get("Cache-Control") == "no-store" {
			t.Errorf("registry, %q: %d %v", enc, p.Status, p.Header)
		}
		n := b.Get(t, s.URL+"/registry", append(headers, "If-None-Match: "+p.Header.Get("Etag"))...)
		if n.Status != 304 || n.Body != "" || n.Header.Get("Etag") != p.Header.Get("Etag") {
			t.Errorf("registry, %q, again: %d %v", enc, n.Status, n.Header)
		}
	}
	for _, c := range []struct {
		method, path string
		status       int
	}{
		{"HEAD", "/registry", 200}, {"OPTIONS", "/registry", 204}, {"GET", "/registry/github", 200}, {"GET", "/registry/nobody", 404}, {"GET", "/healthz", 200},
		{"GET", "/api/oauth/config?service=acme", 200}, {"GET", "/api/oauth/config?service=nobody", 404}, {"GET", "/nothing", 404},
		{"GET", "/oauth/acme/callback?code=x&state=AAAAAAAAAAAAAAAAAAAAAA", 403}, {"DELETE", "/api/refresh", 405},
	} {
		p, err := b.Do(c.method, s.URL+c.path, nil)
		if err != nil || p.Status != c.status || p.Header.Get("Content-Type") == "" && c.status != 204 {
			t.Errorf("%s %s: %+v, %v", c.method, c.path, p, err)
		}
	}
	if strings.Contains(s.Logs(), brokertest.Sentinel) {
		t.Error("the log holds a secret")
	}
}

// local sends a request line as it stands to the broker's own server.
func local(t *testing.T, s *brokertest.Server, target string) (status int, body string) {
	t.Helper()
	c, err := tls.Dial("tcp", s.Addr, &tls.Config{RootCAs: s.CA.Pool(), ServerName: strings.TrimPrefix(s.URL, "https://")})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", target, strings.TrimPrefix(s.URL, "https://"))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", target, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// nothingRunsOn: the caller goes away while a provider is asked, and still Invoke returns only
// when that is over (R7 of the threats), and leaves nothing running.
func nothingRunsOn(t *testing.T) {
	t.Helper()
	s := brokertest.New(t, brokertest.Options{})
	wrapped := s.Connect(t, brokertest.Ask{Service: "acme"}).Refresh.Reveal()
	for _, kind := range []string{"http-2.0", "rest", "alb"} {
		s.Upstream.Reset()
		asked, over := make(chan bool), make(chan bool)
		s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
			close(asked)
			time.Sleep(50 * time.Millisecond)
			close(over)
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		go func() { <-asked; cancel() }()
		out, err := event.Handler{HTTP: s.Broker}.Invoke(ctx, eventtest.Event(kind, refreshRequest(t, s, "acme", wrapped)))
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-over:
		default:
			t.Errorf("%s: Invoke returned while the provider was being asked", kind)
		}
		if left := running(); len(left) > 0 {
			t.Errorf("%s: still running after Invoke:\n%s", kind, strings.Join(left, "\n\n"))
		}
		if resp, err := eventtest.Parse(kind, out); err != nil || resp.Status != 200 || s.Upstream.Count(brokertest.Refresh) != 1 {
			t.Errorf("%s: %v, %s, %d calls", kind, err, out, s.Upstream.Count(brokertest.Refresh))
		}
		s.Upstream.SetAnswer(nil)
		s.Upstream.Reset()
		wrapped = s.Connect(t, brokertest.Ask{Service: "acme"}).Refresh.Reveal()
	}
	// The count sees what it is for.
	stop := make(chan bool)
	h := event.Handler{HTTP: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { go func() { <-stop }() })}
	if _, err := h.Invoke(t.Context(), eventtest.Event("http-2.0", get("/x"))); err != nil {
		t.Fatal(err)
	}
	if len(running()) == 0 {
		t.Error("a handler that leaves a goroutine behind is not noticed")
	}
	close(stop)
}

// deadlinesNest: a provider that hangs does not take the function's deadline with it; the
// caller is told to come again. template.yaml's own numbers are held by its test.
func deadlinesNest(t *testing.T) {
	t.Helper()
	s := brokertest.New(t, brokertest.Options{})
	wrapped := s.Connect(t, brokertest.Ask{Service: "acme"}).Refresh.Reveal()
	hang := make(chan bool)
	defer close(hang)
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		return &brokertest.Answer{Raw: func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
		}}
	})
	deadline := time.Now().Add(1500 * time.Millisecond)
	ctx, cancel := context.WithDeadline(t.Context(), deadline)
	defer cancel()
	resp := func() *eventtest.Response {
		out, err := event.Handler{HTTP: s.Broker}.Invoke(ctx, eventtest.Event("http-2.0", refreshRequest(t, s, "acme", wrapped)))
		if err != nil {
			t.Fatal(err)
		}
		r, err := eventtest.Parse("http-2.0", out)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}()
	if !time.Now().Before(deadline) {
		t.Error("the answer came after the function's deadline")
	}
	if resp.Status != 503 || !strings.Contains(string(resp.Body), `"temporary"`) {
		t.Errorf("%d %s", resp.Status, resp.Body)
	}
}
