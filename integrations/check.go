package integrations

import (
	"fmt"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strconv"
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
	if len(m.Ops) == 0 && r.root.get("ops") != nil {
		r.fault("/ops", "ops.none", "there is no operation")
	}
	for _, f := range []struct {
		key   string
		pairs Pairs
	}{{"headers", m.Headers}} {
		for _, h := range f.pairs {
			r.checkHeader(m, h, at("/"+f.key, h.Name))
		}
	}
	r.checkAuth(m)
	for i, o := range m.Ops {
		_ = i
		r.checkOp(m, o)
	}
	r.checkViewer(m)
	if m.Error != nil {
		for _, s := range m.Error.Say {
			p := at("/error/say", s.Name)
			if !errorStatus.MatchString(s.Name) {
				r.fault(p, "error.status", "this key is not an error status, 400 to 599")
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
				r.fault(at("/money/digits", code), "money.digits", "this is not a currency code with 0 to 4 digits")
			}
		}
	}
}

var (
	errorStatus  = regexp.MustCompile(`^[45][0-9][0-9]$`)
	currencyCode = regexp.MustCompile(`^[A-Z]{3}$`)
)

// Headers that no manifest may set: what the executor owns, what changes the method or
// the address behind a gateway, and what asks for another kind of answer than is read.
var ownedHeaders = []string{
	"host", "authorization", "cookie", "cookie2", "transfer-encoding", "connection", "user-agent",
	"forwarded", "sudo", "expect", "upgrade", "te", "trailer", "keep-alive", "via", "range", "if-range", "origin",
	"referer", "x-method-override", "x-http-method", "x-real-ip", "x-client-ip", "x-host", "x-user", "x-remote-user",
}

var ownedHeaderPrefixes = []string{"x-http-method", "x-forwarded", "x-original", "x-rewrite", "content-", "proxy-", "sec-", "accept-encoding", "if-"}

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
	own := []string{strings.ToLower(m.ID), strings.ToLower(strings.ReplaceAll(m.Name, " ", ""))}
	for _, part := range strings.Split(n, "-") {
		for _, o := range own {
			if o != "" && (part == o || strings.ReplaceAll(o, "-", "") == part) {
				return ""
			}
		}
	}
	return "this header is neither Accept, Accept-Language nor one of the service's own (its name holds the service's)"
}

func (r *reading) checkHeader(m *Manifest, h Pair, p string) {
	if !formPatterns["header"].MatchString(h.Name) {
		r.fault(p, "header.name", "this is not a header name")
		return
	}
	if why := headerAllowed(m, h.Name); why != "" {
		r.fault(p, "header.name", why)
	}
	for _, c := range h.Value {
		if c < 0x20 || c > 0x7e {
			r.fault(p, "header.value", "the value holds a character that is not printable ASCII")
			return
		}
	}
	if strings.ContainsAny(h.Value, "{}") {
		r.fault(p, "header.value", "the value holds a brace; headers are fixed")
	}
}

func (r *reading) checkAuth(m *Manifest) {
	a := &m.Auth
	fields := map[string]bool{"token": true}
	for i, f := range a.PastedFields {
		if fields[f.Name] {
			r.fault(at("/auth/pasted_fields", i, "name"), "auth.basic", fmt.Sprintf("%q stands twice", f.Name))
		}
		fields[f.Name] = true
	}
	switch a.Authorization.Scheme {
	case "basic":
		p := "/auth/authorization/basic"
		if len(a.Authorization.Basic) != 2 {
			r.fault(p, "auth.basic", "basic has two texts: user and password")
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
					r.fault(at(p, i), "auth.basic", fmt.Sprintf("%q is neither token nor one of pasted_fields", ref))
				}
			}
			if strings.Contains(t.literal(), ":") && i == 0 {
				r.fault(at(p, i), "auth.basic", "a user name holds no colon")
			}
		}
		if !used["token"] {
			r.fault(p, "auth.basic", "the token is in neither text")
		}
	case "header":
		if h := strings.ToLower(a.Authorization.Header); h != "" {
			if why := headerAllowed(m, h); why != "" || h == "accept" || h == "accept-language" {
				r.fault("/auth/authorization/header", "header.name", "the token's header is not one of the service's own")
			}
		}
	case "no":
		if a.OAuth == nil {
			r.fault("/auth/authorization", "auth.none", "a token cannot be pasted and there is no OAuth: nothing could be connected")
		}
	}
	if a.Authorization.Scheme != "basic" && len(a.PastedFields) > 0 {
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
		if pr.Verdict != "good" && pr.Say == "" {
			r.fault(p, "auth.pasted", "a verdict that is not good says why")
		}
		for _, before := range a.Pasted[:i] {
			if before.Prefix != "" && strings.HasPrefix(pr.Prefix, before.Prefix) {
				r.fault(at(p, "prefix"), "auth.pasted", fmt.Sprintf("%q stands before and always fits first", before.Prefix))
			}
		}
	}
	for _, l := range a.Links {
		p := at("/auth/links", l.Name)
		r.form(l.Name, "host", p)
		r.text(l.Value, p, `form:"words" max:"200"`)
	}
	if a.PATHelp != "" {
		r.checkLink(m, a.PATHelp, "/auth/pat_help")
		if strings.ContainsAny(a.PATHelp, "{}") {
			r.fault("/auth/pat_help", "url.placeholder", "this address is fixed")
		}
	}
	if m.Ready != nil {
		r.checkLink(m, m.Ready.Mend, "/ready/mend")
		for _, ph := range placeholderInURL.FindAllString(m.Ready.Mend, -1) {
			if ph != "{app}" {
				r.fault("/ready/mend", "url.placeholder", "the only placeholder here is {app}")
			}
		}
	}
	if a.OAuth != nil {
		r.checkOAuth(a.OAuth)
	}
}

// checkLink holds a page that a member is sent to against the service's own domains.
func (r *reading) checkLink(m *Manifest, link, pointer string) {
	if checkHTTPS(link) != "" {
		return // url.https has been reported
	}
	domain := registrable(link)
	own := []string{registrable("https://" + m.Host)}
	if m.Auth.OAuth != nil {
		own = append(own, registrable(m.Auth.OAuth.AuthorizeURL))
	}
	for _, l := range m.Auth.Links {
		own = append(own, l.Name)
	}
	if domain == "" || !slices.Contains(own, domain) {
		r.fault(pointer, "link.domain", fmt.Sprintf("%s is not a domain of the service", domain))
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
}

func (r *reading) checkOAuth(o *OAuth) {
	const p = "/auth/oauth"
	for _, s := range o.Scopes {
		if !slices.Contains(o.ScopesWrite, s) {
			r.fault(p+"/scopes_write", "oauth.scopes_write", fmt.Sprintf("it lacks %q, which scopes holds", s))
		}
	}
	for _, set := range []struct {
		key   string
		pairs Pairs
	}{{"authorize_params", o.AuthorizeParams}, {"token_params", o.TokenParams}, {"refresh_params", o.RefreshParams}} {
		for _, e := range set.pairs {
			q := at(p, set.key, e.Name)
			r.form(e.Name, "param", q)
			if slices.Contains(ownedParams, strings.ToLower(e.Name)) {
				r.fault(q, "oauth.owned_param", "this parameter is the protocol's own")
			}
			if strings.ContainsAny(e.Value, "{}\r\n") {
				r.fault(q, "oauth.param", "the value is fixed: no braces, no line breaks")
			}
		}
	}
	renamed := map[string]bool{}
	for _, e := range o.ParamNames {
		q := at(p, "param_names", e.Name)
		if !slices.Contains([]string{"client_id", "client_secret", "redirect_uri", "scope", "code", "state", "code_verifier", "refresh_token", "grant_type"}, e.Name) {
			r.fault(q, "oauth.names", "this is not a parameter of the protocol")
		}
		r.form(e.Value, "param", q)
		if slices.Contains(ownedParams, strings.ToLower(e.Value)) || renamed[e.Value] {
			r.fault(q, "oauth.owned_param", "this name is the protocol's own, or taken")
		}
		renamed[e.Value] = true
	}
	for _, e := range o.AnswerNames {
		q := at(p, "answer_names", e.Name)
		if !slices.Contains([]string{"access_token", "refresh_token", "expires_in", "expires_at", "scope", "token_type"}, e.Name) {
			r.fault(q, "oauth.names", "this is not a field of a token answer")
		}
		r.form(e.Value, "dotpath", q)
	}
	for _, e := range o.ScopeAlias {
		r.form(e.Name, "scope", at(p, "scope_alias", e.Name))
		r.form(e.Value, "scope", at(p, "scope_alias", e.Name))
	}
	for _, name := range sortedKeys(o.ScopeImplies) {
		q := at(p, "scope_implies", name)
		r.form(name, "scope", q)
		for _, s := range o.ScopeImplies[name] {
			r.form(s, "scope", q)
		}
	}
	for i, k := range append(slices.Clone(o.TokenKeep), o.CallbackKeep...) {
		if slices.Contains([]string{"access_token", "refresh_token", "id_token", "client_secret", "code"}, k) {
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
	if o.Refresh != nil && o.Refresh.Rotates && len(o.Dead) == 0 {
		r.fault(p, "oauth.refresh", "the refresh token rotates, yet no code means that it is dead")
	}
	if v := o.Revoke; v != nil {
		q := p + "/revoke"
		if (v.None != "") == (v.Style != "") {
			r.fault(q, "oauth.revoke", "it has either a style or none")
		}
		if v.None != "" && (v.URL != "" || v.Param != "" || v.Takes != "" || v.Reach != "") {
			r.fault(q, "oauth.revoke", "there is no call, so it has no url, param, takes or reach")
		}
		if v.Style != "" && (v.URL == "" || v.Reach == "" || (v.Takes == "") != (v.Style == "deauthorize")) {
			r.fault(q, "oauth.revoke", "url, reach and, unless the style is deauthorize, takes are needed")
		}
		if (v.Style == "form" || v.Style == "deauthorize") && v.Param == "" {
			r.fault(q, "oauth.revoke", "this style needs param")
		}
		for _, ph := range placeholderInURL.FindAllString(v.URL, -1) {
			if ph != "{client_id}" {
				r.fault(q+"/url", "url.placeholder", "the only placeholder here is {client_id}")
			}
		}
	}
	for _, u := range []struct{ key, url string }{{"issuer", o.Issuer}, {"authorize_url", o.AuthorizeURL}, {"token_url", o.TokenURL}, {"refresh_url", o.RefreshURL}} {
		if strings.ContainsAny(u.url, "{}") {
			r.fault(at(p, u.key), "url.placeholder", "this address is fixed")
		}
		if strings.Contains(u.url, "?") {
			r.fault(at(p, u.key), "url.query", "this address has a query; parameters stand in their own lists")
		}
	}
}

// checkViewer holds what names an operation against the operations.
func (r *reading) checkViewer(m *Manifest) {
	if m.Viewer != "" {
		if o := r.namedRead(m, m.Viewer, "/viewer", "viewer"); o != nil && len(o.Args) > 0 {
			for _, a := range o.Args {
				if a.Required() || a.Connection != "" {
					r.fault("/viewer", "viewer", fmt.Sprintf("the viewer needs the arg %q, and nobody is there to give it", a.Name))
				}
			}
		}
	}
	if m.Account != nil {
		o := m.Op(m.Viewer)
		if m.Viewer == "" {
			r.fault("/account", "account", "an account is read by the viewer, and there is none")
		}
		if o != nil {
			for _, ps := range []struct {
				key   string
				paths Paths
			}{{"id", m.Account.ID}, {"label", m.Account.Label}} {
				for i, path := range ps.paths {
					q := at("/account", ps.key)
					if len(ps.paths) > 1 {
						q = at(q, i)
					}
					r.picked(o, path, q, "account")
				}
			}
		}
	}
	if y := m.Ready; y != nil {
		if o := r.namedRead(m, y.Op, "/ready/op", "ready"); o != nil {
			r.noArgsNeeded(o, "/ready/op", "ready")
			if y.NotEmpty != "" && !pickReaches(o, y.NotEmpty) {
				r.fault("/ready/not_empty", "ready", fmt.Sprintf("%s does not pick %q", o.Name, y.NotEmpty))
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
	case !formPatterns["op-id"].MatchString(name):
		return nil // op.name has been reported
	case o == nil:
		var names []string
		for _, o := range m.Ops {
			names = append(names, o.Name)
		}
		mend := "the operations are: " + strings.Join(names, ", ")
		if near := nearest(name, names); near != "" {
			mend = "did you mean " + strconv.Quote(near) + "?"
		}
		r.fault(pointer, rule, fmt.Sprintf("there is no operation %q", name), mend)
	case o.Access != Read:
		r.fault(pointer, rule, fmt.Sprintf("%s is a write; a read is wanted", name))
		return nil
	}
	return o
}

func (r *reading) noArgsNeeded(o *Op, pointer, rule string) {
	for _, a := range o.Args {
		if a.Required() {
			r.fault(pointer, rule, fmt.Sprintf("%s needs the arg %q, and nobody is there to give it", o.Name, a.Name))
		}
	}
}

// picked reports a path that an operation does not pick.
func (r *reading) picked(o *Op, path, pointer, rule string) {
	if o.Pick == nil || !formPatterns["dotpath"].MatchString(path) {
		return
	}
	var names []string
	for _, f := range o.Pick.Fields {
		if f.Path == path {
			return
		}
		names = append(names, f.Path)
	}
	mend := o.Name + " picks: " + strings.Join(names, ", ")
	if near := nearest(path, names); near != "" {
		mend = "did you mean " + strconv.Quote(near) + "? " + mend
	}
	r.fault(pointer, rule, fmt.Sprintf("%s does not pick %q", o.Name, path), mend)
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
