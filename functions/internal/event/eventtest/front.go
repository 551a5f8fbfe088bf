package eventtest

import (
	"io"
	"net/http"
)

// Front is a gateway: it turns requests into events of a kind, invokes, and sends what the
// answers say. An answer that a gateway would not take is 502, as there.
func Front(kind string, invoke func(r *http.Request, event []byte) ([]byte, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		out, err := invoke(r, Event(kind, Request{Method: r.Method, Target: r.RequestURI, Header: r.Header, Body: body}))
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		resp, err := Parse(kind, out)
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.Status)
		w.Write(resp.Body)
	})
}
