package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A world is a broker with its providers, GitHub's API, and a member's folder.
type world struct {
	*brokertest.Server
	home string
	api  *peer.Server
	ca   string // a file with both authorities
	// use, where it is set, says which token GitHub's API takes.
	use atomic.Pointer[string]
	// came, where it is set, is told each token that reaches GitHub's API.
	came atomic.Pointer[func(token string)]
	// asked counts what reached GitHub's API.
	asked atomic.Int32
}

// newWorld starts a broker at the true time.
func newWorld(t *testing.T, o brokertest.Options) *world {
	t.Helper()
	w := &world{Server: brokertest.New(t, o), home: filepath.Join(t.TempDir(), "vault")}
	w.Clock.Advance(time.Since(w.Clock.Now()))
	replay := &peer.Replay{Exchanges: []peer.Exchange{{
		Method: "GET", Path: "/user", Status: 200, Body: json.RawMessage(`{"id": 1, "login": "octocat", "name": "Octo", "type": "User", "html_url": "https://github.com/octocat"}`),
	}, {
		Method: "GET", Path: "/user/installations", Status: 200, Body: json.RawMessage(`{"total_count": 0, "installations": []}`),
	}, {
		Method: "POST", Path: "/repos/{owner}/{repo}/issues", Status: 201, Body: json.RawMessage(`{"number": 7, "html_url": "https://github.com/o/r/issues/7"}`),
	}}}
	srv, err := peer.Start(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		w.asked.Add(1)
		if f := w.came.Load(); f != nil {
			(*f)(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
		}
		if want := w.use.Load(); want != nil && r.Header.Get("Authorization") != "Bearer "+*want {
			rw.Header().Set("Content-Type", "application/json")
			rw.WriteHeader(http.StatusUnauthorized)
			io.WriteString(rw, `{"message": "Bad credentials"}`)
			return
		}
		replay.ServeHTTP(rw, r)
	}), "api.github.com")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	w.api, w.ca = srv, filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(w.ca, append(srv.CA, w.CA.PEM()...), 0o600); err != nil {
		t.Fatal(err)
	}
	return w
}

// flags are those by which the program reaches this world.
func (w *world) flags() []string {
	return []string{"--home", w.home, "--connect-to", "broker.test:443:" + w.Addr, "--connect-to", "api.github.com:443:" + w.api.Addr, "--cacert", w.ca}
}

// run runs the program in this process, in this world, with nobody to ask.
func (w *world) run(t *testing.T, words ...string) (said string, code int) {
	t.Helper()
	return w.runAs(t, append(words, w.flags()...)...)
}

// runAs runs the program with these words alone.
func (w *world) runAs(t *testing.T, words ...string) (said string, code int) {
	t.Helper()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var out strings.Builder
	code = (&cli{in: in, out: &out, err: &out}).main(t.Context(), words)
	for _, secret := range []string{brokertest.Sentinel, "rt1.", "eyJ"} {
		if strings.Contains(out.String(), secret) {
			t.Errorf("a secret (%s…) is said:\n%s", secret, out.String())
		}
	}
	return out.String(), code
}

// vault opens the member's folder.
func (w *world) vault(t *testing.T) *vault {
	t.Helper()
	v, err := (&homeFlag{dir: w.home}).open()
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// one returns the one connection that is stored.
func (w *world) one(t *testing.T) *custody.Credential {
	t.Helper()
	list, damaged, err := w.vault(t).all()
	if err != nil || len(list) != 1 || len(damaged) > 0 {
		t.Fatalf("stored: %d, damaged %d, %v", len(list), len(damaged), err)
	}
	return list[0]
}

// edit changes the one connection that is stored.
func (w *world) edit(t *testing.T, f func(*custody.Credential)) *custody.Credential {
	t.Helper()
	c := w.one(t)
	c.Generation++
	f(c)
	if err := w.vault(t).put(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// token writes a file with a token for this member, good for so long.
func (w *world) token(t *testing.T, life time.Duration, origins ...string) string {
	t.Helper()
	v, err := (&homeFlag{dir: w.home}).make()
	if err != nil {
		t.Fatal(err)
	}
	if len(origins) == 0 {
		origins = []string{"cli:" + string(v.member.ID())}
	}
	now := time.Now()
	text, err := broker.SignToken(w.InstanceKey(), "i1", broker.Claims{Origins: origins, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "instance-1", Audience: jwt.ClaimStrings{w.URL}, ID: rand.Text(), IssuedAt: jwt.NewNumericDate(now.Add(-time.Hour)), ExpiresAt: jwt.NewNumericDate(now.Add(life)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// start runs connect add github --broker in this process until it says where to go, and
// returns that address, the rest of what it says, and its exit code.
func (w *world) start(t *testing.T, words ...string) (address, number string, rest func() (string, int)) {
	t.Helper()
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	r, pw := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	code := make(chan int, 1)
	go func() {
		c := &cli{in: in, out: io.Discard, err: pw}
		code <- c.main(ctx, append(append([]string{"add", "github", "--broker", brokertest.Origin}, w.flags()...), words...))
		pw.Close()
	}()
	lines := bufio.NewReader(r)
	var said strings.Builder
	for number == "" {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if err != nil {
			t.Fatalf("it ended before it said where to go: %v\n%s", err, said.String())
		}
		if s := strings.TrimSpace(line); strings.HasPrefix(s, "https://") {
			address = s
		}
		if s, ok := strings.CutPrefix(line, "The page shows the number "); ok {
			number, _, _ = strings.Cut(s, ".")
		}
	}
	return address, number, func() (string, int) {
		more, _ := io.ReadAll(lines)
		said.Write(more)
		return said.String(), <-code
	}
}

// connect goes through the whole sign-in.
func (w *world) connect(t *testing.T, words ...string) (said string) {
	t.Helper()
	address, number, rest := w.start(t, words...)
	back, fragment := come(t, w.Server, address, number)
	if status, text := hand(t, back, fragment, ownOrigin(back)); status != http.StatusOK {
		t.Fatalf("the hand-over: %d %s", status, text)
	}
	said, code := rest()
	if code != 0 {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	return said
}

// ownOrigin is the header that the program's own page sends.
func ownOrigin(back string) string {
	return "Origin: " + back[:strings.LastIndex(strings.TrimSuffix(back, "/connect/done"), "/")]
}

// come goes through the broker's page and the provider's, and returns where it ends.
func come(t *testing.T, s *brokertest.Server, address, number string) (back, fragment string) {
	t.Helper()
	b := s.Browser()
	p := b.Get(t, address)
	if !strings.Contains(p.Body, number) {
		t.Errorf("the consent page does not show %s", number)
	}
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	p = b.Post(t, s.URL+action, form)
	p = b.Get(t, b.Get(t, p.Location()).Location())
	back, fragment, ok := strings.Cut(p.Location(), "#")
	if !ok {
		t.Fatalf("the callback was answered %d: %s", p.Status, p.Body)
	}
	return back, fragment
}

// hand does what the program's own page does in a browser, with further headers.
func hand(t *testing.T, to, body string, headers ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest("POST", to, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// TestThreats shows the command's half of rows of docs/threat-model.md.
func TestThreats(t *testing.T) {
	t.Run("X12_loopback_cli", func(t *testing.T) {
		w := newWorld(t, brokertest.Options{})
		address, number, rest := w.start(t)
		back, fragment := come(t, w.Server, address, number)

		res, err := http.Get(back)
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || res.StatusCode != http.StatusOK || !strings.Contains(string(page), handScript) || !strings.HasPrefix(res.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'sha256-") {
			t.Errorf("its page: %d %v %s", res.StatusCode, err, page)
		}
		// Another page, another name for this machine, another path or another flow's outcome
		// hands nothing over, and does not end the wait.
		own := ownOrigin(back)
		for _, c := range []struct {
			what, to, body string
			headers        []string
			want           int
		}{
			{"no origin", back, fragment, nil, http.StatusForbidden},
			{"another origin", back, fragment, []string{"Origin: https://evil.example"}, http.StatusForbidden},
			{"a page without one", back, fragment, []string{"Origin: null"}, http.StatusForbidden},
			{"two origins", back, fragment, []string{own, own}, http.StatusForbidden},
			{"another host", back, fragment, []string{own, "Host: evil.example"}, http.StatusNotFound},
			{"another name for this machine", back, fragment, []string{own, "Host: localhost" + back[strings.LastIndex(back, ":"):strings.Index(back[7:], "/")+7]}, http.StatusNotFound},
			{"another path", strings.TrimSuffix(back, "/connect/done") + "A/connect/done", fragment, []string{own}, http.StatusNotFound},
			{"a query", back + "?x", fragment, []string{own}, http.StatusNotFound},
			{"nothing", back, "", []string{own}, http.StatusBadRequest},
			{"another flow's", back, strangers(t), []string{own}, http.StatusBadRequest},
		} {
			if got, _ := hand(t, c.to, c.body, c.headers...); got != c.want {
				t.Errorf("%s: %d, want %d", c.what, got, c.want)
			}
		}
		if status, text := hand(t, back, fragment, own); status != http.StatusOK || !strings.HasPrefix(text, "Received.") {
			t.Errorf("the hand-over: %d %s", status, text)
		}
		if said, code := rest(); code != 0 {
			t.Errorf("exit code %d:\n%s", code, said)
		}
		if _, err := http.Get(back); err == nil {
			t.Error("the address still answers")
		}

		// While it waits for nobody any more, a second hand-over of the right outcome is refused.
		l, ln, err := newLoopback("github.read")
		if err != nil {
			t.Fatal(err)
		}
		srv := &http.Server{Handler: l}
		go srv.Serve(ln)
		defer srv.Close()
		env, err := custody.SealAnswer(l.key.Public(), "github.read", &custody.TabOutcome{V: 1, Service: "github", Error: "denied"})
		if err != nil {
			t.Fatal(err)
		}
		right, err := env.Fragment()
		if err != nil {
			t.Fatal(err)
		}
		to := "http://" + l.addr + l.path + "/connect/done"
		for _, want := range []int{http.StatusOK, http.StatusConflict} {
			if got, _ := hand(t, to, right, "Origin: http://"+l.addr); got != want {
				t.Errorf("handed over: %d, want %d", got, want)
			}
			select {
			case <-l.got:
			default:
				if want == http.StatusOK {
					t.Error("nothing was taken")
				}
			}
		}
	})
	t.Run("X12_address_not_in_argv", func(t *testing.T) {
		if runtime.GOOS == "windows" {
			t.Skip("the stand-in for a browser is a shell's script")
		}
		dir := t.TempDir()
		for _, name := range []string{"xdg-open", "open"} {
			script := "#!/bin/sh\nprintf '%s\\n' \"$@\" > " + dir + "/argv.new; mv " + dir + "/argv.new " + dir + "/argv\n"
			if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
		t.Setenv("TMPDIR", dir)
		const address = `https://broker.test/oauth/github/authorize?access=read&key=AAAA&return_to=http%3A%2F%2F127.0.0.1%3A1%2Fsecret"<x>`
		p, err := newSignInPage(address)
		if err != nil {
			t.Fatal(err)
		}
		openBrowser(p.file)
		var argv []byte
		for end := time.Now().Add(20 * time.Second); len(argv) == 0 && time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			argv, _ = os.ReadFile(filepath.Join(dir, "argv"))
		}
		if string(argv) != p.file+"\n" {
			t.Errorf("the browser is started with %q", argv)
		}
		for name, want := range map[string]os.FileMode{p.dir: 0o700, p.file: 0o600} {
			if info, err := os.Stat(name); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s: %v %v", name, info, err)
			}
		}
		page, err := os.ReadFile(p.file)
		escaped := `https://broker.test/oauth/github/authorize?access=read&amp;key=AAAA&amp;return_to=http%3A%2F%2F127.0.0.1%3A1%2Fsecret&#34;&lt;x&gt;`
		if err != nil || !strings.Contains(string(page), `content="0; url=`+escaped+`"`) || !strings.Contains(string(page), `<a href="`+escaped+`">`) || strings.Contains(string(page), "<script") {
			t.Errorf("the page leads nowhere (%v):\n%s", err, page)
		}
		p.remove()
		if _, err := os.Stat(p.dir); err == nil {
			t.Error("the page is still there")
		}
	})
}

// strangers is the outcome of somebody else's flow.
func strangers(t *testing.T) string {
	t.Helper()
	env, err := custody.SealAnswer(brokertest.NewIdentity(t).Public(), "github.read", &custody.TabOutcome{V: 1, Service: "github", Error: "denied"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := env.Fragment()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestAddByBrowser(t *testing.T) {
	w := newWorld(t, brokertest.Options{Config: func(c *broker.Config) { c.Apps = map[string]string{"github": "eleven-connect"} }})
	address, number, rest := w.start(t)
	back, fragment := come(t, w.Server, address, number)
	if status, text := hand(t, back, fragment, ownOrigin(back)); status != http.StatusOK {
		t.Fatalf("the hand-over: %d %s", status, text)
	}
	said, code := rest()
	for _, want := range []string{
		"Without an instance's token this connection ends with its access token",
		"GitHub is connected: octocat, read-only.\nGitHub is connected, but no repository is shared yet.\n",
		"It is mended at https://github.com/apps/eleven-connect/installations/new\n",
	} {
		if code != 0 || !strings.Contains(said, want) {
			t.Errorf("exit code %d, and it does not say %q:\n%s", code, want, said)
		}
	}
	v, cr := w.vault(t), w.one(t)
	if cr.Kind != custody.KindOAuth || cr.Cap != integrations.Read || cr.Secret.IsZero() || !strings.HasPrefix(cr.Refresh.Reveal(), "rt1.w1.") || cr.Broker != brokertest.Origin || cr.ExpiresAt == 0 {
		t.Errorf("stored: %s %s, broker %q, expires %d", cr.Kind, cr.Cap, cr.Broker, cr.ExpiresAt)
	}
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	want, err := custody.OpDigest(reg.Get("github"), "list_issues")
	if err != nil || cr.Ops["list_issues"] != want || cr.Ops["open_issue"] != (custody.Digest{}) {
		t.Errorf("pinned: list_issues %v, open_issue %v (%v)", cr.Ops["list_issues"], cr.Ops["open_issue"], err)
	}
	if !strings.Contains(address, "for="+string(v.member.ID())) {
		t.Error("the flow is not for the member's own key")
	}
	data, err := os.ReadFile(v.file(cr.ID))
	if err != nil || strings.Contains(string(data), cr.Secret.Reveal()) || strings.Contains(said, cr.Secret.Reveal()) {
		t.Errorf("the token is in a file or in what was said (%v)", err)
	}
}

// A broker that does not offer the service is asked before anybody is sent to it.
func TestAddAsksTheBrokerFirst(t *testing.T) {
	w := newWorld(t, brokertest.Options{Config: func(c *broker.Config) { c.Services = []string{"linear"} }})
	said, code := w.run(t, "add", "github", "--broker", brokertest.Origin)
	if code != 3 || !strings.Contains(said, "the broker at https://broker.test does not offer GitHub") || strings.Contains(said, "Open this address") {
		t.Errorf("not offered: exit code %d:\n%s", code, said)
	}
	w.Server.Close()
	said, code = w.run(t, "add", "github", "--broker", brokertest.Origin)
	if code != 6 || !strings.Contains(said, "the broker at https://broker.test cannot be reached") {
		t.Errorf("not there: exit code %d:\n%s", code, said)
	}
	other := newWorld(t, brokertest.Options{Wrap: func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "<!doctype html>Hello") })
	}})
	if said, code = other.run(t, "add", "github", "--broker", brokertest.Origin); code != 3 || !strings.Contains(said, "is no broker") {
		t.Errorf("something else: exit code %d:\n%s", code, said)
	}
}

func TestAddByBrowserCancelled(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	address, _, rest := w.start(t, "--write")
	b := w.Browser()
	p := b.Get(t, address)
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	p = b.Post(t, w.URL+action, form)
	back := b.Get(t, p.Location()).Location()
	cut, _, _ := strings.Cut(back, "?")
	state := back[strings.Index(back, "state="):]
	state, _, _ = strings.Cut(state, "&")
	p = b.Get(t, cut+"?error=access_denied&"+state)
	to, fragment, _ := strings.Cut(p.Location(), "#")
	if status, text := hand(t, to, fragment, ownOrigin(to)); status != http.StatusOK {
		t.Errorf("the hand-over: %d %s", status, text)
	}
	if said, code := rest(); code != 3 || !strings.Contains(said, "error: it was cancelled in the browser") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}
