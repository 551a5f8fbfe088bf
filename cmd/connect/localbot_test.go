package main

import (
	"bytes"
	"database/sql"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// killed runs the program as a process of its own until ready is closed, and then kills it.
func (w *world) killed(t *testing.T, ready <-chan struct{}, words ...string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	// Its name makes the test's program the command.
	cmd := &exec.Cmd{Path: self, Args: append([]string{"connect"}, append(words, w.flags()...)...), Env: os.Environ(), Stdout: &out, Stderr: &out}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ready:
	case <-time.After(20 * time.Second):
		t.Errorf("it never came so far:\n%s", out.String())
	}
	cmd.Process.Kill()
	cmd.Wait()
	// What it held ends within a minute; here at once.
	db, err := sql.Open("sqlite", filepath.Join(w.home, vaultBotFolder, "sidecar.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`UPDATE leases SET until = 0`); err != nil {
		t.Fatal(err)
	}
}

// A process that is killed while the token is renewed leaves a token that is not sent again.
func TestOpKilledWhileRenewing(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	w.over(t)
	redeemed, dead := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	w.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Refresh && once.CompareAndSwap(false, true) {
			close(redeemed)
			<-dead
		}
		return nil
	})
	w.killed(t, redeemed, "op", "github", "whoami")
	close(dead)
	for range 2 {
		said, code := w.run(t, "op", "github", "whoami")
		if code != 1 || w.Upstream.Count(brokertest.Refresh) != 1 || !strings.Contains(said, "error: GitHub may have renewed this connection, and its answer was lost on the way\nhint: connect add github") {
			t.Errorf("exit code %d, %d refreshes:\n%s", code, w.Upstream.Count(brokertest.Refresh), said)
		}
	}
	if said, code := w.runHere(t, "list"); code != 0 || !strings.Contains(said, "ended") || strings.Contains(said, "refreshes itself") {
		t.Errorf("it is listed as one that goes on:\n%s", said)
	}
}

// runHere runs the program in this world's folder, without the flags that reach others.
func (w *world) runHere(t *testing.T, words ...string) (said string, code int) {
	t.Helper()
	return w.runAs(t, append(words, "--home", w.home)...)
}

// A process that is killed before it could store the fresh pair leaves it with the bot: the next
// command stores it, and renews nothing.
func TestOpKilledBeforeStoring(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	old := w.over(t)
	used, dead := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	came := func(string) {
		if once.CompareAndSwap(false, true) {
			close(used)
			<-dead
		}
	}
	w.came.Store(&came)
	w.killed(t, used, "op", "github", "whoami")
	close(dead)
	w.came.Store(nil)
	if now := w.one(t); now.Pair != old.Pair || len(w.waiting(t)) != 1 {
		t.Fatalf("killed: pair %d, %d wait", now.Pair, len(w.waiting(t)))
	}
	said, code := w.run(t, "op", "github", "whoami")
	if now := w.one(t); code != 0 || now.Pair != old.Pair+1 || w.Upstream.Count(brokertest.Refresh) != 1 || len(w.waiting(t)) != 0 {
		t.Errorf("exit code %d, pair %d, %d refreshes:\n%s", code, now.Pair, w.Upstream.Count(brokertest.Refresh), said)
	}
}

// What the bot holds is ended with the connection, and nothing of it stays.
func TestRemoveEndsWhatTheBotHolds(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	w.over(t)
	used, dead := make(chan struct{}), make(chan struct{})
	var token atomic.Pointer[string]
	came := func(s string) {
		if token.CompareAndSwap(nil, &s) {
			close(used)
			<-dead
		}
	}
	w.came.Store(&came)
	w.killed(t, used, "op", "github", "whoami")
	close(dead)
	said, code := w.run(t, "remove", "github")
	calls := w.Upstream.Calls(brokertest.Revoke)
	if code != 0 || len(calls) != 1 || calls[0].Form.Get("access_token") != *token.Load() {
		t.Errorf("exit code %d, %d revocations:\n%s", code, len(calls), said)
	}
	w.gone(t)
	for _, name := range []string{vaultBotKey, vaultBotFolder} {
		if _, err := os.Stat(filepath.Join(w.home, name)); !os.IsNotExist(err) {
			t.Errorf("%s is left (%v)", name, err)
		}
	}
}

// A connection that is removed while it is renewed does not live on with its fresh pair.
func TestRemovedWhileRenewing(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	w.over(t)
	var once atomic.Bool
	w.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Refresh && once.CompareAndSwap(false, true) {
			if said, code := w.run(t, "remove", "github"); code != 0 {
				t.Errorf("remove: exit code %d:\n%s", code, said)
			}
		}
		return nil
	})
	said, _ := w.run(t, "op", "github", "whoami")
	if n := w.Upstream.Count(brokertest.Revoke); n != 2 || !strings.Contains(said, "note: this connection was removed meanwhile, and its renewed token was ended at GitHub too") {
		t.Errorf("%d revocations:\n%s", n, said)
	}
	w.gone(t)
}

// Where a service takes an old token for a while, a lost answer is asked for once more.
func TestLostAnswerWithinGrace(t *testing.T) {
	for _, grace := range []bool{true, false} {
		var cut atomic.Int32
		w := newWorld(t, brokertest.Options{Wrap: func(h http.Handler) http.Handler {
			return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/api/refresh" && cut.Add(-1) >= 0 {
					reset(rw, r) // the provider is not asked at all: it would know the token no more
					return
				}
				h.ServeHTTP(rw, r)
			})
		}})
		w.connect(t, "--broker-token-file", w.token(t, time.Hour))
		w.over(t)
		b := w.bot(t, grace)
		cut.Store(1)
		call, err := b.m.Bind("whoami", nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.do(t.Context(), call, nil, nil)
		if now := w.one(t); grace && (err != nil || now.Pair != 2) || !grace && (err == nil || integrations.Code(err) != "unauthorised" || now.Pair != 1) {
			t.Errorf("grace %v: %v, pair %d", grace, err, now.Pair)
		}
	}
}

// bot is the local bot for the one connection of a world, to GitHub; grace is whether GitHub
// takes an old refresh token for a minute.
func (w *world) bot(t *testing.T, grace bool) *localBot {
	t.Helper()
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	if grace {
		const old = `"refresh": { "rotates": true }`
		text := string(reg.Get("github").Raw())
		if strings.Count(text, old) != 1 {
			t.Fatal("github.json has another form")
		}
		if reg, err = integrations.Load(fstest.MapFS{"github.json": {Data: []byte(strings.Replace(text, old, `"refresh": { "rotates": true, "reuse_grace_s": 60 }`, 1))}}); err != nil {
			t.Fatal(err)
		}
	}
	c := &cli{err: t.Output(), out: t.Output()}
	v := w.vault(t)
	token, err := v.brokerToken(w.URL)
	if err != nil || token == nil {
		t.Fatal("there is no token for the broker", err)
	}
	pem, err := os.ReadFile(w.ca)
	if err != nil {
		t.Fatal(err)
	}
	n := &networkFlags{timeout: time.Minute, connectTo: []string{"broker.test:443:" + w.Addr, "api.github.com:443:" + w.api.Addr}, cacert: filepath.Join(t.TempDir(), "ca.pem")}
	if err := os.WriteFile(n.cacert, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := n.read(c, reg.Get("github"), w.URL); err != nil {
		t.Fatal(err)
	}
	b := &localBot{c: c, v: v, reg: reg, m: reg.Get("github"), id: w.one(t).ID, exec: n.executor(reg.Get("github")), timeout: time.Minute,
		broker: &sidecar.Broker{Origin: w.URL, Token: token.Secret, Client: n.client()}}
	t.Cleanup(b.close)
	return b
}

// encodings are the forms in which a secret could be written.
func encodings(secret string) []string {
	b := []byte(secret)
	forms := []string{secret, url.QueryEscape(secret), hex.EncodeToString(b), strings.ToUpper(hex.EncodeToString(b)), fmt.Sprintf("%q", secret)}
	for i := range 3 { // where it stands among base64's groups of three
		for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
			text := enc.EncodeToString([]byte(strings.Repeat("x", i) + secret))
			forms = append(forms, text[4:len(text)-4])
		}
	}
	for i := range 5 {
		text := base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte(strings.Repeat("x", i) + secret))
		forms = append(forms, text[8:len(text)-8])
	}
	return forms
}

// What is exported holds no token and no key, in whatever encoding.
func TestExportHoldsNoSecret(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	if said, code := w.run(t, "op", "github", "whoami"); code != 0 {
		t.Fatal(said)
	}
	v := w.vault(t)
	w.edit(t, func(c *custody.Credential) { c.Keep = map[string]string{"email": "kept-beside@example.com"} })
	conn := w.one(t)
	at, err := v.brokerToken(w.URL)
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{conn.Secret.Reveal(), conn.Refresh.Reveal(), at.Secret.Reveal(), "kept-beside@example.com"}
	for _, name := range []string{vaultKey, vaultBotKey} {
		id, err := readKey(filepath.Join(w.home, name), "a key")
		if err != nil {
			t.Fatal(err)
		}
		der, err := id.MarshalPKCS8()
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, string(der), string(der[36:68])) // the scalar alone, too
	}
	file := filepath.Join(t.TempDir(), "kept.json")
	out, code := w.runHere(t, "export")
	if said, code2 := w.runHere(t, "export", "--file", file); code != 0 || code2 != 0 {
		t.Fatalf("exit codes %d and %d:\n%s", code, code2, said)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its mode: %v", err)
	}
	for i, s := range secrets {
		for _, form := range encodings(s) {
			if strings.Contains(out, form) || bytes.Contains(data, []byte(form)) {
				t.Errorf("secret %d is in it", i)
			}
		}
	}
	// The search finds one that is there.
	header := "Authorization: Bearer " + conn.Secret.Reveal() + "\r\n"
	for i, text := range []string{header, base64.StdEncoding.EncodeToString([]byte(header)), base32.StdEncoding.EncodeToString([]byte(header)), hex.EncodeToString([]byte(header))} {
		if !slices.ContainsFunc(encodings(conn.Secret.Reveal()), func(form string) bool { return strings.Contains(text, form) }) {
			t.Errorf("encoding %d is not looked for", i)
		}
	}
	var kept exportedVault
	if err := json.Unmarshal(data, &kept); err != nil || len(kept.Connections) != 1 {
		t.Fatalf("%v", err)
	}
	got := kept.Connections[0]
	if got.Service != "github" || got.Account.Label != "octocat" || got.Cap != integrations.Read || got.ConnectedAt.Unix() != conn.ConnectedAt || got.ExpiresAt.Unix() != conn.ExpiresAt || got.Ops["list_issues"] != conn.Ops["list_issues"] || !got.Refreshes || got.Broker != w.URL {
		t.Errorf("it tells %+v", got)
	}
}
