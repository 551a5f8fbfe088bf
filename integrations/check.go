package integrations

import (
	"cmp"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"golang.org/x/net/publicsuffix"
)

// Parse reads a manifest, or returns [Faults]: all that is wrong with it.
func Parse(data []byte) (*Manifest, error) {
	r := &reading{data: data}
	m := &Manifest{raw: slices.Clone(data)}
	if r.readTree() && r.knownLanguage() {
		r.decode(r.root, reflect.ValueOf(m).Elem(), "", "")
		r.check(m)
	}
	if len(r.faults) > 0 {
		return nil, r.faults.sorted()
	}
	return m, nil
}

// knownLanguage looks at the language's version first: what a later version means is
// not for this loader to judge.
func (r *reading) knownLanguage() bool {
	n := r.root.get("manifest")
	if n == nil || n.kind != '0' || n.text == "1" {
		return true
	}
	r.fault("/manifest", "manifest.version", "version "+clip(n.text)+" of the manifest language is not known here")
	return false
}

// check holds a decoded manifest against the rules that look at more than one value.
func (r *reading) check(m *Manifest) {
	if m.Ops != nil && len(m.Ops) == 0 {
		r.fault("/ops", "ops.none", "there is no operation")
	}
	r.checkHeaders(m)
	r.checkAuth(m)
	for _, o := range m.Ops {
		r.checkOp(m, o)
	}
	r.checkViewer(m)
	if m.Error != nil {
		for _, s := range m.Error.Say {
			p := at("/error/say", s.Name)
			if !errorStatus.MatchString(s.Name) {
				r.faultKey(p, "error.status", "this key is not an error status, 400 to 599")
			}
			r.text(s.Value, p, `form:"words" max:"200"`)
		}
	}
	if l := m.Limits; l != nil && l.Remaining == "" && l.Reset == "" && !l.Also403 {
		r.fault("/limits", "limits.empty", "it says nothing")
	}
	if l := m.Limits; l != nil && (l.Reset != "") != (l.Unit != "") {
		r.fault("/limits", "limits.empty", "reset and unit stand together")
	}
	if m.Money != nil {
		for code, d := range m.Money.Digits {
			if !currencyCode.MatchString(code) || d > 4 {
				r.faultKey(at("/money/digits", code), "money.digits", "this is not a currency code with 0 to 4 digits")
			}
		}
	}
}

var (
	errorStatus  = lazily(`^[45][0-9][0-9]$`)
	currencyCode = lazily(`^[A-Z]{3}$`)
)

// Headers that no manifest may set: what the executor owns, what changes the method or
// the address behind a gateway, and what asks for another kind of answer than is read.
var ownedHeaders = []string{
	"host", "authorization", "cookie", "cookie2", "transfer-encoding", "connection", "user-agent",
	"forwarded", "sudo", "expect", "upgrade", "te", "trailer", "keep-alive", "via", "range", "if-range", "origin",
	"referer", "x-method-override", "x-http-method", "x-real-ip", "x-client-ip", "x-host", "x-user", "x-remote-user",
}

var ownedHeaderPrefixes = []string{"x-http-method", "x-forwarded", "x-original", "x-rewrite", "content-", "proxy-", "sec-", "accept-encoding", "if-"}

// tokenHeaders are the common headers that carry a key at services of any name.
var tokenHeaders = []string{"x-api-key", "api-key", "apikey", "x-auth-token", "x-access-token", "private-token", "dd-api-key"}

// headerAllowed says why a header may not be sent, "" when it may.
func headerAllowed(m *Manifest, name string) string {
	n := strings.ToLower(name)
	for _, o := range ownedHeaders {
		if n == o {
			return "this header is the executor's, or changes where or how a request is taken"
		}
	}
	for _, p := range ownedHeaderPrefixes {
		if strings.HasPrefix(n, p) {
			return "this header is the executor's, or changes where or how a request is taken"
		}
	}
	if n == "accept" || n == "accept-language" {
		return ""
	}
	if !formPatterns()["id"].MatchString(m.ID) {
		return "" // id.form has been reported
	}
	for _, own := range []string{m.ID, m.Name} {
		own = strings.ToLower(strings.NewReplacer(" ", "", "-", "").Replace(own))
		// A service called X does not own every header that begins with X-.
		if len(own) > 1 && slices.Contains(strings.Split(n, "-"), own) {
			return ""
		}
	}
	return "this header is neither Accept, Accept-Language nor one of the service's own (its name holds the service's)"
}

func (r *reading) checkHeaders(m *Manifest) {
	for i, h := range m.Headers {
		p := at("/headers", h.Name)
		switch why := headerAllowed(m, h.Name); {
		case !formPatterns()["header"].MatchString(h.Name):
			r.formKey(h.Name, "header", p)
		case why != "":
			r.faultKey(p, "header.name", why)
		case m.Headers[:i].fold(h.Name):
			r.faultKey(p, "header.name", "this header stands twice")
		}
		switch {
		case strings.ContainsFunc(h.Value, func(c rune) bool { return c < 0x20 || c > 0x7e }):
			r.fault(p, "header.value", "the value holds a character that is not printable ASCII")
		case strings.ContainsAny(h.Value, "{}"):
			r.fault(p, "header.value", "the value holds a brace; headers are fixed")
		}
	}
}

// fold says whether a pair is called name, whatever the case of its letters.
func (p Pairs) fold(name string) bool {
	return slices.ContainsFunc(p, func(e Pair) bool { return strings.EqualFold(e.Name, name) })
}

func (r *reading) checkAuth(m *Manifest) {
	a := &m.Auth
	fields := map[string]bool{"token": true}
	for i, f := range a.PastedFields {
		if fields[f.Name] {
			r.fault(at("/auth/pasted_fields", i, "name"), "auth.basic", fmt.Sprintf("%q stands twice", clip(f.Name)))
		}
		fields[f.Name] = true
	}
	switch a.Authorization.Scheme {
	case "basic":
		p := "/auth/authorization/basic"
		if len(a.Authorization.Basic) != 2 {
			if !r.told(p) {
				r.fault(p, "auth.basic", "basic has two texts: user and password")
			}
			break
		}
		used := map[string]bool{}
		for i, s := range a.Authorization.Basic {
			t, why := parseTemplate(s)
			if why != "" {
				r.fault(at(p, i), "template.brace", why)
			}
			for _, ref := range t.refs() {
				used[ref] = true
				if !fields[ref] {
					r.fault(at(p, i), "auth.basic", fmt.Sprintf("%q is neither token nor one of pasted_fields", clip(ref)))
				}
			}
			if strings.Contains(t.literal(), ":") && i == 0 {
				r.fault(at(p, i), "auth.basic", "a user name holds no colon")
			}
		}
		if !used["token"] {
			r.fault(p, "auth.basic", "the token is in neither text")
		}
		for i, f := range a.PastedFields {
			if !used[f.Name] && !r.told(p) {
				r.fault(at("/auth/pasted_fields", i), "auth.basic", fmt.Sprintf("%q is in neither text", clip(f.Name)))
			}
		}
	case "header":
		if h := strings.ToLower(a.Authorization.Header); formPatterns()["header"].MatchString(h) {
			if why := headerAllowed(m, h); why != "" && !slices.Contains(tokenHeaders, h) || h == "accept" || h == "accept-language" || m.Headers.fold(h) {
				r.fault("/auth/authorization/header", "header.name", "the token's header is neither one of the service's own that nothing else sets nor a common one", "such as X-Api-Key, or the service's own")
			}
		}
	case "no":
		if a.OAuth == nil {
			r.fault("/auth/authorization", "auth.none", "a token cannot be pasted and there is no OAuth: nobody could connect")
		}
	}
	if a.Authorization.Scheme != "basic" && len(a.PastedFields) > 0 && !r.told("/auth/authorization") {
		r.fault("/auth/pasted_fields", "auth.basic", "only basic sends more than the token")
	}
	if a.Authorization.Scheme == "no" && (len(a.Pasted) > 0 || a.PATHelp != "" || len(a.PATSteps) > 0) {
		r.fault("/auth", "auth.none", "a token cannot be pasted, yet there is help for pasting one")
	}
	for i, pr := range a.Pasted {
		p := at("/auth/pasted", i)
		if pr.Prefix == "" || strings.ContainsFunc(pr.Prefix, func(c rune) bool { return c <= 0x20 || c > 0x7e }) {
			r.fault(at(p, "prefix"), "auth.pasted", "a prefix is printable ASCII without spaces")
		}
		if (pr.Verdict == "warn" || pr.Verdict == "refuse") && pr.Say == "" {
			r.fault(p, "auth.pasted", "a verdict that is not good says why")
		}
		for _, before := range a.Pasted[:i] {
			if before.Prefix != "" && strings.HasPrefix(pr.Prefix, before.Prefix) {
				r.fault(at(p, "prefix"), "auth.pasted", fmt.Sprintf("%q stands before and always fits first", clip(before.Prefix)))
			}
		}
	}
	for _, l := range a.Links {
		p := at("/auth/links", l.Name)
		if rule, msg := misfit(l.Name, "host"); msg != "" {
			r.faultKey(p, rule, msg)
		} else if registrable("https://"+l.Name) != l.Name {
			r.faultKey(p, "link.domain", "this is not a domain that somebody registers: it lies inside one, or is a suffix that many share")
		}
		r.text(l.Value, p, `form:"words" max:"200"`)
	}
	if a.PATHelp != "" {
		r.checkAddress(m, a.PATHelp, "/auth/pat_help", "link.domain", "")
	}
	if m.Ready != nil {
		r.checkAddress(m, m.Ready.Mend, "/ready/mend", "link.domain", "{app}")
	}
	if a.OAuth != nil {
		r.checkOAuth(m, a.OAuth)
	}
}

// checkAddress holds an address against the service's own domains, and its placeholders
// against the one that may stand in it.
func (r *reading) checkAddress(m *Manifest, addr, pointer, rule, placeholder string) {
	if rule, _ := misfit(addr, "https"); rule != "" {
		return // url.https has been reported
	}
	for _, ph := range placeholderInURL.FindAllString(addr, -1) {
		switch {
		case placeholder == "":
			r.fault(pointer, "url.placeholder", "this address is fixed")
		case ph != placeholder:
			r.fault(pointer, "url.placeholder", "the only placeholder here is "+placeholder)
		default:
			continue
		}
		break
	}
	domain := registrable(addr)
	own := []string{registrable("https://" + m.Host)}
	if m.Auth.OAuth != nil {
		own = append(own, registrable(m.Auth.OAuth.AuthorizeURL))
	}
	for _, l := range m.Auth.Links {
		own = append(own, l.Name)
	}
	if domain == "" || !slices.Contains(own, domain) {
		r.fault(pointer, rule, fmt.Sprintf("%s is not a domain of the service", cmp.Or(clip(domain), "this")))
	}
}

// registrable returns the domain under a public suffix that an address belongs to.
func registrable(link string) string {
	u, err := url.Parse(placeholderInURL.ReplaceAllString(link, "x"))
	if err != nil {
		return ""
	}
	d, err := publicsuffix.EffectiveTLDPlusOne(u.Hostname())
	if err != nil {
		return ""
	}
	return d
}

// Parameters that the protocol itself sends (RFC 6749, 7636, 9101): no manifest may set
// or rename into them.
var ownedParams = []string{
	"client_id", "client_secret", "redirect_uri", "response_type", "response_mode", "scope", "state", "nonce", "code",
	"code_verifier", "code_challenge", "code_challenge_method", "grant_type", "refresh_token", "access_token", "token",
	"request", "request_uri", "client_assertion", "client_assertion_type", "username", "password", "assertion", "id_token_hint",
	"authorization_details", "claims", "device_code", "subject_token", "actor_token",
}

func (r *reading) checkOAuth(m *Manifest, o *OAuth) {
	const p = "/auth/oauth"
	for _, s := range o.Scopes {
		if o.ScopesWrite != nil && !slices.Contains(o.ScopesWrite, s) {
			r.fault(p+"/scopes_write", "oauth.scopes_write", fmt.Sprintf("it lacks %q, which scopes holds", clip(s)))
		}
	}
	for _, list := range []struct {
		key    string
		scopes []string
	}{{"scopes", o.Scopes}, {"scopes_write", o.ScopesWrite}} {
		for i, s := range list.scopes {
			if sep := o.ScopeSeparator; sep != "" && strings.Contains(s, sep) {
				r.fault(at(p, list.key, i), "oauth.scope", "this is two scopes: it holds scope_separator")
			}
		}
	}
	if o.ClientAuth == "none" && o.PKCE.Mode == "off" {
		r.fault(p+"/pkce", "oauth.pkce", "the client has no secret, so without PKCE a stolen code would be enough")
	}
	for _, set := range []struct {
		key   string
		pairs Pairs
	}{{"authorize_params", o.AuthorizeParams}, {"token_params", o.TokenParams}, {"refresh_params", o.RefreshParams}} {
		for _, e := range set.pairs {
			q := at(p, set.key, e.Name)
			r.formKey(e.Name, "param", q)
			switch {
			case slices.Contains(ownedParams, strings.ToLower(e.Name)):
				r.faultKey(q, "oauth.owned_param", "this parameter is the protocol's own")
			case slices.ContainsFunc(o.ParamNames, func(n Pair) bool { return strings.EqualFold(n.Value, e.Name) }):
				r.faultKey(q, "oauth.owned_param", "param_names gives this name to a parameter of the protocol")
			}
			if strings.ContainsAny(e.Value, "{}") || strings.ContainsFunc(e.Value, func(c rune) bool { return c < ' ' || c > '~' }) {
				r.fault(q, "oauth.param", "the value is fixed: printable ASCII without braces")
			}
		}
	}
	renamed := map[string]bool{}
	for _, e := range o.ParamNames {
		q := at(p, "param_names", e.Name)
		if !slices.Contains([]string{"client_id", "client_secret", "redirect_uri", "scope", "code", "state", "code_verifier", "refresh_token", "grant_type"}, e.Name) {
			r.faultKey(q, "oauth.names", "this is not a parameter of the protocol")
		}
		r.form(e.Value, "param", q)
		if name := strings.ToLower(e.Value); slices.Contains(ownedParams, name) || renamed[name] {
			r.fault(q, "oauth.owned_param", "this name is the protocol's own, or taken")
		}
		renamed[strings.ToLower(e.Value)] = true
	}
	for _, e := range o.AnswerNames {
		q := at(p, "answer_names", e.Name)
		if !slices.Contains([]string{"access_token", "refresh_token", "expires_in", "expires_at", "scope", "token_type"}, e.Name) {
			r.faultKey(q, "oauth.names", "this is not a field of a token answer")
		}
		r.form(e.Value, "dotpath", q)
	}
	for _, e := range o.ScopeAlias {
		r.formKey(e.Name, "scope", at(p, "scope_alias", e.Name))
		r.form(e.Value, "scope", at(p, "scope_alias", e.Name))
	}
	for _, name := range sortedKeys(o.ScopeImplies) {
		q := at(p, "scope_implies", name)
		r.formKey(name, "scope", q)
		for i, s := range o.ScopeImplies[name] {
			r.form(s, "scope", at(q, i))
		}
	}
	// By whatever name: what is kept may be a path from the top of the answer.
	secret := []string{"access_token", "refresh_token", "id_token", "client_secret", "code", "code_verifier", "state"}
	for _, e := range slices.Concat(o.ParamNames, o.AnswerNames) {
		if slices.Contains(secret, e.Name) {
			secret = append(secret, strings.ToLower(e.Value), strings.ToLower(o.TokenRoot+"."+e.Value))
		}
	}
	for i, k := range append(slices.Clone(o.TokenKeep), o.CallbackKeep...) {
		k = strings.ToLower(k)
		if slices.Contains(secret, k) || slices.Contains(secret, k[strings.LastIndexByte(k, '.')+1:]) {
			key := "token_keep"
			if i >= len(o.TokenKeep) {
				key, i = "callback_keep", i-len(o.TokenKeep)
			}
			r.fault(at(p, key, i), "oauth.keep", "a secret is not kept beside the pair")
		}
	}
	if o.Refresh != nil && o.Refresh.None != "" && (o.Refresh.Rotates || o.Refresh.ReuseGraceS > 0) {
		r.fault(p+"/refresh", "oauth.refresh", "there is no refresh token, so nothing rotates")
	}
	if o.Refresh != nil && o.Refresh.ReuseGraceS > 0 && !o.Refresh.Rotates {
		r.fault(p+"/refresh/reuse_grace_s", "oauth.refresh", "a grace makes sense only where the token rotates")
	}
	if o.Refresh != nil && o.Refresh.Rotates && len(o.Dead) == 0 && !r.told(p+"/dead") {
		r.fault(p, "oauth.refresh", "the refresh token rotates, yet no code means that it is dead")
	}
	if o.Revoke != nil {
		r.checkRevoke(m, o.Revoke)
	}
	// What the token endpoint is sent, a code, a refresh token, the client's secret, opens
	// an account: it stays with the service that the member chose.
	for _, u := range []struct{ key, url string }{{"issuer", o.Issuer}, {"authorize_url", o.AuthorizeURL}, {"token_url", o.TokenURL}, {"refresh_url", o.RefreshURL}} {
		if u.url == "" {
			continue
		}
		r.checkAddress(m, u.url, at(p, u.key), "oauth.domain", "")
		if strings.Contains(u.url, "?") {
			r.fault(at(p, u.key), "url.query", "this address has a query; parameters stand in their own lists")
		}
	}
}

func (r *reading) checkRevoke(m *Manifest, v *Revoke) {
	const p = "/auth/oauth/revoke"
	bad := func(why string) { r.fault(p, "oauth.revoke", why) }
	switch {
	case (v.None != "") == (v.Style != ""):
		bad("it has either a style or none")
	case v.None != "" && (v.URL != "" || v.Param != "" || v.Takes != "" || v.Reach != "" || v.ClientAuth != "" || v.Body != "" || v.Scheme != "" || v.Gone != nil):
		bad("there is no call, so nothing else is said of it")
	case v.None != "":
	case v.URL == "" || v.Reach == "" || (v.Takes == "") != (v.Style == "deauthorize"):
		bad("url, reach and, unless the style is deauthorize, takes are needed")
	case (v.Style == "form" || v.Style == "deauthorize") && v.Param == "":
		bad("this style needs param")
	case v.Style == "bearer" && (v.Takes != "access" || v.Param != "" || v.ClientAuth != ""):
		bad("the token itself calls, as Bearer: takes is access, and there is no param or client_auth")
	case v.Scheme != "" && v.Style != "deauthorize" || v.ClientAuth != "" && v.Style != "form" && v.Style != "rfc7009" || v.Body != "" && v.Style == "github-token":
		bad("scheme, client_auth or body says what this style does not have")
	}
	if v.URL != "" {
		r.checkAddress(m, v.URL, p+"/url", "oauth.domain", "{client_id}")
	}
}

// checkViewer holds what names an operation against the operations.
func (r *reading) checkViewer(m *Manifest) {
	if len(m.Ops) == 0 {
		return // that has been reported
	}
	if m.Viewer != "" {
		if o := r.namedRead(m, m.Viewer, "/viewer", "viewer"); o != nil && len(o.Args) > 0 {
			for _, a := range o.Args {
				if a.Required() || a.Connection != "" {
					r.fault("/viewer", "viewer", fmt.Sprintf("the viewer needs the arg %q, and nobody is there to give it", clip(a.Name)))
				}
			}
		}
	}
	if m.Account != nil {
		o := m.Op(m.Viewer)
		if m.Viewer == "" {
			r.fault("/account", "account", "an account is read by the viewer, and there is none")
		}
		if o != nil && !r.told("/viewer") {
			for _, ps := range []struct {
				key   string
				paths Paths
			}{{"id", m.Account.ID}, {"label", m.Account.Label}} {
				for i, path := range ps.paths {
					r.picked(o, path, r.item(at("/account", ps.key), i), "account")
				}
			}
		}
	}
	if y := m.Ready; y != nil {
		if o := r.namedRead(m, y.Op, "/ready/op", "ready"); o != nil {
			r.noArgsNeeded(o, "/ready/op", "ready")
			if y.NotEmpty != "" && !pickReaches(o, y.NotEmpty) {
				r.fault("/ready/not_empty", "ready", fmt.Sprintf("%s does not pick %q", clip(o.Name), clip(y.NotEmpty)))
			}
		}
		if y.For == "oauth" && m.Auth.OAuth == nil {
			r.fault("/ready/for", "ready", "there is no OAuth here")
		}
	}
	for _, c := range m.Connect {
		p := at("/connect", c.Name)
		if o := r.namedRead(m, c.Op, p+"/op", "connect"); o != nil {
			r.noArgsNeeded(o, p+"/op", "connect")
			if slices.ContainsFunc(o.Args, func(a *Arg) bool { return a.Connection != "" }) {
				r.fault(p+"/op", "connect", fmt.Sprintf("%s needs what a connection has learnt already", clip(o.Name)))
			}
			r.picked(o, c.Value, p+"/value", "connect")
			r.picked(o, c.Label, p+"/label", "connect")
		}
		used := false
		for _, o := range m.Ops {
			for _, a := range o.Args {
				used = used || a.Connection == c.Name
			}
		}
		if !used {
			r.fault(p, "connect", "no arg takes this value")
		}
	}
}

func (r *reading) namedRead(m *Manifest, name, pointer, rule string) *Op {
	o := m.Op(name)
	switch {
	case !formPatterns()["op-id"].MatchString(name):
		return nil // op.name has been reported
	case o == nil:
		var names []string
		for _, o := range m.Ops {
			names = append(names, o.Name)
		}
		r.fault(pointer, rule, fmt.Sprintf("there is no operation %q", name), didYouMean(name, names)+"the operations are: "+listed(names))
	case o.Access == Write:
		r.fault(pointer, rule, fmt.Sprintf("%s is a write; a read is wanted", name))
		return nil
	}
	return o
}

func (r *reading) noArgsNeeded(o *Op, pointer, rule string) {
	for _, a := range o.Args {
		if a.Required() {
			r.fault(pointer, rule, fmt.Sprintf("%s needs the arg %q, and nobody is there to give it", clip(o.Name), clip(a.Name)))
		}
	}
}

// picked reports a path that an operation does not pick.
func (r *reading) picked(o *Op, path, pointer, rule string) {
	if o.Pick == nil || !formPatterns()["dotpath"].MatchString(path) {
		return
	}
	var names []string
	for _, f := range o.Pick.Fields {
		if f.Path == path {
			return
		}
		names = append(names, f.Path)
	}
	name := clip(o.Name)
	r.fault(pointer, rule, fmt.Sprintf("%s does not pick %q", name, clip(path)), didYouMean(path, names)+name+" picks: "+listed(names))
}

// pickReaches says whether path is a picked field or on the way to one.
func pickReaches(o *Op, path string) bool {
	if o.Pick == nil {
		return true
	}
	for _, f := range o.Pick.Fields {
		if f.Path == path || strings.HasPrefix(f.Path, path+".") {
			return true
		}
	}
	return false
}
