package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/integrations"
)

// stripeArgs are args for every arg of every operation of Stripe's manifest. What is not
// here fails the test, so that a new arg is not forgotten.
var stripeArgs = map[string]string{
	"email": "email=ada@example.com", "limit": "limit=3", "starting_after": "starting_after=xx_123",
	"query": "query=name~'jenny'", "page": "page=abc", "customer": "customer=cus_123", "invoice": "invoice=in_123",
	"charge": "charge=ch_123", "type": "type=refund", "name": "name=Ada & Söhne", "description": "description=@@a=b&c",
	"metadata": "metadata=team=blue", "amount": "amount=100",
}

// TestStripeMock is the main job on Stripe's own server: stripe-mock validates every
// request against Stripe's own OpenAPI document, unknown parameters included. The program
// that runs is the built one, and TLS and the pinned host are as ever: a front with a
// certificate of a test authority stands where --connect-to says.
func TestStripeMock(t *testing.T) {
	if testing.Short() {
		t.Skip("builds and runs stripe-mock")
	}
	bin := buildConnect(t)
	front := startStripe(t)
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	m := reg.Get("stripe")

	run := func(t *testing.T, token string, words ...string) (stdout, stderr string, code int) {
		t.Helper()
		front.take()
		words = append([]string{"op", "stripe"}, words...)
		words = append(words, "--token-env", "STRIPE_KEY", "--connect-to", m.Host+":443:"+front.addr, "--cacert", front.ca)
		cmd := exec.Command(bin, words...)
		cmd.Env = append(os.Environ(), "STRIPE_KEY="+token)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		if all := out.String() + errs.String(); strings.Contains(all, token) {
			t.Errorf("the token is in the output:\n%s", all)
		}
		return out.String(), errs.String(), cmd.ProcessState.ExitCode()
	}
	const good = "rk_test_" + secretMark + "0123456789"

	for _, o := range m.Ops {
		t.Run(o.Name, func(t *testing.T) {
			for _, words := range stripeCommands(t, o) {
				stdout, stderr, code := run(t, good, append(words, "--json", "--yes")...)
				var answer struct {
					OK     bool
					Result json.RawMessage
				}
				if err := json.Unmarshal([]byte(stdout), &answer); err != nil || code != 0 || !answer.OK {
					t.Fatalf("%q: exit code %d, %s\n%s", words, code, stdout, stderr)
				}
				seen := front.take()
				last := seen[len(seen)-1]
				if last.method != o.Method {
					t.Errorf("%q: sent %s, want %s", words, last.method, o.Method)
				}
				if last.version == "" {
					t.Errorf("%q: no Stripe-Version", words)
				}
				if o.Idempotency != nil && last.key == "" {
					t.Errorf("%q: no idempotency key", words)
				}
				if o.Has(integrations.Money) && len(seen) != 3 {
					t.Errorf("%q: %d requests, want the preview twice and the write", words, len(seen))
				}
			}
		})
	}

	t.Run("list_customers limit=3", func(t *testing.T) {
		stdout, _, code := run(t, good, "list_customers", "limit=3")
		if code != 0 || !strings.Contains(stdout, `"id": "cus_`) {
			t.Errorf("exit code %d:\n%s", code, stdout)
		}
		if strings.Contains(stdout, "invoice_prefix") {
			t.Errorf("a field that is not picked flows back:\n%s", stdout)
		}
	})

	// Its 401 repeats the whole Authorization header.
	t.Run("a refused key is not echoed", func(t *testing.T) {
		const live = "rk_live_" + secretMark + "0123456789"
		stdout, stderr, code := run(t, live, "list_customers", "--json")
		if code != 1 || !strings.Contains(stdout, `"code":"unauthorised"`) {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
		if !strings.Contains(stderr, "held the connection's own token, so it is withheld") {
			t.Errorf("stripe-mock did not echo the key, so that this proves nothing:\n%s", stderr)
		}
	})

	// That all of the above was accepted means something only if what is wrong is not.
	t.Run("it does validate", func(t *testing.T) {
		dir := t.TempDir()
		wrong := bytes.Replace(m.Raw(), []byte(`"body_form": { "name": "{name}"`), []byte(`"body_form": { "nom": "{name}"`), 1)
		if bytes.Equal(wrong, m.Raw()) {
			t.Fatal("the manifest's create_customer is written otherwise now; mend this test")
		}
		if err := os.WriteFile(filepath.Join(dir, "stripe.json"), wrong, 0o600); err != nil {
			t.Fatal(err)
		}
		stdout, stderr, code := run(t, good, "create_customer", "name=Ada", "--yes", "--json", "--registry", dir)
		if code != 1 || !strings.Contains(stdout, `"status":400`) {
			t.Errorf("exit code %d: %s%s", code, stdout, stderr)
		}
	})
}

// stripeCommands returns an operation with what it needs, with all that it takes, and
// with each word of each enum.
func stripeCommands(t *testing.T, o *integrations.Op) [][]string {
	least, all := []string{o.Name}, []string{o.Name}
	var enums []*integrations.Arg
	for _, a := range o.Args {
		word, ok := stripeArgs[a.Name]
		if a.Kind() == "enum" {
			enums = append(enums, a)
			word, ok = a.Name+"="+a.Values[0], true
		}
		if !ok {
			t.Fatalf("stripeArgs has no value for %s", a.Name)
		}
		all = append(all, word)
		if a.Required() {
			least = append(least, word)
		}
	}
	commands := [][]string{least, all}
	for _, a := range enums {
		for _, v := range a.Values {
			commands = append(commands, append(least[:len(least):len(least)], a.Name+"="+v))
		}
	}
	return commands
}

func buildConnect(t *testing.T) string {
	bin := filepath.Join(t.TempDir(), "connect")
	if out, err := exec.Command("go", "build", "-o", bin, ".").CombinedOutput(); err != nil {
		t.Fatalf("building connect: %v\n%s", err, out)
	}
	return bin
}

// A stripeFront stands before stripe-mock with TLS, and keeps what passed.
type stripeFront struct {
	addr, ca string

	mu   sync.Mutex
	seen []stripeRequest
}

type stripeRequest struct{ method, path, version, key string }

func (f *stripeFront) take() []stripeRequest {
	f.mu.Lock()
	defer f.mu.Unlock()
	seen := f.seen
	f.seen = nil
	return seen
}

// startStripe builds and starts stripe-mock, as internal/peers pins it.
func startStripe(t *testing.T) *stripeFront {
	dir, err := os.MkdirTemp("", "stripe") // short, for the socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	bin, socket := filepath.Join(dir, "stripe-mock"), filepath.Join(dir, "s")
	if out, err := exec.Command("go", "build", "-C", "../../internal/peers", "-o", bin, "github.com/stripe/stripe-mock").CombinedOutput(); err != nil {
		t.Fatalf("building stripe-mock: %v\n%s", err, out)
	}
	ctx, stop := context.WithCancel(context.Background())
	var log bytes.Buffer
	mock := exec.CommandContext(ctx, bin, "-http-unix", socket, "-strict-version-check")
	mock.Stdout, mock.Stderr = &log, &log
	if err := mock.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mock.Wait() }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	for start := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		if conn, err := net.Dial("unix", socket); err == nil {
			conn.Close()
			break
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("stripe-mock ended: %v\n%s", err, &log)
		default:
		}
		if time.Since(start) > 30*time.Second {
			t.Fatal("stripe-mock does not answer")
		}
	}

	f := &stripeFront{ca: filepath.Join(dir, "ca.pem")}
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: "stripe-mock"})
			f.mu.Lock()
			defer f.mu.Unlock()
			f.seen = append(f.seen, stripeRequest{r.In.Method, r.In.URL.Path, r.In.Header.Get("Stripe-Version"), r.In.Header.Get("Idempotency-Key")})
		},
		Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}},
	}
	srv, err := peer.Start(proxy, "api.stripe.com")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	f.addr = srv.Addr
	if err := os.WriteFile(f.ca, srv.CA, 0o600); err != nil {
		t.Fatal(fmt.Errorf("the authority: %w", err))
	}
	return f
}
