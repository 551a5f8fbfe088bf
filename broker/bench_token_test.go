package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
)

// minimal is the least that could stand in the broker's place: it decodes, posts and answers,
// with nothing checked, sealed, wrapped or classified.
func minimal(client *http.Client, to string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in struct{ Service, Refresh, Key string }
		if json.NewDecoder(r.Body).Decode(&in) != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		resp, err := client.PostForm(to, url.Values{"grant_type": {"refresh_token"}, "refresh_token": {in.Refresh}, "client_id": {"id"}, "client_secret": {"secret"}})
		if err != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		defer resp.Body.Close()
		var out struct {
			Access  string `json:"access_token"`
			Refresh string `json:"refresh_token"`
			Expires int64  `json:"expires_in"`
		}
		if json.NewDecoder(resp.Body).Decode(&out) != nil {
			w.WriteHeader(http.StatusBadGateway)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(out)
	}
}

// BenchmarkRefresh holds POST /api/refresh beside a minimal handler, with one provider, and
// both once more through a hop that stands before them, as a gateway does. What each adds to
// asking the provider is compared: the broker checks a token, opens a wrap, seals and wraps
// anew. Two thirds of that is one key agreement on P-256. Made while the provider is asked, in
// a goroutine of its own, it would be hidden behind a provider that is far away; behind this
// one, which answers in less time than another core takes to wake, it would not.
func BenchmarkRefresh(b *testing.B) {
	s := brokertest.New(b, brokertest.Options{Config: unlimited})
	provider := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"access_token":"`+strings.Repeat("a", 40)+`","refresh_token":"`+strings.Repeat("b", 76)+`","expires_in":28800,"token_type":"bearer","scope":""}`)
	}))
	provider.TLS = s.CA.TLS()
	provider.StartTLS()
	b.Cleanup(provider.Close)
	s = brokertest.New(b, brokertest.Options{Config: unlimited, Hosts: map[string]string{"auth.acme.example:443": provider.Listener.Addr().String()}})
	const to = "https://auth.acme.example/oauth/token"
	caller := func() *http.Client {
		t := s.Transport()
		t.ForceAttemptHTTP2 = false
		b.Cleanup(t.CloseIdleConnections)
		return &http.Client{Transport: t}
	}
	serve := func(h http.Handler) string {
		srv := httptest.NewUnstartedServer(h)
		srv.TLS, srv.Config.ErrorLog = s.CA.TLS(), discardLog
		srv.StartTLS()
		b.Cleanup(srv.Close)
		return srv.Listener.Addr().String()
	}
	// at reaches one address, whatever is asked for.
	at := func(addr string) *http.Client {
		c := caller()
		c.Transport.(*http.Transport).DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		return c
	}
	gateway := func(addr string) string {
		return serve(&httputil.ReverseProxy{Transport: at(addr).Transport, ErrorLog: discardLog, Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = "https", strings.TrimPrefix(brokertest.Origin, "https://")
			r.Out.Host = r.Out.URL.Host
		}})
	}
	least := serve(minimal(caller(), to))

	key := brokertest.NewIdentity(b)
	body, err := refreshBody("acme", s.Broker.Wrap("acme", brokertest.Instance, strings.Repeat("b", 76)), key)
	if err != nil {
		b.Fatal(err)
	}
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {"x"}}.Encode()
	token := instanceToken(s)
	ways := []struct {
		name, url, contentType, body string
		client                       *http.Client
		took                         []time.Duration
	}{
		{"provider", to, "application/x-www-form-urlencoded", form, caller(), nil},
		{"minimal", s.URL + "/api/refresh", "application/json", string(body), at(least), nil},
		{"broker", s.URL + "/api/refresh", "application/json", string(body), at(s.Addr), nil},
		{"hop-minimal", s.URL + "/api/refresh", "application/json", string(body), at(gateway(least)), nil},
		{"hop-broker", s.URL + "/api/refresh", "application/json", string(body), at(gateway(s.Addr)), nil},
	}
	ask := func(i int) {
		w := &ways[i]
		req, err := http.NewRequest("POST", w.url, bytes.NewReader([]byte(w.body)))
		if err != nil {
			b.Fatal(err)
		}
		req.Header = http.Header{"Content-Type": {w.contentType}, "Authorization": {"Bearer " + token}}
		start := time.Now()
		resp, err := w.client.Do(req)
		if err != nil {
			b.Fatalf("%s: %v", w.name, err)
		}
		text, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		w.took = append(w.took, time.Since(start))
		if err != nil || resp.StatusCode != 200 {
			b.Fatalf("%s: %d %s", w.name, resp.StatusCode, text)
		}
	}
	for i := range ways {
		ask(i)
		ways[i].took = nil
	}
	const rounds = 200 // even one iteration has the median of many
	for b.Loop() {
		for range rounds {
			for i := range ways { // in turn, so that all meet the same machine
				ask(i)
			}
		}
	}
	b.ReportMetric(0, "ns/op")
	p50 := make([]float64, len(ways))
	for i, w := range ways {
		slices.Sort(w.took)
		p50[i] = float64(w.took[len(w.took)/2].Nanoseconds()) / 1e3
		b.ReportMetric(p50[i], w.name+"-p50-µs")
	}
	b.ReportMetric((p50[2]-p50[0])/(p50[1]-p50[0]), "added-x-minimal")
	b.ReportMetric((p50[4]-p50[0])/(p50[3]-p50[0]), "hop-added-x-minimal")
}
