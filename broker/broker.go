package broker

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/broker/internal/frame"
	"github.com/elevenmessenger/connect/broker/public"
	"github.com/elevenmessenger/connect/integrations"
)

// A Config says what a broker is. New checks all of it.
type Config struct {
	// Registry holds the services; nil means the one that is built in, but for NewOAuth and
	// NewRefresh, which link no loader and want one.
	Registry Catalog
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
	// StateKeySource and WrapKeySource stand in for the lists where keys come from a store.
	StateKeySource, WrapKeySource KeySource
	// InstanceKeys check the tokens of POST /api/refresh and /api/revoke.
	InstanceKeys []InstanceKey
	// InstanceRate is how many calls a second one instance may make of this process, a
	// minute's worth at once; zero means 10, a negative number no limit.
	InstanceRate int
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
	// Stack names this broker in Metrics, where several write to one place; "" leaves it out.
	Stack string
	// Now is the clock; nil means time.Now.
	Now func() time.Time

	resolver *net.Resolver // for a test of names that change; nil means net.DefaultResolver
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
	page     *pages
	spent    spent
	frame    frame.Handler
}

// A Catalog holds services that were loaded and checked. *integrations.Registry is one.
type Catalog interface {
	// Get returns a service, or nil.
	Get(id string) *integrations.Manifest
	// All returns the services in the order of their ids.
	All() []*integrations.Manifest
}

// New checks cfg and makes a broker of it that serves every route: a bad key is found here,
// not at a request.
func New(cfg Config) (*Broker, error) {
	if cfg.Registry == nil {
		reg, err := integrations.Default()
		if err != nil {
			return nil, err
		}
		cfg.Registry = reg
	}
	b, err := newBroker(cfg)
	if err != nil {
		return nil, err
	}
	if err := b.oauthRoutes(); err != nil {
		return nil, err
	}
	if err := b.refreshRoutes(); err != nil {
		return nil, err
	}
	return b, b.publicRoutes()
}

// NewOAuth makes a broker that serves /oauth/{service}/authorize and …/callback alone, and
// needs no instance keys.
func NewOAuth(cfg Config) (*Broker, error) {
	b, err := newBroker(cfg)
	if err != nil {
		return nil, err
	}
	return b, b.oauthRoutes()
}

// NewRefresh makes a broker that serves /api/refresh and /api/revoke alone, and needs no
// state keys.
func NewRefresh(cfg Config) (*Broker, error) {
	b, err := newBroker(cfg)
	if err != nil {
		return nil, err
	}
	return b, b.refreshRoutes()
}

// newBroker makes what all routes need, and no route but GET /healthz.
func newBroker(cfg Config) (*Broker, error) {
	if cfg.Registry == nil {
		return nil, errors.New("broker: Registry is nil")
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
	if b.wrap, err = newKeyring("wrap", cfg.WrapKeys, cfg.WrapKeySource, cfg.Now); err != nil {
		return nil, fmt.Errorf("broker: WrapKeys: %w", err)
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
	b.frame = frame.Handler{Mux: http.NewServeMux(), Logger: cfg.Logger, Now: cfg.Now, Fail: b.fail, Line: b.line,
		Begin: func(r *http.Request) *http.Request {
			if strings.HasPrefix(r.URL.Path, "/registry") {
				return r // notes nothing, and is asked most
			}
			return r.WithContext(context.WithValue(r.Context(), noteKey{}, new(note)))
		}}
	b.frame.Mux.HandleFunc("GET /healthz", frame.Health)
	return b, nil
}

func (b *Broker) oauthRoutes() (err error) {
	for i, o := range b.cfg.ReturnOrigins {
		c, err := parseOrigin(o)
		if err != nil {
			return fmt.Errorf("broker: ReturnOrigins[%d]: %w", i, err)
		}
		if c == b.origin {
			return fmt.Errorf("broker: ReturnOrigins[%d] is the broker's own origin; it needs one of its own", i)
		}
	}
	if b.state, err = newKeyring("flow", b.cfg.StateKeys, b.cfg.StateKeySource, b.cfg.Now); err != nil {
		return fmt.Errorf("broker: StateKeys: %w", err)
	}
	if b.page, err = newPages(); err != nil {
		return err
	}
	b.frame.Mux.HandleFunc("/oauth/{service}/authorize", b.authorize)
	b.frame.Mux.HandleFunc("/oauth/{service}/callback", b.callback)
	return nil
}

func (b *Broker) refreshRoutes() (err error) {
	if b.tokens, err = newTokenChecker(b.cfg, b.origin); err != nil {
		return fmt.Errorf("broker: InstanceKeys: %w", err)
	}
	b.frame.Mux.HandleFunc("/api/refresh", serveJSON(b, b.refresh))
	b.frame.Mux.HandleFunc("/api/revoke", serveJSON(b, b.revoke))
	return nil
}

func (b *Broker) publicRoutes() error {
	// The compressors take a quarter of a second: whoever asks first waits, not every start.
	made := sync.OnceValues(func() (*public.Registry, error) {
		whole, byID, err := RegistryBodies(b.cfg.Registry.All(), b.cfg.AsOf)
		return public.NewRegistry(whole, byID), err
	})
	registry := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, err := made()
		if err != nil {
			b.fail(w, r, http.StatusInternalServerError, "internal")
			return
		}
		h.ServeHTTP(w, r)
	})
	b.frame.Mux.Handle("/registry", registry)
	b.frame.Mux.Handle("/registry/{id}", registry)
	b.frame.Mux.Handle("/api/oauth/config", &public.Offers{
		Known: func(id string) bool { return b.cfg.Registry.Get(id) != nil },
		Configured: func(ctx context.Context, id string) bool {
			noteOf(ctx).service = id
			m := b.service(id)
			if m == nil {
				return false
			}
			_, err := b.offered(ctx, m) // what the consent page asks too
			return err == nil
		},
		Apps: b.cfg.Apps,
	})
	return nil
}

// ServeHTTP serves one request. Whatever goes wrong, it answers, and says nothing of why
// that could hold a secret.
func (b *Broker) ServeHTTP(w http.ResponseWriter, r *http.Request) { b.frame.ServeHTTP(w, r) }

// service returns a service that has OAuth and may be offered, or nil.
func (b *Broker) service(id string) *integrations.Manifest {
	m := b.cfg.Registry.Get(id)
	if m == nil || m.Auth.OAuth == nil || b.cfg.Services != nil && !slices.Contains(b.cfg.Services, id) {
		return nil
	}
	return m
}

// RedirectURI is the exact address that is registered at a service's provider.
func (b *Broker) RedirectURI(service string) string {
	return b.origin + "/oauth/" + service + "/callback"
}
