package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"syscall"
	"time"

	"code.dny.dev/ssrf"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A brokerThere is what answers at CONNECT_PUBLIC_URL.
type brokerThere struct {
	client *http.Client
	origin string
	at     string // the host, for words
}

// A thereAnswer is what came back, read.
type thereAnswer struct {
	status  int
	header  http.Header
	body    []byte
	between time.Time // the middle of sending and receiving
}

// maxPage bounds an answer of whatever stands at CONNECT_PUBLIC_URL.
const maxPage = 1 << 20

// newThere returns a client of the broker's public address. The address is the operator's
// own: it may be private here, behind a split DNS. Like the broker itself it uses no proxy.
func (d *doctor) newThere(s *subject) *brokerThere {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		if to, ok := s.cfg.ConnectTo[addr]; ok {
			addr = to
		}
		var nd net.Dialer
		return nd.DialContext(ctx, network, addr)
	}
	jar, _ := cookiejar.New(nil) // its error is always nil
	origin := s.b.Origin()
	return &brokerThere{origin: origin, at: strings.TrimPrefix(origin, "https://"), client: &http.Client{
		Timeout: d.timeout, Jar: jar,
		Transport:     &http.Transport{DialContext: dial, TLSClientConfig: &tls.Config{RootCAs: s.cfg.RootCAs, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

func (p *brokerThere) ask(ctx context.Context, s *subject, method, path string, form url.Values) (*thereAnswer, error) {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(ctx, method, p.origin+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("User-Agent", "connect-doctor")
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", p.origin) // as the consent page itself
	}
	begin := s.now()
	res, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	between := begin.Add(s.now().Sub(begin) / 2)
	text, err := io.ReadAll(io.LimitReader(res.Body, maxPage))
	if err != nil {
		return nil, err
	}
	return &thereAnswer{status: res.StatusCode, header: res.Header, body: text, between: between}, nil
}

// reach looks whether a broker answers at CONNECT_PUBLIC_URL; nil means that none does.
func (d *doctor) reach(ctx context.Context, s *subject) *brokerThere {
	p := d.newThere(s)
	a, err := p.ask(ctx, s, http.MethodGet, "/healthz", nil)
	if err != nil {
		d.unasked = true
		d.fault(aboutBroker, "reach", "look at its DNS entry, its certificate and what listens on port 443; from inside a network that cannot see its own public address, --connect-to tells the way",
			"%s cannot be reached: %s", p.origin, trouble(err))
		return nil
	}
	if date, err := http.ParseTime(a.header.Get("Date")); err == nil {
		d.clocks = append(d.clocks, clock{p.at, offBy(date, a.between)})
	}
	if a.status == http.StatusOK && strings.TrimSpace(string(a.body)) == "ok" {
		return p
	}
	d.elsewise(aboutBroker, p, "/healthz", a)
	return nil
}

// elsewise says who answers in a broker's place.
func (d *doctor) elsewise(about string, p *brokerThere, path string, a *thereAnswer) {
	at := p.origin + path
	page := strings.HasPrefix(strings.ToLower(a.header.Get("Content-Type")), "text/html")
	var gateway struct {
		Message *string `json:"message"`
	}
	json.Unmarshal(a.body, &gateway)
	switch {
	case a.status >= 300 && a.status < 400:
		to := plainOrigin(a.header.Get("Location"))
		d.fault(about, "reach", "set "+envPublicURL+" to the name that members' browsers end at, or stop the redirect: providers and instances follow none",
			"%s redirects (%d) to %s", at, a.status, to)
	case a.status == http.StatusBadGateway || a.status == http.StatusServiceUnavailable || a.status == http.StatusGatewayTimeout:
		d.fault(about, "reach", "start the broker, or look at the address that the proxy sends to",
			"at %s a proxy answers %d: there is no broker behind it, or it does not listen where the proxy asks", at, a.status)
	case gateway.Message != nil && (a.status == http.StatusForbidden || a.status == http.StatusNotFound):
		d.fault(about, "reach", "a broker has no stage or path before its routes: use the stage $default, or a domain that is mapped to the stage; the output BaseUrl is the right value",
			"at %s a gateway answers %d with a message of its own: the broker is behind a stage prefix, the route is missing, or the name is another API's", at, a.status)
	case page:
		d.fault(about, "reach", "pass every path and query of this name to the broker as they came, or set "+envPublicURL+" to the broker's own name",
			"at %s a web page answers (%d), not a broker: a proxy or another site has this name", at, a.status)
	default:
		d.fault(about, "reach", "look at what has this name, and pass every path and query to the broker as they came",
			"at %s something answers %d that is no broker of this kind", at, a.status)
	}
}

var plainHost = regexp.MustCompile(`^[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?$`)

// plainOrigin returns whose an address is, without what else stands in it.
func plainOrigin(s string) string {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || !plainHost.MatchString(u.Host) {
		return "another place"
	}
	return u.Scheme + "://" + u.Host
}

// offers is what GET /api/oauth/config says.
type offers struct {
	Service    string `json:"service"`
	Configured bool   `json:"configured"`
	App        string `json:"app"`
}

// Parts of the consent page.
var (
	pageToken = regexp.MustCompile(`name="token" value="([A-Za-z0-9_-]{22})"`)
	pageAgree = regexp.MustCompile(`name="agree" value="([^"]{1,400})"`)
)

// atBroker holds what the broker at CONNECT_PUBLIC_URL says and does of a service against
// what this environment would make it do. begins says that a sign-in starts there.
func (d *doctor) atBroker(ctx context.Context, s *subject, p *brokerThere, m *integrations.Manifest, offered bool) (begins bool) {
	path := "/api/oauth/config?service=" + url.QueryEscape(m.ID)
	a, err := p.ask(ctx, s, http.MethodGet, path, nil)
	if err != nil {
		d.notAsked(m.ID, "there", "run it again", "%s did not answer: %s", p.at, trouble(err))
		return false
	}
	var o offers
	switch err := json.Unmarshal(a.body, &o); {
	case a.status == http.StatusNotFound && bytes.Contains(a.body, []byte(`"no_such_service"`)):
		if offered {
			d.fault(m.ID, "there", "deploy the version of this program there", "the broker at %s does not know this service: it is an older or another one", p.at)
		}
		return false
	case a.status != http.StatusOK || err != nil || o.Service != m.ID:
		d.elsewise(m.ID, p, path, a)
		return false
	}
	if !o.Configured && !offered {
		return false
	}
	page, form, err := d.consentPage(ctx, s, p, m)
	switch {
	case err != nil:
		d.notAsked(m.ID, "there", "run it again", "%s did not answer: %s", p.at, trouble(err))
		return false
	case o.Configured && page.status == http.StatusNotFound && bytes.Contains(page.body, []byte("Not offered here")):
		d.fault(m.ID, "there", "look there at the name of the secret, its JSON, and its hosts; the log has \"secret store\" where it cannot be read",
			"%s says that it is configured, and its consent page says \"Not offered here\"", p.at)
		return false
	case page.status == http.StatusServiceUnavailable:
		d.fault(m.ID, "there", "look at the right to read the secret, and at the log", "the consent page at %s cannot read its secret just now", p.at)
		return false
	case o.Configured && page.status == http.StatusTooManyRequests:
		d.notAsked(m.ID, "there", "wait a minute", "the gateway at %s limits how many may sign in at once", p.at)
		return true
	case !o.Configured && offered:
		d.fault(m.ID, "there", "start the broker anew with these variables, or run doctor with those that it has",
			"it is offered by this environment and not by the broker at %s: that is another broker, or one with other variables", p.at)
		return false
	case page.status != http.StatusOK || form == nil:
		d.elsewise(m.ID, p, "/oauth/"+m.ID+"/authorize", page)
		return false
	}
	if page.header.Get("Access-Control-Allow-Origin") != "" {
		d.warn(m.ID, "there", "let the proxy add no Access-Control header", "the consent page at %s comes with CORS headers, which no broker sends", p.at)
	}
	if s.apps && !offered && !d.elsewhere {
		d.fault(m.ID, "there", "start the broker anew with these variables, or run doctor with those that it has",
			"it is offered by the broker at %s and not by this environment: that is another broker, or one with other variables", p.at)
		return true
	}
	if app := s.cfg.Apps[m.ID]; app != o.App && !d.elsewhere {
		d.fault(m.ID, "there", "start the broker anew with these variables", "the app's public name there is not the one that is set here (%s)", envApps)
	}
	return d.begin(ctx, s, p, m, form, offered)
}

// consentPage asks for the page as a program on this machine does, and returns what its form
// would send; nil where it has none.
func (d *doctor) consentPage(ctx context.Context, s *subject, p *brokerThere, m *integrations.Manifest) (*thereAnswer, url.Values, error) {
	key, err := custody.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	text, err := key.Public().MarshalText()
	if err != nil {
		return nil, nil, err
	}
	// Nothing listens there: the flow is never followed to its end.
	form := url.Values{"access": {string(integrations.Read)}, "return_to": {"http://127.0.0.1:1024"}, "key": {string(text)}}
	a, err := p.ask(ctx, s, http.MethodGet, "/oauth/"+m.ID+"/authorize?"+form.Encode(), nil)
	if err != nil {
		return nil, nil, err
	}
	token, agree := pageToken.FindSubmatch(a.body), pageAgree.FindSubmatch(a.body)
	if token == nil || agree == nil {
		return a, nil, nil
	}
	form.Set("token", string(token[1]))
	form.Set("agree", html.UnescapeString(string(agree[1])))
	return a, form, nil
}

// begin presses the page's button and looks at where a member would be sent: the address has
// the client's id and the redirect address that the broker there really uses, and its cookie
// opens with this environment's state keys alone.
func (d *doctor) begin(ctx context.Context, s *subject, p *brokerThere, m *integrations.Manifest, form url.Values, offered bool) bool {
	a, err := p.ask(ctx, s, http.MethodPost, "/oauth/"+m.ID+"/authorize", form)
	if err != nil {
		d.notAsked(m.ID, "there", "run it again", "%s did not answer: %s", p.at, trouble(err))
		return true
	}
	if a.status == http.StatusForbidden {
		d.fault(m.ID, "there", "set "+envPublicURL+" of the broker there to "+p.origin+", and let the proxy pass cookies and Origin as they came",
			"the broker at %s refuses its own consent page: it takes itself for another origin, or a proxy drops cookies or Origin", p.at)
		return true
	}
	to, err := url.Parse(a.header.Get("Location"))
	if a.status != http.StatusSeeOther || err != nil || to.Host == "" {
		d.elsewise(m.ID, p, "/oauth/"+m.ID+"/authorize", a)
		return true
	}
	q := to.Query()
	param := func(name string) string {
		if own, ok := m.Auth.OAuth.ParamNames.Get(name); ok {
			name = own
		}
		return q.Get(name)
	}
	good := true
	if got := param("redirect_uri"); got != s.b.RedirectURI(m.ID) {
		good = false
		d.fault(m.ID, "there", "give both the same "+envPublicURL, "the broker at %s sends members with a redirect address at %s, not at %s", p.at, plainOrigin(got), p.origin)
	}
	if offered {
		c, err := s.cfg.Secrets.Client(ctx, m.ID)
		if err == nil && param("client_id") != c.ID {
			good = false
			d.fault(m.ID, "there", "start the broker anew with this client, or run doctor with the one that it has", "the broker at %s uses another client id than this environment: it is another broker, or was not told of the change", p.at)
		}
	}
	if s.stateKeys && !d.beganHere(s, a) {
		good = false
		d.fault(m.ID, "there", "start the broker anew with these variables, or run doctor with those that it has", "a sign-in at %s is sealed with a state key that is not in %s: that is another broker", p.at, envStateKeys)
	}
	switch {
	case good && offered:
		d.ok(m.ID, "there", "%s offers it, with this client and redirect address", p.at)
	case good:
		d.ok(m.ID, "there", "%s offers it, and begins a sign-in with this redirect address", p.at)
	}
	return true
}

func (d *doctor) beganHere(s *subject, a *thereAnswer) bool {
	for _, c := range (&http.Response{Header: a.header}).Cookies() {
		if c.MaxAge >= 0 && s.b.Began(c) {
			return true
		}
	}
	return false
}

// provider asks the service's provider about the app.
func (d *doctor) provider(ctx context.Context, s *subject, m *integrations.Manifest) {
	p, err := s.b.Probe(ctx, m.ID)
	if err != nil {
		d.notAsked(m.ID, "provider", "", "the provider was not asked: no sign-in could begin here")
		return
	}
	if !p.Date.IsZero() {
		d.clocks = append(d.clocks, clock{p.Host, offBy(p.Date, p.Between)})
	}
	said := p.Code
	if said == "" {
		said = http.StatusText(p.Status)
	}
	redirect := s.b.RedirectURI(m.ID)
	switch p.Standing {
	case broker.StandingKnown:
		d.ok(m.ID, "provider", "%s knows the app: it took id and secret, and refused the made-up code alone (%s)", p.Host, said)
	case broker.StandingClient:
		d.fault(m.ID, "provider", "copy client id and secret from the provider's page of the app again; of two environments, such as test and live, both from one",
			"%s does not take the app: its id or its secret is wrong (%s)", p.Host, said)
		return
	case broker.StandingRedirect:
		d.fault(m.ID, "provider", "register it there, letter for letter", "%s says that the redirect address %s is not as registered (%s)", p.Host, redirect, said)
		return
	case broker.StandingRefused:
		d.fault(m.ID, "provider", "look at the app's settings at the provider, and at what docs/operating.md says of it", "%s knows the app and refuses what it asks (%s)", p.Host, said)
	case broker.StandingUnclear:
		d.warn(m.ID, "provider", "make a sign-in: it tells. A provider that answers 404 often does not know the client id",
			"%s answered %d (%s), which does not tell whether it knows the app", p.Host, p.Status, said)
	case broker.StandingUnasked:
		d.notAsked(m.ID, "provider", "look at this machine's way out, or run it again later", "%s could not be asked: %s", p.Host, probeTrouble(p))
		return
	}
	d.providerPage(ctx, s, m, redirect)
}

// providerPage looks at the redirect address where most providers do, if at all.
func (d *doctor) providerPage(ctx context.Context, s *subject, m *integrations.Manifest, redirect string) {
	p, err := s.b.ProbeAuthorize(ctx, m.ID)
	if err != nil {
		return
	}
	switch p.Standing {
	case broker.StandingRedirect:
		d.fault(m.ID, "redirect", "register "+redirect+" there, letter for letter, without a slash at the end", "the page of %s refuses the redirect address (%d)", p.Host, p.Status)
	case broker.StandingClient:
		d.fault(m.ID, "redirect", "copy the client id from the provider's page of the app again", "the page of %s does not know the client id (%d)", p.Host, p.Status)
	case broker.StandingKnown:
		if p.Code == "invalid_scope" || p.Code == "unauthorized_client" {
			d.fault(m.ID, "scopes", "give the app the scopes above on the provider's page of it", "%s sends browsers back at once: the app may not ask for that (%s)", p.Host, p.Code)
			return
		}
		d.ok(m.ID, "redirect", "%s sends browsers back to the redirect address: it is registered", p.Host)
	case broker.StandingUnasked:
		d.notAsked(m.ID, "redirect", "compare the registered redirect address by eye", "the page of %s could not be asked: %s", p.Host, probeTrouble(p))
	default:
		d.note(m.ID, "redirect", "%s looks at the redirect address only once somebody has signed in: compare what is registered there with the address above by eye", p.Host)
	}
}

func probeTrouble(p *broker.Probe) string {
	switch {
	case p.Cause != nil && p.Status == 0:
		return trouble(p.Cause)
	case p.Cause != nil:
		return "its answer cannot be read"
	case p.Status >= 300 && p.Status < 400:
		return "it redirects, which a token endpoint does not"
	case p.Status == http.StatusTooManyRequests:
		return "it limits how often it is asked (429)"
	case p.HTML:
		return "a web page answers (" + http.StatusText(p.Status) + "), not its token endpoint"
	case p.Status >= 500:
		return "it is in trouble (" + http.StatusText(p.Status) + ")"
	}
	return "its answer is not what a token endpoint says"
}

// trouble says in words why there was no answer. No address with a query is in it.
func trouble(err error) string {
	var dns *net.DNSError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var authority x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	var timeout net.Error
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "its name is not in the DNS"
	case errors.As(err, &dns):
		return "its name could not be looked up"
	case errors.Is(err, ssrf.ErrProhibitedIP), errors.Is(err, ssrf.ErrProhibitedNetwork), errors.Is(err, ssrf.ErrProhibitedPort):
		return "its name leads to a private address, where the broker sends no secret"
	case errors.As(err, &name):
		return "its certificate is for another name"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has ended, or a clock is wrong"
	case errors.As(err, &authority):
		return "its certificate is by nobody who is trusted here, or comes without its chain"
	case errors.As(err, &invalid):
		return "its certificate is not valid"
	case errors.Is(err, http.ErrSchemeMismatch), errors.As(err, &record):
		return "it does not speak TLS there"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection is refused: nothing listens there"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "it did not answer in time"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		return "the connection was cut before there was an answer"
	}
	return "there was no answer"
}

// A clock is how far another's is ahead of this machine's.
type clock struct {
	who string
	off time.Duration
}

// maxOff is how far clocks may be apart before it is a fault: a DPoP proof is refused at 120
// seconds, and a token that is not made yet at 60.
const maxOff = 30 * time.Second

// offBy compares a Date, whose second is half over on average, with this machine's clock.
func offBy(date, between time.Time) time.Duration {
	return date.Add(500 * time.Millisecond).Sub(between)
}

func (d *doctor) sayClock() {
	var agree []string
	for _, c := range d.clocks {
		way, off := "behind", c.off
		if off < 0 {
			way, off = "ahead of", -off
		}
		if off > maxOff {
			d.fault(aboutBroker, "clock", "let NTP set the clock of whichever is wrong: proofs are refused from 120 s, tokens from 60 s",
				"this machine's clock is %s %s that of %s", off.Round(time.Second), way, c.who)
			continue
		}
		agree = append(agree, c.who)
	}
	if len(agree) > 0 {
		d.ok(aboutBroker, "clock", "the clock agrees, within %s, with %s", maxOff, strings.Join(agree, ", "))
	}
}
