package faults_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"
)

// The faults of a network.
const (
	refuse      = "refuse the connection"
	dropBefore  = "drop before sending"
	dropAfter   = "drop after sending"
	cutRequest  = "truncate the request"
	cutAnswer   = "truncate the answer"
	flipRequest = "garble the request"
	flipAnswer  = "garble the answer"
	slow        = "delay the answer"
	tooSlow     = "delay the answer for too long"
	idle        = "close while idle"
	gatewayOf   = "a gateway answers 502 in its place"
	gatewayIn   = "a gateway answers 502 after it"
	limitOf     = "a gateway answers 429 in its place"
)

const (
	slowTime    = 150 * time.Millisecond
	tooSlowTime = 3500 * time.Millisecond // more than a replica gives anybody
)

// A proxy stands on a way and does one fault, once, when it is told to.
type proxy struct {
	addr  string
	serve func(*proxy, net.Conn)

	mu    sync.Mutex
	l     net.Listener
	conns map[net.Conn]bool
	fault string
	skip  int // chunks that pass before it
	rng   *rand.Rand
	done  bool
}

func newProxy(t testing.TB, serve func(*proxy, net.Conn)) *proxy {
	p := &proxy{serve: serve, conns: make(map[net.Conn]bool), rng: rand.New(rand.NewPCG(1, 2))}
	p.l = must(net.Listen("tcp", "127.0.0.1:0"))
	p.addr = p.l.Addr().String()
	go p.accept(p.l)
	t.Cleanup(func() {
		p.mu.Lock()
		p.done = true
		p.mu.Unlock()
		p.down()
	})
	return p
}

func (p *proxy) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		p.conns[c] = true
		p.mu.Unlock()
		go func() {
			defer p.drop(c)
			p.serve(p, c)
		}()
	}
}

func (p *proxy) drop(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// down takes the listener away and every connection with it.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l != nil {
		p.l.Close()
		p.l = nil
	}
	for c := range p.conns {
		c.Close()
	}
}

// arm readies a fault for what comes next, after skip chunks have passed.
func (p *proxy) arm(fault string, skip int) {
	switch fault {
	case refuse:
		p.down()
	case idle:
		p.mu.Lock()
		defer p.mu.Unlock()
		for c := range p.conns {
			c.Close()
		}
	default:
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fault, p.skip = fault, skip
	}
}

// disarm makes the way whole again. It says whether the fault was still to come.
func (p *proxy) disarm() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	left := p.fault != ""
	p.fault = ""
	return left
}

// up ends what down began.
func (p *proxy) up() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l != nil || p.done {
		return
	}
	for range 100 {
		l, err := net.Listen("tcp", p.addr)
		if err == nil {
			p.l = l
			go p.accept(l)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	panic("the proxy's port does not come back")
}

// due takes the fault if it is one of those, and its time has come.
func (p *proxy) due(faults ...string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range faults {
		if p.fault == f {
			if p.skip--; p.skip >= 0 {
				return ""
			}
			p.fault = ""
			return f
		}
	}
	return ""
}

func (p *proxy) random(n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rng.IntN(n)
}

// flip changes one bit.
func (p *proxy) flip(data []byte) { data[p.random(len(data))] ^= 1 << p.random(8) }

// stream passes bytes on, of TLS or anything else; faults come at chunks as they arrive.
func stream(to func() string) func(*proxy, net.Conn) {
	return func(p *proxy, c net.Conn) {
		s, err := net.Dial("tcp", to())
		if err != nil {
			return
		}
		defer s.Close()
		var wg sync.WaitGroup
		pump := func(from, to net.Conn, faults ...string) {
			defer from.Close()
			defer to.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := from.Read(buf)
				if n > 0 {
					data := buf[:n]
					switch f := p.due(faults...); f {
					case dropBefore, dropAfter:
						return
					case cutRequest, cutAnswer:
						to.Write(data[:p.random(n)])
						return
					case flipRequest, flipAnswer:
						p.flip(data)
					case slow:
						time.Sleep(slowTime)
					case tooSlow:
						time.Sleep(tooSlowTime)
					}
					if _, err := to.Write(data); err != nil {
						return
					}
				}
				if err != nil {
					return
				}
			}
		}
		wg.Go(func() { pump(c, s, dropBefore, cutRequest, flipRequest) })
		wg.Go(func() { pump(s, c, dropAfter, cutAnswer, flipAnswer, slow, tooSlow) })
		wg.Wait()
	}
}

// messages passes HTTP requests on to the broker. It speaks plain HTTP to the sidecar, so
// that a fault spoils what is said, and not only the encryption around it.
func messages(w *world) func(*proxy, net.Conn) {
	next := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.pool, ServerName: "broker.test"}, DisableCompression: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, network, w.to("broker.test"))
		}}
	// ask sends the request, of whose body n bytes are there.
	ask := func(r *http.Request, body []byte) []byte {
		out := must(http.NewRequest(r.Method, brokerName+r.URL.Path, bytes.NewReader(body)))
		out.Header = r.Header.Clone()
		resp, err := next.RoundTrip(out)
		if err != nil {
			return nil
		}
		defer resp.Body.Close()
		data, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil
		}
		resp.Body, resp.ContentLength, resp.TransferEncoding = io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
		resp.ProtoMajor, resp.ProtoMinor = 1, 1
		var b bytes.Buffer
		resp.Write(&b)
		return b.Bytes()
	}
	const html = "Content-Type: text/html\r\nContent-Length: 17\r\nRetry-After: 5\r\n\r\n<h1>A gateway</h1"
	return func(p *proxy, c net.Conn) {
		in := bufio.NewReader(c)
		for {
			r, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			body, err := io.ReadAll(r.Body)
			if err != nil {
				return
			}
			f := p.due(dropBefore, dropAfter, cutRequest, cutAnswer, flipRequest, flipAnswer, slow, tooSlow, gatewayOf, gatewayIn, limitOf)
			switch f {
			case dropBefore:
				return
			case gatewayOf:
				io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\n"+html)
				continue
			case limitOf:
				io.WriteString(c, "HTTP/1.1 429 Too Many Requests\r\n"+html)
				continue
			case cutRequest:
				body = body[:p.random(len(body))]
			case flipRequest:
				p.flip(body)
			}
			data := ask(r, body)
			switch f {
			case dropAfter:
				return
			case gatewayIn:
				data = []byte("HTTP/1.1 502 Bad Gateway\r\n" + html)
			case cutAnswer:
				if data != nil {
					c.Write(data[:p.random(len(data))])
				}
				return
			case flipAnswer:
				if data != nil {
					p.flip(data)
				}
			case slow:
				time.Sleep(slowTime)
			case tooSlow:
				time.Sleep(tooSlowTime)
			}
			if data == nil {
				return
			}
			if _, err := c.Write(data); err != nil {
				return
			}
		}
	}
}
