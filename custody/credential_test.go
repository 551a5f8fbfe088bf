package custody

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// TestCredentialBlob: only the member's own clients make a blob, and its generation is not
// said twice in two ways.
func TestCredentialBlob(t *testing.T) {
	s := newStage(t)
	text := validMessages(t)["credential"]
	c := new(Credential)
	if err := parse(text, MaxMessage, 1, c); err != nil {
		t.Fatal(err)
	}
	e := must(c.Seal(s.ada, "space"))
	if e.Op != "c1.7" || e.From != e.To {
		t.Errorf("its header is %+v", e.Header())
	}
	got := must(OpenCredential(s.ada, e))
	if a, b := must(marshal(got)), must(marshal(c)); string(a) != string(b) {
		t.Errorf("it became\n%s", a)
	}
	if _, err := OpenCredential(s.mallory, e); !errors.Is(err, ErrNotMine) {
		t.Errorf("opened by another: %v", err)
	}

	// The instance knows the member's public key and can seal to it, but not as her.
	forged := must(s.mallory.Seal(s.mallory.pub, nil, Header{Purpose: PurposeCredential, Space: "space", Op: "c1.8"}, text))
	forged.From, forged.To = s.ada.id, s.ada.id
	forged.CT = must(hpkeSeal(s.ada.pub, forged.info(), text))
	if _, err := OpenCredential(s.ada, forged); !errors.Is(err, ErrForged) {
		t.Errorf("made by the instance: %v", err)
	}
	other := must(s.ada.Seal(s.ada.pub, nil, Header{Purpose: PurposeCredential, Space: "space", Op: "c1.8"}, text))
	if _, err := OpenCredential(s.ada, other); !errors.Is(err, ErrMalformed) {
		t.Errorf("generation 7 under the name of 8: %v", err)
	}

	// The instance puts the old blob back.
	memory := make(Memory)
	newer := *c
	newer.Generation, newer.Cap = 8, integrations.Read
	for _, step := range []struct {
		e    *Envelope
		want error
	}{{e, nil}, {must(newer.Seal(s.ada, "space")), nil}, {e, ErrOlder}} {
		if err := memory.See(must(OpenCredential(s.ada, step.e))); !errors.Is(err, step.want) {
			t.Errorf("got %v, want %v", err, step.want)
		}
	}
}

// TestMemoryOfContent: what a device wrote is the same when it comes back, and nothing else
// of its generation is. A memory of before, without a sum, is still read, and takes one.
func TestMemoryOfContent(t *testing.T) {
	s := newStage(t)
	c := new(Credential)
	if err := parse(validMessages(t)["credential"], MaxMessage, 1, c); err != nil {
		t.Fatal(err)
	}
	again := must(OpenCredential(s.ada, must(c.Seal(s.ada, "space"))))
	other := *again
	other.Secret, other.Account = integrations.NewSecret("secret-z"), &Account{ID: "2", Label: "mallory"}
	memory := make(Memory)
	memory.Confirm(c)
	if err := memory.See(again); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := memory.See(&other); !errors.Is(err, ErrOlder) {
		t.Errorf("another secret and account: %v", err)
	}
	kept := string(must(json.Marshal(memory)))
	if strings.Contains(kept, "secret-a") || strings.Contains(kept, wrapA) || !strings.Contains(kept, `"sum":"`) {
		t.Errorf("it is kept as %s", kept)
	}

	memory = nil
	if err := json.Unmarshal([]byte(`{"c1":{"generation":7,"pair":3,"cap":"write"}}`), &memory); err != nil {
		t.Fatal(err)
	}
	if b := must(json.Marshal(memory)); strings.Contains(string(b), "sum") {
		t.Errorf("no sum is written as %s", b)
	}
	if err := memory.See(again); err != nil {
		t.Errorf("after a memory of before: %v", err)
	}
	if err := memory.See(&other); !errors.Is(err, ErrOlder) {
		t.Errorf("another, after that: %v", err)
	}
}

func TestCapAllows(t *testing.T) {
	for _, c := range []struct {
		cap, access integrations.Access
		want        bool
	}{
		{"", "read", true}, {"read", "read", true}, {"write", "read", true}, {"", "write", false}, {"read", "write", false}, {"write", "write", true},
		{"write", "", false}, {"write", "admin", false}, {"admin", "read", false}, {"admin", "write", false},
	} {
		if got := (&Credential{Cap: c.cap}).CapAllows(c.access); got != c.want {
			t.Errorf("cap %q, %q: %v", c.cap, c.access, got)
		}
	}
}

func TestLegacyGrant(t *testing.T) {
	s := newStage(t)
	sealed := must(SealLegacyGrant(s.bot.pub, LegacyGrant{Token: integrations.NewSecret("token-a"), ExpiresAt: noon + 60}))
	o := must(ParseLegacyOp([]byte(`{"type":"connect.op","id":"op1","op":"list","grant":"` + sealed + `"}`)))
	g := must(s.bot.OpenLegacyGrant(o, time.Unix(noon, 0)))
	if g.Token.Reveal() != "token-a" || g.ExpiresAt != noon+60 {
		t.Errorf("it became %+v", g)
	}
	if _, err := s.ada.OpenLegacyGrant(o, time.Unix(noon, 0)); !errors.Is(err, ErrOpen) {
		t.Errorf("opened by another: %v", err)
	}
}
