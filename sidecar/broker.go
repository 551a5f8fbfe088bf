package sidecar

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// How a broker is asked.
const (
	brokerTimeout = 40 * time.Second // a little longer than a broker gives a provider
	maxBrokerBody = custody.MaxMessage + 4096
	maxRetryAfter = time.Hour
	configTimeout = 15 * time.Second
)

// A Class says what a failed refresh means to whoever holds the pair.
type Class string

// The classes, as the broker's answers have them.
const (
	Dead          Class = "dead"          // the provider ended it: reconnect
	Temporary     Class = "temporary"     // try again, not before RetryAfter
	Misconfigured Class = "misconfigured" // an operator's to mend; nothing is lost: never Sent
)

// A BrokerError is a refresh or revocation that did not work. It holds nothing that a
// provider or the broker wrote, but a code.
type BrokerError struct {
	Class      Class
	Code       string        // the broker's, or one of our own; may be ""
	Status     int           // the broker's; 0 where it did not answer
	RetryAfter time.Duration // zero where nobody said; at most an hour

	// Sent says that the provider may have redeemed the token, and that its answer is lost.
	Sent bool

	Err error // what net/http said, without the address; may be nil
}

func (e *BrokerError) Error() string {
	s := "the broker: " + string(e.Class)
	if e.Code != "" {
		s += " (" + e.Code + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *BrokerError) Unwrap() error { return e.Err }

// A Broker is a client of one broker: whoever made a wrapped refresh token is the only one
// that can redeem it. It is safe for use by several goroutines.
type Broker struct {
	Origin string              // such as https://connect.example
	Token  integrations.Secret // the instance's signed token; Config needs none
	Client *http.Client        // nil is one that follows no redirect, takes no proxy and keeps no connection

	once sync.Once
	own  *http.Client
}

func (b *Broker) client() *http.Client {
	if b.Client != nil {
		return b.Client
	}
	// A connection that was kept may be closed by the other side just as a request goes out.
	// Whether the token was redeemed is then not known, and a pair is given up for nothing.
	b.once.Do(func() {
		b.own = &http.Client{
			Transport: &http.Transport{
				DisableKeepAlives:      true,
				DialContext:            (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}).DialContext,
				TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
				TLSHandshakeTimeout:    10 * time.Second,
				ResponseHeaderTimeout:  brokerTimeout,
				MaxResponseHeaderBytes: 64 << 10,
			},
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		}
	})
	return b.own
}

type refreshRequest struct {
	Service string `json:"service"`
	Refresh string `json:"refresh"`
	Key     string `json:"key"`
}

// Refresh redeems a wrapped refresh token. The answer is sealed to a key that lives for this
// call alone. Nothing is sent twice; an error is a *BrokerError.
func (b *Broker) Refresh(ctx context.Context, service string, refresh integrations.Secret) (*custody.RefreshAnswer, error) {
	if n := len(refresh.Reveal()); n == 0 || n > custody.MaxWrap {
		return nil, &BrokerError{Class: Dead, Code: "no_refresh"}
	}
	key, err := custody.NewIdentity()
	if err != nil {
		return nil, &BrokerError{Class: Temporary, Code: "key", Err: err}
	}
	point, err := key.Public().MarshalText()
	if err != nil {
		return nil, &BrokerError{Class: Temporary, Code: "key", Err: err}
	}
	body, err := json.Marshal(refreshRequest{service, refresh.Reveal(), string(point)})
	if err != nil {
		return nil, &BrokerError{Class: Misconfigured, Code: "request"}
	}
	data, status, err := b.post(ctx, "/api/refresh", body)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refused(data, status)
	}
	lost := &BrokerError{Class: Temporary, Code: "no_answer", Status: status, Sent: true}
	e, err := custody.ParseEnvelope(bytes.TrimSpace(data))
	if err != nil {
		lost.Err = err
		return nil, lost
	}
	out := new(custody.RefreshAnswer)
	if err := key.OpenAnswer(e, custody.RefreshOp(body), out); err != nil {
		lost.Err = err
		return nil, lost
	}
	return out, nil
}

// A RevokeRequest names the pair that is to be ended at the provider.
type RevokeRequest struct {
	Service string
	Secret  integrations.Secret
	Refresh integrations.Secret // wrapped
	Keep    map[string]string
}

// A RevokeAnswer says what came of it. That it did not work is an answer too: whoever
// disconnects forgets the pair either way, and is told where to remove it.
type RevokeAnswer struct {
	Revoked bool   `json:"revoked"`
	Why     string `json:"why"`
	Where   string `json:"where"`
}

// Revoke ends a pair at its provider.
func (b *Broker) Revoke(ctx context.Context, r RevokeRequest) (*RevokeAnswer, error) {
	body, err := json.Marshal(struct {
		Service string            `json:"service"`
		Secret  string            `json:"secret,omitzero"`
		Refresh string            `json:"refresh,omitzero"`
		Keep    map[string]string `json:"keep,omitempty"`
	}{r.Service, r.Secret.Reveal(), r.Refresh.Reveal(), r.Keep})
	if err != nil {
		return nil, &BrokerError{Class: Misconfigured, Code: "request"}
	}
	data, status, err := b.post(ctx, "/api/revoke", body)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refused(data, status)
	}
	out := new(RevokeAnswer)
	if err := json.Unmarshal(data, out); err != nil {
		return nil, &BrokerError{Class: Temporary, Code: "not_json", Status: status, Sent: true}
	}
	return out, nil
}

// A ServiceConfig says whether a connection to a service can start at a broker.
type ServiceConfig struct {
	Service    string `json:"service"`
	Configured bool   `json:"configured"`
	App        string `json:"app"` // the public name of the operator's app at the service
}

// Config asks whether a connection can start. It shows no token.
func (b *Broker) Config(ctx context.Context, service string) (*ServiceConfig, error) {
	ctx, cancel := context.WithTimeout(ctx, configTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, b.Origin+"/api/oauth/config?service="+url.QueryEscape(service), nil)
	if err != nil {
		return nil, &BrokerError{Class: Misconfigured, Code: "origin"}
	}
	data, status, err := b.do(req)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, refused(data, status)
	}
	out := new(ServiceConfig)
	if err := json.Unmarshal(data, out); err != nil || out.Service != service {
		return nil, &BrokerError{Class: Misconfigured, Code: "not_a_broker", Status: status}
	}
	return out, nil
}

func (b *Broker) post(ctx context.Context, path string, body []byte) ([]byte, int, error) {
	if b.Token.IsZero() {
		return nil, 0, &BrokerError{Class: Misconfigured, Code: "no_instance_token"}
	}
	ctx, cancel := context.WithTimeout(ctx, brokerTimeout)
	defer cancel()
	// A reader that net/http does not know cannot be sent a second time on another connection.
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.Origin+path, struct{ io.Reader }{bytes.NewReader(body)})
	if err != nil {
		return nil, 0, &BrokerError{Class: Misconfigured, Code: "origin"}
	}
	req.ContentLength = int64(len(body))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+b.Token.Reveal())
	return b.do(req)
}

func (b *Broker) do(req *http.Request) ([]byte, int, error) {
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "connect-sidecar")
	var sent atomic.Bool // there was a connection, with its TLS, to send it on
	req = req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
		GetConn: func(string) { sent.Store(false) },
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	}))
	resp, err := b.client().Do(req)
	if err != nil {
		var ue *url.Error // which holds the address
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, 0, &BrokerError{Class: Temporary, Code: "broker_unreachable", Sent: sent.Load(), Err: err}
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxBrokerBody+1))
	if err == nil && len(data) > maxBrokerBody {
		err = fmt.Errorf("its answer is longer than %d bytes", maxBrokerBody)
	}
	if err != nil {
		return nil, 0, &BrokerError{Class: Temporary, Code: "no_answer", Status: resp.StatusCode, Sent: resp.StatusCode < 300 || resp.StatusCode >= 500, Err: err}
	}
	if resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusServiceUnavailable {
		if wait := retryAfter(resp.Header.Get("Retry-After")); wait > 0 && !brokersWords(data) {
			// A gateway's own limit: not the broker's words, and not a provider's.
			return nil, 0, &BrokerError{Class: Temporary, Code: "gateway", Status: resp.StatusCode, RetryAfter: wait, Sent: resp.StatusCode != http.StatusTooManyRequests}
		}
	}
	return data, resp.StatusCode, nil
}

// retryAfter reads seconds or a date (RFC 9110, section 10.2.3).
func retryAfter(s string) time.Duration {
	if n, err := strconv.ParseInt(s, 10, 64); err == nil {
		return capped(n)
	}
	t, err := http.ParseTime(s)
	if err != nil {
		return 0
	}
	return capped(int64((time.Until(t) + time.Second - 1) / time.Second))
}

// brokersWords says whether an answer is one of those that docs/protocol.md, section 9, lists.
func brokersWords(data []byte) bool {
	var a struct {
		Class string `json:"class"`
		Error string `json:"error"`
	}
	return json.Unmarshal(data, &a) == nil && (a.Class != "" || a.Error != "")
}

func capped(seconds int64) time.Duration {
	return time.Duration(min(max(seconds, 0), int64(maxRetryAfter/time.Second))) * time.Second
}

// refused reads an answer that is none. The broker's own word tells whether the provider may
// have redeemed the token; an answer of 5xx in other words is a gateway's, which may have cut
// off the broker's.
func refused(data []byte, status int) *BrokerError {
	var a struct {
		Class      Class  `json:"class"`
		Code       string `json:"code"`
		RetryAfter int64  `json:"retry_after"`
		Spent      bool   `json:"spent"`
		Error      string `json:"error"`
	}
	e := &BrokerError{Class: Temporary, Code: "gateway", Status: status, Sent: status >= 500 || status < 300}
	if json.Unmarshal(data, &a) != nil {
		return e
	}
	switch {
	case a.Class == Dead || a.Class == Temporary || a.Class == Misconfigured:
		e.Class, e.Code, e.RetryAfter = a.Class, plainCode(a.Code), capped(a.RetryAfter)
		if e.Sent = a.Spent; e.Sent && e.Class == Misconfigured {
			e.Class = Temporary // that the operator mends it would not bring the pair back
		}
	case a.Error == "unauthorized" || a.Error == "clock":
		e.Class, e.Code, e.Sent = Misconfigured, plainCode(a.Error), false
	case a.Error == "no_refresh":
		e.Class, e.Code, e.Sent = Dead, "no_refresh", false
	case a.Error != "" && status < 500:
		e.Class, e.Code, e.Sent = Misconfigured, plainCode(a.Error), false
	}
	return e
}

// plainCode keeps what another program wrote from being more than a code.
func plainCode(s string) string {
	if len(s) > 40 {
		return ""
	}
	for _, c := range s {
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '_' && (c < 'A' || c > 'Z') {
			return ""
		}
	}
	return s
}
