package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/elevenmessenger/connect/broker/internal/frame"
	"github.com/elevenmessenger/connect/integrations"
)

// maxBody bounds the body of a refresh or revocation.
const maxBody = 24 << 10

// A Class says what a failure means to whoever holds the pair.
type Class string

// The classes of failure.
const (
	Dead          Class = "dead"          // the provider ended it: reconnect
	Temporary     Class = "temporary"     // try again, not before RetryAfter
	Misconfigured Class = "misconfigured" // the operator's to mend; nothing is lost, unless it is Spent
)

// A RefreshError is a failure at a provider, or before it. It never holds anything that the
// provider wrote but a code from the manifest's own list.
type RefreshError struct {
	Class      Class
	Code       string        // from the manifest's lists, or one of our own; may be ""
	RetryAfter time.Duration // zero where the provider did not say
	Status     int           // the provider's; 0 where it did not answer

	// Spent says that the provider was asked and may have redeemed the token, and that what
	// it answered is lost.
	Spent bool
}

func (e *RefreshError) Error() string {
	s := "broker: " + string(e.Class)
	if e.Code != "" {
		s += " (" + e.Code + ")"
	}
	return s
}

// A refusal is a request that is turned away before anything is done.
type refusal struct {
	status int
	code   string
}

func (e *refusal) Error() string { return "broker: " + e.code }

// fail writes an error's JSON: its code, and nothing else.
func (b *Broker) fail(w http.ResponseWriter, r *http.Request, status int, code string) {
	noteOf(r.Context()).class = code
	frame.Fail(w, r, status, code)
}

// serveJSON is every JSON route: method, media type, no browser, the caller's token, a strict
// body, the call, its error. f gets the body as well, for what is bound to its digest.
func serveJSON[Req, Resp any](b *Broker, f func(ctx context.Context, claims *Claims, req *Req, body []byte) (Resp, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", "POST")
			b.fail(w, r, http.StatusMethodNotAllowed, "method")
			return
		}
		if mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mt != "application/json" {
			b.fail(w, r, http.StatusUnsupportedMediaType, "media_type")
			return
		}
		// Callers are programs. A page of another origin cannot set a JSON body without
		// asking first, and is not answered even then.
		if len(r.Header.Values("Origin")) > 0 {
			b.fail(w, r, http.StatusForbidden, "browser")
			return
		}
		claims, err := b.tokens.check(r)
		var off *clockError
		var failed *RefreshError
		switch {
		case errors.As(err, &failed): // over its limit
			noteOf(r.Context()).instance = claims.Issuer
			b.failClass(w, r, failed)
			return
		case errors.As(err, &off):
			b.failClock(w, r, off)
			return
		case err != nil:
			w.Header().Set("WWW-Authenticate", "Bearer")
			b.fail(w, r, http.StatusUnauthorized, "unauthorized")
			return
		}
		noteOf(r.Context()).instance = claims.Issuer
		body, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
		switch {
		case len(body) > maxBody:
			b.fail(w, r, http.StatusRequestEntityTooLarge, "too_large")
			return
		case err != nil:
			b.fail(w, r, http.StatusBadRequest, "malformed")
			return
		}
		req := new(Req)
		if err := json.Unmarshal(body, req, json.RejectUnknownMembers(true)); err != nil {
			b.fail(w, r, http.StatusBadRequest, "malformed")
			return
		}
		resp, err := f(r.Context(), claims, req, body)
		var refused *refusal
		switch {
		case err == nil:
			w.Header().Set("Content-Type", "application/json")
			json.MarshalWrite(w, resp)
		case errors.As(err, &refused):
			b.fail(w, r, refused.status, refused.code)
		case errors.As(err, &failed):
			b.failClass(w, r, failed)
		default:
			b.fail(w, r, http.StatusInternalServerError, "internal")
		}
	}
}

// failClock tells whoever has shown the right key that the clocks differ: off_s is how many
// seconds the caller's is ahead.
func (b *Broker) failClock(w http.ResponseWriter, r *http.Request, e *clockError) {
	noteOf(r.Context()).class = "clock"
	w.Header().Set("WWW-Authenticate", `DPoP error="invalid_dpop_proof"`)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusUnauthorized)
	fmt.Fprintf(w, "{\"error\":\"clock\",\"off_s\":%d}\n", int64(e.off/time.Second))
}

// failClass answers what a provider's failure means: 409 dead, 502 misconfigured, 503
// temporary, 429 where it is a limit.
func (b *Broker) failClass(w http.ResponseWriter, r *http.Request, e *RefreshError) {
	n := noteOf(r.Context())
	n.class, n.code, n.upstream = string(e.Class), e.Code, e.Status
	status := http.StatusServiceUnavailable
	switch {
	case e.Class == Dead:
		status = http.StatusConflict
	case e.Class == Misconfigured:
		status = http.StatusBadGateway
	case e.Code == "rate_limited" || e.Code == "too_many":
		// Not 503: whoever sees a provider's or our own limit as an outage tries sooner.
		status = http.StatusTooManyRequests
	}
	out := struct {
		Class      Class  `json:"class"`
		Code       string `json:"code,omitempty"`
		RetryAfter int64  `json:"retry_after,omitempty"`
		Spent      bool   `json:"spent,omitzero"`
	}{e.Class, e.Code, int64((e.RetryAfter + time.Second - 1) / time.Second), e.Spent}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	if out.RetryAfter > 0 {
		h.Set("Retry-After", fmt.Sprint(out.RetryAfter))
	}
	w.WriteHeader(status)
	json.MarshalWrite(w, out)
}

// A note collects what the one log line of a request may say. The fields are a closed list:
// no path, query, header, body or address, and no error of net/http or url.
type note struct {
	service, class, code, instance string
	upstream                       int
	access                         integrations.Access
}

type noteKey struct{}

func noteOf(ctx context.Context) *note {
	if n, ok := ctx.Value(noteKey{}).(*note); ok {
		return n
	}
	return new(note)
}

// line is what the log says of a request, beside its route, status and duration.
func (b *Broker) line(r *http.Request, class string) []slog.Attr {
	n := noteOf(r.Context())
	if n.class == "" {
		n.class = class
	}
	return []slog.Attr{slog.String("service", n.service), slog.String("access", string(n.access)), slog.String("class", n.class), slog.String("code", n.code),
		slog.Int("upstream", n.upstream), slog.String("instance", n.instance)}
}
