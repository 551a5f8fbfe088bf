package broker_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/publicsuffix"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/integrations"
)

// An endpoint is a row of testdata/endpoints/facts.json.
type endpoint struct {
	ID, Name      string
	AuthorizeURL  string `json:"authorize_url"`
	TokenURL      string `json:"token_url"`
	RefreshURL    string `json:"refresh_url"`
	ClientAuth    string `json:"client_auth"`
	Body          string `json:"token_body_format"`
	PKCE          struct{ Supported, Required, Nango_sends *bool }
	Separator     *string           `json:"scope_separator"`
	Scopes        []string          `json:"default_scopes"`
	Authorize     map[string]string `json:"authorize_params"`
	Token         map[string]string `json:"token_params"`
	Refresh       map[string]string `json:"refresh_params"`
	Callback      []string          `json:"callback_extra"`
	Lifetime      int64             `json:"access_token_lifetime_s"`
	TokenResponse struct {
		Extra     []string `json:"extra_fields"`
		ExpiresIn string   `json:"expires_in"`
	} `json:"token_response"`
	RefreshToken struct {
		Issued, Rotates any
		Returned        any `json:"returned_on_refresh"`
	} `json:"refresh_token"`
	Errors struct {
		Dead []string `json:"dead_grant"`
	}
	Revoke struct{ URL, Method, Auth, Form string }
	Quirks []string
}

// unsayable are the rows that a manifest does not describe, by reason: beside those whose
// host is a tenant's.
var unsayable = map[string]string{
	"facebook":         "a second exchange: the long-lived token comes of the first one, with the secret in the query",
	"instagram":        "a second exchange: the code gives a short token, refreshing takes the access token",
	"threads":          "a second exchange, as instagram",
	"revolut-business": "a signed JWT for a client secret",
	"sentry":           "the token address holds the installation, which the callback tells",
}

const tenant = "a host per tenant"

// address returns the fixed one of a row's addresses, "" where each holds a tenant's part.
func address(s string) string {
	for _, alt := range strings.Split(s, "||") {
		if alt = strings.TrimSpace(alt); !strings.ContainsAny(alt, "{}") {
			return alt
		}
	}
	return ""
}

// reason says why a row cannot be said, "" where it can.
func (e *endpoint) reason() string {
	if why := unsayable[e.ID]; why != "" {
		return why
	}
	if address(e.AuthorizeURL) == "" || address(e.TokenURL) == "" {
		return tenant
	}
	return ""
}

// literal says whether a value is one, and not a remark about it.
var literal = regexp.MustCompile(`^[A-Za-z0-9._:/-]+$`).MatchString

func literals(in map[string]string) map[string]string {
	out := make(map[string]string)
	for k, v := range in {
		if literal(v) && !byDefault(k, v) {
			out[k] = v
		}
	}
	return out
}

// byDefault says whether a parameter says what holds without it: the answer to
// response_type=code comes in the query (OAuth 2.0 Multiple Response Types, section 2.1).
func byDefault(name, value string) bool { return name == "response_mode" && value == "query" }

// sampleScopes stand in for the member's, so that the separator can be seen.
var sampleScopes = []string{"a.read", "b:read"}

// scoped is what is asked for.
func (e *endpoint) scoped() []string {
	if e.Separator == nil {
		return e.Scopes
	}
	return append(slices.Clone(e.Scopes), sampleScopes...)
}

// pkceOn says whether the facts allow PKCE: documentation first, then what works for others.
func (e *endpoint) pkceOn() bool {
	if e.PKCE.Supported != nil {
		return *e.PKCE.Supported
	}
	return e.PKCE.Nango_sends != nil && *e.PKCE.Nango_sends
}

func registrable(t *testing.T, s string) string {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	d, err := publicsuffix.EffectiveTLDPlusOne(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

var identifier = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`).MatchString

// manifest writes the row in the manifest language: by rule, and where the facts are prose,
// by said.json.
func (e *endpoint) manifest(t *testing.T, said map[string]any) []byte {
	t.Helper()
	scopes := e.scoped()
	if scopes == nil {
		scopes = []string{}
	}
	o := map[string]any{
		"authorize_url": address(e.AuthorizeURL), "token_url": address(e.TokenURL), "scopes": scopes, "scopes_write": append(slices.Clone(scopes), "all.write"),
		"client_auth": "post", "token_body": "form", "pkce": map[string]string{"off": "The facts say no"}, "dead": []string{"invalid_grant"},
		"authorize_params": literals(e.Authorize), "token_params": literals(e.Token), "refresh_params": literals(e.Refresh),
		"refresh": map[string]any{"rotates": e.RefreshToken.Rotates == true}, "revoke": map[string]string{"none": "In the settings of the service"},
	}
	if e.Separator == nil {
		o["scopes_write"] = scopes
	}
	if e.RefreshToken.Issued == false {
		o["refresh"] = map[string]string{"none": "The facts say so"}
	}
	if e.ClientAuth != "" {
		o["client_auth"] = e.ClientAuth
	}
	if e.Body != "" {
		o["token_body"] = e.Body
	}
	if e.RefreshURL != "" {
		o["refresh_url"] = address(e.RefreshURL)
	}
	if e.pkceOn() {
		o["pkce"] = "supported"
	}
	if e.Separator != nil && *e.Separator != " " {
		o["scope_separator"] = *e.Separator
	}
	if len(e.Callback) > 0 {
		o["callback_keep"] = e.Callback
	}
	var keep []string
	for _, k := range e.TokenResponse.Extra {
		if identifier(k) {
			keep = append(keep, k)
		}
	}
	if keep != nil {
		o["token_keep"] = keep
	}
	if strings.HasPrefix(e.TokenResponse.ExpiresIn, "absent") && strings.Contains(e.TokenResponse.ExpiresIn, "assumes") {
		o["expires_in_default"] = e.Lifetime
	}
	maps.Copy(o, said)
	host, err := url.Parse(address(e.TokenURL))
	if err != nil {
		t.Fatal(err)
	}
	links := make(map[string]string)
	for _, a := range []any{o["authorize_url"], o["refresh_url"]} {
		if s, _ := a.(string); s != "" && registrable(t, s) != registrable(t, "https://"+host.Host) {
			links[registrable(t, s)] = "Another domain of the same company"
		}
	}
	if r, _ := o["revoke"].(map[string]any); r != nil {
		links[registrable(t, r["url"].(string))] = "Another domain of the same company"
	}
	name, _, _ := strings.Cut(e.Name, " (")
	m := map[string]any{
		"manifest": 1, "id": e.ID, "version": "1.0.0", "name": name, "about": "A row of the facts about token endpoints", "host": host.Host,
		"auth": map[string]any{"authorization": map[string]string{"pasted": "no", "why": "This is about OAuth"}, "links": links, "oauth": o},
		"ops": map[string]any{"whoami": map[string]any{
			"title": "Who am I", "about": "The account", "access": "read", "method": "GET", "path": "/me", "pick": map[string]any{"fields": []string{"id"}},
		}},
	}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func readJSON(t *testing.T, file string, v any) {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, v); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// TestEndpoints says each of the 142 rows in a manifest, runs its flow, a refresh and a
// revocation through the broker, and holds what arrives against the row.
func TestEndpoints(t *testing.T) {
	var rows []*endpoint
	readJSON(t, "testdata/endpoints/facts.json", &rows)
	var said map[string]map[string]any
	readJSON(t, "testdata/endpoints/said.json", &said)
	if len(rows) != 142 {
		t.Fatalf("%d rows, want 142", len(rows))
	}
	more := make(map[string][]byte)
	reasons := make(map[string][]string)
	var sayable []*endpoint
	for _, e := range rows {
		if why := e.reason(); why != "" {
			reasons[why] = append(reasons[why], e.ID)
			continue
		}
		data := e.manifest(t, said[e.ID])
		if _, err := integrations.Parse(data); err != nil {
			t.Errorf("%s: the manifest does not load: %v", e.ID, err)
			continue
		}
		more[e.ID] = data
		sayable = append(sayable, e)
	}
	for id := range said {
		if more[id] == nil {
			t.Errorf("said.json speaks of %s, which is not said", id)
		}
	}
	if t.Failed() {
		return
	}
	for _, why := range slices.Sorted(maps.Keys(reasons)) {
		t.Logf("not said, %s: %s", why, strings.Join(reasons[why], ", "))
	}
	t.Logf("%d rows are said, %d are not", len(sayable), len(rows)-len(sayable))
	if len(sayable) < 110 {
		t.Errorf("only %d rows are said", len(sayable))
	}
	s := brokertest.New(t, brokertest.Options{More: more, Config: func(c *broker.Config) { c.AllowWiderRevoke = true; unlimited(c) }})
	for _, e := range sayable {
		t.Run(e.ID, func(t *testing.T) { e.run(t, s, said[e.ID]) })
	}
}

// one returns the one call of a kind.
func one(t *testing.T, s *brokertest.Server, kind string) *brokertest.Call {
	t.Helper()
	calls := s.Upstream.Calls(kind)
	if len(calls) != 1 {
		t.Fatalf("%d calls of kind %s, want 1", len(calls), kind)
	}
	return calls[0]
}

func at(c *brokertest.Call) string { return "https://" + c.Host + c.Path }

// run holds one row's requests against it.
func (e *endpoint) run(t *testing.T, s *brokertest.Server, said map[string]any) {
	name := func(n string) string {
		if names, _ := said["param_names"].(map[string]any); names[n] != nil {
			return names[n].(string)
		}
		return n
	}
	same := func(what string, got, want any) {
		t.Helper()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	id, secret := "client-"+e.ID, "secret_"+brokertest.Sentinel+"_"+e.ID+"+/=%"
	callback := s.URL + "/oauth/" + e.ID + "/callback"
	answerOf := e.answer(said)
	s.Upstream.Reset()
	s.Upstream.SetAnswer(func(c *brokertest.Call) *brokertest.Answer {
		if c.Kind == brokertest.Token || c.Kind == brokertest.Refresh {
			return answerOf
		}
		return nil
	})

	// The flow, with what this provider adds to the callback.
	b := s.Browser()
	ask := &brokertest.Ask{Service: e.ID}
	back := b.Approve(t, ask)
	for _, k := range e.Callback {
		back += "&" + url.Values{k: {"kept-" + k}}.Encode()
	}
	out, err := ask.Open(b.Get(t, back))
	if err != nil {
		t.Fatal(err)
	}
	if out.Error != "" || out.Secret.Reveal() != "at-1" {
		t.Fatalf("outcome %q %v", out.Error, out)
	}
	for _, k := range e.Callback {
		same("callback_extra "+k, out.Keep[k], "kept-"+k)
	}
	if keep, ok := said["token_keep"].([]any); ok {
		for _, k := range keep {
			same("kept "+k.(string), out.Keep[k.(string)] != "", true)
		}
	}
	if strings.HasPrefix(e.TokenResponse.ExpiresIn, "absent") && !strings.Contains(e.TokenResponse.ExpiresIn, "assumes") && said["expires_in_default"] == nil &&
		!strings.Contains(e.TokenResponse.ExpiresIn, "date") {
		same("expires_in", out.ExpiresIn, 0)
	} else if e.Lifetime != 0 {
		same("expires_in", out.ExpiresIn, e.Lifetime)
	}

	// The authorize address.
	a := one(t, s, brokertest.Authorize)
	q := a.Query
	want := address(e.AuthorizeURL)
	if mustPath(t, want) == "" {
		want += "/" // as HTTP has it
	}
	same("authorize address", at(a), want)
	same("client_id", q.Get(name("client_id")), id)
	same("redirect_uri", q.Get("redirect_uri"), callback)
	omitted := fmt.Sprint(said["authorize_omit"])
	same("response_type", q.Get("response_type"), map[bool]string{true: "", false: "code"}[strings.Contains(omitted, "response_type")])
	if len(q.Get("state")) != 22 {
		t.Errorf("state %q", q.Get("state"))
	}
	switch sc := e.scoped(); {
	case len(sc) == 0, strings.Contains(omitted, "scope"):
		same("no scope", q.Has(name("scope")), false)
	case e.Separator == nil:
		same("scope", q.Get(name("scope")), strings.Join(sc, " "))
	default:
		same("scope", q.Get(name("scope")), strings.Join(sc, *e.Separator))
	}
	pkce := e.pkceOn()
	if m, off := said["pkce"].(map[string]any); off && m["off"] != "" {
		pkce = false
	}
	if pkce {
		same("code_challenge_method", q.Get("code_challenge_method"), "S256")
		same("code_challenge", len(q.Get("code_challenge")), 43)
	} else {
		same("PKCE", q.Has("code_challenge") || q.Has("code_challenge_method"), false)
	}
	for k, v := range e.Authorize {
		switch {
		case byDefault(k, v):
			same(k, q.Has(k), false)
		case literal(v):
			same("authorize_params "+k, q.Get(k), v)
		case v == "${random}":
			same("authorize_params "+k, len(q.Get(k)), 22)
		case k == "user_scope", strings.HasSuffix(v, "optional"):
		default: // "consent (optional; …)", "user|app (optional)"
			same("authorize_params "+k, strings.Contains(v, q.Get(k)) && q.Get(k) != "", true)
		}
	}

	// The exchange.
	c := one(t, s, brokertest.Token)
	same("token address", at(c), address(e.TokenURL))
	e.checkRequest(t, c, id, secret, name, said, e.Token)
	same("grant_type", c.Form.Get("grant_type"), "authorization_code")
	same("code", strings.HasPrefix(c.Form.Get(name("code")), "code_"), true)
	same("redirect_uri", c.Form.Get("redirect_uri"), callback)
	same("code_verifier", c.Form.Has("code_verifier"), pkce)
	same("state", c.Form.Get("state"), map[bool]string{true: q.Get("state"), false: ""}[e.Token["state"] != ""])

	// A refresh.
	if e.RefreshToken.Issued == false {
		same("refresh token", out.Refresh.IsZero(), true)
	} else {
		r := redeem(t, s, e.ID, out.Refresh.Reveal())
		if r.Answer == nil || r.Answer.Secret.Reveal() != "at-1" {
			t.Fatalf("a refresh: %s", r.outcome())
		}
		c := one(t, s, brokertest.Refresh)
		want := address(e.TokenURL)
		if e.RefreshURL != "" {
			want = address(e.RefreshURL)
		}
		same("refresh address", at(c), want)
		e.checkRequest(t, c, id, secret, name, said, e.Refresh)
		same("grant_type", c.Form.Get("grant_type"), "refresh_token")
		same("refresh_token", c.Form.Get("refresh_token"), "rt-1")
		same("redirect_uri", c.Form.Get("redirect_uri"), map[bool]string{true: callback, false: ""}[e.Refresh["redirect_uri"] != ""])
	}
	for _, code := range e.Errors.Dead {
		if strings.Contains(code, "(code)") {
			continue
		}
		if word, _, ok := strings.Cut(code, " ("); ok {
			code = word
		}
		code, _, _ = strings.Cut(code, " with ")
		e.dead(t, s, said, code)
	}
	e.checkRevoke(t, s, id, secret, said)
}

func mustPath(t *testing.T, s string) string {
	t.Helper()
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u.Path
}

// answer is a token answer of the row's shape.
func (e *endpoint) answer(said map[string]any) *brokertest.Answer {
	obj := map[string]any{"access_token": "at-1", "token_type": "Bearer"}
	if e.RefreshToken.Issued != false {
		obj["refresh_token"] = "rt-1"
	}
	if e.Lifetime != 0 && !strings.HasPrefix(e.TokenResponse.ExpiresIn, "absent") {
		obj["expires_in"] = e.Lifetime
	}
	if strings.HasPrefix(e.TokenResponse.ExpiresIn, "string") {
		obj["expires_in"] = "3600"
	}
	h := http.Header{"Content-Type": {"application/json"}}
	if strings.Contains(e.TokenResponse.ExpiresIn, "date") {
		h.Set("Date", "Tue, 01 Dec 2026 12:00:00 GMT")
		obj["expires_at"] = "2026-12-31T12:00:00Z" // 30 days
	}
	top := obj
	if root, _ := said["token_root"].(string); root != "" {
		top = map[string]any{root: obj, "ok": true}
		if list, _ := said["token_type"].([]any); len(list) > 0 {
			obj["token_type"] = list[0]
		}
	}
	keep := slices.Clone(e.TokenResponse.Extra)
	if list, ok := said["token_keep"].([]any); ok {
		for _, k := range list {
			keep = append(keep, k.(string))
		}
	}
	for _, k := range keep {
		if !identifier(k) {
			continue
		}
		if outer, inner, nested := strings.Cut(k, "."); nested {
			if top[outer] == nil {
				top[outer] = map[string]any{}
			}
			if m, ok := top[outer].(map[string]any); ok && m["access_token"] == nil {
				m[inner] = "value"
			}
		} else if top[k] == nil {
			top[k] = "value"
		}
	}
	a := brokertest.JSON(200, top)
	a.Header = h
	return a
}

// checkRequest holds what all requests to a token endpoint have in common against the row.
func (e *endpoint) checkRequest(t *testing.T, c *brokertest.Call, id, secret string, name func(string) string, said map[string]any, params map[string]string) {
	t.Helper()
	want := "application/x-www-form-urlencoded"
	if e.Body == "json" {
		want = "application/json"
	}
	if got := c.Header.Get("Content-Type"); got != want || c.Method != "POST" {
		t.Errorf("%s %s, want POST %s", c.Method, got, want)
	}
	for k, v := range params {
		if literal(v) && c.Form.Get(k) != v {
			t.Errorf("parameter %s: %q, want %q", k, c.Form.Get(k), v)
		}
	}
	style := e.ClientAuth
	if style == "" {
		style = "post"
	}
	for _, q := range e.Quirks { // where the prose says more than the column
		switch {
		case strings.Contains(q, "secret key as USER name"):
			style = "secret as user"
		case strings.HasPrefix(q, "public client"):
			style = "public"
		}
	}
	user, pass, basic := (&http.Request{Header: c.Header}).BasicAuth()
	got := fmt.Sprintf("basic %v %q %q, body %q %q", basic, user, pass, c.Form.Get(name("client_id")), c.Form.Get(name("client_secret")))
	form := map[string]string{
		"post":           fmt.Sprintf("basic false %q %q, body %q %q", "", "", id, secret),
		"basic":          fmt.Sprintf("basic true %q %q, body %q %q", url.QueryEscape(id), url.QueryEscape(secret), "", ""),
		"secret as user": fmt.Sprintf("basic true %q %q, body %q %q", secret, "", "", ""),
		"public":         fmt.Sprintf("basic false %q %q, body %q %q", "", "", id, ""),
	}[style]
	if got != form {
		t.Errorf("client: %s, want %s", got, form)
	}
	for k, vs := range c.Form {
		if len(vs) != 1 || c.Query.Has(k) {
			t.Errorf("parameter %s stands %d times", k, len(vs))
		}
	}
}

// dead holds the row's word for a dead grant against the class that comes of it.
func (e *endpoint) dead(t *testing.T, s *brokertest.Server, said map[string]any, code string) {
	t.Helper()
	path := "error"
	if list, _ := said["error_at"].([]any); len(list) > 0 {
		path = list[0].(string)
	}
	status := 400
	if strings.Contains(strings.Join(e.Errors.Dead, " "), "403") {
		status = 403
	}
	if s := strings.Join(e.Quirks, " ") + e.TokenResponse.ExpiresIn; strings.Contains(s, "HTTP 200") {
		status = 200
	}
	s.Upstream.SetAnswer(func(*brokertest.Call) *brokertest.Answer { return brokertest.JSON(status, map[string]any{path: code}) })
	if got := redeem(t, s, e.ID, s.Broker.Wrap(e.ID, brokertest.Instance, "rt-dead")).outcome(); got != "dead:"+code {
		t.Errorf("%s at %d: %s, want dead", code, status, got)
	}
}

// checkRevoke ends a connection and holds the call against the row.
func (e *endpoint) checkRevoke(t *testing.T, s *brokertest.Server, id, secret string, said map[string]any) {
	t.Helper()
	s.Upstream.Reset()
	s.Upstream.SetAnswer(nil)
	r, _ := said["revoke"].(map[string]any)
	if (r != nil) != (e.Revoke.URL != "") && address(e.Revoke.URL) != "" {
		t.Fatalf("the facts have a revocation at %q, said is %v", e.Revoke.URL, r)
	}
	keep := map[string]string{"stripe_user_id": "acct_1", "merchant_id": "m_1"}
	wrap := s.Broker.Wrap(e.ID, brokertest.Instance, "rt-1")
	if r != nil && r["style"] == "deauthorize" {
		wrap = s.Broker.WrapKept(e.ID, brokertest.Instance, "rt-1", keep[r["param"].(string)])
	}
	p, err := s.PostJSON("/api/revoke", instanceToken(s), map[string]any{"service": e.ID, "secret": "at-1", "refresh": wrap, "keep": keep})
	if err != nil {
		t.Fatal(err)
	}
	if r == nil {
		if !strings.Contains(p.Body, `"where"`) || s.Upstream.Secret() != 0 {
			t.Errorf("no revocation: %s, %d calls", p.Body, s.Upstream.Secret())
		}
		return
	}
	if p.Body != `{"revoked":true}` {
		t.Errorf("revocation: %s", p.Body)
	}
	c := one(t, s, brokertest.Revoke)
	if got, want := at(c), strings.ReplaceAll(e.Revoke.URL, "{client_id}", id); got != want || c.Method != e.Revoke.Method {
		t.Errorf("revocation: %s %s, want %s %s", c.Method, got, e.Revoke.Method, want)
	}
	user, pass, basic := (&http.Request{Header: c.Header}).BasicAuth()
	auth := c.Header.Get("Authorization")
	inBody := c.Form.Get("client_secret") == secret && c.Form.Get("client_id") == id
	raw := strings.HasPrefix(e.Revoke.Auth, "basic client_id") // GitHub's own
	unescape := func(s string) string {
		if v, err := url.QueryUnescape(s); err == nil && !raw {
			return v
		}
		return s
	}
	var ok bool
	switch want := e.Revoke.Auth; {
	case strings.HasPrefix(want, "basic"):
		ok = basic && unescape(user) == id && unescape(pass) == secret && !inBody
	case strings.HasPrefix(want, "client credentials"), strings.HasPrefix(want, "client_id+client_secret"):
		ok = !basic && inBody
	case strings.HasPrefix(want, "none"):
		ok = auth == "" && !c.Form.Has("client_secret")
	case strings.HasPrefix(want, "Authorization: Client"):
		ok = auth == "Client "+secret
	case strings.HasPrefix(want, "Authorization header"):
		ok = auth == "Bearer "+secret
	case strings.HasPrefix(want, "Bearer access token, or form field"):
		ok = c.Form.Has("access_token") || c.Form.Has("refresh_token")
	case strings.HasPrefix(want, "Bearer"):
		ok = auth == "Bearer at-1" && !c.Form.Has("client_id")
	}
	if !ok {
		t.Errorf("revocation authenticated as %q with %q, want %s", auth, c.Body, e.Revoke.Auth)
	}
	json := strings.HasPrefix(c.Header.Get("Content-Type"), "application/json")
	if want := strings.HasPrefix(e.Revoke.Form, "JSON"); want != json {
		t.Errorf("revocation as %s, want %s", c.Header.Get("Content-Type"), e.Revoke.Form)
	}
	form, _, _ := strings.Cut(e.Revoke.Form, ";")
	for _, field := range regexp.MustCompile(`[a-z_]+`).FindAllString(form, -1) {
		switch field {
		case "token", "token_type_hint", "client_id", "stripe_user_id", "access_token", "merchant_id", "refresh_token":
			if strings.Contains(form, " or "+field) || strings.Contains(form, field+" or ") {
				continue
			}
			if strings.HasPrefix(e.Revoke.Form, "token (") && field != "token" {
				continue
			}
			if strings.Contains(e.Revoke.Form, "("+field) {
				continue
			}
			if !c.Form.Has(field) {
				t.Errorf("revocation lacks %s: %q, want %s", field, c.Body, e.Revoke.Form)
			}
		}
	}
}
