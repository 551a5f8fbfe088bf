package broker_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// TestRotationUnderLoad turns the store's secret, and later the provider's, while 500
// refreshes run: none fails, so nobody is told to reconnect.
func TestRotationUnderLoad(t *testing.T) {
	for _, tt := range []struct {
		name  string
		stale bool // the cache's time is up between the two turns, so that it runs ahead of the provider
	}{{"the provider ahead of the cache", false}, {"the cache ahead of the provider", true}} {
		t.Run(tt.name, func(t *testing.T) {
			store := &versions{current: client("id", "old", acmeHosts)}
			var valid atomic.Value
			valid.Store("old")
			s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
				unlimited(c)
				c.Secrets = &broker.Cache{Store: store, Now: c.Now}
			}})
			s.Upstream.SetAnswer(knows(func() string { return valid.Load().(string) }))
			var done atomic.Int64
			var wg sync.WaitGroup
			turn := func(n int64, f func()) { // after n refreshes
				wg.Go(func() {
					for done.Load() < n {
						time.Sleep(time.Millisecond)
					}
					f()
				})
			}
			turn(150, func() {
				store.turn(client("id", "new", acmeHosts))
				if tt.stale {
					s.Clock.Advance(6 * time.Minute)
				}
			})
			turn(300, func() { valid.Store("new") })
			for range 25 {
				wg.Go(func() {
					for range 20 {
						r, err := tryRedeem(s, "acme", live(s, "acme"))
						if err != nil || r.outcome() != "ok" {
							t.Errorf("a refresh: %v %v", r, err)
						}
						done.Add(1)
					}
				})
			}
			wg.Wait()
			current, previous := store.reads()
			calls, refused := s.Upstream.Secret(), 0
			for _, c := range s.Upstream.Calls(brokertest.Refresh) {
				if c.ClientSecret != "old" && c.ClientSecret != "new" {
					refused++
				}
			}
			t.Logf("500 refreshes: %d requests to the provider, %d to the store", calls, current+previous)
			if n := current + previous; n < 2 || n > 11 {
				t.Errorf("%d requests to the store, want 2 to 11", n)
			}
			if refused != 0 || calls < 501 || calls > 600 {
				t.Errorf("%d requests to the provider", calls)
			}
			if s.Metrics() != "" {
				t.Errorf("the operator is called: %s", s.Metrics())
			}
		})
	}
}

// A faulty provider answers each refresh token by its name, and remembers how often each
// came and how long it took itself.
type faulty struct {
	server *httptest.Server
	mu     sync.Mutex
	seen   map[string]int
	took   map[string]time.Duration
}

// faults are what a twentieth of the calls each meets, with what is right.
var faults = []struct{ name, want string }{
	{"html", "temporary:server"}, {"limit", "temporary:rate_limited"}, {"reset", "temporary:no_answer"}, {"drip", "temporary:unreadable"}, {"dead", "dead:invalid_grant"},
}

func newFaulty(t *testing.T, ca *brokertest.CA) *faulty {
	f := &faulty{seen: make(map[string]int), took: make(map[string]time.Duration)}
	f.server = httptest.NewUnstartedServer(f)
	f.server.TLS = ca.TLS()
	f.server.Config.ErrorLog = discardLog
	f.server.StartTLS()
	t.Cleanup(func() { f.server.CloseClientConnections(); f.server.Close() })
	return f
}

func (f *faulty) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	token := r.PostFormValue("refresh_token")
	f.mu.Lock()
	f.seen[token]++
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.took[token] = time.Since(start)
		f.mu.Unlock()
	}()
	h := w.Header()
	kind, _, _ := strings.Cut(token, "-")
	switch kind {
	case "html":
		h.Set("Content-Type", "text/html")
		w.WriteHeader(http.StatusBadGateway)
		io.WriteString(w, "<html><h1>502 Bad Gateway</h1></html>")
	case "limit":
		h.Set("Retry-After", "7")
		w.WriteHeader(http.StatusTooManyRequests)
	case "reset":
		reset(w, r)
	case "drip":
		for range 50 {
			io.WriteString(w, " ")
			http.NewResponseController(w).Flush()
			select {
			case <-r.Context().Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	case "dead":
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"error":"invalid_grant"}`)
	default:
		h.Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"at-%s","refresh_token":"rt-%s","expires_in":3600}`, token, token)
	}
}

// TestLoadWithFaults refreshes 300 times a second for ten seconds (SOAK=1: 500 for a minute)
// at a provider that fails in five ways, 5 % of the calls each: the class is right for every
// one, nothing is sent twice, memory stays flat.
func TestLoadWithFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("ten seconds of load")
	}
	const patience = 1500 * time.Millisecond // with the provider: what drips takes longer
	rate, length := 300, 10*time.Second
	if os.Getenv("SOAK") != "" {
		rate, length = 500, time.Minute
	}
	probe := brokertest.New(t, brokertest.Options{})
	f := newFaulty(t, probe.CA)
	s := brokertest.New(t, brokertest.Options{
		Hosts: map[string]string{"auth.acme.example:443": f.server.Listener.Addr().String()},
		Config: func(c *broker.Config) {
			unlimited(c)
			c.Logger, c.UpstreamTimeout = nil, patience
		},
	})
	idle := runtime.NumGoroutine()
	type result struct {
		token   string
		got     string
		retry   int64
		took    time.Duration
		problem error
	}
	most := rate * int(length/time.Second)
	results := make([]result, 0, most)
	var mu sync.Mutex
	var wg sync.WaitGroup
	var early, late runtime.MemStats
	// On a machine that is busy with something else fewer are sent, and none waits long.
	slots := make(chan struct{}, 64)
	start := time.Now()
	for i := 0; i < most && time.Since(start) < length; i++ {
		time.Sleep(time.Until(start.Add(time.Duration(i) * length / time.Duration(most))))
		if i == most/10 {
			runtime.GC()
			runtime.ReadMemStats(&early)
		}
		kind := "ok"
		if k := i % 20; k < len(faults) {
			kind = faults[k].name
		}
		slots <- struct{}{}
		wg.Go(func() {
			r := result{token: fmt.Sprintf("%s-%d", kind, i)}
			wrapped := s.Broker.Wrap("acme", brokertest.Instance, r.token)
			begin := time.Now()
			ans, err := tryRedeem(s, "acme", wrapped)
			<-slots
			r.took, r.problem = time.Since(begin), err
			if err == nil {
				r.got, r.retry = ans.outcome(), ans.Retry
			}
			mu.Lock()
			results = append(results, r)
			mu.Unlock()
		})
	}
	wg.Wait()
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&late)

	n := len(results)
	want := map[string]string{"ok": "ok"}
	for _, k := range faults {
		want[k.name] = k.want
	}
	wrong, slow := 0, 0
	var own, added []time.Duration
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range results {
		kind, _, _ := strings.Cut(r.token, "-")
		if r.problem == nil && r.took >= patience && kind != "drip" && strings.HasPrefix(r.got, "temporary:") && f.seen[r.token] <= 1 {
			slow++ // the machine had no time for it, and that class is right then
			continue
		}
		if kind == "drip" && r.got == "temporary:not_json" {
			// The provider ended its answer properly when the broker hung up, and that end
			// was read just before the connection was closed: the same class.
			r.got = want[kind]
		}
		if r.problem != nil || r.got != want[kind] || kind == "limit" && r.retry != 7 {
			if wrong++; wrong < 10 {
				t.Errorf("%s: %s (retry after %d) %v, want %s", r.token, r.got, r.retry, r.problem, want[kind])
			}
		}
		if f.seen[r.token] != 1 {
			t.Errorf("%s was sent %d times", r.token, f.seen[r.token])
		}
		if kind != "drip" && kind != "reset" {
			own = append(own, f.took[r.token])
			added = append(added, r.took-f.took[r.token])
		}
	}
	t.Logf("%d refreshes in %v, %.0f begun a second; %d of a wrong class, %d given up for want of time on this machine", n, took.Round(time.Millisecond), float64(n)/length.Seconds(), wrong, slow)
	if slow > n/5 {
		t.Errorf("%d of %d were given up", slow, n)
	}
	t.Logf("the provider itself: p50 %v, p99 %v; the broker, the way there and the caller's own cryptography add p50 %v, p99 %v (goal: p99 under 20 ms)",
		quantile(own, 0.5), quantile(own, 0.99), quantile(added, 0.5), quantile(added, 0.99))
	grown := int64(late.HeapAlloc) - int64(early.HeapAlloc)
	t.Logf("heap after a tenth of the load: %.1f MB, at the end: %.1f MB", float64(early.HeapAlloc)/1e6, float64(late.HeapAlloc)/1e6)
	if grown > 16e6 {
		t.Errorf("the heap has grown by %d bytes", grown)
	}
	s.Client().CloseIdleConnections()
	for range 100 {
		if runtime.NumGoroutine() < idle+200 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if g := runtime.NumGoroutine(); g > idle+200 { // two for each idle connection to the provider
		t.Errorf("%d goroutines before, %d after", idle, g)
	}
}

func quantile(d []time.Duration, q float64) time.Duration {
	if len(d) == 0 {
		return 0
	}
	slices.Sort(d)
	return d[int(q*float64(len(d)-1))].Round(10 * time.Microsecond)
}
