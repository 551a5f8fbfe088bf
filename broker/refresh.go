package broker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A wrapped is what stands inside a wrap.
type wrapped struct {
	refresh string // the provider's token
	origin  string // the consented one, to which the wrap is bound
	vouched string // of vouched; "" where the provider said nothing of the kind, and in older wraps
}

// vouched returns the digest of the kept value by which the service ends this connection,
// where ending one takes that value alone and the provider gave it beside the pair. It is
// sealed into the wrap: anybody can know another account's id. What an address brought back
// (callback_keep) the person herself could have written, and is not vouched for.
func vouched(o *integrations.OAuth, a *tokenAnswer) string {
	if o.Revoke == nil || o.Revoke.Style != "deauthorize" || a.keep[o.Revoke.Param] == "" {
		return ""
	}
	return vouch(a.keep[o.Revoke.Param])
}

func vouch(value string) string {
	sum := sha256.Sum256([]byte(value))
	return string(sum[:])
}

// wrapToken wraps a provider's refresh token for one service and one consented origin:
// rt1.<kid>.<sealed>. Whoever holds it can redeem it only here.
func (b *Broker) wrapToken(service string, w wrapped) string {
	text := w.refresh
	if w.vouched != "" {
		text += "\x00" + w.vouched // no token has a zero byte
	}
	kid, sealed := b.wrap.seal([]byte(text), service, w.origin)
	return "rt1." + kid + "." + base64.RawURLEncoding.EncodeToString(sealed)
}

// unwrapToken opens a wrap that is bound to one of the caller's origins.
func (b *Broker) unwrapToken(service string, origins []string, wrap string) (wrapped, error) {
	rest, ok := strings.CutPrefix(wrap, "rt1.")
	kid, text, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(wrap) > custody.MaxWrap {
		return wrapped{}, errSealed
	}
	sealed, err := decode64(text)
	if err != nil {
		return wrapped{}, errSealed
	}
	for _, o := range origins {
		pt, err := b.wrap.open(kid, sealed, service, o)
		if errors.Is(err, errUnknownKey) {
			return wrapped{}, err
		}
		if err == nil {
			w := wrapped{origin: o}
			w.refresh, w.vouched, _ = strings.Cut(string(pt), "\x00")
			return w, nil
		}
	}
	return wrapped{}, errSealed
}

type refreshRequest struct {
	Service string `json:"service"`
	Refresh string `json:"refresh"` // wrapped
	Key     string `json:"key"`     // the caller's one-time public key
}

// refresh answers POST /api/refresh. All that can fail here is done before the provider is
// asked; after that the answer only has to be sealed. The provider's call outlives the
// caller's connection, but never this function.
func (b *Broker) refresh(ctx context.Context, claims *Claims, req *refreshRequest, body []byte) (*custody.Envelope, error) {
	m := b.service(req.Service)
	if m == nil {
		return nil, &refusal{http.StatusNotFound, "no_such_service"}
	}
	noteOf(ctx).service = m.ID
	key, err := parseKey(req.Key)
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "malformed"}
	}
	w, err := b.unwrapToken(m.ID, claims.Origins, req.Refresh)
	switch {
	case errors.Is(err, errUnknownKey):
		return nil, &RefreshError{Class: Misconfigured, Code: "unknown_wrapping_key"}
	case err != nil:
		return nil, &refusal{http.StatusUnauthorized, "unauthorized"}
	}
	if m.Auth.OAuth.Refresh != nil && m.Auth.OAuth.Refresh.None != "" {
		return nil, &refusal{http.StatusBadRequest, "no_refresh"}
	}
	// What sealing could fail at is found while nothing is lost.
	sealer, err := custody.NewAnswerSealer(key, custody.PurposeRefresh, custody.RefreshOp(body))
	if err != nil {
		return nil, &refusal{http.StatusBadRequest, "malformed"}
	}
	a, err := b.refreshAt(ctx, m, w.refresh)
	if err != nil {
		return nil, err
	}
	out := &custody.RefreshAnswer{Secret: integrations.NewSecret(a.access), Refresh: integrations.NewSecret(req.Refresh), Same: true,
		ExpiresIn: a.expiresIn, Scopes: a.scopes, Keep: a.keep}
	next := w
	if a.refresh != "" {
		next.refresh = a.refresh
	}
	if v := vouched(m.Auth.OAuth, a); v != "" {
		next.vouched = v
	}
	if next != w {
		out.Refresh, out.Same = integrations.NewSecret(b.wrapToken(m.ID, next)), false
	}
	env, err := sealer.Seal(out)
	if err != nil {
		// Too large with what came beside the pair: the pair itself always fits.
		out.Scopes, out.Keep = nil, nil
		if env, err = sealer.Seal(out); err != nil {
			return nil, &RefreshError{Class: Temporary, Code: "unsealable", Spent: true}
		}
	}
	return env, nil
}

type revokeRequest struct {
	Service string            `json:"service"`
	Secret  string            `json:"secret,omitempty"`
	Refresh string            `json:"refresh,omitempty"` // wrapped
	Keep    map[string]string `json:"keep,omitempty"`
}

type revokeAnswer struct {
	Revoked bool   `json:"revoked"`
	Why     string `json:"why,omitempty"`
	Where   string `json:"where,omitempty"`

	gone bool // the service did not know the token
}

// revoke answers POST /api/revoke. That it did not work is an answer, not a failure: whoever
// disconnects forgets the pair either way, and is told.
func (b *Broker) revoke(ctx context.Context, claims *Claims, req *revokeRequest, _ []byte) (*revokeAnswer, error) {
	m := b.service(req.Service)
	if m == nil {
		return nil, &refusal{http.StatusNotFound, "no_such_service"}
	}
	noteOf(ctx).service = m.ID
	o := m.Auth.OAuth
	if req.Secret != "" && !goodToken(req.Secret) || len(req.Keep) > 16 {
		return nil, &refusal{http.StatusBadRequest, "malformed"}
	}
	for k, v := range req.Keep {
		if len(k) > 64 || !goodKept(v) {
			return nil, &refusal{http.StatusBadRequest, "malformed"}
		}
	}
	// Whoever ends a connection holds it: what is public of it, as an account's id, is not enough.
	if req.Secret == "" && req.Refresh == "" {
		return nil, &refusal{http.StatusBadRequest, "malformed"}
	}
	var w wrapped
	if req.Refresh != "" {
		var err error
		if w, err = b.unwrapToken(m.ID, claims.Origins, req.Refresh); errors.Is(err, errUnknownKey) {
			return nil, &RefreshError{Class: Misconfigured, Code: "unknown_wrapping_key"}
		} else if err != nil {
			return nil, &refusal{http.StatusUnauthorized, "unauthorized"}
		}
	}
	v := o.Revoke
	switch {
	case v == nil:
		return &revokeAnswer{Why: "the service has no way to do it"}, nil
	case v.None != "":
		return &revokeAnswer{Why: "the service has no way to do it", Where: v.None}, nil
	case v.Reach != "token" && !b.cfg.AllowWiderRevoke:
		return &revokeAnswer{Why: "it would end more than this connection, and this broker's operator does not allow that"}, nil
	case v.Style == "deauthorize" && req.Keep[v.Param] == "":
		return &revokeAnswer{Why: "what the service asks for was not kept"}, nil
	case v.Style == "deauthorize" && w.vouched == "":
		return &revokeAnswer{Why: "the broker cannot tell whose account it is: the connection's refresh token is missing, or from before that stood in it; renewing the connection mends the second"}, nil
	case v.Style == "deauthorize" && w.vouched != vouch(req.Keep[v.Param]):
		return nil, &refusal{http.StatusBadRequest, "malformed"} // another account's
	}
	ctx, cancel := b.upstream.within(ctx)
	defer cancel()
	switch {
	case v.Style == "deauthorize":
		return b.revokeAt(ctx, m, "", req.Keep)
	case v.Takes == "refresh" && w.refresh != "":
		return b.revokeAt(ctx, m, w.refresh, nil)
	case v.Takes == "refresh":
		return &revokeAnswer{Why: "the token that the service asks for is not at hand"}, nil
	}
	if req.Secret != "" {
		ans, err := b.revokeAt(ctx, m, req.Secret, nil)
		if err != nil || !ans.gone || w.refresh == "" {
			return ans, err
		}
	}
	// The access token has run out, and its connection lives on in the refresh token, which
	// the service does not take: a fresh access token ends both.
	a, err := b.refreshAt(ctx, m, w.refresh)
	var re *RefreshError
	switch {
	case errors.As(err, &re) && re.Class == Dead:
		return &revokeAnswer{Revoked: true}, nil
	case err != nil:
		return nil, err
	}
	ans, err := b.revokeAt(ctx, m, a.access, nil)
	if errors.As(err, &re) {
		re.Spent = true // the fresh pair goes no further than here
	}
	return ans, err
}

// revokeAt makes the call that ends a connection.
func (b *Broker) revokeAt(ctx context.Context, m *integrations.Manifest, token string, keep map[string]string) (ans *revokeAnswer, err error) {
	o := m.Auth.OAuth
	err = b.withClient(ctx, m, o.Revoke.URL, func(c Client) error {
		r, err := b.upstream.do(ctx, func() (*http.Request, error) { return revokeCall(o, c, token, keep) })
		if err == nil {
			ans, err = readRevoke(o, r, b.cfg.Now())
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return ans, nil
}

// revokeCall builds the call that ends a connection, in one of the five shapes.
func revokeCall(o *integrations.OAuth, c Client, token string, keep map[string]string) (*http.Request, error) {
	v := o.Revoke
	to := strings.ReplaceAll(v.URL, "{client_id}", escapeSegment(c.ID))
	body, auth, scheme := v.Body, v.ClientAuth, v.Scheme
	if body == "" {
		body = "form"
	}
	if auth == "" {
		auth = o.ClientAuth
	}
	if scheme == "" {
		scheme = "Bearer"
	}
	switch v.Style {
	case "github-token": // DELETE with Basic, the access token in JSON
		req, err := formOrJSON(http.MethodDelete, to, "json", []integrations.Pair{{Name: "access_token", Value: token}})
		if err == nil {
			basicAuth(req, "basic_raw", c)
		}
		return req, err
	case "deauthorize": // the client's secret in the header, the kept value in the body
		req, err := formOrJSON(http.MethodPost, to, body, []integrations.Pair{{Name: "client_id", Value: c.ID}, {Name: v.Param, Value: keep[v.Param]}})
		if err == nil {
			req.Header.Set("Authorization", scheme+" "+c.Secret.Reveal())
		}
		return req, err
	case "bearer": // as the connection itself, with no client
		req, err := formOrJSON(http.MethodPost, to, body, nil)
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		return req, err
	}
	param := v.Param
	if param == "" {
		param = "token"
	}
	params := []integrations.Pair{{Name: param, Value: token}}
	if v.Style == "rfc7009" {
		params = append(params, integrations.Pair{Name: "token_type_hint", Value: v.Takes + "_token"})
	}
	if v.Style == "form" && auth == "none" && v.ClientAuth == "none" {
		return formOrJSON(http.MethodPost, to, body, params) // whoever has the token may
	}
	return tokenRequest(&integrations.OAuth{ClientAuth: auth, TokenBody: body, ParamNames: o.ParamNames}, c, grantRequest{url: to, params: params})
}

func escapeSegment(s string) string {
	return strings.NewReplacer("/", "%2F", "?", "%3F", "#", "%23", "%", "%25", "\\", "%5C").Replace(s)
}

// readRevoke reads what came of it: done, or gone already, is revoked.
func readRevoke(o *integrations.OAuth, r *reply, now time.Time) (*revokeAnswer, error) {
	code, ok := "", true
	if top := readObject(r); top != nil {
		code, _ = errorCode(o, top)
		ok = at(top, "ok") != false
	}
	fail := func(class Class, code string) (*revokeAnswer, error) {
		return nil, &RefreshError{Class: class, Code: code, RetryAfter: retryAfter(r.header, now), Status: r.status}
	}
	// The manifest's own list, and what says so at every provider (RFC 7009, section 2.2.1,
	// and the names that some give it).
	gone := slices.Contains(append([]string{"invalid_token", "token_revoked", "invalid_grant"}, o.Revoke.Gone...), code) ||
		slices.Contains(o.Revoke.Gone, strconv.Itoa(r.status))
	switch {
	case passing(r.status):
		return fail(Temporary, passingCode(r.status))
	case slices.Contains(operatorCodes, code):
		return fail(Misconfigured, code)
	case gone:
		return &revokeAnswer{Revoked: true, gone: true}, nil
	case r.status < 300 && ok && (code == "" || code == "success"):
		return &revokeAnswer{Revoked: true}, nil
	case r.status == http.StatusUnauthorized:
		return fail(Misconfigured, "invalid_client")
	}
	return &revokeAnswer{Why: "the service refused"}, nil
}

// count writes one metric in CloudWatch's embedded format: one line, one write.
func (b *Broker) count(name, service string) {
	if b.cfg.Metrics == nil {
		return
	}
	// Without a stack's name the dimensions are the service's alone.
	fields, dims := map[string]any{"level": "INFO", "service": service, name: 1}, [][]string{{}, {"service"}}
	if b.cfg.Stack != "" {
		fields["stack"], dims = b.cfg.Stack, [][]string{{"stack"}, {"stack", "service"}}
	}
	fields["_aws"] = map[string]any{"Timestamp": b.cfg.Now().UnixMilli(), "CloudWatchMetrics": []any{map[string]any{
		"Namespace": "Connect", "Dimensions": dims, "Metrics": []any{map[string]string{"Name": name, "Unit": "Count"}},
	}}}
	line, err := json.Marshal(fields)
	if err == nil {
		b.cfg.Metrics.Write(append(line, '\n'))
	}
}
