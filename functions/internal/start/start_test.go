package start

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/functions/internal/event"
	"github.com/elevenmessenger/connect/functions/internal/event/eventtest"
)

// TestPerOrigin: without a configured origin the gateway's own name is it, and no other.
func TestPerOrigin(t *testing.T) {
	var log bytes.Buffer
	made := []string{}
	h, err := PerOrigin("", slog.New(slog.NewJSONHandler(&log, nil)), func(origin string) (http.Handler, error) {
		made = append(made, origin)
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, origin) }), nil
	})
	if err != nil || len(made) != 1 {
		t.Fatalf("%v %v", err, made)
	}
	ask := func(kind, domain string) *eventtest.Response {
		t.Helper()
		out, err := event.Handler{HTTP: h}.Invoke(context.Background(), eventtest.Event(kind, eventtest.Request{
			Method: "GET", Target: "/", Domain: domain, Header: http.Header{"X-Forwarded-Host": {"evil.example"}, "Origin": {"https://evil.example"}}}))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := eventtest.Parse(kind, out)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for range 3 {
		if r := ask("http-2.0", ""); r.Status != 200 || string(r.Body) != "https://"+eventtest.Domain {
			t.Errorf("%d %s", r.Status, r.Body)
		}
	}
	if len(made) != 2 {
		t.Errorf("made for %q", made)
	}
	if r := ask("url-2.0", ""); string(r.Body) != "https://u7hxample.lambda-url.eu-central-1.on.aws" {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	for _, name := range []string{"connect.example", "evil.example", "abc.execute-api.eu-central-1.amazonaws.com.evil.example", "execute-api.eu-central-1.amazonaws.com", "a.b.execute-api.x.amazonaws.com", "ABC.execute-api.x.amazonaws.com", "abc.execute-api.x.amazonaws.com:443"} {
		if r := ask("http-2.0", name); r.Status != 500 || strings.Contains(string(r.Body), name) {
			t.Errorf("%s: %d %s", name, r.Status, r.Body)
		}
	}
	if r := ask("alb", ""); r.Status != 500 { // whose Host header is its caller's word
		t.Errorf("alb: %d %s", r.Status, r.Body)
	}
	if !strings.Contains(log.String(), "CONNECT_PUBLIC_URL") || strings.Contains(log.String(), "evil") {
		t.Error(log.String())
	}

	// A configured one is the only one, and a fault shows at once either way.
	h, err = PerOrigin("https://connect.example", nil, func(origin string) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, origin) }), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if r := ask("alb", "evil.example"); string(r.Body) != "https://connect.example" {
		t.Errorf("%d %s", r.Status, r.Body)
	}
	for _, configured := range []string{"", "https://connect.example"} {
		if _, err := PerOrigin(configured, nil, func(string) (http.Handler, error) { return nil, errors.New("no") }); err == nil {
			t.Errorf("%q: no error", configured)
		}
	}
}
