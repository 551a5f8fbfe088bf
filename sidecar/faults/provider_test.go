package faults_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

// graceTime is how long the provider of "grace" takes a used token once more.
const graceTime = 30 * time.Second

// A provider is as strict as providers are: a refresh token is for one use, a second use
// ends the whole family (where there is no grace), and it counts what is done.
type provider struct {
	addr string

	mu    sync.Mutex
	codes map[string]*family
	ats   map[string]*access
	rts   map[string]*refresh
	lines map[string]int // how often each line was written
}

// A family is all that came of one consent.
type family struct {
	service     string
	expiresIn   int
	dead        bool
	redemptions int
	twice       int    // a used token that was used again, beyond the grace
	again       int    // and within it
	redeemed    func() // called after a redemption, before its answer
}

type access struct {
	*family
	spoilt bool
}

type refresh struct {
	*family
	used time.Time
}

func newProvider(t testing.TB) *provider {
	p := &provider{codes: make(map[string]*family), ats: make(map[string]*access), rts: make(map[string]*refresh), lines: make(map[string]int)}
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	p.addr = l.Addr().String()
	srv := &http.Server{Handler: p}
	go srv.Serve(l)
	t.Cleanup(func() { srv.Close() })
	return p
}

// consent makes a code, as if a person had agreed.
func (p *provider) consent(service string, expiresIn int) (string, *family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	code, f := "code-"+rand.Text(), &family{service: service, expiresIn: expiresIn}
	p.codes[code] = f
	return code, f
}

// spoil ends all access tokens of a family before their time.
func (p *provider) spoil(f *family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.ats {
		if a.family == f {
			a.spoilt = true
		}
	}
}

// alive says whether an access token works.
func (p *provider) alive(token string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.ats[token]
	return a != nil && !a.spoilt && !a.dead
}

// forget drops what nobody holds any more, and returns what was counted.
func (p *provider) forget(f *family) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for k, a := range p.ats {
		if a.family == f {
			delete(p.ats, k)
		}
	}
	for k, r := range p.rts {
		if r.family == f {
			delete(p.rts, k)
		}
	}
}

// A tally is what a family has seen.
type tally struct {
	redemptions, twice, again int
	dead                      bool
}

func (p *provider) tally(f *family) tally {
	p.mu.Lock()
	defer p.mu.Unlock()
	return tally{f.redemptions, f.twice, f.again, f.dead}
}

func (p *provider) onRedeem(f *family, do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.redeemed = do
}

func (p *provider) written(text string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lines[text]
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	service, what, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch {
	case r.Method == http.MethodPost && what == "token":
		p.token(w, r, service)
	case r.Method == http.MethodGet && what == "me", r.Method == http.MethodPost && what == "lines":
		p.use(w, r, service)
	default:
		answer(w, 404, map[string]any{"error": "not_found"})
	}
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v)
}

func (p *provider) token(w http.ResponseWriter, r *http.Request, service string) {
	if err := r.ParseForm(); err != nil || r.PostForm.Get("client_id") != "client-"+service {
		answer(w, 401, map[string]any{"error": "invalid_client"})
		return
	}
	f, text := p.redeem(r.PostForm.Get("code"), r.PostForm.Get("refresh_token"), service)
	if f == nil {
		answer(w, 400, map[string]any{"error": "invalid_grant"})
		return
	}
	answer(w, 200, text)
}

// redeem takes a code or a refresh token, and says what the answer is.
func (p *provider) redeem(code, token, service string) (*family, map[string]any) {
	p.mu.Lock()
	var after func()
	defer func() {
		p.mu.Unlock()
		if after != nil {
			after()
		}
	}()
	f := p.codes[code]
	next := token
	switch old := p.rts[token]; {
	case code != "" && f != nil:
		delete(p.codes, code)
		next = "rt-" + rand.Text()
	case old == nil || old.dead || old.service != service:
		return nil, nil
	case service == "constant":
		f = old.family
		f.redemptions++
	default:
		f = old.family
		if !old.used.IsZero() {
			if service != "grace" || time.Since(old.used) > graceTime {
				f.twice++
				f.dead = true
				return nil, nil
			}
			f.again++
		} else {
			old.used = time.Now()
		}
		f.redemptions++
		next = "rt-" + rand.Text()
	}
	if f == nil {
		return nil, nil
	}
	if token != "" {
		after = f.redeemed
	}
	at := "at-" + rand.Text()
	p.ats[at] = &access{family: f}
	if p.rts[next] == nil {
		p.rts[next] = &refresh{family: f}
	}
	return f, map[string]any{"access_token": at, "refresh_token": next, "token_type": "Bearer", "expires_in": f.expiresIn, "scope": "read write"}
}

func (p *provider) use(w http.ResponseWriter, r *http.Request, service string) {
	token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !p.alive(token) {
		answer(w, 401, map[string]any{"error": "invalid_token", "error_description": "The token is not valid."})
		return
	}
	if r.Method == http.MethodGet {
		answer(w, 200, map[string]any{"id": 1, "login": "ada"})
		return
	}
	var line struct{ Text string }
	if err := json.NewDecoder(r.Body).Decode(&line); err != nil || line.Text == "" {
		answer(w, 400, map[string]any{"error": "invalid_request", "error_description": fmt.Sprint("no line: ", err)})
		return
	}
	p.mu.Lock()
	p.lines[line.Text]++
	n := len(p.lines)
	p.mu.Unlock()
	answer(w, 201, map[string]any{"number": n})
}
