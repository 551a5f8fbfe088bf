package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// startAdd runs connect add github --broker in this process until it says where to go, and
// returns that address, the rest of what it says, and its exit code.
func startAdd(t *testing.T, home string, words ...string) (address, number string, rest func() (string, int)) {
	t.Helper()
	srv, err := peer.Start(&peer.Replay{Exchanges: []peer.Exchange{{
		Method: "GET", Path: "/user", Status: 200, Body: json.RawMessage(`{"id": 1, "login": "octocat", "name": "Octo", "type": "User", "html_url": "https://github.com/octocat"}`),
	}, {
		Method: "GET", Path: "/user/installations", Status: 200, Body: json.RawMessage(`{"total_count": 0, "installations": []}`),
	}}}, "api.github.com")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	ca := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(ca, srv.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close() })
	r, w := io.Pipe()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	code := make(chan int, 1)
	go func() {
		c := &cli{in: in, out: io.Discard, err: w}
		code <- c.main(ctx, append([]string{"add", "github", "--broker", brokertest.Origin, "--home", home,
			"--connect-to", "api.github.com:443:" + srv.Addr, "--cacert", ca}, words...))
		w.Close()
	}()
	lines := bufio.NewReader(r)
	for number == "" {
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatalf("it ended before it said where to go: %v", err)
		}
		if s := strings.TrimSpace(line); strings.HasPrefix(s, "https://") {
			address = s
		}
		if s, ok := strings.CutPrefix(line, "The page shows the number "); ok {
			number, _, _ = strings.Cut(s, ".")
		}
	}
	return address, number, func() (string, int) {
		said, _ := io.ReadAll(lines)
		return string(said), <-code
	}
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

func TestAddByBrowser(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	home := filepath.Join(t.TempDir(), "vault")
	address, number, rest := startAdd(t, home)
	back, fragment := come(t, s, address, number)

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
	own := "Origin: " + back[:strings.LastIndex(strings.TrimSuffix(back, "/connect/done"), "/")]
	other := brokertest.NewIdentity(t)
	env, err := custody.SealAnswer(other.Public(), "github.read", &custody.TabOutcome{V: 1, Service: "github", Error: "denied"})
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := env.Fragment()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		what, to, body string
		headers        []string
		want           int
	}{
		{"no origin", back, fragment, nil, http.StatusForbidden},
		{"another origin", back, fragment, []string{"Origin: https://evil.example"}, http.StatusForbidden},
		{"two origins", back, fragment, []string{own, own}, http.StatusForbidden},
		{"another host", back, fragment, []string{own, "Host: evil.example"}, http.StatusNotFound},
		{"another path", strings.TrimSuffix(back, "/connect/done") + "A/connect/done", fragment, []string{own}, http.StatusNotFound},
		{"a query", back + "?x", fragment, []string{own}, http.StatusNotFound},
		{"nothing", back, "", []string{own}, http.StatusBadRequest},
		{"another flow's", back, foreign, []string{own}, http.StatusBadRequest},
	} {
		if got, _ := hand(t, c.to, c.body, c.headers...); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	if status, text := hand(t, back, fragment, own); status != http.StatusOK || !strings.HasPrefix(text, "Received.") {
		t.Errorf("the hand-over: %d %s", status, text)
	}
	said, code := rest()
	if code != 0 || !strings.Contains(said, "GitHub is connected: octocat, read-only.\nGitHub is connected, but no repository is shared yet.\n") {
		t.Fatalf("exit code %d:\n%s", code, said)
	}
	v, err := (&homeFlag{dir: home}).open()
	if err != nil {
		t.Fatal(err)
	}
	list, damaged, err := v.all()
	if err != nil || len(list) != 1 || len(damaged) > 0 {
		t.Fatalf("stored: %d, damaged %d, %v", len(list), len(damaged), err)
	}
	cr := list[0]
	if cr.Kind != custody.KindOAuth || cr.Cap != integrations.Read || cr.Secret.IsZero() || !strings.HasPrefix(cr.Refresh.Reveal(), "rt1.w1.") || cr.Broker != brokertest.Origin || cr.ExpiresAt == 0 {
		t.Errorf("stored: %s %s, broker %q, expires %d", cr.Kind, cr.Cap, cr.Broker, cr.ExpiresAt)
	}
	if !strings.Contains(address, "for="+string(v.member.ID())) {
		t.Error("the flow is not for the member's own key")
	}
	files, err := filepath.Glob(filepath.Join(home, vaultFolder, "*"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files: %v %v", files, err)
	}
	data, err := os.ReadFile(files[0])
	if err != nil || strings.Contains(string(data), cr.Secret.Reveal()) || strings.Contains(said, cr.Secret.Reveal()) {
		t.Errorf("the token is in a file or in what was said (%v)", err)
	}
}

func TestAddByBrowserCancelled(t *testing.T) {
	s := brokertest.New(t, brokertest.Options{})
	home := filepath.Join(t.TempDir(), "vault")
	address, _, rest := startAdd(t, home, "--write")
	b := s.Browser()
	p := b.Get(t, address)
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	p = b.Post(t, s.URL+action, form)
	back := b.Get(t, p.Location()).Location()
	cut, _, _ := strings.Cut(back, "?")
	state := back[strings.Index(back, "state="):]
	state, _, _ = strings.Cut(state, "&")
	p = b.Get(t, cut+"?error=access_denied&"+state)
	to, fragment, _ := strings.Cut(p.Location(), "#")
	own := "Origin: " + to[:strings.LastIndex(strings.TrimSuffix(to, "/connect/done"), "/")]
	if status, text := hand(t, to, fragment, own); status != http.StatusOK {
		t.Errorf("the hand-over: %d %s", status, text)
	}
	if said, code := rest(); code != 3 || !strings.Contains(said, "error: it was cancelled in the browser") {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}
