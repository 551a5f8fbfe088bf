package integrations

import (
	"context"
	"errors"
	"net"
	"time"

	"code.dny.dev/ssrf"
)

// errPrivateAddress means that a host's name led to an address that is not public.
var errPrivateAddress = errors.New("its name leads to an address that is not public")

// dial connects to addr (host:443). Addresses that are not public are refused, looked at
// after DNS, so that a name cannot lead elsewhere the second time; only what ConnectTo or
// AllowPrivate name may be one.
func (e *Executor) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	if to, ok := e.ConnectTo[addr]; ok {
		return d.DialContext(ctx, network, to)
	}
	if !e.AllowPrivate {
		d.Control = ssrf.New(ssrf.WithPorts(443)).Safe
	}
	conn, err := d.DialContext(ctx, network, addr)
	if errors.Is(err, ssrf.ErrProhibitedIP) || errors.Is(err, ssrf.ErrProhibitedNetwork) || errors.Is(err, ssrf.ErrProhibitedPort) {
		return nil, errPrivateAddress
	}
	return conn, err
}
