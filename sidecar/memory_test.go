package sidecar

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// childEnv makes the test's own program a sidecar of its own, which takes deliveries line by
// line, so that what it takes of memory can be told from what the peers take.
const childEnv = "CONNECT_TEST_SIDECAR"

type childConfig struct {
	Dir       string
	Bot       []byte // PKCS #8
	ConnectTo map[string]string
	CA        []byte // PEM
	Max       int
}

func TestMain(m *testing.M) {
	if text := os.Getenv(childEnv); text != "" {
		if err := child(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func child(text string) error {
	var cfg childConfig
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	bot, err := custody.ParseIdentity(cfg.Bot)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cfg.CA)
	s, err := New(context.Background(), Config{Bots: []*custody.Identity{bot}, Dir: cfg.Dir, MaxOperations: cfg.Max, MaxPerMember: cfg.Max,
		Executor: &integrations.Executor{ConnectTo: cfg.ConnectTo, RootCAs: pool}, OpTimeout: 5 * time.Minute})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	in := bufio.NewReaderSize(os.Stdin, 1<<16)
	fmt.Println("ready")
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		var d Delivery
		if err := json.Unmarshal(line, &d); err != nil {
			return err
		}
		wg.Go(func() {
			all, err := s.Handle(context.Background(), d)
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(len(all), err)
		})
	}
	wg.Wait()
	return s.Close(context.Background())
}

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

// BenchmarkMemory prints what a sidecar keeps resident when idle, after 10,000 operations,
// and with 1,000 in flight against a peer that answers none of them yet.
func BenchmarkMemory(b *testing.B) {
	st := newStage(b)
	slow := make(chan struct{})
	body := page(1 << 11)
	st.provider.answer(func(w http.ResponseWriter, r *http.Request) { jsonAnswer(200, body)(w, r) })
	var ca strings.Builder
	pem.Encode(&ca, &pem.Block{Type: "CERTIFICATE", Bytes: st.provider.Certificate().Raw})
	cfg := childConfig{Dir: b.TempDir(), Bot: must(st.bot.MarshalPKCS8()), ConnectTo: st.cfg.Executor.ConnectTo, CA: []byte(ca.String()), Max: 1000}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(must(json.Marshal(cfg))))
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
	time.Sleep(time.Second)
	idle := resident(b, cmd.Process.Pid)
	for range 1000 {
		for range 10 {
			send()
		}
		answers(10)
	}
	time.Sleep(time.Second)
	after := resident(b, cmd.Process.Pid)
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
