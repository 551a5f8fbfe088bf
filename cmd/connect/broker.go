package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/broker"
)

// How long the broker waits for others. A write covers two calls to a provider.
const (
	brokerReadTimeout  = 15 * time.Second
	brokerWriteTimeout = 45 * time.Second
	brokerStopTimeout  = 30 * time.Second
	brokerMaxHeader    = 32 << 10
)

func (c *cli) brokerCommand() *cobra.Command {
	var s brokerServer
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run the OAuth broker in one process",
		Long: `Broker serves the OAuth flows, refreshes and the registry of any number of instances,
and stores nothing. It speaks TLS with --cert and --key, which are read again when they
change, or plain HTTP to a proxy on this machine, which speaks TLS in its place. SIGTERM
and Ctrl-C let the requests that are under way end first; a second one does not.

Its configuration is its environment. Lists are separated by commas.

` + brokerVarsHelp() + `
--secrets-file is one JSON object of mode 0600, with an entry for each service:

` + secretsForm + `

"hosts": ["…"] beside the two is as LCHAT_OAUTH_<ID>_HOSTS, and "previous": {"client_id",
"client_secret"} the client before, while the provider still takes it. A public client has
no client_secret.

"connect broker token keys" makes the keys. The log is one line of JSON a request, to
standard error; it holds no address, code, token or secret.`,
		Example: `  connect broker --listen 127.0.0.1:8080
  connect broker --listen :443 --cert fullchain.pem --key privkey.pem --secrets-file secrets.json`,
		Args: words(0, 0, "connect broker takes no words; its configuration is its environment"),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), c) },
	}
	cmd.Flags().StringVar(&s.listen, "listen", "127.0.0.1:8080", "the `ADDRESS:PORT` to listen on; port 0 takes a free one")
	cmd.Flags().StringVar(&s.cert, "cert", "", "the certificate and its chain, a PEM `FILE`")
	cmd.Flags().StringVar(&s.key, "key", "", "the certificate's private key, a PEM `FILE`")
	cmd.Flags().BoolVar(&s.plain, "plain", false, "speak plain HTTP on an address that other machines reach: a proxy elsewhere speaks TLS")
	cmd.Flags().StringVar(&s.secrets, "secrets-file", "", "take the OAuth clients from this JSON `FILE` (mode 0600), not from the environment; it is read again when it changes")
	cmd.AddCommand(c.brokerTokenCommand(), c.brokerDoctorCommand())
	return cmd
}

type brokerServer struct {
	listen, cert, key, secrets string
	plain                      bool
}

func (s *brokerServer) run(ctx context.Context, c *cli) error {
	host, _, err := net.SplitHostPort(s.listen)
	switch {
	case err != nil:
		return usagef("such as --listen 127.0.0.1:8080, or --listen :443", "--listen is written ADDRESS:PORT")
	case (s.cert == "") != (s.key == ""):
		return usagef("", "--cert and --key stand together")
	case s.cert != "" && s.plain:
		return usagef("", "--plain does not go with --cert")
	case s.cert == "" && !s.plain && !isLoopback(host):
		return usagef("give --cert and --key, listen on 127.0.0.1, or say --plain where a proxy on another machine speaks TLS",
			"plain HTTP would be open to other machines, and secrets travel in it")
	}
	srv := &http.Server{
		ReadHeaderTimeout: brokerReadTimeout, ReadTimeout: brokerReadTimeout, WriteTimeout: brokerWriteTimeout,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: brokerMaxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // it would hold addresses
	}
	scheme := "plain HTTP"
	if s.cert != "" {
		scheme = "TLS"
		files := &certFiles{cert: s.cert, key: s.key}
		if err := files.load(); err != nil {
			return usagef("both are PEM files, and belong to each other", "--cert and --key: %w", withoutPath(err))
		}
		srv.TLSConfig = &tls.Config{GetCertificate: files.get, MinVersion: tls.VersionTLS12}
	}
	cfg, err := brokerConfig(os.Getenv, s.secrets)
	if err != nil {
		return err
	}
	cfg.Logger = slog.New(slog.NewJSONHandler(c.err, nil))
	b, err := broker.New(cfg)
	if err != nil {
		return usagef("connect broker --help tells the variables", "%s", brokerWords(err))
	}
	sayOffered(ctx, c, cfg, b)
	srv.Handler = b
	ln, err := net.Listen("tcp", s.listen)
	if err != nil {
		return &hintedError{fmt.Errorf("the broker cannot listen there: %w", err), "another program may hold that port; --listen takes another one"}
	}
	c.note("ready: %s on %s, as %s", scheme, ln.Addr(), cfg.PublicURL)
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
		return fmt.Errorf("the broker has stopped: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), brokerStopTimeout)
	defer cancel()
	if err := srv.Shutdown(stop); err != nil {
		srv.Close()
		return fmt.Errorf("some requests did not end within %s", brokerStopTimeout)
	}
	c.note("stopped")
	return nil
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// brokerWords says a configuration's fault by the variable, not by the field.
func brokerWords(err error) string {
	s := strings.TrimPrefix(err.Error(), "broker: ")
	for _, f := range []struct{ field, name string }{
		{"PublicURL", envPublicURL}, {"ReturnOrigins", envReturnOrigins}, {"Services", envServices},
		{"StateKeys", envStateKeys}, {"WrapKeys", envWrapKeys}, {"InstanceKeys", envInstanceKeys},
	} {
		if rest, ok := strings.CutPrefix(s, f.field); ok {
			return f.name + rest
		}
	}
	return s
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
