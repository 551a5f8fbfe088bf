package sidecar

import (
	"bufio"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// resident returns the memory of a process, in MB.
func resident(b *testing.B, pid int) float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skip("this system does not tell a process's memory")
	}
	for _, line := range strings.Split(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(rest, "kB")), 64)
			if err != nil {
				b.Fatal(err)
			}
			return n / 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

// settled returns what a process keeps once that no longer changes: the runtime gives memory
// back a moment after it was used.
func settled(b *testing.B, pid int) float64 {
	b.Helper()
	last, same := resident(b, pid), 0
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		now := resident(b, pid)
		if same++; now != last {
			last, same = now, 0
		}
		if same == 5 {
			break
		}
	}
	return last
}

// BenchmarkMemory prints what a sidecar keeps resident when idle, after 10,000 operations,
// and with 1,000 in flight against a peer that answers none of them yet.
func BenchmarkMemory(b *testing.B) {
	st := newStage(b)
	slow := make(chan struct{})
	body := page(1 << 11)
	st.provider.answer(func(w http.ResponseWriter, r *http.Request) { jsonAnswer(200, body)(w, r) })
	var ca strings.Builder
	pem.Encode(&ca, &pem.Block{Type: "CERTIFICATE", Bytes: st.provider.Certificate().Raw})
	program := filepath.Join(b.TempDir(), "alone")
	if out, err := exec.Command("go", "build", "-ldflags=-s -w", "-o", program, "./internal/alone").CombinedOutput(); err != nil {
		b.Fatalf("%v\n%s", err, out)
	}
	cfg := map[string]any{"Dir": b.TempDir(), "Bot": must(st.bot.MarshalPKCS8()), "ConnectTo": st.cfg.Executor.ConnectTo, "CA": []byte(ca.String()), "Max": 1000}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), "CONNECT_ALONE="+string(must(json.Marshal(cfg))))
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())
	out := bufio.NewScanner(must(cmd.StdoutPipe()))
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	defer cmd.Process.Kill()
	answers := func(n int) {
		for range n {
			if !out.Scan() {
				b.Fatal("the sidecar has ended")
			}
			if s := out.Text(); s != "ready" && s != "1 <nil>" {
				b.Fatal(s)
			}
		}
	}
	c := st.connection("github", integrations.Read, 0)
	st.now.add = 0 // the other process has the machine's clock
	c.ConnectedAt = time.Now().Unix()
	enc := json.NewEncoder(in)
	send := func() {
		if err := enc.Encode(st.delivery(st.order(c, "list_issues", `{"owner":"golang","repo":"go"}`))); err != nil {
			b.Fatal(err)
		}
	}
	answers(1)
	for range 200 {
		send()
		answers(1)
	}
	idle := settled(b, cmd.Process.Pid)
	for range 1000 {
		for range 10 {
			send()
		}
		answers(10)
	}
	after := settled(b, cmd.Process.Pid)
	var waiting sync.WaitGroup
	waiting.Add(1000)
	st.provider.answer(func(w http.ResponseWriter, r *http.Request) {
		waiting.Done()
		<-slow
		jsonAnswer(200, body)(w, r)
	})
	for range 1000 {
		send()
	}
	waiting.Wait()
	flight := resident(b, cmd.Process.Pid)
	close(slow)
	answers(1000)
	in.Close()
	if err := cmd.Wait(); err != nil {
		b.Error(err)
	}
	for range b.N {
	}
	b.ReportMetric(idle, "MB-idle")
	b.ReportMetric(after/idle, "x-after-10000")
	b.ReportMetric(flight, "MB-1000-in-flight")
}
