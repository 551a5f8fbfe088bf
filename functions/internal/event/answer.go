package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A writer collects an answer. Its headers are those at the first write, as net/http's are.
type writer struct {
	header http.Header
	sent   http.Header // a copy of header; nil before the first write
	status int
	body   bytes.Buffer
}

func (w *writer) Header() http.Header { return w.header }

func (w *writer) WriteHeader(status int) {
	if w.sent != nil || status < 200 || status > 999 { // an interim answer has no way out
		return
	}
	w.status, w.sent = status, maps.Clone(w.header)
	for k, v := range w.sent {
		w.sent[k] = append([]string(nil), v...)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if !hasBody(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	return w.body.Write(p)
}

func hasBody(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

// An answer has the fields of all kinds. A load balancer, and an API with payload 1.0, take
// several values of one header only from multiValueHeaders.
type answer struct {
	StatusCode        int                 `json:"statusCode"`
	StatusDescription string              `json:"statusDescription,omitempty"`
	Headers           map[string]string   `json:"headers,omitempty"`
	MultiValueHeaders map[string][]string `json:"multiValueHeaders,omitempty"`
	Cookies           []string            `json:"cookies,omitempty"`
	Body              string              `json:"body"`
	IsBase64Encoded   bool                `json:"isBase64Encoded"`
}

func (w *writer) encode(k kind, head bool) []byte {
	w.WriteHeader(http.StatusOK) // a handler that says nothing says 200
	h, body := w.sent, w.body.Bytes()
	// These are between the gateway and its caller.
	for _, name := range []string{"Content-Length", "Transfer-Encoding", "Connection", "Keep-Alive", "Trailer"} {
		h.Del(name)
	}
	encoded := h.Get("Content-Encoding") != ""
	if h.Get("Content-Type") == "" { // else the gateway makes JSON of it
		switch {
		case encoded:
			h.Set("Content-Type", "application/octet-stream")
		case len(body) == 0:
			h.Set("Content-Type", "text/plain; charset=utf-8")
		default:
			h.Set("Content-Type", http.DetectContentType(body))
		}
	}
	if head {
		body = nil
	}
	a := answer{StatusCode: w.status, Body: string(body)}
	if len(body) > 0 && (encoded || !utf8.Valid(body)) {
		a.Body, a.IsBase64Encoded = base64.StdEncoding.EncodeToString(body), true
	}
	return a.encode(k, h)
}

func (a *answer) encode(k kind, h http.Header) []byte {
	switch k {
	case kindV1, kindREST, kindALB:
		a.MultiValueHeaders = h
	case kindALBSingle:
		a.Headers = make(map[string]string, len(h))
		for name, values := range h {
			if name != "Set-Cookie" {
				a.Headers[name] = strings.Join(values, ", ")
				continue
			}
			for i, v := range values {
				a.Headers[spelling("set-cookie", i)] = v
			}
		}
	default:
		a.Headers = make(map[string]string, len(h))
		for name, values := range h {
			if name == "Set-Cookie" {
				a.Cookies = values
			} else {
				a.Headers[name] = strings.Join(values, ", ")
			}
		}
	}
	if k == kindALB || k == kindALBSingle {
		a.StatusDescription = strings.TrimSpace(strconv.Itoa(a.StatusCode) + " " + http.StatusText(a.StatusCode))
	}
	out, err := json.Marshal(a)
	if err != nil { // it cannot: strings and numbers
		return []byte(`{"statusCode":500,"body":"{\"error\":\"internal\"}\n","isBase64Encoded":false}`)
	}
	return out
}

// spelling returns name with other letters in upper case for each n: names that differ by
// case are one header to HTTP and several to a JSON object, and a target group without
// multi-value headers has no other way to set two cookies.
func spelling(name string, n int) string {
	b := []byte(name)
	for i, c := range b {
		if c < 'a' || c > 'z' {
			continue
		}
		if n&1 == 1 {
			b[i] = c - 'a' + 'A'
		}
		n >>= 1
	}
	return string(b)
}

// refuse answers without the handler, and without a word of what came.
func refuse(k kind, status int, code string) []byte {
	a := answer{StatusCode: status, Body: "{\"error\":" + strconv.Quote(code) + "}\n"}
	return a.encode(k, http.Header{
		"Content-Type": {"application/json"}, "Cache-Control": {"no-store"}, "X-Content-Type-Options": {"nosniff"},
	})
}
