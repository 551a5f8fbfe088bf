package local

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A stage is an API over a sidecar with one bot, whose providers are one server of the test.
type stage struct {
	t        testing.TB
	bot, ada *custody.Identity
	registry *integrations.Registry
	cfg      Config
	log      *bytes.Buffer
	*API
}

func newStage(t testing.TB, edit func(*Config)) *stage {
	t.Helper()
	s := &stage{t: t, bot: must(custody.NewIdentity()), ada: must(custody.NewIdentity()), registry: must(integrations.Default()), log: new(bytes.Buffer)}
	var hosts []string
	for _, m := range s.registry.All() {
		hosts = append(hosts, m.Host)
	}
	key := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: hosts, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign}
	der := must(x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key))
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if r.URL.Path == "/user" {
			io.WriteString(w, `{"login":"ada","id":7}`)
			return
		}
		// DNSimple's, for ops of before.
		if strings.HasSuffix(r.URL.Path, "/domains") {
			io.WriteString(w, `{"data":[{"id":1,"name":"example.com","expires_at":null}],"pagination":{"current_page":1,"per_page":30,"total_entries":1,"total_pages":1}}`)
			return
		}
		io.WriteString(w, `{"data":[{"id":5,"name":"ada","plan_identifier":"x"}]}`) // and the accounts
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	srv.StartTLS()
	t.Cleanup(srv.Close)
	pool := x509.NewCertPool()
	pool.AddCert(must(x509.ParseCertificate(der)))
	to := make(map[string]string)
	for _, h := range hosts {
		to[h+":443"] = srv.Listener.Addr().String()
	}
	core, err := sidecar.New(t.Context(), sidecar.Config{Bots: []*custody.Identity{s.bot}, Registry: s.registry, Dir: t.TempDir(), Group: "group-1",
		Executor: &integrations.Executor{ConnectTo: to, RootCAs: pool}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { core.Close(context.Background()) })
	s.cfg = Config{Sidecar: core, Registry: s.registry, Names: map[custody.KeyID]string{s.bot.ID(): "helper"}, Version: "1.2.3"}
	if edit != nil {
		edit(&s.cfg)
	}
	s.API = must(New(s.cfg))
	return s
}

// op is Ada's order to run a read of GitHub, as her client posts it.
func (s *stage) op(edit func(*custody.Header)) *custody.Envelope {
	s.t.Helper()
	m := s.registry.Get("github")
	now := time.Now()
	c := &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: m.ID, Kind: custody.KindOAuth, Secret: integrations.NewSecret("at1-fake"),
		Cap: integrations.Read, ConnectedAt: now.Unix(), Account: &custody.Account{ID: "1", Label: "ada"}}
	call := must(m.Bind("whoami", nil, nil))
	g := must(custody.MintGrant(m, c, custody.GrantRequest{Use: custody.UseOnce, Call: call, Group: "group-1"}, now))
	h := custody.Header{Space: "home", Thread: "kitchen", Op: custody.NewID()}
	if edit != nil {
		edit(&h)
	}
	grant := must(g.Seal(s.ada, s.bot.Public(), nil, h.Space, h.Thread, h.Op))
	return must(s.ada.SealMessage(s.bot.Public(), nil, h, &custody.Op{V: 2, ID: h.Op, Service: m.ID, Op: "whoami", Args: json.RawMessage(`{}`), Grant: grant}))
}

// post is the body by which a runtime hands a message over.
func (s *stage) post(e *custody.Envelope) string {
	return string(must(json.Marshal(map[string]any{"space": e.Space, "thread": e.Thread, "author": s.ada.Public(), "message": e})))
}

// call sends a request, and holds that whatever comes is as docs/sidecar-openapi.json says.
func (s *stage) call(method, path, body string, edit ...func(*http.Request)) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest(method, "http://sidecar"+path, strings.NewReader(body))
	if body == "" {
		r = httptest.NewRequest(method, "http://sidecar"+path, nil)
	} else {
		r.Header.Set("Content-Type", "application/json")
	}
	for _, e := range edit {
		e(r)
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	if err := described(r.Method, r.URL.Path, w); err != nil {
		s.t.Errorf("%s %s: %d %s\nis not as described: %v", method, path, w.Code, clip(w.Body.String()), err)
	}
	return w
}

func clip(s string) string { return s[:min(len(s), 400)] }
