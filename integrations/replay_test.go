package integrations_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/elevenmessenger/connect/integrations"
)

// A provider stands in for a service: it answers with what the service answered, under a
// certificate for the service's own name, and remembers what it was asked.
type provider struct {
	executor *integrations.Executor

	mu      sync.Mutex
	answers []*response // in this order, the last one again and again
	asked   []asked
}

// asked is a request as it came over the wire.
type asked struct {
	Method  string            `json:"method"`
	Target  string            `json:"target"`
	Headers map[string]string `json:"headers"`
	JSON    json.RawMessage   `json:"json,omitempty"`
	Form    string            `json:"form,omitempty"`
}

func newProvider(t *testing.T, m *integrations.Manifest) *provider {
	t.Helper()
	p := new(provider)
	srv := httptest.NewUnstartedServer(p)
	cert, roots := certificate(t, m.Host)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	p.executor = &integrations.Executor{
		ConnectTo: map[string]string{m.Host + ":443": srv.Listener.Addr().String()},
		RootCAs:   roots,
	}
	t.Cleanup(p.executor.CloseIdleConnections)
	return p
}

// certificate returns a certificate for host and the authority that signed it.
func certificate(t *testing.T, host string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// will sets what the provider answers from now on, and forgets what it was asked.
func (p *provider) will(answers ...*response) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answers, p.asked = answers, nil
}

// Headers that are the connection's, and so the test server's own.
var hopHeaders = []string{"connection", "content-length", "content-encoding", "transfer-encoding", "date", "keep-alive"}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	p.mu.Lock()
	defer p.mu.Unlock()
	a := asked{Method: r.Method, Target: r.RequestURI, Headers: map[string]string{}}
	for _, name := range []string{"Accept", "Authorization", "Content-Type", "Idempotency-Key", "Stripe-Version", "X-Github-Api-Version"} {
		if v := r.Header.Get(name); v != "" {
			a.Headers[name] = v
		}
	}
	if strings.HasSuffix(a.Headers["Content-Type"], "json") {
		a.JSON = body
	} else {
		a.Form = string(body)
	}
	p.asked = append(p.asked, a)
	resp := p.answers[min(len(p.asked), len(p.answers))-1]
	for name, v := range resp.Headers {
		if !slices.Contains(hopHeaders, strings.ToLower(name)) {
			w.Header().Set(name, fmt.Sprint(v))
		}
	}
	w.WriteHeader(resp.Status)
	var text string
	switch {
	case string(resp.Body) == "null" || len(resp.Body) == 0:
	case json.Unmarshal(resp.Body, &text) == nil: // what is not JSON is kept as a text
		io.WriteString(w, text)
	default:
		w.Write(resp.Body)
	}
}

// The token of every replay. It is no secret.
const replayToken = "token-of-the-replay"

func (t *truth) credential() integrations.Credential {
	return integrations.Credential{Kind: integrations.PAT, Secret: integrations.NewSecret(replayToken), Connection: t.Connection}
}

// bind makes a call with the args of the operation's replay.
func (t *truth) bind(m *integrations.Manifest, op string) (*integrations.Call, error) {
	c, err := m.Bind(op, t.Args[op], t.Connection)
	if err == nil {
		c.IdempotencyKey = "replay" // so that the key is the same each time
	}
	return c, err
}

// A replay is what a golden file holds: what was sent, what a person would have
// confirmed, and what came back.
type replay struct {
	Confirm string                 `json:"confirm,omitempty"`
	Preview string                 `json:"preview,omitempty"`
	Request asked                  `json:"request"`
	Result  json.RawMessage        `json:"result"`
	Next    *integrations.NextPage `json:"next,omitempty"`
}

// TestReplay runs each operation against the provider's own answers.
func TestReplay(t *testing.T) {
	kept := map[string]bool{}
	count := map[string]int{}
	for _, m := range registry(t) {
		tr, all := replays(t, m)
		p := newProvider(t, m)
		for _, op := range m.Ops {
			answers := tr.answers(op, all)
			if len(answers) == 0 {
				t.Errorf("%s.%s: there is no answer to replay", m.ID, op.Name)
				continue
			}
			checkStatus(t, m, op, tr, answers)
			for _, r := range answers {
				name := m.ID + "." + op.Name
				if v := r.variant(); v != "" {
					name += "." + v
				}
				kept[name+".json"] = true
				t.Run(name, func(t *testing.T) {
					got, err := p.replay(t.Context(), tr, m, op, r, all)
					if err != nil {
						t.Fatal(err)
					}
					count[r.origin()]++
					t.Logf("%s.%s: %s response (%s)", m.ID, op.Name, r.origin(), filepath.Base(r.file))
					checkPicked(t, op, got.Result)
					golden(t, name+".json", got)
				})
			}
		}
		for op := range tr.Args {
			if m.Op(op) == nil {
				t.Errorf("%s/proof.json has args for %q, which is no operation", m.ID, op)
			}
		}
	}
	t.Logf("recorded %d, published %d, generated %d", count[recorded], count[published], count[generated])
	if integrations.Updating() {
		return
	}
	files, err := filepath.Glob("testdata/golden/*.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b := filepath.Base(f); !kept[b] && !strings.HasSuffix(b, ".errors.json") {
			t.Errorf("%s belongs to no operation", f)
		}
	}
}

func replays(t *testing.T, m *integrations.Manifest) (*truth, []*response) {
	t.Helper()
	tr, err := loadTruth(m.ID, filepath.Join(providersDir, m.ID))
	if err != nil {
		t.Fatal(err)
	}
	return tr, loadResponses(t, m.ID)
}

// replay runs an operation, and its preview before it, against recorded answers.
func (p *provider) replay(ctx context.Context, tr *truth, m *integrations.Manifest, op *integrations.Op, r *response, all []*response) (*replay, error) {
	c, err := tr.bind(m, op.Name)
	if err != nil {
		return nil, err
	}
	got := &replay{Confirm: c.Sentence().Text}
	pre, err := c.Preview()
	if err != nil {
		return nil, err
	}
	if pre != nil {
		p.will(tr.answers(pre.Op, all)[0])
		res, err := p.executor.Do(ctx, pre, tr.credential())
		if err != nil {
			return nil, fmt.Errorf("the preview: %w", err)
		}
		if got.Preview, err = c.Say(res); err != nil {
			return nil, fmt.Errorf("the preview: %w", err)
		}
	}
	p.will(r)
	res, err := p.executor.Do(ctx, c, tr.credential())
	if err != nil {
		return nil, err
	}
	got.Request, got.Result, got.Next = p.asked[0], res.JSON, res.Next
	return got, nil
}

// checkStatus holds what the manifest says of how an operation was checked against the
// best answer that there is.
func checkStatus(t *testing.T, m *integrations.Manifest, op *integrations.Op, tr *truth, answers []*response) {
	t.Helper()
	got, want := "", "schema"
	for _, r := range answers {
		if r.origin() != generated {
			want = "example"
		}
	}
	if _, ok := tr.fact(op); ok {
		want = "" // checked against nothing but words
	}
	if op.Status != nil {
		got = op.Status.Checked
	}
	if got != want && got != "live" {
		t.Errorf("%s.%s: status.checked is %q, its best answer makes it %q", m.ID, op.Name, got, want)
	}
}

// checkPicked looks whether anything came back that the manifest does not pick.
func checkPicked(t *testing.T, op *integrations.Op, result json.RawMessage) {
	t.Helper()
	var v any
	if err := json.Unmarshal(result, &v); err != nil {
		t.Fatalf("the result is not JSON: %v", err)
	}
	for _, l := range leaves(v, "") {
		// A null may stand for all that is picked below it.
		if !slices.ContainsFunc(op.Pick.Fields, func(f integrations.Field) bool {
			return f.Path == l.path || l.value == nil && strings.HasPrefix(f.Path+".", l.path)
		}) && (op.Pick.Nothing == "" || l.value != nil) {
			t.Errorf("%s came back: %v, and is not picked", l.path, l.value)
		}
	}
}

// golden compares got with a file, or writes it.
func golden(t *testing.T, name string, got any) {
	t.Helper()
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(got); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join("testdata/golden", name)
	if integrations.Updating() {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v\nwrite it with -update, and read what it says", err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// A failure is what a golden file holds of an error's replay.
type failure struct {
	Op    string `json:"op"`
	Class string `json:"class"`
	Tries int    `json:"tries"`
	Error string `json:"error"`
}

// TestReplayErrors runs operations against the providers' recorded and published errors:
// each has its class, and nothing of its body flows back but the message.
func TestReplayErrors(t *testing.T) {
	for _, m := range registry(t) {
		t.Run(m.ID, func(t *testing.T) {
			t.Parallel() // a gateway's error is tried again, with a pause
			tr, all := replays(t, m)
			p := newProvider(t, m)
			got := map[string][]failure{}
			for _, r := range all {
				file := filepath.Base(r.file)
				if r.Status == http.StatusMovedPermanently || strings.HasPrefix(file, "_page.pages-") {
					continue // TestReplayRedirect, TestReplayPages
				}
				if r.special() && len(tr.Errors[file]) == 0 {
					t.Errorf("%s is replayed to no operation", r.file)
				}
				for _, op := range tr.Errors[file] {
					c, err := tr.bind(m, op)
					if err != nil {
						t.Fatalf("%s: %v", op, err)
					}
					p.will(r)
					res, err := p.executor.Do(t.Context(), c, tr.credential())
					if err == nil {
						t.Errorf("%s to %s: got the result %s, want an error", file, op, res.JSON)
						continue
					}
					checkClass(t, file, c.Op, r, err)
					checkMessage(t, file, m, c.Op, r, err)
					got[file] = append(got[file], failure{op, integrations.Code(err), len(p.asked), err.Error()})
					t.Logf("%s: %s %d, %s", op, r.origin(), r.Status, integrations.Code(err))
				}
			}
			golden(t, m.ID+".errors.json", got)
		})
	}
}

func checkClass(t *testing.T, file string, op *integrations.Op, r *response, err error) {
	t.Helper()
	body := string(r.Body)
	want := integrations.ErrProvider
	switch {
	case strings.Contains(body, "RATELIMITED"):
		want = integrations.ErrRateLimited
	case r.Status == 401, strings.Contains(body, "AUTHENTICATION_ERROR"):
		want = integrations.ErrUnauthorised
	case op.Access == integrations.Write && (r.Status >= 500 || strings.HasPrefix(body, `"<html>`) ||
		strings.Contains(body, `"success": true`)): // it says both that it was done and that it failed
		want = integrations.ErrUnknownOutcome
	}
	if !errors.Is(err, want) {
		t.Errorf("%s to %s: got %v (%s), want %s", file, op.Name, err, integrations.Code(err), integrations.Code(want))
	}
}

// checkMessage looks whether the error says the one message that may flow back, and
// nothing else of the body.
func checkMessage(t *testing.T, file string, m *integrations.Manifest, op *integrations.Op, r *response, err error) {
	t.Helper()
	paths := []string(m.Error.Message)
	if r.Status < 300 {
		paths = nil
		for _, f := range op.Fail {
			paths = append(paths, f.Message...)
		}
	}
	var body any
	if e := json.Unmarshal(r.Body, &body); e != nil {
		t.Fatal(e)
	}
	message := ""
	for _, path := range paths {
		if message == "" && path != "" {
			message = firstText(body, strings.Split(path, "."))
		}
	}
	if !strings.Contains(err.Error(), message) {
		t.Errorf("%s to %s: got %q, want the message %q in it", file, op.Name, err, message)
	}
	rest := strings.ReplaceAll(err.Error(), message, "")
	for _, text := range texts(body) {
		if len(text) >= 8 && text != message && strings.Contains(rest, text) {
			t.Errorf("%s to %s: %q flows back in %q", file, op.Name, text, err)
		}
	}
}

// firstText returns the first text at a path, arrays gone through.
func firstText(v any, path []string) string {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if s := firstText(e, path); s != "" {
				return s
			}
		}
	case map[string]any:
		if len(path) > 0 {
			return firstText(v[path[0]], path[1:])
		}
	case string:
		if len(path) == 0 {
			return v
		}
	}
	return ""
}

// texts returns every text in a JSON value.
func texts(v any) []string {
	var all []string
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			all = append(all, texts(e)...)
		}
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			all = append(all, texts(v[k])...)
		}
	case string:
		all = append(all, v)
	}
	return all
}

// TestReplayEchoedToken: Stripe's message repeats the key that it refuses.
func TestReplayEchoedToken(t *testing.T) {
	m, tr, p, all := service(t, "stripe")
	p.will(byName(t, all, "_error.401.bad-key.json"))
	cred := tr.credential()
	cred.Secret = integrations.NewSecret("sk_test_123") // the one in the recorded message
	_, err := p.executor.ExecuteAs(t.Context(), m, "whoami", nil, cred)
	if !errors.Is(err, integrations.ErrUnauthorised) || strings.Contains(err.Error(), "sk_test_123") {
		t.Errorf("got %v, want unauthorised and not a word of the key", err)
	}
}

// TestReplayPages walks lists to their end over recorded pages.
func TestReplayPages(t *testing.T) {
	t.Run("dnsimple", func(t *testing.T) {
		m, tr, p, all := service(t, "dnsimple")
		args := integrations.Args{}
		var targets, results []string
		for page := 1; ; page++ {
			p.will(byName(t, all, fmt.Sprintf("_page.pages-%dof3.json", page)))
			res, err := p.executor.ExecuteAs(t.Context(), m, "list_domains", args, tr.credential())
			if err != nil {
				t.Fatal(err)
			}
			targets, results = append(targets, p.asked[0].Target), append(results, string(res.JSON))
			if res.Next == nil {
				break
			}
			args[res.Next.Arg] = res.Next.Value
		}
		want := []string{
			"/v2/1010/domains?per_page=30",
			"/v2/1010/domains?per_page=30&page=2",
			"/v2/1010/domains?per_page=30&page=3",
		}
		if diff := cmp.Diff(want, targets); diff != "" {
			t.Errorf("what was asked for (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{`[{"id":1},{"id":2}]`, `[{"id":3},{"id":4}]`, `[{"id":5}]`}, results); diff != "" {
			t.Errorf("what came back (-want +got):\n%s", diff)
		}
	})
	t.Run("github", func(t *testing.T) {
		// The recorded link names another path: /repositories/1000/issues. Its page alone
		// is taken, and asked for at the manifest's own path.
		m, tr, p, all := service(t, "github")
		r := byName(t, all, "issues-list-for-repo.recorded.json")
		p.will(r)
		args := maps.Clone(tr.Args["list_issues"])
		for _, want := range []string{"", "&page=2"} {
			res, err := p.executor.ExecuteAs(t.Context(), m, "list_issues", args, tr.credential())
			if err != nil {
				t.Fatal(err)
			}
			target := p.asked[len(p.asked)-1].Target
			if !strings.HasPrefix(target, "/repos/octokit-fixture-org/paginate-issues/issues?") || !strings.HasSuffix(target, "&per_page=3"+want) {
				t.Errorf("asked for %s, want the manifest's path and per_page=3%s", target, want)
			}
			if want != "" {
				// The same link again does not advance, and so ends the list.
				if res.Next != nil {
					t.Errorf("got the next page %v after a link that does not advance", res.Next)
				}
				return
			}
			if res.Next == nil || res.Next.Arg != "page" || res.Next.Value != "2" {
				t.Fatalf("got the next page %v, want page 2 of %v", res.Next, r.Headers["link"])
			}
			args[res.Next.Arg] = res.Next.Value
		}
	})
}

// TestReplayRedirect: a repository that was renamed is found, within the same host.
func TestReplayRedirect(t *testing.T) {
	m, tr, p, all := service(t, "github")
	p.will(byName(t, all, "_error.301.repos-get.recorded.json"), byName(t, all, "repos-get.recorded.json"))
	res, err := p.executor.ExecuteAs(t.Context(), m, "get_repo", tr.Args["get_repo"], tr.credential())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(res.JSON, []byte(`"full_name":"octokit-fixture-org/hello-world"`)) {
		t.Errorf("got %s, want the repository under its new name", res.JSON)
	}
	if len(p.asked) != 2 || p.asked[1].Target != "/repositories/1000" {
		t.Errorf("asked %v, want the old name, then /repositories/1000", p.asked)
	}
}

// service returns what a test of one service needs.
func service(t *testing.T, id string) (*integrations.Manifest, *truth, *provider, []*response) {
	t.Helper()
	for _, m := range registry(t) {
		if m.ID == id {
			tr, all := replays(t, m)
			return m, tr, newProvider(t, m), all
		}
	}
	t.Fatalf("there is no manifest %s", id)
	return nil, nil, nil, nil
}

func byName(t *testing.T, all []*response, name string) *response {
	t.Helper()
	for _, r := range all {
		if filepath.Base(r.file) == name {
			return r
		}
	}
	t.Fatalf("there is no response %s", name)
	return nil
}
