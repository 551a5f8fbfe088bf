package broker_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// A tape keeps all that a handler answers: status, headers and bodies.
type tape struct {
	mu      sync.Mutex
	b       bytes.Buffer
	headers []http.Header
}

func (p *tape) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rec := &taped{ResponseWriter: w, tape: p}
		h.ServeHTTP(rec, r)
	})
}

type taped struct {
	http.ResponseWriter
	tape *tape
	sent bool
}

func (w *taped) WriteHeader(status int) {
	if !w.sent {
		w.sent = true
		w.tape.mu.Lock()
		w.tape.headers = append(w.tape.headers, w.Header().Clone())
		w.tape.mu.Unlock()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *taped) Write(p []byte) (int, error) {
	if !w.sent {
		w.WriteHeader(http.StatusOK)
	}
	w.tape.mu.Lock()
	w.tape.b.Write(p)
	w.tape.mu.Unlock()
	return w.ResponseWriter.Write(p)
}

// text is all of it, but for what a browser must be handed: the state in the address of the
// provider, the cookies, and the ciphertext that only the beginner opens.
func (p *tape) text() (rest string, cookies []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, h := range p.headers {
		for name, vs := range h {
			for _, v := range vs {
				if name == "Set-Cookie" {
					cookies = append(cookies, v)
					continue
				}
				fmt.Fprintf(&b, "%s: %s\n", name, v)
			}
		}
	}
	return b.String() + p.b.String(), cookies
}

// formsOf returns the ways in which a mark may stand somewhere: as it is, in base64 at each of
// three offsets, in hex, and percent-encoded.
func formsOf(mark string) []string {
	var all strings.Builder
	for _, c := range []byte(mark) {
		fmt.Fprintf(&all, "%%%02X", c)
	}
	out := []string{mark, hex.EncodeToString([]byte(mark)), strings.ToUpper(hex.EncodeToString([]byte(mark))), url.QueryEscape(mark), url.PathEscape(mark),
		all.String(), strings.ToLower(all.String())}
	for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		for off := range 3 {
			// What comes before and after changes the first and last characters.
			s := enc.EncodeToString(append(make([]byte, off), mark...))
			first := (off*8 + 5) / 6
			last := (off + len(mark)) * 8 / 6
			out = append(out, s[first:last])
		}
	}
	return out
}

func TestFormsOf(t *testing.T) {
	const mark = "SENTINEL"
	for before := range 4 {
		for after := range 4 {
			text := strings.Repeat("x", before) + mark + strings.Repeat("y", after)
			for _, s := range []string{text, hex.EncodeToString([]byte(text)), base64.StdEncoding.EncodeToString([]byte(text)), base64.RawURLEncoding.EncodeToString([]byte(text)), url.QueryEscape(text)} {
				if found(s, mark) == "" {
					t.Errorf("%s is not found in %s", mark, s)
				}
			}
		}
	}
}

// found returns the form in which a mark stands in a text.
func found(text, mark string) string {
	for _, e := range formsOf(mark) {
		if i := strings.Index(text, e); i >= 0 {
			return text[max(0, i-60):min(len(text), i+60)]
		}
	}
	return ""
}

// trouble is a source of secrets that fails as it is told.
type trouble struct {
	broker.SecretSource
	mu   sync.Mutex
	mode string
}

func (s *trouble) set(mode string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mode = mode
}

func (s *trouble) Client(ctx context.Context, service string) (broker.Client, error) {
	s.mu.Lock()
	mode := s.mode
	s.mu.Unlock()
	switch mode {
	case "panic":
		panic(fmt.Sprintf("client_secret=%s", brokertest.Sentinel))
	case "error":
		return broker.Client{}, errors.New("GET https://store.example/?secret=" + brokertest.Sentinel)
	}
	return s.SecretSource.Client(ctx, service)
}

// TestSentinel drives every route into every fault, with marked codes, tokens and secrets, and
// looks for them in all that the broker wrote.
func TestSentinel(t *testing.T) {
	var p tape
	src := new(trouble)
	s := brokertest.New(t, brokertest.Options{Wrap: p.wrap, Config: func(c *broker.Config) {
		unlimited(c)
		c.AllowWiderRevoke = true
		c.UpstreamTimeout = 200 * time.Millisecond
		src.SecretSource = c.Secrets
		c.Secrets = src
	}})
	const mark = brokertest.Sentinel
	// Handles and cookies are random, so each is a mark of its own.
	var states, cookies []string
	begin := func(service string) (b *brokertest.Browser, ask *brokertest.Ask, back string) {
		b, ask = s.Browser(), &brokertest.Ask{Service: service}
		page := b.Begin(t, ask)
		if page.Status != http.StatusSeeOther {
			return b, ask, ""
		}
		for _, c := range page.Cookies("") {
			cookies = append(cookies, c.Value)
		}
		to, err := url.Parse(page.Location())
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, to.Query().Get("state"))
		return b, ask, b.Get(t, page.Location()).Location()
	}
	echo := func(status int, body string) func(*brokertest.Call) *brokertest.Answer {
		return func(c *brokertest.Call) *brokertest.Answer {
			if c.Kind == brokertest.Authorize {
				return nil
			}
			return &brokertest.Answer{Status: status, Header: http.Header{"X-Echo": {mark}, "Set-Cookie": {"s=" + mark}, "Retry-After": {mark}, "Www-Authenticate": {mark}},
				Body: strings.ReplaceAll(body, "%s", c.Form.Get("refresh_token")+c.Form.Get("code")+c.Form.Get("token")+c.ClientSecret)}
		}
	}
	upstreams := map[string]func(*brokertest.Call) *brokertest.Answer{
		"conforming":  nil,
		"invalid":     echo(400, `{"error":"invalid_grant","error_description":"%s"}`),
		"unknown":     echo(400, `{"error":"%s"}`),
		"client":      echo(401, `{"error":"invalid_client","error_description":"%s"}`),
		"html":        echo(502, `<html>%s</html>`),
		"text":        echo(200, `%s`),
		"limit":       echo(429, `{"error":"%s"}`),
		"redirect":    echo(307, `%s`),
		"odd token":   echo(200, `{"access_token":"%s %s"}`),
		"odd type":    echo(200, `{"access_token":"at","token_type":"%s"}`),
		"odd numbers": echo(200, `{"access_token":"at_SENTINEL","expires_in":"%s","scope":{"a":"%s"},"expires_at":"%s"}`),
		"reset":       func(c *brokertest.Call) *brokertest.Answer { return unlessAuthorize(c, raw(reset)) },
		"hang": func(c *brokertest.Call) *brokertest.Answer {
			return unlessAuthorize(c, raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		},
	}
	services := []string{"acme", "github", "stripe", "hubspot", "linear", "dnsimple"}
	tokens := []string{s.Token()}
	post := func(path, token string, v any) {
		if _, err := s.PostJSON(path, token, v); err != nil {
			t.Fatal(err)
		}
	}
	for name, f := range upstreams {
		s.Upstream.SetAnswer(f)
		for _, service := range services {
			if name == "hang" && service != "acme" {
				continue
			}
			b, _, back := begin(service)
			if back == "" {
				t.Fatalf("%s: no flow", service)
			}
			b.Get(t, back)
			b.Get(t, back) // once more
			redeem(t, s, service, live(s, service))
			post("/api/revoke", tokens[0], map[string]any{"service": service, "secret": "at_" + mark, "refresh": live(s, service), "keep": map[string]string{"stripe_user_id": "acct_" + mark}})
		}
	}
	s.Upstream.SetAnswer(nil)
	// Callbacks that go wrong before the provider is asked, with all that was marked in them.
	for _, add := range []string{"&error=" + mark, "&error=access_denied&error_description=" + mark, "&code=" + mark, "&iss=" + mark, "&x=" + mark} {
		b, _, back := begin("acme")
		b.Get(t, back+add)
		s.Browser().Get(t, back+add) // in another browser
		b.Get(t, strings.Replace(back, "/acme/", "/github/", 1)+add)
	}
	// Requests that carry the marks to where they do not belong.
	req := func(method, path string, header http.Header, body string) {
		r, err := http.NewRequest(method, s.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = header
		resp, err := s.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	js := func(auth string) http.Header {
		return http.Header{"Content-Type": {"application/json"}, "Authorization": {auth}, "Cookie": {"a=" + mark}, "Dpop": {mark}}
	}
	for _, path := range []string{"/", "/registry", "/registry/acme", "/registry/" + mark, "/healthz", "/api/oauth/config?service=" + mark, "/api/oauth/config?service=acme", "/" + mark,
		"/oauth/acme/authorize?key=" + mark, "/oauth/acme/callback?code=" + mark + "&state=" + mark, "/oauth/" + mark + "/callback", "/oauth/acme/" + mark, "/api/refresh", "/api/revoke", "/api/%2e%2e/" + mark} {
		for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "DELETE", "PUT"} {
			req(method, path, js("Bearer "+mark), `{"`+mark+`":"`+mark+`"}`)
			req(method, path, js("Bearer "+tokens[0]), `{"service":"`+mark+`","refresh":"`+mark+`","key":"`+mark+`"}`)
			req(method, path, http.Header{"Origin": {"https://" + mark + ".example"}, "Referer": {"https://" + mark}, "Content-Type": {"application/x-www-form-urlencoded"}}, "token="+mark)
		}
	}
	// The store and the program itself.
	for _, mode := range []string{"error", "panic"} {
		b, _, back := begin("acme")
		src.set(mode)
		s.Browser().Get(t, s.URLOf(&brokertest.Ask{Service: "acme"}))
		b.Get(t, back)
		if got := redeem(t, s, "acme", live(s, "acme")); mode == "panic" && got.Status != http.StatusInternalServerError {
			t.Errorf("a panic: %d", got.Status)
		}
		post("/api/revoke", tokens[0], map[string]any{"service": "acme", "refresh": live(s, "acme")})
		src.set("")
	}

	said, handed := p.text()
	logs := s.Logs() + s.Metrics()
	if len(said) < 10_000 || len(handed) < 50 || strings.Count(logs, "\n") < 200 || len(states) < 60 || !strings.Contains(logs, `"panic"`) {
		t.Fatalf("too little was looked at: %d bytes, %d cookies, %d lines, %d states", len(said), len(handed), strings.Count(logs, "\n"), len(states))
	}
	for where, text := range map[string]string{"answers": said, "logs and metrics": logs, "cookies": strings.Join(handed, "\n")} {
		if s := found(text, mark); s != "" {
			t.Errorf("%s hold a mark: …%q…", where, s)
		}
	}
	locations := 0
	lines := strings.Split(said, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, "Location: https://") && !strings.HasPrefix(l, "Location: "+brokertest.Instance) {
			locations++
			lines[i] = "" // to the provider: the state must be there
		}
	}
	if locations < len(states) {
		t.Errorf("%d ways to the provider, %d states", locations, len(states))
	}
	said = strings.Join(lines, "\n")
	for _, m := range append(append(states, cookies...), tokens...) {
		for where, text := range map[string]string{"answers": said, "logs and metrics": logs} {
			if strings.Contains(text, m) || strings.Contains(text, hex.EncodeToString([]byte(m))) || strings.Contains(text, base64.RawURLEncoding.EncodeToString([]byte(m))) {
				t.Errorf("%s hold a state, cookie or token: %.12s…", where, m)
			}
		}
	}
}

func unlessAuthorize(c *brokertest.Call, a *brokertest.Answer) *brokertest.Answer {
	if c.Kind == brokertest.Authorize {
		return nil
	}
	return a
}
