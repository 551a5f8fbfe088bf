// Command replica is a sidecar that tests run as a process of its own: it takes commands on
// its standard input, answers on its standard output, and kills itself where it is told to.
package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// Setup is the first line of the input.
type Setup struct {
	Bots     [][]byte          // PKCS #8
	Dir      string            // shared by the processes of one group
	Secret   []byte            // the group's
	Group    string            //
	Registry string            // a folder; "" is the built-in one
	Broker   string            // the origin
	Token    string            // the instance's
	BrokerAt string            // where it is reached
	Plain    bool              // by plain HTTP
	To       map[string]string // "host:443" → address
	CA       []byte            // PEM
	LeaseTTL time.Duration     //
	Clock    time.Duration     // how far this clock is ahead
	Young    bool              // say how old the process is; else it passes for one that is a minute older
}

// Command is each line after it.
type Command struct {
	N      int // of the answer
	Do     string
	Data   []byte            // handle: the envelope
	Space  string            //
	Thread string            //
	Author custody.PublicKey //
	Step   string            // kill: at this step
	Nth    int64             // kill: when it comes for this time
	Clock  time.Duration     // clock
}

// Line is a line of the output: an answer, or a step that was reached.
type Line struct {
	N    int               `json:",omitempty"`
	Step string            `json:",omitempty"`
	All  []json.RawMessage `json:",omitempty"` // envelopes
	Err  string            `json:",omitempty"`
}

type replica struct {
	out    sync.Mutex
	clock  atomic.Int64 // how far ahead
	older  atomic.Int64 // what is taken off while the process starts
	mu     sync.Mutex   // guards what follows
	killAt string
	nth    int64
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("replica: ")
	if err := new(replica).run(); err != nil {
		log.Fatal(err)
	}
}

func (r *replica) write(l Line) {
	data, err := json.Marshal(l)
	if err != nil {
		log.Fatal(err)
	}
	r.out.Lock()
	defer r.out.Unlock()
	os.Stdout.Write(append(data, '\n'))
}

// step tells of a step, so that it is known to have been reached, and dies there.
func (r *replica) step(name string) {
	r.write(Line{Step: name})
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killAt != name {
		return
	}
	if r.nth--; r.nth > 0 {
		return
	}
	p, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = p.Kill()
	}
	if err != nil {
		log.Fatal(err)
	}
	select {}
}

func (r *replica) now() time.Time {
	return time.Now().Add(time.Duration(r.clock.Load() - r.older.Load()))
}

func (r *replica) run() error {
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var s Setup
	if err := json.Unmarshal(line, &s); err != nil {
		return err
	}
	r.clock.Store(int64(s.Clock))
	if !s.Young {
		r.older.Store(int64(time.Minute))
	}
	car, err := r.start(s)
	if err != nil {
		return err
	}
	r.older.Store(0)
	r.write(Line{Step: "ready"})
	var wg sync.WaitGroup
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		var c Command
		if err := json.Unmarshal(line, &c); err != nil {
			return err
		}
		switch c.Do {
		case "kill": // takes effect before the next line is read
			r.mu.Lock()
			r.killAt, r.nth = c.Step, c.Nth
			r.mu.Unlock()
			r.write(Line{N: c.N})
		case "clock":
			r.clock.Store(int64(c.Clock))
			r.write(Line{N: c.N})
		default:
			wg.Go(func() { r.write(r.do(car, c)) })
		}
	}
	wg.Wait()
	return car.Close(context.Background())
}

func (r *replica) do(car *sidecar.Sidecar, c Command) Line {
	l := Line{N: c.N}
	var all []*custody.Envelope
	var err error
	switch c.Do {
	case "handle":
		r.step("taken")
		all, err = car.Handle(context.Background(), sidecar.Delivery{Space: c.Space, Thread: c.Thread, Author: c.Author, Data: c.Data})
		r.step("handled")
	case "waiting":
		all, err = car.Waiting(context.Background())
	default:
		err = fmt.Errorf("no command %q", c.Do)
	}
	for _, e := range all {
		data, merr := e.Marshal()
		if merr != nil {
			err = merr
		}
		l.All = append(l.All, data)
	}
	if err != nil {
		l.Err = err.Error()
	}
	return l
}

func (r *replica) start(s Setup) (*sidecar.Sidecar, error) {
	cfg := sidecar.Config{Dir: s.Dir, Secret: s.Secret, Group: s.Group, LeaseTTL: s.LeaseTTL, Now: r.now, Step: r.step}
	for _, der := range s.Bots {
		id, err := custody.ParseIdentity(der)
		if err != nil {
			return nil, err
		}
		cfg.Bots = append(cfg.Bots, id)
	}
	if s.Registry != "" {
		reg, err := integrations.Load(os.DirFS(s.Registry))
		if err != nil {
			return nil, err
		}
		cfg.Registry = reg
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.CA) {
		return nil, errors.New("the CA is no PEM")
	}
	cfg.Executor = &integrations.Executor{ConnectTo: s.To, RootCAs: pool, Timeout: 3 * time.Second}
	base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, s.BrokerAt)
		}}
	cfg.Brokers = []*sidecar.Broker{{Origin: s.Broker, Token: integrations.NewSecret(s.Token), Client: &http.Client{
		Transport:     &hop{r: r, next: base, plain: s.Plain},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}}
	return sidecar.New(context.Background(), cfg)
}

// A hop tells when the broker's answer has arrived, all of it.
type hop struct {
	r     *replica
	next  http.RoundTripper
	plain bool
}

func (h *hop) RoundTrip(req *http.Request) (*http.Response, error) {
	if h.plain {
		req = req.Clone(req.Context())
		req.URL.Scheme = "http"
	}
	resp, err := h.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		resp.Body = io.NopCloser(io.MultiReader(bytes.NewReader(data), broken{err}))
		return resp, nil
	}
	if resp.StatusCode == http.StatusOK {
		h.r.step("answered")
	}
	resp.Body = io.NopCloser(bytes.NewReader(data))
	return resp, nil
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error) { return 0, b.err }
