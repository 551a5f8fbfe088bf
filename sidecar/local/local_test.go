package local

import (
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// code is the code of an answer's error, "" where it has none.
func code(body []byte) string {
	var e errorAnswer
	json.Unmarshal(body, &e)
	return e.Error.Code
}

func TestMessage(t *testing.T) {
	s := newStage(t, nil)
	e := s.op(nil)
	for range 2 { // brought again, it has the same answer
		w := s.call("POST", "/v1/messages", s.post(e))
		var out struct{ Replies []*custody.Envelope }
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 || len(out.Replies) != 1 {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		r := new(custody.Result)
		if err := s.ada.OpenMessage(out.Replies[0], s.bot.Public(), nil, r); err != nil {
			t.Fatal(err)
		}
		if !r.OK || !strings.Contains(string(r.Result), `"ada"`) || r.ID != e.Op {
			t.Errorf("the result is %+v", r)
		}
	}
	ack := must(s.ada.SealMessage(s.bot.Public(), nil, custody.Header{Space: "home", Thread: "kitchen"}, &custody.Ack{Credential: "c1", Pair: 4}))
	if w := s.call("POST", "/v1/messages", s.post(ack)); w.Code != 200 || w.Body.String() != `{"replies":[]}` {
		t.Errorf("an ack: %d %s", w.Code, w.Body)
	}
}

func TestRefusals(t *testing.T) {
	s := newStage(t, nil)
	good := s.post(s.op(nil))
	eve := must(custody.NewIdentity())
	other := must(s.ada.SealMessage(eve.Public(), nil, custody.Header{Space: "home", Thread: "kitchen"}, &custody.Ack{Credential: "c1", Pair: 4}))
	say := must(s.ada.SealMessage(s.bot.Public(), nil, custody.Header{Space: "home", Thread: "kitchen"}, &custody.Say{V: 1, ID: "s1", At: 1, Text: "hello"}))
	author := string(must(s.ada.Public().MarshalText()))
	for _, c := range []struct {
		name, method, path, body string
		edit                     func(*http.Request)
		status                   int
		code                     string
	}{
		{"another author", "POST", "/v1/messages", strings.Replace(good, `"author":"`+author, `"author":"`+string(must(eve.Public().MarshalText())), 1), nil, 403, "forged"},
		{"another thread", "POST", "/v1/messages", strings.Replace(good, `"thread":"kitchen"}`, `"thread":"cellar"}`, 1), nil, 403, "forged"},
		{"another bot", "POST", "/v1/messages", s.post(other), nil, 404, "not_mine"},
		{"a say", "POST", "/v1/messages", s.post(say), nil, 400, "purpose"},
		{"another version", "POST", "/v1/messages", strings.Replace(good, `"v":1`, `"v":2`, 1), nil, 400, "version"},
		{"no envelope", "POST", "/v1/messages", `{"author":"` + author + `","message":{}}`, nil, 400, "malformed"},
		{"no message", "POST", "/v1/messages", `{"author":"` + author + `"}`, nil, 400, "malformed"},
		{"no author", "POST", "/v1/messages", strings.Replace(good, `"author":"`+author+`",`, ``, 1), nil, 400, "malformed"},
		{"null", "POST", "/v1/messages", `null`, nil, 400, "malformed"},
		{"a bad author", "POST", "/v1/messages", `{"author":"MARKER","message":{}}`, nil, 400, "malformed"},
		{"unknown member", "POST", "/v1/messages", `{"MARKER":1}`, nil, 400, "malformed"},
		{"other case", "POST", "/v1/messages", strings.Replace(good, `"author"`, `"Author"`, 1), nil, 400, "malformed"},
		{"twice", "POST", "/v1/messages", strings.Replace(good, `{"author":`, `{"space":"MARKER","author":`, 1), nil, 400, "malformed"},
		{"more after it", "POST", "/v1/messages", good + `{}`, nil, 400, "malformed"},
		{"bad UTF-8", "POST", "/v1/messages", strings.Replace(good, `"home"`, "\"h\xffme\"", 1), nil, 400, "malformed"},
		{"no JSON", "POST", "/v1/messages", `MARKER`, nil, 400, "malformed"},
		{"large body", "POST", "/v1/messages", good + strings.Repeat(" ", MaxBody), nil, 413, "too_big"},
		{"large message", "POST", "/v1/messages", `{"author":"` + author + `","message":{"ct":"` + strings.Repeat("A", custody.MaxMessage) + `"}}`, nil, 413, "too_big"},
		{"large op of before", "POST", "/v1/legacy", `{"bot":"a","author":"b","message":{"ct":"` + strings.Repeat("A", custody.MaxMessage) + `"}}`, nil, 413, "too_big"},
		{"form", "POST", "/v1/messages", good, func(r *http.Request) { r.Header.Set("Content-Type", "text/plain") }, 415, "media_type"},
		{"no media type", "POST", "/v1/messages", good, func(r *http.Request) { r.Header.Del("Content-Type") }, 415, "media_type"},
		{"method", "GET", "/v1/messages", "", nil, 405, "method"},
		{"method of a read", "POST", "/v1/bots", "{}", nil, 405, "method"},
		{"HEAD", "HEAD", "/v1/bots", "", nil, 405, "method"},
		{"path", "GET", "/v1/nothing", "", nil, 404, "not_found"},
		{"slash", "GET", "/v1/bots/", "", nil, 404, "not_found"},
		{"escaped", "GET", "/v1%2fbots", "", nil, 404, "not_found"},
		{"query", "GET", "/v1/bots?x=1", "", nil, 400, "malformed"},
		{"body of a read", "GET", "/v1/bots", "{}", nil, 400, "malformed"},
		{"origin", "GET", "/v1/bots", "", func(r *http.Request) { r.Header.Set("Origin", "http://sidecar") }, 403, "browser"},
		{"null origin", "GET", "/healthz", "", func(r *http.Request) { r.Header.Set("Origin", "null") }, 403, "browser"},
		{"navigation", "GET", "/v1/bots", "", func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "none") }, 403, "browser"},
		{"op of before for another bot", "POST", "/v1/legacy", `{"bot":"a","author":"b","message":{}}`, nil, 404, "not_mine"},
		{"no op of before", "POST", "/v1/legacy", `{"bot":"` + string(s.bot.ID()) + `","author":"b","message":{"v":2}}`, nil, 400, "malformed"},
		{"op of before without bot", "POST", "/v1/legacy", `{"author":"b","message":{}}`, nil, 400, "malformed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			edit := func(r *http.Request) {
				if c.edit != nil {
					c.edit(r)
				}
			}
			w := s.call(c.method, c.path, c.body, edit)
			if w.Code != c.status || code(w.Body.Bytes()) != c.code {
				t.Errorf("%d %s, want %d %s", w.Code, w.Body, c.status, c.code)
			}
			if strings.Contains(w.Body.String(), "MARKER") {
				t.Errorf("it repeats what was sent: %s", w.Body)
			}
			if c.status == 405 && w.Header().Get("Allow") == "" {
				t.Error("no Allow")
			}
		})
	}
}

func TestBearerAndHost(t *testing.T) {
	const token = "bearer-MARKER-0123456789"
	var log strings.Builder
	s := newStage(t, func(c *Config) {
		c.Bearer, c.Host = integrations.NewSecret(token), "127.0.0.1:8390"
		c.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	})
	for _, c := range []struct {
		name, path, host string
		auth             []string
		status           int
	}{
		{"right", "/v1/bots", "127.0.0.1:8390", []string{"Bearer " + token}, 200},
		{"scheme in small letters", "/v1/bots", "127.0.0.1:8390", []string{"bearer " + token}, 200},
		{"none", "/v1/bots", "127.0.0.1:8390", nil, 401},
		{"empty", "/v1/bots", "127.0.0.1:8390", []string{"Bearer "}, 401},
		{"wrong", "/v1/bots", "127.0.0.1:8390", []string{"Bearer " + token + "x"}, 401},
		{"basic", "/v1/bots", "127.0.0.1:8390", []string{"Basic " + token}, 401},
		{"bare", "/v1/bots", "127.0.0.1:8390", []string{token}, 401},
		{"two", "/v1/bots", "127.0.0.1:8390", []string{"Bearer " + token, "Bearer " + token}, 401},
		{"unknown path tells nothing", "/v1/nothing", "127.0.0.1:8390", nil, 401},
		{"health needs none", "/healthz", "127.0.0.1:8390", nil, 200},
		{"a name that leads here", "/v1/bots", "evil.example:8390", []string{"Bearer " + token}, 421},
		{"localhost", "/healthz", "localhost:8390", nil, 421},
		{"another port", "/v1/bots", "127.0.0.1:80", []string{"Bearer " + token}, 421},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.t = t
			w := s.call("GET", c.path, "", func(r *http.Request) {
				r.Host = c.host
				r.Header["Authorization"] = c.auth
			})
			if w.Code != c.status {
				t.Errorf("%d %s, want %d", w.Code, w.Body, c.status)
			}
		})
	}
	if strings.Contains(log.String(), "MARKER") || !strings.Contains(log.String(), `"route":"GET /v1/bots"`) {
		t.Errorf("the log is %s", log.String())
	}
}

func TestReads(t *testing.T) {
	now := time.Now()
	s := newStage(t, func(c *Config) {
		c.Links = func() []Link { return []Link{{Bot: "helper", Connected: true, Since: 5, Cursor: 7}} }
		c.Now = func() time.Time { return now.Add(time.Minute) }
	})
	var bots botsAnswer
	if w := s.call("GET", "/v1/bots", ""); json.Unmarshal(w.Body.Bytes(), &bots) != nil || len(bots.Bots) != 1 {
		t.Fatalf("bots: %s", w.Body)
	}
	if b := bots.Bots[0]; b.Name != "helper" || b.ID != s.bot.ID() || b.Group != "group-1" || b.Day.Key.IsZero() || b.Day.Until <= now.Unix() {
		t.Errorf("the bot is %+v", b)
	}
	var services servicesAnswer
	if w := s.call("GET", "/v1/services", ""); json.Unmarshal(w.Body.Bytes(), &services) != nil {
		t.Fatalf("services: %s", w.Body)
	}
	ops := 0
	for _, m := range s.registry.All() {
		i := slices.IndexFunc(services.Services, func(x *serviceInfo) bool { return x.ID == m.ID })
		if i < 0 || len(services.Services[i].Ops) != len(m.Ops) {
			t.Fatalf("%s is not offered whole", m.ID)
		}
		for j, o := range services.Services[i].Ops {
			if ops++; o.Name != m.Ops[j].Name || o.Access != m.Ops[j].Access || o.Title == "" || len(o.Args) != len(m.Ops[j].Args) {
				t.Errorf("%s: %+v", m.ID, o)
			}
		}
	}
	if ops == 0 {
		t.Error("no operation was looked at")
	}
	var status statusAnswer
	if w := s.call("GET", "/v1/status", ""); json.Unmarshal(w.Body.Bytes(), &status) != nil {
		t.Fatalf("status: %s", w.Body)
	}
	if status.Version != "1.2.3" || status.Uptime < 59 || status.Bots != 1 || len(status.Links) != 1 || status.Counters.Started == 0 {
		t.Errorf("the status is %+v", status)
	}
	if w := s.call("GET", "/v1/outbox", ""); w.Body.String() != `{"handbacks":[]}` {
		t.Errorf("outbox: %s", w.Body)
	}
	if w := s.call("GET", "/healthz", ""); w.Code != 200 {
		t.Errorf("healthz: %s", w.Body)
	}
}

func TestLegacy(t *testing.T) {
	s := newStage(t, nil)
	grant := must(custody.SealLegacyGrant(s.bot.Public(), custody.LegacyGrant{Token: integrations.NewSecret("dnsimple-fake"), ExpiresAt: time.Now().Add(time.Minute).Unix()}))
	op := map[string]any{"type": "connect.op", "id": "o1", "op": "list", "grant": grant}
	body := string(must(json.Marshal(map[string]any{"bot": s.bot.ID(), "author": s.ada.ID(), "message": op})))
	var out custody.LegacyResult
	w := s.call("POST", "/v1/legacy", body)
	if json.Unmarshal(w.Body.Bytes(), &out) != nil || !out.OK || len(out.Domains) != 1 || out.Domains[0].Name != "example.com" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// TestStopping: what comes after the end is told to come again.
func TestStopping(t *testing.T) {
	s := newStage(t, nil)
	if err := s.cfg.Sidecar.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	w := s.call("POST", "/v1/messages", s.post(s.op(nil)))
	if w.Code != 503 || code(w.Body.Bytes()) != "stopping" || w.Header().Get("Retry-After") == "" {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := s.call("GET", "/healthz", ""); w.Code != 503 || code(w.Body.Bytes()) != "temporary" {
		t.Errorf("healthz: %d %s", w.Code, w.Body)
	}
}

// TestPanic: a fault in one request ends neither the process nor tells what was in it.
func TestPanic(t *testing.T) {
	var log strings.Builder
	s := newStage(t, func(c *Config) {
		c.Links = func() []Link { panic("MARKER") }
		c.Logger = slog.New(slog.NewJSONHandler(&log, nil))
	})
	if w := s.call("GET", "/v1/status", ""); w.Code != 500 || strings.Contains(w.Body.String()+log.String(), "MARKER") || !strings.Contains(log.String(), "panicked") {
		t.Errorf("%d %s\n%s", w.Code, w.Body, log.String())
	}
}

func TestNewNeedsSidecar(t *testing.T) {
	if _, err := New(Config{}); err == nil {
		t.Error("an API without a sidecar is made")
	}
}

// FuzzBody: whatever the body is, there is an answer as described, and nothing of the body
// in an error.
func FuzzBody(f *testing.F) {
	s := newStage(f, nil)
	good := s.post(s.op(nil))
	for _, seed := range []string{good, `{"bot":"a","author":"b","message":{"type":"connect.op"}}`, `null`, `[]`, `{"message":` + strings.Repeat("[", 70) + strings.Repeat("]", 70) + `}`, "", "\xef\xbb\xbf{}"} {
		f.Add(seed, true)
		f.Add(seed, false)
	}
	f.Fuzz(func(t *testing.T, body string, legacy bool) {
		s.t = t
		path := "/v1/messages"
		if legacy {
			path = "/v1/legacy"
		}
		w := s.call("POST", path, body, func(r *http.Request) { r.Header.Set("Content-Type", "application/json") })
		if w.Code != 200 && (w.Code < 400 || w.Code >= 500) {
			t.Errorf("%d %s", w.Code, clip(w.Body.String()))
		}
	})
}
