package awssecrets

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
)

// A fault is what the proxy does in place of passing a request on.
type fault string

const (
	none     fault = ""
	throttle fault = "ThrottlingException"
	failure  fault = "InternalServiceError" // at 500
	denied   fault = "AccessDeniedException"
	sealed   fault = "DecryptionFailure"
	drop     fault = "drop" // the connection, with the request read
	slow     fault = "slow" // three seconds
	html     fault = "html" // of a proxy on the way
)

// A peer is a Secrets Manager behind a proxy of faults.
type peer struct {
	name  string
	admin *secretsmanager.Client // the SDK's, past the proxy
	URL   string                 // the proxy's

	mu     sync.Mutex
	faults []fault // of the next requests; the last stays where stay is set
	stay   bool
	n      atomic.Int64
}

// set makes the next requests fail so, and none after them.
func (p *peer) set(faults ...fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.stay = faults, false
	p.n.Store(0)
}

// always makes every request fail so.
func (p *peer) always(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults, p.stay = []fault{f}, true
	p.n.Store(0)
}

func (p *peer) next() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.faults) == 0 {
		return none
	}
	f := p.faults[0]
	if !p.stay {
		p.faults = p.faults[1:]
	}
	return f
}

func (p *peer) client(t *testing.T) *Client {
	t.Helper()
	return clientOf(t, p.URL)
}

func environment(endpoint string) func(string) string {
	env := map[string]string{
		"AWS_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "AKIAFAKE", "AWS_SECRET_ACCESS_KEY": "fake", "AWS_SESSION_TOKEN": "fake",
		"AWS_ENDPOINT_URL_SECRETS_MANAGER": endpoint,
	}
	return func(name string) string { return env[name] }
}

func clientOf(t *testing.T, endpoint string) *Client {
	t.Helper()
	c, err := NewClient(environment(endpoint))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// sdk returns the SDK's own client.
func sdk(endpoint string) *secretsmanager.Client {
	return secretsmanager.New(secretsmanager.Options{Region: "us-east-1", BaseEndpoint: &endpoint, Credentials: aws.CredentialsProviderFunc(
		func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: "AKIAFAKE", SecretAccessKey: "fake", SessionToken: "fake"}, nil
		})})
}

// front puts the proxy before a server.
func front(t *testing.T, name, to string) *peer {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p := &peer{name: name, admin: sdk(to)}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(u) }, ErrorLog: log.New(io.Discard, "", 0)}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.n.Add(1)
		switch f := p.next(); f {
		case none:
			proxy.ServeHTTP(w, r)
		case drop:
			io.Copy(io.Discard, r.Body)
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				c.Close()
			}
		case slow:
			select {
			case <-time.After(3 * time.Second):
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler)
		case html:
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusBadGateway)
			io.WriteString(w, "<html>SENTINEL</html>")
		default:
			awsError(w, f)
		}
	}))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	p.URL = srv.URL
	return p
}

func awsError(w http.ResponseWriter, code fault) {
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	status := http.StatusBadRequest
	if code == failure {
		status = http.StatusInternalServerError
	}
	w.WriteHeader(status)
	fmt.Fprintf(w, `{"__type":%q,"Message":"SENTINEL for the caller"}`, code)
}

// peers returns those that this machine has: moto, which is independent of us, and a stand-in
// of our own.
func peers(t *testing.T) []*peer {
	t.Helper()
	s := httptest.NewServer(new(standIn))
	t.Cleanup(s.Close)
	list := []*peer{front(t, "a stand-in of our own", s.URL)}
	if m := moto(t); m != "" {
		list = append(list, front(t, "moto", m))
	}
	return list
}

// moto starts moto's server, "" where Python does not have it.
func moto(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Log("moto is left out: -short")
		return ""
	}
	if err := exec.Command("python3", "-c", "import moto.server").Run(); err != nil {
		t.Log("Python has no moto here: the stand-in alone is asked, which is our own reading of the API")
		return ""
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	host, port, _ := net.SplitHostPort(addr)
	ctx, stop := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, "python3", "-m", "moto.server", "-H", host, "-p", port)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stop(); cmd.Wait() })
	for range 300 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return "http://" + addr
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("moto does not start: %s", &out)
	return ""
}

// A standIn speaks as much of Secrets Manager as is used here: values with stages, deletion,
// and the errors of both. It is our own reading of the API; moto is somebody else's.
type standIn struct {
	mu      sync.Mutex
	secrets map[string]*stored
}

type stored struct {
	current, previous *string
	deleted           bool
}

func (s *standIn) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.secrets == nil {
		s.secrets = make(map[string]*stored)
	}
	var in struct {
		Name, SecretString, VersionStage string
		SecretID                         string `json:"SecretId"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || !strings.HasPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ") {
		awsError(w, "InvalidSignatureException")
		return
	}
	id := in.Name + in.SecretID
	e := s.secrets[id]
	out := map[string]any{"Name": id, "ARN": "arn:aws:secretsmanager:us-east-1:1:secret:" + id, "VersionId": "00000000-0000-0000-0000-000000000001"}
	switch op := strings.TrimPrefix(r.Header.Get("X-Amz-Target"), "secretsmanager."); {
	case op == "CreateSecret":
		s.secrets[id] = &stored{current: &in.SecretString}
	case e == nil:
		awsError(w, "ResourceNotFoundException")
		return
	case e.deleted:
		awsError(w, "InvalidRequestException")
		return
	case op == "PutSecretValue":
		e.previous, e.current = e.current, &in.SecretString
	case op == "DeleteSecret":
		e.deleted = true
	case op == "GetSecretValue":
		v := e.current
		if in.VersionStage == previous {
			v = e.previous
		}
		if v == nil {
			awsError(w, "ResourceNotFoundException")
			return
		}
		out["SecretString"], out["VersionStages"] = *v, []string{in.VersionStage}
	default:
		awsError(w, "InvalidAction")
		return
	}
	w.Header().Set("Content-Type", "application/x-amz-json-1.1")
	json.NewEncoder(w).Encode(out)
}
