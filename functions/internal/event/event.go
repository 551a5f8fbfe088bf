// Package event serves an http.Handler from the events of API Gateway (payload 2.0 and 1.0,
// HTTP and REST APIs), function URLs and load balancers.
//
// The libraries that do this lose cookies, split headers at commas, decode a path once more,
// or hand a panic's text to the caller. Everything here is in the service of two rules: the
// handler sees one form of a request, whichever gateway it came through, and the gateway's
// caller sees nothing of what went wrong.
package event

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"runtime"
	"slices"
	"strings"
)

// maxBody bounds a request's body, decoded: nothing here takes more than half of it.
const maxBody = 64 << 10

// A Handler answers events. It is a lambda.Handler of aws-lambda-go, whose error is always
// nil: the runtime would print it.
type Handler struct {
	HTTP   http.Handler
	Logger *slog.Logger // gets a panic's type; nil discards it
}

// Info is what the gateway says of a request, for logs only: nothing is decided by it.
type Info struct {
	RequestID, Address, Stage, Domain string
}

type infoKey struct{}

// InfoOf returns what the gateway said of the request whose context ctx is.
func InfoOf(ctx context.Context) Info {
	i, _ := ctx.Value(infoKey{}).(Info)
	return i
}

// Invoke answers one event. Nothing that it began runs on after it: the process is frozen
// then, and would go on in the middle of it with the next event.
func (h Handler) Invoke(ctx context.Context, payload []byte) ([]byte, error) {
	var e event
	if json.Unmarshal(payload, &e) != nil {
		return refuse(kindUnknown, http.StatusBadRequest, "malformed"), nil
	}
	kind := e.kind()
	if kind == kindUnknown {
		return refuse(kind, http.StatusBadRequest, "malformed"), nil
	}
	r, err := e.request(ctx, kind)
	switch {
	case errors.Is(err, errTooLarge):
		return refuse(kind, http.StatusRequestEntityTooLarge, "too_large"), nil
	case err != nil:
		return refuse(kind, http.StatusBadRequest, "malformed"), nil
	}
	w := &writer{header: make(http.Header)}
	if !h.serve(w, r) {
		return refuse(kind, http.StatusInternalServerError, "internal"), nil
	}
	return w.encode(kind, r.Method == http.MethodHead), nil
}

// serve says whether the handler came to its end. The value of a panic could hold anything;
// its type, and the function it came from, tell where to look.
func (h Handler) serve(w *writer, r *http.Request) (done bool) {
	defer func() {
		v := recover()
		if v == nil || v == http.ErrAbortHandler || h.Logger == nil {
			return // ErrAbortHandler: whoever panics with it has said what there is to say
		}
		h.Logger.ErrorContext(r.Context(), "panic", "type", fmt.Sprintf("%T", v), "in", panicked())
	}()
	h.HTTP.ServeHTTP(w, r)
	return true
}

// panicked names the function that panicked, from the deferred function that recovered.
func panicked() string {
	pc := make([]uintptr, 16)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	seen := false
	for {
		f, more := frames.Next()
		if seen && !strings.HasPrefix(f.Function, "runtime.") {
			return f.Function
		}
		seen = seen || f.Function == "runtime.gopanic"
		if !more {
			return ""
		}
	}
}

// A kind is a shape of event, and of its answer.
type kind int

const (
	kindUnknown   kind = iota
	kindV2             // payload 2.0: HTTP APIs and function URLs
	kindV1             // payload 1.0 of an HTTP API
	kindREST           // a REST API: like 1.0, its path never holds the stage
	kindALB            // a target group with multi-value headers
	kindALBSingle      // a target group without
)

// An event holds the fields of all kinds that are looked at.
type event struct {
	Version        string `json:"version"`
	RequestContext struct {
		RequestID  string          `json:"requestId"`
		DomainName string          `json:"domainName"`
		Stage      string          `json:"stage"`
		ELB        json.RawMessage `json:"elb"`
		HTTP       *struct {
			Method   string `json:"method"`
			SourceIP string `json:"sourceIp"`
		} `json:"http"`
		Identity *struct {
			SourceIP string `json:"sourceIp"`
		} `json:"identity"`
	} `json:"requestContext"`

	RawPath        string   `json:"rawPath"`
	RawQueryString string   `json:"rawQueryString"`
	Cookies        []string `json:"cookies"`

	HTTPMethod   string              `json:"httpMethod"`
	Path         string              `json:"path"`
	Query        map[string]string   `json:"queryStringParameters"`
	MultiQuery   map[string][]string `json:"multiValueQueryStringParameters"`
	Headers      map[string]string   `json:"headers"`
	MultiHeaders map[string][]string `json:"multiValueHeaders"`

	Body     string `json:"body"`
	IsBase64 bool   `json:"isBase64Encoded"`
}

// kind tells the kinds apart by the fields that each alone has.
func (e *event) kind() kind {
	c := &e.RequestContext
	elb := len(c.ELB) > 0 && string(c.ELB) != "null"
	switch {
	case e.Version == "2.0" && c.HTTP != nil && !elb && e.HTTPMethod == "":
		return kindV2
	case c.HTTP != nil || e.HTTPMethod == "":
		return kindUnknown
	case elb && e.Version == "" && e.MultiHeaders != nil:
		return kindALB
	case elb && e.Version == "":
		return kindALBSingle
	case e.Version == "1.0" && c.Stage != "" && !elb:
		return kindV1
	case e.Version == "" && c.Stage != "" && c.Identity != nil && !elb:
		return kindREST
	}
	return kindUnknown
}

var (
	errMalformed = errors.New("event: malformed")
	errTooLarge  = errors.New("event: the body is too large")
)

func (e *event) request(ctx context.Context, k kind) (*http.Request, error) {
	c := &e.RequestContext
	info := Info{RequestID: c.RequestID, Stage: c.Stage, Domain: c.DomainName}
	method, path, query := e.HTTPMethod, e.Path, ""
	switch k {
	case kindV2:
		method, path, query = c.HTTP.Method, e.RawPath, e.RawQueryString
		info.Address = c.HTTP.SourceIP
	case kindV1, kindREST:
		query = e.query(url.QueryEscape) // the values come decoded
	default:
		query = e.query(stillEncoded)
	}
	if c.Identity != nil {
		info.Address = c.Identity.SourceIP
	}
	if k == kindV2 || k == kindV1 {
		path = cutStage(path, c.Stage)
	}
	if !isMethod(method) {
		return nil, errMalformed
	}
	body := []byte(e.Body)
	if e.IsBase64 {
		if base64.StdEncoding.DecodedLen(len(e.Body)) > maxBody+3 {
			return nil, errTooLarge
		}
		var err error
		if body, err = base64.StdEncoding.Strict().DecodeString(e.Body); err != nil {
			return nil, errMalformed
		}
	}
	if len(body) > maxBody {
		return nil, errTooLarge
	}
	r := &http.Request{
		Method: method,
		// As it stands: it may have been decoded already, and parsing or decoding it again
		// would make another path, or a query, of it.
		URL:   &url.URL{Path: path, RawQuery: query},
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: e.header(k), Host: c.DomainName, Body: http.NoBody, ContentLength: int64(len(body)),
	}
	if len(body) > 0 {
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host") // behind a load balancer
	}
	r.Header.Del("Host")
	r.Header.Del("Content-Length")
	return r.WithContext(context.WithValue(ctx, infoKey{}, info)), nil
}

// cutStage takes a named stage off a path, where it is a whole segment: /prod is not the
// head of /production.
func cutStage(path, stage string) string {
	if stage == "" || stage == "$default" {
		return path
	}
	rest, ok := strings.CutPrefix(path, "/"+stage)
	switch {
	case ok && rest == "":
		return "/"
	case ok && rest[0] == '/':
		return rest
	}
	return path
}

// query writes a query from the maps of payload 1.0 and of load balancers. The order of
// different names is lost before it gets here; they are sorted.
func (e *event) query(encode func(string) string) string {
	multi := e.MultiQuery
	if multi == nil {
		multi = make(map[string][]string, len(e.Query))
		for k, v := range e.Query {
			multi[k] = []string{v}
		}
	}
	var b strings.Builder
	for _, k := range sorted(multi) {
		for _, v := range multi[k] {
			if b.Len() > 0 {
				b.WriteByte('&')
			}
			b.WriteString(encode(k) + "=" + encode(v))
		}
	}
	return b.String()
}

// stillEncoded is for what a load balancer hands over as it was sent. What cannot stand in
// one name or value cannot come from there; it is kept from becoming another parameter.
func stillEncoded(s string) string {
	return strings.NewReplacer("&", "%26", "#", "%23", ";", "%3B").Replace(s)
}

func (e *event) header(k kind) http.Header {
	h := make(http.Header, len(e.Headers)+1)
	if k != kindV2 && e.MultiHeaders != nil {
		for _, name := range sorted(e.MultiHeaders) {
			for _, v := range e.MultiHeaders[name] {
				h.Add(name, v)
			}
		}
	} else {
		// Payload 2.0 has joined what came several times with commas. It stays one value: a
		// comma may as well be the value's own.
		for _, name := range sorted(e.Headers) {
			h.Set(name, e.Headers[name])
		}
	}
	cookies := h["Cookie"]
	if len(e.Cookies) > 0 && k == kindV2 { // function URLs send both
		cookies = e.Cookies
	}
	if len(cookies) > 0 {
		h.Set("Cookie", strings.Join(cookies, "; "))
	}
	return h
}

func isMethod(s string) bool {
	return len(s) > 0 && len(s) <= 16 && strings.Trim(s, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

func sorted[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for n := range m {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}
