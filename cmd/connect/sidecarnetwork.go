package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
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

// addSidecarNetwork adds the flags that a daemon shares with connect op.
func addSidecarNetwork(cmd *cobra.Command, f *networkFlags) {
	cmd.Flags().StringArrayVar(&f.connectTo, "connect-to", nil, "connect to ADDRESS instead of HOST, as curl does, written `HOST:443:ADDRESS:PORT`; it may be a private address")
	cmd.Flags().StringVar(&f.cacert, "cacert", "", "trust only the authorities in this PEM `FILE`")
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
	f.to = make(map[string]string)
	for _, s := range f.connectTo {
		from, to, ok := splitConnectTo(s)
		switch {
		case !ok:
			return usagef("such as --connect-to api.github.com:443:127.0.0.1:8443; an IPv6 address stands in brackets", "--connect-to is written HOST:443:ADDRESS:PORT")
		case !slices.Contains(known, from):
			return usagef("the services' hosts, the brokers' and the instance's are used", "--connect-to names a host that is not used")
		case f.to[from] != "":
			return usagef("", "--connect-to names the same host twice")
		}
		f.to[from] = to
		log.Warn("a host is reached elsewhere", "host", strings.TrimSuffix(from, ":443"), "at", to)
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

// services returns an executor for all services.
func (f *networkFlags) services() *integrations.Executor {
	return &integrations.Executor{UserAgent: "connect/" + version(), RootCAs: f.roots, ConnectTo: f.to}
}

// keeping returns a client that keeps connections, for an instance.
func (f *networkFlags) keeping() *http.Client {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				if to, ok := f.to[addr]; ok {
					addr = to
				}
				return d.DialContext(ctx, network, addr)
			},
			TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: f.roots},
			TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10, IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 8,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
