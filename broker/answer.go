package broker

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/integrations"
)

// A tokenAnswer is a pair, with what came beside it.
type tokenAnswer struct {
	access    string
	refresh   string // "" where the answer has none: the old one stays
	expiresIn int64  // seconds from receipt; 0 where it is not known
	scopes    []string
	scoped    bool // the answer said which scopes
	keep      map[string]string
}

// Codes that are the operator's to mend at every provider (RFC 6749, section 5.2, and the
// names that some give them).
var operatorCodes = []string{
	"invalid_client", "unauthorized_client", "unsupported_grant_type", "redirect_uri_mismatch", "incorrect_client_credentials",
	"invalid_client_id", "invalid_client_secret", "bad_client_secret",
}

// clientCodes, in lower case, say that the client itself is refused: RFC 6749's name, and what
// some providers call it.
var clientCodes = []string{"invalid_client", "incorrect_client_credentials", "invalid_client_id", "invalid_client_secret", "bad_client_id", "bad_client_secret"}

// unknownClient says that the provider refused the client itself.
func unknownClient(e *RefreshError) bool {
	return e.Class == Misconfigured && !e.Spent && slices.Contains(clientCodes, strings.ToLower(e.Code))
}

// readToken reads a token endpoint's answer: the pair first, all else as far as it can be
// read. A rotated pair is never lost to an odd field beside it. An answer that is neither a
// pair nor a clear no may stand for a token that was redeemed.
func readToken(o *integrations.OAuth, r *reply, now time.Time) (*tokenAnswer, error) {
	spent := r.status < 300
	fail := func(class Class, code string) (*tokenAnswer, error) {
		return nil, &RefreshError{Class: class, Code: code, RetryAfter: retryAfter(r.header, now), Status: r.status, Spent: spent}
	}
	if r.status >= 300 && r.status < 400 {
		return fail(Temporary, "redirect")
	}
	top := readObject(r)
	if top == nil {
		if passing(r.status) {
			return fail(Temporary, passingCode(r.status))
		}
		return fail(Temporary, "not_json")
	}
	code, msg := errorCode(o, top)
	obj := top
	if o.TokenRoot != "" {
		if in, ok := at(top, o.TokenRoot).(map[string]any); ok {
			obj = in
		}
	}
	name := func(n string) string {
		if own, ok := o.AnswerNames.Get(n); ok {
			return own
		}
		return n
	}
	access, _ := at(obj, name("access_token")).(string)
	switch {
	case stands(at(obj, name("access_token"))) || stands(at(obj, name("refresh_token"))):
		spent = true // whatever stands beside it
	case code != "" || at(top, "ok") == false:
		spent = false // a no, as some say it inside a 200
	}
	if code != "" || at(top, "ok") == false || r.status >= 400 || access == "" {
		return fail(classify(o, r.status, code, msg))
	}
	if !goodToken(access) {
		return fail(Misconfigured, "token_form")
	}
	if tt, ok := at(obj, name("token_type")).(string); ok && tt != "" && !strings.EqualFold(tt, "bearer") && !slices.Contains(o.TokenType, tt) {
		return fail(Misconfigured, "token_type") // trying again would not change it
	}
	a := &tokenAnswer{access: access}
	if v := at(obj, name("refresh_token")); stands(v) {
		s, _ := v.(string)
		if !goodToken(s) {
			return fail(Misconfigured, "token_form") // to go on with the old one would be to keep a spent one
		}
		a.refresh = s
	}
	a.expiresIn = lifetime(o, obj, name, access, dateOf(r.header, now))
	if v := at(obj, name("scope")); v != nil {
		a.scopes, a.scoped = readScopes(o, v)
	}
	for _, k := range o.TokenKeep {
		var text string
		switch v := at(top, k).(type) {
		case string:
			text = v
		case json.Number:
			text = v.String()
		}
		if text != "" && goodKept(text) {
			if a.keep == nil {
				a.keep = make(map[string]string)
			}
			a.keep[k] = text
		}
	}
	return a, nil
}

// stands says whether a token's member holds anything: some write null, "" or false where
// there is none.
func stands(v any) bool { return v != nil && v != "" && v != false }

// passing says whether a status is of a trouble that passes, whatever stands in the body.
func passing(status int) bool {
	return status >= 500 || status >= 300 && status < 400 || status == http.StatusTooManyRequests ||
		status == http.StatusRequestTimeout || status == http.StatusTooEarly
}

func passingCode(status int) string {
	switch {
	case status == http.StatusTooManyRequests:
		return "rate_limited"
	case status < 400:
		return "redirect"
	}
	return "server"
}

// classify says what a failure means. Only a code of the manifest's own list, at a status
// that does not pass by itself, is dead; whatever is not known is temporary.
func classify(o *integrations.OAuth, status int, code, msg string) (Class, string) {
	if passing(status) {
		return Temporary, passingCode(status)
	}
	for _, m := range o.Misconfigured {
		if m.Code == code && (m.MessageHas == "" || strings.Contains(msg, m.MessageHas)) {
			return Misconfigured, code
		}
	}
	switch {
	case code != "" && slices.Contains(o.Dead, code):
		return Dead, code
	case slices.Contains(operatorCodes, code):
		return Misconfigured, code
	case code == "" && status < 400:
		return Temporary, "no_token"
	}
	return Temporary, "unknown" // the provider's own word for it stays where it is
}

// readObject reads a body as JSON whatever it is called, else as a form. nil is neither.
func readObject(r *reply) map[string]any {
	body := bytes.TrimPrefix(r.body, []byte("\xef\xbb\xbf"))
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err == nil {
		m, _ := v.(map[string]any)
		return m
	}
	text := strings.TrimSpace(string(body))
	if text == "" || strings.ContainsAny(text[:1], "<{[") || !strings.Contains(text, "=") || strings.ContainsAny(text, "\r\n<>") {
		return nil
	}
	q, _ := url.ParseQuery(text) // what can be read of it counts
	m := make(map[string]any, len(q))
	for k, vs := range q {
		m[k] = vs[0]
	}
	return m
}

// at returns what stands at a dot path, or at a key that is spelt with the points.
func at(v any, path string) any {
	m, ok := v.(map[string]any)
	if !ok {
		return nil
	}
	if e, ok := m[path]; ok {
		return e
	}
	head, rest, more := strings.Cut(path, ".")
	if !more {
		return nil
	}
	return at(m[head], rest)
}

// errorCode returns an answer's error code and message, "" where it has none.
func errorCode(o *integrations.OAuth, top map[string]any) (code, msg string) {
	paths := o.ErrorAt
	if len(paths) == 0 {
		paths = []string{"error"}
	}
	for _, p := range paths {
		switch v := at(top, p).(type) {
		case string:
			code = v
		case json.Number:
			code = v.String()
		case map[string]any: // {"error": {"code": …}}
			for _, k := range []string{"type", "code", "status"} {
				if s, ok := v[k].(string); ok && code == "" {
					code = s
				}
			}
			if code == "" {
				code = "error"
			}
		}
		if code != "" {
			break
		}
	}
	for _, k := range []string{"message", "error_description"} {
		if s, ok := top[k].(string); ok {
			msg += s + "\n"
		}
	}
	return code, msg
}

// goodKept says whether a value may be kept beside a pair: text that a person could read.
func goodKept(s string) bool {
	return len(s) <= 512 && utf8.ValidString(s) && !strings.ContainsFunc(s, func(c rune) bool { return c < ' ' || c == 0x7f })
}

func goodToken(s string) bool {
	if s == "" || len(s) > 8192 {
		return false
	}
	for i := range len(s) {
		if s[i] < 0x21 || s[i] > 0x7e {
			return false
		}
	}
	return true
}

// lifetime returns how many seconds the access token lives, 0 where nothing tells: the
// answer's own number, a date, the token's claims where it is a JWT, the manifest's default.
func lifetime(o *integrations.OAuth, obj map[string]any, name func(string) string, access string, said time.Time) int64 {
	if n, ok := seconds(at(obj, name("expires_in"))); ok {
		return n
	}
	var until time.Time
	switch v := at(obj, name("expires_at")).(type) {
	case string:
		until, _ = time.Parse(time.RFC3339, v)
	case json.Number:
		if n, err := v.Int64(); err == nil && n > 0 && n < 1<<40 {
			until = time.Unix(n, 0)
		}
	}
	// A date is the provider's clock, and so is what it says the time was.
	if d := until.Sub(said); d >= time.Second && d <= maxLifetime*time.Second {
		return int64(d / time.Second)
	}
	if n := jwtLifetime(access); n > 0 {
		return n
	}
	return int64(o.ExpiresInDefault)
}

// maxLifetime is ten years, in seconds: more is no lifetime but a mistake.
const maxLifetime = 10 * 365 * 24 * 3600

// seconds reads a lifetime however it is written. ok is false for what is no lifetime.
func seconds(v any) (int64, bool) {
	var text string
	switch v := v.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = strings.TrimSpace(v)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsNaN(f) || f < 1 || f > maxLifetime {
		return 0, false
	}
	return int64(f), true
}

// jwtLifetime returns exp - iat of a token that is a JWT. Nothing is trusted of it but how
// soon it is worth asking for another.
func jwtLifetime(token string) int64 {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return 0
	}
	data, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return 0
	}
	var c struct{ Exp, Iat json.Number }
	if json.Unmarshal(data, &c) != nil {
		return 0
	}
	exp, err1 := c.Exp.Int64()
	iat, err2 := c.Iat.Int64()
	if err1 != nil || err2 != nil || exp <= iat || exp-iat > maxLifetime {
		return 0
	}
	return exp - iat
}

func readScopes(o *integrations.OAuth, v any) ([]string, bool) {
	var out []string
	switch v := v.(type) {
	case string:
		sep := o.ScopeSeparatorAnswer
		if sep == "" {
			sep = " "
		}
		for _, s := range strings.Split(v, sep) {
			if s = strings.TrimSpace(s); s != "" {
				out = append(out, s)
			}
		}
		return out, v != ""
	case []any:
		for _, e := range v {
			if s, ok := e.(string); ok && s != "" {
				out = append(out, s)
			}
		}
		return out, true
	}
	return nil, false
}

// A verdict compares granted scopes with asked ones.
type verdict struct {
	missing []string
	wider   bool
}

// compareScopes holds what was granted against what was asked, as sets, under aliases and
// implications. An answer that does not say granted what was asked.
func compareScopes(o *integrations.OAuth, asked []string, a *tokenAnswer) verdict {
	var v verdict
	if !a.scoped {
		return v
	}
	has, want := o.ExpandScopes(a.scopes), o.ExpandScopes(asked)
	for _, s := range asked {
		if !has[s] {
			v.missing = append(v.missing, s)
		}
	}
	for _, s := range a.scopes {
		v.wider = v.wider || !want[s]
	}
	return v
}
