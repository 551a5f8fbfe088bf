package main

import (
	"bufio"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

func testBroker(t *testing.T, env []string, words ...string) (addr string, stop func() string) {
	t.Helper()
	return testServer(t, env, append([]string{"broker"}, words...)...)
}

// testServer starts the real program, which listens, with env and returns its address and how
// to end it.
func testServer(t *testing.T, env []string, words ...string) (addr string, stop func() string) {
	t.Helper()
	cmd := exec.Command("connect", append(words, "--listen", "127.0.0.1:0")...)
	cmd.Env = append(os.Environ(), env...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill() })
	ready := regexp.MustCompile(`^ready: .* on (127\.0\.0\.1:\d+), as `)
	lines := bufio.NewReader(stderr)
	var said strings.Builder
	for addr == "" {
		line, err := lines.ReadString('\n')
		said.WriteString(line)
		if err != nil {
			t.Fatalf("the %s did not start: %s", words[0], said.String())
		}
		if m := ready.FindStringSubmatch(line); m != nil {
			addr = m[1]
		}
	}
	return addr, func() string {
		t.Helper()
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		rest, _ := io.ReadAll(lines)
		said.Write(rest)
		if err := cmd.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v\n%s", err, said.String())
		}
		return said.String()
	}
}

// keysEnv is what "connect broker token keys" prints for the environment.
func keysEnv(t *testing.T) []string {
	t.Helper()
	out, err := exec.Command("connect", "broker", "token", "keys").Output()
	if err != nil {
		t.Fatal(err)
	}
	var env []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "CONNECT_") {
			env = append(env, strings.TrimSpace(line))
		}
	}
	if len(env) != 2 {
		t.Fatalf("connect broker token keys printed %d variables", len(env))
	}
	return env
}

func askBroker(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	res, err := client.Get(url)
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

func brokerEnv(t *testing.T) []string {
	return append(keysEnv(t), "CONNECT_PUBLIC_URL=https://connect.example", "CONNECT_APPS=github=eleven-connect",
		"LCHAT_OAUTH_GITHUB_CLIENT_ID=gid", "LCHAT_OAUTH_GITHUB_CLIENT_SECRET=secret-"+secretMark)
}

func TestBrokerServes(t *testing.T) {
	addr, stop := testBroker(t, append(brokerEnv(t), "CONNECT_SERVICES=github,stripe,linear", "LCHAT_OAUTH_LINEAR_CLIENT_ID=lid"))
	client := &http.Client{Timeout: 20 * time.Second}
	for _, c := range []struct{ path, want string }{
		{"/healthz", ""},
		{"/registry", `"id":"github"`},
		{"/registry/stripe", `"id":"stripe"`},
		{"/api/oauth/config?service=github", `"configured":true,"app":"eleven-connect"`},
		{"/api/oauth/config?service=stripe", `"configured":false`},
	} {
		status, body := askBroker(t, client, "http://"+addr+c.path)
		if status != http.StatusOK || !strings.Contains(strings.ReplaceAll(body, " ", ""), c.want) {
			t.Errorf("%s: %d %.200s", c.path, status, body)
		}
	}
	said := stop()
	for _, want := range []string{"offered: github; register https://connect.example/oauth/github/callback", "CONNECT_INSTANCE_KEYS is empty",
		"warning: stripe is listed and has no OAuth client", "warning: the client of linear is not complete", "\nstopped\n"} {
		if !strings.Contains(said, want) {
			t.Errorf("it does not say %q:\n%s", want, said)
		}
	}
	if strings.Contains(said, secretMark) {
		t.Error("the client secret is in the log")
	}
}

func TestBrokerServesTLSAndSecretsFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	cert, key := selfSigned(t, "connect.example")
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(cert)
	addr, stop := testBroker(t, append(keysEnv(t), "CONNECT_PUBLIC_URL=https://connect.example"),
		"--cert", write("cert.pem", cert), "--key", write("key.pem", key),
		"--secrets-file", write("secrets.json", []byte(`{"linear": {"client_id": "lid", "client_secret": "ls"}, "gihub": {"client_id": "g", "client_secret": "gs"}}`)))
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "connect.example"}}}
	if status, body := askBroker(t, client, "https://"+addr+"/api/oauth/config?service=linear"); status != http.StatusOK || !strings.Contains(body, "true") {
		t.Errorf("linear: %d %s", status, body)
	}
	said := stop()
	if !strings.Contains(said, `warning: an entry of --secrets-file names no service of the registry with OAuth "gihub", and is not used`) || strings.Count(said, "names no service") != 1 {
		t.Errorf("what is no service is not said:\n%s", said)
	}
}

// A token that the program signs opens the broker that it configures, and a made-up one does not.
func TestBrokerTakesSignedToken(t *testing.T) {
	dir := t.TempDir()
	keys := exec.Command("connect", "broker", "token", "keys", "--instance")
	var public strings.Builder
	keys.Stderr = &public
	private, err := keys.Output()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "key.pem")
	if err := os.WriteFile(file, private, 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := exec.Command("connect", "broker", "token", "sign", "--key-file", file, "--issuer", "chat.example",
		"--broker", "https://connect.example", "--origin", "https://chat.example").Output()
	if err != nil {
		t.Fatal(err)
	}
	line := public.String()[strings.Index(public.String(), "CONNECT_INSTANCE_KEYS="):]
	addr, stop := testBroker(t, append(brokerEnv(t), strings.TrimSpace(line)))
	defer stop()
	for _, c := range []struct {
		token string
		want  int
	}{
		{strings.TrimSpace(string(token)), http.StatusBadRequest}, // the body is empty
		{strings.TrimSpace(string(token)) + "A", http.StatusUnauthorized},
	} {
		req, err := http.NewRequest("POST", "http://"+addr+"/api/refresh", strings.NewReader("{"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Authorization", "Bearer "+c.token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.want {
			t.Errorf("refresh: %d, want %d", res.StatusCode, c.want)
		}
	}
}

// Secrets that go to a file which others read are said to.
func TestBrokerTokenWarnsOfOpenFile(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	dir := t.TempDir()
	run := func(mode os.FileMode, name string, words ...string) string {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Chmod(mode); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("connect", append([]string{"broker", "token"}, words...)...)
		var said strings.Builder
		cmd.Stdout, cmd.Stderr = f, &said
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v: %s", err, said.String())
		}
		return said.String()
	}
	run(0o600, "instance.pem", "keys", "--instance")
	for name, words := range map[string][]string{
		"keys": {"keys"}, "pair": {"keys", "--instance"},
		"sign": {"sign", "--key-file", filepath.Join(dir, "instance.pem"), "--issuer", "chat.example", "--broker", "https://connect.example", "--origin", "https://chat.example"},
	} {
		const warning = "warning: the file that this goes to can be read by others (mode 0644), and it is secret: chmod 600 it"
		if said := run(0o644, name+" open", words...); !strings.Contains(said, warning) {
			t.Errorf("%s: an open file is not said:\n%s", name, said)
		}
		if said := run(0o600, name, words...); strings.Contains(said, "can be read by others") {
			t.Errorf("%s: a private file:\n%s", name, said)
		}
	}
}

// selfSigned returns a certificate for a host and its key, in PEM.
func selfSigned(t *testing.T, host string) (cert, key []byte) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{
		SerialNumber: big.NewInt(1), DNSNames: []string{host}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, leaf, public, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}
