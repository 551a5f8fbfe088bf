package broker

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// A Config says what a broker is. New checks all of it.
type Config struct {
	// Registry holds the services; nil means the one that is built in.
	Registry *integrations.Registry
	// PublicURL is the broker's own origin, such as https://connect.example. Redirect
	// addresses are made from it, never from what a request says of itself.
	PublicURL string
	// ReturnOrigins are the origins that may receive a connection; empty means any https
	// origin, each named on the consent page.
	ReturnOrigins []string
	// Services limits what is offered; nil means every service that has a secret.
	Services []string
	// Secrets holds the OAuth clients.
	Secrets SecretSource
	// StateKeys seal flows: the first seals, all open. WrapKeys wrap refresh tokens likewise.
	StateKeys, WrapKeys []Key
	// InstanceKeys check the tokens of POST /api/refresh and /api/revoke.
	InstanceKeys []InstanceKey
	// Refused are instances (iss) and token ids (jti) that are turned away.
	Refused []string
	// Apps are the public names of apps by service: what {app} in a manifest's mend stands for.
	Apps map[string]string
	// AllowWiderRevoke lets a revocation end more than one token at the provider.
	AllowWiderRevoke bool

	// UpstreamTimeout bounds one call to a provider; zero means 10 seconds.
	UpstreamTimeout time.Duration
	// ConnectTo, AllowPrivate and RootCAs widen what may be reached, as in
	// integrations.Executor: for tests and self-hosted providers, never from a manifest.
	ConnectTo    map[string]string
	AllowPrivate bool
	RootCAs      *x509.CertPool

	// AsOf is the registry's date in GET /registry; zero leaves it out.
	AsOf time.Time
	// Logger gets one line a request, from a closed list of fields; nil discards them.
	Logger *slog.Logger
	// Metrics, where it is not nil, gets one line for each event an operator's alarm counts.
	Metrics io.Writer
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// A Broker serves the routes. It is made by New, does not change and is safe for use by
// several goroutines.
type Broker struct {
	cfg      Config
	origin   string // of PublicURL, canonical
	state    *keyring
	wrap     *keyring
	tokens   *tokenChecker
	upstream *upstream
	registry *registryPages
	page     *pages
	mux      *http.ServeMux
}

// New checks cfg and makes a broker of it: a bad key is found here, not at a request.
func New(cfg Config) (*Broker, error) {
	if cfg.Registry == nil {
		reg, err := integrations.Default()
		if err != nil {
			return nil, err
		}
		cfg.Registry = reg
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.UpstreamTimeout <= 0 {
		cfg.UpstreamTimeout = 10 * time.Second
	}
	b := &Broker{cfg: cfg}
	origin, err := parseOrigin(cfg.PublicURL)
	if err != nil {
		return nil, fmt.Errorf("broker: PublicURL: %w", err)
	}
	b.origin = origin
	for i, o := range cfg.ReturnOrigins {
		c, err := parseOrigin(o)
		if err != nil {
			return nil, fmt.Errorf("broker: ReturnOrigins[%d]: %w", i, err)
		}
		if c == b.origin {
			return nil, fmt.Errorf("broker: ReturnOrigins[%d] is the broker's own origin; it needs one of its own", i)
		}
	}
	if b.state, err = newKeyring("flow", cfg.StateKeys); err != nil {
		return nil, fmt.Errorf("broker: StateKeys: %w", err)
	}
	if b.wrap, err = newKeyring("wrap", cfg.WrapKeys); err != nil {
		return nil, fmt.Errorf("broker: WrapKeys: %w", err)
	}
	if b.tokens, err = newTokenChecker(cfg, b.origin); err != nil {
		return nil, fmt.Errorf("broker: InstanceKeys: %w", err)
	}
	for _, id := range cfg.Services {
		if cfg.Registry.Get(id) == nil {
			return nil, fmt.Errorf("broker: Services: there is no service %q in the registry", id)
		}
	}
	if cfg.Secrets == nil {
		return nil, errors.New("broker: Secrets is nil")
	}
	if b.upstream, err = newUpstream(cfg); err != nil {
		return nil, err
	}
	if b.registry, err = newRegistryPages(cfg); err != nil {
		return nil, err
	}
	if b.page, err = newPages(); err != nil {
		return nil, err
	}
	b.routes()
	return b, nil
}

func (b *Broker) routes() {
	b.mux = http.NewServeMux()
	b.mux.HandleFunc("GET /healthz", b.healthz)
	b.mux.Handle("/registry", b.registry)
	b.mux.Handle("/registry/{id}", b.registry)
	b.mux.HandleFunc("/api/oauth/config", b.config)
	b.mux.HandleFunc("/oauth/{service}/authorize", b.authorize)
	b.mux.HandleFunc("/oauth/{service}/callback", b.callback)
	b.mux.HandleFunc("/api/refresh", serveJSON(b, b.refresh))
	b.mux.HandleFunc("/api/revoke", serveJSON(b, b.revoke))
}

// ServeHTTP serves one request. Whatever goes wrong, it answers, and says nothing of why
// that could hold a secret.
func (b *Broker) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := b.cfg.Now()
	ctx := context.WithValue(r.Context(), noteKey{}, new(note))
	r = r.WithContext(ctx)
	rec := &recorder{ResponseWriter: w}
	defer func() {
		if v := recover(); v != nil {
			// The value could hold anything; its type tells where to look.
			b.cfg.Logger.Error("panic", "type", fmt.Sprintf("%T", v))
			if rec.status == 0 {
				clear(rec.Header())
				b.fail(rec, r, http.StatusInternalServerError, "internal")
			}
		}
		b.logRequest(ctx, rec, r, start)
	}()
	h := rec.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Pragma", "no-cache")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Strict-Transport-Security", "max-age=63072000")
	// One form of a path only: what a gateway decodes and what a router sees must be one.
	if r.URL.RawPath != "" || r.URL.Path == "" || path.Clean(r.URL.Path) != r.URL.Path || strings.ContainsFunc(r.URL.Path, func(c rune) bool { return c < 0x21 || c > 0x7e }) {
		b.fail(rec, r, http.StatusNotFound, "not_found")
		return
	}
	if _, pattern := b.mux.Handler(r); pattern == "" {
		b.fail(rec, r, http.StatusNotFound, "not_found")
		return
	}
	b.mux.ServeHTTP(rec, r)
}

func (b *Broker) healthz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	io.WriteString(w, "ok\n")
}

// service returns a service that has OAuth and may be offered, or nil.
func (b *Broker) service(id string) *integrations.Manifest {
	m := b.cfg.Registry.Get(id)
	if m == nil || m.Auth.OAuth == nil || b.cfg.Services != nil && !slices.Contains(b.cfg.Services, id) {
		return nil
	}
	return m
}

// redirectURI is the exact address that is registered at the provider.
func (b *Broker) redirectURI(service string) string {
	return b.origin + "/oauth/" + service + "/callback"
}

// hosts returns the hosts that a service's client secret may go to: what its operator wrote
// beside it, else those of the built-in registry, so that a changed manifest cannot send it
// elsewhere.
func allowedHosts(c Client, service string) []string {
	if len(c.Hosts) > 0 {
		return c.Hosts
	}
	reg, err := integrations.Default()
	if err != nil {
		return nil
	}
	m := reg.Get(service)
	if m == nil || m.Auth.OAuth == nil {
		return nil
	}
	var hosts []string
	o := m.Auth.OAuth
	urls := []string{o.TokenURL, o.RefreshURL}
	if o.Revoke != nil {
		urls = append(urls, o.Revoke.URL)
	}
	for _, s := range urls {
		if u, err := url.Parse(strings.ReplaceAll(strings.ReplaceAll(s, "{", ""), "}", "")); err == nil && u.Host != "" {
			hosts = append(hosts, u.Host)
		}
	}
	return hosts
}
