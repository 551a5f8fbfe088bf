package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

const (
	openIssue = `{"owner":"golang","repo":"go","title":"Buy milk"}`
	whoami    = `{}`
)

// TestSidecarOverInstance: the real program as a bot of the real instance. An op goes in over
// the WebSocket and its result comes back, once, whatever happens to the program.
func TestSidecarOverInstance(t *testing.T) {
	s := newSidecarStage(t)
	p := s.start()
	ada := s.join("Ada", "kitchen")
	read := ada.post("kitchen", "whoami", whoami, true)
	ada.await(read, "ok")
	s.settle()
	write := ada.post("kitchen", "open_issue", openIssue, true)
	ada.await(write, "ok")

	// What is posted while no sidecar runs waits, and is answered once.
	p.kill()
	logs := p.said()
	late := ada.post("kitchen", "whoami", whoami, false)
	p = s.start()
	ada.await(late, "ok")

	// A crash between the reply and the cursor: everything comes again, and nobody notices.
	p.kill()
	logs += p.said()
	if at := cursorOf(t, s.home, ada.bot.ID, s.instance.URL, 0); at < 3 {
		t.Errorf("the cursor is at %d after three messages", at)
	}
	p = s.start()
	next := ada.post("kitchen", "whoami", whoami, false)
	ada.await(next, "ok")
	for end := time.Now().Add(10 * time.Second); cursorOf(t, s.home, ada.bot.ID, s.instance.URL, -1) < 4; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the cursor does not move")
		}
	}
	for _, op := range []string{write, late, next} {
		ada.await(op, "ok")
	}
	if n := s.writes.Load(); n != 1 {
		t.Errorf("the provider was asked to write %d times", n)
	}
	p.stop()
	if logs += p.said(); strings.Contains(logs, secretMark) || strings.Contains(logs, "Buy milk") || strings.Contains(logs, "golang") {
		t.Errorf("the log holds content:\n%s", logs)
	}
}

// TestSidecarCrashInAWrite: a change that was under way in a crash is not run again, and its
// member is told that nobody knows.
func TestSidecarCrashInAWrite(t *testing.T) {
	s := newSidecarStage(t)
	p := s.start()
	ada := s.join("Ada", "kitchen")
	s.settle()
	release := s.held()
	defer release()
	write := ada.post("kitchen", "open_issue", openIssue, false)
	<-s.reached
	p.kill()
	release()
	p = s.start()
	ada.await(write, "unknown_outcome")
	if n := s.writes.Load(); n != 1 {
		t.Errorf("the provider was asked to write %d times", n)
	}
	p.stop()
}

// TestSidecarStopsGracefully: SIGTERM takes nothing more, and what is under way is answered.
func TestSidecarStopsGracefully(t *testing.T) {
	s := newSidecarStage(t)
	p := s.start()
	ada := s.join("Ada", "kitchen")
	s.settle()
	release := s.held()
	defer release()
	write := ada.post("kitchen", "open_issue", openIssue, false)
	<-s.reached
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.await(`"msg":"stopping`)
	later := ada.post("kitchen", "whoami", whoami, false)
	time.Sleep(200 * time.Millisecond)
	if got := append(ada.results(write), ada.results(later)...); len(got) != 0 {
		t.Errorf("%q came early", got)
	}
	release()
	<-p.ended
	if p.err != nil {
		t.Errorf("it ends with %v\n%s", p.err, p.said())
	}
	ada.await(write, "ok")
	if got := ada.results(later); len(got) != 0 {
		t.Errorf("a message after the signal was taken: %q", got)
	}
	p = s.start()
	ada.await(later, "ok")

	// A second signal does not wait.
	s.settle()
	defer s.held()()
	ada.post("kitchen", "open_issue", openIssue, false)
	<-s.reached
	for range 2 {
		if err := p.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		p.await(`"msg":"stopping`)
		time.Sleep(200 * time.Millisecond) // until the program listens for the second one as it should
	}
	select {
	case <-p.ended:
		if p.err == nil {
			t.Error("it ends as if everything had been answered")
		}
	case <-time.After(5 * time.Second):
		t.Error("it goes on after the second signal")
	}
}

// TestSidecarRenews: a pair that is due is renewed at its broker, with the instance's token,
// and comes back to its member; it waits in the outbox over a crash, and no key is thrown away
// that alone could send it.
func TestSidecarRenews(t *testing.T) {
	s := newSidecarStage(t)
	keyFile := filepath.Join(t.TempDir(), "key.pem")
	private, err := exec.Command("connect", "broker", "token", "keys", "--instance").Output()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(keyFile, private, 0o600); err != nil {
		t.Fatal(err)
	}
	token, err := exec.Command("connect", "broker", "token", "sign", "--key-file", keyFile, "--issuer", "chat.example", "--broker", "https://"+sidecarBroker, "--origin", "https://chat.example").Output()
	if err != nil {
		t.Fatal(err)
	}
	s.env = []string{envInstanceToken + "=" + strings.TrimSpace(string(token))}
	more := []string{"--broker", "https://" + sidecarBroker, "--connect-to", sidecarBroker + ":443:" + s.provider.Addr}
	p := s.start(more...)
	ada := s.join("Ada", "kitchen")
	conn := &custody.Credential{}
	s.settle()
	op := ada.post("kitchen", "whoami", whoami, false, func(c *custody.Credential) {
		now := time.Now().Add(29 * time.Second)
		c.Refresh, c.Broker, c.ExpiresAt = integrations.NewSecret("rt1.k.first"+secretMark), "https://"+sidecarBroker, now.Add(10*time.Second).Unix()
		lent, err := c.Lend(ada.bot.Group, now.Add(time.Hour), now, false)
		if err != nil {
			t.Fatal(err)
		}
		*c = *lent
		*conn = *lent
	})
	ada.await(op, "ok")
	if n := s.renewals.Load(); n != 1 {
		t.Errorf("the broker was asked %d times", n)
	}
	outbox := func() string {
		t.Helper()
		out, err := exec.Command("connect", "sidecar", "status", "--json", "--home", s.home).Output()
		if err != nil {
			t.Fatal(err)
		}
		var st sidecarStatus
		if err := json.Unmarshal(out, &st); err != nil {
			t.Fatal(err)
		}
		return strconv.FormatInt(st.Counters.Outbox, 10)
	}
	if n := outbox(); n != "1" {
		t.Errorf("%s hand-backs wait", n)
	}
	p.kill()
	logs := p.said()
	rotate := func(words ...string) (string, error) {
		out, err := exec.Command("connect", append([]string{"sidecar", "key", "rotate", "helper", "--home", s.home}, words...)...).CombinedOutput()
		return string(out), err
	}
	if out, err := rotate(); err == nil || !strings.Contains(out, "1 renewed connections have not reached their members") {
		t.Errorf("rotate: %v\n%s", err, out)
	}
	// After the start it is sent as a message of its own, and her acknowledgement clears it.
	p = s.start(more...)
	back := ada.handback()
	h := new(custody.Handback)
	if err := ada.id.OpenMessage(back, ada.bot.Key, nil, h); err != nil {
		t.Fatal(err)
	}
	fresh, err := conn.Take(h)
	if err != nil || fresh.Pair != 2 {
		t.Fatalf("the hand-back is not taken: %v", err)
	}
	ack, err := ada.id.SealMessage(ada.bot.Key, nil, custody.Header{Space: sidecarSpace, Thread: "kitchen"}, &custody.Ack{Credential: conn.ID, Pair: 2})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ada.c.Post(t.Context(), "", ack, time.Time{}); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); outbox() != "0"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the outbox is not cleared")
		}
	}
	if out, err := rotate(); err == nil || !strings.Contains(out, "a sidecar runs on this folder") {
		t.Errorf("rotate beside a sidecar: %v\n%s", err, out)
	}
	p.stop()
	if logs += p.said(); strings.Contains(logs, secretMark) || strings.Contains(logs, strings.TrimSpace(string(token))) {
		t.Errorf("the log holds a token:\n%s", logs)
	}
	if out, err := rotate(); err != nil {
		t.Errorf("rotate: %v\n%s", err, out)
	}
}

// handback waits for a hand-back that came as a message of its own.
func (m *member) handback() *custody.Envelope {
	m.s.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		page, err := m.c.Since(m.s.t.Context(), 0)
		if err != nil {
			m.s.t.Fatal(err)
		}
		for _, msg := range page.Messages {
			if msg.Envelope.Purpose == custody.PurposeHandback {
				return msg.Envelope
			}
		}
	}
	m.s.t.Fatal("no hand-back comes")
	return nil
}

// TestSidecarHoldsNewKeys: another key under a name that is known gets an answer, and nothing
// run, until the operator takes it.
func TestSidecarHoldsNewKeys(t *testing.T) {
	s := newSidecarStage(t)
	p := s.start()
	ada := s.join("Ada", "kitchen")
	ada.await(ada.post("kitchen", "whoami", whoami, false), "ok")
	other := s.join(" ADA ", "cellar")
	other.await(other.post("cellar", "whoami", whoami, false), "refused")
	p.await(`"key":"` + string(other.id.ID()))
	ada.await(ada.post("kitchen", "whoami", whoami, false), "ok")
	trust := func(words ...string) string {
		t.Helper()
		out, err := exec.Command("connect", append([]string{"sidecar", "trust", "--home", s.home}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return string(out)
	}
	if out := trust(); !strings.Contains(out, string(other.id.ID())) || !strings.Contains(out, fingerprint(other.id.Public())) || strings.Contains(out, string(ada.id.ID())) {
		t.Errorf("held are\n%s", out)
	}
	trust(string(other.id.ID()))
	other.await(other.post("cellar", "whoami", whoami, false), "ok")
	trust("--end", string(ada.id.ID()))
	ada.await(ada.post("kitchen", "whoami", whoami, false), "refused")
	p.stop()
}

// TestSidecarReplicas: of two processes on one folder one receives, and the other takes over.
func TestSidecarReplicas(t *testing.T) {
	s := newSidecarStage(t)
	first := s.start()
	ada := s.join("Ada", "kitchen")
	ada.await(ada.post("kitchen", "whoami", whoami, false), "ok")
	second := s.start("--listen", "unix:"+filepath.Join(s.home, "second.sock"))
	second.await(`"standby":true`)
	ops := []string{ada.post("kitchen", "whoami", whoami, false)}
	ada.await(ops[0], "ok")
	status := exec.Command("connect", "sidecar", "status", "--home", s.home, "--listen", "unix:"+filepath.Join(s.home, "second.sock"))
	if out, err := status.CombinedOutput(); err != nil || !strings.Contains(string(out), "standing by") {
		t.Errorf("%v: %s", err, out)
	}
	first.kill()
	for range 20 {
		ops = append(ops, ada.post("kitchen", "whoami", whoami, false))
	}
	second.await(`"connected":true`)
	for _, op := range ops {
		ada.await(op, "ok")
	}
	second.stop()
}

// TestSidecarOnTwoMachines: replicas with a folder each share a bucket. A change that one has
// run is answered by the other, and not run again.
func TestSidecarOnTwoMachines(t *testing.T) {
	srv, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	srv.Start()
	t.Cleanup(func() { srv.Shutdown(); srv.WaitForShutdown() })
	if !srv.ReadyForConnections(10 * time.Second) {
		t.Fatal("the server does not start")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("an-obviously-fake-replica-secret-of-40-by"), 0o600); err != nil {
		t.Fatal(err)
	}
	more := []string{"--replicas", srv.ClientURL(), "--replica-secret-file", secret}
	s := newSidecarStage(t)
	p := s.start(more...)
	ada := s.join("Ada", "kitchen")
	s.settle()
	write := ada.post("kitchen", "open_issue", openIssue, false)
	ada.await(write, "ok")
	p.stop()
	// The other machine has the same key, and nothing else: all is delivered to it again.
	key, err := os.ReadFile(filepath.Join(s.home, sidecarBots, "helper.pem"))
	if err != nil {
		t.Fatal(err)
	}
	s.home = filepath.Join(t.TempDir(), "other")
	if err := os.MkdirAll(filepath.Join(s.home, sidecarBots), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.home, sidecarBots, "helper.pem"), key, 0o600); err != nil {
		t.Fatal(err)
	}
	p = s.start(more...)
	for end := time.Now().Add(10 * time.Second); cursorOf(t, s.home, ada.bot.ID, s.instance.URL, -1) < 1; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the cursor does not move")
		}
	}
	ada.look()
	next := ada.post("kitchen", "whoami", whoami, false)
	ada.await(next, "ok")
	ada.await(write, "ok")
	if n := s.writes.Load(); n != 1 {
		t.Errorf("the provider was asked to write %d times", n)
	}
	p.stop()
}

// TestSidecarOnAddress: on an address the sidecar asks for the token in the file that it made.
func TestSidecarOnAddress(t *testing.T) {
	s := newSidecarStage(t)
	file := filepath.Join(t.TempDir(), "bearer")
	p := s.start("--listen", "127.0.0.1:0", "--bearer-file", file)
	_, addr, _ := strings.Cut(p.said(), `"listen":"`)
	addr, _, _ = strings.Cut(addr, `"`)
	token, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), "other")
	if err := os.WriteFile(other, []byte("another-token-"+secretMark), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		file string
		code int
		want string
	}{{file, 0, "bots         1"}, {other, 3, "what listens there answers 401"}} {
		cmd := exec.Command("connect", "sidecar", "status", "--home", s.home, "--listen", addr, "--bearer-file", c.file)
		out, _ := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(string(out), c.want) {
			t.Errorf("exit code %d: %s", cmd.ProcessState.ExitCode(), out)
		}
	}
	p.stop()
	if strings.Contains(p.said(), strings.TrimSpace(string(token))) || strings.Contains(p.said(), secretMark) {
		t.Errorf("the log holds a token:\n%s", p.said())
	}
}

// TestSidecarAwayInstance: a sidecar waits for an instance that is not there, and one that
// does not let it in ends it.
func TestSidecarAwayInstance(t *testing.T) {
	s := newSidecarStage(t)
	url := s.instance.URL
	s.instance.URL = "http://127.0.0.1:1"
	p := s.start()
	p.await("the instance cannot be reached")
	p.stop()
	s.instance.URL = url
	out, err := exec.Command("connect", "sidecar", "--home", s.home, "--instance", url, "--space", "elsewhere").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "error: the instance does not let helper in") {
		t.Errorf("another space: %v\n%s", err, out)
	}
}

// TestProgress: the cursor is behind the first message that is not done, whatever the order.
func TestProgress(t *testing.T) {
	var kept []int64
	p := &progress{keep: func(seq int64) { kept = append(kept, seq) }}
	for _, seq := range []int64{3, 5, 8, 9} {
		p.begin(seq)
	}
	p.end(5)
	p.end(9)
	p.end(3)
	p.end(8)
	if !slices.Equal(kept, []int64{5, 9}) || len(p.open) != 0 || len(p.done) != 0 {
		t.Errorf("kept %v, open %v, done %v", kept, p.open, p.done)
	}
}
