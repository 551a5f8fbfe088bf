package custody

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/elevenmessenger/connect/integrations"
)

// TestSecretsDoNotPrint prints every type that holds a secret in every way, and every error
// that comes of reading one that is not in order.
func TestSecretsDoNotPrint(t *testing.T) {
	const marker = "Marker7secret"
	wrap := integrations.NewSecret("rt1.k1." + marker)
	token := integrations.NewSecret(marker)
	i := newTestIdentity(t)
	scalar := i.key.Bytes()
	c := &Credential{V: 1, ID: "c1", Service: "practice", Kind: KindPAT, Secret: token, Refresh: wrap, Broker: brokerA}
	g := &Grant{V: 1, ID: grantA, Secret: token, Refresh: wrap, Once: &Once{}}
	values := []any{
		c, *c, g, *g, &Handback{Secret: token, Refresh: wrap}, Handback{Secret: token}, &Handoff{Secret: token, Refresh: wrap},
		&TabOutcome{Secret: token, Refresh: wrap}, TabOutcome{Secret: token}, &RefreshAnswer{Secret: token, Refresh: wrap}, RefreshAnswer{Secret: token},
		&LegacyGrant{Token: token}, LegacyGrant{Token: token}, c.For(), g.For(), GrantRequest{}, i, struct{ I *Identity }{i}, []*Identity{i},
		map[string]any{"c": *c}, []Credential{*c}, struct{ C Credential }{*c},
	}
	var out strings.Builder
	for _, v := range values {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%T"} {
			fmt.Fprintf(&out, verb+"\n", v)
		}
		var b bytes.Buffer
		slog.New(slog.NewTextHandler(&b, nil)).Info("text", "value", v, slog.Group("g", "v", v))
		slog.New(slog.NewJSONHandler(&b, nil)).Info("json", "value", v, slog.Group("g", "v", v))
		out.Write(b.Bytes())
		if b, err := json.Marshal(v); err == nil {
			out.Write(b)
		}
		if b, err := jsonv2.Marshal(v); err == nil {
			out.Write(b)
		}
	}
	// Errors: every valid message with the marker for its secret, cut, extended and changed.
	for name, text := range validMessages(t) {
		text := strings.NewReplacer("secret-a", marker, "secret-b", marker, "d3JhcHBlZA", marker, "ZnJlc2g", marker).Replace(string(text))
		purpose, _, _ := strings.Cut(name, "_")
		for _, bad := range []string{
			text + "x", text[:len(text)-1], strings.Replace(text, ":", ";", 1), strings.Replace(text, marker, marker+" ", 1), strings.Replace(text, marker, marker+"\n", 1),
			strings.Replace(text, `"`+marker+`"`, `{"`+marker+`":1}`, 1), strings.Replace(text, `"secret":`, `"`+marker+`":`, 1),
			strings.Replace(text, `"secret"`, `"secret":"`+marker+`","secret"`, 1), strings.Replace(text, "rt1.", "rt2.", 1), strings.Replace(text, `"v":1`, `"v":9`, 1),
		} {
			if err := decode([]byte(bad), &Envelope{Purpose: Purpose(purpose)}, messageOf(Purpose(purpose))); err != nil {
				fmt.Fprintln(&out, err)
				fmt.Fprintf(&out, "%+v %#v\n", err, err)
			}
		}
	}
	for _, leak := range []string{
		marker, hex.EncodeToString([]byte(marker)), strings.ToUpper(hex.EncodeToString([]byte(marker))), base64.RawStdEncoding.EncodeToString([]byte(marker)),
		fmt.Sprint([]byte(marker)), string(scalar), hex.EncodeToString(scalar), base64.RawURLEncoding.EncodeToString(scalar), strings.Trim(fmt.Sprint(scalar), "[]"),
	} {
		if at := strings.Index(out.String(), leak); at >= 0 {
			t.Errorf("%q was printed: …%s…", leak, out.String()[max(0, at-80):min(out.Len(), at+80)])
		}
	}
	if !strings.Contains(out.String(), "[secret]") || out.Len() < 10000 {
		t.Errorf("nothing was printed: %d bytes", out.Len())
	}
}
