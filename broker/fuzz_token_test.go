package broker_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// FuzzReadToken: reading never panics; whatever is returned is a token; and the pair comes
// first: a JSON answer with a good access token and no error gives that token, however odd
// all else in it is.
func FuzzReadToken(f *testing.F) {
	for _, s := range []string{
		`{"access_token":"at","refresh_token":"rt","expires_in":3600,"token_type":"Bearer","scope":"a b"}`,
		`{"access_token":"at","expires_in":9e18}`, `{"access_token":"at","expires_in":"3600.0","scope":["a",null]}`, `{"error":"invalid_grant"}`,
		`{"error":{"type":"x","code":1},"access_token":"at"}`, `{"ok":false,"access_token":"at"}`, `{"ok":true,"authed_user":{"access_token":"at"}}`,
		`access_token=at&refresh_token=rt&expires_in=1`, `error=bad`, `<html>502</html>`, ``, `null`, `[]`, `{}`, "\xef\xbb\xbf{\"access_token\":\"at\"}",
		`{"access_token":"at","access_token":"bt"}`, `{"access_token":"at"} trailing`, `{"access_token":"a.eyJleHAiOjIsImlhdCI6MX0.c"}`,
		`{"access_token":"at","expires_at":"2026-12-02T00:00:00Z"}`, `{"access_token":"at","expires_at":1790000000}`, `{"error.x":"y","access_token":"at"}`,
		`{"access_token":"\u0061t","token_type":"BEARER"}`, strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200), `{"error":"","access_token":"at","scope":7}`,
	} {
		f.Add(200, "", []byte(s))
		f.Add(400, "30", []byte(s))
	}
	plain := acmeOAuth(f, func(map[string]any) {})
	odd := acmeOAuth(f, func(o map[string]any) {
		o["token_root"], o["token_type"], o["token_keep"], o["error_at"] = "authed_user", []any{"user"}, []any{"team.id"}, []any{"status", "error"}
		o["answer_names"], o["scope_separator_answer"] = map[string]any{"scope": "scopes"}, ","
	})
	now := time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, status int, after string, body []byte) {
		h := http.Header{"Retry-After": {after}}
		if a, err := broker.ReadToken(odd, status, h, body, now); err == nil && !broker.GoodToken(a.Access) {
			t.Errorf("%q is taken for a token", a.Access)
		}
		a, err := broker.ReadToken(plain, status, h, body, now)
		var re *broker.RefreshError
		switch {
		case err != nil && !errors.As(err, &re):
			t.Fatalf("the error is %v", err)
		case err != nil:
			if re.RetryAfter < 0 || re.RetryAfter > 24*time.Hour || re.Class == broker.Dead && (re.Code != "invalid_grant" || status >= 500) {
				t.Errorf("%+v", re)
			}
			if re.Code != "" && len(re.Code) > 30 {
				t.Errorf("the code is %q", re.Code)
			}
		default:
			if !broker.GoodToken(a.Access) || a.Refresh != "" && !broker.GoodToken(a.Refresh) || a.ExpiresIn < 0 || a.ExpiresIn > 10*365*24*3600 {
				t.Errorf("%+v", a)
			}
			for k, v := range a.Keep {
				if len(v) > 512 {
					t.Errorf("%s is kept with %d bytes", k, len(v))
				}
			}
		}
		// The property, by another reading of the same body.
		var m map[string]any
		if status != 200 || json.Unmarshal(body, &m) != nil {
			return
		}
		access, _ := m["access_token"].(string)
		kind, isText := m["token_type"].(string)
		errText, textual := m["error"].(string)
		noError := m["error"] == nil || textual && errText == ""
		switch m["error"].(type) { // what is neither text, number nor object is no code
		case bool, []any:
			noError = true
		}
		if !broker.GoodToken(access) || !noError || m["ok"] == false || isText && kind != "" && !strings.EqualFold(kind, "bearer") {
			return
		}
		if err != nil || a.Access != access {
			t.Errorf("a pair is lost: %v", err)
		}
		if rt, _ := m["refresh_token"].(string); err == nil && broker.GoodToken(rt) && a.Refresh != rt {
			t.Errorf("the refresh token is %q, want %q", a.Refresh, rt)
		}
	})
}

// within makes a broker whose provider is nowhere, and counts who asks for its client.
func within(f *testing.F) (*brokertest.Server, *atomic.Int64) {
	asked := new(atomic.Int64)
	s := brokertest.New(f, brokertest.Options{Config: func(c *broker.Config) {
		unlimited(c)
		c.Secrets = asking{c.Secrets, asked}
		c.ConnectTo = map[string]string{"auth.acme.example:443": "127.0.0.1:1"}
		c.UpstreamTimeout = time.Second
	}})
	return s, asked
}

type asking struct {
	broker.SecretSource
	n *atomic.Int64
}

func (a asking) Client(ctx context.Context, service string) (broker.Client, error) {
	a.n.Add(1)
	return a.SecretSource.Client(ctx, service)
}

// FuzzRefreshBody: whatever is sent, the answer is one of a closed list and holds nothing of
// the request; the provider is asked for a whole and proper request alone.
func FuzzRefreshBody(f *testing.F) {
	s, asked := within(f)
	key, err := brokertest.NewIdentity(f).Public().MarshalText()
	if err != nil {
		f.Fatal(err)
	}
	good, err := json.Marshal(map[string]string{"service": "acme", "refresh": s.Broker.Wrap("acme", brokertest.Instance, "rt-1"), "key": string(key)})
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range []string{string(good), string(good) + " ", `{}`, ``, `[]`, `null`, `{"service":"acme"}`, `{"service":"acme","service":"acme"}`, `{"service":"acme","refresh":"rt1.w1.AAAA","key":"` + string(key) + `"}`,
		`{"service":"github","refresh":"rt1.w9.AAAA","key":"` + string(key) + `"}`, `{"service":null,"refresh":null,"key":null}`, `{"service":"acme","secret":"x","keep":{"a":"b"}}`, `{"service":"acme","secret":"x y"}`,
		"{\"service\":\"acme\",\"refresh\":\"rt1..\",\"key\":\"\"}", strings.Replace(string(good), "rt1.", "rt2.", 1), strings.Repeat("x", 25<<10)} {
		f.Add(true, []byte(b))
		f.Add(false, []byte(b))
	}
	token := s.Token()
	allowed := map[int]bool{200: true, 400: true, 401: true, 404: true, 413: true, 502: true, 503: true}
	f.Fuzz(func(t *testing.T, refresh bool, body []byte) {
		path := "/api/revoke"
		if refresh {
			path = "/api/refresh"
		}
		req := httptest.NewRequest("POST", path, bytes.NewReader(body))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Bearer " + token}}
		rec := httptest.NewRecorder()
		before := asked.Load()
		s.Broker.ServeHTTP(rec, req)
		text := rec.Body.String()
		var v map[string]any
		if !allowed[rec.Code] || json.Unmarshal([]byte(text), &v) != nil || len(text) > 250 {
			t.Fatalf("%d %s", rec.Code, text)
		}
		for k := range v {
			switch k {
			case "error", "class", "code", "retry_after", "revoked", "why", "where":
			default:
				t.Errorf("the answer has a field %q", k)
			}
		}
		if refresh && asked.Load() != before {
			var in struct{ Service, Refresh, Key string }
			if err := json.Unmarshal(body, &in); err != nil {
				t.Fatal("the provider is asked for a body that is no JSON")
			}
			if _, _, err := s.Broker.Unwrap(in.Service, []string{brokertest.Instance}, in.Refresh); err != nil {
				t.Error("the provider is asked for a token that is not wrapped")
			}
		}
	})
}

// FuzzInstanceToken: no header but the one good token's is taken, and every refusal reads the
// same.
func FuzzInstanceToken(f *testing.F) {
	s, _ := within(f)
	good := s.Token()
	parts := strings.Split(good, ".")
	for _, h := range []string{"Bearer " + good, "bearer " + good, "DPoP " + good, good, "Bearer", "Bearer ", "Bearer  " + good, "Bearer " + good + " ", "Basic " + good, "Bearer " + good + "=",
		"Bearer " + parts[0] + "." + parts[1] + ".", "Bearer " + parts[0] + "." + parts[1], "Bearer eyJhbGciOiJub25lIn0." + parts[1] + ".", "Bearer " + parts[0] + ".e30." + parts[2],
		"Bearer eyJhbGciOiJIUzI1NiIsImtpZCI6ImkxIn0." + parts[1] + "." + parts[2], "Bearer \n" + good, "Bearer " + strings.Repeat("A", 9000)} {
		f.Add(h)
	}
	f.Fuzz(func(t *testing.T, auth string) {
		req := httptest.NewRequest("POST", "/api/refresh", strings.NewReader(`{}`))
		req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {auth}}
		rec := httptest.NewRecorder()
		s.Broker.ServeHTTP(rec, req)
		scheme, token, _ := strings.Cut(auth, " ")
		known := token == good && (strings.EqualFold(scheme, "bearer") || strings.EqualFold(scheme, "dpop"))
		if got := rec.Code != http.StatusUnauthorized; got != known {
			t.Errorf("%q: %d", auth, rec.Code)
		}
		if !known && rec.Body.String() != "{\"error\":\"unauthorized\"}\n" {
			t.Errorf("%q: %s", auth, rec.Body)
		}
	})
}
