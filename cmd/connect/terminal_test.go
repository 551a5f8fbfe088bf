//go:build unix

package main

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/creack/pty"

	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
)

// TestHiddenPrompt types a token only after the prompt is there, as a person does, and
// holds that the terminal never shows it.
func TestHiddenPrompt(t *testing.T) {
	dir := t.TempDir()
	srv, err := peer.Start(&peer.Replay{Exchanges: []peer.Exchange{
		{Method: "GET", Path: "/v1/account", Status: 200, Body: []byte(`{"id": "acct_1"}`)},
	}}, "api.stripe.com")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, srv.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	// testscript.Main has put the program on the path.
	cmd := exec.Command("connect", "op", "stripe", "whoami", "--connect-to", "api.stripe.com:443:"+srv.Addr, "--cacert", ca)
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	screen := readScreen(tty)
	screen.await(t, "(not shown): ")
	io.WriteString(tty, "rk_test_"+secretMark+"typed\n")
	screen.await(t, `"acct_1"`)
	if err := cmd.Wait(); err != nil {
		t.Errorf("connect: %v", err)
	}
	if s := screen.text(); strings.Contains(s, secretMark) {
		t.Errorf("the terminal shows the token:\n%s", s)
	}
}

// TestInterruptedPrompt presses Ctrl-C at the hidden prompt: the program ends as refused
// and leaves the terminal showing what is typed.
func TestInterruptedPrompt(t *testing.T) {
	cmd := exec.Command("sh", "-c", "trap : INT; connect op stripe whoami; echo code=$?; stty -a")
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	screen := readScreen(tty)
	screen.await(t, "(not shown): ")
	io.WriteString(tty, "\x03")
	screen.await(t, "code=3")
	screen.await(t, " echo ")
	cmd.Wait()
}

// A screen is what a terminal has shown so far.
type screen struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func readScreen(r io.Reader) *screen {
	s := new(screen)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := r.Read(b)
			s.mu.Lock()
			s.buf.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return s
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

func (s *screen) await(t *testing.T, want string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(s.text(), want) {
			return
		}
	}
	t.Fatalf("the terminal does not show %q:\n%s", want, s.text())
}

// TestTypedAhead: what was typed before a question is no answer to it. Without that a
// pasted token with two more lines would confirm a write that nobody has read.
func TestTypedAhead(t *testing.T) {
	dir := t.TempDir()
	srv, err := peer.Start(&peer.Replay{Exchanges: []peer.Exchange{
		{Method: "POST", Path: "/v1/customers", Status: 200, Body: []byte(`{"id": "cus_1"}`)},
	}}, "api.stripe.com")
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, srv.CA, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("connect", "op", "stripe", "create_customer", "name=Ada", "--home", filepath.Join(dir, "home"), "--connect-to", "api.stripe.com:443:"+srv.Addr, "--cacert", ca)
	tty, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	screen := readScreen(tty)
	screen.await(t, "(not shown): ")
	io.WriteString(tty, "rk_test_"+secretMark+"typed\ny\ny\n")
	screen.await(t, "[y/N] ")
	io.WriteString(tty, "n\n")
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 3 {
		t.Errorf("exit code %d, want 3: it was not confirmed\n%s", code, screen.text())
	}
	if s := screen.text(); strings.Contains(s, "cus_1") {
		t.Errorf("the write went through:\n%s", s)
	}
}
