package public

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/elevenmessenger/connect/broker/internal/frame"
)

// Offers answers GET /api/oauth/config?service=: public data only.
type Offers struct {
	// Known says whether the registry has a service.
	Known func(service string) bool
	// Configured says whether a connection to a known service can start here.
	Configured func(ctx context.Context, service string) bool
	// Apps are the public names of apps by service.
	Apps map[string]string
}

func (o *Offers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Access-Control-Allow-Origin", "*")
	switch r.Method {
	case http.MethodGet, http.MethodHead:
	case http.MethodOptions:
		h.Set("Access-Control-Allow-Methods", "GET")
		w.WriteHeader(http.StatusNoContent)
		return
	default:
		h.Set("Allow", "GET, HEAD, OPTIONS")
		frame.Fail(w, r, http.StatusMethodNotAllowed, "method")
		return
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	ids := q["service"]
	if err != nil || len(ids) != 1 || !o.Known(ids[0]) {
		frame.Fail(w, r, http.StatusNotFound, "no_such_service")
		return
	}
	out := struct {
		Service    string `json:"service"`
		Configured bool   `json:"configured"`
		App        string `json:"app,omitempty"`
	}{ids[0], o.Configured(r.Context(), ids[0]), o.Apps[ids[0]]}
	h.Set("Content-Type", "application/json")
	if r.Method != http.MethodHead {
		json.NewEncoder(w).Encode(out)
	}
}
