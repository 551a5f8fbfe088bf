package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strings"
	"sync"
)

// An Exchange is one answer of a provider, recorded or published, as its file holds it.
type Exchange struct {
	Method  string            `json:"method"`
	Path    string            `json:"path"`    // a segment such as {owner} stands for any
	Status  int               `json:"status"`  // 0: the connection is cut instead
	Headers map[string]header `json:"headers"` // may be left out
	Body    json.RawMessage   `json:"body"`    // sent compact; may be left out
}

// A header is a header's value; some recordings hold a number.
type header string

func (h *header) UnmarshalJSON(data []byte) error {
	if len(data) > 0 && data[0] != '"' {
		*h = header(data)
		return nil
	}
	return json.Unmarshal(data, (*string)(h))
}

// ReadExchanges reads the files that match a pattern, in the order of their names.
func ReadExchanges(fsys fs.FS, pattern string) ([]Exchange, error) {
	names, err := fs.Glob(fsys, pattern)
	if err != nil {
		return nil, err
	}
	var all []Exchange
	for _, name := range names {
		data, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		var ex Exchange
		if err := json.Unmarshal(data, &ex); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, ex)
	}
	return all, nil
}

// A Request is what the peer saw of one request, and what it answered.
type Request struct {
	Method, Host, URI string
	Header            http.Header
	Body              []byte
	Status            int
	Sent              int // bytes of the answer's body
}

// A Replay answers with exchanges. Of several that fit, the first request gets the first
// one, and so on; the last one stays.
type Replay struct {
	Exchanges []Exchange
	Seen      func(Request) // called before the answer is sent; may be nil

	mu   sync.Mutex
	used map[string]int // method and path → how often it was asked
}

func (p *Replay) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	ex := p.pick(r)
	var answer bytes.Buffer
	if ex.Body != nil {
		json.Compact(&answer, ex.Body)
	}
	if p.Seen != nil {
		p.Seen(Request{r.Method, r.Host, r.RequestURI, r.Header, body, ex.Status, answer.Len()})
	}
	if ex.Status == 0 {
		panic(http.ErrAbortHandler)
	}
	for name, value := range ex.Headers {
		switch strings.ToLower(name) {
		case "connection", "content-length", "transfer-encoding", "content-encoding":
			// these belong to the recorded connection
		default:
			w.Header().Set(name, string(value))
		}
	}
	w.WriteHeader(ex.Status)
	w.Write(answer.Bytes())
}

func (p *Replay) pick(r *http.Request) Exchange {
	p.mu.Lock()
	defer p.mu.Unlock()
	var fits []Exchange
	for _, ex := range p.Exchanges {
		if ex.Method == r.Method && fitsPath(ex.Path, r.URL.EscapedPath()) {
			fits = append(fits, ex)
		}
	}
	if len(fits) == 0 {
		return Exchange{Status: 404, Body: json.RawMessage(`{"message":"this peer has no answer for that"}`)}
	}
	if p.used == nil {
		p.used = make(map[string]int)
	}
	key := r.Method + " " + r.URL.EscapedPath()
	n := p.used[key]
	p.used[key]++
	return fits[min(n, len(fits)-1)]
}

func fitsPath(pattern, path string) bool {
	want, got := strings.Split(pattern, "/"), strings.Split(path, "/")
	if len(want) != len(got) {
		return false
	}
	for i := range want {
		if want[i] != got[i] && !strings.HasPrefix(want[i], "{") {
			return false
		}
	}
	return true
}
