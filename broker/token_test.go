package broker_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A refreshed is what came of POST /api/refresh: an answer that was sealed to the caller and
// opened, or a failure.
type refreshed struct {
	*brokertest.Page
	Answer *custody.RefreshAnswer
	Class  broker.Class
	Code   string
	Error  string // of a refusal
	Retry  int64
	Spent  bool
}

// outcome is the class and code of a failure, the code of a refusal, or "ok".
func (r *refreshed) outcome() string {
	switch {
	case r.Answer != nil:
		return "ok"
	case r.Class != "":
		return string(r.Class) + ":" + r.Code
	}
	return r.Error
}

// instanceToken makes a token once for a server: signing costs.
var instanceTokens sync.Map

func instanceToken(s *brokertest.Server) string {
	if t, ok := instanceTokens.Load(s); ok {
		return t.(string)
	}
	t := s.Token()
	instanceTokens.Store(s, t)
	return t
}

// redeem sends a wrapped token to /api/refresh as a sidecar does and opens the answer.
func redeem(t testing.TB, s *brokertest.Server, service, wrapped string) *refreshed {
	t.Helper()
	r, err := tryRedeem(s, service, wrapped)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func tryRedeem(s *brokertest.Server, service, wrapped string) (*refreshed, error) {
	key, err := custody.NewIdentity()
	if err != nil {
		return nil, err
	}
	body, err := refreshBody(service, wrapped, key)
	if err != nil {
		return nil, err
	}
	p, err := s.PostJSON("/api/refresh", instanceToken(s), body)
	if err != nil {
		return nil, err
	}
	return openRefresh(p, body, key)
}

func refreshBody(service, wrapped string, key *custody.Identity) ([]byte, error) {
	pub, err := key.Public().MarshalText()
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]string{"service": service, "refresh": wrapped, "key": string(pub)})
}

func openRefresh(p *brokertest.Page, body []byte, key *custody.Identity) (*refreshed, error) {
	r := &refreshed{Page: p}
	if p.Status == http.StatusOK {
		env, err := custody.ParseEnvelope([]byte(strings.TrimSpace(p.Body)))
		if err != nil {
			return nil, err
		}
		r.Answer = new(custody.RefreshAnswer)
		return r, key.OpenAnswer(env, custody.RefreshOp(body), r.Answer)
	}
	var v struct {
		Class broker.Class `json:"class"`
		Code  string       `json:"code"`
		Retry int64        `json:"retry_after"`
		Spent bool         `json:"spent"`
		Error string       `json:"error"`
	}
	if err := json.Unmarshal([]byte(p.Body), &v); err != nil {
		return nil, err
	}
	r.Class, r.Code, r.Retry, r.Error, r.Spent = v.Class, v.Code, v.Retry, v.Error, v.Spent
	if (v.Class == "") == (v.Error == "") {
		return nil, errors.New("a failure has either a class or an error: " + p.Body)
	}
	return r, nil
}

// live wraps a refresh token that the provider will redeem.
func live(s *brokertest.Server, service string) string {
	return s.Broker.Wrap(service, brokertest.Instance, s.Upstream.NewRefresh(""))
}

// unlimited lifts the limit on one instance's calls.
func unlimited(c *broker.Config) { c.InstanceRate = -1 }

// answers makes the provider answer every token request so, in order, the last one for ever.
func answers(s *brokertest.Server, list ...*brokertest.Answer) {
	var mu sync.Mutex
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Authorize {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		a := list[0]
		if len(list) > 1 {
			list = list[1:]
		}
		return a
	})
}

func answer(status int, contentType, body string) *brokertest.Answer {
	return &brokertest.Answer{Status: status, Header: http.Header{"Content-Type": {contentType}}, Body: body}
}

func jsonAnswer(status int, body string) *brokertest.Answer {
	return answer(status, "application/json", body)
}

func raw(h http.HandlerFunc) *brokertest.Answer { return &brokertest.Answer{Raw: h} }

// reset ends a connection at once, with what was asked of it read.
func reset(w http.ResponseWriter, _ *http.Request) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	netConn(c).SetLinger(0)
	c.Close()
}

func netConn(c net.Conn) *net.TCPConn {
	for {
		if t, ok := c.(*net.TCPConn); ok {
			return t
		}
		c = c.(interface{ NetConn() net.Conn }).NetConn()
	}
}

// versions is a store whose client a test turns.
type versions struct {
	mu       sync.Mutex
	current  broker.Client
	previous *broker.Client
	err      error
	asked    int // questions for the present version
	before   int // questions for the one before
}

func client(id, secret string, hosts ...string) broker.Client {
	return broker.Client{ID: id, Secret: integrations.NewSecret(secret), Hosts: hosts}
}

func (v *versions) Version(_ context.Context, _ string, previous bool) (broker.Client, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if previous {
		v.before++
	} else {
		v.asked++
	}
	switch {
	case v.err != nil:
		return broker.Client{}, v.err
	case previous && v.previous == nil:
		return broker.Client{}, broker.ErrNoClient
	case previous:
		return *v.previous, nil
	}
	return v.current, nil
}

// turn makes c the present version.
func (v *versions) turn(c broker.Client) {
	v.mu.Lock()
	defer v.mu.Unlock()
	old := v.current
	v.previous, v.current = &old, c
}

func (v *versions) fail(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.err = err
}

func (v *versions) reads() (current, previous int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.asked, v.before
}

// acmeHosts is where acme's secret may go.
const acmeHosts = "auth.acme.example"

// knows makes the provider know one client secret alone, and else answer as it would.
func knows(secret func() string) func(*brokertest.Call) *brokertest.Answer {
	return func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind != brokertest.Refresh && c.Kind != brokertest.Token {
			return nil
		}
		if c.ClientSecret != secret() {
			return jsonAnswer(http.StatusUnauthorized, `{"error":"invalid_client"}`)
		}
		return jsonAnswer(http.StatusOK, `{"access_token":"at-`+c.Form.Get("refresh_token")+`","refresh_token":"rt-next","expires_in":3600}`)
	}
}
