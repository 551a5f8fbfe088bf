package broker

import (
	"context"
	"errors"
	"strings"

	"github.com/elevenmessenger/connect/integrations"
)

// A Client is an OAuth client as its operator registered it at a provider.
type Client struct {
	ID     string
	Secret integrations.Secret
	// Hosts are where the secret may go; empty means the hosts of the built-in registry.
	Hosts []string
}

// ErrNoClient means that there is no client for a service, so that it is not offered.
var ErrNoClient = errors.New("no OAuth client for this service")

// A SecretSource holds the OAuth clients. Its errors, apart from [ErrNoClient], are the
// operator's to mend, and never mean that a service is not offered.
type SecretSource interface {
	// Client returns the client to use for a service.
	Client(ctx context.Context, service string) (Client, error)
	// Other returns another version of a client that the provider did not know: the store's
	// present one, where the cache was behind, or the one before. It returns ErrNoClient when
	// there is none that has not failed.
	Other(ctx context.Context, service string, failed []Client) (Client, error)
	// Worked says that the provider knew the client, so that it is used first from now on.
	Worked(service string, c Client)
}

// Env is a SecretSource over environment variables: LCHAT_OAUTH_<ID>_CLIENT_ID,
// _CLIENT_SECRET and, optionally, _HOSTS (separated by commas), where <ID> is the service's
// id in upper case with _ for -; DNSimple's names from before are LCHAT_DNSIMPLE_*.
type Env struct {
	// Getenv returns a variable, as os.Getenv does.
	Getenv func(string) string
}

// Client returns the client that the environment holds.
func (e Env) Client(_ context.Context, service string) (Client, error) {
	id := strings.ToUpper(strings.ReplaceAll(service, "-", "_"))
	for _, prefix := range []string{"LCHAT_OAUTH_" + id, "LCHAT_" + id} {
		c := Client{ID: e.Getenv(prefix + "_CLIENT_ID"), Secret: integrations.NewSecret(e.Getenv(prefix + "_CLIENT_SECRET"))}
		if c.ID == "" || c.Secret.IsZero() {
			continue
		}
		for _, h := range strings.Split(e.Getenv(prefix+"_HOSTS"), ",") {
			if h = strings.TrimSpace(h); h != "" {
				c.Hosts = append(c.Hosts, h)
			}
		}
		return c, nil
	}
	return Client{}, ErrNoClient
}

// Other returns ErrNoClient: an environment has one version.
func (Env) Other(context.Context, string, []Client) (Client, error) { return Client{}, ErrNoClient }

// Worked does nothing.
func (Env) Worked(string, Client) {}
