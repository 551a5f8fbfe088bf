package public

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/elevenmessenger/connect/broker/internal/frame"
)

// A Body is one JSON text, as it is and as compressors made it. Each function is called when
// somebody first asks for its form, and never again.
type Body struct{ JSON, Gzip, Brotli func() []byte }

// Registry serves GET /registry and /registry/{id}.
type Registry struct {
	whole    *resource
	services map[string]*resource
}

// NewRegistry makes a Registry of the whole and of each service by its id.
func NewRegistry(whole Body, services map[string]Body) *Registry {
	p := &Registry{whole: newResource(whole), services: make(map[string]*resource, len(services))}
	for id, b := range services {
		p.services[id] = newResource(b)
	}
	return p
}

// A resource is one body in the encodings that a client may ask for.
type resource struct{ br, gzip, identity func() *encoded }

type encoded struct {
	name   []string // nil for identity
	etag   []string
	body   []byte
	length []string
}

func newResource(b Body) *resource {
	return &resource{br: encode("br", b.Brotli), gzip: encode("gzip", b.Gzip), identity: encode("", b.JSON)}
}

func encode(name string, body func() []byte) func() *encoded {
	return sync.OnceValue(func() *encoded {
		b := body()
		sum := sha256.Sum256(b)
		e := &encoded{etag: []string{`"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`}, body: b, length: []string{strconv.Itoa(len(b))}}
		if name != "" {
			e.name = []string{name}
		}
		return e
	})
}

// Header values that never change are shared: this route is the one that is called most.
var (
	jsonType      = []string{"application/json"}
	registryCache = []string{"public, max-age=300, stale-while-revalidate=86400"}
	varyEncoding  = []string{"Accept-Encoding"}
	anyOrigin     = []string{"*"}
)

func (p *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Access-Control-Allow-Origin"] = anyOrigin
	res := p.whole
	if id := r.PathValue("id"); id != "" {
		if res = p.services[id]; res == nil {
			frame.Fail(w, r, http.StatusNotFound, "no_such_service")
			return
		}
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		h.Set("Access-Control-Allow-Methods", "GET")
		h.Set("Access-Control-Max-Age", "86400")
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		h.Set("Allow", "GET, HEAD, OPTIONS")
		frame.Fail(w, r, http.StatusMethodNotAllowed, "method")
		return
	}
	e := res.choose(r.Header["Accept-Encoding"])
	delete(h, "Pragma")
	h["Cache-Control"] = registryCache
	h["Vary"] = varyEncoding
	h["Etag"] = e.etag
	// net/http drops it from a 304; a gateway would put its own there, for a cache to keep.
	h["Content-Type"] = jsonType
	if matches(r.Header["If-None-Match"], e.etag[0]) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	if e.name != nil {
		h["Content-Encoding"] = e.name
	}
	h["Content-Length"] = e.length
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		w.Write(e.body)
	}
}

// choose returns the encoding to send: the smallest that the client takes.
func (res *resource) choose(accept []string) *encoded {
	gzipped := false
	for _, h := range accept {
		for len(h) > 0 {
			var item string
			item, h, _ = strings.Cut(h, ",")
			name, q, _ := strings.Cut(strings.TrimSpace(item), ";")
			name = strings.TrimSpace(name)
			if q = strings.ReplaceAll(q, " ", ""); strings.HasPrefix(q, "q=0") && strings.Trim(q[3:], ".0") == "" {
				continue
			}
			switch {
			case strings.EqualFold(name, "br"):
				return res.br()
			case strings.EqualFold(name, "gzip"):
				gzipped = true
			}
		}
	}
	if gzipped {
		return res.gzip()
	}
	return res.identity()
}

// matches compares entity tags weakly, as If-None-Match does (RFC 9110, section 13.1.2).
func matches(headers []string, etag string) bool {
	for _, h := range headers {
		for len(h) > 0 {
			var item string
			item, h, _ = strings.Cut(h, ",")
			item = strings.TrimPrefix(strings.TrimSpace(item), "W/")
			if item == etag || item == "*" {
				return true
			}
		}
	}
	return false
}
