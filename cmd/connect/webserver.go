package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
)

// A webServer is how connect broker and connect instance speak: TLS with a certificate that is
// read again when it changes, or plain HTTP to this machine or to a proxy.
type webServer struct {
	listen, cert, key string
	plain             bool
}

// serverTimes are how long a server waits for others.
type serverTimes struct {
	read, write, stop time.Duration
	maxHeader         int
}

func (s *webServer) add(f *pflag.FlagSet, listen string) {
	f.StringVar(&s.listen, "listen", listen, "the `ADDRESS:PORT` to listen on; port 0 takes a free one")
	f.StringVar(&s.cert, "cert", "", "the certificate and its chain, a PEM `FILE`")
	f.StringVar(&s.key, "key", "", "the certificate's private key, a PEM `FILE`")
	f.BoolVar(&s.plain, "plain", false, "speak plain HTTP on an address that other machines reach: a proxy elsewhere speaks TLS")
}

// check says what is wrong with the flags. carried is what travels in a request.
func (s *webServer) check(example, carried string) (loopback bool, err error) {
	host, _, err := net.SplitHostPort(s.listen)
	loopback = isLoopback(host)
	switch {
	case err != nil:
		return false, usagef("such as --listen "+example+", or --listen :443", "--listen is written ADDRESS:PORT")
	case (s.cert == "") != (s.key == ""):
		return false, usagef("", "--cert and --key stand together")
	case s.cert != "" && s.plain:
		return false, usagef("", "--plain does not go with --cert")
	case s.cert == "" && !s.plain && !loopback:
		return false, usagef("give --cert and --key, listen on 127.0.0.1, or say --plain where a proxy on another machine speaks TLS",
			"plain HTTP would be open to other machines, and %s travel in it", carried)
	}
	return loopback, nil
}

// server makes the server; its handler is still to be set.
func (s *webServer) server(t serverTimes) (*http.Server, error) {
	srv := &http.Server{
		ReadHeaderTimeout: t.read, ReadTimeout: t.read, WriteTimeout: t.write,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: t.maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // it would hold addresses
	}
	if s.cert == "" {
		return srv, nil
	}
	files := &certFiles{cert: s.cert, key: s.key}
	if err := files.load(); err != nil {
		return nil, usagef("both are PEM files, and belong to each other", "--cert and --key: %w", withoutPath(err))
	}
	srv.TLSConfig = &tls.Config{GetCertificate: files.get, MinVersion: tls.VersionTLS12}
	return srv, nil
}

// open begins to listen. name is who does.
func (s *webServer) open(name string) (net.Listener, error) {
	ln, err := net.Listen("tcp", s.listen)
	if err != nil {
		return nil, &hintedError{fmt.Errorf("the %s cannot listen there: %w", name, err), "another program may hold that port; --listen takes another one"}
	}
	return ln, nil
}

// scheme returns the scheme that it speaks, and how that is said.
func (s *webServer) scheme() (scheme, words string) {
	if s.cert != "" {
		return "https", "TLS"
	}
	return "http", "plain HTTP"
}

// serve serves until ctx ends, and then lets the requests that are under way end.
func (s *webServer) serve(ctx context.Context, name string, srv *http.Server, ln net.Listener, stop time.Duration) error {
	served := make(chan error, 1)
	go func() {
		if s.cert != "" {
			served <- srv.ServeTLS(ln, "", "")
			return
		}
		served <- srv.Serve(ln)
	}()
	select {
	case err := <-served:
		return fmt.Errorf("the %s has stopped: %w", name, err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stop)
	defer cancel()
	if srv.Shutdown(ending) != nil {
		srv.Close()
		return fmt.Errorf("some requests did not end within %s", stop)
	}
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// certFiles hold a certificate that is renewed while the broker runs.
type certFiles struct {
	cert, key string

	mu     sync.Mutex
	now    *tls.Certificate
	looked time.Time
	made   time.Time // when the file was last written
}

// certRest is how seldom the files are looked at.
const certRest = time.Minute

func (f *certFiles) load() error {
	info, err := os.Stat(f.cert)
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return err
	}
	f.now, f.made, f.looked = &pair, info.ModTime(), time.Now()
	return nil
}

// get returns the certificate. A renewal that does not fit together yet is taken later.
func (f *certFiles) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) >= certRest {
		f.looked = time.Now()
		if info, err := os.Stat(f.cert); err == nil && !info.ModTime().Equal(f.made) {
			f.load()
		}
	}
	if f.now == nil {
		return nil, errors.New("there is no certificate")
	}
	return f.now, nil
}
