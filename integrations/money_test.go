package integrations_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// TestStripeMoney holds how amounts read under Stripe's manifest against Stripe's page on
// currencies: an amount that reads a hundred times too small is confirmed by mistake.
func TestStripeMoney(t *testing.T) {
	var file struct{ Money json.RawMessage }
	m, _, _, _ := service(t, "stripe")
	if err := json.Unmarshal(m.Raw(), &file); err != nil {
		t.Fatal(err)
	}
	pay, err := integrations.Parse(fmt.Appendf(nil, `{
		"manifest": 1, "id": "pay", "version": "1.0.0", "name": "Pay", "about": "Amounts", "host": "api.example.com",
		"auth": { "authorization": "bearer" }, "money": %s,
		"ops": { "pay": {
			"title": "Pay", "access": "write", "method": "POST", "path": "/pay",
			"args": { "amount": { "type": "integer", "money": { "currency": "currency" } }, "currency": { "max": 3, "quiet": "the amount names it" } },
			"body_form": { "amount": "{amount}", "currency": "{currency}" },
			"confirm": "Pay {amount}?", "pick": { "fields": ["id"] }
		} } }`, file.Money))
	if err != nil {
		t.Fatal(err)
	}
	for amount, codes := range map[string]string{
		"123450":  "bif clp djf gnf jpy kmf krw mga pyg rwf vnd vuv xaf xof xpf", // no digits
		"1234.50": "usd eur gbp chf huf twd ugx isk",                             // two, though ISO 4217 gives the last two none
		"123.450": "bhd jod kwd omr tnd",                                         // three
	} {
		for _, code := range strings.Fields(codes) {
			c, err := pay.Bind("pay", integrations.Args{"amount": 123450, "currency": code}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, want := c.Sentence().Text, "Pay "+amount+" "+strings.ToUpper(code)+"?"; got != want {
				t.Errorf("123450 %s: got %q, want %q", code, got, want)
			}
		}
	}
}
