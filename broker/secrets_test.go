package broker_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

func TestEnv(t *testing.T) {
	env := map[string]string{
		"LCHAT_OAUTH_GITHUB_CLIENT_ID": "gid", "LCHAT_OAUTH_GITHUB_CLIENT_SECRET": "gs", "LCHAT_OAUTH_GITHUB_HOSTS": " github.com , api.github.com,",
		"LCHAT_DNSIMPLE_CLIENT_ID": "did", "LCHAT_DNSIMPLE_CLIENT_SECRET": "ds",
		"LCHAT_OAUTH_GOOGLE_DRIVE_CLIENT_ID": "pub",
		"LCHAT_STRIPE_CLIENT_ID":             "x", "LCHAT_STRIPE_CLIENT_SECRET": "y",
		"LCHAT_OAUTH_LINEAR_CLIENT_SECRET": "alone",
	}
	e := broker.Env{Getenv: func(n string) string { return env[n] }}
	for service, want := range map[string]string{"github": "gid gs [github.com api.github.com]", "dnsimple": "did ds []", "google-drive": "pub  []", "stripe": "", "linear": "", "none": ""} {
		c, err := e.Client(context.Background(), service)
		got := ""
		if err == nil {
			got = fmt.Sprintf("%s %s %v", c.ID, c.Secret.Reveal(), c.Hosts)
		} else if !errors.Is(err, broker.ErrNoClient) {
			t.Errorf("%s: %v", service, err)
		}
		if got != want {
			t.Errorf("%s: %q, want %q", service, got, want)
		}
	}
	env["LCHAT_OAUTH_DNSIMPLE_CLIENT_ID"], env["LCHAT_OAUTH_DNSIMPLE_CLIENT_SECRET"] = "new", "ns"
	if c, _ := e.Client(context.Background(), "dnsimple"); c.ID != "new" {
		t.Errorf("the older names win: %q", c.ID)
	}
	if _, err := e.Other(context.Background(), "github", nil); !errors.Is(err, broker.ErrNoClient) {
		t.Errorf("another version: %v", err)
	}
}

func TestFile(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "secrets.json")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	f := broker.File{Path: path}
	if _, err := f.Version(ctx, "acme", false); err == nil || errors.Is(err, broker.ErrNoClient) || strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	write(`{"acme":{"client_id":"id","client_secret":"new","hosts":["auth.acme.example"],"previous":{"client_id":"id","client_secret":"old"}},"public":{"client_id":"p"}}`+"\n", 0o600)
	if err := f.Check(); err != nil {
		t.Fatal(err)
	}
	if c, err := f.Version(ctx, "acme", false); err != nil || c.Secret.Reveal() != "new" || len(c.Hosts) != 1 {
		t.Errorf("present: %+v %v", c, err)
	}
	if c, err := f.Version(ctx, "acme", true); err != nil || c.Secret.Reveal() != "old" || len(c.Hosts) != 1 {
		t.Errorf("the one before: %+v %v", c, err)
	}
	if c, err := f.Version(ctx, "public", false); err != nil || !c.Secret.IsZero() {
		t.Errorf("a public client: %+v %v", c, err)
	}
	for _, q := range []struct {
		service  string
		previous bool
	}{{"other", false}, {"public", true}} {
		if _, err := f.Version(ctx, q.service, q.previous); !errors.Is(err, broker.ErrNoClient) {
			t.Errorf("%v: %v", q, err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o644, 0o660, 0o700 | 0o007} {
		write(`{}`, mode)
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %o: %v", mode, err)
		}
	}
	const marker = "zq9marker"
	for _, text := range []string{"", marker, `[]`, `{"acme":"` + marker + `"}`, `{"acme":{"client_id":"` + marker + `","x":1}}`, `{"acme":{"client_id":"a"},"acme":{"client_id":"` + marker + `"}}`,
		`{"acme":{"client_secret":"` + marker + `"}}`, `{"acme":{"client_id":"` + marker + `","previous":{"client_secret":"x"}}}`, `{"acme":{"client_id":"` + marker + `"}}}`,
		`{"acme":{"client_id":"` + marker + `","hosts":["x.example/y"]}}`, `{"acme":{"client_id":"` + marker + `","hosts":["x.example:443"]}}`, `{"acme":{"client_id":"` + marker + `","hosts":["u@x.example"]}}`,
		`{"acme":{"client_id":"` + marker + `","hosts":["X.example"]}}`, `{"acme":{"client_id":"` + marker + ` "}}`} {
		write(text, 0o600)
		if err := f.Check(); err == nil || strings.Contains(err.Error(), marker) || strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := (broker.File{Path: filepath.Dir(path)}).Check(); err == nil {
		t.Error("a folder is read")
	}

	// Turned on the disk, it needs no restart.
	write(`{"acme":{"client_id":"id","client_secret":"old","hosts":["auth.acme.example"]}}`, 0o600)
	valid := "old"
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.Secrets = &broker.Cache{Store: f, Now: c.Now} }})
	s.Upstream.SetAnswer(knows(func() string { return valid }))
	for i := range 2 {
		if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" {
			t.Errorf("turn %d: %s", i, got)
		}
		write(`{"acme":{"client_id":"id","client_secret":"new","hosts":["auth.acme.example"]}}`, 0o600)
		valid = "new"
	}
	// Taken away for a moment, while it is written anew: what is known is served.
	os.Remove(path)
	s.Clock.Advance(6 * time.Minute)
	if got := redeem(t, s, "acme", live(s, "acme")).outcome(); got != "ok" {
		t.Errorf("no file for a moment: %s", got)
	}
}

// TestSecretsPrintNothing: however a client is printed, its secret is not.
func TestSecretsPrintNothing(t *testing.T) {
	c := client("id", brokertest.Sentinel)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		if got := fmt.Sprintf(verb, c) + fmt.Sprintf(verb, &c) + fmt.Sprintf(verb, []broker.Client{c}); found(got, brokertest.Sentinel) != "" {
			t.Errorf("%s prints it", verb)
		}
	}
}

// turning is a source of keys that a test turns.
type turning struct {
	list  []broker.Key
	err   error
	asked int
}

func (s *turning) Keys(context.Context) ([]broker.Key, error) {
	s.asked++
	return s.list, s.err
}

// TestKeySource: keys that come from a store are read at the first use, are found again where
// another process sealed with newer ones, and go on being used while the store does not answer.
func TestKeySource(t *testing.T) {
	one, two := brokertest.NewKey("k1"), brokertest.NewKey("k2")
	src := &turning{err: errors.New("no")}
	state := &turning{list: []broker.Key{one}}
	s := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) {
		c.WrapKeys, c.WrapKeySource = nil, src
		c.StateKeys, c.StateKeySource = nil, state
	}})
	if src.asked != 0 || state.asked != 0 {
		t.Errorf("%d and %d questions at start", src.asked, state.asked)
	}
	other := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.WrapKeys = []broker.Key{two, one} }})
	newer := other.Broker.Wrap("acme", brokertest.Instance, s.Upstream.NewRefresh(""))
	older := func() string {
		old := brokertest.New(t, brokertest.Options{Config: func(c *broker.Config) { c.WrapKeys = []broker.Key{one} }})
		return old.Broker.Wrap("acme", brokertest.Instance, s.Upstream.NewRefresh(""))
	}
	if got := redeem(t, s, "acme", older()); got.Class == broker.Dead || got.Answer != nil || s.Upstream.Secret() != 0 {
		t.Errorf("a store that does not answer: %s, %d requests", got.outcome(), s.Upstream.Secret())
	}
	if out := s.Connect(t, brokertest.Ask{Service: "acme"}); out.Error != "provider" || s.Upstream.Secret() != 0 {
		t.Errorf("an exchange whose pair could not be wrapped: %q, %d requests", out.Error, s.Upstream.Secret())
	}
	src.err, src.list = nil, []broker.Key{one}
	if got := redeem(t, s, "acme", older()).outcome(); got != "ok" {
		t.Errorf("the store answers: %s", got)
	}
	n := src.asked
	for range 5 {
		redeem(t, s, "acme", older())
	}
	if src.asked != n {
		t.Errorf("%d questions for five calls", src.asked-n)
	}
	// Another process seals with a key that is newer than what is known here.
	src.list = []broker.Key{two, one}
	s.Clock.Advance(10 * time.Second)
	r := redeem(t, s, "acme", newer)
	if r.outcome() != "ok" || !strings.HasPrefix(r.Answer.Refresh.Reveal(), "rt1.k2.") {
		t.Errorf("a newer key: %s", r.outcome())
	}
	// One that nobody has is looked for now and then only.
	n = src.asked
	for range 5 {
		if got := redeem(t, s, "acme", strings.Replace(newer, "rt1.k2.", "rt1.k9.", 1)).outcome(); got != "misconfigured:unknown_wrapping_key" {
			t.Errorf("a key that nobody has: %s", got)
		}
	}
	if src.asked > n+1 {
		t.Errorf("%d questions for a key that nobody has", src.asked-n)
	}
	// The store fails, or what it says is no key: what is known goes on.
	for _, list := range [][]broker.Key{nil, {{ID: "k1"}}, {one, one}} {
		src.err, src.list = nil, list
		s.Clock.Advance(6 * time.Minute)
		if got := redeem(t, s, "acme", older()).outcome(); got != "ok" {
			t.Errorf("a store that says %v: %s", list, got)
		}
	}
	src.err = errors.New("no")
	s.Clock.Advance(6 * time.Minute)
	if got := redeem(t, s, "acme", older()).outcome(); got != "ok" {
		t.Errorf("a store that fails later: %s", got)
	}
	cfg := s.Config
	cfg.WrapKeys = []broker.Key{one}
	if _, err := broker.New(cfg); err == nil {
		t.Error("keys and a source of keys are taken together")
	}
}
