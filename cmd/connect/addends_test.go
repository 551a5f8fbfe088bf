package main

import (
	"crypto/ed25519"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A sign-in that is not stored is ended again, where the broker answers this program, and else
// it is said that it lives on.
func TestAddUndoes(t *testing.T) {
	for _, c := range []struct {
		what  string
		token bool
		words []string
		want  string
	}{
		{"the service does not take its token", true, nil, "hint: the sign-in was ended at GitHub again\n"},
		{"and nobody can end it", false, nil, "hint: the sign-in was not ended at GitHub. The token itself still works until it ends, or until you remove the app in your settings at GitHub.\n"},
	} {
		w := newWorld(t, brokertest.Options{})
		words := c.words
		if c.token {
			words = append(words, "--broker-token-file", w.token(t, time.Hour))
		}
		address, number, rest := w.start(t, words...)
		never := "none"
		w.use.Store(&never)
		back, fragment := come(t, w.Server, address, number)
		if status, text := hand(t, back, fragment, ownOrigin(back)); status != http.StatusOK {
			t.Fatalf("%s: the hand-over: %d %s", c.what, status, text)
		}
		said, code := rest()
		if code != 1 || !strings.Contains(said, "hint: nothing was stored\n") || !strings.Contains(said, c.want) || strings.Contains(said, "--oauth") {
			t.Errorf("%s: exit code %d:\n%s", c.what, code, said)
		}
		calls := w.Upstream.Calls(brokertest.Revoke)
		if c.token != (len(calls) == 1) {
			t.Errorf("%s: %d revocations", c.what, len(calls))
		}
		if list, _, err := w.vault(t).all(); err != nil || len(list) > 0 {
			t.Errorf("%s: stored: %d, %v", c.what, len(list), err)
		}
	}
}

// What is wrong with the flags is said before anybody is sent to a browser.
func TestAddLooksAtFlagsFirst(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	for _, label := range []string{strings.Repeat("x", 101), "a\nb", "a\u009b31mb", "a\u202eb", "a\u200bb", "a\u2028b", "a\xffb", " a", "\x7f"} {
		said, code := w.run(t, "add", "github", "--broker", brokertest.Origin, "--account", label)
		if code != 2 || !strings.Contains(said, "error: --account is at most 100 bytes") || strings.Contains(said, "Open this address") {
			t.Errorf("%q: exit code %d:\n%s", label, code, said)
		}
	}
	if n := w.asked.Load(); n > 0 {
		t.Errorf("GitHub was asked %d times", n)
	}
}

// The pair that another one takes the place of is ended, where that ends nothing else.
func TestAddEndsTheOneBefore(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	before := w.one(t)
	said := w.connect(t)
	calls := w.Upstream.Calls(brokertest.Revoke)
	if len(calls) != 1 || calls[0].Form.Get("access_token") != before.Secret.Reveal() || !strings.Contains(said, "GitHub is connected anew, in place of the token before: octocat, read-only.\nThe token before was ended at GitHub.\n") {
		t.Errorf("%d revocations:\n%s", len(calls), said)
	}
	if now := w.one(t); now.ID != before.ID || now.Pair != before.Pair+1 || now.Secret == before.Secret {
		t.Errorf("stored: pair %d of %s after %d of %s", now.Pair, now.ID, before.Pair, before.ID)
	}

	// Without the broker's token it is said that it lives on.
	bare := newWorld(t, brokertest.Options{})
	bare.connect(t)
	said = bare.connect(t)
	if n := bare.Upstream.Count(brokertest.Revoke); n > 0 || !strings.Contains(said, "The token before was not ended at GitHub, and works until it ends.") {
		t.Errorf("%d revocations:\n%s", n, said)
	}

	// A pasted one is its owner's to delete; the same one again is no other.
	pat := func(letter string) string {
		file := filepath.Join(t.TempDir(), "pat")
		if err := os.WriteFile(file, []byte("ghp_"+strings.Repeat(letter, 36)), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	flags := []string{"--home", filepath.Join(t.TempDir(), "vault"), "--connect-to", "api.github.com:443:" + w.api.Addr, "--cacert", w.ca}
	for i, letter := range []string{"a", "a", "b"} {
		said, code := w.runAs(t, append([]string{"add", "github", "--token-file", pat(letter)}, flags...)...)
		if lives := strings.Contains(said, "The token before was not ended. The token itself still works until you delete it: its page is where it was made, https://github.com/settings/"); code != 0 || lives != (i == 2) {
			t.Errorf("%d: exit code %d:\n%s", i, code, said)
		}
	}
}

// Several that add one account at the same time store it once.
func TestAddOnce(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	if _, code := w.runAs(t, "key", "--home", w.home); code != 0 {
		t.Fatal("no key")
	}
	var mu sync.Mutex
	here, all := 0, make(chan struct{})
	together := func(string) { // every one has asked whose the token is before any is answered
		mu.Lock()
		if here++; here == 4 {
			close(all)
		}
		mu.Unlock()
		<-all
	}
	w.came.Store(&together)
	file := filepath.Join(t.TempDir(), "pat")
	if err := os.WriteFile(file, []byte("ghp_"+strings.Repeat("a", 36)), 0o600); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if said, code := w.runAs(t, "add", "github", "--token-file", file, "--home", w.home, "--connect-to", "api.github.com:443:"+w.api.Addr, "--cacert", w.ca); code != 0 {
				t.Errorf("exit code %d:\n%s", code, said)
			}
		})
	}
	wg.Wait()
	if c := w.one(t); c.Pair != 4 {
		t.Errorf("stored: pair %d, want 4", c.Pair)
	}
}

// What checkBrokerOrigin takes a broker has as its own, and a credential can hold.
func TestBrokerOrigin(t *testing.T) {
	key, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat(strings.Repeat("a", 49)+".", 5) + "bcd" // 253 bytes
	for s, want := range map[string]bool{
		"https://connect.example": true, "https://connect.example:8443": true, "https://xn--brse-5qa.example": true, "https://a-b.c1.example": true,
		"https://" + long: true, "https://" + long + "e": false, "https://" + long + ":8443": false,
		"https://connect.example:443": false, "https://connect.example:0443": false, "https://connect.example:08443": false, "https://connect.example:": false,
		"https://connect.example:0": false, "https://connect.example:65536": false, "https://connect.example:-1": false, "https://connect.example:+1": false,
		"https://connect.example.": false, "https://connect.example/": false, "https://connect.example?": false, "https://connect.example#": false,
		"https://Connect.example": false, "HTTPS://connect.example": false, "http://connect.example": false, "connect.example": false, "": false, "https://": false,
		"https://b\u00f6rse.example": false, "https://my_broker.example": false, "https://a\u200bb.example": false, "https://x%41.example": false,
		"https://user@x.example": false, "https://[::1]": false, "https://127.0.0.1": false, "https://a.0x7f": false, "https://localhost": false, "https://x.localhost": false,
		"https://-a.example": false, "https://a..example": false, "https://xn--a.example": false, "https://connect.example\n": false, "https://connect.example ": false,
	} {
		if err := checkBrokerOrigin(s); (err == nil) != want {
			t.Errorf("%q: %v, want it taken: %v", s, err, want)
		} else if err != nil {
			continue
		}
		held(t, key, private, s)
	}
}

// held holds that an origin can be stored, and is a broker's own.
func held(t *testing.T, key *custody.Identity, private ed25519.PrivateKey, s string) {
	t.Helper()
	now := time.Now()
	c := &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: "github", Kind: custody.KindOAuth,
		Secret: integrations.NewSecret("abc"), Refresh: integrations.NewSecret("rt1.a.bbbb"), Broker: s}
	if _, err := c.Seal(key, vaultSpace); err != nil {
		t.Errorf("%q cannot be stored: %v", s, err)
	}
	if _, err := broker.SignToken(private, "k", broker.Claims{Origins: []string{s}, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "i", Audience: jwt.ClaimStrings{s}, ID: "1", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour))}}); err != nil {
		t.Errorf("%q is no broker's own: %v", s, err)
	}
}

func FuzzBrokerOrigin(f *testing.F) {
	for _, s := range []string{"https://connect.example", "https://a.b:8443", "https://xn--brse-5qa.example", "https://a.0x7f", "https://a..b", "https://1.2.3.4:1"} {
		f.Add(s)
	}
	key, err := custody.NewIdentity()
	if err != nil {
		f.Fatal(err)
	}
	_, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if checkBrokerOrigin(s) == nil {
			held(t, key, private, s)
		}
	})
}

// A label is the provider's text: it forges no line, and acts on no terminal. The executor lets
// line ends through; a credential from elsewhere may hold anything.
func TestLabelsStayOnTheirLine(t *testing.T) {
	home := filepath.Join(t.TempDir(), "vault")
	n := 0
	srv, err := peer.Start(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		n++
		rw.Header().Set("Content-Type", "application/json")
		json.NewEncoder(rw).Encode(map[string]any{"id": n, "login": "ada\nerror: all is lost", "name": "Ada", "type": "User", "html_url": "https://github.com/octocat"})
	}), "api.github.com")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ca, file := filepath.Join(t.TempDir(), "ca.pem"), filepath.Join(t.TempDir(), "pat")
	for name, data := range map[string][]byte{ca: srv.CA, file: []byte("ghp_" + strings.Repeat("a", 36))} {
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	v, err := (&homeFlag{dir: home}).make()
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	if err := v.put(&custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: "github", Kind: custody.KindPAT, Secret: integrations.NewSecret("x"), ConnectedAt: now - 10,
		Account: &custody.Account{ID: "0", Label: "oct\u001b]0;x\u0007\u009b31m\u202e\ncat\nerror: all is lost\u2028x"}}); err != nil {
		t.Fatal(err)
	}
	const shown = "oct]0;x31m cat error: all is lostx"
	w := new(world)
	flags := []string{"--home", home, "--connect-to", "api.github.com:443:" + srv.Addr, "--cacert", ca}
	var all strings.Builder
	for _, c := range []struct {
		words []string
		code  int
		want  string
	}{
		{append([]string{"add", "github", "--token-file", file}, flags...), 0, "This token belongs to ada error: all is lost.\nGitHub is connected: ada error: all is lost, read-only.\n"},
		{append([]string{"op", "github", "whoami"}, flags...), 2, "GitHub is connected with several accounts: " + shown + ", ada error: all is lost\n"},
		{append([]string{"op", "github", "whoami", "--account", "none"}, flags...), 2, "hint: they are: " + shown + ", ada error"},
		{[]string{"remove", "github", "--home", home}, 2, "several accounts: " + shown},
		{[]string{"list", "--home", home}, 0, "github   " + shown},
		{[]string{"list", "--json", "--home", home}, 0, `"label":"oct\u001b]0;x\u0007\u009b31m\u202e\ncat\nerror: all is lost\u2028x"`},
		{[]string{"export", "--home", home}, 0, `"label": "oct\u001b]0;x\u0007\u009b31m\u202e\ncat\nerror: all is lost\u2028x"`},
		{[]string{"remove", "github", "--home", home, "--account", shown}, 0, "no longer connected here: " + shown + ".\n"},
	} {
		said, code := w.runAs(t, c.words...)
		all.WriteString(said)
		if code != c.code || !strings.Contains(said, c.want) {
			t.Errorf("%v: exit code %d, %q", c.words[:2], code, said)
		}
	}
	for line := range strings.Lines(all.String()) {
		if line = strings.TrimSuffix(line, "\n"); strings.ContainsFunc(line, unprintable) || strings.HasPrefix(line, "error: all is lost") {
			t.Errorf("%q", line)
		}
	}
	// What is escaped is the same text, and what can be seen is not escaped.
	for s, want := range map[string]string{
		"plain ö 👩\u200d🚀":                   `"plain ö 👩` + "\u200d" + `🚀"`,
		"\u009b\u202e\U000e0041\u200b\u200c": `"\u009b\u202e\udb40\udc41\u200b` + "\u200c" + `"`,
	} {
		var b strings.Builder
		if err := writeJSON(&b, s); err != nil || b.String() != want+"\n" {
			t.Errorf("%q is written as %q (%v)", s, b.String(), err)
		}
		var back string
		if err := json.Unmarshal([]byte(b.String()), &back); err != nil || back != s {
			t.Errorf("%q came back as %q (%v)", s, back, err)
		}
	}
}
