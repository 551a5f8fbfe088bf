package broker

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/andybalholm/brotli"
)

// registryPages serves GET /registry and /registry/{id}: bytes that are made once, at start.
type registryPages struct {
	whole    *resource
	services map[string]*resource
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

func newRegistryPages(cfg Config) (*registryPages, error) {
	p := &registryPages{services: make(map[string]*resource)}
	all := struct {
		AsOf     string            `json:"as_of,omitempty"`
		Services []json.RawMessage `json:"services"`
	}{}
	if !cfg.AsOf.IsZero() {
		all.AsOf = cfg.AsOf.UTC().Format(time.RFC3339)
	}
	for _, m := range cfg.Registry.All() {
		var b bytes.Buffer
		if err := json.Compact(&b, m.Raw()); err != nil {
			return nil, err
		}
		all.Services = append(all.Services, json.RawMessage(b.Bytes()))
		p.services[m.ID] = newResource(b.Bytes())
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(all); err != nil {
		return nil, err
	}
	p.whole = newResource(b.Bytes())
	return p, nil
}

func newResource(body []byte) *resource {
	var br, gz bytes.Buffer
	w := brotli.NewWriterLevel(&br, brotli.BestCompression)
	w.Write(body)
	w.Close()
	z, _ := gzip.NewWriterLevel(&gz, gzip.BestCompression)
	z.Write(body)
	z.Close()
	r := &resource{}
	for i, e := range []encoded{{name: "br", body: br.Bytes()}, {name: "gzip", body: gz.Bytes()}, {body: body}} {
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

func (p *registryPages) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h["Access-Control-Allow-Origin"] = anyOrigin
	res := p.whole
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
	if matches(r.Header["If-None-Match"], e.etag[0]) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h["Content-Type"] = jsonType
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
