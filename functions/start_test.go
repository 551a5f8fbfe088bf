package functions_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/functions/internal/event/eventtest"
)

// A started is what was seen of a function from its start to the second time that it asked
// for an event.
type started struct {
	poll     time.Duration // from the start to the first question
	first    time.Duration // from there to the first answer
	resident int64         // bytes, with one event answered
}

// run starts a function beside a runtime API of our own, gives it one event, and ends it.
func run(t testing.TB, bin string, env map[string]string) started {
	t.Helper()
	polls, answers := make(chan time.Time, 2), make(chan time.Time, 1)
	n := 0
	mux := http.NewServeMux()
	payload := eventtest.Event("http-2.0", eventtest.Request{Method: "GET", Target: "/healthz"})
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, r *http.Request) {
		polls <- time.Now()
		if n++; n > 1 {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", "8476a536-e9f4-11e8-9739-2dfe598c3fcd")
		w.Header().Set("Lambda-Runtime-Deadline-Ms", strconv.FormatInt(time.Now().Add(15*time.Second).UnixMilli(), 10))
		w.Write(payload)
	})
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/response", func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		answers <- time.Now()
		w.WriteHeader(http.StatusAccepted)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: mux}
	go srv.Serve(l)
	defer srv.Close()
	ctx, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	cmd := exec.CommandContext(ctx, bin)
	cmd.Env = append(environ(env), "AWS_LAMBDA_RUNTIME_API="+l.Addr().String())
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	wait := func(c chan time.Time) time.Time {
		select {
		case at := <-c:
			return at
		case <-time.After(10 * time.Second):
			t.Fatalf("%s did not come to its event in 10 s: %s", bin, &out)
			return time.Time{}
		}
	}
	s := started{}
	at := wait(polls)
	s.poll = at.Sub(begin)
	s.first = wait(answers).Sub(at)
	wait(polls)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if err != nil {
		return s // no such file outside Linux
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		if kb, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			k, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(kb), " kB"), 10, 64)
			s.resident = k << 10
		}
	}
	return s
}

// median returns the middle of what f says of each.
func median[T int64 | time.Duration](list []started, f func(started) T) T {
	var v []T
	for _, s := range list {
		v = append(v, f(s))
	}
	slices.Sort(v)
	return v[len(v)/2]
}

// BenchmarkFunctions compares each function with one that says hello and was built alike:
// size, time from the start to the first question for an event, resident memory with one
// event answered. What counts are the ratios; the goals are 1.15 for size (1.35 where the
// function holds secrets), 1.4 for the start, 1.3 for memory.
func BenchmarkFunctions(b *testing.B) {
	dir := b.TempDir()
	hello := build(b, dir, "hello", "./internal/hello")
	env := functionEnv("http://127.0.0.1:9", make([]byte, 32))
	size := func(bin string) float64 {
		st, err := os.Stat(bin)
		if err != nil {
			b.Fatal(err)
		}
		return float64(st.Size())
	}
	const rounds = 25
	for _, name := range []string{"registry", "config", "oauth-callback", "refresh"} {
		bin := build(b, dir, name, "./"+name)
		b.Run(name, func(b *testing.B) {
			var ours, theirs []started
			for range rounds { // by turns, so that both see the same machine
				ours, theirs = append(ours, run(b, bin, env[name])), append(theirs, run(b, hello, nil))
			}
			for b.Loop() {
			}
			poll := func(s started) time.Duration { return s.poll }
			resident := func(s started) int64 { return s.resident }
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(size(bin)/size(hello), "x-size")
			b.ReportMetric(float64(median(ours, poll))/float64(median(theirs, poll)), "x-start")
			b.ReportMetric(float64(median(ours, poll).Microseconds())/1000, "ms-start")
			b.ReportMetric(float64(median(ours, func(s started) time.Duration { return s.poll + s.first }).Microseconds())/1000, "ms-answer")
			if r := median(theirs, resident); r > 0 {
				b.ReportMetric(float64(median(ours, resident))/float64(r), "x-resident")
			}
		})
	}
}
