package integrations

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

func TestErrorStatuses(t *testing.T) {
	m := service(t, opGet, `"error": {"message": ["errors.message", "error.message", "message"], "say": {"404": "Not found, or not shared.", "402": "An invoice is unpaid."}}`)
	const sentinel = `"SENTINEL": "SENTINEL"`
	for _, tc := range []struct {
		name    string
		status  int
		body    string
		code    string
		message string
		say     string
	}{
		{"400", 400, `{"message": "bad", ` + sentinel + `}`, "provider", "bad", ""},
		{"401", 401, `{"message": "Bad credentials", ` + sentinel + `}`, "unauthorised", "Bad credentials", ""},
		{"401, no JSON", 401, `<html>SENTINEL`, "unauthorised", "", ""},
		{"402", 402, `{"error": {"message": "declined"}, ` + sentinel + `}`, "provider", "declined", "An invoice is unpaid."},
		{"403", 403, `{"message": "no"}`, "provider", "no", ""},
		{"403, HTML", 403, `<html>SENTINEL`, "provider", "", ""},
		{"404", 404, `{"message": "Not Found", ` + sentinel + `}`, "provider", "Not Found", "Not found, or not shared."},
		{"404, empty", 404, ``, "provider", "", "Not found, or not shared."},
		{"409", 409, `{"message": "conflict"}`, "provider", "conflict", ""},
		{"410", 410, `{}`, "provider", "", ""},
		{"422", 422, `{"message": "Validation failed", "errors": [{"message": "first", ` + sentinel + `}, {"message": "SENTINEL"}]}`, "provider", "first", ""},
		{"422, items without words", 422, `{"message": "Validation failed", "errors": [{"code": "SENTINEL"}]}`, "provider", "Validation failed", ""},
		{"422, texts", 422, `{"message": "Validation failed", "errors": ["SENTINEL"]}`, "provider", "Validation failed", ""},
		{"422, an empty first", 422, `{"message": "Validation failed", "errors": [{"message": ""}]}`, "provider", "Validation failed", ""},
		{"422, a list of messages", 422, `{"message": ["first", "SENTINEL"]}`, "provider", "first", ""},
		{"422, a list of lists", 422, `{"message": [["first"], "SENTINEL"]}`, "provider", "first", ""},
		{"422, a list of objects", 422, `{"message": [{"SENTINEL": "SENTINEL"}, "SENTINEL"]}`, "provider", "", ""},
		{"422, an empty list", 422, `{"message": []}`, "provider", "", ""},
		{"422, a null first", 422, `{"message": "Validation failed", "errors": [{"message": null}, {"message": "second"}]}`, "provider", "Validation failed", ""},
		{"422, another type", 422, `{"message": {"SENTINEL": 1}}`, "provider", "", ""},
		{"422, a number", 422, `{"message": 4711}`, "provider", "", ""},
		{"500", 500, `{"message": "boom", ` + sentinel + `}`, "provider", "boom", ""},
		{"500, HTML", 500, `<html><body>SENTINEL</body></html>`, "provider", "", ""},
		{"400, a broken body", 400, `{"message": "half", "x": `, "provider", "", ""},
		{"400, two bodies", 400, `{"message": "one"}{"message": "SENTINEL"}`, "provider", "", ""},
		{"400, a name twice", 400, `{"message": "one", "message": "SENTINEL"}`, "provider", "", ""},
		{"400, not UTF-8", 400, "{\"message\": \"SENTINEL\xff\"}", "provider", "", ""},
		{"400, too deep", 400, `{"message": "one", "x": ` + strings.Repeat("[", 100) + strings.Repeat("]", 100) + `}`, "provider", "", ""},
		{"418", 418, `{"message": "short and stout"}`, "provider", "short and stout", ""},
		{"599", 599, `{}`, "provider", "", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPeer(t, answer(tc.status, tc.body, "X-SENTINEL: SENTINEL"))
			res, err := p.Execute(background, m, "get", nil, testSecret)
			if res != nil {
				t.Fatalf("got %s", res.JSON)
			}
			wantCode(t, err, tc.code)
			p.one(t)
			message, say, status := "", "", 0
			var pe *ProviderError
			var ue *UnauthorisedError
			switch {
			case errors.As(err, &pe):
				message, say, status = pe.Message, pe.Say, pe.Status
			case errors.As(err, &ue):
				message, status = ue.Message, ue.Status
			}
			if message != tc.message || say != tc.say || status != tc.status {
				t.Errorf("got %d %q %q, want %d %q %q", status, message, say, tc.status, tc.message, tc.say)
			}
			if s := err.Error(); strings.Contains(s, "SENTINEL") || !strings.Contains(s, fmt.Sprint(tc.status)) || !strings.Contains(s, tc.message) || !strings.Contains(s, tc.say) {
				t.Errorf("it reads %q", s)
			}
		})
	}
}

// encodings of the token in which a service might echo it.
func tokenForms(token string) map[string]string {
	lower := func(s string) string { return strings.ToLower(s) }
	allPercent, allUnicode := "", ""
	for i := range len(token) {
		allPercent += fmt.Sprintf("%%%02x", token[i])
		allUnicode += fmt.Sprintf(`\u%04x`, token[i])
	}
	return map[string]string{
		"raw":                  token,
		"in a sentence":        "Invalid API Key provided: " + token + ".",
		"base64":               base64.StdEncoding.EncodeToString([]byte(token)),
		"base64, no padding":   base64.RawStdEncoding.EncodeToString([]byte(token)),
		"base64url":            base64.RawURLEncoding.EncodeToString([]byte(token)),
		"base64 of user:token": base64.StdEncoding.EncodeToString([]byte("me:" + token)),
		"base64 of u:token":    base64.StdEncoding.EncodeToString([]byte("u:" + token)),
		"base64 of token:x":    base64.StdEncoding.EncodeToString([]byte(token + ":x")),
		"base64, offset 1":     base64.StdEncoding.EncodeToString([]byte("a" + token + "b")),
		"hex":                  hex.EncodeToString([]byte(token)),
		"HEX":                  strings.ToUpper(hex.EncodeToString([]byte(token))),
		"percent-encoded":      url.QueryEscape(token),
		"percent, lower case":  strings.ReplaceAll(strings.ReplaceAll(url.QueryEscape(token), "%2F", lower("%2F")), "%2B", lower("%2B")),
		"percent, all of it":   allPercent,
		"JSON escapes":         allUnicode,
		"JSON, one escape":     strings.Replace(token, "S", `\u0053`, 1),
		"JSON, escaped slash":  strings.ReplaceAll(token, "/", `\/`),
	}
}

// TestToken: neither a result nor a message that holds the connection's own token flows
// back, however the service wrote it.
func TestToken(t *testing.T) {
	m := service(t, opGet+","+opPost+`,
		"list": {"title": "List", "access": "read", "method": "GET", "path": "/things", "args": {"after": {"optional": true}}, "query": {"after": "{after}"},
			"pick": {"root": "data", "fields": ["id"]}, "next": {"style": "cursor", "arg": "after", "path": "next"}, "fail": {"when": "error", "message": "error"}}`,
		`"error": {"message": "message"}`)
	for name, form := range tokenForms(testToken) {
		t.Run(name, func(t *testing.T) {
			clean := func(err error) {
				t.Helper()
				if s := fmt.Sprintf("%v %+v", err, err); strings.Contains(s, form) || strings.Contains(s, testToken) || strings.Contains(s, "S3cr3t") {
					t.Errorf("it is in the error: %s", s)
				}
			}
			p := newPeer(t, answer(200, `{"id": 1, "list": ["x", "`+form+`"]}`))
			_, err := p.Execute(background, m, "get", nil, testSecret)
			wantCode(t, err, "provider")
			clean(err)
			_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
			if err != nil {
				t.Errorf("what is not picked cannot leak: %v", err)
			}
			p.answerWith(answer(200, `{"id": 1, "text": "`+form+`"}`))
			_, err = p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
			wantCode(t, err, "unknown_outcome")
			clean(err)

			p.answerWith(answer(200, `{"data": [{"id": 1}], "next": "`+form+`"}`))
			_, err = p.Execute(background, m, "list", nil, testSecret)
			wantCode(t, err, "provider")
			clean(err)
			p.answerWith(answer(200, `{"error": "`+form+`"}`))
			_, err = p.Execute(background, m, "list", nil, testSecret)
			wantCode(t, err, "provider")
			clean(err)

			for _, status := range []int{400, 401, 429, 500} {
				p.answerWith(answer(status, `{"message": "`+form+`"}`, "Retry-After: 3600"))
				_, err = p.Execute(background, m, "get", nil, testSecret)
				clean(err)
				if !strings.Contains(err.Error(), "withheld") {
					t.Errorf("%d reads %q", status, err)
				}
			}
		})
	}
	t.Run("Basic", func(t *testing.T) {
		m := service(t, opGet, `"auth": {"authorization": {"basic": ["{email}", "{token}"]}, "pasted_fields": [{"name": "email", "label": "E-mail"}]}`)
		for _, email := range []string{"a@x.io", "ab@x.io", "abc@x.io"} {
			p := newPeer(t, nil)
			p.answerWith(func(w http.ResponseWriter, r *http.Request) {
				json.NewEncoder(w).Encode(map[string]string{"text": "you sent " + r.Header.Get("Authorization")})
			})
			_, err := p.ExecuteAs(background, m, "get", nil, Credential{Kind: PAT, Secret: testSecret, Fields: map[string]string{"email": email}})
			wantCode(t, err, "provider")
		}
	})
	t.Run("others", func(t *testing.T) { // what only looks like it flows
		p := newPeer(t, answer(200, `{"id": 1, "text": "tok_S3cr3t-Sentine and 4711+x"}`))
		if _, err := p.Execute(background, m, "get", nil, testSecret); err != nil {
			t.Error(err)
		}
		if _, err := p.Execute(background, m, "get", nil, NewSecret("and")); err != nil {
			t.Errorf("a token that is too short to be told from a word: %v", err)
		}
	})
}

func TestErrorMessages(t *testing.T) {
	m := service(t, opGet, `"error": {"message": "message"}`)
	for _, tc := range []struct{ in, want string }{
		{"  no  ", "no"},
		{`a\nb\r\nc\td`, "a b  c d"},
		{`a\u0000b\u001b[31mc\u007fd\u0085e`, "a�b�[31mc�d�e"},
		{`a\u202eb\u2066c\u200bd\ufeffe\u00adf`, "a�b�c�d�e�f"},
		{`\udb40\udc41x`, "�x"},
		{`\u2028\u2029`, "��"},
		{strings.Repeat("x", 500), strings.Repeat("x", 500)},
		{strings.Repeat("x", 501), strings.Repeat("x", 499) + "…"},
		{strings.Repeat("😀", 501), strings.Repeat("😀", 499) + "…"},
		{strings.Repeat("é", 100_000), strings.Repeat("é", 499) + "…"},
		{`<b>bold</b> & \"quoted\"`, `<b>bold</b> & "quoted"`},
	} {
		p := newPeer(t, answer(400, `{"message": "`+tc.in+`"}`))
		_, err := p.Execute(background, m, "get", nil, testSecret)
		var pe *ProviderError
		if !errors.As(err, &pe) || pe.Message != tc.want || utf8.RuneCountInString(pe.Message) > maxMessage {
			t.Errorf("%.60q gave %.80q (%v), want %.80q", tc.in, pe.Message, Code(err), tc.want)
		}
	}
	// Without a rule nothing at all flows back.
	p := newPeer(t, answer(400, `{"message": "SENTINEL"}`))
	_, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
	var pe *ProviderError
	if !errors.As(err, &pe) || pe.Message != "" {
		t.Errorf("got %v", err)
	}
}

func TestFail(t *testing.T) {
	read := func(fail string) string {
		return `"op": {"title": "Op", "access": "read", "method": "GET", "path": "/x", "pick": {"root": "data", "fields": ["id"]}, "fail": ` + fail + `}`
	}
	write := func(fail string) string {
		return `"op": {"title": "Op", "access": "write", "method": "POST", "path": "/x", "body_json": {"a": 1}, "confirm": "Go?", "pick": {"root": "data", "fields": ["id"]}, "fail": ` + fail + `}`
	}
	graphQL := `{"when": "errors", "message": "errors.message", "code": "errors.extensions.code", "unauthorized": ["AUTHENTICATION_ERROR"], "rate_limited": ["RATELIMITED"]}`
	slack := `{"unless": "ok", "message": "error", "code": "error", "unauthorized": ["token_expired", "invalid_auth"], "rate_limited": ["ratelimited"]}`
	both := `[` + graphQL + `, {"unless": "data.success", "message": "data.why"}]`
	for _, tc := range []struct {
		name    string
		op      string
		status  int
		body    string
		code    string
		message string
	}{
		{"no errors", read(graphQL), 200, `{"data": {"id": 1}}`, "", ""},
		{"errors is null", read(graphQL), 200, `{"data": {"id": 1}, "errors": null}`, "", ""},
		{"errors is empty", read(graphQL), 200, `{"data": {"id": 1}, "errors": []}`, "", ""},
		{"errors is false", read(graphQL), 200, `{"data": {"id": 1}, "errors": false}`, "", ""},
		{"errors is an empty text", read(graphQL), 200, `{"data": {"id": 1}, "errors": ""}`, "", ""},
		{"errors is an empty object", read(graphQL), 200, `{"data": {"id": 1}, "errors": {}}`, "", ""},
		{"errors before the data", read(graphQL), 200, `{"errors": [{"message": "first"}, {"message": "SENTINEL"}], "data": {"id": 1}}`, "provider", "first"},
		{"partial data and errors", read(graphQL), 200, `{"data": {"id": 1}, "errors": [{"message": "first", "path": ["SENTINEL"]}]}`, "provider", "first"},
		{"errors is true", read(graphQL), 200, `{"data": {"id": 1}, "errors": true}`, "provider", ""},
		{"errors is a text", read(graphQL), 200, `{"data": {"id": 1}, "errors": "SENTINEL"}`, "provider", ""},
		{"errors is zero", read(graphQL), 200, `{"data": {"id": 1}, "errors": 0}`, "provider", ""},
		{"no data and errors", read(graphQL), 200, `{"data": null, "errors": [{"message": "no", "extensions": {"code": "FORBIDDEN"}}]}`, "provider", "no"},
		{"expired, at 200", read(graphQL), 200, `{"errors": [{"message": "no", "extensions": {"code": "AUTHENTICATION_ERROR"}}]}`, "unauthorised", "no"},
		{"expired, at 400", read(graphQL), 400, `{"errors": [{"message": "no", "extensions": {"code": "AUTHENTICATION_ERROR"}}]}`, "unauthorised", "no"},
		{"limited, at 200", read(graphQL), 200, `{"errors": [{"message": "wait", "extensions": {"code": "RATELIMITED"}}]}`, "rate_limited", "wait"},
		{"limited, at 400", read(graphQL), 400, `{"errors": [{"message": "wait", "extensions": {"code": "RATELIMITED"}}]}`, "rate_limited", "wait"},
		{"another code at 400", read(graphQL), 400, `{"errors": [{"message": "bad", "extensions": {"code": "INVALID_INPUT"}}]}`, "provider", "bad"},
		{"the code in another case", read(graphQL), 200, `{"errors": [{"message": "wait", "extensions": {"code": "Ratelimited"}}]}`, "provider", "wait"},
		{"the code of the first error", read(graphQL), 200, `{"errors": [{"message": "bad", "extensions": {"code": "INVALID_INPUT"}}, {"message": "wait", "extensions": {"code": "RATELIMITED"}}]}`, "provider", "bad"},

		{"ok", read(slack), 200, `{"ok": true, "data": {"id": 1}}`, "", ""},
		{"not ok", read(slack), 200, `{"ok": false, "error": "channel_not_found"}`, "provider", "channel_not_found"},
		{"ok is absent", read(slack), 200, `{"data": {"id": 1}}`, "provider", ""},
		{"ok is a text", read(slack), 200, `{"ok": "true", "data": {"id": 1}}`, "provider", ""},
		{"ok is 1", read(slack), 200, `{"ok": 1, "data": {"id": 1}}`, "provider", ""},
		{"ok is null", read(slack), 200, `{"ok": null, "data": {"id": 1}}`, "provider", ""},
		{"expired, Slack", read(slack), 200, `{"ok": false, "error": "token_expired"}`, "unauthorised", "token_expired"},
		{"limited, Slack", read(slack), 200, `{"ok": false, "error": "ratelimited"}`, "rate_limited", "ratelimited"},
		{"a success with a code beside it", read(slack), 200, `{"ok": true, "error": "token_expired", "data": {"id": 1}}`, "", ""},

		{"a list of rules: neither", write(both), 200, `{"data": {"success": true, "id": 1}}`, "", ""},
		{"a list of rules: the second", write(both), 200, `{"data": {"success": false, "why": "full"}}`, "provider", "full"},
		{"a list of rules: the first", write(both), 200, `{"data": null, "errors": [{"message": "no"}]}`, "provider", "no"},
		{"a list of rules: done and failed", write(both), 200, `{"data": {"success": true, "id": 1}, "errors": [{"message": "half"}]}`, "unknown_outcome", "half"},
		{"a write, limited at 400", write(both), 400, `{"errors": [{"message": "wait", "extensions": {"code": "RATELIMITED"}}]}`, "rate_limited", "wait"},
		{"a write, no answer in it", write(both), 200, `{"data": {"success": true}}`, "", ""},
		{"a write, an absent root", write(slack), 200, `{"ok": true}`, "unknown_outcome", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				p.answerWith(answer(tc.status, tc.body, "Retry-After: 3600"))
				_, err := p.Execute(background, service(t, tc.op, `"error": {"message": "errors.message"}`), "op", nil, testSecret)
				wantCode(t, err, tc.code)
				p.one(t)
				if err == nil {
					return
				}
				message := ""
				var pe *ProviderError
				var ue *UnauthorisedError
				var re *RateLimitError
				var oe *UnknownOutcomeError
				switch {
				case errors.As(err, &oe):
					message = oe.Message
				case errors.As(err, &pe):
					message = pe.Message
				case errors.As(err, &ue):
					message = ue.Message
				case errors.As(err, &re):
					message = re.Message
					if d := time.Until(re.Until); d < 59*time.Minute || d > time.Hour {
						t.Errorf("wait %v, want an hour", d)
					}
				}
				if message != tc.message || strings.Contains(err.Error(), "SENTINEL") {
					t.Errorf("got %q (%v), want %q", message, err, tc.message)
				}
			})
		})
	}
}

// TestLimited: when a service asks to wait, and until when.
func TestLimited(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // where a bubble begins
	const also = `"limits": {"remaining": "X-Left", "reset": "X-Again", "unit": "epoch_s", "also_403": true}`
	for _, tc := range []struct {
		name    string
		limits  string
		status  int
		headers []string
		code    string
		until   time.Duration // from now; 0 where it is not known
	}{
		{"429", "", 429, nil, "rate_limited", 0},
		{"429, Retry-After", "", 429, []string{"Retry-After: 3600"}, "rate_limited", time.Hour},
		{"429, Retry-After counts before the reset", "", 429, []string{"Retry-After: 3600", "X-RateLimit-Reset: 7200"}, "rate_limited", time.Hour},
		{"429, seconds from now", "", 429, []string{"X-RateLimit-Reset: 3600"}, "rate_limited", time.Hour},
		{"429, the standard's header", "", 429, []string{"RateLimit-Reset: 3600"}, "rate_limited", time.Hour},
		{"429, an epoch", "", 429, []string{fmt.Sprintf("X-RateLimit-Reset: %d", now.Add(time.Hour).Unix())}, "rate_limited", time.Hour},
		{"429, milliseconds", "", 429, []string{fmt.Sprintf("X-RateLimit-Reset: %d", now.Add(time.Hour).UnixMilli())}, "rate_limited", time.Hour},
		{"429, own headers", also, 429, []string{fmt.Sprintf("X-Again: %d", now.Add(time.Hour).Unix()), "X-RateLimit-Reset: 10"}, "rate_limited", time.Hour},
		{"403, none left", also, 403, []string{"X-Left: 0", fmt.Sprintf("X-Again: %d", now.Add(time.Hour).Unix())}, "rate_limited", time.Hour},
		{"403, Retry-After", also, 403, []string{"X-Left: 12", "Retry-After: 3600"}, "rate_limited", time.Hour},
		{"403, some left", also, 403, []string{"X-Left: 12", fmt.Sprintf("X-Again: %d", now.Add(time.Hour).Unix())}, "provider", 0},
		{"403, no header", also, 403, nil, "provider", 0},
		{"403, a header that is no number", also, 403, []string{"X-Left: none"}, "provider", 0},
		{"403 without the rule", "", 403, []string{"X-RateLimit-Remaining: 0", "Retry-After: 3600"}, "provider", 0},
		{"404, none left", also, 404, []string{"X-Left: 0"}, "provider", 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, p *peer) {
				var members []string
				if tc.limits != "" {
					members = append(members, tc.limits)
				}
				p.answerWith(answer(tc.status, "", tc.headers...))
				m := service(t, opPost, members...)
				_, err := p.Execute(background, m, "post", Args{"text": "x"}, testSecret)
				wantCode(t, err, tc.code)
				p.one(t)
				var rl *RateLimitError
				if !errors.As(err, &rl) {
					return
				}
				if rl.Until.IsZero() != (tc.until == 0) {
					t.Fatalf("until %v, want in %v", rl.Until, tc.until)
				}
				if tc.until == 0 {
					return
				}
				if d := rl.Until.Sub(now); d < tc.until-time.Second || d > tc.until+time.Second {
					t.Errorf("wait %v, want %v", d, tc.until)
				}
				if s := err.Error(); !strings.Contains(s, "2000-01-01 01:00:0") {
					t.Errorf("the message does not give the time: %s", s)
				}
			})
		})
	}
}

// TestRateLimitHeaders: the state that comes with every result.
func TestRateLimitHeaders(t *testing.T) {
	now := time.Date(2026, 12, 2, 12, 0, 0, 0, time.UTC)
	for _, tc := range []struct {
		limits    string
		headers   []string
		remaining int
		reset     time.Time
	}{
		{"", nil, -1, time.Time{}},
		{"", []string{"X-RateLimit-Remaining: 4999", "X-RateLimit-Reset: 60"}, 4999, now.Add(time.Minute)},
		{"", []string{"RateLimit-Remaining: 0", "RateLimit-Reset: 60"}, 0, now.Add(time.Minute)},
		{"", []string{"X-RateLimit-Reset: 1796212800"}, -1, now},
		{"", []string{"X-RateLimit-Reset: 1796212800000"}, -1, now},
		{"", []string{"X-RateLimit-Remaining: many", "X-RateLimit-Reset: later"}, -1, time.Time{}},
		{"", []string{"X-RateLimit-Remaining: -1", "X-RateLimit-Reset: -1"}, -1, time.Time{}},
		{"", []string{"X-RateLimit-Remaining:  7 ", "X-RateLimit-Reset: 0"}, 7, time.Time{}},
		{"", []string{"X-RateLimit-Remaining: 99999999999999999999", "X-RateLimit-Reset: 99999999999999999999"}, -1, time.Time{}},
		{`"limits": {"remaining": "X-Left"}`, []string{"X-Left: 3", "X-RateLimit-Remaining: 9", "X-RateLimit-Reset: 60"}, 3, now.Add(time.Minute)},
		{`"limits": {"reset": "X-Again", "unit": "s_from_now"}`, []string{"X-Again: 1796212800"}, -1, now.Add(1796212800 * time.Second)},
		{`"limits": {"reset": "X-Again", "unit": "epoch_s"}`, []string{"X-Again: 60"}, -1, time.Unix(60, 0)},
		{`"limits": {"reset": "X-Again", "unit": "epoch_ms"}`, []string{"X-Again: 1796212800000", "X-RateLimit-Reset: 60"}, -1, now},
		{`"limits": {"reset": "X-Again", "unit": "epoch_s"}`, []string{"X-RateLimit-Reset: 60"}, -1, time.Time{}},
	} {
		h := make(http.Header)
		for _, line := range tc.headers {
			name, value, _ := strings.Cut(line, ": ")
			h.Add(name, value)
		}
		var members []string
		if tc.limits != "" {
			members = append(members, tc.limits)
		}
		got := service(t, opGet, members...).rateLimit(h, now)
		if got.Remaining != tc.remaining || !got.Reset.Equal(tc.reset) {
			t.Errorf("%s %q: got %d until %v, want %d until %v", tc.limits, tc.headers, got.Remaining, got.Reset, tc.remaining, tc.reset)
		}
	}
	p := newPeer(t, answer(200, `{"id": 1}`, "X-RateLimit-Remaining: 12", "X-RateLimit-Reset: 60"))
	res, err := p.Execute(background, service(t, opGet), "get", nil, testSecret)
	if err != nil || res.Limits.Remaining != 12 || time.Until(res.Limits.Reset) < 50*time.Second {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestResults: what is picked, and what of it is no result.
func TestResults(t *testing.T) {
	root := `"op": {"title": "Op", "access": "read", "method": "GET", "path": "/x", "pick": {"root": "data.items", "fields": ["id", "user.name", "tags", "props.<any>.v"]}}`
	root = strings.Replace(root, `"props.<any>.v"`, `{"path": "props.<any>.v", "why": "its names are data"}`, 1)
	for _, tc := range []struct{ name, body, want, code string }{
		{"a list", `{"data": {"items": [{"id": 1, "x": 2, "user": {"name": "A", "mail": "SENTINEL"}, "tags": ["a", "b"]}, {"id": null}, {}]}}`, `[{"id":1,"user":{"name":"A"},"tags":["a","b"]},{"id":null},{}]`, ""},
		{"an object where a scalar is picked", `{"data": {"items": [{"id": {"SENTINEL": 1}, "user": {"name": ["x", {"SENTINEL": 1}]}, "tags": [[1]]}]}}`, `[{"user":{},"tags":[[1]]}]`, ""},
		{"an object", `{"data": {"items": {"id": "x"}}}`, `{"id":"x"}`, ""},
		{"the provider's order", `{"data": {"items": {"tags": [1], "id": "x"}}}`, `{"tags":[1],"id":"x"}`, ""},
		{"a map", `{"data": {"items": {"props": {"Name": {"v": 1, "SENTINEL": 2}, "Größe": {"v": 2.50}}}}}`, `{"props":{"Name":{"v":1},"Größe":{"v":2.50}}}`, ""},
		{"null", `{"data": {"items": null}}`, `null`, ""},
		{"no items", `{"data": {"items": []}}`, `[]`, ""},
		{"hidden characters", `{"data": {"items": {"id": "a\u202eb\u0007c\ud83d\ude00\u200bd\ne"}}}`, `{"id":"a�b�c😀�d\ne"}`, ""},
		{"an absent root", `{"data": {}}`, ``, "provider"},
		{"an absent way", `{"x": 1}`, ``, "provider"},
		{"null on the way", `{"data": null}`, ``, "provider"},
		{"a scalar", `{"data": {"items": "SENTINEL"}}`, ``, "provider"},
		{"a name twice", `{"data": {"items": {"id": 1}}, "data": {"items": {"id": 2}}}`, ``, "provider"},
		{"twice where nothing is picked", `{"data": {"items": {"id": 1}}, "x": {"SENTINEL": 1, "SENTINEL": 2}}`, ``, "provider"},
		{"not UTF-8", "{\"data\": {\"items\": {\"id\": 1}}, \"x\": \"SENTINEL\xff\"}", ``, "provider"},
		{"no JSON", `SENTINEL`, ``, "provider"},
		{"HTML", `<!DOCTYPE html><p>SENTINEL`, ``, "provider"},
		{"nothing", ``, ``, "provider"},
		{"trailing", `{"data": {"items": {"id": 1}}} SENTINEL`, ``, "provider"},
		{"a byte-order mark", "\ufeff{\"data\": {\"items\": {\"id\": 1}}}", ``, "provider"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := newPeer(t, answer(200, tc.body))
			res, err := p.Execute(background, service(t, root), "op", nil, testSecret)
			wantCode(t, err, tc.code)
			p.one(t)
			if err != nil {
				if strings.Contains(err.Error(), "SENTINEL") || !strings.Contains(err.Error(), "200") {
					t.Errorf("it reads %v", err)
				}
				return
			}
			if string(res.JSON) != tc.want || res.Size != len(tc.want) || res.Next != nil {
				t.Errorf("got %s, size %d, next %v; want %s", res.JSON, res.Size, res.Next, tc.want)
			}
		})
	}
}

// TestResultNothing: where nothing flows back, whatever comes is dropped.
func TestResultNothing(t *testing.T) {
	m := service(t, opDelete)
	for _, h := range []http.HandlerFunc{
		answer(204, ""), answer(200, ""), answer(200, `{"id": 1}`), answer(202, "<html>"), answer(200, testToken), answer(200, "x", "Content-Encoding: rot13"),
		chunks("", 'x', 1<<20, ""), broken("HTTP/1.1 200 OK\r\nContent-Length: 80\r\n\r\nhalf"),
	} {
		p := newPeer(t, h)
		res, err := p.Execute(background, m, "delete", Args{"id": "x"}, testSecret)
		if err != nil || string(res.JSON) != "null" || res.Size != 4 {
			t.Errorf("got %v, %v", res, err)
		}
	}
}

func TestTooLarge(t *testing.T) {
	op := func(args, query string) string {
		return `"op": {"title": "Op", "access": "read", "method": "GET", "path": "/x", "args": {` + args + `}, "query": {` + query + `}, "pick": {"fields": ["text"]}}`
	}
	for _, tc := range []struct{ args, query, arg string }{
		{``, ``, ""},
		{`"limit": {"type": "integer", "default": 50}`, `"limit": "{limit}"`, "limit"},
		{`"first": {"type": "integer", "optional": true}`, `"n": "{first}"`, "first"},
		{`"q": {"optional": true}, "id": {"type": "integer"}, "limit": {"type": "integer", "optional": true}`, `"q": "{q}", "id": "{id}", "limit": "{limit}"`, "limit"},
		{`"q": {"optional": true}`, `"q": "{q}"`, ""},
	} {
		m := service(t, op(tc.args, tc.query))
		wrap := len(`{"text":""}`)
		for _, size := range []int{45056, 45057, 1 << 20} {
			p := newPeer(t, answer(200, `{"text": "`+strings.Repeat("x", size-wrap)+`", "y": "`+strings.Repeat("y", 1<<17)+`"}`))
			res, err := p.Execute(background, m, "op", Args{"id": 1}, testSecret)
			if m.Op("op").Args.Get("id") == nil {
				res, err = p.Execute(background, m, "op", nil, testSecret)
			}
			if size <= MaxResult {
				if err != nil || res.Size != size || len(res.JSON) != size {
					t.Errorf("%d bytes: %v", size, err)
				}
				continue
			}
			var large *TooLargeError
			if !errors.As(err, &large) || large.Size != int64(size) || large.Limit != 45056 || large.Arg != tc.arg || large.Raw || res != nil {
				t.Errorf("%d bytes: %+v, want the arg %q", size, err, tc.arg)
			}
		}
	}
	// A write was done all the same.
	p := newPeer(t, answer(200, `{"text": "`+strings.Repeat("x", 50000)+`"}`))
	_, err := p.Execute(background, service(t, opPost), "post", Args{"text": "x"}, testSecret)
	wantCode(t, err, "unknown_outcome")
	if !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v does not say why", err)
	}
}

func TestPages(t *testing.T) {
	op := func(arg, next string) string {
		return `"op": {"title": "Op", "access": "read", "method": "GET", "path": "/x", "args": {"p": ` + arg + `}, "query": {"page": "{p}"}, "pick": {"root": "data", "fields": ["id"]}, "next": ` + next + `}`
	}
	const text, number, limited = `{"optional": true}`, `{"type": "integer", "min": 1, "optional": true}`, `{"type": "integer", "min": 1, "max": 3, "optional": true}`
	link := `{"style": "link", "arg": "p"}`
	cursor, more := `{"style": "cursor", "arg": "p", "path": "paging.next.after"}`, `{"style": "cursor", "arg": "p", "path": "page.endCursor", "more": "page.hasNextPage"}`
	last := `{"style": "last", "arg": "p", "field": "id", "more": "has_more"}`
	pages, size := `{"style": "page", "arg": "p", "pages": "pagination.total_pages"}`, `{"style": "page", "arg": "p", "size": 2}`
	two := `"data": [{"id": "a"}, {"id": "b"}]`
	for _, tc := range []struct {
		name   string
		op     string
		args   Args
		body   string
		header string
		want   string // the next page as JSON; "" at the end
		code   string
	}{
		{"link", op(number, link), nil, `{` + two + `}`, `<https://api.example.com/x?page=2&x=1>; rel="next", <https://api.example.com/x?page=9>; rel="last"`, `{"p":2}`, ""},
		{"link, at another host", op(number, link), nil, `{` + two + `}`, `<https://evil.example/?page=2>; rel="next"`, `{"p":2}`, ""},
		{"link, relative", op(text, link), nil, `{` + two + `}`, `</x?page=b%2Fc%20d%2B>; rel=next`, `{"p":"b/c d+"}`, ""},
		{"link, none", op(number, link), nil, `{` + two + `}`, ``, ``, ""},
		{"link, only prev", op(number, link), Args{"p": 2}, `{` + two + `}`, `<https://api.example.com/x?page=1>; rel="prev"`, ``, ""},
		{"link, does not advance", op(number, link), Args{"p": 2}, `{` + two + `}`, `<https://api.example.com/x?page=2>; rel="next"`, ``, ""},
		{"link, does not advance but for its form", op(number, link), Args{"p": 2}, `{` + two + `}`, `<https://api.example.com/x?page=002>; rel="next"`, ``, ""},
		{"link, without the value", op(number, link), nil, `{` + two + `}`, `<https://api.example.com/x?cursor=2>; rel="next"`, ``, "provider"},
		{"link, with a value that is none", op(number, link), nil, `{` + two + `}`, `<https://api.example.com/x?page=SENTINEL>; rel="next"`, ``, "provider"},
		{"link, out of range", op(limited, link), nil, `{` + two + `}`, `<https://api.example.com/x?page=4>; rel="next"`, ``, "provider"},

		{"cursor", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": "abc=", "link": "SENTINEL"}}}`, ``, `{"p":"abc="}`, ""},
		{"cursor, a number", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": 9007199254740993}}}`, ``, `{"p":"9007199254740993"}`, ""},
		{"cursor, a number for a number", op(number, cursor), nil, `{` + two + `, "paging": {"next": {"after": "9007199254740993"}}}`, ``, `{"p":9007199254740993}`, ""},
		{"cursor, before the data", op(text, cursor), nil, `{"paging": {"next": {"after": "abc"}}, ` + two + `}`, ``, `{"p":"abc"}`, ""},
		{"cursor, absent", op(text, cursor), nil, `{` + two + `, "paging": {}}`, ``, ``, ""},
		{"cursor, null", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": null}}}`, ``, ``, ""},
		{"cursor, empty", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": ""}}}`, ``, ``, ""},
		{"cursor, does not advance", op(text, cursor), Args{"p": "abc"}, `{` + two + `, "paging": {"next": {"after": "abc"}}}`, ``, ``, ""},
		{"cursor, true", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": true}}}`, ``, ``, "provider"},
		{"cursor, an object", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": {"SENTINEL": 1}}}}`, ``, ``, "provider"},
		{"cursor, too long for the arg", op(text, cursor), nil, `{` + two + `, "paging": {"next": {"after": "` + strings.Repeat("x", 5000) + `"}}}`, ``, ``, "provider"},
		{"cursor, while there is more", op(text, more), nil, `{` + two + `, "page": {"endCursor": "abc", "hasNextPage": true}}`, ``, `{"p":"abc"}`, ""},
		{"cursor, no more", op(text, more), nil, `{` + two + `, "page": {"endCursor": "abc", "hasNextPage": false}}`, ``, ``, ""},
		{"cursor, more is not said", op(text, more), nil, `{` + two + `, "page": {"endCursor": "abc"}}`, ``, ``, ""},
		{"cursor, more is a text", op(text, more), nil, `{` + two + `, "page": {"endCursor": "abc", "hasNextPage": "true"}}`, ``, ``, ""},

		{"last", op(text, last), nil, `{"has_more": true, ` + two + `}`, ``, `{"p":"b"}`, ""},
		{"last, a number", op(number, last), nil, `{"has_more": true, "data": [{"id": 3}, {"id": 9007199254740993}]}`, ``, `{"p":9007199254740993}`, ""},
		{"last, no more", op(text, last), nil, `{"has_more": false, ` + two + `}`, ``, ``, ""},
		{"last, no items", op(text, last), nil, `{"has_more": true, "data": []}`, ``, ``, ""},
		{"last, without the field", op(text, last), nil, `{"has_more": true, "data": [{"x": 1}]}`, ``, ``, "provider"},
		{"last, does not advance", op(text, last), Args{"p": "b"}, `{"has_more": true, ` + two + `}`, ``, ``, ""},

		{"page", op(number, pages), nil, `{` + two + `, "pagination": {"total_pages": 3}}`, ``, `{"p":2}`, ""},
		{"page 2", op(number, pages), Args{"p": 2}, `{` + two + `, "pagination": {"total_pages": 3}}`, ``, `{"p":3}`, ""},
		{"page, the last", op(number, pages), Args{"p": 3}, `{` + two + `, "pagination": {"total_pages": 3}}`, ``, ``, ""},
		{"page, past the last", op(number, pages), Args{"p": 9}, `{"data": [], "pagination": {"total_pages": 3}}`, ``, ``, ""},
		{"page, none", op(number, pages), nil, `{"data": [], "pagination": {"total_pages": 0}}`, ``, ``, ""},
		{"page, the number is missing", op(number, pages), nil, `{` + two + `}`, ``, ``, "provider"},
		{"page, the number is a text", op(number, pages), nil, `{` + two + `, "pagination": {"total_pages": "3"}}`, ``, ``, "provider"},
		{"page, a full page", op(number, size), nil, `{` + two + `}`, ``, `{"p":2}`, ""},
		{"page, half a page", op(number, size), Args{"p": 4}, `{"data": [{"id": 1}]}`, ``, ``, ""},
		{"page, an empty page", op(number, size), nil, `{"data": []}`, ``, ``, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var headers []string
			if tc.header != "" {
				headers = []string{"Link: " + tc.header}
			}
			p := newPeer(t, answer(200, tc.body, headers...))
			m := service(t, tc.op)
			res, err := p.Execute(background, m, "op", tc.args, testSecret)
			wantCode(t, err, tc.code)
			p.one(t) // the next page is for the caller to ask for
			if err != nil {
				if strings.Contains(err.Error(), "SENTINEL") {
					t.Errorf("what the service wrote flowed back: %v", err)
				}
				return
			}
			got := ""
			if res.Next != nil {
				b, err := json.Marshal(res.Next)
				if err != nil {
					t.Fatal(err)
				}
				got = string(b)
			}
			if got != tc.want {
				t.Errorf("next is %s, want %s", got, tc.want)
			}
			if res.Next == nil {
				return
			}
			// What it says can be asked for as it is.
			args, err := ParseArgs([]byte(got))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := m.Bind("op", args, nil); err != nil {
				t.Errorf("the next page cannot be asked for: %v", err)
			}
		})
	}
}

// TestPreview: the read that makes a sentence honest, from the write's args to the words.
func TestPreview(t *testing.T) {
	m := service(t, `
		"charge": {"title": "Charge", "access": "read", "method": "GET", "path": "/charges/{charge}", "args": {"charge": {"type": "id"}, "expand": {"optional": true}}, "query": {"expand": "{expand}"},
			"pick": {"root": "data", "fields": ["id", {"path": "amount", "money": {"currency": "currency"}}, "currency", {"path": "created", "time": "epoch_s"}, "description", "disputed", "lines.name", {"path": "lines.amount", "money": {"currency": "currency"}}, "lines.currency"]}},
		"refund": {"title": "Refund", "access": "write", "method": "POST", "path": "/refunds", "args": {"charge": {"type": "id"}, "why": {"optional": true}}, "body_form": {"charge": "{charge}", "why": "{why}"},
			"confirm": "Refund {charge}?", "effects": ["money"], "preview": {"op": "charge", "args": {"charge": "{charge}", "expand": "for {why}"}, "say": "Refunds {amount} of {created} for {description} ({disputed}): {lines.name}, {lines.amount}."}, "pick": {"fields": ["id"]}},
		"plain": {"title": "Plain", "access": "write", "method": "POST", "path": "/x", "confirm": "Go?", "pick": {"nothing": "no body"}}`,
		`"money": {"digits": {"ISK": 2}}`)
	p := newPeer(t, nil)
	for _, tc := range []struct{ data, want string }{
		{`{"id": "ch_1", "amount": 1200, "currency": "gbp", "created": 1796169600, "description": "Tea", "disputed": false, "lines": [{"name": "a", "amount": 5, "currency": "eur"}, {"name": "b", "amount": 700, "currency": "jpy"}]}`,
			"Refunds 12.00 GBP of 2026-12-02 00:00 UTC for Tea (no): a, b, 0.05 EUR, 700 JPY."},
		{`{"id": "ch_1", "amount": 1200, "currency": "isk", "created": 1796169605, "description": "a\nb\u202e", "disputed": true, "lines": []}`,
			"Refunds 12.00 ISK of 2026-12-02 00:00:05 UTC for a ⏎ b� (yes):,."},
		{`{"id": "ch_1", "amount": -1, "created": null, "description": ""}`,
			"Refunds -1 in the currency's smallest unit of for (empty) ():,."},
		{`{"amount": 123456789012345678901234567890, "currency": "KWD", "created": "soon", "description": "` + strings.Repeat("x", 100) + `"}`,
			"Refunds 123456789012345678901234567.890 KWD of soon for " + strings.Repeat("x", 79) + "… ():,."},
		{`null`, "Refunds of for ():,."},
	} {
		p.answerWith(answer(200, `{"data": `+tc.data+`}`))
		c, err := m.Bind("refund", Args{"charge": "ch_1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		pv, err := c.Preview()
		if err != nil {
			t.Fatal(err)
		}
		res, err := p.Do(background, pv, Credential{Secret: testSecret})
		if err != nil {
			t.Fatal(err)
		}
		if got, err := c.Say(res); err != nil || got != tc.want {
			t.Errorf("%s\ngot  %q (%v)\nwant %q", tc.data, got, err, tc.want)
		}
		if r := p.one(t); r.Method != "GET" || r.URI != "/charges/ch_1" {
			t.Errorf("the preview asked for %s %s", r.Method, r.URI)
		}
	}
	c, err := m.Bind("refund", Args{"charge": "ch_1", "why": "a&b"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	p.answerWith(answer(200, `{"data": null}`))
	if _, err := p.Do(background, must(c.Preview()), Credential{Secret: testSecret}); err != nil {
		t.Fatal(err)
	}
	if r := p.one(t); r.URI != "/charges/ch_1?expand=for%20a%26b" {
		t.Errorf("the preview asked for %s", r.URI)
	}
	c, err = m.Bind("plain", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if pv, err := c.Preview(); pv != nil || err != nil {
		t.Errorf("a preview where there is none: %v, %v", pv, err)
	}
	if s, err := c.Say(nil); s != "" || err != nil {
		t.Errorf("words where there is no preview: %q, %v", s, err)
	}
}
