package faults_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// What the replica's process takes and gives: sidecar/faults/internal/replica says what each
// field is.
type setup struct {
	Bots                           [][]byte
	Dir                            string
	Secret                         []byte
	Group, Registry, Broker, Token string
	BrokerAt                       string
	Plain                          bool
	To                             map[string]string
	CA                             []byte
	LeaseTTL, Clock                time.Duration
	Young                          bool
}

type command struct {
	N             int
	Do            string
	Data          []byte             `json:",omitempty"`
	Space, Thread string             `json:",omitempty"`
	Author        *custody.PublicKey `json:",omitempty"`
	Step          string             `json:",omitempty"`
	Nth           int64              `json:",omitempty"`
	Clock         time.Duration      `json:",omitempty"`
}

type line struct {
	N    int
	Step string
	All  []json.RawMessage
	Err  string
}

// A process is a sidecar's, which may die at any moment.
type process struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	gone chan struct{} // closed when it has ended and all it wrote was read

	mu    sync.Mutex
	n     int
	waits map[int]chan line
	steps map[string]int
}

func startProcess(t testing.TB, s setup) *process {
	t.Helper()
	p := &process{cmd: exec.Command(bin(t, "replica")), gone: make(chan struct{}), waits: make(map[int]chan line), steps: make(map[string]int)}
	p.cmd.Stderr = os.Stderr
	p.in = must(p.cmd.StdinPipe())
	out := bufio.NewReaderSize(must(p.cmd.StdoutPipe()), 1<<16)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go p.read(out, ready)
	p.in.Write(append(must(json.Marshal(s)), '\n'))
	select {
	case <-ready:
	case <-p.gone:
		t.Fatal("the replica did not start")
	case <-time.After(time.Minute):
		p.kill()
		t.Fatal("the replica does not start")
	}
	return p
}

func (p *process) read(out *bufio.Reader, ready chan struct{}) {
	defer close(p.gone)
	defer p.cmd.Wait()
	for {
		data, err := out.ReadBytes('\n')
		if err != nil {
			return // a line that was cut off was not written
		}
		var l line
		if err := json.NewDecoder(bytes.NewReader(data)).Decode(&l); err != nil {
			continue
		}
		p.mu.Lock()
		switch {
		case l.Step == "ready":
			close(ready)
		case l.Step != "":
			p.steps[l.Step]++
		case p.waits[l.N] != nil:
			p.waits[l.N] <- l
			delete(p.waits, l.N)
		}
		p.mu.Unlock()
	}
}

// call asks the process and waits; false means that it died before it answered.
func (p *process) call(c command) (line, bool) {
	wait := make(chan line, 1)
	p.mu.Lock()
	p.n++
	c.N = p.n
	p.waits[c.N] = wait
	_, err := p.in.Write(append(must(json.Marshal(c)), '\n'))
	p.mu.Unlock()
	if err != nil {
		<-p.gone
	}
	select {
	case l := <-wait:
		return l, true
	case <-p.gone:
		select {
		case l := <-wait:
			return l, true
		default:
			return line{}, false
		}
	}
}

func (p *process) kill() { p.cmd.Process.Kill() }

func (p *process) dead() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// stop ends it as an operator does.
func (p *process) stop() {
	p.in.Close()
	<-p.gone
}

// reached says how often a step was reached since the last call of anew.
func (p *process) reached(step string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.steps[step]
}

func (p *process) anew() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.steps)
}
