package broker_test

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

var discardLog = log.New(io.Discard, "", 0)

// boundToken makes a token that is bound to a key.
func boundToken(t *testing.T, s *brokertest.Server, key crypto.PublicKey) string {
	return boundTokenOf(t, s, "instance-2", key)
}

func boundTokenOf(t *testing.T, s *brokertest.Server, issuer string, key crypto.PublicKey) string {
	t.Helper()
	jkt, err := broker.Thumbprint(key)
	if err != nil {
		t.Fatal(err)
	}
	now := s.Clock.Now()
	token, err := broker.SignToken(s.InstanceKey(), "i1", broker.Claims{Origins: []string{brokertest.Instance}, Bound: &broker.Confirmation{JKT: jkt}, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: issuer, Audience: jwt.ClaimStrings{s.URL}, ID: "jti-2", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(24 * time.Hour)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// proofRows is R6: a bound token is worth nothing without a fresh proof of its key.
func proofRows(t *testing.T) {
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"Ed25519": ed, "P-256": ec} {
		t.Run(name, func(t *testing.T) {
			s := brokertest.New(t, brokertest.Options{})
			token := boundToken(t, s, key.Public())
			to := s.URL + "/api/refresh"
			id := 0
			sign := func(key crypto.Signer, method, to, token string, at time.Time) string {
				id++
				p, err := broker.SignProof(key, method, to, token, "p"+strings.Repeat("x", id), at)
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			send := func(scheme string, proofs ...string) *brokertest.Page {
				t.Helper()
				body, err := refreshBody("acme", live(s, "acme"), brokertest.NewIdentity(t))
				if err != nil {
					t.Fatal(err)
				}
				req, err := http.NewRequest("POST", to, bytes.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {scheme + " " + token}, "Dpop": proofs}
				resp, err := s.Client().Do(req)
				if err != nil {
					t.Fatal(err)
				}
				defer resp.Body.Close()
				text, err := io.ReadAll(resp.Body)
				if err != nil {
					t.Fatal(err)
				}
				return &brokertest.Page{Status: resp.StatusCode, Header: resp.Header, Body: string(text)}
			}
			now := s.Clock.Now()
			once := sign(key, "POST", to, token, now)
			for _, scheme := range []string{"Bearer", "DPoP"} {
				if p := send(scheme, sign(key, "POST", to, token, now)); p.Status != 200 {
					t.Errorf("%s with a proof: %d %s", scheme, p.Status, p.Body)
				}
			}
			if p := send("DPoP", once); p.Status != 200 {
				t.Errorf("a proof: %d", p.Status)
			}
			s.Upstream.Reset()
			for name, proofs := range map[string][]string{
				"no proof":             nil,
				"the same again":       {once},
				"two":                  {sign(key, "POST", to, token, now), sign(key, "POST", to, token, now)},
				"another URL":          {sign(key, "POST", s.URL+"/api/revoke", token, now)},
				"another host":         {sign(key, "POST", "https://evil.example/api/refresh", token, now)},
				"with a query":         {sign(key, "POST", to+"?a=b", token, now)},
				"another method":       {sign(key, "GET", to, token, now)},
				"another token":        {sign(key, "POST", to, s.Token(), now)},
				"another key":          {sign(foreign, "POST", to, token, now)},
				"not a proof":          {"x.y.z"},
				"the token":            {token},
				"none":                 {headed(t, once, map[string]any{"alg": "none"}) + "."},
				"a private key inside": {withPrivate(t, key, to, token, now)},
				"another type":         {reType(t, key, to, token, now)},
				"long":                 {once + strings.Repeat("A", 5000)},
			} {
				p := send("DPoP", proofs...)
				if p.Status != 401 || p.Body != "{\"error\":\"unauthorized\"}\n" {
					t.Errorf("%s: %d %s", name, p.Status, p.Body)
				}
			}
			// A clock that is off is said, to whoever has the key.
			for off, said := range map[time.Duration]string{
				-3 * time.Minute: `"off_s":-180`, 5 * time.Minute: `"off_s":300`, -121 * time.Second: `"off_s":-121`, 100 * 24 * time.Hour: `"off_s":8640000`,
			} {
				p := send("DPoP", sign(key, "POST", to, token, now.Add(off)))
				if p.Status != 401 || !strings.Contains(p.Body, `"error":"clock"`) || !strings.Contains(p.Body, said) {
					t.Errorf("a clock that is off by %v: %d %s", off, p.Status, p.Body)
				}
				if p := send("DPoP", sign(foreign, "POST", to, token, now.Add(off))); p.Body != "{\"error\":\"unauthorized\"}\n" {
					t.Errorf("whoever has not the key learns %s", p.Body)
				}
			}
			if n := s.Upstream.Secret(); n != 0 {
				t.Errorf("%d requests reached the provider", n)
			}
			for _, off := range []time.Duration{-2 * time.Minute, 2 * time.Minute} {
				if p := send("DPoP", sign(key, "POST", to, token, now.Add(off))); p.Status != 200 {
					t.Errorf("a clock that is off by %v: %d %s", off, p.Status, p.Body)
				}
			}
			// Still remembered when it could last be taken.
			late := sign(key, "POST", to, token, now.Add(2*time.Minute))
			if p := send("DPoP", late); p.Status != 200 {
				t.Fatal(p.Body)
			}
			s.Clock.Advance(239 * time.Second)
			if p := send("DPoP", late); p.Status != 401 {
				t.Errorf("a proof is taken again after 239 s: %d", p.Status)
			}
		})
	}
	if _, err := broker.SignToken(ed, "k", broker.Claims{Origins: []string{"https://a.example"}, Bound: &broker.Confirmation{JKT: "x"}, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "i", Audience: jwt.ClaimStrings{"b"}, ID: "j", IssuedAt: jwt.NewNumericDate(time.Unix(1, 0)), ExpiresAt: jwt.NewNumericDate(time.Unix(2, 0)),
	}}); err == nil {
		t.Error("a token is bound to what is no thumbprint")
	}
}

// TestProofFlood: one holder's calls, however many, do not make the broker forget another's
// proof; and a proof that is shown again costs its holder nothing.
func TestProofFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("40,000 signatures")
	}
	s := brokertest.New(t, brokertest.Options{})
	newKey := func() ed25519.PrivateKey {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	victim, mallory := newKey(), newKey()
	victims, mallorys := boundTokenOf(t, s, "victim", victim.Public()), boundTokenOf(t, s, "mallory", mallory.Public())
	prove := func(key crypto.Signer, token, id string) string {
		p, err := broker.SignProof(key, "POST", s.URL+"/api/refresh", token, id, s.Clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	send := func(token, proof string) int {
		r := httptest.NewRequest("POST", "/api/refresh", strings.NewReader(`{}`))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"DPoP " + token}, "Dpop": {proof}}
		w := httptest.NewRecorder()
		s.Broker.ServeHTTP(w, r)
		return w.Code
	}
	once := prove(victim, victims, "once")
	if got := send(victims, once); got != 404 { // taken, and then there is no such service
		t.Fatalf("a proof: %d", got)
	}
	limited := 0
	for i := range 40_001 {
		if send(mallorys, prove(mallory, mallorys, fmt.Sprint("m", i))) == 429 {
			limited++
		}
	}
	if limited != 40_001-600 {
		t.Errorf("%d of 40001 calls are over the limit", limited)
	}
	for range 1000 {
		if got := send(victims, once); got != 401 {
			t.Fatalf("the proof again: %d", got)
		}
	}
	if got := send(victims, prove(victim, victims, "next")); got != 404 {
		t.Errorf("the holder's next call: %d", got)
	}
	if got := send(mallorys, "x.y.z"); got != 401 {
		t.Errorf("over the limit and without a proof: %d", got)
	}
}

// headed replaces fields of a token's header; the signature no longer fits.
func headed(t *testing.T, token string, fields map[string]any) string {
	t.Helper()
	parts := strings.Split(token, ".")
	data, err := base64.RawURLEncoding.DecodeString(parts[0])
	if err != nil {
		t.Fatal(err)
	}
	var h map[string]any
	if err := json.Unmarshal(data, &h); err != nil {
		t.Fatal(err)
	}
	for k, v := range fields {
		h[k] = v
	}
	if data, err = json.Marshal(h); err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(data) + "." + parts[1]
}

// signAs signs a proof with a changed header.
func signAs(t *testing.T, key crypto.Signer, to, token string, at time.Time, change func(map[string]any)) string {
	t.Helper()
	good, err := broker.SignProof(key, "POST", to, token, "changed", at)
	if err != nil {
		t.Fatal(err)
	}
	parsed, _, err := jwt.NewParser().ParseUnverified(good, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	change(parsed.Header)
	out, err := parsed.SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func withPrivate(t *testing.T, key crypto.Signer, to, token string, at time.Time) string {
	return signAs(t, key, to, token, at, func(h map[string]any) { h["jwk"].(map[string]any)["d"] = "AAAA" })
}

func reType(t *testing.T, key crypto.Signer, to, token string, at time.Time) string {
	return signAs(t, key, to, token, at, func(h map[string]any) { h["typ"] = "JWT" })
}

// TestThumbprint holds ours against RFC 8037's own example (appendix A.3).
func TestThumbprint(t *testing.T) {
	x, err := base64.RawURLEncoding.DecodeString("11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo")
	if err != nil {
		t.Fatal(err)
	}
	got, err := broker.Thumbprint(ed25519.PublicKey(x))
	if want := "kPrK_qmxVWaYVA9wwBF6Iuo3vVzz7TxHCTwXBygrS4k"; err != nil || got != want {
		t.Errorf("%s %v, want %s", got, err, want)
	}
}
