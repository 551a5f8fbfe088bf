package custody_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

func TestAnswerSealer(t *testing.T) {
	key, err := custody.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	op := custody.RefreshOp([]byte("request"))
	s, err := custody.NewAnswerSealer(key.Public(), custody.PurposeRefresh, op)
	if err != nil {
		t.Fatal(err)
	}
	answer := &custody.RefreshAnswer{Secret: integrations.NewSecret("at"), Refresh: integrations.NewSecret("rt1.k.x"), Same: true, Scopes: []string{strings.Repeat("s", custody.MaxMessage)}}
	if _, err := s.Seal(answer); !errors.Is(err, custody.ErrTooBig) {
		t.Errorf("too big: %v", err)
	}
	if _, err := s.Seal(&custody.TabOutcome{V: 1, Service: "acme", Error: "cancelled"}); !errors.Is(err, custody.ErrPurpose) {
		t.Errorf("another purpose: %v", err)
	}
	answer.Scopes = nil
	e, err := s.Seal(answer)
	if err != nil {
		t.Fatal(err)
	}
	data, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if e, err = custody.ParseEnvelope(data); err != nil {
		t.Fatal(err)
	}
	var got custody.RefreshAnswer
	if err := key.OpenAnswer(e, op, &got); err != nil || got.Secret.Reveal() != "at" || !got.Same {
		t.Errorf("opened: %+v %v", got, err)
	}
	if _, err := s.Seal(answer); err == nil {
		t.Error("it seals twice")
	}
	for name, f := range map[string]func() error{
		"no key": func() error {
			_, err := custody.NewAnswerSealer(custody.PublicKey{}, custody.PurposeRefresh, op)
			return err
		},
		"an op of none":     func() error { _, err := custody.NewAnswerSealer(key.Public(), custody.PurposeRefresh, "x"); return err },
		"a signed purpose":  func() error { _, err := custody.NewAnswerSealer(key.Public(), custody.PurposeResult, op); return err },
		"a purpose of none": func() error { _, err := custody.NewAnswerSealer(key.Public(), "", op); return err },
	} {
		if f() == nil {
			t.Errorf("%s is taken", name)
		}
	}
}
