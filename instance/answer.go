package instance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/custody"
)

// The bounds of a request.
const (
	maxBody     = custody.MaxMessage + 2048 // a message and what stands beside it
	readTimeout = 30 * time.Second          // for the body
)

// A refusal is a request that is turned away: its status, a code for programs, and words for
// the person. Nothing of the request is in it.
type refusal struct {
	status     int
	code       string
	message    string
	generation int64         // of a blob; 0 is left out
	wait       time.Duration // before another try; 0 is left out
}

func (e *refusal) Error() string { return "instance: " + e.code + ": " + e.message }

func refuse(status int, code, format string, args ...any) *refusal {
	return &refusal{status: status, code: code, message: fmt.Sprintf(format, args...)}
}

var (
	errSession = refuse(http.StatusUnauthorized, "session", "there is no such session, or it has ended: log in again")
	errTooBig  = refuse(http.StatusRequestEntityTooLarge, "too_large", "an envelope has at most %d bytes", custody.MaxMessage)
)

type answerError struct {
	Error struct {
		Code       string `json:"code"`
		Message    string `json:"message"`
		Generation int64  `json:"generation,omitzero"`
		RetryAfter int64  `json:"retry_after,omitzero"` // seconds
	} `json:"error"`
}

// fail answers an error. What is not a refusal is ours: its text may hold anything, so it is
// named by its type in the log.
func (i *Instance) fail(w http.ResponseWriter, r *http.Request, err error) {
	var e *refusal
	if !errors.As(err, &e) {
		e = refuse(http.StatusInternalServerError, "internal", "something is wrong here; the operator's log says where")
		if r.Context().Err() != nil {
			noteOf(r).code = "gone" // nobody waits for the answer
		} else {
			i.log.ErrorContext(r.Context(), "internal", "route", r.Pattern, "type", fmt.Sprintf("%T", err), "sqlite", sqliteCode(err))
		}
	}
	if n := noteOf(r); n.code == "" {
		n.code = e.code
	}
	var out answerError
	out.Error.Code, out.Error.Message, out.Error.Generation = e.code, e.message, e.generation
	if e.wait > 0 {
		out.Error.RetryAfter = int64((e.wait + time.Second - 1) / time.Second)
		w.Header().Set("Retry-After", strconv.FormatInt(out.Error.RetryAfter, 10))
	}
	if e.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	write(w, e.status, &out)
}

// sqliteCode returns SQLite's result code, 0 for any other error.
func sqliteCode(err error) int {
	var e interface{ Code() int }
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

func write(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.MarshalWrite(w, v, json.Deterministic(true))
}

// noNull refuses null, which would else stand for any zero value.
var noNull = json.UnmarshalFromFunc(func(dec *jsontext.Decoder, _ any) error {
	if dec.PeekKind() == 'n' {
		return errors.New("this is null")
	}
	return errors.ErrUnsupported
})

// decode reads one JSON object strictly.
func decode(data []byte, v any) error {
	if len(data) == 0 || jsontext.Value(data).Kind() != '{' {
		return refuse(http.StatusBadRequest, "malformed", "the body is one JSON object")
	}
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true), json.WithUnmarshalers(noNull))
	if err == nil {
		return nil
	}
	var sem *json.SemanticError
	var syn *jsontext.SyntacticError
	switch {
	case errors.As(err, &sem) && errors.Is(sem.Err, json.ErrUnknownName):
		return refuse(http.StatusBadRequest, "malformed", "the body has a field that is not known here, at byte %d", sem.ByteOffset)
	case errors.As(err, &sem):
		return refuse(http.StatusBadRequest, "malformed", "a value in the body is not of its type or form, at byte %d", sem.ByteOffset)
	case errors.As(err, &syn) && errors.Is(syn.Err, jsontext.ErrDuplicateName):
		return refuse(http.StatusBadRequest, "malformed", "a field of the body stands twice, at byte %d", syn.ByteOffset)
	case errors.As(err, &syn):
		return refuse(http.StatusBadRequest, "malformed", "the body is not JSON, at byte %d", syn.ByteOffset)
	}
	return refuse(http.StatusBadRequest, "malformed", "the body is not JSON")
}

// none is a body or an answer with nothing in it.
type none struct{}

// A caller is who a request comes from.
type caller struct {
	id   custody.KeyID
	bot  bool
	hash []byte // of the session's token
}

// open serves a route that needs no session.
func open[Req, Resp any](i *Instance, f func(ctx context.Context, r *http.Request, req *Req) (Resp, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if wait := i.strangers.take(remote(r), i.now()); wait > 0 {
			i.fail(w, r, tooMany(wait))
			return
		}
		serve(i, w, r, f)
	}
}

// authed serves a route for whoever shows a session.
func authed[Req, Resp any](i *Instance, f func(ctx context.Context, c *caller, r *http.Request, req *Req) (Resp, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c, err := i.session(r.Context(), bearer(r))
		if err != nil {
			if errors.Is(err, errSession) { // guesses are strangers'
				if wait := i.strangers.take(remote(r), i.now()); wait > 0 {
					err = tooMany(wait)
				}
			}
			i.fail(w, r, err)
			return
		}
		if wait := i.known.take(string(c.id), i.now()); wait > 0 {
			i.fail(w, r, tooMany(wait))
			return
		}
		serve(i, w, r, func(ctx context.Context, r *http.Request, req *Req) (Resp, error) { return f(ctx, c, r, req) })
	}
}

func tooMany(wait time.Duration) *refusal {
	e := refuse(http.StatusTooManyRequests, "too_many", "too many requests; try again later")
	e.wait = wait
	return e
}

// serve reads the body, if the method has one, calls f and answers what it returns.
func serve[Req, Resp any](i *Instance, w http.ResponseWriter, r *http.Request, f func(ctx context.Context, r *http.Request, req *Req) (Resp, error)) {
	req := new(Req)
	if _, empty := any(req).(*none); !empty {
		if mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mt != "application/json" {
			i.fail(w, r, refuse(http.StatusUnsupportedMediaType, "media_type", "the Content-Type is application/json"))
			return
		}
		// A recorder in a test has no deadlines; a connection has.
		http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout))
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			i.fail(w, r, errTooBig)
			return
		case err != nil:
			i.fail(w, r, refuse(http.StatusBadRequest, "malformed", "the body did not come whole"))
			return
		}
		if err := decode(body, req); err != nil {
			i.fail(w, r, err)
			return
		}
	}
	resp, err := f(r.Context(), r, req)
	if err != nil {
		i.fail(w, r, err)
		return
	}
	write(w, http.StatusOK, resp)
}

// canonical says whether a path has the one form in which it is served.
func canonical(r *http.Request) bool {
	p := r.URL.Path
	if r.URL.RawPath != "" || p == "" {
		return false
	}
	for i := range len(p) {
		if p[i] < 0x21 || p[i] > 0x7e {
			return false
		}
	}
	return path.Clean(p) == p || p != "/" && path.Clean(p)+"/" == p
}

// isID says whether s is an id: [A-Za-z0-9_.-]{1,64}. "." and ".." are no part of a path.
func isID(s string) bool { return isWord(s, 1, 64, true) && s != "." && s != ".." }

// isKeyID says whether s is the id of a key.
func isKeyID(s string) bool { return isWord(s, 43, 43, false) }

func isWord(s string, least, most int, dots bool) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' && dots:
		default:
			return false
		}
	}
	return least <= len(s) && len(s) <= most
}

// query returns a request's query, whose names are those given, each at most once.
func query(r *http.Request, names ...string) (map[string]string, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "malformed", "the query cannot be read")
	}
	out := make(map[string]string, len(q))
	for name, values := range q {
		if !slices.Contains(names, name) || len(values) != 1 {
			return nil, refuse(http.StatusBadRequest, "malformed", "the query has a field that is not known here, or one twice")
		}
		out[name] = values[0]
	}
	return out, nil
}

// number reads a decimal number of its one form, such as the cursor; "" is 0.
func number(s, name string) (int64, error) {
	if s == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 || n > maxCount || strconv.FormatInt(n, 10) != s {
		return 0, refuse(http.StatusBadRequest, "malformed", "%s is a whole number", name)
	}
	return n, nil
}

// maxCount bounds every counter and number of seconds: JavaScript is exact up to it.
const maxCount = 1 << 52
