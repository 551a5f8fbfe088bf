package public

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strconv"
	"strings"
)

// A Body is one JSON text with what a compressor made of it, once.
type Body struct{ JSON, Gzip, Brotli []byte }

// Registry serves GET /registry and /registry/{id}.
type Registry struct {
	whole    resource
	services map[string]*resource
}

// NewRegistry makes a Registry of the whole and of each service by its id.
func NewRegistry(whole Body, services map[string]Body) *Registry {
	p := &Registry{whole: newResource(whole), services: make(map[string]*resource, len(services))}
	for id, b := range services {
		r := newResource(b)
		p.services[id] = &r
	}
	return p
}

// A resource is one body in the encodings that a client may ask for.
type resource struct {
	encodings [3]encoded // br, gzip, identity
}

type encoded struct {
	name   string // "" for identity
	etag   []string
	body   []byte
	length []string
}

func newResource(b Body) (r resource) {
	for i, e := range []encoded{{name: "br", body: b.Brotli}, {name: "gzip", body: b.Gzip}, {body: b.JSON}} {
		sum := sha256.Sum256(e.body)
		e.etag = []string{`"` + base64.RawURLEncoding.EncodeToString(sum[:18]) + `"`}
		e.length = []string{strconv.Itoa(len(e.body))}
		r.encodings[i] = e
	}
	return r
}

// Header values that never change are shared: this route is the one that is called most.
var (
	jsonType      = []string{"application/json"}
	registryCache = []string{"public, max-age=300, stale-while-revalidate=86400"}
	varyEncoding  = []string{"Accept-Encoding"}
	anyOrigin     = []string{"*"}
	encodingNames = map[string][]string{"br": {"br"}, "gzip": {"gzip"}}
)

func (p *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Access-Control-Allow-Origin"] = anyOrigin
	res := &p.whole
	if id := r.PathValue("id"); id != "" {
		if res = p.services[id]; res == nil {
			h["Content-Type"] = jsonType
			w.WriteHeader(http.StatusNotFound)
			if r.Method != http.MethodHead {
				w.Write([]byte("{\"error\":\"no_such_service\"}\n"))
			}
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
		h["Content-Type"] = jsonType
		w.WriteHeader(http.StatusMethodNotAllowed)
		w.Write([]byte("{\"error\":\"method\"}\n"))
		return
	}
	e := &res.encodings[choose(r.Header["Accept-Encoding"])]
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
	if e.name != "" {
		h["Content-Encoding"] = encodingNames[e.name]
	}
	h["Content-Length"] = e.length
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		w.Write(e.body)
	}
}

// choose returns the index of the encoding to send: the smallest that the client takes.
func choose(accept []string) int {
	best := 2
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
				return 0
			case strings.EqualFold(name, "gzip"):
				best = 1
			}
		}
	}
	return best
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
