package frame

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

func handler(log io.Writer) *Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", Health)
	mux.HandleFunc("GET /panic", func(http.ResponseWriter, *http.Request) { panic("marker") })
	mux.HandleFunc("GET /half", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "half"); panic("marker") })
	mux.HandleFunc("GET /a/{b}", func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.PathValue("b")) })
	return &Handler{Mux: mux, Logger: slog.New(slog.NewJSONHandler(log, nil)), Now: time.Now, Fail: Fail}
}

// TestPanic: the caller hears that something is wrong and no more. Half an answer is cut: over
// HTTP the connection ends before the body does.
func TestPanic(t *testing.T) {
	var log bytes.Buffer
	s := httptest.NewServer(handler(&log))
	defer s.Close()
	resp, err := http.Get(s.URL + "/panic")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != 500 || string(body) != "{\"error\":\"internal\"}\n" || resp.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("%d %s %v", resp.StatusCode, body, resp.Header)
	}
	if resp, err = http.Get(s.URL + "/half"); err == nil {
		if body, err = io.ReadAll(resp.Body); err == nil {
			t.Errorf("half an answer came as a whole one: %d %q", resp.StatusCode, body)
		}
	}
	s.Close() // which waits for the handlers, and so for what they log
	if strings.Contains(log.String(), "marker") || strings.Count(log.String(), `"msg":"panic","type":"string"`) < 2 {
		t.Error(log.String())
	}
}

// TestCanonicalPath: one form of a path is served.
func TestCanonicalPath(t *testing.T) {
	for target, want := range map[string]int{
		"/a/b": 200, "/a/b?x=/../y": 200, "/healthz": 200,
		"/a/b/": 404, "//a/b": 404, "/a//b": 404, "/a/../healthz": 404, "/a/./b": 404, "/a/%62": 404, "/a/b%2fc": 404, "/a/b%00": 404, "/a/%c3%bc": 404, "/a/b%20c": 404, "/A/b": 404, "/": 404,
	} {
		var log bytes.Buffer
		w := httptest.NewRecorder()
		handler(&log).ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		if w.Code != want || w.Header().Get("Location") != "" {
			t.Errorf("%s: %d %v, want %d", target, w.Code, w.Header(), want)
		}
		if h := w.Header(); h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s: %v", target, h)
		}
		if strings.Contains(log.String(), "b%") || strings.Contains(log.String(), "x=") {
			t.Errorf("%s: the log has the path: %s", target, &log)
		}
	}
}
