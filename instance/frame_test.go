package instance_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
)

func TestFrame(t *testing.T) {
	p := start(t, func(c *instance.Config) { c.Origin = "https://chat.example" })
	host := "Host: chat.example"
	for _, c := range []struct {
		name, method, path, body string
		headers                  []string
		status                   int
		code                     string
	}{
		{"health", "GET", "/healthz", "", nil, 200, ""}, // asked by address
		{"space", "GET", "/api/space", "", []string{host}, 200, ""},
		{"with its port", "GET", "/api/space", "", []string{"Host: CHAT.example:443"}, 200, ""},
		{"own origin", "GET", "/api/space", "", []string{host, "Origin: https://chat.example", "Sec-Fetch-Site: same-origin"}, 200, ""},
		{"typed", "GET", "/api/space", "", []string{host, "Sec-Fetch-Site: none"}, 200, ""},
		{"by address", "GET", "/api/space", "", nil, 421, "host"},
		{"another host", "GET", "/api/space", "", []string{"Host: evil.example"}, 421, "host"},
		{"another port", "GET", "/api/space", "", []string{"Host: chat.example:8443"}, 421, "host"},
		{"another origin", "GET", "/api/space", "", []string{host, "Origin: https://evil.example"}, 403, "origin"},
		{"in clear", "GET", "/api/space", "", []string{host, "Origin: http://chat.example"}, 403, "origin"},
		{"no origin", "GET", "/api/space", "", []string{host, "Origin: null"}, 403, "origin"},
		{"another site", "POST", "/api/login", "{}", []string{host, "Sec-Fetch-Site: cross-site"}, 403, "origin"},
		{"a sibling", "POST", "/api/login", "{}", []string{host, "Sec-Fetch-Site: same-site"}, 403, "origin"},
		{"preflight", "OPTIONS", "/api/login", "", []string{host, "Origin: https://evil.example", "Access-Control-Request-Method: POST"}, 403, "origin"},
		{"nothing", "GET", "/", "", []string{host}, 404, "not_found"},
		{"no route", "GET", "/api/none", "", []string{host}, 404, "not_found"},
		{"another method", "GET", "/api/login", "", []string{host}, 405, "method"},
		{"a path of two forms", "GET", "/api/../api/space", "", []string{host}, 404, "not_found"},
		{"an escaped path", "GET", "/api/%73pace", "", []string{host}, 404, "not_found"},
		{"a form", "POST", "/api/login", "key=x", []string{host, "Content-Type: application/x-www-form-urlencoded"}, 415, "media_type"},
		{"a text", "POST", "/api/login", "{}", []string{host, "Content-Type: text/plain"}, 415, "media_type"},
		{"no key", "POST", "/api/login", "{}", []string{host}, 400, "malformed"},
		{"null", "POST", "/api/login", `{"key":null}`, []string{host}, 400, "malformed"},
		{"a list", "POST", "/api/login", `[]`, []string{host}, 400, "malformed"},
		{"two values", "POST", "/api/login", `{}{}`, []string{host}, 400, "malformed"},
		{"twice", "POST", "/api/login", `{"key":"a","key":"b"}`, []string{host}, 400, "malformed"},
		{"another case", "POST", "/api/login", `{"Key":"a"}`, []string{host}, 400, "malformed"},
		{"not on the curve", "POST", "/api/login", `{"key":"` + strings.Repeat("A", 87) + `"}`, []string{host}, 400, "malformed"},
		{"too large", "POST", "/api/login", `{"key":"` + strings.Repeat("A", 70000) + `"}`, []string{host}, 413, "too_large"},
		{"not UTF-8", "POST", "/api/login", "{\"key\":\"\xff\"}", []string{host}, 400, "malformed"},
	} {
		var body any
		if c.body != "" {
			body = c.body
		}
		a := p.ask(t, c.method, c.path, "", body, c.headers...)
		if a.status != c.status || a.code != c.code {
			t.Errorf("%s: %d %s, want %d %s", c.name, a.status, a.body, c.status, c.code)
		}
		h := a.header
		if h.Get("Cache-Control") != "no-store" || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" ||
			!strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("Strict-Transport-Security") == "" {
			t.Errorf("%s: %v", c.name, h)
		}
		for name := range h {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: %s", c.name, name)
			}
		}
		if a.status == 405 && h.Get("Allow") != "POST" {
			t.Errorf("%s: Allow is %q", c.name, h.Get("Allow"))
		}
	}
	if strings.Contains(p.log.String(), "evil") || strings.Contains(p.log.String(), "/api/none") {
		t.Errorf("the log holds what was sent: %s", p.log)
	}
}

// TestRate: one key is held, and told how long to wait; another is not.
func TestRate(t *testing.T) {
	p := start(t, func(c *instance.Config) { c.Rate = 1 })
	anna, boris := p.party(t, "member"), p.party(t, "member")
	limited := 0
	for range 90 {
		if a := p.ask(t, "GET", "/api/space", "", nil); a.status != 200 {
			t.Fatal(a.status)
		}
		if a := p.ask(t, "GET", "/api/threads", anna.session, nil); a.status == 429 {
			limited++
			if a.code != "too_many" || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, `"retry_after":`) {
				t.Fatalf("%s %v", a.body, a.header)
			}
		}
	}
	if limited < 20 || limited > 32 {
		t.Errorf("%d of 90 were held", limited)
	}
	if a := p.ask(t, "GET", "/api/threads", boris.session, nil); a.status != 200 {
		t.Errorf("another key: %d", a.status)
	}
}

// TestStrangersAreHeld: guesses of sessions and logins from one address have a limit.
func TestStrangersAreHeld(t *testing.T) {
	p := start(t, nil)
	anna := p.party(t, "member")
	instance.StrangerLimit(p.in)
	held := false
	for range 200 {
		held = held || p.ask(t, "GET", "/api/threads", strings.Repeat("A", 43), nil).status == 429
	}
	if !held || p.ask(t, "POST", "/api/login", "", map[string]any{"key": anna.Public()}).code != "too_many" {
		t.Errorf("held: %v", held)
	}
	if a := p.ask(t, "GET", "/api/threads", anna.session, nil); a.status != 200 {
		t.Errorf("whoever has a session: %d", a.status)
	}
}

// TestStatic: the client's files are served with a policy that lets them reach the instance and
// the broker alone.
func TestStatic(t *testing.T) {
	files := fstest.MapFS{
		"index.html": {Data: []byte("<!doctype html><title>home</title>")}, "lib/a.js": {Data: []byte("export {}")},
		"connect/done/index.html": {Data: []byte("<!doctype html><title>done</title>")}, "api/space": {Data: []byte("not this")},
	}
	p := start(t, func(c *instance.Config) { c.Static, c.Broker = files, "http://127.0.0.1:1" })
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/": {200, "home"}, "/lib/a.js": {200, "export"}, "/connect/done/": {200, "done"}, "/connect/done": {301, ""}, "/lib/": {404, ""}, "/none": {404, ""},
		"/api/space": {200, `"space":"home"`}, "/api/none": {404, "not_found"}, "/api/": {404, "not_found"},
	} {
		a := p.ask(t, "GET", path, "", nil)
		if a.status != want.status || !strings.Contains(a.body, want.text) {
			t.Errorf("%s: %d %s", path, a.status, a.body)
		}
		csp := a.header.Get("Content-Security-Policy")
		if page := !strings.HasPrefix(path, "/api/"); page != strings.Contains(csp, "connect-src 'self' http://127.0.0.1:1;") || page != strings.Contains(csp, "require-trusted-types-for 'script'") ||
			!strings.Contains(csp, "frame-ancestors 'none'") || strings.Contains(csp, "unsafe") {
			t.Errorf("%s: %s", path, csp)
		}
	}
	if a := p.ask(t, "GET", "/lib/a.js", "", nil); !strings.HasPrefix(a.header.Get("Content-Type"), "text/javascript") {
		t.Errorf("%v", a.header)
	}
	// A link from elsewhere opens the client; a request from elsewhere is none of its own.
	if a := p.ask(t, "GET", "/connect/done/", "", nil, "Sec-Fetch-Site: cross-site"); a.status != 200 {
		t.Errorf("a navigation: %d", a.status)
	}
	if a := p.ask(t, "POST", "/", "", "{}"); a.status != 405 || a.code != "method" {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// TestLogHoldsNothing: a line has a route, a status, a code and a time.
func TestLogHoldsNothing(t *testing.T) {
	p := start(t, nil)
	anna, bot := p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(t.Context(), "thread-MARKER", bot.ID()); err != nil {
		t.Fatal(err)
	}
	if err := anna.SetName(t.Context(), "name-MARKER"); err != nil {
		t.Fatal(err)
	}
	if a := p.ask(t, "PUT", "/api/blobs/blob-MARKER", anna.session, `{"MARKER":1}`); a.status != 400 || strings.Contains(a.body, "MARKER") {
		t.Errorf("%d %s", a.status, a.body)
	}
	p.ask(t, "GET", "/MARKER?MARKER=MARKER", "MARKER", nil, "User-Agent: MARKER")
	log := p.log.String()
	for _, bad := range []string{"MARKER", string(anna.ID()), string(bot.ID()), anna.session, "127.0.0.1"} {
		if strings.Contains(log, bad) {
			t.Errorf("the log holds %.10s…", bad)
		}
	}
	for line := range strings.Lines(log) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatal(err)
		}
		for name := range fields {
			switch name {
			case "time", "level", "msg", "route", "status", "code", "ms":
			default:
				t.Errorf("a line has %s: %s", name, line)
			}
		}
	}
}

// TestCodesAreDocumented: docs/instance.md lists every code that a refusal has, and none that
// no refusal has.
func TestCodesAreDocumented(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	codes := make(map[string]bool)
	for _, f := range files {
		if strings.HasSuffix(f, "_test.go") {
			continue
		}
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`refuse\(http\.Status\w+, "(\w+)"`).FindAllStringSubmatch(string(data), -1) {
			codes[m[1]] = true
		}
	}
	if len(codes) < 20 {
		t.Fatalf("found %d codes", len(codes))
	}
	page, err := os.ReadFile("../docs/instance.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(page), "## Errors")
	if !ok {
		t.Fatal("docs/instance.md has no section of errors")
	}
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(table, -1) {
		listed[m[1]] = true
	}
	for c := range codes {
		if !listed[c] {
			t.Errorf("docs/instance.md does not list %s", c)
		}
	}
	for c := range listed {
		if !codes[c] {
			t.Errorf("docs/instance.md lists %s, which nothing answers", c)
		}
	}
}

func TestSealedBytesAreKept(t *testing.T) {
	// What is relayed is what was sealed: Go's and JavaScript's readers hold its tag.
	p := start(t, nil)
	anna := p.party(t, "member")
	if err := anna.NewThread(t.Context(), "t1"); err != nil {
		t.Fatal(err)
	}
	e := say(t, anna.Identity, anna.Public(), "t1", "x")
	if a := post(t, p, anna.session, "m", "t1", e, 0); a.status != 200 {
		t.Fatal(a.body)
	}
	a := p.ask(t, "GET", "/api/messages", anna.session, nil)
	if !strings.Contains(a.body, string(marshal(t, e))) {
		t.Errorf("%s", a.body)
	}
	var s custody.Say
	if err := anna.OpenMessage(e, anna.Public(), nil, &s); err != nil {
		t.Error(err)
	}
}
