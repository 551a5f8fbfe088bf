package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"code.dny.dev/ssrf"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/integrations"
)

// A doctorTest is a running broker, and an environment that a doctor looks at.
type doctorTest struct {
	*brokertest.Server
	env map[string]string
}

func keyText(k broker.Key) string {
	return k.ID + ":" + base64.RawURLEncoding.EncodeToString(k.Secret[:])
}

// newDoctorTest runs a broker with the environment's own clients: GitHub, and Acme, whose hosts
// no list has. o.Config has the last word on the broker, and front stands before it.
func newDoctorTest(t *testing.T, o brokertest.Options, env map[string]string) *doctorTest {
	t.Helper()
	d := &doctorTest{env: map[string]string{
		"CONNECT_PUBLIC_URL":           brokertest.Origin,
		"LCHAT_OAUTH_GITHUB_CLIENT_ID": "client-github", "LCHAT_OAUTH_GITHUB_CLIENT_SECRET": "secret_" + brokertest.Sentinel + "_github+/=%",
		"LCHAT_OAUTH_ACME_CLIENT_ID": "client-acme", "LCHAT_OAUTH_ACME_CLIENT_SECRET": "secret_" + brokertest.Sentinel + "_acme+/=%", "LCHAT_OAUTH_ACME_HOSTS": "auth.acme.example",
	}}
	last := o.Config
	o.Config = func(c *broker.Config) {
		running := maps.Clone(d.env) // what the doctor's environment becomes later is not the broker's
		maps.Copy(running, env)
		c.Secrets, c.Now = broker.Env{Getenv: func(name string) string { return running[name] }}, time.Now
		if list := running["CONNECT_SERVICES"]; list != "" {
			c.Services = strings.Split(list, ",")
		}
		if last != nil {
			last(c)
		}
	}
	d.Server = brokertest.New(t, o)
	d.Clock.Advance(time.Since(d.Clock.Now()))
	d.env["CONNECT_STATE_KEYS"], d.env["CONNECT_WRAPPING_KEYS"] = keyText(d.Config.StateKeys[0]), keyText(d.Config.WrapKeys[0])
	k := d.Config.InstanceKeys[0]
	d.env["CONNECT_INSTANCE_KEYS"] = k.ID + ":" + base64.RawURLEncoding.EncodeToString(k.Key)
	maps.Copy(d.env, env)
	return d
}

// examine runs a doctor and returns what it found, and the exit code.
func (d *doctorTest) examine(t *testing.T, set func(*doctor, *broker.Config)) ([]finding, int) {
	t.Helper()
	var text, asJSON bytes.Buffer
	doc := &doctor{c: &cli{in: os.Stdin, out: &text, err: &text}, timeout: 2 * time.Second,
		getenv: func(name string) string { return d.env[name] },
		environ: func() []string {
			var all []string
			for k, v := range d.env {
				all = append(all, k+"="+v)
			}
			return all
		}}
	if set == nil {
		set = func(*doctor, *broker.Config) {}
	}
	set(doc, new(broker.Config))
	s, err := doc.configure(t.Context(), func(c *broker.Config) {
		c.Registry, c.RootCAs, c.Now, c.UpstreamTimeout = d.Registry, d.CA.Pool(), time.Now, 2*time.Second
		c.ConnectTo = maps.Clone(d.Config.ConnectTo)
		c.ConnectTo["broker.test:443"] = d.Addr
		set(new(doctor), c)
	})
	if err != nil {
		t.Fatal(err)
	}
	token := ""
	if doc.tokenFile != "" {
		data, err := os.ReadFile(doc.tokenFile)
		if err != nil {
			t.Fatal(err)
		}
		token = strings.TrimSpace(string(data))
	}
	doc.examine(t.Context(), s, token)
	code := exitCode(doc.finish())
	doc.asJSON, doc.c.out = true, &asJSON
	if again := exitCode(doc.finish()); again != code {
		t.Errorf("exit code %d, with --json %d", code, again)
	}
	var out struct {
		OK       bool
		Findings []finding
	}
	if err := json.Unmarshal(asJSON.Bytes(), &out); err != nil {
		t.Fatalf("%v: %s", err, asJSON.Bytes())
	}
	if out.OK != (code == 0) {
		t.Errorf("exit code %d, and --json says ok: %v", code, out.OK)
	}
	holdsNoSecret(t, text.String()+asJSON.String(), d.env, token)
	for line := range strings.Lines(text.String()) {
		words := strings.Fields(line)
		if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > 80 && len(words) > 2 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	return out.Findings, code
}

// holdsNoSecret looks for everything secret of an environment in what was printed.
func holdsNoSecret(t *testing.T, printed string, env map[string]string, more ...string) {
	t.Helper()
	for name, v := range env {
		switch {
		case strings.HasSuffix(name, "_CLIENT_SECRET"):
			more = append(more, v, strings.TrimSpace(v), strings.Trim(v, `"'`))
		case name == "CONNECT_STATE_KEYS", name == "CONNECT_WRAPPING_KEYS":
			for k := range strings.SplitSeq(v, ",") {
				_, key, _ := strings.Cut(k, ":")
				more = append(more, key)
				if b, err := base64.RawURLEncoding.DecodeString(key); err == nil {
					more = append(more, string(b))
				}
			}
		}
	}
	forms := []string{brokertest.Sentinel}
	for _, s := range more {
		if len(s) < 8 { // a word such as x is in every text
			continue
		}
		forms = append(forms, s, url.QueryEscape(s), url.PathEscape(s), hex.EncodeToString([]byte(s)), strings.ToUpper(hex.EncodeToString([]byte(s))))
		for i := range 3 { // where it stands among base64's groups of three
			for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				b := enc.EncodeToString([]byte(strings.Repeat("x", i) + s))
				forms = append(forms, b[4:len(b)-4])
			}
		}
	}
	for _, f := range forms {
		if f != "" && strings.Contains(printed, f) {
			t.Errorf("a secret is printed, as %q:\n%s", f, printed)
		}
	}
}

// has says whether there is a finding at a level whose text or mend holds want.
func has(all []finding, about, check, level, want string) bool {
	return slices.ContainsFunc(all, func(f finding) bool {
		return f.About == about && f.Check == check && f.Level == level && (strings.Contains(f.Text, want) || strings.Contains(f.Mend, want))
	})
}

func faults(all []finding) (n int) {
	for _, f := range all {
		if f.Level == levelFault {
			n++
		}
	}
	return n
}

func foundText(t *testing.T, all []finding) string {
	var b strings.Builder
	if err := printFindings(&b, all); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestDoctorFindsNothing at a broker that is as it should be, and asks each provider twice.
func TestDoctorFindsNothing(t *testing.T) {
	d := newDoctorTest(t, brokertest.Options{}, nil)
	d.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Service == "github" && c.Kind == brokertest.Token {
			return brokertest.JSON(200, map[string]string{"error": "bad_verification_code"})
		}
		return nil
	})
	all, code := d.examine(t, nil)
	if code != 0 || faults(all) != 0 {
		t.Errorf("exit code %d\n%s", code, foundText(t, all))
	}
	for _, w := range []struct{ about, check, level, want string }{
		{"broker", "state-keys", levelOK, `1 state key: s1`}, {"broker", "wrapping-keys", levelOK, `"w1", wraps`}, {"broker", "instance-keys", levelOK, "i1"},
		{"broker", "without", levelNote, "dnsimple, hubspot, linear, stripe"}, {"broker", "clock", levelOK, "broker.test, auth.acme.example, github.com"},
		{"github", "app", levelOK, "complete"}, {"github", "hosts", levelOK, "own hosts"}, {"github", "there", levelOK, "broker.test offers it, with this client"},
		{"github", "provider", levelOK, "(bad_verification_code)"}, {"github", "redirect", levelNote, "https://broker.test/oauth/github/callback"},
		{"github", "redirect", levelOK, "it is registered"}, {"github", "scopes", levelNote, "no scopes"},
		{"acme", "hosts", levelWarning, "auth.acme.example"}, {"acme", "provider", levelOK, "(invalid_grant)"},
		{"acme", "scopes", levelNote, "to read: tickets:read profile"}, {"acme", "scopes", levelNote, "to write, also: tickets:write"},
	} {
		if !has(all, w.about, w.check, w.level, w.want) {
			t.Errorf("no %s of %s, %s: %q\n%s", w.level, w.about, w.check, w.want, foundText(t, all))
		}
	}
	if n, m := d.Upstream.Count(brokertest.Token), d.Upstream.Count(brokertest.Authorize); n != 2 || m != 2 || d.Upstream.Secret() != 2 {
		t.Errorf("the providers were asked for %d tokens and %d pages, %d secrets", n, m, d.Upstream.Secret())
	}
	d.Upstream.Reset()
	if all, code = d.examine(t, func(d *doctor, _ *broker.Config) { d.service = "acme" }); code != 0 || has(all, "github", "app", levelOK, "") || d.Upstream.Count() != 2 {
		t.Errorf("acme alone: exit code %d, %d calls\n%s", code, d.Upstream.Count(), foundText(t, all))
	}
	d.Upstream.Reset()
	logged := d.Logs()
	if all, code = d.examine(t, func(d *doctor, _ *broker.Config) { d.offline = true }); code != 0 || d.Upstream.Count() != 0 || d.Logs() != logged {
		t.Errorf("offline: exit code %d, %d calls\n%s", code, d.Upstream.Count(), foundText(t, all))
	}
}

// TestDoctorReadsConfiguration: what is wrong with the environment alone.
func TestDoctorReadsConfiguration(t *testing.T) {
	own := newDoctorTest(t, brokertest.Options{}, nil)
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, c := range []struct {
		env                       map[string]string
		secrets                   string
		about, check, level, want string
	}{
		{map[string]string{"CONNECT_PUBLIC_URL": ""}, "", "broker", "configuration", levelFault, "CONNECT_PUBLIC_URL is not set"},
		{map[string]string{"CONNECT_PUBLIC_URL": "https://broker.test/prod"}, "", "broker", "configuration", levelFault, "no path"},
		{map[string]string{"CONNECT_PUBLIC_URL": "https://Broker.test:443"}, "", "broker", "url", levelWarning, "its one form, https://broker.test"},
		{map[string]string{"CONNECT_STATE_KEYS": ""}, "", "broker", "configuration", levelFault, "CONNECT_STATE_KEYS is not set"},
		{map[string]string{"CONNECT_STATE_KEYS": own.env["CONNECT_WRAPPING_KEYS"]}, "", "broker", "one-key", levelFault, "one secret has two uses"},
		{map[string]string{"CONNECT_WRAPPING_KEYS": keyText(brokertest.NewKey("a")) + "," + keyText(brokertest.NewKey("a"))}, "", "broker", "configuration", levelFault, `two keys are called "a"`},
		{map[string]string{"CONNECT_WRAPPING_KEYS": keyText(brokertest.NewKey("new")) + "," + own.env["CONNECT_WRAPPING_KEYS"]}, "", "broker", "wrapping-keys", levelOK, `2 wrapping keys: new, w1; the first, "new", wraps`},
		{map[string]string{"CONNECT_WRAPPING_KEYS": own.env["CONNECT_WRAPPING_KEYS"] + "," + strings.Replace(own.env["CONNECT_WRAPPING_KEYS"], "w1", "w2", 1)}, "", "broker", "wrapping-keys", levelWarning, "are one key"},
		{map[string]string{"CONNECT_INSTANCE_KEYS": ""}, "", "broker", "instance-keys", levelWarning, "no refresh or revocation is answered"},
		{map[string]string{"CONNECT_RETURN_ORIGINS": "https://broker.test"}, "", "broker", "configuration", levelFault, "broker's own origin"},
		{map[string]string{"CONNECT_INSTANCE_RATE": "fast"}, "", "broker", "configuration", levelFault, "CONNECT_INSTANCE_RATE is a number"},
		{map[string]string{"CONNECT_SERVICES": "github,acne"}, "", "broker", "configuration", levelFault, "CONNECT_SERVICES entry 2"},
		{map[string]string{"CONNECT_SERVICES": "github,linear"}, "", "linear", "app", levelFault, "there is no OAuth app"},
		{map[string]string{"CONNECT_SERVICES": "linear"}, "", "github", "app", levelWarning, "CONNECT_SERVICES does not list it"},
		{map[string]string{"LCHAT_OAUTH_GITHB_CLIENT_ID": "x"}, "", "broker", "unknown", levelWarning, "LCHAT_OAUTH_GITHB_CLIENT_ID names no service"},
		{map[string]string{"LCHAT_OAUTH_LINEAR_CLIENT_SECRET": "longer than eight"}, "", "linear", "app", levelFault, "LCHAT_OAUTH_LINEAR_CLIENT_ID is not set"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_SECRET": ""}, "", "github", "app", levelFault, "LCHAT_OAUTH_GITHUB_CLIENT_SECRET is not set"},
		{map[string]string{"LCHAT_DNSIMPLE_CLIENT_ID": "x"}, "", "dnsimple", "app", levelFault, "LCHAT_DNSIMPLE_CLIENT_SECRET is not set"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_SECRET": "secret-of-github\n"}, "", "github", "app", levelFault, "LCHAT_OAUTH_GITHUB_CLIENT_SECRET begins or ends with a space or a line break"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_SECRET": `"secret-of-github"`}, "", "github", "app", levelFault, "stands in quotes"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_ID": "<client id>"}, "", "github", "app", levelFault, "is a placeholder"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_ID": "client‑github"}, "", "github", "app", levelFault, "a letter that no provider uses"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_ID": "secret-of-github", "LCHAT_OAUTH_GITHUB_CLIENT_SECRET": "secret-of-github"}, "", "github", "app", levelFault, "are the same"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_HOSTS": "github.com"}, "", "github", "hosts", levelFault, "does not name api.github.com"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_HOSTS": "https://github.com"}, "", "github", "app", levelFault, "LCHAT_OAUTH_GITHUB_HOSTS holds what is no plain host name"},
		{map[string]string{"LCHAT_OAUTH_GITHUB_HOSTS": "github.com,api.github.com"}, "", "github", "hosts", levelWarning, "github.com, api.github.com by LCHAT_OAUTH_GITHUB_HOSTS"},
		{map[string]string{"LCHAT_OAUTH_ACME_HOSTS": ""}, "", "acme", "hosts", levelFault, "the built-in list does not let the secret go to auth.acme.example"},
		{nil, write("open.json", `{}`, 0o644), "broker", "configuration", levelFault, "can be read by others (mode 0644)"},
		{nil, write("open2.json", `{}`, 0o640), "broker", "configuration", levelFault, "chmod 600 it"},
		{nil, write("odd.json", `{"github": {"client_id": "a ", "client_secret": "longer-than-eight"}}`, 0o600), "broker", "configuration", levelFault, `"github": an OAuth client holds a space at an end`},
		{nil, write("name.json", `{"githb": {"client_id": "a"}}`, 0o600), "broker", "unknown", levelWarning, `no service of the registry with OAuth "githb"`},
		{nil, write("half.json", `{"github": {"client_id": "a"}}`, 0o600), "github", "app", levelFault, `client_secret of "github" in the secrets file is not set`},
		{nil, write("good.json", `{"github": {"client_id": "a", "client_secret": "longer-than-eight"}}`, 0o600), "broker", "secrets-file", levelOK, "holds 1 client"},
		{nil, write("both.json", `{}`, 0o600), "broker", "not-read", levelWarning, "LCHAT_OAUTH_GITHUB_CLIENT_ID"},
	} {
		d := &doctorTest{own.Server, maps.Clone(own.env)}
		maps.Copy(d.env, c.env)
		all, code := d.examine(t, func(doc *doctor, _ *broker.Config) { doc.offline, doc.secrets = true, c.secrets })
		if !has(all, c.about, c.check, c.level, c.want) {
			t.Errorf("%v: no %s of %s, %s: %q\n%s", slices.Sorted(maps.Keys(c.env)), c.level, c.about, c.check, c.want, foundText(t, all))
		}
		if want := map[string]int{levelFault: 1}[c.level]; code != want && !(code == 1 && want == 0 && c.env["CONNECT_SERVICES"] == "linear") {
			t.Errorf("%v: exit code %d\n%s", slices.Sorted(maps.Keys(c.env)), code, foundText(t, all))
		}
		for _, f := range all {
			if f.Level == levelFault && f.Mend == "" {
				t.Errorf("%v: %q has no mend", slices.Sorted(maps.Keys(c.env)), f.Text)
			}
		}
	}
}

// standsIn is whatever has the broker's name, for some paths; the broker answers the rest.
func standsIn(at func(w http.ResponseWriter, r *http.Request) bool) func(http.Handler) http.Handler {
	return func(b http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !at(w, r) {
				b.ServeHTTP(w, r)
			}
		})
	}
}

// TestDoctorLooksAtPublicURL: whoever has the broker's name in its place is told apart.
func TestDoctorLooksAtPublicURL(t *testing.T) {
	says := func(status int, contentType, body string, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", contentType)
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
			return true
		}
	}
	at := func(prefix string, f func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			return strings.HasPrefix(r.URL.Path, prefix) && f(w, r)
		}
	}
	key := brokertest.NewKey("s1")
	for _, c := range []struct {
		name   string
		front  func(http.ResponseWriter, *http.Request) bool
		config func(*broker.Config)
		env    map[string]string // of the broker that runs there
		about  string
		want   string
	}{
		{"a page", says(200, "text/html", "<h1>Welcome</h1>"), nil, nil, "broker", "https://broker.test/healthz a web page answers (200)"},
		{"a page on all but healthz", at("/api", says(200, "text/html", "<h1>Welcome</h1>")), nil, nil, "github", "a web page answers (200)"},
		{"a redirect", says(301, "text/plain", "", "Location", "https://www.broker.test/healthz?code=x"), nil, nil, "broker", "redirects (301) to https://www.broker.test"},
		{"a stage prefix", says(403, "application/json", `{"message":"Forbidden"}`), nil, nil, "broker", "behind a stage prefix"},
		{"no route", at("/oauth", says(404, "application/json", `{"message":"Not Found"}`)), nil, nil, "github", "a gateway answers 404"},
		{"a proxy without a broker", says(502, "text/html", "<h1>Bad Gateway</h1>"), nil, nil, "broker", "a proxy answers 502"},
		{"another program", says(200, "application/json", `{"status":"up"}`), nil, nil, "broker", "answers 200 that is no broker of this kind"},
		{"CORS", at("/oauth", func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Access-Control-Allow-Origin", "*")
			return false
		}), nil, nil, "github", "CORS headers"},
		{"a proxy that drops Origin", at("/oauth", func(_ http.ResponseWriter, r *http.Request) bool { r.Header.Del("Origin"); return false }), nil, nil, "github", "drops cookies or Origin"},
		{"other state keys", nil, func(c *broker.Config) { c.StateKeys = []broker.Key{key} }, nil, "github", "a state key that is not in CONNECT_STATE_KEYS"},
		{"another client", nil, nil, map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_ID": "older"}, "github", "another client id"},
		{"another app", nil, func(c *broker.Config) { c.Apps = map[string]string{"github": "other"} }, nil, "github", "public name"},
		{"no client there", nil, nil, map[string]string{"LCHAT_OAUTH_GITHUB_CLIENT_ID": ""}, "github", "offered by this environment and not by the broker"},
		{"a client there alone", nil, nil, map[string]string{"LCHAT_OAUTH_LINEAR_CLIENT_ID": "x", "LCHAT_OAUTH_LINEAR_CLIENT_SECRET": "y"}, "linear", "offered by the broker at broker.test and not by this environment"},
		{"another origin", nil, func(c *broker.Config) { c.PublicURL = "https://connect.test" }, nil, "github", "takes itself for another origin"},
	} {
		d := newDoctorTest(t, brokertest.Options{Config: func(b *broker.Config) {
			if c.env != nil {
				env := b.Secrets.(broker.Env).Getenv
				b.Secrets = broker.Env{Getenv: func(name string) string {
					if v, ok := c.env[name]; ok {
						return v
					}
					return env(name)
				}}
			}
			if c.config != nil {
				c.config(b)
			}
		}, Wrap: standsIn(func(w http.ResponseWriter, r *http.Request) bool { return c.front != nil && c.front(w, r) })}, nil)
		if c.name == "other state keys" {
			d.env["CONNECT_STATE_KEYS"] = keyText(brokertest.NewKey("s1"))
		}
		all, code := d.examine(t, nil)
		level, wantCode := levelFault, 1
		if c.name == "CORS" {
			level, wantCode = levelWarning, 0
		}
		if !has(all, c.about, "reach", level, c.want) && !has(all, c.about, "there", level, c.want) || code != wantCode {
			t.Errorf("%s: exit code %d, no %s of %s: %q\n%s", c.name, code, level, c.about, c.want, foundText(t, all))
		}
		if strings.Contains(foundText(t, all), "code=x") {
			t.Errorf("%s: the whole of an address is printed\n%s", c.name, foundText(t, all))
		}
	}
	// Nobody there at all.
	d := newDoctorTest(t, brokertest.Options{}, nil)
	all, code := d.examine(t, func(_ *doctor, c *broker.Config) {
		if c.ConnectTo != nil {
			c.ConnectTo["broker.test:443"] = "127.0.0.1:1"
		}
	})
	if !has(all, "broker", "reach", levelFault, "the connection is refused") || code != 1 {
		t.Errorf("nobody: exit code %d\n%s", code, foundText(t, all))
	}
	if !has(all, "github", "provider", levelOK, "knows the app") {
		t.Errorf("the provider was not asked:\n%s", foundText(t, all))
	}
}

// TestDoctorElsewhere: for the functions, the origin is enough; their own config lists what
// nothing stands behind.
func TestDoctorElsewhere(t *testing.T) {
	lists := standsIn(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != "/api/oauth/config" {
			return false
		}
		id := r.URL.Query().Get("service")
		fmt.Fprintf(w, `{"service":%q,"configured":%v}`, id, id == "github" || id == "linear")
		return true
	})
	d := newDoctorTest(t, brokertest.Options{Wrap: lists}, nil)
	d.env = map[string]string{"CONNECT_PUBLIC_URL": brokertest.Origin}
	all, code := d.examine(t, func(d *doctor, _ *broker.Config) { d.elsewhere = true })
	if code != 1 || faults(all) != 1 || !has(all, "linear", "there", levelFault, "says that it is configured, and its consent page says") ||
		!has(all, "github", "there", levelOK, "begins a sign-in with this redirect address") {
		t.Errorf("exit code %d\n%s", code, foundText(t, all))
	}
	if d.Upstream.Count() != 0 {
		t.Errorf("%d calls to providers, whose apps are not known here", d.Upstream.Count())
	}
}

// TestDoctorAsksProviders: what they say, and what comes in place of it.
func TestDoctorAsksProviders(t *testing.T) {
	d := newDoctorTest(t, brokertest.Options{}, map[string]string{"CONNECT_SERVICES": "github"})
	raw := func(f http.HandlerFunc) *brokertest.Answer { return &brokertest.Answer{Raw: f} }
	hijack := func(w http.ResponseWriter, _ *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		c.(interface{ NetConn() net.Conn }).NetConn().Close()
	}
	for _, c := range []struct {
		name        string
		token, page *brokertest.Answer
		check       string
		level, want string
		code        int
	}{
		{"wrong secret", brokertest.JSON(200, map[string]string{"error": "incorrect_client_credentials"}), nil, "provider", levelFault, "its id or its secret is wrong", 1},
		{"wrong redirect", brokertest.JSON(200, map[string]string{"error": "redirect_uri_mismatch"}), nil, "provider", levelFault, "https://broker.test/oauth/github/callback is not as registered", 1},
		{"may not", brokertest.JSON(400, map[string]string{"error": "unauthorized_client"}), nil, "provider", levelFault, "refuses what it asks", 1},
		{"unclear", brokertest.JSON(404, map[string]string{"error": "Not Found"}), nil, "provider", levelWarning, "answered 404", 0},
		{"a secret in the code", brokertest.JSON(400, map[string]string{"error": d.env["LCHAT_OAUTH_GITHUB_CLIENT_SECRET"]}), nil, "provider", levelWarning, "answered 400", 0},
		{"a page", &brokertest.Answer{Status: 502, Header: http.Header{"Content-Type": {"text/html"}}, Body: "<h1>Bad Gateway</h1>"}, nil, "provider", levelWarning, "a web page answers", 6},
		{"trouble", brokertest.JSON(500, map[string]string{"error": "x"}), nil, "provider", levelWarning, "it is in trouble", 6},
		{"a limit", brokertest.JSON(429, map[string]string{}), nil, "provider", levelWarning, "limits how often", 6},
		{"cut", raw(hijack), nil, "provider", levelWarning, "the connection was cut", 6},
		{"slow", raw(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }), nil, "provider", levelWarning, "did not answer in time", 6},
		{"half", raw(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, `{"error":`)
		}), nil, "provider", levelWarning, "cannot be read", 6},
		{"page says no", nil, &brokertest.Answer{Status: 400, Body: "The redirect_uri is not associated with this application."}, "redirect", levelFault, "refuses the redirect address (400)", 1},
		{"page refuses scopes", nil, &brokertest.Answer{Status: 302, Header: http.Header{"Location": {"https://broker.test/oauth/github/callback?error=invalid_scope&state=x"}}}, "scopes", levelFault, "may not ask for that (invalid_scope)", 1},
		{"page asks first", nil, &brokertest.Answer{Status: 302, Header: http.Header{"Location": {"/login"}}}, "redirect", levelNote, "by eye", 0},
	} {
		d.Upstream.Reset()
		d.Upstream.SetAnswer(func(call *brokertest.Call) *brokertest.Answer {
			if call.Kind == brokertest.Authorize {
				return c.page
			}
			return c.token
		})
		all, code := d.examine(t, nil)
		if !has(all, "github", c.check, c.level, c.want) || code != c.code {
			t.Errorf("%s: exit code %d, no %s: %q\n%s", c.name, code, c.level, c.want, foundText(t, all))
		}
		if n := d.Upstream.Count(brokertest.Token, brokertest.Other); n != 1 {
			t.Errorf("%s: the token endpoint was asked %d times", c.name, n)
		}
	}
}

// TestDoctorComparesClocks: of the broker's address, and of a provider.
func TestDoctorComparesClocks(t *testing.T) {
	skewed := func(by time.Duration) string { return time.Now().Add(by).UTC().Format(http.TimeFormat) }
	for _, c := range []struct {
		broker, provider time.Duration
		want             string
	}{
		{95 * time.Second, 0, "s behind that of broker.test"},
		{-95 * time.Second, 0, "s ahead of that of broker.test"},
		{0, 2 * time.Hour, "this machine's clock is 2h0m"},
		{20 * time.Second, -20 * time.Second, ""},
	} {
		d := newDoctorTest(t, brokertest.Options{Wrap: standsIn(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Date", skewed(c.broker))
			return false
		})}, map[string]string{"CONNECT_SERVICES": "github"})
		d.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer {
			a := brokertest.JSON(400, map[string]string{"error": "invalid_grant"})
			a.Header.Set("Date", skewed(c.provider))
			return a
		})
		all, code := d.examine(t, nil)
		want := 1
		level := levelFault
		if c.want == "" {
			want, level = 0, levelOK
		}
		if !has(all, "broker", "clock", level, c.want) || code != want {
			t.Errorf("%+v: exit code %d\n%s", c, code, foundText(t, all))
		}
	}
}

// TestDoctorLooksAtToken: an instance's token, and never a word of it.
func TestDoctorLooksAtToken(t *testing.T) {
	d := newDoctorTest(t, brokertest.Options{}, nil)
	file := filepath.Join(t.TempDir(), "token")
	for _, c := range []struct {
		env         map[string]string
		token       string
		level, want string
	}{
		{nil, d.Token(), levelWarning, "is taken, and ends on"}, // within a day
		{nil, d.Token()[:80], levelFault, "is not a token"},
		{map[string]string{"CONNECT_PUBLIC_URL": "https://other.test"}, d.Token(), levelFault, "its audience is not https://other.test"},
		{map[string]string{"CONNECT_REFUSED": "jti-1"}, d.Token(), levelFault, "among those that are refused"},
		{map[string]string{"CONNECT_INSTANCE_KEYS": ""}, d.Token(), levelFault, "no instance key is configured"},
		{map[string]string{"CONNECT_RETURN_ORIGINS": "https://new.test"}, d.Token(), levelWarning, "https://chat.test is in the token and not in CONNECT_RETURN_ORIGINS"},
	} {
		if err := os.WriteFile(file, []byte(c.token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		e := &doctorTest{d.Server, maps.Clone(d.env)}
		maps.Copy(e.env, c.env)
		all, code := e.examine(t, func(d *doctor, _ *broker.Config) { d.offline, d.tokenFile = true, file })
		if !has(all, "broker", "instance-token", c.level, c.want) || (code == 1) != (c.level == levelFault) {
			t.Errorf("%v: exit code %d, no %s: %q\n%s", c.env, code, c.level, c.want, foundText(t, all))
		}
	}
}

// certified starts npm's oidc-provider, a certified authorization server, that knows one
// client and one redirect address, and returns where TLS stands before it.
func certified(t *testing.T, ca *brokertest.CA, redirect string) string {
	t.Helper()
	cmd := exec.Command("node", "testdata/oidc-provider.mjs", redirect)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("oidc-provider did not start: %v", err)
	}
	to, err := url.Parse(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(to)
		r.Out.Host = r.In.Host
		r.SetXForwarded()
	}})
	front.TLS = ca.TLS()
	front.StartTLS()
	t.Cleanup(front.Close)
	return front.Listener.Addr().String()
}

// TestDoctorAsksCertifiedProvider: the app as it is, with a wrong secret, a wrong client, and
// a redirect address that is registered otherwise.
func TestDoctorAsksCertifiedProvider(t *testing.T) {
	if _, err := os.Stat("../../node_modules/oidc-provider"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("oidc-provider is not installed: npm ci")
		}
		t.Skip("oidc-provider is not installed: npm ci")
	}
	manifest, err := os.ReadFile("../../web/test/registry/oidc.json")
	if err != nil {
		t.Fatal(err)
	}
	secret := "secret_" + brokertest.Sentinel + "_oidc+/=%"
	d := newDoctorTest(t, brokertest.Options{More: map[string][]byte{"oidc": manifest}}, map[string]string{
		"LCHAT_OAUTH_OIDC_CLIENT_ID": "client-oidc", "LCHAT_OAUTH_OIDC_CLIENT_SECRET": secret, "LCHAT_OAUTH_OIDC_HOSTS": "login.certified.example",
	})
	right := certified(t, d.CA, d.Broker.RedirectURI("oidc"))
	slash := certified(t, d.CA, d.Broker.RedirectURI("oidc")+"/")
	for _, c := range []struct {
		name, at, id, secret string
		check, level, want   string
		code                 int
	}{
		{"as it is", right, "client-oidc", secret, "provider", levelOK, "refused the made-up code alone (invalid_grant)", 0},
		{"wrong secret", right, "client-oidc", secret + "x", "provider", levelFault, "its id or its secret is wrong (invalid_client)", 1},
		{"wrong client", right, "client-other", secret, "provider", levelFault, "its id or its secret is wrong (invalid_client)", 1},
		{"wrong redirect address", slash, "client-oidc", secret, "redirect", levelFault, "refuses the redirect address (400)", 1},
	} {
		e := &doctorTest{d.Server, maps.Clone(d.env)}
		e.env["LCHAT_OAUTH_OIDC_CLIENT_ID"], e.env["LCHAT_OAUTH_OIDC_CLIENT_SECRET"] = c.id, c.secret
		all, code := e.examine(t, func(d *doctor, cfg *broker.Config) {
			d.service = "oidc"
			if cfg.ConnectTo != nil {
				cfg.ConnectTo["login.certified.example:443"] = c.at
			}
		})
		if !has(all, "oidc", c.check, c.level, c.want) || code != c.code {
			t.Errorf("%s: exit code %d, no %s: %q\n%s", c.name, code, c.level, c.want, foundText(t, all))
		}
	}
	if d.Upstream.Count() != 0 {
		t.Error("another provider was asked")
	}
}

// TestDoctorProgram: the real program looks at the real program.
func TestDoctorProgram(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := selfSigned(t, "connect.example")
	pem := write("cert.pem", cert)
	secrets := write("secrets.json", []byte(`{"linear": {"client_id": "lid", "client_secret": "ls-`+secretMark+`"}}`))
	env := append(keysEnv(t), "CONNECT_PUBLIC_URL=https://connect.example")
	addr, stop := testBroker(t, env, "--cert", pem, "--key", write("key.pem", key), "--secrets-file", secrets)
	defer stop()
	run := func(env []string, more ...string) (string, int) {
		cmd := exec.Command("connect", append([]string{"broker", "doctor", "--secrets-file", secrets, "--cacert", pem, "--timeout", "5s",
			"--connect-to", "connect.example:443:" + addr, "--connect-to", "api.linear.app:443:127.0.0.1:1", "--connect-to", "linear.app:443:127.0.0.1:1"}, more...)...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if strings.Contains(string(out), secretMark) {
			t.Error("the secret is printed")
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	out, code := run(env)
	for _, want := range []string{"connect.example offers it, with this client and redirect address", "api.linear.app could not be asked: the connection is refused", "not everyone could be asked"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) || code != 6 {
			t.Errorf("exit code %d, not said: %q\n%s", code, want, out)
		}
	}
	if out, code := run(env, "--offline", "--json"); code != 0 || !strings.HasPrefix(out, `{"ok":true,"faults":0,`) {
		t.Errorf("offline: exit code %d\n%s", code, out)
	}
	if out, code := run(append(keysEnv(t), "CONNECT_PUBLIC_URL=https://connect.example")); code != 1 || !strings.Contains(out, "There is one fault.") {
		t.Errorf("with other keys: exit code %d\n%s", code, out)
	}
}

// TestDoctorKnowsClientAuth: what a client holds is held against how it is sent.
func TestDoctorKnowsClientAuth(t *testing.T) {
	for _, c := range []struct {
		style, secret      string
		check, level, want string
	}{
		{"basic", "plain-and-long-enough", "app", levelOK, "complete"},
		{"basic", "with+and/and:here", "basic", levelWarning, "the manifest says basic"},
		{"basic_raw", "with+and/and:here", "basic", levelWarning, "the manifest says basic_raw"},
		{"none", "with+and/and:here", "app", levelWarning, "its secret is never sent"},
		{"none", "", "app", levelOK, "a public client"},
		{"post", "", "app", levelFault, "the provider asks for a secret"},
	} {
		d := newDoctorTest(t, brokertest.Options{Edit: func(id string, m map[string]any) {
			if id == "acme" {
				m["auth"].(map[string]any)["oauth"].(map[string]any)["client_auth"] = c.style
			}
		}}, map[string]string{"LCHAT_OAUTH_ACME_CLIENT_SECRET": c.secret})
		all, code := d.examine(t, func(d *doctor, _ *broker.Config) { d.offline = true })
		if !has(all, "acme", c.check, c.level, c.want) || has(all, "acme", "basic", levelWarning, "") != (c.check == "basic") || (code == 1) != (c.level == levelFault) {
			t.Errorf("%s, %q: exit code %d\n%s", c.style, c.secret, code, foundText(t, all))
		}
	}
}

// TestTroubleInWords: why there was no answer, and no address in it.
func TestTroubleInWords(t *testing.T) {
	for want, err := range map[string]error{
		"not in the DNS":          &net.DNSError{Err: "no such host", Name: "x", IsNotFound: true},
		"could not be looked up":  &net.DNSError{Err: "server misbehaving", Name: "x"},
		"leads to a private":      fmt.Errorf("dial: %w", ssrf.ErrProhibitedIP),
		"for another name":        x509.HostnameError{Certificate: new(x509.Certificate), Host: "x"},
		"has ended":               x509.CertificateInvalidError{Reason: x509.Expired},
		"is not valid":            x509.CertificateInvalidError{Reason: x509.NotAuthorizedToSign},
		"without its chain":       x509.UnknownAuthorityError{},
		"does not speak TLS":      http.ErrSchemeMismatch,
		"the connection was cut":  io.ErrUnexpectedEOF,
		"did not answer in time":  context.DeadlineExceeded,
		"there was no answer":     errors.New("secret address"),
		"the connection is refus": &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
	} {
		if got := trouble(&url.Error{Op: "Get", URL: "https://x/?code=1", Err: err}); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}

// FuzzDoctorPublic: whatever has the broker's name, what is said of it is a few plain words of
// ours, and a fault has its mend.
func FuzzDoctorPublic(f *testing.F) {
	reg, err := integrations.Default()
	if err != nil {
		f.Fatal(err)
	}
	key := brokertest.NewKey("k")
	b, err := broker.New(broker.Config{Registry: reg, PublicURL: brokertest.Origin, Secrets: broker.Env{Getenv: func(string) string { return "x" }},
		StateKeys: []broker.Key{key}, WrapKeys: []broker.Key{key}})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []struct {
		status               int
		kind, location, body string
	}{
		{200, "text/html", "", "<h1>Welcome</h1>"}, {301, "", "https://www.broker.test/?code=x", ""}, {302, "", "https://\u202etset.rekorb/", ""},
		{303, "", "https://github.com/login/oauth/authorize?client_id=x&redirect_uri=https%3A%2F%2Fevil.test%2F%1b", ""}, {403, "application/json", "", `{"message":"Forbidden"}`},
		{200, "application/json", "", `{"service":"github","configured":true}`}, {502, "", "", ""}, {404, "text/html", "", "Not offered here"},
		{200, "text/html", "", `<input name="token" value="AAAAAAAAAAAAAAAAAAAAAA"><input name="agree" value="cli">`}, {200, "", "", "ok\n"},
	} {
		f.Add(s.status, s.kind, s.location, s.body)
	}
	f.Fuzz(func(t *testing.T, status int, kind, location, body string) {
		if status < 200 || status > 599 {
			return
		}
		s := &subject{cfg: broker.Config{Registry: reg, Secrets: broker.Env{Getenv: func(string) string { return "x" }}}, b: b, url: true, stateKeys: true, wrapKey: true, apps: true}
		d := &doctor{c: &cli{out: io.Discard, err: io.Discard}, timeout: time.Second}
		p := d.newThere(s)
		m := reg.Get("github")
		for _, first := range []string{"", `{"service":"github","configured":true}`} {
			p.client.Transport = answersAs(func(r *http.Request) *http.Response {
				res := &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {kind}, "Location": {location}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}
				if first != "" && r.URL.Path == "/api/oauth/config" {
					res.StatusCode, res.Header, res.Body = 200, http.Header{}, io.NopCloser(strings.NewReader(first))
				}
				return res
			})
			d.atBroker(t.Context(), s, p, m, true)
			d.begin(t.Context(), s, p, m, url.Values{"token": {"x"}}, true)
			d.elsewise(aboutBroker, p, "/healthz", &thereAnswer{status: status, header: http.Header{"Content-Type": {kind}, "Location": {location}}, body: []byte(body)})
		}
		for _, f := range d.findings {
			if text := f.Text + f.Mend; len(text) > 800 || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > 0x7e }) || f.Level == levelFault && f.Mend == "" {
				t.Errorf("%+q", f)
			}
		}
	})
}

// answersAs is a network of one program.
type answersAs func(*http.Request) *http.Response

func (f answersAs) RoundTrip(r *http.Request) (*http.Response, error) { return f(r), nil }
