package local

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// MaxBody is how many bytes the body of a request may have: an envelope, with what is
// around it.
const MaxBody = 96 << 10

// maxLegacy bounds an op of before, which is no envelope.
const maxLegacy = custody.MaxMessage

// A Config says what an API serves.
type Config struct {
	Sidecar  *sidecar.Sidecar
	Registry *integrations.Registry   // the sidecar's; nil is the built-in one
	Names    map[custody.KeyID]string // what the operator calls the bots
	Links    func() []Link            // the bots' ways to an instance; nil: there are none

	// Bearer is asked of every request but /healthz. Zero asks nothing: then the listener
	// lets nobody else in, as a socket of mode 0600 does.
	Bearer integrations.Secret
	// Host is what requests must have as Host, such as 127.0.0.1:8090, so that no name that
	// somebody lets point here opens anything. Empty, on a socket, takes any.
	Host string

	Version string           // the program's
	Logger  *slog.Logger     // one line a request, without content; nil: nothing is logged
	Now     func() time.Time // nil is time.Now
}

// A Link is a bot's way to an instance.
type Link struct {
	Bot       string `json:"bot"` // its name
	Connected bool   `json:"connected"`
	Since     int64  `json:"since"`   // seconds since 1970 UTC: when that last changed
	Cursor    int64  `json:"cursor"`  // how far the bot's log at the instance has been handled
	Standby   bool   `json:"standby"` // another process of this folder has the link
}

// An API is the handler.
type API struct {
	cfg      Config
	bearer   [sha256.Size]byte
	services *servicesAnswer
	routes   []route
}

// A route is a path and a method with what answers them.
type route struct {
	method, path string
	open         bool // without the bearer token
	serve        func(*API, http.ResponseWriter, *http.Request) error
}

// New makes the handler.
func New(cfg Config) (*API, error) {
	if cfg.Sidecar == nil {
		return nil, errors.New("local: Sidecar: there is none")
	}
	if cfg.Registry == nil {
		var err error
		if cfg.Registry, err = integrations.Default(); err != nil {
			return nil, err
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &API{cfg: cfg, bearer: sha256.Sum256([]byte(cfg.Bearer.Reveal())), services: palette(cfg.Registry), routes: routes()}, nil
}

// routes are all there are.
func routes() []route {
	return []route{
		{http.MethodGet, "/healthz", true, answers((*API).health)},
		{http.MethodGet, "/v1/bots", false, answers((*API).bots)},
		{http.MethodPost, "/v1/messages", false, answers((*API).message)},
		{http.MethodPost, "/v1/legacy", false, answers((*API).legacy)},
		{http.MethodGet, "/v1/outbox", false, answers((*API).outbox)},
		{http.MethodGet, "/v1/services", false, answers((*API).palette)},
		{http.MethodGet, "/v1/status", false, answers((*API).status)},
	}
}

// A refusal is an error with the status and code by which it is answered.
type refusal struct {
	status  int
	code    string
	message string
}

func (e *refusal) Error() string { return e.message }

func refuse(status int, code, format string, args ...any) error {
	return &refusal{status, code, fmt.Sprintf(format, args...)}
}

// ServeHTTP answers a request, and logs its route and status.
func (a *API) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	began := time.Now()
	out := &recorder{ResponseWriter: w}
	route := "none"
	defer func() {
		if p := recover(); p != nil {
			a.cfg.Logger.Error("a request panicked", "route", route, "type", fmt.Sprintf("%T", p)) // the value may hold content
			if out.status == 0 {
				a.fail(out, refuse(http.StatusInternalServerError, "internal", "something is wrong in the sidecar; its log says where"))
			}
		}
		a.cfg.Logger.Info("request", "route", route, "status", out.status, "code", out.code, "ms", time.Since(began).Milliseconds())
	}()
	h := out.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	rt, err := a.find(r)
	if rt != nil {
		route = rt.method + " " + rt.path
	}
	if err == nil {
		err = rt.serve(a, out, r)
	}
	if err != nil {
		a.fail(out, err)
	}
}

// A recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	code   string
}

func (w *recorder) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

// find returns the route of a request from whoever may call.
func (a *API) find(r *http.Request) (*route, error) {
	if len(r.Header["Origin"]) > 0 || len(r.Header["Sec-Fetch-Site"]) > 0 {
		return nil, refuse(http.StatusForbidden, "browser", "this is not for web pages")
	}
	if a.cfg.Host != "" && r.Host != a.cfg.Host {
		return nil, refuse(http.StatusMisdirectedRequest, "host", "the request names another host; write the address and port on which the sidecar listens")
	}
	path := slices.IndexFunc(a.routes, func(rt route) bool { return rt.path == r.URL.Path && r.URL.RawPath == "" })
	if path >= 0 && a.routes[path].open && r.Method == a.routes[path].method {
		return &a.routes[path], nil
	}
	if !a.cfg.Bearer.IsZero() && !a.shown(r) {
		return nil, refuse(http.StatusUnauthorized, "unauthorized", "send the token of the bearer file: Authorization: Bearer TOKEN")
	}
	if path < 0 {
		return nil, refuse(http.StatusNotFound, "not_found", "there is no such path")
	}
	if rt := &a.routes[path]; r.Method != rt.method {
		return nil, &methodError{rt.method}
	}
	if r.URL.RawQuery != "" {
		return nil, refuse(http.StatusBadRequest, "malformed", "the path takes no query")
	}
	return &a.routes[path], nil
}

type methodError struct{ allow string }

func (e *methodError) Error() string { return "the path takes " + e.allow + " only" }

// shown says whether a request has the bearer token. What is compared has one length.
func (a *API) shown(r *http.Request) bool {
	if len(r.Header["Authorization"]) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	sum := sha256.Sum256([]byte(token))
	return subtle.ConstantTimeCompare(sum[:], a.bearer[:]) == 1 && ok && strings.EqualFold(scheme, "Bearer")
}

type none struct{}

// answers makes of f what reads each request and writes each answer. Errors go to fail.
func answers[Req, Resp any](f func(*API, context.Context, *Req) (Resp, error)) func(*API, http.ResponseWriter, *http.Request) error {
	return func(a *API, w http.ResponseWriter, r *http.Request) error {
		req := new(Req)
		if err := decode(r, req); err != nil {
			return err
		}
		resp, err := f(a, r.Context(), req)
		if err != nil {
			return err
		}
		return write(w, http.StatusOK, resp)
	}
}

// decode reads a body: one JSON value of known members, each of them once, all of them there.
func decode(r *http.Request, into any) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, MaxBody+1))
	switch {
	case err != nil:
		return refuse(http.StatusBadRequest, "malformed", "the body did not come whole")
	case len(data) > MaxBody:
		return refuse(http.StatusRequestEntityTooLarge, "too_big", "the body has more than %d bytes", MaxBody)
	}
	if r.Method == http.MethodGet {
		if len(data) > 0 {
			return refuse(http.StatusBadRequest, "malformed", "the path takes no body")
		}
		return nil
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, "media_type", "send the body as Content-Type: application/json")
	}
	if err := json.Unmarshal(data, into, json.RejectUnknownMembers(true)); err != nil {
		return refuse(http.StatusBadRequest, "malformed", "the body is not the JSON object that is described: %s", place(err))
	}
	return nil
}

// place says where JSON is wrong, without what stands there.
func place(err error) string {
	var in *json.SemanticError
	if errors.As(err, &in) && errors.Is(in.Err, json.ErrUnknownName) {
		return "it has a member that is not known"
	}
	if in != nil && len(in.JSONPointer) < 64 && known(string(in.JSONPointer)) {
		return "look at " + string(in.JSONPointer)
	}
	return "it is not well-formed, or holds something twice"
}

// known says whether a pointer names a member of ours, and not the caller's own text.
func known(pointer string) bool {
	return slices.Contains([]string{"/space", "/thread", "/author", "/message", "/bot"}, pointer)
}

// An errorAnswer is the body of every answer that is not 200.
type errorAnswer struct {
	Error errorBody `json:"error"`
}

type errorBody struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// busyRest is when a caller comes again after a store that did not answer.
const busyRest = 2 * time.Second

// fail answers an error. It is the one place that knows what errors are called.
func (a *API) fail(w *recorder, err error) {
	var own *refusal
	var method *methodError
	status, code, message := http.StatusServiceUnavailable, "temporary", "the sidecar's store did not take it; bring it again in a moment"
	switch {
	case errors.As(err, &own):
		status, code, message = own.status, own.code, own.message
	case errors.As(err, &method):
		w.Header().Set("Allow", method.allow)
		status, code, message = http.StatusMethodNotAllowed, "method", method.Error()
	case errors.Is(err, sidecar.ErrStopping):
		code, message = "stopping", "the sidecar is stopping; bring it again when it is back"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		code, message = "temporary", "it was left before it was done; bring it again"
	case errors.Is(err, sidecar.ErrPurpose):
		status, code, message = http.StatusBadRequest, "purpose", "this message is not for a sidecar"
	case errors.Is(err, custody.ErrNotMine):
		status, code, message = http.StatusNotFound, "not_mine", "no bot of this sidecar has the key that the message is for"
	case errors.Is(err, custody.ErrForged):
		status, code, message = http.StatusForbidden, "forged", "the message was not made by this author for this space and thread; it gets no answer"
	case errors.Is(err, custody.ErrTooBig):
		status, code, message = http.StatusRequestEntityTooLarge, "too_big", "the message is larger than one may be"
	case errors.Is(err, custody.ErrVersion):
		status, code, message = http.StatusBadRequest, "version", "the message is of a version or suite that this sidecar does not know"
	case errors.Is(err, custody.ErrMalformed):
		status, code, message = http.StatusBadRequest, "malformed", "the message is not an envelope in order"
	case errors.Is(err, custody.ErrDay), errors.Is(err, custody.ErrOpen):
		status, code, message = http.StatusBadRequest, "open", "the message does not open"
	default:
		a.cfg.Logger.Error("a request was not taken", "error", err)
	}
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", strconv.Itoa(int(busyRest/time.Second)))
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	w.code = code
	if err := write(w, status, errorAnswer{errorBody{code, message}}); err != nil {
		a.cfg.Logger.Error("an answer could not be written", "error", err)
	}
}

// write sends an answer. One that cannot be written whole is not begun.
func write(w http.ResponseWriter, status int, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return refuse(http.StatusInternalServerError, "internal", "the answer could not be written")
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	w.Write(data) // whoever went away gets the rest by bringing it again
	return nil
}
