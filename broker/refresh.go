package broker

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// wrapToken wraps a provider's refresh token for one service and one consented origin:
// rt1.<kid>.<sealed>. Whoever holds it can redeem it only here.
func (b *Broker) wrapToken(service, origin, refresh string) string {
	kid, sealed := b.wrap.seal([]byte(refresh), service, origin)
	return "rt1." + kid + "." + base64.RawURLEncoding.EncodeToString(sealed)
}

// unwrapToken returns the provider's token, and the caller's origin that it belongs to.
func (b *Broker) unwrapToken(service string, origins []string, wrapped string) (refresh, origin string, err error) {
	rest, ok := strings.CutPrefix(wrapped, "rt1.")
	kid, text, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 || len(wrapped) > 11264 {
		return "", "", errSealed
	}
	sealed, err := base64.RawURLEncoding.Strict().DecodeString(text)
	if err != nil {
		return "", "", errSealed
	}
	for _, o := range origins {
		pt, err := b.wrap.open(kid, sealed, service, o)
		if errors.Is(err, errUnknownKey) {
			return "", "", err
		}
		if err == nil {
			return string(pt), o, nil
		}
	}
	return "", "", errSealed
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
	token, origin, err := b.unwrapToken(m.ID, claims.Origins, req.Refresh)
	switch {
	case errors.Is(err, errUnknownKey):
		return nil, &RefreshError{Class: Misconfigured, Code: "unknown_wrapping_key"}
	case err != nil:
		return nil, &refusal{http.StatusUnauthorized, "unauthorized"}
	}
	sum := sha256.Sum256(body)
	op := base64.RawURLEncoding.EncodeToString(sum[:])
	// Sealed once for nothing: what cannot be sealed later is found while nothing is lost.
	probe := &custody.RefreshAnswer{Secret: integrations.NewSecret("probe"), Refresh: integrations.NewSecret(req.Refresh)}
	if _, err := custody.SealAnswer(key, op, probe); err != nil {
		return nil, &refusal{http.StatusBadRequest, "malformed"}
	}
	a, err := b.refreshAt(detach(ctx), m, token)
	if err != nil {
		return nil, err
	}
	out := &custody.RefreshAnswer{Secret: integrations.NewSecret(a.access), Refresh: integrations.NewSecret(req.Refresh), Same: true,
		ExpiresIn: a.expiresIn, Scopes: a.scopes, Keep: a.keep}
	if a.refresh != "" && a.refresh != token {
		out.Refresh, out.Same = integrations.NewSecret(b.wrapToken(m.ID, origin, a.refresh)), false
	}
	env, err := custody.SealAnswer(key, op, out)
	if err != nil {
		// Too large with what came beside the pair: the pair itself always fits.
		out.Scopes, out.Keep = nil, nil
		if env, err = custody.SealAnswer(key, op, out); err != nil {
			return nil, &RefreshError{Class: Temporary, Code: "unsealable"}
		}
	}
	return env, nil
}

// detach returns a context that does not end with the caller's connection. The call to the
// provider has its own, shorter end (Config.UpstreamTimeout).
func detach(ctx context.Context) context.Context { return context.WithoutCancel(ctx) }

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
	refresh := ""
	if req.Refresh != "" {
		var err error
		if refresh, _, err = b.unwrapToken(m.ID, claims.Origins, req.Refresh); errors.Is(err, errUnknownKey) {
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
	}
	token := req.Secret
	if v.Takes == "refresh" {
		token = refresh
	}
	if v.Style != "deauthorize" && token == "" {
		return &revokeAnswer{Why: "the token that the service asks for is not at hand"}, nil
	}
	if v.Style == "deauthorize" && req.Keep[v.Param] == "" {
		return &revokeAnswer{Why: "what the service asks for was not kept"}, nil
	}
	c, err := b.client(ctx, m.ID, v.URL)
	if err != nil {
		return nil, err
	}
	r, err := b.upstream.do(detach(ctx), func() (*http.Request, error) { return revokeCall(o, c, token, req.Keep) })
	if err != nil {
		return nil, err
	}
	return readRevoke(o, r, b.cfg.Now())
}

// revokeCall builds the call that ends a connection, in one of the four shapes.
func revokeCall(o *integrations.OAuth, c Client, token string, keep map[string]string) (*http.Request, error) {
	v := o.Revoke
	to := strings.ReplaceAll(v.URL, "{client_id}", escapeSegment(c.ID))
	switch v.Style {
	case "github-token": // DELETE with Basic, the access token in JSON
		req, err := formOrJSON(http.MethodDelete, to, "json", []integrations.Pair{{Name: "access_token", Value: token}})
		if err == nil {
			basicAuth(req, "basic_raw", c)
		}
		return req, err
	case "deauthorize": // the client's secret as Bearer, the kept value in a form
		req, err := formOrJSON(http.MethodPost, to, "form", []integrations.Pair{{Name: "client_id", Value: c.ID}, {Name: v.Param, Value: keep[v.Param]}})
		if err == nil {
			req.Header.Set("Authorization", "Bearer "+c.Secret.Reveal())
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
	return tokenRequest(&integrations.OAuth{ClientAuth: o.ClientAuth, TokenBody: o.TokenBody, ParamNames: o.ParamNames}, c, grantRequest{url: to, params: params})
}

func escapeSegment(s string) string {
	return strings.NewReplacer("/", "%2F", "?", "%3F", "#", "%23", "%", "%25", "\\", "%5C").Replace(s)
}

// readRevoke reads what came of it: done, or gone already, is revoked.
func readRevoke(o *integrations.OAuth, r *reply, now time.Time) (*revokeAnswer, error) {
	code := ""
	if top := readObject(r); top != nil {
		code, _ = errorCode(o, top)
	}
	gone := r.status == http.StatusNotFound || r.status == http.StatusUnprocessableEntity ||
		code == "invalid_token" || code == "token_revoked" || code == "invalid_grant"
	switch {
	case r.status >= 200 && r.status < 300 && code == "" || r.status < 500 && gone:
		return &revokeAnswer{Revoked: true}, nil
	case r.status == 429 || r.status >= 500 || r.status < 400:
		return nil, &RefreshError{Class: Temporary, Code: "server", RetryAfter: retryAfter(r.header, now), Status: r.status}
	case slices.Contains(operatorCodes, code) || r.status == 401:
		return nil, &RefreshError{Class: Misconfigured, Code: "invalid_client", Status: r.status}
	}
	return &revokeAnswer{Why: "the service refused"}, nil
}

// count writes one metric in CloudWatch's embedded format: one line, one write.
func (b *Broker) count(name, service string) {
	if b.cfg.Metrics == nil {
		return
	}
	line, err := json.Marshal(map[string]any{
		"level": "INFO", "service": service, name: 1,
		"_aws": map[string]any{"Timestamp": b.cfg.Now().UnixMilli(), "CloudWatchMetrics": []any{map[string]any{
			"Namespace": "Connect", "Dimensions": [][]string{{}, {"service"}}, "Metrics": []any{map[string]string{"Name": name, "Unit": "Count"}},
		}}},
	})
	if err == nil {
		b.cfg.Metrics.Write(append(line, '\n'))
	}
}
