package instance_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/integrations"
)

type shown struct {
	Broker   string
	AsOf     string `json:"as_of"`
	Services []struct{ ID, Title string }
}

func (p *place) catalog(t testing.TB) shown {
	t.Helper()
	a := p.ask(t, "GET", "/api/integrations", "", nil)
	var out shown
	if err := json.Unmarshal([]byte(a.body), &out); err != nil || a.status != 200 || a.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("%d %.200s %v", a.status, a.body, err)
	}
	return out
}

func (s shown) ids() string {
	var ids []string
	for _, m := range s.Services {
		ids = append(ids, m.ID)
	}
	return strings.Join(ids, " ")
}

func TestIntegrationsBuiltIn(t *testing.T) {
	p := start(t, func(c *instance.Config) { c.AsOf = time.Unix(1790000000, 0) })
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	if got := p.catalog(t); got.Broker != "" || len(got.Services) != len(reg.All()) || got.AsOf != "2026-09-21T14:13:20Z" {
		t.Errorf("%+v", got)
	}
}

// A registry is a broker's, as far as an instance asks it.
type registry struct {
	mu       sync.Mutex
	body     string
	status   int
	asked    int
	notAgain int // answers without a body
}

func (b *registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	etag := fmt.Sprintf("%q", fmt.Sprint(len(b.body)))
	switch {
	case r.URL.Path != "/registry" || r.Header.Get("Authorization") != "" || b.status != 200:
		w.WriteHeader(b.status)
	case r.Header.Get("If-None-Match") == etag:
		b.notAgain++
		w.WriteHeader(http.StatusNotModified)
	default:
		w.Header().Set("Etag", etag)
		w.Write([]byte(b.body))
	}
}

func (b *registry) set(status int, body string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.status, b.body = status, body
	return b.asked
}

func (b *registry) count() (asked, notAgain int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked, b.notAgain
}

// TestIntegrationsOfBroker: what the broker offers is shown, checked, asked for by its ETag,
// and served on while the broker is away, over a restart too.
func TestIntegrationsOfBroker(t *testing.T) {
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	all := reg.All()
	body := func(services ...string) string {
		return `{"as_of":"2026-12-01T00:00:00Z","services":[` + strings.Join(services, ",") + `]}`
	}
	one, two := string(all[0].Raw()), string(all[1].Raw())
	b := &registry{status: 200, body: body(one, two, one, `{"id":"evil","title":1}`)}
	broker := httptest.NewServer(b)
	defer broker.Close()
	db := ""
	config := func(c *instance.Config) {
		c.Broker, c.RegistryEvery = broker.URL, 5*time.Millisecond
		if db != "" {
			c.DB = db
		}
	}
	p := start(t, config)
	both := all[0].ID + " " + all[1].ID
	eventually(t, "the broker's registry", func() bool { return p.catalog(t).ids() == both })
	if got := p.catalog(t); got.Broker != broker.URL || got.AsOf != "2026-12-01T00:00:00Z" {
		t.Errorf("%+v", got)
	}
	eventually(t, "an answer without a body", func() bool { _, n := b.count(); return n > 2 })
	if strings.Contains(p.log.String(), "does not answer") {
		t.Error("an answer without a body is taken for none")
	}
	// Whatever else comes changes nothing.
	for name, answer := range map[string]struct {
		status int
		body   string
	}{
		"away": {503, ""}, "a redirect": {302, ""}, "not JSON": {200, "<html>"}, "empty": {200, body()}, "nothing known": {200, body(`{"id":"x"}`)},
		"a field": {200, `{"as_of":"","services":[` + one + `],"x":1}`}, "twice": {200, `{"services":[` + one + `],"services":[` + one + `]}`},
		"a date that is none": {200, `{"as_of":"<b>","services":[` + one + `]}`}, "too large": {200, body(one, two) + strings.Repeat(" ", 8<<20)},
	} {
		asked := b.set(answer.status, answer.body)
		eventually(t, "asked again: "+name, func() bool { n, _ := b.count(); return n > asked+1 })
		if got := p.catalog(t); got.ids() != both {
			t.Errorf("%s: %s", name, got.ids())
		}
	}
	b.set(503, "")
	p.stop()
	db = p.db
	p = start(t, config)
	if got := p.catalog(t); got.ids() != both || got.Broker != broker.URL {
		t.Errorf("after a restart, the broker away: %+v", got)
	}
	b.set(200, body(two))
	eventually(t, "a changed registry", func() bool { return p.catalog(t).ids() == all[1].ID })
	if strings.Contains(p.log.String(), broker.URL) || strings.Contains(p.log.String(), "evil") {
		t.Error("the log holds what came")
	}
}
