package custody

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/integrations"
)

// largestPair is the largest credential and the largest hand-back to it.
func largestPair(t *testing.T) (*Credential, *Handback) {
	t.Helper()
	token := integrations.NewSecret(strings.Repeat("s", 8192))
	wrap := integrations.NewSecret("rt1.k1." + strings.Repeat("r", 11264-len("rt1.k1.")))
	c := &Credential{
		V: 1, ID: strings.Repeat("c", 64), Generation: maxCount, Pair: 7, Service: "practice", Kind: KindOAuth, Secret: token, Refresh: wrap, Broker: brokerA,
		ExpiresAt: noon + 60, Cap: integrations.Write, Lent: &Lent{"g1", noon + 3600}, Connection: map[string]ConnectionValue{"room": {"r1", "Room"}},
	}
	h := &Handback{V: 1, Credential: c.ID, Pair: 8, Secret: token, Refresh: wrap, ExpiresAt: noon + 7200, ObtainedAt: noon, Keep: map[string]string{"k": strings.Repeat("k", 1000)}}
	if err := h.Sign(wrap); err != nil {
		t.Fatal(err)
	}
	return c, h
}

func (c *Credential) now() time.Time { return time.Unix(noon, 0) }

// TestHandbacksInOrder: two rotations, delivered in every order, more than once.
func TestHandbacksInOrder(t *testing.T) {
	c := new(Credential)
	if err := parse(validMessages(t)["credential"], MaxMessage, 1, c); err != nil {
		t.Fatal(err)
	}
	make := func(pair int64, old, fresh string) *Handback {
		h := &Handback{V: 1, Credential: "c1", Pair: pair, Secret: integrations.NewSecret(fresh), Refresh: integrations.NewSecret("rt1.k1." + fresh), ObtainedAt: noon}
		if err := h.Sign(integrations.NewSecret(old)); err != nil {
			t.Fatal(err)
		}
		return h
	}
	first := make(4, wrapA, "four")
	second := make(5, "rt1.k1.four", "five")

	if _, err := c.Take(second); !errors.Is(err, ErrGap) {
		t.Errorf("the second first: %v", err)
	}
	one := must(c.Take(first))
	if _, err := one.Take(first); !errors.Is(err, ErrOlder) {
		t.Errorf("the first again: %v", err)
	}
	two := must(one.Take(second))
	for _, h := range []*Handback{first, second} {
		if _, err := two.Take(h); !errors.Is(err, ErrOlder) {
			t.Errorf("pair %d once more: %v", h.Pair, err)
		}
	}
	if two.Pair != 5 || two.Generation != 9 || two.Secret.Reveal() != "five" || two.Refresh.Reveal() != "rt1.k1.five" {
		t.Errorf("it became %d, %d", two.Pair, two.Generation)
	}
	if c.Pair != 3 || c.Secret.Reveal() != "secret-a" || c.Generation != 7 {
		t.Error("the credential that was there was changed")
	}
	// Whoever was never lent the pair cannot make one, even with the same pair number.
	if _, err := c.Take(make(4, "rt1.k1.guess", "evil")); !errors.Is(err, ErrLink) || !errors.Is(err, ErrForged) {
		t.Errorf("another account's pair: %v", err)
	}
	pat := *c
	pat.Refresh, pat.Broker = integrations.Secret{}, ""
	if _, err := pat.Take(first); !errors.Is(err, ErrLink) {
		t.Errorf("a connection without a refresh token: %v", err)
	}
	if err := new(Handback).Sign(integrations.Secret{}); !errors.Is(err, ErrLink) {
		t.Errorf("signed with no token: %v", err)
	}
}

// TestHandoff: only the bot itself makes and opens one.
func TestHandoff(t *testing.T) {
	s := newStage(t)
	h := &Handoff{V: 1, Member: s.ada.id, Credential: "c1", Pair: 4, Secret: integrations.NewSecret("fresh"), ObtainedAt: noon, Until: noon + 600}
	header := Header{Op: string(RefreshOp([]byte("line")))}
	e := must(s.bot.SealMessage(s.bot.pub, nil, header, h))
	got := new(Handoff)
	if err := s.bot.OpenMessage(e, s.bot.pub, nil, got); err != nil || got.Secret != h.Secret || got.Member != s.ada.id {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := s.ada.SealMessage(s.bot.pub, nil, header, h); !errors.Is(err, ErrMalformed) {
		t.Errorf("from a member: %v", err)
	}
}

// TestRotatedProofIsBound: the proof holds for one ciphertext and one token.
func TestRotatedProofIsBound(t *testing.T) {
	s := newStage(t)
	e := s.fabricated(PurposeHandback, opA)
	token := integrations.NewSecret(wrapA)
	proof := RotatedProof(token, e)
	other := *e
	other.CT = bytes.Clone(e.CT)
	other.CT[0] ^= 1
	if RotatedProof(token, &other) == proof || RotatedProof(integrations.NewSecret(wrapB), e) == proof {
		t.Error("another ciphertext or token has the same proof")
	}
}
