// Package start is how the functions begin.
package start

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"sync"

	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"

	"github.com/elevenmessenger/connect/functions/internal/event"
)

// Logger writes JSON lines with the request's id to standard output.
func Logger() *slog.Logger { return lambdacontext.NewLogger() }

// Serve answers events with h until the process ends. An error says why there is no h: it is
// logged, and the process ends, so that the operator sees it at the first deploy.
func Serve(h http.Handler, err error) {
	if err != nil {
		refuse(os.Stderr, err)
		os.Exit(1)
	}
	lambda.Start(event.Handler{HTTP: h, Logger: Logger()})
}

func refuse(w io.Writer, err error) {
	slog.New(slog.NewJSONHandler(w, nil)).Error("the function does not start", "why", err.Error())
}

// PerOrigin serves with what make makes of the broker's own origin: the one that is
// configured, else the gateway's own name, which is known only from a request. That name is
// set by the gateway, not by its caller; anything but a name that Amazon gives is refused.
func PerOrigin(configured string, logger *slog.Logger, make func(origin string) (http.Handler, error)) (http.Handler, error) {
	if configured != "" {
		return make(configured)
	}
	// Whatever else is wrong shows now, not at the first request.
	if _, err := make("https://example.com"); err != nil {
		return nil, err
	}
	return &perOrigin{logger: logger, make: make}, nil
}

type perOrigin struct {
	logger *slog.Logger
	make   func(origin string) (http.Handler, error)

	mu   sync.Mutex
	name string
	h    http.Handler
}

// isGatewayName says whether a name is one that Amazon gives: <id>.execute-api.<region>.amazonaws.com,
// with .cn in China, or <id>.lambda-url.<region>.on.aws. It is code, so that a function links
// no compiler of patterns.
func isGatewayName(s string) bool {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	id, rest, _ := strings.Cut(s, ".")
	kind, rest, _ := strings.Cut(rest, ".")
	region, domain, _ := strings.Cut(rest, ".")
	if id == "" || strings.Trim(id, letters) != "" || region == "" || strings.Trim(region, letters+"-") != "" {
		return false
	}
	return kind == "execute-api" && (domain == "amazonaws.com" || domain == "amazonaws.com.cn") || kind == "lambda-url" && domain == "on.aws"
}

func (p *perOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := p.of(r.Context(), event.InfoOf(r.Context()).Domain)
	if h == nil {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		w.WriteHeader(http.StatusInternalServerError)
		io.WriteString(w, "{\"error\":\"internal\"}\n")
		return
	}
	h.ServeHTTP(w, r)
}

// of returns the handler for a name. A function has one gateway: one is kept.
func (p *perOrigin) of(ctx context.Context, name string) http.Handler {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.h != nil && p.name == name {
		return p.h
	}
	if !isGatewayName(name) {
		p.logger.ErrorContext(ctx, "CONNECT_PUBLIC_URL is not set, and the request came by a name of the operator's own, or by none")
		return nil
	}
	h, err := p.make("https://" + name)
	if err != nil {
		p.logger.ErrorContext(ctx, "no broker", "why", err.Error())
		return nil
	}
	p.name, p.h = name, h
	return h
}
