//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/creack/pty"
	"github.com/rogpeppe/go-internal/testscript"
)

// execTyped runs a program whose input is a terminal, and answers each of its questions
// once it is asked. What is typed before a question is no answer to it.
func execTyped(ts *testscript.TestScript, answers []string, program string, words []string) error {
	ptm, tty, err := pty.Open()
	if err != nil {
		return err
	}
	defer ptm.Close()
	path, err := exec.LookPath(program)
	if err != nil {
		return err
	}
	cmd := exec.Command(path, words...)
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = os.Environ()
	for _, k := range []string{"HOME", "XDG_CONFIG_HOME", "TOKEN", "PATH", "WORK"} {
		cmd.Env = append(cmd.Env, k+"="+ts.Getenv(k))
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, ts.Stdout(), ts.Stderr()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := cmd.Start(); err != nil {
		return err
	}
	tty.Close()
	shown := readScreen(ptm)
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	seen := 0
	for {
		select {
		case err := <-done:
			if werr := os.WriteFile(ts.MkAbs("screen"), []byte(strings.ReplaceAll(shown.text(), "\r\n", "\n")), 0o600); werr != nil {
				return werr
			}
			return err
		case <-time.After(5 * time.Millisecond):
		}
		// A question is text that ends without a new line.
		text := shown.text()
		if len(answers) > 0 && len(text) > seen && !strings.HasSuffix(text, "\n") {
			seen = len(text) + len(answers[0]) + 1 // with its echo
			io.WriteString(ptm, answers[0]+"\n")
			answers = answers[1:]
		}
	}
}
