package sidecar_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// TestBrokerSpent holds a broker's answers, as docs/protocol.md has them, against what is
// known of the token afterwards.
func TestBrokerSpent(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		class  sidecar.Class
		code   string
		sent   bool
	}{
		{"no answer", 503, `{"class":"temporary","code":"no_answer","spent":true}`, sidecar.Temporary, "no_answer", true},
		{"another token type", 502, `{"class":"misconfigured","code":"token_type","spent":true}`, sidecar.Temporary, "token_type", true},
		{"an error beside a pair", 503, `{"class":"temporary","code":"unknown","spent":true}`, sidecar.Temporary, "unknown", true},
		{"dead, beside a pair", 409, `{"class":"dead","code":"invalid_grant","spent":true}`, sidecar.Dead, "invalid_grant", true},
		{"an outage", 503, `{"class":"temporary","code":"server"}`, sidecar.Temporary, "server", false},
		{"said to be unspent", 503, `{"class":"temporary","code":"no_answer","spent":false}`, sidecar.Temporary, "no_answer", false},
		{"the operator's", 502, `{"class":"misconfigured","code":"invalid_client"}`, sidecar.Misconfigured, "invalid_client", false},
		{"dead", 409, `{"class":"dead","code":"invalid_grant"}`, sidecar.Dead, "invalid_grant", false},
		{"a limit", 429, `{"class":"temporary","code":"rate_limited"}`, sidecar.Temporary, "rate_limited", false},
		{"another form of spent", 503, `{"class":"temporary","code":"server","spent":"no"}`, sidecar.Temporary, "gateway", true},
		{"a gateway's page", 502, `<html>`, sidecar.Temporary, "gateway", true},
		{"a gateway's words", 504, `{"message":"Endpoint request timed out"}`, sidecar.Temporary, "gateway", true},
		{"turned away", 401, `{"error":"unauthorized"}`, sidecar.Misconfigured, "unauthorized", false},
		{"the broker's panic", 500, `{"error":"internal"}`, sidecar.Temporary, "gateway", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.status)
				io.WriteString(w, c.body)
			}))
			defer server.Close()
			b := &sidecar.Broker{Origin: server.URL, Token: integrations.NewSecret("token")}
			_, err := b.Refresh(context.Background(), "github", integrations.NewSecret("rt1.k1.d3JhcHBlZA"))
			var be *sidecar.BrokerError
			if !errors.As(err, &be) || be.Class != c.class || be.Code != c.code || be.Sent != c.sent || be.Status != c.status {
				t.Errorf("%+v; want %s %s, sent %v", err, c.class, c.code, c.sent)
			}
		})
	}
}
