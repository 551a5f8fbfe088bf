package broker

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

const (
	flowLife   = 10 * time.Minute
	flowPrefix = "__Host-flow-"
	maxFlows   = 4 // at once in one browser: a gateway takes some 10 KB of headers
	maxCookie  = 3 << 10
)

// A flow is what has to be known again when the provider sends the browser back. It rides
// sealed in a cookie that is named by its handle, which is also the state.
type flow struct {
	Handle   string              `json:"h"`
	Service  string              `json:"s"`
	Access   integrations.Access `json:"a"`
	Return   returnAddress       `json:"r"`
	Key      custody.PublicKey   `json:"k"` // one-time key of whoever began
	Verifier string              `json:"v"` // PKCE (RFC 7636)
	Begun    int64               `json:"t"` // seconds since 1970 UTC
}

var handlePattern = word{22, 22}

// random returns n random bytes in base64url: no character that any party encodes.
func random(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return base64.RawURLEncoding.EncodeToString(b)
}

// sealFlow returns the cookie's value: f1.<kid>.<sealed>.
func (b *Broker) sealFlow(f *flow) (string, error) {
	pt, err := json.Marshal(f)
	if err != nil {
		return "", err
	}
	if err := b.state.ready(context.Background()); err != nil {
		return "", err
	}
	kid, sealed := b.state.seal(pt, f.Handle)
	v := "f1." + kid + "." + base64.RawURLEncoding.EncodeToString(sealed)
	if len(v) > maxCookie {
		return "", errors.New("the flow does not fit a cookie")
	}
	return v, nil
}

// errFlow is every way in which a flow's record is not there, not ours or too old: whoever
// asks learns no more than that.
var errFlow = errors.New("no such flow in this browser")

// unsealFlow opens a cookie's value, of whatever age.
func (b *Broker) unsealFlow(handle, value string) (*flow, error) {
	rest, ok := strings.CutPrefix(value, "f1.")
	kid, text, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(value) > maxCookie || !handlePattern.MatchString(handle) {
		return nil, errFlow
	}
	sealed, err := decode64(text)
	if err != nil {
		return nil, errFlow
	}
	pt, err := b.state.open(kid, sealed, handle)
	if err != nil {
		return nil, errFlow
	}
	f := new(flow)
	if json.Unmarshal(pt, f) != nil || f.Handle != handle {
		return nil, errFlow
	}
	return f, nil
}

func (b *Broker) openFlow(handle, value string) (*flow, error) {
	f, err := b.unsealFlow(handle, value)
	if err != nil {
		return nil, err
	}
	now, begun := b.cfg.Now(), time.Unix(f.Begun, 0)
	if now.After(begun.Add(flowLife)) || begun.After(now.Add(time.Minute)) {
		return nil, errFlow
	}
	return f, nil
}

// A spent set remembers which handles have come back, so that of two callbacks at the same
// time one alone exchanges the code: some providers take a second use as theft and end what
// the first one gave. It is one process's memory, no store. Between processes the cleared
// cookie and the provider's single use stand.
type spent struct {
	mu   sync.Mutex
	when map[string]time.Time
}

// maxSpent bounds the memory: about a megabyte.
const maxSpent = 10_000

// first says whether a handle comes back for the first time.
func (s *spent) first(handle string, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, again := s.when[handle]; again {
		return false
	}
	if s.when == nil {
		s.when = make(map[string]time.Time)
	}
	if len(s.when) >= maxSpent {
		for h, t := range s.when {
			if now.Sub(t) > flowLife {
				delete(s.when, h)
			}
		}
	}
	if len(s.when) >= maxSpent {
		clear(s.when)
	}
	s.when[handle] = now
	return true
}

// flowOf returns the flow of a handle from exactly one cookie of its name.
func (b *Broker) flowOf(r *http.Request, handle string) (*flow, error) {
	if !handlePattern.MatchString(handle) {
		return nil, errFlow
	}
	value, err := oneCookie(r, flowPrefix+handle)
	if err != nil {
		return nil, errFlow
	}
	return b.openFlow(handle, value)
}

// oneCookie returns the cookie of a name, and an error where there is none, or two: one of
// two was planted.
func oneCookie(r *http.Request, name string) (string, error) {
	value, n := "", 0
	for _, c := range r.Cookies() {
		if c.Name == name {
			value = c.Value
			n++
		}
	}
	if n != 1 {
		return "", http.ErrNoCookie
	}
	return value, nil
}

// hasCookie says whether a request carries a cookie of a name, however often.
func hasCookie(r *http.Request, name string) bool {
	return slices.ContainsFunc(r.Cookies(), func(c *http.Cookie) bool { return c.Name == name })
}

func setCookie(w http.ResponseWriter, name, value string, life time.Duration) {
	c := &http.Cookie{Name: name, Value: value, Path: "/", Secure: true, HttpOnly: true, SameSite: http.SameSiteLaxMode, MaxAge: int(life / time.Second)}
	if life <= 0 {
		c.MaxAge = -1
	}
	http.SetCookie(w, c)
}

// makeRoom ends the oldest flows of a browser, and those that no longer open, so that with
// one more there are at most maxFlows.
func (b *Broker) makeRoom(w http.ResponseWriter, r *http.Request) {
	live := make(map[string]int64)
	for _, c := range r.Cookies() {
		handle, ok := strings.CutPrefix(c.Name, flowPrefix)
		if !ok {
			continue
		}
		if f, err := b.flowOf(r, handle); err == nil {
			live[handle] = f.Begun
		} else if handlePattern.MatchString(handle) {
			setCookie(w, c.Name, "", 0)
		}
	}
	for len(live) >= maxFlows {
		oldest := ""
		for h, t := range live {
			if oldest == "" || t < live[oldest] || t == live[oldest] && h < oldest {
				oldest = h
			}
		}
		delete(live, oldest)
		setCookie(w, flowPrefix+oldest, "", 0)
	}
}
