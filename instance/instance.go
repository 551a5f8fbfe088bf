package instance

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// A Config says what an instance is. New checks all of it.
type Config struct {
	// Space is the id of the one space, [A-Za-z0-9_.-]{1,64}. It is bound into every
	// envelope, and a database keeps the one that it was made for.
	Space string
	// DB is the SQLite file; it is made where there is none.
	DB string
	// Origin is where clients reach the instance, such as https://chat.example. Where it is
	// set, requests to any other host are refused: a name that somebody lets point here
	// opens nothing. Empty means the host that each request names.
	Origin string
	// Invite is what a new key shows once to join the space; empty means that whoever
	// reaches the instance may join.
	Invite string
	// Broker is the origin of the broker whose registry is shown; empty means none.
	Broker string
	// Registry is shown where no broker's is; nil means the one that is built in.
	Registry *integrations.Registry
	// AsOf is the date of Registry; zero leaves it out.
	AsOf time.Time
	// Static are the web client's files; nil serves none.
	Static fs.FS

	// Rate is how many requests a second one key may make, a minute's worth at once; zero
	// means 20.
	Rate int
	// Quota is how many bytes one author may fill of one reader's log; zero means 256 MiB.
	Quota int64
	// RegistryEvery is how often the broker's registry is looked at; zero means 5 minutes.
	RegistryEvery time.Duration
	// RootCAs are trusted for the broker; nil means the system's.
	RootCAs *x509.CertPool
	// Logger gets one line a request, with nothing of what it held; nil discards them.
	Logger *slog.Logger
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	stream streamTimes // for tests
}

// An Instance serves one space. It is made by New and ended by Close, and is safe for use by
// several goroutines.
type Instance struct {
	cfg       Config
	log       *slog.Logger
	mux       *http.ServeMux
	store     *store
	login     [32]byte // makes nonces known again; of this process
	spent     spent
	strangers limiter
	known     limiter
	hub       hub
	links     links
	catalog   catalog

	stop context.CancelFunc
	work sync.WaitGroup
}

const (
	defaultRate   = 20
	defaultQuota  = 256 << 20
	sweepEvery    = 30 * time.Second
	strangerRate  = 5
	strangerBurst = 120
)

// New checks cfg, opens the database and makes an instance of it.
func New(cfg Config) (*Instance, error) {
	if !isID(cfg.Space) {
		return nil, errors.New("instance: Space is 1 to 64 letters, digits, _, - and dots")
	}
	if cfg.DB == "" {
		return nil, errors.New("instance: DB names no file")
	}
	var err error
	if cfg.Origin != "" {
		if cfg.Origin, err = parseOrigin(cfg.Origin); err != nil {
			return nil, fmt.Errorf("instance: Origin: %w", err)
		}
	}
	if cfg.Broker != "" {
		if cfg.Broker, err = parseOrigin(cfg.Broker); err != nil {
			return nil, fmt.Errorf("instance: Broker: %w", err)
		}
	}
	if cfg.Registry == nil {
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
	if cfg.Rate <= 0 {
		cfg.Rate = defaultRate
	}
	if cfg.Quota <= 0 {
		cfg.Quota = defaultQuota
	}
	if cfg.RegistryEvery <= 0 {
		cfg.RegistryEvery = 5 * time.Minute
	}
	cfg.stream.defaults()
	ctx, stop := context.WithCancel(context.Background())
	i := &Instance{cfg: cfg, log: cfg.Logger, mux: http.NewServeMux(), stop: stop}
	rand.Read(i.login[:])
	i.strangers.perSecond, i.strangers.burst = strangerRate, strangerBurst
	i.known.perSecond, i.known.burst = float64(cfg.Rate), float64(cfg.Rate)*60
	if i.store, err = openStore(ctx, cfg.DB, cfg.Space, cfg.Now()); err != nil {
		stop()
		return nil, err
	}
	if err := i.openCatalog(ctx); err != nil {
		stop()
		i.store.close()
		return nil, err
	}
	i.routes()
	i.work.Go(func() { i.sweeper(ctx) })
	if cfg.Broker != "" {
		i.work.Go(func() { i.fetcher(ctx) })
	}
	return i, nil
}

// Close ends the streams, waits for what runs in the background and closes the database. The
// server in front has stopped taking requests before.
func (i *Instance) Close() error {
	i.stop()
	i.hub.close()
	i.work.Wait()
	return i.store.close()
}

func (i *Instance) routes() {
	m := i.mux
	m.HandleFunc("GET /healthz", i.health)
	m.HandleFunc("GET /api/space", open(i, i.getSpace))
	m.HandleFunc("GET /api/integrations", i.getIntegrations)
	m.HandleFunc("POST /api/login", open(i, i.postLogin))
	m.HandleFunc("POST /api/session", open(i, i.postSession))
	m.HandleFunc("DELETE /api/session", authed(i, i.deleteSession))
	m.HandleFunc("GET /api/members", authed(i, i.getMembers))
	m.HandleFunc("GET /api/members/{id}", authed(i, i.getMember))
	m.HandleFunc("PUT /api/me", authed(i, i.putMe))
	m.HandleFunc("PUT /api/me/day", authed(i, i.putDay))
	m.HandleFunc("GET /api/threads", authed(i, i.getThreads))
	m.HandleFunc("POST /api/threads", authed(i, i.postThread))
	m.HandleFunc("GET /api/threads/{id}", authed(i, i.getThread))
	m.HandleFunc("PUT /api/threads/{id}/members/{member}", authed(i, i.putThreadMember))
	m.HandleFunc("DELETE /api/threads/{id}/members/{member}", authed(i, i.deleteThreadMember))
	m.HandleFunc("GET /api/messages", authed(i, i.getMessages))
	m.HandleFunc("POST /api/messages", authed(i, i.postMessage))
	m.HandleFunc("DELETE /api/messages/{seq}", authed(i, i.deleteMessage))
	m.HandleFunc("GET /api/stream", i.getStream)
	m.HandleFunc("GET /api/blobs", authed(i, i.getBlobs))
	m.HandleFunc("GET /api/blobs/{id}", authed(i, i.getBlob))
	m.HandleFunc("PUT /api/blobs/{id}", authed(i, i.putBlob))
	m.HandleFunc("DELETE /api/blobs/{id}", authed(i, i.deleteBlob))
	m.HandleFunc("POST /api/links", authed(i, i.postLink))
	m.HandleFunc("GET /api/links/{id}", authed(i, i.getLink))
	m.HandleFunc("DELETE /api/links/{id}", authed(i, i.deleteLink))
	m.HandleFunc("POST /api/links/{id}/answer", authed(i, i.postLinkAnswer))
	m.HandleFunc("POST /api/links/{id}/offer", open(i, i.postLinkOffer))
	m.HandleFunc("POST /api/links/{id}/fetch", open(i, i.postLinkFetch))
	if i.cfg.Static != nil {
		m.Handle("GET /", http.FileServerFS(folderless{i.cfg.Static}))
	}
}

func (i *Instance) now() time.Time { return i.cfg.Now() }

// A note collects what the one log line of a request may say beside its route.
type note struct{ code string }

type noteKey struct{}

func noteOf(r *http.Request) *note {
	if n, ok := r.Context().Value(noteKey{}).(*note); ok {
		return n
	}
	return new(note)
}

// ServeHTTP serves one request. Whatever goes wrong, it answers, and logs a line of route,
// status, code and time alone.
func (i *Instance) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := i.now()
	n := new(note)
	r = r.WithContext(context.WithValue(r.Context(), noteKey{}, n))
	rec := &recorder{ResponseWriter: w}
	route := "none"
	defer func() {
		v := recover()
		if v != nil && v != http.ErrAbortHandler {
			// The value could hold anything; its type tells where to look.
			i.log.ErrorContext(r.Context(), "panic", "route", route, "type", fmt.Sprintf("%T", v))
			if rec.status == 0 {
				i.fail(rec, r, refuse(http.StatusInternalServerError, "internal", "something is wrong here; the operator's log says where"))
				v = nil
			}
		}
		i.log.InfoContext(r.Context(), "request", "route", route, "status", rec.status, "code", n.code, "ms", i.now().Sub(start).Milliseconds())
		if v != nil {
			panic(http.ErrAbortHandler) // half an answer must not pass for a whole one
		}
	}()
	i.headers(w.Header(), r)
	if !canonical(r) {
		i.fail(rec, r, errNoRoute)
		return
	}
	if err := i.sameOrigin(r); err != nil {
		i.fail(rec, r, err)
		return
	}
	h, pattern := i.mux.Handler(r)
	if pattern != "" {
		route = pattern
	}
	switch api := strings.HasPrefix(r.URL.Path, "/api/"); {
	case pattern == "", pattern == "GET /" && api:
		// The mux answers a wrong method by itself, in words of its own.
		probe := &recorder{ResponseWriter: discard{make(http.Header)}}
		if h.ServeHTTP(probe, r); probe.status == http.StatusMethodNotAllowed {
			w.Header()["Allow"] = probe.Header()["Allow"]
			i.fail(rec, r, refuse(http.StatusMethodNotAllowed, "method", "this address does not take that method"))
			return
		}
		i.fail(rec, r, errNoRoute)
	default:
		i.mux.ServeHTTP(rec, r)
	}
}

var errNoRoute = refuse(http.StatusNotFound, "not_found", "there is nothing at this address")

// headers are on every answer, until a route says otherwise.
func (i *Instance) headers(h http.Header, r *http.Request) {
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Content-Security-Policy", i.policy(r))
	if strings.HasPrefix(i.cfg.Origin, "https://") {
		h.Set("Strict-Transport-Security", "max-age=63072000")
	}
}

// policy lets the client's own files run, and reach nobody but the instance and its broker.
// What is not a file of the client is nothing that a page may use.
func (i *Instance) policy(r *http.Request) string {
	if i.cfg.Static == nil || strings.HasPrefix(r.URL.Path, "/api/") {
		return "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
	}
	connect := "'self'"
	if i.cfg.Origin != "" { // where 'self' does not cover its own WebSocket yet
		connect += " ws" + strings.TrimPrefix(i.cfg.Origin, "http")
	}
	if i.cfg.Broker != "" {
		connect += " " + i.cfg.Broker
	}
	return "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; manifest-src 'self'; connect-src " + connect +
		"; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
}

// sameOrigin refuses what another origin's page sends, and a host that is not ours.
func (i *Instance) sameOrigin(r *http.Request) error {
	if r.URL.Path == "/healthz" {
		return nil // a balancer asks by address
	}
	host := strings.ToLower(r.Host)
	if i.cfg.Origin != "" {
		_, own, _ := strings.Cut(i.cfg.Origin, "://")
		if host != own && withoutPort(host, i.cfg.Origin) != own {
			return refuse(http.StatusMisdirectedRequest, "host", "this instance is reached at %s", i.cfg.Origin)
		}
		host = own
	}
	foreign := refuse(http.StatusForbidden, "origin", "only this instance's own pages may ask")
	origins := r.Header.Values("Origin")
	if len(origins) > 1 {
		return foreign
	}
	if len(origins) == 1 {
		switch u, err := url.Parse(origins[0]); {
		case i.cfg.Origin != "" && !equal(origins[0], i.cfg.Origin), i.cfg.Origin == "" && (err != nil || strings.ToLower(u.Host) != host):
			return foreign
		}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); strings.HasPrefix(r.URL.Path, "/api/") && (site == "cross-site" || site == "same-site") {
		return foreign
	}
	return nil
}

// withoutPort drops the port that the origin's scheme implies.
func withoutPort(host, origin string) string {
	if strings.HasPrefix(origin, "https://") {
		return strings.TrimSuffix(host, ":443")
	}
	return strings.TrimSuffix(host, ":80")
}

func equal(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// parseOrigin returns an origin in its one form. Plain HTTP stays on this machine.
func parseOrigin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || u.Opaque != "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", errors.New("an origin is written https://chat.example, with nothing after the host and port")
	}
	host := strings.ToLower(u.Host)
	for _, c := range host {
		if c <= ' ' || c > '~' {
			return "", errors.New("an origin's host is written in ASCII; a name in other letters begins with xn--")
		}
	}
	ip := net.ParseIP(u.Hostname())
	local := strings.EqualFold(u.Hostname(), "localhost") || ip != nil && ip.IsLoopback()
	switch {
	case u.Scheme == "https", u.Scheme == "http" && local:
		return u.Scheme + "://" + withoutPort(host, u.Scheme+"://"), nil
	}
	return "", errors.New("an origin is https; plain http is for this machine only")
}

func (i *Instance) health(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	var one int
	if err := i.store.read.QueryRowContext(ctx, "SELECT 1 FROM meta LIMIT 1").Scan(&one); err != nil {
		i.fail(w, r, refuse(http.StatusServiceUnavailable, "database", "the database does not answer"))
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "ok\n")
}

// sweeper deletes what has come to its end.
func (i *Instance) sweeper(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		if err := i.store.sweep(ctx, i.now()); err != nil && ctx.Err() == nil {
			i.log.Error("sweep", "type", fmt.Sprintf("%T", err), "sqlite", sqliteCode(err))
		}
		i.links.sweep(i.now())
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// A recorder notes whether an answer has begun, and with what.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(p)
}

// Unwrap lets http.ResponseController and the WebSocket reach the connection below.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// discard is an answer that goes nowhere.
type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) WriteHeader(int)             {}
func (d discard) Write(p []byte) (int, error) { return len(p), nil }

// folderless are files without their folders' lists.
type folderless struct{ fs.FS }

func (f folderless) Open(name string) (fs.File, error) {
	file, err := f.FS.Open(name)
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.IsDir() {
		var index fs.FileInfo
		if index, err = fs.Stat(f.FS, strings.TrimPrefix(name+"/index.html", "./")); err == nil && index.IsDir() {
			err = fs.ErrNotExist
		}
	}
	if err != nil {
		file.Close()
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return file, nil
}
