package broker_test

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// BenchmarkRegistry puts GET /registry beside a bare net/http handler that writes the same
// bytes, and beside nginx with gzip_static, over loopback TCP, all in one run, turn by turn.
// x-bare and x-nginx are our requests a second over theirs.
func BenchmarkRegistry(b *testing.B) {
	s, err := brokertest.Start(brokertest.Options{Config: func(c *broker.Config) { c.Logger = nil }})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	ours := serve(b, s.Broker)
	whole, etag := fetch(b, ours, "identity")
	zipped, zipETag := fetch(b, ours, "gzip")
	if len(whole) < 30<<10 || len(whole) > 120<<10 {
		b.Fatalf("the registry is %d bytes", len(whole))
	}
	// The same bytes: status, headers and body.
	bare := func(headers string) string {
		status, header, body := askOnce(b, ours, headers)
		header.Del("Date")
		return serve(b, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			for k, v := range header {
				h[k] = v
			}
			w.WriteHeader(status)
			w.Write(body)
		}))
	}
	nginx, nginxETag := startNginx(b, whole)
	for _, bm := range []struct {
		name        string
		ours, nginx string // headers of the request
		size        int
	}{
		{"identity", "", "", len(whole)},
		{"gzip", "Accept-Encoding: gzip\r\n", "Accept-Encoding: gzip\r\n", len(zipped)},
		{"304", "If-None-Match: " + etag + "\r\n", "If-None-Match: " + nginxETag + "\r\n", 0},
		{"304/gzip", "Accept-Encoding: gzip\r\nIf-None-Match: " + zipETag + "\r\n", "", 0},
	} {
		b.Run(bm.name, func(b *testing.B) {
			sides := []*load{{addr: ours, headers: bm.ours}, {addr: bare(bm.ours), headers: bm.ours}}
			if nginx != "" && bm.name != "304/gzip" {
				sides = append(sides, &load{addr: nginx, headers: bm.nginx})
			}
			for _, l := range sides {
				l.open(b)
				l.run(b, 200) // warm
				l.turns = nil
			}
			// A turn is some milliseconds, and what else the machine does lasts longer: one says
			// little, and even one iteration has the median of many.
			const turn, rounds = 50, 75
			for b.Loop() {
				for round := range rounds {
					for i := range sides {
						sides[(i+round)%len(sides)].run(b, turn)
					}
				}
			}
			b.ReportMetric(turn*conns/median(sides[0].turns).Seconds(), "req/s")
			b.ReportMetric(sides[0].over(sides[1]), "x-bare")
			if len(sides) > 2 {
				b.ReportMetric(sides[0].over(sides[2]), "x-nginx")
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(bm.size), "bytes")
		})
	}
	if nginx == "" {
		b.Log("nginx is not here; .ci/browser installs it: no x-nginx")
	}
}

// conns is how many connections ask at once.
const conns = 4

// A load asks one server over connections that are kept.
type load struct {
	addr, headers string
	turns         []time.Duration
	conn          []net.Conn
	read          []*bufio.Reader
}

func (l *load) open(b *testing.B) {
	for range conns {
		c, err := net.Dial("tcp", l.addr)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { c.Close() })
		l.conn, l.read = append(l.conn, c), append(l.read, bufio.NewReaderSize(c, 256<<10))
	}
}

// run sends n requests over each connection, one after the other.
func (l *load) run(b *testing.B, n int) {
	request := []byte("GET /registry HTTP/1.1\r\nHost: broker.test\r\n" + l.headers + "\r\n")
	start := time.Now()
	var wg sync.WaitGroup
	for i := range l.conn {
		wg.Go(func() {
			for range n {
				if _, err := l.conn[i].Write(request); err != nil {
					b.Error(err)
					return
				}
				if err := skipAnswer(l.read[i]); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	l.turns = append(l.turns, time.Since(start))
}

// over is the median of how many times as fast each turn was as the other's beside it: what
// else the machine does then weighs on both.
func (l *load) over(other *load) float64 {
	var r []float64
	for i := range min(len(l.turns), len(other.turns)) {
		r = append(r, other.turns[i].Seconds()/l.turns[i].Seconds())
	}
	return median(r)
}

func median[T cmp.Ordered](list []T) (m T) {
	if len(list) == 0 {
		return m
	}
	list = slices.Clone(list)
	slices.Sort(list)
	return list[len(list)/2]
}

var (
	lengthHeader = []byte("Content-Length: ")
	ok, same     = []byte(" 200 "), []byte(" 304 ")
)

// skipAnswer reads an answer of a known length, as cheaply as can be: what is measured is
// the server.
func skipAnswer(r *bufio.Reader) error {
	length, first := 0, true
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		if first && !bytes.Contains(line, ok) && !bytes.Contains(line, same) {
			return fmt.Errorf("answered %s", line)
		}
		first = false
		if len(line) <= 2 {
			_, err := r.Discard(length)
			return err
		}
		if bytes.HasPrefix(line, lengthHeader) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(lengthHeader):]))); err != nil {
				return err
			}
		}
	}
}

func serve(b *testing.B, h http.Handler) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	srv := &http.Server{Handler: h}
	go srv.Serve(l)
	b.Cleanup(func() { srv.Close() })
	return l.Addr().String()
}

// askOnce asks once, with headers as they stand in a request.
func askOnce(b *testing.B, addr, headers string) (status int, header http.Header, body []byte) {
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+"/registry", nil)
	if err != nil {
		b.Fatal(err)
	}
	for _, h := range strings.Split(strings.TrimSpace(headers), "\r\n") {
		if name, value, ok := strings.Cut(h, ": "); ok {
			req.Header.Set(name, value)
		}
	}
	resp, err := (&http.Transport{DisableCompression: true, DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		b.Fatal(err)
	}
	resp.Header.Del("Connection")
	return resp.StatusCode, resp.Header, body
}

func fetch(b *testing.B, addr, encoding string) (body []byte, etag string) {
	status, header, body := askOnce(b, addr, "Accept-Encoding: "+encoding)
	if status != http.StatusOK {
		b.Fatalf("answered %d", status)
	}
	return body, header.Get("Etag")
}

// startNginx serves the same bytes, compressed beforehand, with one worker a core. Where
// nginx is not installed it returns "".
func startNginx(b *testing.B, whole []byte) (addr, etag string) {
	bin, err := exec.LookPath("nginx")
	if err != nil {
		if bin = "/usr/sbin/nginx"; !exists(bin) {
			return "", ""
		}
	}
	dir := b.TempDir()
	var z bytes.Buffer
	w, _ := gzip.NewWriterLevel(&z, gzip.BestCompression)
	w.Write(whole)
	w.Close()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	addr = l.Addr().String()
	l.Close()
	conf := strings.NewReplacer("DIR", dir, "ADDR", addr).Replace(`
worker_processes auto;
daemon off;
pid DIR/pid;
error_log stderr crit;
events { worker_connections 64; }
http {
  access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; gzip_static on; gzip_vary on;
  client_body_temp_path DIR/a; proxy_temp_path DIR/b; fastcgi_temp_path DIR/c; uwsgi_temp_path DIR/d; scgi_temp_path DIR/e;
  open_file_cache max=16; server { listen ADDR; root DIR; default_type application/json; add_header Cache-Control "public, max-age=300"; add_header Access-Control-Allow-Origin "*"; }
}
`)
	for name, data := range map[string][]byte{"registry": whole, "registry.gz": z.Bytes(), "nginx.conf": []byte(conf)} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		b.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // its workers are nobody
		b.Fatal(err)
	}
	cmd := exec.Command(bin, "-p", dir, "-c", filepath.Join(dir, "nginx.conf"))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		cmd.Process.Signal(os.Interrupt)
		cmd.Wait()
	})
	for range 100 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			_, etag = fetch(b, addr, "identity")
			return addr, etag
		}
		time.Sleep(20 * time.Millisecond)
	}
	b.Fatal("nginx does not answer")
	return "", ""
}

func exists(name string) bool {
	_, err := os.Stat(name)
	return err == nil
}
