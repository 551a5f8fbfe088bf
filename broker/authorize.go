package broker

import (
	"crypto/subtle"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/oauth2"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// csrfCookie is the double-submit cookie of the consent page. It is kept while it lives, so
// that a second tab does not undo the first.
const csrfCookie = "__Host-consent"

// An ask is what a client asks for when a flow begins. Everything else of the flow comes
// from the manifest and the configuration.
type ask struct {
	service *integrations.Manifest
	access  integrations.Access
	ret     returnAddress
	key     custody.PublicKey
	values  url.Values // as they came, for the page's hidden fields
}

// authorize is the page on which a member decides. GET renders it and does nothing; POST,
// from that very page, begins the flow at the provider.
func (b *Broker) authorize(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		q, err := url.ParseQuery(r.URL.RawQuery)
		if err != nil {
			b.errorPage(w, r, http.StatusBadRequest, pageBadRequest)
			return
		}
		a, err := b.parseAsk(r.PathValue("service"), q)
		if err != nil {
			b.refuseAsk(w, r, err)
			return
		}
		b.consentPage(w, r, a)
	case http.MethodPost:
		b.consent(w, r)
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		b.errorPage(w, r, http.StatusMethodNotAllowed, pageBadRequest)
	}
}

var errNotOffered = errors.New("this service is not offered here")

func (b *Broker) parseAsk(service string, q url.Values) (*ask, error) {
	m := b.service(service)
	if m == nil {
		return nil, errNotOffered
	}
	one := func(name string) (string, error) {
		if len(q[name]) > 1 {
			return "", errors.New(name + " stands twice")
		}
		return q.Get(name), nil
	}
	vals := make(url.Values)
	for _, name := range []string{"access", "return_to", "key", "for"} {
		v, err := one(name)
		if err != nil {
			return nil, err
		}
		if v != "" {
			vals.Set(name, v)
		}
	}
	a := &ask{service: m, access: integrations.Access(vals.Get("access")), values: vals}
	if a.access != integrations.Read && a.access != integrations.Write {
		return nil, errors.New("access is read or write")
	}
	var err error
	if a.ret, err = b.parseReturn(vals.Get("return_to"), vals.Get("for")); err != nil {
		return nil, err
	}
	if a.key, err = parseKey(vals.Get("key")); err != nil {
		return nil, errors.New("key is not a public key")
	}
	return a, nil
}

func (b *Broker) refuseAsk(w http.ResponseWriter, r *http.Request, err error) {
	var re *RefreshError // of the secret's store
	switch {
	case errors.As(err, &re) && re.Class == Temporary:
		b.errorPage(w, r, http.StatusServiceUnavailable, pageTrouble)
	case errors.As(err, &re), errors.Is(err, errNotOffered):
		b.errorPage(w, r, http.StatusNotFound, pageNotOffered)
	default:
		b.errorPage(w, r, http.StatusBadRequest, pageBadRequest)
	}
}

// consentPage names the service, the access, whoever will receive the connection, and the
// number that must stand there too.
func (b *Broker) consentPage(w http.ResponseWriter, r *http.Request, a *ask) {
	n := noteOf(r.Context())
	n.service, n.access = a.service.ID, a.access
	if _, err := b.offered(r.Context(), a.service); err != nil {
		b.refuseAsk(w, r, err)
		return
	}
	token, err := oneCookie(r, csrfCookie)
	if err != nil || !csrfPattern(token) {
		token = random(16)
	}
	if r.Method != http.MethodHead {
		setCookie(w, csrfCookie, token, flowLife)
	}
	b.page.consent(w, r, consentData{
		Service: a.service.Name, Write: a.access == integrations.Write, Return: a.ret, Number: spaced(a.key.CheckNumber()),
		Say: a.service.Auth.OAuth.Say, Scopes: a.scopes(), Action: "/oauth/" + a.service.ID + "/authorize", Token: token, Values: a.values,
		AuthorizeURL: a.service.Auth.OAuth.AuthorizeURL,
	})
}

func csrfPattern(s string) bool { return handlePattern.MatchString(s) }

// spaced writes "482913" as "482 913".
func spaced(n string) string { return n[:3] + " " + n[3:] }

func (a *ask) scopes() []string {
	if a.access == integrations.Write {
		return a.service.Auth.OAuth.ScopesWrite
	}
	return a.service.Auth.OAuth.Scopes
}

// consent is the press. It must come from our own page (Origin, and the double-submit
// token), and the box that names the receiver must be ticked. Only its answer sets the
// flow's cookie.
func (b *Broker) consent(w http.ResponseWriter, r *http.Request) {
	if !b.fromOurPage(r) {
		b.errorPage(w, r, http.StatusForbidden, pageForbidden)
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, 16<<10)
	if err := r.ParseForm(); err != nil {
		b.errorPage(w, r, http.StatusBadRequest, pageBadRequest)
		return
	}
	form := r.PostForm
	cookie, err := oneCookie(r, csrfCookie)
	if err != nil || !csrfPattern(cookie) || len(form["token"]) != 1 || subtle.ConstantTimeCompare([]byte(cookie), []byte(form.Get("token"))) != 1 {
		b.errorPage(w, r, http.StatusForbidden, pageForbidden)
		return
	}
	a, err := b.parseAsk(r.PathValue("service"), form)
	if err != nil {
		b.refuseAsk(w, r, err)
		return
	}
	n := noteOf(r.Context())
	n.service, n.access = a.service.ID, a.access
	if len(form["agree"]) != 1 || form.Get("agree") != a.ret.Origin {
		b.errorPage(w, r, http.StatusBadRequest, pageNotTicked)
		return
	}
	c, err := b.offered(r.Context(), a.service)
	if err != nil {
		b.refuseAsk(w, r, err)
		return
	}
	f := &flow{Handle: random(16), Service: a.service.ID, Access: a.access, Return: a.ret, Key: a.key, Begun: b.cfg.Now().Unix()}
	if a.service.Auth.OAuth.PKCE.Mode != "off" {
		f.Verifier = oauth2.GenerateVerifier()
	}
	sealed, err := b.sealFlow(f)
	if err != nil {
		b.errorPage(w, r, http.StatusBadRequest, pageBadRequest)
		return
	}
	b.makeRoom(w, r)
	setCookie(w, flowPrefix+f.Handle, sealed, flowLife)
	w.Header().Set("Location", authorizeURL(a.service.Auth.OAuth, c.ID, b.RedirectURI(a.service.ID), a.scopes(), f.Handle, f.Verifier))
	w.WriteHeader(http.StatusSeeOther)
}

// fromOurPage says whether a POST was made by a page of ours. A browser that says neither
// where it comes from nor how the sites relate is not believed.
func (b *Broker) fromOurPage(r *http.Request) bool {
	origins, sites := r.Header.Values("Origin"), r.Header.Values("Sec-Fetch-Site")
	if len(origins) > 1 || len(sites) > 1 || len(sites) == 1 && sites[0] != "same-origin" {
		return false
	}
	if len(origins) == 1 {
		return origins[0] == b.origin
	}
	return len(sites) == 1
}

// authorizeURL builds the provider's address from the manifest alone.
func authorizeURL(o *integrations.OAuth, clientID, redirectURI string, scopes []string, state, verifier string) string {
	cfg := oauth2.Config{ClientID: clientID, RedirectURL: redirectURI, Endpoint: oauth2.Endpoint{AuthURL: o.AuthorizeURL}}
	var opts []oauth2.AuthCodeOption
	if len(scopes) > 0 {
		sep := o.ScopeSeparator
		if sep == "" {
			sep = " "
		}
		opts = append(opts, oauth2.SetAuthURLParam("scope", strings.Join(scopes, sep)))
	}
	for _, p := range o.AuthorizeParams {
		opts = append(opts, oauth2.SetAuthURLParam(p.Name, p.Value))
	}
	if verifier != "" {
		opts = append(opts, oauth2.S256ChallengeOption(verifier))
	}
	if o.AuthorizeNonce {
		opts = append(opts, oauth2.SetAuthURLParam("nonce", random(16)))
	}
	u, err := url.Parse(cfg.AuthCodeURL(state, opts...))
	if err != nil {
		return ""
	}
	q := u.Query()
	for _, name := range o.AuthorizeOmit {
		q.Del(name)
	}
	for _, p := range o.ParamNames {
		if vs, ok := q[p.Name]; ok {
			delete(q, p.Name)
			q[p.Value] = vs
		}
	}
	u.RawQuery = q.Encode()
	return u.String()
}

// speculative says whether a browser loads a page that nobody has asked for yet.
func speculative(r *http.Request) bool {
	for _, h := range []string{"Sec-Purpose", "Purpose", "X-Moz", "X-Purpose"} {
		v := strings.ToLower(r.Header.Get(h))
		if strings.Contains(v, "prefetch") || strings.Contains(v, "prerender") || strings.Contains(v, "preview") {
			return true
		}
	}
	dest := r.Header.Get("Sec-Fetch-Dest")
	return dest != "" && dest != "document"
}

// outcomes of a provider's error, by its code; all others are the provider's own trouble.
var cancelledCodes = []string{"access_denied", "user_cancelled_login", "user_cancelled_authorize", "consent_required", "interaction_required", "login_required", "user_denied"}

// callback is where the provider sends the browser back.
func (b *Broker) callback(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		if r.Method == http.MethodHead {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Allow", "GET, HEAD")
		b.errorPage(w, r, http.StatusMethodNotAllowed, pageBadRequest)
		return
	}
	if speculative(r) {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	m := b.service(r.PathValue("service"))
	if m == nil {
		b.errorPage(w, r, http.StatusNotFound, pageNotOffered)
		return
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	handle := q.Get("state")
	f, flowErr := b.flowOf(r, handle)
	// Whatever comes of it, this browser does not come back with the same flow.
	if handlePattern.MatchString(handle) && hasCookie(r, flowPrefix+handle) {
		setCookie(w, flowPrefix+handle, "", 0)
	}
	repeated := func(name string) bool { return len(q[name]) > 1 } // RFC 6749, section 3.1
	if err != nil || handle == "" || slices.ContainsFunc([]string{"code", "state", "iss", "error"}, repeated) {
		b.errorPage(w, r, http.StatusBadRequest, pageNoFlow)
		return
	}
	if flowErr != nil || f.Service != m.ID || !b.spent.first(handle, b.cfg.Now()) {
		b.errorPage(w, r, http.StatusForbidden, pageNoFlow)
		return
	}
	n := noteOf(r.Context())
	n.service, n.access = m.ID, f.Access
	out := b.outcome(r, m, f, q)
	n.class = out.Error
	b.handOver(w, r, f, out)
}

// outcome exchanges the code, exactly once, and says what came of the flow.
func (b *Broker) outcome(r *http.Request, m *integrations.Manifest, f *flow, q url.Values) *custody.TabOutcome {
	o := m.Auth.OAuth
	failed := func(code string) *custody.TabOutcome { return &custody.TabOutcome{V: 1, Service: m.ID, Error: code} }
	switch iss := q.Get("iss"); {
	case o.Issuer != "" && iss != o.Issuer: // RFC 9207
		noteOf(r.Context()).code = "issuer"
		return failed("provider")
	case o.Issuer == "" && iss != "":
		noteOf(r.Context()).code = "issuer_unexpected" // the manifest could name it
	}
	if e := q.Get("error"); e != "" {
		switch {
		case slices.Contains(cancelledCodes, e):
			return failed("cancelled")
		case e == "unauthorized" || e == "invalid_scope":
			return failed("denied")
		}
		return failed("provider")
	}
	code := q.Get("code")
	if code == "" || len(code) > 4096 || strings.ContainsFunc(code, func(c rune) bool { return c < 0x21 || c > 0x7e }) {
		return failed("provider")
	}
	a, err := b.exchange(r.Context(), m, code, f.Verifier, f.Handle)
	if err != nil {
		var re *RefreshError
		if errors.As(err, &re) {
			note := noteOf(r.Context())
			note.code, note.upstream = string(re.Class)+":"+re.Code, re.Status
		}
		return failed("provider")
	}
	asked := o.Scopes
	if f.Access == integrations.Write {
		asked = o.ScopesWrite
	}
	v := compareScopes(o, asked, a)
	if o.ExactScopes && (v.wider || len(v.missing) > 0) {
		return failed("missing_scopes")
	}
	out := &custody.TabOutcome{V: 1, Service: m.ID, Access: f.Access, Kind: custody.KindOAuth, Secret: integrations.NewSecret(a.access),
		ExpiresIn: a.expiresIn, Scopes: a.scopes, Wider: v.wider, Keep: a.keep}
	if !a.scoped {
		out.Scopes = asked
	}
	if a.refresh != "" {
		out.Refresh = integrations.NewSecret(b.wrapToken(m.ID, wrapped{a.refresh, f.Return.Origin, vouched(o, a)}))
	}
	for _, k := range o.CallbackKeep {
		if v := q.Get(k); v != "" && len(v) <= 512 && len(q[k]) == 1 {
			if out.Keep == nil {
				out.Keep = make(map[string]string)
			}
			out.Keep[k] = v
		}
	}
	return out
}

// maxAddress is the longest address that every browser and gateway carries.
const maxAddress = 6000

// handOver seals the outcome to whoever began and sends the browser there. The address holds
// ciphertext, in its fragment, and nothing else of the flow.
func (b *Broker) handOver(w http.ResponseWriter, r *http.Request, f *flow, out *custody.TabOutcome) {
	fragment, err := sealOutcome(f, out)
	if err != nil {
		out.Scopes, out.Keep = nil, nil // the pair itself always fits
		if fragment, err = sealOutcome(f, out); err != nil {
			b.errorPage(w, r, http.StatusBadGateway, pageLost)
			return
		}
	}
	to := f.Return.URL + "/connect/done#" + fragment
	if len(to) > maxAddress {
		b.page.link(w, r, f.Return, to)
		return
	}
	w.Header().Set("Location", to)
	w.WriteHeader(http.StatusSeeOther)
}

func sealOutcome(f *flow, out *custody.TabOutcome) (string, error) {
	env, err := custody.SealAnswer(f.Key, custody.TabOp(f.Service, f.Access), out)
	if err != nil {
		return "", err
	}
	return env.Fragment()
}
