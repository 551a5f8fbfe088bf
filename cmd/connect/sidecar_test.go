package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/integrations"
)

const (
	sidecarSpace  = "home"
	sidecarBroker = "connect.example"
)

// A sidecarStage is an instance, a provider, and what the real program needs to be a bot
// there.
type sidecarStage struct {
	t        *testing.T
	home     string
	instance *httptest.Server
	provider *peer.Server
	ca       string
	env      []string
	manifest *integrations.Manifest

	writes   atomic.Int64 // that reached the provider
	renewals atomic.Int64
	mu       sync.Mutex    // guards hold
	hold     chan struct{} // while it is there, writes wait for its end
	reached  chan struct{} // one a write that waits
}

func newSidecarStage(t *testing.T) *sidecarStage {
	t.Helper()
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	s := &sidecarStage{t: t, home: filepath.Join(t.TempDir(), "bot"), ca: filepath.Join(t.TempDir(), "ca.pem"), manifest: reg.Get("github"), reached: make(chan struct{}, 8)}
	in, err := instance.New(instance.Config{Space: sidecarSpace, DB: filepath.Join(t.TempDir(), "instance.db")})
	if err != nil {
		t.Fatal(err)
	}
	s.instance = httptest.NewServer(in)
	t.Cleanup(func() { in.Close(); s.instance.CloseClientConnections(); s.instance.Close() })
	s.provider, err = peer.Start(http.HandlerFunc(s.provide), s.manifest.Host, sidecarBroker)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.provider.Close() })
	if err := os.WriteFile(s.ca, s.provider.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

// provide answers as GitHub does, shortened.
func (s *sidecarStage) provide(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	w.Header().Set("Content-Type", "application/json")
	if r.Host == sidecarBroker {
		s.renew(w, r, body)
		return
	}
	if r.Method == http.MethodPost {
		s.writes.Add(1)
		s.mu.Lock()
		hold := s.hold
		s.mu.Unlock()
		if hold != nil {
			s.reached <- struct{}{}
			<-hold
		}
		w.WriteHeader(http.StatusCreated)
		io.WriteString(w, `{"number":1,"html_url":"https://github.com/golang/go/issues/1"}`)
		return
	}
	io.WriteString(w, `{"login":"ada","id":7}`)
}

// renew answers as a broker does, whose provider gives one new pair.
func (s *sidecarStage) renew(w http.ResponseWriter, r *http.Request, body []byte) {
	var req struct{ Key custody.PublicKey }
	if r.URL.Path != "/api/refresh" || !strings.HasPrefix(r.Header.Get("Authorization"), "Bearer ey") || json.Unmarshal(body, &req) != nil || s.renewals.Add(1) > 1 {
		w.WriteHeader(http.StatusConflict)
		io.WriteString(w, `{"class":"dead"}`)
		return
	}
	e, err := custody.SealAnswer(req.Key, custody.RefreshOp(body), &custody.RefreshAnswer{Secret: integrations.NewSecret("at2-" + secretMark), Refresh: integrations.NewSecret("rt1.k.second" + secretMark), ExpiresIn: 3600})
	if err == nil {
		body, err = e.Marshal()
	}
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Write(body)
}

// held makes writes wait until what it returns is called.
func (s *sidecarStage) held() (release func()) {
	hold := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = hold
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hold = nil
		close(hold)
	})
}

// A sidecarProcess is the real program.
type sidecarProcess struct {
	*exec.Cmd
	t     *testing.T
	mu    sync.Mutex
	log   strings.Builder
	ended chan struct{}
	err   error
}

// start runs connect sidecar until it is ready.
func (s *sidecarStage) start(words ...string) *sidecarProcess {
	s.t.Helper()
	cmd := exec.Command("connect", append([]string{"sidecar", "--home", s.home, "--bot", "helper", "--instance", s.instance.URL, "--space", sidecarSpace,
		"--connect-to", s.manifest.Host + ":443:" + s.provider.Addr, "--cacert", s.ca}, words...)...)
	cmd.Env = append(os.Environ(), s.env...)
	p := &sidecarProcess{Cmd: cmd, t: s.t, ended: make(chan struct{})}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go func() {
		lines := bufio.NewScanner(stderr)
		for lines.Scan() {
			p.mu.Lock()
			p.log.WriteString(lines.Text() + "\n")
			p.mu.Unlock()
		}
		p.err = cmd.Wait()
		close(p.ended)
	}()
	s.t.Cleanup(func() { p.kill() })
	p.await(`"msg":"ready"`)
	return p
}

func (p *sidecarProcess) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// await waits until the log holds some text.
func (p *sidecarProcess) await(text string) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(p.said(), text) {
			return
		}
	}
	p.t.Fatalf("the log does not get to %s:\n%s", text, p.said())
}

func (p *sidecarProcess) kill() {
	p.Process.Kill()
	<-p.ended
}

// stop ends the program as systemd does, and holds that it ends well.
func (p *sidecarProcess) stop() {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	<-p.ended
	if p.err != nil {
		p.t.Errorf("after SIGTERM: %v\n%s", p.err, p.said())
	}
}

// A member is a person's client.
type member struct {
	s   *sidecarStage
	id  *custody.Identity
	c   *client.Client
	bot *client.Member
}

// join makes a member, with the bot in a thread of its own.
func (s *sidecarStage) join(name, thread string) *member {
	s.t.Helper()
	id, err := custody.NewIdentity()
	if err != nil {
		s.t.Fatal(err)
	}
	c, err := client.Dial(s.t.Context(), s.instance.URL, id, client.Options{Space: sidecarSpace, Join: &client.Join{Kind: "member", Name: name}})
	if err != nil {
		s.t.Fatal(err)
	}
	m := &member{s: s, id: id, c: c}
	m.look()
	if err := c.NewThread(s.t.Context(), thread, m.bot.ID); err != nil {
		s.t.Fatal(err)
	}
	return m
}

// look waits until the bot has published its record.
func (m *member) look() {
	m.s.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		all, err := m.c.Members(m.s.t.Context())
		if err != nil {
			m.s.t.Fatal(err)
		}
		for _, r := range all {
			if r.Kind == "bot" && r.Day != nil && r.Group != "" {
				m.bot = r
				return
			}
		}
	}
	m.s.t.Fatal("the bot does not publish its record")
}

// post grants one operation and posts the op. It returns the op's id.
func (m *member) post(thread, op, args string, dated bool, edit ...func(*custody.Credential)) string {
	m.s.t.Helper()
	// A client whose clock is 29 seconds ahead: within what is allowed, and past the time
	// after its start in which a sidecar takes no changes, which a test does not wait for.
	now := time.Now().Add(29 * time.Second)
	cred := &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: m.s.manifest.ID, Kind: custody.KindOAuth, Secret: integrations.NewSecret("at1-" + secretMark),
		Cap: integrations.Write, ConnectedAt: now.Unix(), Account: &custody.Account{ID: "1", Label: "ada"}}
	for _, f := range edit {
		f(cred)
	}
	given, err := integrations.ParseArgs([]byte(args))
	if err != nil {
		m.s.t.Fatal(err)
	}
	call, err := m.s.manifest.Bind(op, given, nil)
	if err != nil {
		m.s.t.Fatal(err)
	}
	g, err := custody.MintGrant(m.s.manifest, cred, custody.GrantRequest{Use: custody.UseOnce, Call: call, Group: m.bot.Group}, now)
	if err != nil {
		m.s.t.Fatal(err)
	}
	var day *custody.PublicKey
	if dated {
		day = &m.bot.Day.Key
	}
	id := custody.NewID()
	grant, err := g.Seal(m.id, m.bot.Key, day, sidecarSpace, thread, id)
	if err != nil {
		m.s.t.Fatal(err)
	}
	e, err := m.id.SealMessage(m.bot.Key, day, custody.Header{Space: sidecarSpace, Thread: thread, Op: id},
		&custody.Op{V: 2, ID: id, Service: m.s.manifest.ID, Op: op, Args: json.RawMessage(args), Grant: grant})
	if err != nil {
		m.s.t.Fatal(err)
	}
	if _, err := m.c.Post(m.s.t.Context(), "", e, time.Time{}); err != nil {
		m.s.t.Fatal(err)
	}
	return id
}

// outcome is a result's code, "ok" where it has none.
func outcome(r *custody.Result) string {
	if r.Error != nil {
		return r.Error.Code
	}
	return "ok"
}

// results returns the codes of all results that came for an op.
func (m *member) results(op string) []string {
	m.s.t.Helper()
	var all []string
	for cursor, more := int64(0), true; more; {
		page, err := m.c.Since(m.s.t.Context(), cursor)
		if err != nil {
			m.s.t.Fatal(err)
		}
		for _, msg := range page.Messages {
			if msg.Envelope.Purpose != custody.PurposeResult || msg.Envelope.Op != op {
				continue
			}
			r := new(custody.Result)
			if err := m.id.OpenMessage(msg.Envelope, m.bot.Key, nil, r); err != nil {
				m.s.t.Fatalf("the result does not open: %v", err)
			}
			all = append(all, outcome(r))
		}
		cursor, more = page.Cursor, page.More
	}
	return all
}

// await waits for the one result of an op.
func (m *member) await(op, want string) {
	m.s.t.Helper()
	var all []string
	for end := time.Now().Add(20 * time.Second); len(all) == 0 && time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		all = m.results(op)
	}
	if len(all) != 1 || all[0] != want {
		m.s.t.Fatalf("the results are %q, want %q once", all, want)
	}
}

// settle waits for the start's first two seconds: a change that is confirmed 29 seconds
// ahead of the clock is taken from then on.
func (s *sidecarStage) settle() { time.Sleep(2100 * time.Millisecond) }

func cursorOf(t *testing.T, home string, bot custody.KeyID, instance string, set int64) int64 {
	t.Helper()
	db, err := openSidecarDB(context.Background(), home)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	now, err := db.cursor(t.Context(), bot, instance)
	if err == nil && set >= 0 {
		err = db.setCursor(t.Context(), bot, instance, set)
	}
	if err != nil {
		t.Fatal(err)
	}
	return now
}
