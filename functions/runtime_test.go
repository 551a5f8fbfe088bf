package functions_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/functions/internal/event"
	"github.com/elevenmessenger/connect/functions/internal/event/eventtest"
)

// build compiles a function as a deployment does, for this machine.
func build(t testing.TB, dir, name, pkg string) string {
	t.Helper()
	bin := filepath.Join(dir, name, "bootstrap")
	cmd := exec.Command("go", "build", "-tags", "lambda.norpc", "-trimpath", "-ldflags=-s -w", "-o", bin, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", pkg, err, out)
	}
	return bin
}

// buildEmulator compiles the Runtime Interface Emulator as internal/peers pins it.
func buildEmulator(t testing.TB, dir string) string {
	t.Helper()
	bin := filepath.Join(dir, "aws-lambda-rie")
	out, err := exec.Command("go", "build", "-C", "../internal/peers", "-o", bin, "github.com/aws/aws-lambda-runtime-interface-emulator/cmd/aws-lambda-rie").CombinedOutput()
	if err != nil {
		t.Fatalf("the emulator does not build: %v\n%s", err, out)
	}
	return bin
}

// A running is one function in the emulator.
type running struct {
	url string
	out *buffer // whatever the two wrote
	mu  sync.Mutex
}

type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func freeAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// emulate starts a function in the emulator, with nothing in its environment but env. A wrong
// argument would make the emulator wait for ever: its start has a limit.
func emulate(t testing.TB, emulator, bin string, env map[string]string) *running {
	t.Helper()
	addr := freeAddr(t)
	r := &running{url: "http://" + addr + "/2015-03-31/functions/function/invocations", out: new(buffer)}
	ctx, stop := context.WithTimeout(context.Background(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, emulator, "--log-level", "error", "--runtime-interface-emulator-address", addr, "--runtime-api-address", freeAddr(t), bin)
	cmd.Env = environ(env)
	cmd.Stdout, cmd.Stderr = r.out, r.out
	cmd.WaitDelay = time.Second
	// The function ends with the emulator: it has nobody to ask then.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); cmd.Wait() })
	for range 200 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return r
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatalf("the emulator did not start within 5 s: %s", r.out)
	return nil
}

func environ(env map[string]string) []string {
	list := []string{"PATH=/usr/bin:/bin", "AWS_LAMBDA_LOG_FORMAT=JSON", "AWS_LAMBDA_LOG_LEVEL=DEBUG", "AWS_LAMBDA_FUNCTION_TIMEOUT=15", "AWS_LAMBDA_FUNCTION_MEMORY_SIZE=256"}
	for k, v := range env {
		list = append(list, k+"="+v)
	}
	return list
}

// invoke sends an event; the emulator takes one at a time.
func (r *running) invoke(payload []byte) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := http.Client{Timeout: 20 * time.Second}
	resp, err := c.Post(r.url, "application/json", bytes.NewReader(payload))
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(resp.Body)
}

// secretsManager is a stand-in for Secrets Manager: one operation, two stages. What it says
// is our own reading of the API; broker/awssecrets is tested against moto too.
type secretsManager struct {
	*httptest.Server
	name  string
	asked atomic.Int64

	mu      sync.Mutex
	current map[string]string
}

func newSecretsManager(t testing.TB, secrets map[string]string) *secretsManager {
	s := &secretsManager{name: "a stand-in of our own", current: secrets}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		var in struct {
			SecretID     string `json:"SecretId"`
			VersionStage string
		}
		err := json.NewDecoder(r.Body).Decode(&in)
		s.mu.Lock()
		text, ok := s.current[in.SecretID]
		s.mu.Unlock()
		w.Header().Set("Content-Type", "application/x-amz-json-1.1")
		if err != nil || r.Header.Get("X-Amz-Target") != "secretsmanager.GetSecretValue" || !ok || in.VersionStage != "AWSCURRENT" {
			w.WriteHeader(http.StatusBadRequest)
			io.WriteString(w, `{"__type":"ResourceNotFoundException","Message":"Secrets Manager can't find the specified secret."}`)
			return
		}
		json.NewEncoder(w).Encode(map[string]any{"Name": in.SecretID, "ARN": in.SecretID, "SecretString": text, "VersionStages": []string{"AWSCURRENT"}})
	}))
	t.Cleanup(s.Close)
	return s
}

// moto starts moto's Secrets Manager, somebody else's reading of the API, with the secrets in
// it; nil where this machine's Python does not have it.
func moto(t testing.TB, secrets map[string]string) *secretsManager {
	t.Helper()
	if exec.Command("python3", "-c", "import moto.server").Run() != nil {
		return nil
	}
	addr := freeAddr(t)
	host, port, _ := net.SplitHostPort(addr)
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, "python3", "-m", "moto.server", "-H", host, "-p", port)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); cmd.Wait() })
	up := false
	for range 300 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			up = true
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if !up {
		t.Fatal("moto did not start within 15 s")
	}
	for name, text := range secrets {
		b, err := json.Marshal(map[string]string{"Name": name, "SecretString": text, "ClientRequestToken": "00000000-0000-0000-0000-" + fmt.Sprintf("%012x", len(name))})
		if err != nil {
			t.Fatal(err)
		}
		req, err := http.NewRequest("POST", "http://"+addr, bytes.NewReader(b))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-amz-json-1.1")
		req.Header.Set("X-Amz-Target", "secretsmanager.CreateSecret")
		req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x/20261201/eu-central-1/secretsmanager/aws4_request, SignedHeaders=host, Signature=x")
		resp, err := http.DefaultClient.Do(req)
		if err != nil || resp.StatusCode != 200 {
			t.Fatalf("moto takes no secret: %v %v", resp, err)
		}
		resp.Body.Close()
	}
	s := &secretsManager{name: "moto"}
	to := &url.URL{Scheme: "http", Host: addr}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.asked.Add(1)
		proxy.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s
}

// secret marks every secret of the tests.
const secret = brokertest.Sentinel

const (
	stateKey = "StateKey-Xa1b2c3d4e5"
	wrapKey  = "WrappingKey-Yf6g7h8i9j0"
)

func secretsOf(services ...string) map[string]string {
	m := map[string]string{
		stateKey: strings.Repeat(secret+"7", 7), // letters and digits, as CloudFormation makes them
		wrapKey:  strings.Repeat("8"+secret, 7),
	}
	for _, s := range services {
		// As brokertest's provider knows them.
		b, err := json.Marshal(map[string]string{"client_id": "client-" + s, "client_secret": "secret_" + secret + "_" + s + "+/=%"})
		if err != nil {
			panic(err)
		}
		m["connect/oauth/"+s] = string(b)
	}
	return m
}

// functionEnv is the environment of each function as template.yaml would set it.
func functionEnv(endpoint string, key ed25519.PublicKey) map[string]map[string]string {
	aws := map[string]string{
		"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKIA" + secret, "AWS_SECRET_ACCESS_KEY": "aws" + secret, "AWS_SESSION_TOKEN": "session" + secret,
		"AWS_ENDPOINT_URL_SECRETS_MANAGER": endpoint,
		"CONNECT_STACK":                    "connect-test", "CONNECT_PUBLIC_URL": brokertest.Origin, "CONNECT_SERVICES": "github,linear", "CONNECT_SECRET_PREFIX": "connect/oauth",
		"CONNECT_SECRET_CACHE_SECONDS": "300", "CONNECT_WRAPPING_KEY": wrapKey,
	}
	with := func(more map[string]string) map[string]string {
		m := make(map[string]string)
		for k, v := range aws {
			m[k] = v
		}
		for k, v := range more {
			m[k] = v
		}
		return m
	}
	return map[string]map[string]string{
		"registry":       {},
		"config":         {"CONNECT_SERVICES": "github,linear", "CONNECT_APPS": "github=my-app"},
		"oauth-callback": with(map[string]string{"CONNECT_STATE_KEY": stateKey, "CONNECT_RETURN_ORIGINS": ""}),
		"refresh": with(map[string]string{
			"CONNECT_INSTANCE_KEYS": "i1:" + base64.RawURLEncoding.EncodeToString(key), "CONNECT_REFUSED": "", "CONNECT_ALLOW_WIDER_REVOKE": "false",
		}),
	}
}

// functionOf says which function has a golden event's route.
func functionOf(path string) string {
	switch {
	case strings.HasPrefix(path, "/api/oauth/config"):
		return "config"
	case strings.HasPrefix(path, "/oauth/"):
		return "oauth-callback"
	case strings.HasPrefix(path, "/api/re"):
		return "refresh"
	}
	return "registry"
}

// mustBeSilent looks for secrets in whatever was written, as they are and encoded.
func mustBeSilent(t *testing.T, what, out string, secrets ...string) {
	t.Helper()
	for _, s := range secrets {
		forms := []string{s, url.QueryEscape(s), strconv.Quote(s), base64.StdEncoding.EncodeToString([]byte(s)), base64.RawURLEncoding.EncodeToString([]byte(s)),
			fmt.Sprintf("%x", s), fmt.Sprintf("%X", s), fmt.Sprint([]byte(s))}
		for n := range 3 { // in base64 of something longer, at each of the three offsets
			b := base64.StdEncoding.EncodeToString([]byte(strings.Repeat("\x00", n) + s))
			forms = append(forms, strings.TrimRight(b[(n*8+5)/6:len(b)-4], "="))
		}
		for _, f := range forms {
			f = strings.Trim(f, "\"")
			if i := strings.Index(out, f); i >= 0 {
				t.Errorf("%s holds a secret: …%.200q", what, out[max(0, i-80):])
				return
			}
		}
	}
}

// TestRuntime runs each function's real binary in Amazon's emulator.
func TestRuntime(t *testing.T) {
	if testing.Short() {
		t.Skip("builds five programs and the emulator")
	}
	dir := t.TempDir()
	emulator := buildEmulator(t, dir)
	bins := make(map[string]string)
	for _, name := range []string{"registry", "config", "oauth-callback", "refresh"} {
		bins[name] = build(t, dir, name, "./"+name)
	}

	t.Run("golden_events", func(t *testing.T) { goldenEvents(t, emulator, bins) })
	t.Run("panics", func(t *testing.T) { panics(t, emulator, build(t, dir, "panics", "./testdata/panics")) })
	t.Run("refused_start", func(t *testing.T) { refusedStart(t, emulator, bins["refresh"]) })
	t.Run("no_network_at_start", func(t *testing.T) {
		sm := newSecretsManager(t, secretsOf())
		pub, _, _ := ed25519.GenerateKey(nil)
		for name, env := range functionEnv(sm.URL, pub) {
			run(t, bins[name], env)
		}
		if n := sm.asked.Load(); n != 0 {
			t.Errorf("Secrets Manager was asked %d times before the first event", n)
		}
	})
	t.Run("whole_flow", func(t *testing.T) { inNamespace(t, emulator, bins) })
}

// goldenEvents sends every golden event to the binary of its route, and compares each answer
// with what the same handler says in this process; then events that are full of secrets.
func goldenEvents(t *testing.T, emulator string, bins map[string]string) {
	pub, priv, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	sm := newSecretsManager(t, secretsOf("github", "linear"))
	envs := functionEnv(sm.URL, pub)
	procs := make(map[string]*running)
	inProcess := make(map[string]event.Handler)
	for name, bin := range bins {
		procs[name] = emulate(t, emulator, bin, envs[name])
		for key, folder := range folders {
			if folder == name {
				h, err := handlers[key](func(k string) string { return envs[name][k] })
				if err != nil {
					t.Fatal(err)
				}
				inProcess[name] = event.Handler{HTTP: h}
			}
		}
	}
	n := 0
	for _, kind := range eventtest.Kinds {
		files, err := filepath.Glob(filepath.Join("internal", "event", "testdata", "events", kind, "*.json"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: no golden event: %v", kind, err)
		}
		for _, file := range files {
			payload, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var e struct{ Path, RawPath string }
			if err := json.Unmarshal(payload, &e); err != nil {
				t.Fatal(err)
			}
			name := functionOf(e.Path + e.RawPath)
			out, err := procs[name].invoke(payload)
			if err != nil {
				t.Fatalf("%s: %v\n%s", file, err, procs[name].out)
			}
			got, err := eventtest.Parse(kind, out)
			if err != nil {
				t.Errorf("%s: %v: %s", file, err, out)
				continue
			}
			same, err := inProcess[name].Invoke(t.Context(), payload)
			if err != nil {
				t.Fatal(err)
			}
			want, err := eventtest.Parse(kind, same)
			if err != nil {
				t.Fatal(err)
			}
			if got.Status != want.Status || got.Header.Get("Etag") != want.Header.Get("Etag") || got.Header.Get("Content-Type") != want.Header.Get("Content-Type") ||
				len(got.Body) != len(want.Body) || got.Status >= 500 {
				t.Errorf("%s: the binary answers %d %v (%d bytes), this process %d %v (%d bytes)", file, got.Status, got.Header, len(got.Body), want.Status, want.Header, len(want.Body))
			}
			n++
		}
	}
	t.Logf("%d golden events answered by the real binaries", n)

	// Whatever a caller sends does not come out again.
	token := instanceToken(t, priv)
	mark := func(s string) string { return s + secret }
	for _, kind := range eventtest.Kinds {
		for _, r := range []eventtest.Request{
			{Method: "GET", Target: "/oauth/github/callback?code=" + mark("c") + "&state=AAAAAAAAAAAAAAAAAAAAAA", Header: http.Header{"Cookie": {"__Host-flow-AAAAAAAAAAAAAAAAAAAAAA=f1.k." + mark("v")}}},
			{Method: "GET", Target: "/oauth/github/callback?error=" + mark("e") + "&error_description=" + mark("d") + "&state=" + mark("s")},
			{Method: "GET", Target: "/oauth/" + mark("x") + "/authorize?key=" + mark("k") + "&return_to=https%3A%2F%2F" + mark("h") + ".example"},
			{Method: "POST", Target: "/oauth/github/authorize", Body: []byte("token=" + mark("t") + "&agree=" + mark("a")), Header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}, "Cookie": {"__Host-consent=" + mark("c")}, "Origin": {brokertest.Origin}}},
			{Method: "POST", Target: "/api/refresh", Body: []byte(`{"service":"github","refresh":"rt1.` + mark("k") + `.AAAA","key":"` + mark("k") + `"}`), Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + token}}},
			{Method: "POST", Target: "/api/refresh", Body: []byte(`{"` + mark("n") + `":1}`), Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + token}}},
			{Method: "POST", Target: "/api/revoke", Body: []byte(`{"service":"github","secret":"` + mark("s") + `"}`), Header: http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + mark("t")}}},
			{Method: "GET", Target: "/registry/" + mark("r") + "?" + mark("q"), Header: http.Header{"If-None-Match": {mark("i")}, "User-Agent": {mark("u")}}},
			{Method: "GET", Target: "/api/oauth/config?service=" + mark("s")},
			{Method: "GET", Target: "/" + mark("nothing")},
		} {
			out, err := procs[functionOf(r.Target)].invoke(eventtest.Event(kind, r))
			if err != nil {
				t.Fatal(err)
			}
			mustBeSilent(t, "the answer to "+r.Target, string(out), secret)
		}
		// An event of nobody's.
		if out, err := procs["refresh"].invoke([]byte(`{"` + secret + `": "` + secret + `"`)); err != nil {
			t.Fatal(err)
		} else {
			mustBeSilent(t, "the answer to a foreign event", string(out), secret)
		}
	}
	for name, p := range procs {
		out := p.out.String()
		mustBeSilent(t, "the output of "+name, out, secret, token)
		if !strings.Contains(out, `"message":"request"`) || !strings.Contains(out, `"requestId"`) {
			t.Errorf("%s: no log line with a request's id came through: %.300s", name, out)
		}
		mustBeSilent(t, "the output of "+name, out, eventtest.Address)
	}
}

// panics: a function that panics with secrets in its hands answers, says nothing, and lives.
func panics(t *testing.T, emulator, bin string) {
	p := emulate(t, emulator, bin, nil)
	for _, kind := range eventtest.Kinds {
		for _, path := range []string{"/text", "/error", "/half", "/nil"} {
			out, err := p.invoke(eventtest.Event(kind, eventtest.Request{Method: "POST", Target: path, Body: []byte(secret), Header: http.Header{"Cookie": {"c=" + secret}}}))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := eventtest.Parse(kind, out)
			if err != nil || resp.Status != 500 || string(resp.Body) != "{\"error\":\"internal\"}\n" {
				t.Errorf("%s %s: %s (%v)", kind, path, out, err)
			}
			mustBeSilent(t, "the answer to "+path, string(out), secret)
		}
	}
	// It is the same process still, and serves.
	if out, err := p.invoke(eventtest.Event("http-2.0", eventtest.Request{Method: "GET", Target: "/"})); err != nil || !bytes.Contains(out, []byte("still here")) {
		t.Errorf("after the panics: %s %v", out, err)
	}
	out := p.out.String()
	mustBeSilent(t, "the output", out, secret)
	if n := strings.Count(out, `"message":"panic"`); n != 4*len(eventtest.Kinds) || !strings.Contains(out, `"type":"runtime.`) && !strings.Contains(out, `"type":"*runtime.`) && !strings.Contains(out, "boundsError") {
		t.Errorf("%d panics are logged: %.600s", n, out)
	}
}

// refusedStart: what is wrong with the environment is said, by name, and not with its value.
func refusedStart(t *testing.T, emulator, bin string) {
	p := emulate(t, emulator, bin, map[string]string{"AWS_REGION": "eu-central-1", "CONNECT_INSTANCE_KEYS": "i1:" + secret, "CONNECT_ALLOW_WIDER_REVOKE": secret, "CONNECT_PUBLIC_URL": "https://broker.example"})
	if _, err := p.invoke([]byte(`{}`)); err != nil {
		t.Log(err)
	}
	out := p.out.String()
	for _, want := range []string{"the function does not start", "CONNECT_INSTANCE_KEYS: entry 1: ", "CONNECT_ALLOW_WIDER_REVOKE: is neither true nor false", "CONNECT_WRAPPING_KEY: is not set"} {
		if !strings.Contains(out, want) {
			t.Errorf("the output does not say %q: %s", want, out)
		}
	}
	mustBeSilent(t, "the output", out, secret)
}

func instanceToken(t *testing.T, key ed25519.PrivateKey) string {
	t.Helper()
	now := time.Now()
	token, err := broker.SignToken(key, "i1", broker.Claims{Origins: []string{brokertest.Instance}, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "instance-1", Audience: jwt.ClaimStrings{brokertest.Origin}, ID: "jti-1", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return token
}
