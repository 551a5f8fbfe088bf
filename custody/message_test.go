package custody

import (
	"errors"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// TestMessagesTravel seals and opens every valid message through the public functions.
func TestMessagesTravel(t *testing.T) {
	s := newStage(t)
	for name, text := range validMessages(t) {
		v := &vector{Purpose: name}
		for i, c := range name {
			if c == '_' {
				v.Purpose = name[:i]
				break
			}
		}
		p := Purpose(v.Purpose)
		h := Header{Op: headerOp(name, s)}
		m, got := messageOf(p), messageOf(p)
		if err := decode(text, &Envelope{Purpose: p, Op: h.Op}, m); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if p.unsigned() {
			e, err := SealAnswer(s.tab.pub, h.Op, m)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if err := s.tab.OpenAnswer(e, h.Op, got); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, other := range []string{"practice.write", "github.read", RefreshOp([]byte("another request")), ""} {
				if err := s.tab.OpenAnswer(e, other, got); !errors.Is(err, ErrPurpose) {
					t.Errorf("%s as an answer to %q: %v", name, other, err)
				}
			}
			if _, err := s.ada.SealMessage(s.tab.pub, nil, h, m); !errors.Is(err, ErrPurpose) {
				t.Errorf("%s from a member: %v", name, err)
			}
			continue
		}
		from, to := s.ada, s.bot
		if p.self() {
			to = s.ada
		}
		e, err := from.SealMessage(to.pub, nil, h, m)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if err := to.OpenMessage(e, from.pub, nil, got); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for _, q := range messagePurposes {
			if q != p {
				if err := to.OpenMessage(e, from.pub, nil, messageOf(q)); !errors.Is(err, ErrPurpose) {
					t.Errorf("%s as %s: %v", name, q, err)
				}
			}
		}
		if _, err := SealAnswer(s.tab.pub, h.Op, m); err == nil {
			t.Errorf("%s from nobody", name)
		}
	}
}

// TestOpenForgetsWhatWasThere: nothing of a message before stays in the next.
func TestOpenForgetsWhatWasThere(t *testing.T) {
	s := newStage(t)
	r := &Result{Handback: s.fabricated(PurposeHandback, opA), Error: &ResultError{Code: "busy"}, Next: []byte(`{}`)}
	e := must(s.bot.SealMessage(s.ada.pub, nil, Header{Op: opA}, &Result{V: 2, ID: opA, OK: true, Result: []byte("1")}))
	if err := s.ada.OpenMessage(e, s.bot.pub, nil, r); err != nil || r.Handback != nil || r.Error != nil || r.Next != nil {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestSealRefusesMessages: what would not be read is not sealed.
func TestSealRefusesMessages(t *testing.T) {
	s := newStage(t)
	token := integrations.NewSecret("secret-a")
	for name, c := range map[string]struct {
		h Header
		m Message
	}{
		"an op under another id":           {Header{Op: grantA}, &Op{V: 2, ID: opA, Service: "practice", Op: "book", Args: []byte(`{}`), Grant: s.fabricated(PurposeGrant, opA)}},
		"args that are no JSON":            {Header{Op: opA}, &Op{V: 2, ID: opA, Service: "practice", Op: "book", Args: []byte(`{`), Grant: s.fabricated(PurposeGrant, opA)}},
		"args with a name twice":           {Header{Op: opA}, &Op{V: 2, ID: opA, Service: "practice", Op: "book", Args: []byte(`{"a":1,"a":2}`), Grant: s.fabricated(PurposeGrant, opA)}},
		"a result of nothing":              {Header{Op: opA}, &Result{V: 2, ID: opA, OK: true}},
		"a provider's refresh token":       {Header{}, &Handback{V: 1, Credential: "c1", Pair: 1, Secret: token, Refresh: token, Link: Digest{1}}},
		"a text that is no UTF-8":          {Header{}, &Say{V: 1, ID: "s", At: noon, Text: "\xff"}},
		"a snapshot of nothing":            {Header{}, &Snapshot{}},
		"an end of everything and nothing": {Header{}, &End{At: noon}},
	} {
		to := s.bot
		if c.m.purpose().self() {
			to = s.ada
		}
		if e, err := s.ada.SealMessage(to.pub, nil, c.h, c.m); err == nil {
			t.Errorf("%s is sealed: %+v", name, e.Header())
		}
	}
}
