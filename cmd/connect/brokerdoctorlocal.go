package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/integrations"
)

// A subject is the broker that is looked at, as this environment makes it.
type subject struct {
	cfg broker.Config
	b   *broker.Broker

	url                bool // CONNECT_PUBLIC_URL is one
	stateKeys, wrapKey bool // they are the operator's own, not stand-ins
	apps               bool // the clients can be read
}

// faultName is the variable or flag at the head of a configuration's fault.
var faultName = regexp.MustCompile(`^(--)?[A-Za-z_-]+`)

// configure makes a broker of the environment, as connect broker does. A variable that is
// wrong is a finding, and something stands in for it, so that all else can be looked at.
func (d *doctor) configure(ctx context.Context, edit func(*broker.Config)) (*subject, error) {
	s := &subject{url: true, stateKeys: true, wrapKey: true, apps: true}
	in := make(map[string]string) // variable → what stands in for it
	get := func(name string) string {
		if v, ok := in[name]; ok {
			return v
		}
		return d.getenv(name)
	}
	file := d.secrets
	standIn := func(name string) bool {
		if _, twice := in[name]; twice {
			return false
		}
		in[name] = ""
		switch name {
		case envPublicURL:
			in[name], s.url = "https://connect.invalid", false
		case envStateKeys:
			in[name], s.stateKeys = throwawayKey(), false
		case envWrapKeys:
			in[name], s.wrapKey = throwawayKey(), false
		case "--secrets-file":
			file, s.apps = "", false
		}
		return true
	}
	if d.elsewhere {
		for _, name := range []string{envStateKeys, envWrapKeys} {
			if strings.TrimSpace(d.getenv(name)) == "" {
				standIn(name)
			}
		}
	}
	for {
		cfg, err := brokerConfig(get, file)
		var faults []string
		switch _, lines, many := strings.Cut(errorText(err), "\n  "); {
		case err == nil:
			edit(&cfg)
			if s.b, err = broker.New(cfg); err == nil {
				s.cfg = cfg
				return s, nil
			}
			faults = []string{brokerWords(err)}
		case many: // one a line
			faults = strings.Split(lines, "\n  ")
		default:
			return nil, err
		}
		for _, f := range faults {
			name := faultName.FindString(f)
			if !standIn(name) {
				return nil, usagef("connect broker --help tells the variables", "%s", f)
			}
			text, said, _ := strings.Cut(f, "; ") // it may say what to do itself
			mend := configMend[name]
			if mend == "" {
				mend = said
			}
			if mend == "" {
				mend = `write it as "connect broker --help" and docs/operating.md have it`
			}
			d.fault(aboutBroker, "configuration", mend, "%s", text)
		}
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// configMend says what to do about a variable that is wrong, where its fault does not.
var configMend = map[string]string{
	envPublicURL:     "set it to the broker's own origin, such as https://connect.example: https, a public name, no path and no slash at the end",
	envStateKeys:     `"connect broker token keys" makes one; the broker does not start without`,
	envWrapKeys:      `"connect broker token keys" makes one; an old one is in your backup, and without it everyone reconnects`,
	envInstanceKeys:  `"connect broker token keys --instance" prints the line with the public half`,
	envReturnOrigins: "write https origins with commas between, such as https://chat.example, or leave it out",
	envServices:      `"connect services" lists the ids`,
	envApps:          "write it such as github=my-app",
	envRate:          "leave it out for 10 a second",
	envWider:         "write true or false, or leave it out",
}

func throwawayKey() string {
	var k [32]byte
	rand.Read(k[:])
	return "doctor:" + base64.RawURLEncoding.EncodeToString(k[:])
}

// keys looks at everything that is no service's.
func (d *doctor) keys(s *subject) {
	if s.url {
		if o := s.b.Origin(); o != s.cfg.PublicURL {
			d.warn(aboutBroker, "url", "write it so: tokens and redirect addresses carry this form",
				"%s is written otherwise than its one form, %s", envPublicURL, o)
		}
	}
	if s.stateKeys {
		d.list("state-keys", "state", s.cfg.StateKeys, "seals sign-ins, and each opens")
	} else if d.elsewhere {
		d.note(aboutBroker, "state-keys", "state keys are not in this environment and were not looked at")
	}
	if s.wrapKey {
		d.list("wrapping-keys", "wrapping", s.cfg.WrapKeys, "wraps refresh tokens, and each unwraps")
	} else if d.elsewhere {
		d.note(aboutBroker, "wrapping-keys", "wrapping keys are not in this environment and were not looked at")
	}
	if s.stateKeys && s.wrapKey {
		for _, k := range s.cfg.StateKeys {
			for _, w := range s.cfg.WrapKeys {
				if k.Secret == w.Secret {
					d.fault(aboutBroker, "one-key", `put a state key of its own in its place ("connect broker token keys" makes one); sign-ins under way begin again, connections live on`,
						"the state key %q is the wrapping key %q: one secret has two uses", k.ID, w.ID)
				}
			}
		}
	}
	switch n := len(s.cfg.InstanceKeys); {
	case n > 0:
		var ids []string
		for _, k := range s.cfg.InstanceKeys {
			ids = append(ids, k.ID)
		}
		d.ok(aboutBroker, "instance-keys", "%s: %s", counted(n, "instance key"), strings.Join(ids, ", "))
	case d.elsewhere:
		d.note(aboutBroker, "instance-keys", "instance keys are not in this environment and were not looked at")
	default:
		d.warn(aboutBroker, "instance-keys", `"connect broker token keys --instance" makes a pair; the line with its public half goes there`,
			"%s is empty, so no refresh or revocation is answered", envInstanceKeys)
	}
	d.secretsPlace(s)
}

// list says which keys there are. That their names differ, broker.New has held.
func (d *doctor) list(check, kind string, keys []broker.Key, first string) {
	var ids []string
	for i, k := range keys {
		ids = append(ids, k.ID)
		for _, other := range keys[:i] {
			if other.Secret == k.Secret {
				d.warn(aboutBroker, check, "drop one of the two names, unless something sealed still carries it",
					"the %s keys %q and %q are one key", kind, other.ID, k.ID)
			}
		}
	}
	d.ok(aboutBroker, check, "%s: %s; the first, %q, %s", counted(len(keys), kind+" key"), strings.Join(ids, ", "), ids[0], first)
}

func counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// secretsPlace looks at where the clients are kept, and for names that no service has.
func (d *doctor) secretsPlace(s *subject) {
	known := make(map[string]bool)
	for _, m := range s.cfg.Registry.All() {
		known[m.ID] = m.Auth.OAuth != nil
	}
	var set []string // services whose variables are set
	for _, v := range d.environ() {
		name, _, _ := strings.Cut(v, "=")
		rest, ok := strings.CutPrefix(name, "LCHAT_OAUTH_")
		id, client := strings.CutSuffix(rest, "_CLIENT_ID")
		if !ok || !client {
			continue
		}
		id = strings.ToLower(strings.ReplaceAll(id, "_", "-"))
		if d.secrets == "" && !known[id] {
			d.warn(aboutBroker, "unknown", `"connect services" lists the ids`, "%s names no service of the registry with OAuth", name)
		}
		set = append(set, name)
	}
	if d.secrets == "" {
		return
	}
	if len(set) > 0 {
		slices.Sort(set)
		d.warn(aboutBroker, "not-read", "take them out of the environment, or leave --secrets-file out", "with --secrets-file these are not read: %s", strings.Join(set, ", "))
	}
	if !s.apps {
		return
	}
	ids, err := broker.File{Path: d.secrets}.Services()
	if err != nil {
		d.fault(aboutBroker, "secrets-file", "look at the file", "--secrets-file: %v", err)
		return
	}
	d.ok(aboutBroker, "secrets-file", "the secrets file is its owner's alone and holds %s", counted(len(ids), "client"))
	for _, id := range ids {
		if !known[id] {
			d.warn(aboutBroker, "unknown", `"connect services" lists the ids`, "an entry of the secrets file names no service of the registry with OAuth%s", quoted(id))
		}
	}
}

// tokenSoon is how long before its end a token should be renewed.
const tokenSoon = 14 * 24 * time.Hour

// token looks whether an instance's token would be taken.
func (d *doctor) token(s *subject, text string) {
	if !s.url {
		d.note(aboutBroker, "instance-token", "the instance's token was not looked at: it is for an origin, and there is none")
		return
	}
	if d.elsewhere && len(s.cfg.InstanceKeys) == 0 {
		d.note(aboutBroker, "instance-token", "the instance's token was not looked at: give the public half that checks it in %s", envInstanceKeys)
		return
	}
	claims, err := s.b.ExplainToken(text)
	if err != nil {
		d.fault(aboutBroker, "instance-token", `sign one with "connect broker token sign --broker `+s.b.Origin()+` …", and give it to the instance`,
			"the instance's token would be turned away: %v", err)
		return
	}
	if left := claims.ExpiresAt.Sub(s.now()); left < tokenSoon {
		d.warn(aboutBroker, "instance-token", "sign the next one now", "the instance's token is taken, and ends on %s", claims.ExpiresAt.UTC().Format(time.DateOnly))
	} else {
		d.ok(aboutBroker, "instance-token", "the instance's token would be taken, until %s, for %s", claims.ExpiresAt.UTC().Format(time.DateOnly), strings.Join(claims.Origins, " "))
	}
	if claims.Bound != nil {
		d.note(aboutBroker, "instance-token", "it is bound to a key, whose proof (DPoP) every call needs beside it")
	}
	for _, o := range claims.Origins {
		if len(s.cfg.ReturnOrigins) > 0 && !strings.HasPrefix(o, "cli:") && !slices.Contains(s.cfg.ReturnOrigins, o) {
			d.warn(aboutBroker, "instance-token", "add it there, or sign the token for the origin that is there",
				"%s is in the token and not in %s, so its members cannot connect", o, envReturnOrigins)
		}
	}
}

func (s *subject) now() time.Time {
	if s.cfg.Now != nil {
		return s.cfg.Now()
	}
	return time.Now()
}

// app looks at a service's OAuth app, without a network. offered says that a connection could
// start; asked, that there is something to say of the service at all.
func (d *doctor) app(ctx context.Context, s *subject, m *integrations.Manifest) (offered, asked bool) {
	listed := slices.Contains(s.cfg.Services, m.ID)
	if !s.apps {
		return false, listed || d.service != ""
	}
	idName, secretName, hostsName := d.names(m.ID)
	c, err := s.cfg.Secrets.Client(ctx, m.ID)
	switch {
	case errors.Is(err, broker.ErrNoClient):
		switch {
		case d.secrets == "" && d.getenv(secretName) != "":
			d.fault(m.ID, "app", "copy the client id from the provider's page of the app", "%s is not set, and %s is", idName, secretName)
			return false, true
		case listed && !d.elsewhere, d.service != "" && !d.elsewhere:
			d.fault(m.ID, "app", "register an app at the provider and set "+idName+" and "+secretName, "there is no OAuth app, so it is not offered")
			return false, true
		case listed || d.service != "":
			d.note(m.ID, "app", "its app is not in this environment and was not held against the provider")
		}
		return false, listed || d.service != ""
	case err != nil:
		d.fault(m.ID, "app", "mend what the OAuth clients are read from", "its app cannot be read: %v", err)
		return false, true
	}
	o, secret := m.Auth.OAuth, c.Secret.Reveal()
	whole := true
	bad := func(mend, format string, args ...any) {
		d.fault(m.ID, "app", mend, format, args...)
		whole = false
	}
	switch {
	case o.ClientAuth != "none" && secret == "":
		bad("make a client secret on the provider's page of the app", "%s is not set, and the provider asks for a secret", secretName)
	case o.ClientAuth == "none" && secret != "":
		d.warn(m.ID, "app", "take "+secretName+" out", "the client is public: its secret is never sent")
	case secret != "" && secret == c.ID:
		bad("copy each from its own field", "%s and %s are the same", idName, secretName)
	}
	for _, v := range []struct{ name, value string }{{idName, c.ID}, {secretName, secret}} {
		if odd := stray(v.value); odd != "" {
			bad("copy the value again, and nothing around it", "%s %s", v.name, odd)
		}
	}
	if (o.ClientAuth == "basic" || o.ClientAuth == "basic_raw") && c.BasicDiffers() {
		d.warn(m.ID, "basic", "if the provider refuses the app, this is the first thing to look at",
			"the id or secret holds characters that basic and basic_raw write differently; the manifest says %s", o.ClientAuth)
	}
	for _, h := range c.Hosts {
		if u, err := url.Parse("https://" + h); err != nil || u.Hostname() != h || strings.ToLower(h) != h {
			bad("write names such as api.example.com, with commas between", "%s holds what is no plain host name", hostsName)
		}
	}
	if whole {
		parts := "client id and secret"
		if secret == "" {
			parts = "client id (a public client)"
		}
		d.ok(m.ID, "app", "its app is complete: %s", parts)
	}
	if s.cfg.Services != nil && !listed {
		d.warn(m.ID, "app", "add it to "+envServices+", or take its app out", "it has an app, and %s does not list it, so it is not offered", envServices)
		return false, true
	}
	d.hosts(m, c, hostsName)
	return s.b.Offered(ctx, m.ID) == nil, true
}

// hosts looks at where the secret may go.
func (d *doctor) hosts(m *integrations.Manifest, c broker.Client, name string) {
	barred := c.BarredHosts(m)
	switch {
	case len(barred) > 0 && len(c.Hosts) > 0:
		d.fault(m.ID, "hosts", "these replace the built-in list: add the missing one, or take "+name+" out",
			"%s does not name %s, where the manifest sends the secret, so it is not offered", name, strings.Join(barred, ", "))
	case len(barred) > 0:
		d.fault(m.ID, "hosts", "a changed manifest would send the secret there. If that is meant, name all its hosts in "+name,
			"the built-in list does not let the secret go to %s, so it is not offered", strings.Join(barred, ", "))
	case len(c.Hosts) > 0:
		d.warn(m.ID, "hosts", "take "+name+" out, unless this is a server or proxy of your own", "the secret goes to %s by %s, not by the built-in list", strings.Join(c.Hosts, ", "), name)
	default:
		d.ok(m.ID, "hosts", "its secret goes to the provider's own hosts alone")
	}
}

// names returns what an operator calls the parts of a service's client.
func (d *doctor) names(service string) (id, secret, hosts string) {
	if d.secrets != "" {
		of := ` of "` + service + `" in the secrets file`
		return "client_id" + of, "client_secret" + of, "hosts" + of
	}
	upper := strings.ToUpper(strings.ReplaceAll(service, "-", "_"))
	prefix := "LCHAT_OAUTH_" + upper
	// One service has names from before there were several (broker.Env).
	if old := "LCHAT_" + upper; d.getenv(prefix+"_CLIENT_ID") == "" && d.getenv(old+"_CLIENT_ID") != "" {
		prefix = old
	}
	return prefix + "_CLIENT_ID", prefix + "_CLIENT_SECRET", prefix + "_HOSTS"
}

// quoteMarks are at both ends of a value that was copied out of a text.
var quoteMarks = regexp.MustCompile("^[\"'`“”‘’«»].*[\"'`“”‘’«»]$")

// stray says what is odd about a pasted value, "" where nothing is.
func stray(s string) string {
	switch {
	case s == "":
		return ""
	case strings.TrimSpace(s) != s:
		return "begins or ends with a space or a line break"
	case quoteMarks.MatchString(s):
		return "stands in quotes, which would be sent too"
	case strings.HasPrefix(s, "<") && strings.HasSuffix(s, ">"), strings.Contains(s, "…"), strings.Trim(s, "xX*.") == "":
		return "is a placeholder"
	case strings.ContainsFunc(s, func(r rune) bool { return r < 0x21 || r > 0x7e }):
		return "holds a space, a control character or a letter that no provider uses"
	}
	return ""
}
