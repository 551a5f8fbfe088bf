// Package public serves what a broker tells anyone: the registry, and whether a service can
// be connected here. It needs no key, no secret and no network, and imports neither the
// manifest language nor a compressor, so that a function that serves nothing else is hardly
// larger, and starts hardly later, than one that says hello.
package public

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/elevenmessenger/connect/broker/internal/frame"
)

// A Config says what to serve: a route whose part is nil is not served.
type Config struct {
	Registry *Registry    // GET /registry, GET /registry/{id}
	Offers   *Offers      // GET /api/oauth/config
	Logger   *slog.Logger // gets one line a request; nil discards them
	Now      func() time.Time
}

// New makes a handler of cfg, with GET /healthz.
func New(cfg Config) http.Handler {
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", frame.Health)
	if cfg.Registry != nil {
		mux.Handle("/registry", cfg.Registry)
		mux.Handle("/registry/{id}", cfg.Registry)
	}
	if cfg.Offers != nil {
		mux.Handle("/api/oauth/config", cfg.Offers)
	}
	return &frame.Handler{Mux: mux, Logger: cfg.Logger, Now: cfg.Now, Fail: frame.Fail}
}
