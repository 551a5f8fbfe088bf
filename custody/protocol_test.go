package custody

import (
	"encoding/hex"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func protocol(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestProtocolExample opens the example of docs/protocol.md, and holds every step on the way
// against what the page says.
func TestProtocolExample(t *testing.T) {
	page := protocol(t)
	value := func(name string) string {
		t.Helper()
		m := regexp.MustCompile(`(?m)^` + name + ` += (.+)$`).FindStringSubmatch(page)
		if m == nil {
			t.Fatalf("the page has no %q", name)
		}
		return m[1]
	}
	ada, bot := parseTestIdentity(t, value("ada")), parseTestIdentity(t, value("bot"))
	compare(t, "Ada's key", pkcs8Of(t, ada), pkcs8Of(t, testIdentity(t, "ada")))
	compare(t, "the bot's key", pkcs8Of(t, bot), pkcs8Of(t, testIdentity(t, "bot")))
	compare(t, "Ada's point", base64Of(ada.pub.Bytes()), value("ada point"))
	compare(t, "the bot's point", base64Of(bot.pub.Bytes()), value("bot point"))
	compare(t, "Ada's id", string(ada.ID()), value("ada id"))
	compare(t, "the bot's id", string(bot.ID()), value("bot id"))
	compare(t, "Ada's check number", ada.pub.CheckNumber(), value("ada check"))

	m := regexp.MustCompile("(?s)```json\n({.*?})\n```").FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no envelope")
	}
	e, err := ParseEnvelope([]byte(m[1]))
	if err != nil {
		t.Fatal(err)
	}
	if e.Header() != (Header{Purpose: PurposeAck, Space: "home", Thread: "kitchen"}) {
		t.Errorf("its header is %+v", e.Header())
	}
	compare(t, "info", hex.EncodeToString(e.info()), value("info"))
	compare(t, "K", hex.EncodeToString(must(bot.tagKeys(ada.pub)).received), value("K"))
	pt, err := bot.Open(e, ada.Public(), nil)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, "plaintext", string(pt), value("plaintext"))
	ack := new(Ack)
	if err := bot.OpenMessage(e, ada.Public(), nil, ack); err != nil || *ack != (Ack{"c1", 4}) {
		t.Errorf("%+v, %v", ack, err)
	}
}

// TestProtocolTables: the page's tables have every field of every message, and no other.
func TestProtocolTables(t *testing.T) {
	page := protocol(t)
	for _, c := range []struct {
		after string // what stands before the table
		typ   reflect.Type
	}{
		{"## 3. Envelope", reflect.TypeFor[Envelope]()},
		{"### 4.1 `credential`", reflect.TypeFor[Credential]()},
		{"### 4.2 `grant`", reflect.TypeFor[Grant]()},
		{"`once` is:", reflect.TypeFor[Once]()},
		{"`window` is:", reflect.TypeFor[Window]()},
		{"### 4.3 `say`", reflect.TypeFor[Say]()},
		{"### 4.4 `op`", reflect.TypeFor[Op]()},
		{"### 4.5 `result`", reflect.TypeFor[Result]()},
		{"`error` is:", reflect.TypeFor[ResultError]()},
		{"### 4.6 `handback`", reflect.TypeFor[Handback]()},
		{"A `handoff` brings", reflect.TypeFor[Handoff]()},
		{"`ack`: what", reflect.TypeFor[Ack]()},
		{"`end`: stops", reflect.TypeFor[End]()},
		{"`revoke`: ends", reflect.TypeFor[Revoke]()},
		{"`tab`: the outcome", reflect.TypeFor[TabOutcome]()},
		{"`refresh`: a rotated pair", reflect.TypeFor[RefreshAnswer]()},
	} {
		var want []string
		for i := range c.typ.NumField() {
			name, _, _ := strings.Cut(c.typ.Field(i).Tag.Get("json"), ",")
			want = append(want, name)
		}
		_, rest, ok := strings.Cut(page, "\n"+c.after)
		_, rest, ok2 := strings.Cut(rest, "\n| field |")
		if !ok || !ok2 {
			t.Errorf("there is no table after %q", c.after)
			continue
		}
		var got []string
		for _, line := range strings.Split(rest, "\n")[2:] {
			if !strings.HasPrefix(line, "|") {
				break
			}
			for _, m := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(strings.Split(line, "|")[1], -1) {
				got = append(got, m[1])
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s: the page has\n%v\nthe type\n%v", c.typ, got, want)
		}
	}
	for p := range opForms {
		if !strings.Contains(page, "`"+string(p)+"`") {
			t.Errorf("the page does not name the purpose %s", p)
		}
	}
	// Every outcome that the vectors know stands in the page.
	for _, o := range outcomes {
		if !strings.Contains(page, "`"+o.name+"`") {
			t.Errorf("the page does not name the outcome %s", o.name)
		}
	}
}
