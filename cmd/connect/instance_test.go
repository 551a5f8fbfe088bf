package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
)

func testInstance(t *testing.T, env []string, words ...string) (addr string, stop func() string) {
	t.Helper()
	return testServer(t, env, append([]string{"instance", "--space", "home"}, words...)...)
}

// The real program, with the real broker's registry, ends in order while somebody listens, and
// what it kept is there when it starts again.
func TestInstanceServes(t *testing.T) {
	broker, stopBroker := testBroker(t, brokerEnv(t))
	home := filepath.Join(t.TempDir(), "home")
	words := []string{"--home", home, "--broker", "http://" + broker}
	addr, stop := testInstance(t, nil, words...)
	web := &http.Client{Timeout: 20 * time.Second}
	if status, body := askBroker(t, web, "http://"+addr+"/healthz"); status != http.StatusOK || body != "ok\n" {
		t.Errorf("health: %d %s", status, body)
	}
	var shown struct {
		Broker   string
		Services []struct{ ID string }
	}
	catalog := func() int {
		t.Helper()
		status, body := askBroker(t, web, "http://"+addr+"/api/integrations")
		if err := json.Unmarshal([]byte(body), &shown); err != nil || status != http.StatusOK || shown.Broker != "http://"+broker {
			t.Fatalf("%d %.200s %v", status, body, err)
		}
		return len(shown.Services)
	}
	if n := catalog(); n < 5 {
		t.Errorf("%d services", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	anna, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	dial := func() *client.Client {
		t.Helper()
		c, err := client.Dial(ctx, "http://"+addr, anna, client.Options{Space: "home", Join: &client.Join{Kind: "member", Name: "name-" + secretMark}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	c := dial()
	copyOf, err := anna.SealIdentity(anna.Public(), "home")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.PutBlob(ctx, "identity", 0, 1, copyOf); err != nil {
		t.Fatal(err)
	}
	listening, hangUp := context.WithCancel(ctx)
	heard := make(chan error, 1)
	go func() {
		heard <- c.Receive(listening, 0, func(context.Context, *client.Message) error { return nil })
	}()
	time.Sleep(200 * time.Millisecond) // until it listens, mostly: the order does not matter to what is held
	began := time.Now()
	said := stop()
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %s to end", d)
	}
	hangUp()
	if err := <-heard; !errors.Is(err, context.Canceled) {
		t.Errorf("a listener ends with %v", err)
	}
	for _, want := range []string{"note: there is no invite", "\nstopped\n", `"route":"POST /api/session"`} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, secretMark) || strings.Contains(said, string(anna.ID())) {
		t.Error("the log holds who was there")
	}
	if info, err := os.Stat(home); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o700 {
		t.Errorf("the home: %v %v", info.Mode(), err)
	}
	// Again, with the broker away.
	stopBroker()
	addr, stop = testInstance(t, nil, words...)
	defer stop()
	if n := catalog(); n < 5 {
		t.Errorf("%d services with the broker away", n)
	}
	if b, err := dial().Blob(ctx, "identity"); err != nil || b.Generation != 1 {
		t.Errorf("%+v %v", b, err)
	}
	second := exec.Command("connect", "instance", "--listen", "127.0.0.1:0", "--space", "home", "--home", home)
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), "another program has it open") {
		t.Errorf("a second process: %s %v", out, err)
	}
}

func TestInstanceServesTLSAndInvite(t *testing.T) {
	dir := t.TempDir()
	write := func(name, data string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := selfSigned(t, "chat.example")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	if err := os.Mkdir(filepath.Join(dir, "web"), 0o700); err != nil {
		t.Fatal(err)
	}
	write("web/index.html", "<!doctype html><title>client</title>")
	if err := os.Symlink(filepath.Join(dir, "key.pem"), filepath.Join(dir, "web", "key.txt")); err != nil {
		t.Fatal(err)
	}
	addr, stop := testInstance(t, nil, "--db", filepath.Join(dir, "instance.db"), "--cert", write("cert.pem", string(cert)), "--key", write("key.pem", string(key)),
		"--origin", "https://chat.example", "--invite-file", write("invite", "open "+secretMark+"\n"), "--web", filepath.Join(dir, "web"))
	web := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "chat.example"}}}
	ask := func(path string) (int, string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodGet, "https://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "chat.example"
		res, err := web.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body)
	}
	if status, body := ask("/api/space"); status != http.StatusOK || !strings.Contains(body, `"invite":true`) {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask("/"); status != http.StatusOK || !strings.Contains(body, "client") {
		t.Errorf("%d %s", status, body)
	}
	if status, body := ask("/key.txt"); status == http.StatusOK || strings.Contains(body, "PRIVATE") {
		t.Errorf("a link out of the folder: %d", status)
	}
	if status, _ := askBroker(t, web, "https://"+addr+"/api/space"); status != http.StatusMisdirectedRequest {
		t.Errorf("by its address: %d", status)
	}
	if said := stop(); strings.Contains(said, secretMark) || strings.Contains(said, "no invite") {
		t.Error(said)
	}
}
