package main

import (
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

// networkFlags say how a service is reached.
type networkFlags struct {
	connectTo []string
	cacert    string
	timeout   time.Duration
}

// The bounds of --timeout, and of the file that --cacert names.
const (
	maxTimeout = 10 * time.Minute
	maxCAFile  = 1 << 20
)

func (f *networkFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.connectTo, "connect-to", nil, "connect to ADDRESS instead of HOST, as curl does, written `HOST:443:ADDRESS:PORT`; it may be a private address")
	cmd.Flags().StringVar(&f.cacert, "cacert", "", "trust only the authorities in this PEM `FILE`")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 30*time.Second, "give up a call, with its tries, after this `DURATION`")
}

// executor returns the executor for a service, and says where connections go elsewhere.
func (f *networkFlags) executor(c *cli, m *integrations.Manifest) (*integrations.Executor, error) {
	if f.timeout <= 0 || f.timeout > maxTimeout {
		return nil, usagef("such as --timeout 1m", "--timeout is above zero and at most %s", maxTimeout)
	}
	e := &integrations.Executor{Timeout: f.timeout, UserAgent: "connect/" + version()}
	for _, s := range f.connectTo {
		from, to, ok := splitConnectTo(s)
		if !ok {
			return nil, usagef("such as --connect-to "+m.Host+":443:127.0.0.1:8443; an IPv6 address stands in brackets", "--connect-to is written HOST:443:ADDRESS:PORT")
		}
		// A flag that names another host does nothing, and the token would leave for the
		// real one.
		if from != m.Host+":443" {
			return nil, usagef("write --connect-to "+m.Host+":443:"+to, "--connect-to names a host that %s does not use", m.Name)
		}
		if e.ConnectTo == nil {
			e.ConnectTo = make(map[string]string)
		}
		if _, twice := e.ConnectTo[from]; twice {
			return nil, usagef("", "--connect-to names the same host twice")
		}
		e.ConnectTo[from] = to
		c.note("note: %s is reached at %s", m.Host, to)
	}
	if f.cacert != "" {
		data, err := readFile(f.cacert, maxCAFile)
		if err != nil {
			return nil, usagef("", "--cacert: the file %w", err)
		}
		e.RootCAs = x509.NewCertPool()
		if !e.RootCAs.AppendCertsFromPEM(data) {
			return nil, usagef("it begins with -----BEGIN CERTIFICATE-----", "--cacert: the file holds no certificate in PEM")
		}
	}
	return e, nil
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
