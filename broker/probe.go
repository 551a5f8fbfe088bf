package broker

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"golang.org/x/oauth2"

	"github.com/elevenmessenger/connect/integrations"
)

// A Standing is what a provider's answer says of an app.
type Standing string

// What a probe finds.
const (
	StandingKnown    Standing = "known"    // the provider took what was looked at
	StandingClient   Standing = "client"   // it does not know the client, or the secret is another
	StandingRedirect Standing = "redirect" // the redirect address is not as registered there
	StandingRefused  Standing = "refused"  // the app may not do this; Code says why
	StandingUnclear  Standing = "unclear"  // it answered, and the answer does not tell
	StandingUnasked  Standing = "unasked"  // it could not be asked
)

// A Probe is what came of asking a provider about an app.
type Probe struct {
	Standing Standing
	Host     string // who was asked
	Status   int    // of the answer; 0 where there was none
	Code     string // the answer's error code, where it is a plain word; may be ""
	HTML     bool   // a page came where data was due
	Cause    error  // why it could not be asked; the network's own words

	// Date is the provider's clock in its answer, zero where it told none; Between is the
	// middle of sending and receiving, by Config.Now.
	Date, Between time.Time
}

// probeCode is a code that no provider ever gave.
const probeCode = "connect-doctor-no-such-code"

// Codes in lower case by what they say of an app, beside RFC 6749's: the names that some
// providers give them. These decide what an operator reads, and nothing else.
var (
	probeRedirectCodes = []string{"redirect_uri_mismatch", "invalid_redirect_uri", "bad_redirect_uri", "mismatch_redirect_uri_auth_code"}
	probeRefusedCodes  = []string{"unauthorized_client", "unsupported_grant_type"}
	probeCodeCodes     = []string{"invalid_grant", "bad_verification_code", "bad_auth_code", "invalid_code", "bad_code"}
)

// Probe asks a service's token endpoint to exchange a code that was never given, once and
// exactly as a sign-in would: a provider looks at the client first. Nothing is sent where no
// sign-in could begin; the error is a *RefreshError then.
func (b *Broker) Probe(ctx context.Context, service string) (*Probe, error) {
	m, c, verifier, err := b.probed(ctx, service)
	if err != nil {
		return nil, err
	}
	o := m.Auth.OAuth
	g := b.codeGrant(m, probeCode, verifier, random(16))
	req, err := tokenRequest(o, c, g)
	if err != nil {
		return nil, &RefreshError{Class: Misconfigured, Code: "request"}
	}
	p, r := b.probe(ctx, req)
	if r == nil {
		return p, nil
	}
	top := readObject(r)
	code, msg := "", ""
	if top != nil {
		code, msg = errorCode(o, top)
		p.Code = plainCode(code, c)
	}
	lower := strings.ToLower(code)
	class, _ := classify(o, r.status, code, msg)
	switch {
	case passing(r.status), top == nil:
		p.Standing = StandingUnasked
	case slices.Contains(probeRedirectCodes, lower):
		p.Standing = StandingRedirect
	case slices.Contains(clientCodes, lower):
		p.Standing = StandingClient
	case class == Misconfigured || slices.Contains(probeRefusedCodes, lower):
		p.Standing = StandingRefused
	case slices.Contains(probeCodeCodes, lower), class == Dead:
		p.Standing = StandingKnown
	case r.status == http.StatusUnauthorized:
		p.Standing = StandingClient // RFC 6749, section 5.2: what 401 is for
	}
	return p, nil
}

// probed returns what a sign-in at a service would begin with.
func (b *Broker) probed(ctx context.Context, service string) (m *integrations.Manifest, c Client, verifier string, err error) {
	if m = b.service(service); m == nil {
		return nil, c, "", errNotOffered
	}
	if c, err = b.offered(ctx, m); err == nil && m.Auth.OAuth.PKCE.Mode != "off" {
		verifier = oauth2.GenerateVerifier()
	}
	return m, c, verifier, err
}

// ProbeAuthorize asks for the provider's own page, as the browser of a member who is not
// signed in there: many providers look at the redirect address here and nowhere else, and
// some only after a sign-in. No secret is sent.
func (b *Broker) ProbeAuthorize(ctx context.Context, service string) (*Probe, error) {
	m, c, verifier, err := b.probed(ctx, service)
	if err != nil {
		return nil, err
	}
	o := m.Auth.OAuth
	back := b.RedirectURI(m.ID)
	req, err := http.NewRequest(http.MethodGet, authorizeURL(o, c.ID, back, o.Scopes, random(16), verifier), nil)
	if err != nil || req.URL.Scheme != "https" {
		return nil, &RefreshError{Class: Misconfigured, Code: "request"}
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "connect-broker")
	p, r := b.probe(ctx, req)
	if r == nil {
		return p, nil
	}
	to, err := url.Parse(r.header.Get("Location"))
	switch {
	case r.status >= 500:
		p.Standing = StandingUnasked
	case r.status >= 400:
		if refusesRedirect(r.body) {
			p.Standing = StandingRedirect
		} else if refusesClient(r.body) {
			p.Standing = StandingClient
		}
	case r.status >= 300 && err == nil && strings.HasPrefix(to.String(), back+"?"):
		// A provider sends nobody to an address that is not registered (RFC 6749, section
		// 3.1.2.4), with whatever error.
		p.Standing, p.Code = StandingKnown, plainCode(to.Query().Get("error"), c)
	}
	return p, nil
}

// refusesRedirect says whether a provider's error page speaks of the redirect address, and
// does not only repeat the address that it was asked at.
func refusesRedirect(page []byte) bool {
	text := strings.NewReplacer("redirect uri", "redirect_uri", "redirect url", "redirect_uri", "redirect_url", "redirect_uri", "redirect-uri", "redirect_uri",
		"redirecturi", "redirect_uri").Replace(strings.ToLower(string(page)))
	if strings.Contains(text, "invalid_redirect_uri") || strings.Contains(text, "redirect_uri_mismatch") {
		return true
	}
	for {
		_, rest, ok := strings.Cut(text, "redirect_uri")
		if !ok {
			return false
		}
		if said := strings.TrimPrefix(rest, "s"); len(said) > 1 && said[0] == ' ' && 'a' <= said[1] && said[1] <= 'z' {
			return true
		}
		text = rest
	}
}

// refusesClient says the same of the client.
func refusesClient(page []byte) bool {
	text := strings.ToLower(string(page))
	return strings.Contains(text, "invalid_client") && !strings.Contains(text, "invalid_client_metadata") || strings.Contains(text, "unknown client")
}

// probe sends one request, once, and begins a Probe with what is known of the answer. The
// reply is nil where there was none.
func (b *Broker) probe(ctx context.Context, req *http.Request) (*Probe, *reply) {
	ctx, cancel := b.upstream.within(ctx)
	defer cancel()
	p := &Probe{Standing: StandingUnclear, Host: req.URL.Host}
	sent := b.cfg.Now()
	r, _, err := b.upstream.once(ctx, req)
	p.Between = sent.Add(b.cfg.Now().Sub(sent) / 2)
	if r != nil {
		p.Status, p.HTML = r.status, strings.HasPrefix(strings.TrimSpace(strings.ToLower(r.header.Get("Content-Type"))), "text/html")
		p.Date, _ = http.ParseTime(r.header.Get("Date"))
	}
	if err != nil {
		if ctx.Err() != nil {
			err = context.DeadlineExceeded
		}
		p.Standing, p.Cause = StandingUnasked, err
		return p, nil
	}
	return p, r
}

// plainCode returns a provider's code where it is a word and nothing of the client's.
func plainCode(code string, c Client) string {
	if len(code) < 2 || len(code) > 40 || strings.Trim(strings.ToLower(code), "abcdefghijklmnopqrstuvwxyz_") != "" {
		return ""
	}
	for _, own := range []string{c.ID, c.Secret.Reveal()} {
		if own != "" && (strings.Contains(own, code) || strings.Contains(code, own)) {
			return ""
		}
	}
	return code
}

// Offered says whether a connection to a service can start here: nil, or why not. It is what
// GET /api/oauth/config tells, and what the consent page does.
func (b *Broker) Offered(ctx context.Context, service string) error {
	m := b.service(service)
	if m == nil {
		return errNotOffered
	}
	_, err := b.offered(ctx, m)
	return err
}

// Origin is the canonical form of Config.PublicURL.
func (b *Broker) Origin() string { return b.origin }

// BarredHosts returns the hosts that a manifest would send the client's secret to and that it
// may not go to, in order: neither the operator nor the built-in list names them.
func (c Client) BarredHosts(m *integrations.Manifest) []string { return barredHosts(c, m) }

// Began says whether a cookie of a consent page's answer was sealed by this broker, or one
// with the same state keys.
func (b *Broker) Began(c *http.Cookie) bool {
	handle, ok := strings.CutPrefix(c.Name, flowPrefix)
	if !ok || b.state == nil {
		return false
	}
	_, err := b.unsealFlow(handle, c.Value) // its time is another question
	return err == nil
}

// ExplainToken says whether an instance's token is taken here, and why not, for its signer's
// own eyes: a request is told nothing. No error repeats what stands in the token.
func (b *Broker) ExplainToken(text string) (*Claims, error) { return b.tokens.explain(text) }
