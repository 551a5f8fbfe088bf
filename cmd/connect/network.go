package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

// networkFlags say how a service, and the broker of its connection, is reached.
type networkFlags struct {
	connectTo []string
	cacert    string
	timeout   time.Duration

	to    map[string]string // what connectTo says, by "host:443"
	roots *x509.CertPool    // nil: the system's
}

// The bounds of --timeout, and of the file that --cacert names.
const (
	maxTimeout = 10 * time.Minute
	maxCAFile  = 1 << 20

	defaultTimeout = 30 * time.Second
)

func (f *networkFlags) add(cmd *cobra.Command) {
	f.addReach(cmd)
	cmd.Flags().DurationVar(&f.timeout, "timeout", defaultTimeout, "give up a call, with its tries, after this `DURATION`")
}

// addReach adds what a command needs that calls a broker and no service.
func (f *networkFlags) addReach(cmd *cobra.Command) {
	f.timeout = defaultTimeout
	cmd.Flags().StringArrayVar(&f.connectTo, "connect-to", nil, "connect to ADDRESS instead of HOST, as curl does, written `HOST:443:ADDRESS:PORT`; it may be a private address")
	cmd.Flags().StringVar(&f.cacert, "cacert", "", "trust only the authorities in this PEM `FILE`")
}

// read reads the flags for a service and a broker's origin, "" for none, and says where
// connections go elsewhere.
func (f *networkFlags) read(c *cli, m *integrations.Manifest, broker string) error {
	known := []string{m.Host + ":443"}
	if host, ok := strings.CutPrefix(broker, "https://"); ok {
		known = append(known, host+":443")
	}
	return f.readHosts(c, m.Name, known)
}

// readHosts reads the flags for what reaches these hosts, with their ports. name does so.
func (f *networkFlags) readHosts(c *cli, name string, known []string) error {
	if f.timeout <= 0 || f.timeout > maxTimeout {
		return usagef("such as --timeout 1m", "--timeout is above zero and at most %s", maxTimeout)
	}
	example := "api.example.com:443"
	if len(known) > 0 {
		example = known[0]
	}
	return f.readReach(known, example, func(to string) error {
		return usagef("write --connect-to "+example+":"+to, "--connect-to names a host that %s does not use", name)
	}, func(host, at string) { c.note("note: %s is reached at %s", host, at) })
}

// readReach reads --connect-to and --cacert. other is the error for a host that is not known:
// such a flag would do nothing, and a token would leave for the real host. Without other any
// host may be named.
func (f *networkFlags) readReach(known []string, example string, other func(to string) error, say func(host, at string)) error {
	f.to = make(map[string]string)
	for _, s := range f.connectTo {
		from, to, ok := splitConnectTo(s)
		if !ok {
			return usagef("such as --connect-to "+example+":127.0.0.1:8443; an IPv6 address stands in brackets", "--connect-to is written HOST:443:ADDRESS:PORT")
		}
		if other != nil && !slices.Contains(known, from) {
			return other(to)
		}
		if _, twice := f.to[from]; twice {
			return usagef("", "--connect-to names the same host twice")
		}
		f.to[from] = to
		say(strings.TrimSuffix(from, ":443"), to)
	}
	if f.cacert == "" {
		return nil
	}
	data, err := readFile(f.cacert, maxCAFile)
	if err != nil {
		return usagef("", "--cacert: the file %w", err)
	}
	f.roots = x509.NewCertPool()
	if !f.roots.AppendCertsFromPEM(data) {
		return usagef("it begins with -----BEGIN CERTIFICATE-----", "--cacert: the file holds no certificate in PEM")
	}
	return nil
}

// executor returns the executor for a service whose flags were read.
func (f *networkFlags) executor(m *integrations.Manifest) *integrations.Executor {
	e := &integrations.Executor{Timeout: f.timeout, UserAgent: "connect/" + version(), RootCAs: f.roots}
	if to, ok := f.to[m.Host+":443"]; ok {
		e.ConnectTo = map[string]string{m.Host + ":443": to}
	}
	return e
}

// client returns the client for a broker where it is reached in a way of its own, else nil.
func (f *networkFlags) client() *http.Client {
	if len(f.to) == 0 && f.roots == nil {
		return nil
	}
	t := f.transport()
	// See sidecar.Broker: a kept connection could cost a pair.
	t.DisableKeepAlives = true
	return &http.Client{Transport: t, CheckRedirect: noRedirect}
}

// keeping returns a client that keeps connections, for an instance.
func (f *networkFlags) keeping() *http.Client {
	t := f.transport()
	t.IdleConnTimeout, t.MaxIdleConnsPerHost = time.Minute, 8
	return &http.Client{Transport: t, CheckRedirect: noRedirect}
}

func noRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

// transport reaches hosts as the flags say, and takes no proxy.
func (f *networkFlags) transport() *http.Transport {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			if to, ok := f.to[addr]; ok {
				addr = to
			}
			return d.DialContext(ctx, network, addr)
		},
		TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.roots},
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10,
	}
}

// readFor reads the flags for all hosts that a daemon may reach: the services', and those of
// some origins.
func (f *networkFlags) readFor(reg *integrations.Registry, origins []string, log *slog.Logger) error {
	var known []string
	for _, m := range reg.All() {
		known = append(known, m.Host+":443")
	}
	for _, o := range origins {
		if u, err := url.Parse(o); err == nil && u.Scheme == "https" {
			known = append(known, u.Hostname()+":443")
		}
	}
	return f.readReach(known, "api.github.com:443", func(string) error {
		return usagef("the services' hosts, the brokers' and the instance's are used", "--connect-to names a host that is not used")
	}, func(host, at string) { log.Warn("a host is reached elsewhere", "host", host, "at", at) })
}

// services returns an executor for all services.
func (f *networkFlags) services() *integrations.Executor {
	return &integrations.Executor{UserAgent: "connect/" + version(), RootCAs: f.roots, ConnectTo: f.to}
}

// splitConnectTo reads curl's HOST1:PORT1:HOST2:PORT2. An empty part is refused: it would
// mean any host.
func splitConnectTo(s string) (from, to string, ok bool) {
	host, rest, ok := strings.Cut(s, ":")
	if !ok {
		return "", "", false
	}
	port, to, ok := strings.Cut(rest, ":")
	if !ok || host == "" || port != "443" {
		return "", "", false
	}
	address, toPort, err := net.SplitHostPort(to)
	if err != nil || address == "" {
		return "", "", false
	}
	if n, err := net.LookupPort("tcp", toPort); err != nil || n == 0 {
		return "", "", false
	}
	return strings.ToLower(host) + ":443", to, true
}

// withAdvice adds what to do to an error of a call.
func withAdvice(m *integrations.Manifest, err error) error {
	switch {
	case errors.Is(err, integrations.ErrUnauthorised) && m.Auth.PATHelp != "":
		return &hintedError{err, "a token is made at " + m.Auth.PATHelp + "; one from an OAuth flow is sent with --oauth"}
	case errors.Is(err, integrations.ErrUnauthorised):
		return &hintedError{err, "a token from an OAuth flow is sent with --oauth"}
	}
	return err
}
