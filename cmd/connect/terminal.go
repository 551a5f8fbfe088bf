package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"

	"golang.org/x/term"
)

// A terminal is where a person is asked. Questions and answers go by the terminal itself:
// redirected output does not hide a question, and a pipe cannot answer it.
type terminal struct {
	in, out *os.File
}

// terminal opens the person's terminal. It returns nil where standard input is none: then
// nobody is there to be asked.
func (c *cli) terminal() *terminal {
	if !term.IsTerminal(int(c.in.Fd())) {
		return nil
	}
	if runtime.GOOS == "windows" {
		in, err := os.OpenFile("CONIN$", os.O_RDWR, 0)
		if err != nil {
			return nil
		}
		out, err := os.OpenFile("CONOUT$", os.O_RDWR, 0)
		if err != nil {
			in.Close()
			return nil
		}
		return &terminal{in, out}
	}
	tty, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return &terminal{tty, tty}
}

func (t *terminal) Write(p []byte) (int, error) { return t.out.Write(p) }

func (t *terminal) close() {
	t.in.Close()
	t.out.Close()
}

// maxAnswer bounds a line that is typed or pasted.
const maxAnswer = 16 << 10

// errNoAnswer means that the person left the question.
var errNoAnswer = errors.New("there was no answer")

// line asks for one line.
func (t *terminal) line(ctx context.Context, prompt string) (string, error) {
	dropInput(t.in) // what was typed or pasted before the question is no answer to it
	fmt.Fprint(t.out, prompt)
	s, err := t.await(ctx, func() (string, error) { return readLine(t.in) })
	return strings.TrimSpace(s), err
}

// hidden asks for one line that is not shown while it is typed.
func (t *terminal) hidden(ctx context.Context, prompt string) (string, error) {
	dropInput(t.in)
	fmt.Fprint(t.out, prompt)
	s, err := t.await(ctx, func() (string, error) {
		b, err := term.ReadPassword(int(t.in.Fd()))
		return string(b), err
	})
	fmt.Fprintln(t.out)
	return strings.TrimSpace(s), err
}

// await reads until the context ends, and then leaves the terminal as it was.
func (t *terminal) await(ctx context.Context, read func() (string, error)) (string, error) {
	fd := int(t.in.Fd())
	before, err := term.GetState(fd)
	if err != nil {
		return "", err
	}
	type answer struct {
		text string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		s, err := read()
		got <- answer{s, err}
	}()
	select {
	case a := <-got:
		if a.err == io.EOF {
			a.err = errNoAnswer
		}
		return a.text, a.err
	case <-ctx.Done():
		term.Restore(fd, before)
		fmt.Fprintln(t.out)
		return "", errNoAnswer
	}
}

// readLine reads up to the end of a line and not one byte further, since the next
// question is read by other means.
func readLine(r io.Reader) (string, error) {
	var line []byte
	var b [1]byte
	for len(line) < maxAnswer {
		n, err := r.Read(b[:])
		if n == 1 {
			if b[0] == '\n' || b[0] == '\r' {
				return string(line), nil
			}
			line = append(line, b[0])
		}
		if err != nil {
			return "", err
		}
	}
	return "", errors.New("that line is too long")
}
