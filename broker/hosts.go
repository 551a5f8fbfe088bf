package broker

import (
	_ "embed"
	"encoding/json"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/elevenmessenger/connect/integrations"
)

// pinnedJSON is the reviewed list of hosts to which a service's client secret may go where
// its operator named none. It is a file of its own, so that a changed manifest alone sends a
// secret nowhere else: a test holds the two together, and -update writes it for a reviewer.
//
//go:embed hosts.json
var pinnedJSON []byte

var pinned = sync.OnceValue(func() map[string][]string {
	var list map[string][]string
	if json.Unmarshal(pinnedJSON, &list) != nil {
		return nil
	}
	return list
})

// allowedHosts returns the hosts that a service's client secret may go to: what its operator
// wrote beside it, else the pinned ones.
func allowedHosts(c Client, service string) []string {
	if len(c.Hosts) > 0 {
		return c.Hosts
	}
	return pinned()[service]
}

// barredHosts returns the hosts that a manifest would send a client's secret to, and that it
// may not go to.
func barredHosts(c Client, m *integrations.Manifest) []string {
	allowed := allowedHosts(c, m.ID)
	hosts := slices.DeleteFunc(secretHosts(m.Auth.OAuth), func(h string) bool { return slices.Contains(allowed, h) })
	slices.Sort(hosts)
	return slices.Compact(hosts)
}

// secretHosts returns the hosts that a manifest would send the client secret to.
func secretHosts(o *integrations.OAuth) []string {
	urls := []string{o.TokenURL, o.RefreshURL}
	if o.Revoke != nil {
		urls = append(urls, o.Revoke.URL)
	}
	var hosts []string
	for _, s := range urls {
		if u, err := url.Parse(strings.ReplaceAll(strings.ReplaceAll(s, "{", ""), "}", "")); err == nil && u.Host != "" {
			hosts = append(hosts, u.Host)
		}
	}
	return hosts
}
