// Package frame is what stands around every route of a broker: the headers of all answers,
// one form of a path, an answer whatever goes wrong, and one log line.
package frame

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"
)

// A Handler serves the patterns of a ServeMux.
type Handler struct {
	Mux    *http.ServeMux
	Logger *slog.Logger
	Now    func() time.Time
	// Begin, where it is not nil, prepares a request for Line.
	Begin func(*http.Request) *http.Request
	// Fail writes an error.
	Fail func(w http.ResponseWriter, r *http.Request, status int, code string)
	// Line, where it is not nil, returns what else the log line of a request says. It holds
	// no path, query, header, body or address, and no error of net/http or url: those print
	// addresses with codes in them. class is the code of an error that was written by the
	// package's Fail, or "".
	Line func(r *http.Request, class string) []slog.Attr
}

// ServeHTTP serves one request. Whatever goes wrong, it answers, and says nothing of why
// that could hold a secret.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var start time.Time
	logs := h.Logger.Enabled(r.Context(), slog.LevelInfo)
	if logs {
		start = h.Now()
	}
	if h.Begin != nil {
		r = h.Begin(r)
	}
	rec := &recorder{ResponseWriter: w}
	pattern := ""
	defer func() {
		v := recover()
		if v != nil {
			// The value could hold anything; its type tells where to look.
			h.Logger.ErrorContext(r.Context(), "panic", "type", fmt.Sprintf("%T", v))
			if rec.status == 0 {
				clear(rec.Header())
				safe(rec.Header())
				h.Fail(rec, r, http.StatusInternalServerError, "internal")
				v = nil
			}
		}
		if logs {
			h.log(rec, r, pattern, start)
		}
		if v != nil {
			// Half an answer must not pass for a whole one: the server cuts the connection,
			// the functions' adapter drops what there is.
			panic(http.ErrAbortHandler)
		}
	}()
	safe(rec.Header())
	// One form of a path only: what a gateway decodes and what a router sees must be one.
	if !canonical(r) {
		h.Fail(rec, r, http.StatusNotFound, "not_found")
		return
	}
	var route http.Handler
	if route, pattern = h.Mux.Handler(r); pattern == "" {
		h.Fail(rec, r, http.StatusNotFound, "not_found")
		return
	}
	if strings.Contains(pattern, "{") {
		route = h.Mux // which sets the request's path values
	}
	route.ServeHTTP(rec, r)
}

// The headers of every answer, until a route says otherwise. The values are shared by all
// answers: a route replaces one, and changes none in place.
var (
	noStore    = []string{"no-store"}
	noCache    = []string{"no-cache"}
	noSniff    = []string{"nosniff"}
	noReferrer = []string{"no-referrer"}
	onlyTLS    = []string{"max-age=63072000"}
)

func safe(h http.Header) {
	h["Cache-Control"] = noStore
	h["Pragma"] = noCache
	h["X-Content-Type-Options"] = noSniff
	h["Referrer-Policy"] = noReferrer
	h["Strict-Transport-Security"] = onlyTLS
}

func canonical(r *http.Request) bool {
	p := r.URL.Path
	return r.URL.RawPath == "" && p != "" && path.Clean(p) == p && !strings.ContainsFunc(p, func(c rune) bool { return c < 0x21 || c > 0x7e })
}

func (h *Handler) log(rec *recorder, r *http.Request, route string, start time.Time) {
	if route == "" {
		route = "none"
	}
	status := rec.status
	if status == 0 {
		status = http.StatusOK
	}
	line := make([]slog.Attr, 0, 12)
	line = append(line, slog.String("route", route), slog.Int("status", status))
	if h.Line != nil {
		line = append(line, h.Line(r, rec.class)...)
	} else {
		line = append(line, slog.String("class", rec.class))
	}
	line = append(line, slog.Int64("ms", h.Now().Sub(start).Milliseconds()))
	h.Logger.LogAttrs(r.Context(), slog.LevelInfo, "request", line...)
}

// Fail writes an error's JSON: its code, and nothing else.
func Fail(w http.ResponseWriter, r *http.Request, status int, code string) {
	if rec, ok := w.(*recorder); ok {
		rec.class = code
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		fmt.Fprintf(w, "{\"error\":%q}\n", code)
	}
}

// Health answers GET /healthz.
func Health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "ok\n")
}

// A recorder notes whether an answer has begun, and with what.
type recorder struct {
	http.ResponseWriter
	status int
	class  string
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.ResponseWriter.WriteHeader(status)
	}
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController reach the writer below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }
