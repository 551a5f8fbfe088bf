package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/integrations"
)

// The variables of connect broker. Those that the Lambda functions know too have the same
// names and meanings there, but for an empty list of services.
const (
	envPublicURL     = "CONNECT_PUBLIC_URL"
	envReturnOrigins = "CONNECT_RETURN_ORIGINS"
	envServices      = "CONNECT_SERVICES"
	envStateKeys     = "CONNECT_STATE_KEYS"
	envWrapKeys      = "CONNECT_WRAPPING_KEYS"
	envInstanceKeys  = "CONNECT_INSTANCE_KEYS"
	envRefused       = "CONNECT_REFUSED"
	envRate          = "CONNECT_INSTANCE_RATE"
	envApps          = "CONNECT_APPS"
	envWider         = "CONNECT_ALLOW_WIDER_REVOKE"
)

var brokerVars = []struct{ name, about string }{
	{envPublicURL, "needed: the broker's own origin, such as https://connect.example"},
	{envStateKeys, "needed: keys that seal flows; the first seals, all open"},
	{envWrapKeys, "needed: keys that wrap refresh tokens; the first wraps, all unwrap. Keep the old\nones: a connection whose key is gone must be made anew"},
	{envInstanceKeys, "public keys that check instances' tokens; none: no refresh is answered"},
	{envReturnOrigins, "origins that may receive a connection; none: any https origin, each\nnamed on the consent page"},
	{envServices, "service ids that are offered; none: every service that has a client"},
	{envRefused, "instances (iss) and token ids (jti) that are turned away"},
	{envRate, "calls a second that one instance may make; none: 10, -1: no limit"},
	{envApps, "service=name: the public names of apps, which links to a provider's pages need;\nLCHAT_OAUTH_<ID>_APP says the same of one service"},
	{envWider, "true: a revocation may end more than the one token at the provider"},
	{"LCHAT_OAUTH_<ID>_CLIENT_ID", "the OAuth client of a service, such as LCHAT_OAUTH_GITHUB_CLIENT_ID; with\n--secrets-file none of these is read"},
	{"LCHAT_OAUTH_<ID>_CLIENT_SECRET", "its secret; none for a public client"},
	{"LCHAT_OAUTH_<ID>_HOSTS", "hosts that the secret may go to, where they are not the registry's"},
}

func brokerVarsHelp() string {
	var b strings.Builder
	for _, v := range brokerVars {
		fmt.Fprintf(&b, "  %s\n      %s\n", v.name, strings.ReplaceAll(v.about, "\n", "\n      "))
	}
	return b.String()
}

// secretsForm is what --secrets-file names.
const secretsForm = `  {"github": {"client_id": "…", "client_secret": "…"},
   "linear": {"client_id": "…", "client_secret": "…"}}`

// An envReader reads variables and collects what is wrong with them: an operator sees all of
// it at once. No message repeats a value.
type envReader struct {
	get    func(string) string
	faults []error
}

func (r *envReader) fault(name, format string, args ...any) {
	r.faults = append(r.faults, fmt.Errorf("%s %s", name, fmt.Sprintf(format, args...)))
}

func (r *envReader) list(name string) []string {
	var list []string
	for i, s := range strings.Split(r.get(name), ",") {
		switch s = strings.TrimSpace(s); {
		case s == "":
		case slices.Contains(list, s):
			r.fault(name, "holds entry %d twice", i+1)
		default:
			list = append(list, s)
		}
	}
	return list
}

// entries reads a list with parse.
func entries[T any](r *envReader, name string, needed bool, parse func(string) (T, error)) []T {
	var all []T
	list := r.list(name)
	if needed && len(list) == 0 {
		r.fault(name, `is not set; "connect broker token keys" makes one`)
	}
	for i, s := range list {
		v, err := parse(s)
		if err != nil {
			r.fault(name, "entry %d: %v", i+1, err)
			continue
		}
		all = append(all, v)
	}
	return all
}

// brokerConfig makes the broker's configuration of its environment.
func brokerConfig(getenv func(string) string, secretsFile string) (broker.Config, error) {
	var none broker.Config
	reg, err := integrations.Default()
	if err != nil {
		return none, err
	}
	r := &envReader{get: getenv}
	hints := []string{"connect broker --help tells the variables"}
	cfg := broker.Config{
		Registry:      reg,
		PublicURL:     strings.TrimSpace(getenv(envPublicURL)),
		ReturnOrigins: r.list(envReturnOrigins),
		Services:      r.list(envServices),
		StateKeys:     entries(r, envStateKeys, true, broker.ParseKey),
		WrapKeys:      entries(r, envWrapKeys, true, broker.ParseKey),
		InstanceKeys:  entries(r, envInstanceKeys, false, broker.ParseInstanceKey),
		Refused:       r.list(envRefused),
		Apps:          make(map[string]string),
	}
	if cfg.PublicURL == "" {
		r.fault(envPublicURL, "is not set: the broker's own origin, such as https://connect.example")
	}
	for i, id := range cfg.Services {
		if m := reg.Get(id); m == nil || m.Auth.OAuth == nil {
			r.fault(envServices, "entry %d is no service of the registry that has OAuth", i+1)
		}
	}
	if s := strings.TrimSpace(getenv(envRate)); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil || n == 0 || n < -1 {
			r.fault(envRate, "is a number above zero, or -1")
		}
		cfg.InstanceRate = n
	}
	switch strings.TrimSpace(getenv(envWider)) {
	case "", "false":
	case "true":
		cfg.AllowWiderRevoke = true
	default:
		r.fault(envWider, "is neither true nor false")
	}
	for _, m := range reg.All() {
		if app := strings.TrimSpace(getenv("LCHAT_OAUTH_" + strings.ToUpper(strings.ReplaceAll(m.ID, "-", "_")) + "_APP")); app != "" {
			cfg.Apps[m.ID] = app
		}
	}
	for i, s := range r.list(envApps) {
		id, app, ok := strings.Cut(s, "=")
		if !ok || app == "" || reg.Get(id) == nil {
			r.fault(envApps, "entry %d is not SERVICE=NAME", i+1)
			continue
		}
		cfg.Apps[id] = app
	}
	cfg.Secrets = broker.Env{Getenv: getenv}
	if secretsFile != "" {
		file := broker.File{Path: secretsFile}
		if err := file.Check(); err != nil {
			r.fault("--secrets-file:", "%v", err)
			hints = append(hints, "the file is such as "+strings.Join(strings.Fields(secretsForm), " "))
		}
		cfg.Secrets = &broker.Cache{Store: file}
	}
	if len(r.faults) > 0 {
		return none, usagef(strings.Join(hints, "; "), "the configuration is not complete:\n  %w", joinLines(r.faults))
	}
	return cfg, nil
}

// sayOffered tells an operator what can be connected, and what is missing.
func sayOffered(ctx context.Context, c *cli, cfg broker.Config, b *broker.Broker) {
	if s, ok := cfg.Secrets.(*broker.Cache); ok {
		sayUnknown(c, cfg, s.Store)
	}
	offered := 0
	for _, m := range cfg.Registry.All() {
		if m.Auth.OAuth == nil || cfg.Services != nil && !slices.Contains(cfg.Services, m.ID) {
			continue
		}
		_, missing := cfg.Secrets.Client(ctx, m.ID)
		switch {
		case b.Offered(ctx, m.ID) == nil:
			offered++
			c.note("offered: %s; register %s/oauth/%s/callback at the provider", m.ID, cfg.PublicURL, m.ID)
		case missing == nil:
			c.note("warning: the client of %s is not complete, or may not go to a host of the service's, so it is not offered; connect broker doctor %s says more", m.ID, m.ID)
		case cfg.Services != nil:
			c.note("warning: %s is listed and has no OAuth client, so it is not offered", m.ID)
		}
	}
	if offered == 0 {
		c.note("warning: no service has an OAuth client, so nothing can be connected")
	}
	if len(cfg.InstanceKeys) == 0 {
		c.note("warning: %s is empty, so no refresh or revocation is answered", envInstanceKeys)
	}
}

// sayUnknown warns of what stands in the secrets file and is no service's.
func sayUnknown(c *cli, cfg broker.Config, store broker.Store) {
	file, ok := store.(broker.File)
	if !ok {
		return
	}
	ids, err := file.Services()
	if err != nil {
		return // it was read a moment ago; the next refresh says so
	}
	for _, id := range ids {
		if m := cfg.Registry.Get(id); m == nil || m.Auth.OAuth == nil {
			c.note("warning: an entry of --secrets-file names no service of the registry with OAuth%s, and is not used; connect services lists the ids", quoted(id))
		}
	}
}

func joinLines(faults []error) error {
	var lines []string
	for _, f := range faults {
		lines = append(lines, f.Error())
	}
	return errors.New(strings.Join(lines, "\n  "))
}
