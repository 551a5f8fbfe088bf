package broker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

// A Client is an OAuth client as its operator registered it at a provider.
type Client struct {
	ID     string
	Secret integrations.Secret // none for a public client
	// Hosts are where the secret may go; empty means the hosts of the built-in registry.
	Hosts []string
}

// same says whether two are one to a provider.
func (c Client) same(d Client) bool {
	return c.ID == d.ID && c.Secret.Reveal() == d.Secret.Reveal()
}

// BasicDiffers says whether id or secret read differently with client_auth basic, which encodes
// them first (RFC 6749, section 2.3.1), and basic_raw: where a provider refuses such a client,
// that is the first thing to look at.
func (c Client) BasicDiffers() bool {
	return url.QueryEscape(c.ID) != c.ID || url.QueryEscape(c.Secret.Reveal()) != c.Secret.Reveal()
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
	prefixes := []string{"LCHAT_OAUTH_" + id}
	if id == "DNSIMPLE" { // from before there were services
		prefixes = append(prefixes, "LCHAT_"+id)
	}
	for _, prefix := range prefixes {
		c := Client{ID: e.Getenv(prefix + "_CLIENT_ID"), Secret: integrations.NewSecret(e.Getenv(prefix + "_CLIENT_SECRET"))}
		if c.ID == "" {
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

// ParseClient reads a client as its operator writes it: {"client_id", "client_secret"?,
// "hosts"?}, strictly. The error never holds any of it.
func ParseClient(data []byte) (Client, error) {
	var v clientJSON
	if err := unmarshalStrict(data, &v); err != nil {
		return Client{}, err
	}
	return v.client()
}

type clientJSON struct {
	ID     string   `json:"client_id"`
	Secret string   `json:"client_secret"`
	Hosts  []string `json:"hosts"`
}

func (v clientJSON) client() (Client, error) {
	if v.ID == "" {
		return Client{}, errors.New("an OAuth client needs a client_id")
	}
	for _, s := range append([]string{v.ID, v.Secret}, v.Hosts...) {
		if strings.TrimSpace(s) != s || strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f }) {
			return Client{}, errors.New("an OAuth client holds a space at an end, or a control character")
		}
	}
	for _, h := range v.Hosts {
		if u, err := url.Parse("https://" + h); err != nil || h == "" || u.Hostname() != h || strings.ToLower(h) != h {
			return Client{}, errors.New("hosts are plain host names, such as api.example.com")
		}
	}
	return Client{ID: v.ID, Secret: integrations.NewSecret(v.Secret), Hosts: v.Hosts}, nil
}

// unmarshalStrict reads JSON with no unknown or repeated name. Its error says where, and
// nothing of what stands there.
func unmarshalStrict(data []byte, v any) error {
	err := json.Unmarshal(data, v, json.RejectUnknownMembers(true))
	var sem *json.SemanticError
	var syn *jsontext.SyntacticError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &sem):
		return fmt.Errorf("a name is not known, or a value not of its type, at byte %d", sem.ByteOffset)
	case errors.As(err, &syn):
		return fmt.Errorf("this is not JSON, or a name stands twice, at byte %d", syn.ByteOffset)
	}
	return errors.New("this is not JSON")
}

// A Store keeps the versions of OAuth clients.
type Store interface {
	// Version returns the present version of a service's client, or the one before it.
	// ErrNoClient says that there is none; any other error says that the store did not tell.
	Version(ctx context.Context, service string, previous bool) (Client, error)
}

// A Cache is a SecretSource over a Store. It asks seldom, several callers at once share one
// question, and what it knows goes on being served while the store does not answer. Its
// fields are set before it is used.
type Cache struct {
	Store Store
	// Life is how long the store's word is taken; zero means five minutes.
	Life time.Duration
	// Rest is the least time between two questions that had no use: for a client that the
	// provider did not know, or after a failure; zero means three seconds.
	Rest time.Duration
	// Timeout bounds one question; zero means a second and a half.
	Timeout time.Duration
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Logger is told of a store that does not answer, with the service alone; nil: nobody is.
	Logger *slog.Logger

	mu       sync.Mutex
	services map[string]*cached
}

// cached is what is known of one service.
type cached struct {
	mu sync.Mutex // held while the store is asked: whoever comes then waits for that answer

	known    bool // the store has answered
	current  *Client
	previous *Client
	first    *Client // the one to use first
	read     time.Time
	failed   error // of the last question, where it failed
	rest     time.Time
}

func (c *Cache) service(id string) *cached {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.services == nil {
		c.services = make(map[string]*cached)
	}
	s := c.services[id]
	if s == nil {
		s = new(cached)
		c.services[id] = s
	}
	return s
}

func (c *Cache) now() time.Time {
	if c.Now == nil {
		return time.Now()
	}
	return c.Now()
}

func orElse(d, other time.Duration) time.Duration {
	if d > 0 {
		return d
	}
	return other
}

// maxAbsent is how long it is believed that there is no client: an operator who adds one does
// not wait for it.
const maxAbsent = 30 * time.Second

// Client returns the client to use first: the present version, unless only the one before it
// has worked since.
func (c *Cache) Client(ctx context.Context, service string) (Client, error) {
	s := c.service(service)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := c.now()
	life := orElse(c.Life, 5*time.Minute)
	if s.current == nil {
		life = min(life, maxAbsent)
	}
	if (!s.known || now.Sub(s.read) >= life) && !now.Before(s.rest) {
		c.ask(ctx, service, s)
	}
	switch {
	case !s.known:
		return Client{}, s.failed
	case s.current == nil:
		return Client{}, ErrNoClient
	}
	return *s.first, nil
}

// Other returns the present version where it has not failed, asking the store anew for it,
// else the one before.
func (c *Cache) Other(ctx context.Context, service string, failed []Client) (Client, error) {
	s := c.service(service)
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := func(d *Client) bool { return d != nil && !slices.ContainsFunc(failed, d.same) }
	if !fresh(s.current) && !c.now().Before(s.rest) {
		c.ask(ctx, service, s)
		if !fresh(s.current) {
			s.rest = c.now().Add(orElse(c.Rest, 3*time.Second))
			if s.current != nil && !fresh(s.previous) {
				c.askPrevious(ctx, service, s)
			}
		}
	}
	for _, d := range []*Client{s.current, s.previous} {
		if fresh(d) {
			return *d, nil
		}
	}
	return Client{}, ErrNoClient
}

// Worked makes a version the first to be used, until the store holds another.
func (c *Cache) Worked(service string, used Client) {
	s := c.service(service)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range []*Client{s.current, s.previous} {
		if d != nil && d.same(used) {
			s.first = d
			return
		}
	}
}

// ask reads the present version; s.mu is held. It outlives its caller: others wait for it.
func (c *Cache) ask(ctx context.Context, service string, s *cached) {
	cl, err := c.version(ctx, service, false)
	switch {
	case errors.Is(err, ErrNoClient):
		s.known, s.current, s.previous, s.first = true, nil, nil, nil
	case err != nil:
		s.failed, s.rest = err, c.now().Add(orElse(c.Rest, 3*time.Second))
		if c.Logger != nil {
			c.Logger.Error("secret store", "service", service, "known", s.known)
		}
		return
	case s.current == nil:
		s.known, s.current, s.first, s.previous = true, &cl, &cl, nil
	case !s.current.same(cl):
		// A store that has a new version calls the old one the previous from then on.
		s.previous, s.current, s.first = s.current, &cl, &cl
	default:
		*s.current = cl // its hosts may have changed
	}
	s.read, s.failed = c.now(), nil
}

// askPrevious reads the version before; s.mu is held.
func (c *Cache) askPrevious(ctx context.Context, service string, s *cached) {
	cl, err := c.version(ctx, service, true)
	if err != nil || s.previous != nil && s.previous.same(cl) {
		return
	}
	if s.first == s.previous {
		s.first = s.current
	}
	s.previous = &cl
}

func (c *Cache) version(ctx context.Context, service string, previous bool) (Client, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), orElse(c.Timeout, 1500*time.Millisecond))
	defer cancel()
	return c.Store.Version(ctx, service, previous)
}

// A File is a Store over a JSON file that its owner alone reads: {"<service>": {"client_id",
// "client_secret"?, "hosts"?, "previous"?: {"client_id", "client_secret"?}}}. It is read again
// when it is asked, so that a change needs no restart; beneath a [Cache] that is seldom.
type File struct {
	Path string
}

// maxSecrets bounds the file.
const maxSecrets = 1 << 20

// Check reads the whole file, for a start that finds a fault at once.
func (f File) Check() error {
	_, err := f.read()
	return err
}

// Services returns the ids that the file has a client for, in order.
func (f File) Services() ([]string, error) {
	all, err := f.read()
	return slices.Sorted(maps.Keys(all)), err
}

// Version returns what the file holds now.
func (f File) Version(_ context.Context, service string, previous bool) (Client, error) {
	all, err := f.read()
	if err != nil {
		return Client{}, err
	}
	v, ok := all[service]
	switch {
	case !ok, previous && v.Previous == nil:
		return Client{}, ErrNoClient
	case previous:
		c, err := v.Previous.client()
		c.Hosts = v.Hosts
		return c, err
	}
	return v.client()
}

type fileClient struct {
	clientJSON `json:",inline"`
	Previous   *clientJSON `json:"previous"`
}

func (f File) read() (map[string]fileClient, error) {
	file, err := os.Open(f.Path)
	if err != nil {
		return nil, fmt.Errorf("the file of secrets: %w", unpath(err))
	}
	defer file.Close()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("the file of secrets: %w", unpath(err))
	case !info.Mode().IsRegular():
		return nil, errors.New("the file of secrets is not a file")
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("the file of secrets can be read by others (mode %04o); chmod 600 it", info.Mode().Perm())
	}
	data, err := io.ReadAll(io.LimitReader(file, maxSecrets+1))
	if err != nil || len(data) > maxSecrets {
		return nil, errors.New("the file of secrets cannot be read, or is over 1 MiB")
	}
	var all map[string]fileClient
	if err := unmarshalStrict(bytes.TrimSpace(data), &all); err != nil {
		return nil, fmt.Errorf("the file of secrets: %w", err)
	}
	for id, v := range all {
		if _, err := v.client(); err != nil {
			return nil, fmt.Errorf("the file of secrets, %q: %w", id, err)
		}
		if v.Previous != nil {
			if _, err := v.Previous.client(); err != nil {
				return nil, fmt.Errorf("the file of secrets, %q, previous: %w", id, err)
			}
		}
	}
	return all, nil
}

// unpath leaves the path out of an error: the operator knows it, a log need not.
func unpath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
