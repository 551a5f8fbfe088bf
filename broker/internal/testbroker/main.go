// Command testbroker runs a real broker, with its fake providers, for tests in a browser. It
// serves web/ at two origins, as an instance would, and ends when its standard input does.
//
// It writes one line of JSON: where each of them listens, and where to ask what reached the
// providers (GET /calls), to move the broker's clock (POST /advance?s=600), or for what an
// instance needs (GET /token, and GET /ca, whose certificate vouches for all of it).
package main

import (
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

func main() {
	log.SetFlags(0)
	web := flag.String("web", "web", "folder of the client")
	registry := flag.String("registry", "", "folder of further manifests")
	front := flag.String("front", "", "host=http://address: an authorization server that gets a TLS front")
	through := flag.String("through", "", "host=address: where the broker reaches that host, in place of its front")
	unlimited := flag.Bool("unlimited", false, "an instance may call as often as it likes")
	instance := flag.String("instance-key", "", "a further public key of instances' tokens, as connect broker takes it")
	flag.Parse()
	if err := run(*web, *registry, *front, *through, *instance, *unlimited); err != nil {
		log.Fatal("testbroker: ", err)
	}
}

// instances are the origins that serve web/; evil serves nothing but blank pages.
var (
	instances = []string{"chat.test", "other.test"}
	evil      = "evil.test"
)

func run(web, registry, front, through, instance string, unlimited bool) error {
	more := make(map[string][]byte)
	if registry != "" {
		files, err := filepath.Glob(filepath.Join(registry, "*.json"))
		if err != nil {
			return err
		}
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				return err
			}
			more[strings.TrimSuffix(filepath.Base(f), ".json")] = data
		}
	}
	host, to, _ := strings.Cut(front, "=")
	hosts := make(map[string]string)
	var fronts net.Listener
	if host != "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		fronts = l
		hosts[host+":443"] = l.Addr().String()
	}
	var keys []broker.InstanceKey
	if instance != "" {
		key, err := broker.ParseInstanceKey(instance)
		if err != nil {
			return err
		}
		keys = append(keys, key)
	}
	var policy policyEditor
	s, err := brokertest.Start(brokertest.Options{More: more, Hosts: hosts, Wrap: policy.wrap, Config: func(c *broker.Config) {
		c.Metrics = nil
		c.InstanceKeys = append(c.InstanceKeys, keys...)
		if unlimited {
			c.InstanceRate = -1
		}
		if h, at, ok := strings.Cut(through, "="); ok {
			c.ConnectTo[h+":443"] = at
		}
	}})
	if err != nil {
		return err
	}
	defer s.Close()
	out := map[string]string{"broker.test": s.Addr}
	for h := range s.Config.ConnectTo {
		out[strings.TrimSuffix(h, ":443")] = s.Config.ConnectTo[h]
	}
	if host != "" {
		out[host] = fronts.Addr().String()
		u, err := url.Parse(to)
		if err != nil {
			return err
		}
		go serve(fronts, s.CA, proxy(u))
	}
	for _, h := range instances {
		if out[h], err = listen(s.CA, static(web)); err != nil {
			return err
		}
	}
	if out[evil], err = listen(s.CA, http.HandlerFunc(blank)); err != nil {
		return err
	}
	if out["control"], err = control(s, &policy); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(out); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func serve(l net.Listener, ca *brokertest.CA, h http.Handler) error {
	srv := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: 10 * time.Second}
	return srv.Serve(tls.NewListener(l, ca.TLS()))
}

func listen(ca *brokertest.CA, h http.Handler) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go serve(l, ca, h)
	return l.Addr().String(), nil
}

// proxy is the TLS front of an authorization server. It isolates its pages, as some
// providers do: nothing of ours may depend on a window's opener.
func proxy(to *url.URL) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			r.Out.Host = r.In.Host
			r.SetXForwarded()
		},
		ModifyResponse: func(r *http.Response) error {
			r.Header.Set("Cross-Origin-Opener-Policy", "same-origin")
			return nil
		},
		ErrorLog: log.New(io.Discard, "", 0),
	}
}

// static serves the client as an instance does.
func static(dir string) http.Handler {
	files := http.FileServer(http.Dir(dir))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups")
		h.Set("Cache-Control", "no-store")
		if r.URL.Path == "/connect/done" {
			http.ServeFile(w, r, filepath.Join(dir, "connect", "done", "index.html"))
			return
		}
		files.ServeHTTP(w, r)
	})
}

func blank(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, "<!doctype html><html lang=en><title>Elsewhere</title><p>Nothing here.</p>")
}

// A policyEditor takes sources out of the broker's Content-Security-Policy, to show that a
// browser holds pages to it.
type policyEditor struct {
	mu   sync.Mutex
	drop []string
}

func (e *policyEditor) wrap(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		drop := e.drop
		e.mu.Unlock()
		if len(drop) > 0 {
			w = &policyWriter{w, drop}
		}
		h.ServeHTTP(w, r)
	})
}

type policyWriter struct {
	http.ResponseWriter
	drop []string
}

func (w *policyWriter) WriteHeader(status int) {
	const name = "Content-Security-Policy"
	p := w.Header().Get(name)
	for _, d := range w.drop {
		p = strings.ReplaceAll(p, d, "")
	}
	if p != "" {
		w.Header().Set(name, p)
	}
	w.ResponseWriter.WriteHeader(status)
}

// control tells a test what it cannot see from the browser.
func control(s *brokertest.Server, policy *policyEditor) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /calls", func(w http.ResponseWriter, r *http.Request) {
		counts := make(map[string]int)
		for _, c := range s.Upstream.Calls() {
			counts[c.Kind]++
		}
		json.NewEncoder(w).Encode(counts)
	})
	mux.HandleFunc("POST /advance", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("s"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		s.Clock.Advance(time.Duration(n) * time.Second)
	})
	mux.HandleFunc("POST /pad", func(w http.ResponseWriter, r *http.Request) {
		// Scopes so many that the outcome does not fit an address.
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		var extra map[string]any
		if n > 0 {
			extra = map[string]any{"access_token": "at_" + strings.Repeat("x", n)}
		}
		s.Upstream.SetExtra(extra)
	})
	mux.HandleFunc("POST /policy", func(w http.ResponseWriter, r *http.Request) {
		policy.mu.Lock()
		defer policy.mu.Unlock()
		policy.drop = r.URL.Query()["drop"]
	})
	mux.HandleFunc("GET /token", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, s.Token()) })
	mux.HandleFunc("GET /ca", func(w http.ResponseWriter, r *http.Request) { w.Write(s.CA.PEM()) })
	mux.HandleFunc("GET /log", func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, s.Logs()) })
	go http.Serve(l, mux)
	return "http://" + l.Addr().String(), nil
}
