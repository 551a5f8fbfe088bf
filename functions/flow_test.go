package functions_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/functions/internal/event/eventtest"
)

// The functions call no private address, and know no switch that would let them. Providers
// of the tests therefore stand at a public one, in a network namespace of the test's own that
// leads nowhere: there it is the loopback interface's.
const providerAddr = "198.51.200.1"

// inNamespace runs TestWholeFlow in such a namespace.
func inNamespace(t *testing.T, emulator string, bins map[string]string) {
	for _, tool := range []string{"unshare", "ip", "mount"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("SKIPPED: the whole flow through the real binaries needs %s", tool)
		}
	}
	if out, err := exec.Command("unshare", "--net", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("SKIPPED: the whole flow through the real binaries needs a network namespace: %v %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	hosts := "127.0.0.1 localhost\n" + providerAddr + " github.com api.github.com api.linear.app linear.app\n"
	if err := os.WriteFile(filepath.Join(dir, "hosts"), []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), 40*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--mount", "/bin/sh", "-c",
		`ip link set lo up && ip addr add "$1"/32 dev lo && mount --bind "$2" /etc/hosts && exec "$3" -test.run '^TestWholeFlow$' -test.v -test.timeout 35s`,
		"sh", providerAddr, filepath.Join(dir, "hosts"), self)
	cmd.Env = append(os.Environ(), "CONNECT_TEST_NAMESPACE=1", "CONNECT_TEST_EMULATOR="+emulator)
	for name, bin := range bins {
		cmd.Env = append(cmd.Env, "CONNECT_TEST_BIN_"+strings.ReplaceAll(name, "-", "_")+"="+bin)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestWholeFlow")) {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if _, note, ok := strings.Cut(line, "flow_test.go:"); ok {
			t.Log(strings.TrimSpace(note))
		}
	}
}

// TestWholeFlow is run by TestRuntime/whole_flow in a network namespace: consent, callback,
// refresh and revoke through the real binaries in the emulator, behind a gateway of each kind,
// against a provider that knows its client. Then it looks through whatever they wrote.
func TestWholeFlow(t *testing.T) {
	if os.Getenv("CONNECT_TEST_NAMESPACE") == "" {
		t.Skip("run by TestRuntime in a network namespace")
	}
	sm := moto(t, secretsOf("github", "linear"))
	if sm == nil {
		sm = newSecretsManager(t, secretsOf("github", "linear"))
	}
	procs := make(map[string]*running)
	kind := "http-2.0"
	front := func(http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			eventtest.Front(kind, func(r *http.Request, payload []byte) ([]byte, error) {
				return procs[functionOf(r.URL.Path)].invoke(payload)
			}).ServeHTTP(w, r)
		})
	}
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	s := brokertest.New(t, brokertest.Options{Wrap: front, Config: func(c *broker.Config) { c.InstanceKeys[0].Key = pub }})
	forward(t, net.JoinHostPort(providerAddr, "443"), s.Upstream.Addr)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(roots, s.CA.PEM(), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, env := range functionEnv(sm.URL, pub) {
		env["SSL_CERT_FILE"] = roots
		procs[name] = emulate(t, os.Getenv("CONNECT_TEST_EMULATOR"), os.Getenv("CONNECT_TEST_BIN_"+strings.ReplaceAll(name, "-", "_")), env)
	}
	token := instanceToken(t, priv)
	secrets := []string{brokertest.Sentinel, token}
	refresh := func(service, wrapped string) *brokertest.Page {
		t.Helper()
		key, err := brokertest.NewIdentity(t).Public().MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		p, err := s.PostJSON("/api/refresh", token, map[string]string{"service": service, "refresh": wrapped, "key": string(key)})
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	var firstAnswer time.Duration
	for _, k := range eventtest.Kinds {
		kind = k
		for _, service := range []string{"github", "linear"} {
			s.Upstream.Reset()
			begin := time.Now()
			b, a := s.Browser(), brokertest.Ask{Service: service}
			p := b.Begin(t, &a)
			if firstAnswer == 0 {
				firstAnswer = time.Since(begin)
			}
			if p.Status != http.StatusSeeOther {
				t.Fatalf("%s, %s: the press is answered %d\n%s", kind, service, p.Status, procs["oauth-callback"].out)
			}
			for _, c := range p.Cookies("__Host-") {
				secrets = append(secrets, c.Value)
			}
			back := b.Get(t, p.Location())
			done := b.Get(t, back.Location())
			out, err := a.Open(done)
			if err != nil {
				t.Fatalf("%s, %s: callback: %v\n%s", kind, service, err, procs["oauth-callback"].out)
			}
			if u := p.Location(); strings.Contains(u, "state=") {
				_, state, _ := strings.Cut(u, "state=")
				state, _, _ = strings.Cut(state, "&")
				secrets = append(secrets, state)
			}
			wrapped := out.Refresh.Reveal()
			secrets = append(secrets, out.Secret.Reveal(), wrapped)
			if n := s.Upstream.Count(brokertest.Token); n != 1 {
				t.Errorf("%s, %s: %d exchanges", kind, service, n)
			}
			if p := refresh(service, wrapped); p.Status != 200 || s.Upstream.Count(brokertest.Refresh) != 1 {
				t.Errorf("%s, %s: refresh: %d %s, %d calls", kind, service, p.Status, p.Body, s.Upstream.Count(brokertest.Refresh))
			}
			if p, err := s.PostJSON("/api/revoke", token, map[string]string{"service": service, "secret": out.Secret.Reveal()}); err != nil || p.Status != 200 {
				t.Errorf("%s, %s: revoke: %+v %v", kind, service, p, err)
			}
			// Faults: a provider that shouts the secret back, in each way that is not an answer.
			for name, answer := range map[string]*brokertest.Answer{
				"HTML":     {Status: 502, Body: "<html>" + wrapped + brokertest.Sentinel},
				"echo":     brokertest.JSON(400, map[string]string{"error": "invalid_request", "error_description": brokertest.Sentinel, "refresh_token": brokertest.Sentinel}),
				"odd code": brokertest.JSON(400, map[string]string{"error": brokertest.Sentinel}),
				"dead":     brokertest.JSON(400, map[string]string{"error": "invalid_grant", "error_description": brokertest.Sentinel}),
				"client":   brokertest.JSON(401, map[string]string{"error": "invalid_client", "error_description": brokertest.Sentinel}),
				"redirect": {Status: 307, Header: http.Header{"Location": {"https://github.com/?" + brokertest.Sentinel}}},
				"reset":    {Raw: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
			} {
				s.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer { return answer })
				p := refresh(service, wrapped)
				if p.Status == 200 || p.Status == 500 || strings.Contains(p.Body, brokertest.Sentinel) {
					t.Errorf("%s, %s, %s: %d %s", kind, service, name, p.Status, p.Body)
				}
				s.Upstream.SetAnswer(nil)
			}
		}
	}
	// The token in the clear and the secrets' own parts, too.
	for name, text := range secretsOf("github", "linear") {
		if name == stateKey || name == wrapKey {
			secrets = append(secrets, text)
		}
	}
	size := 0
	for name, p := range procs {
		out := p.out.String()
		size += len(out)
		mustBeSilent(t, "the output of "+name, out, secrets...)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "START ") || strings.HasPrefix(line, "END ") || strings.HasPrefix(line, "REPORT ") {
				continue // the emulator's own
			}
			if !json.Valid([]byte(line)) {
				t.Errorf("%s wrote a line that is no JSON: %q", name, line)
				break
			}
		}
	}
	if out := procs["refresh"].out.String(); !strings.Contains(out, `"InvalidClient":1`) || !strings.Contains(out, `"stack":"connect-test"`) {
		t.Errorf("the metric of an unknown client is not in the log: %.300s", out)
	}
	t.Logf("%d kinds of gateway, 2 services: whole flows, refreshes, revocations and 7 faults each through the real binaries; Secrets Manager (%s) was asked %d times; %d bytes of output held none of %d secrets; the first page and press took %v",
		len(eventtest.Kinds), sm.name, sm.asked.Load(), size, len(secrets), firstAnswer.Round(time.Millisecond))
}

// forward passes connections on.
func forward(t *testing.T, from, to string) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				u, err := net.Dial("tcp", to)
				if err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				defer u.Close()
				go func() { io.Copy(u, c); u.Close() }()
				io.Copy(c, u)
			}()
		}
	}()
}
