package broker_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/andybalholm/brotli"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// TestRegistry shows every form in which the registry is answered.
func TestRegistry(t *testing.T) {
	asOf := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.AsOf = asOf }})
	b := s.Browser()
	get := func(method, path string, headers ...string) *brokertest.Page {
		t.Helper()
		p, err := b.Do(method, s.URL+path, nil, headers...)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	unpack := map[string]func([]byte) ([]byte, error){
		"": func(p []byte) ([]byte, error) { return p, nil },
		"gzip": func(p []byte) ([]byte, error) {
			z, err := gzip.NewReader(bytes.NewReader(p))
			if err != nil {
				return nil, err
			}
			return io.ReadAll(z)
		},
		"br": func(p []byte) ([]byte, error) { return io.ReadAll(brotli.NewReader(bytes.NewReader(p))) },
	}
	for _, path := range []string{"/registry", "/registry/github"} {
		plain := get(http.MethodGet, path)
		etags := make(map[string]string)
		for accept, want := range map[string]string{
			"": "", "identity": "", "gzip": "gzip", "br": "br", "gzip, deflate, br, zstd": "br", "gzip;q=0, br;q=0": "", "br;q=0, gzip": "gzip", "br;q=0.0,gzip;q=0.5": "gzip", "*": "", "GZIP": "gzip", "x-gzip": "", "gzip ; q=1": "gzip",
		} {
			var headers []string
			if accept != "" {
				headers = append(headers, "Accept-Encoding: "+accept)
			}
			p := get(http.MethodGet, path, headers...)
			h := p.Header
			if got := h.Get("Content-Encoding"); p.Status != http.StatusOK || got != want {
				t.Errorf("%s, %q: %d, encoding %q, want %q", path, accept, p.Status, got, want)
				continue
			}
			body, err := unpack[want]([]byte(p.Body))
			if err != nil || string(body) != plain.Body {
				t.Errorf("%s, %q: the body differs, %v", path, accept, err)
			}
			if h.Get("Vary") != "Accept-Encoding" || h.Get("Cache-Control") != "public, max-age=300, stale-while-revalidate=86400" || h.Get("Pragma") != "" || h.Get("Content-Type") != "application/json" || h.Get("Access-Control-Allow-Origin") != "*" {
				t.Errorf("%s, %q: %v", path, accept, h)
			}
			etag := h.Get("Etag")
			if !strings.HasPrefix(etag, `"`) || etags[etag] != "" && etags[etag] != want+"." {
				t.Errorf("%s, %q: ETag %s is weak, or that of %q", path, accept, etag, etags[etag])
			}
			etags[etag] = want + "."
			for match, status := range map[string]int{etag: 304, "W/" + etag: 304, `"x", ` + etag: 304, "*": 304, `"x"`: 200, etag[:8]: 200, "": 200} {
				p := get(http.MethodGet, path, append(headers, "If-None-Match: "+match)...)
				if p.Status != status || status == 304 && (p.Body != "" || p.Header.Get("Etag") != etag || p.Header.Get("Vary") == "" || p.Header.Get("Cache-Control") == "no-store") {
					t.Errorf("%s, If-None-Match %s: %d %v", path, match, p.Status, p.Header)
				}
			}
			head := get(http.MethodHead, path, headers...)
			if head.Body != "" || head.Header.Get("Content-Length") != h.Get("Content-Length") || head.Header.Get("Etag") != etag {
				t.Errorf("%s, HEAD: %v", path, head.Header)
			}
		}
		if len(etags) != 3 {
			t.Errorf("%s: %d ETags, want one an encoding", path, len(etags))
		}
	}
	var whole struct {
		AsOf     time.Time         `json:"as_of"`
		Services []json.RawMessage `json:"services"`
	}
	if err := json.Unmarshal([]byte(get(http.MethodGet, "/registry").Body), &whole); err != nil || !whole.AsOf.Equal(asOf) {
		t.Errorf("as of %v, %v", whole.AsOf, err)
	}
	for i, m := range s.Registry.All() {
		if one := get(http.MethodGet, "/registry/"+m.ID).Body; i < len(whole.Services) && one != string(whole.Services[i]) {
			t.Errorf("%s alone differs from the whole", m.ID)
		}
	}
	if p := get(http.MethodGet, "/registry/nobody"); p.Status != http.StatusNotFound || p.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("an unknown service: %d %v", p.Status, p.Header)
	}
	if s.Upstream.Count() != 0 {
		t.Error("the registry calls somebody")
	}
}
