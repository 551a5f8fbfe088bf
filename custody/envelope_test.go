package custody

import (
	"bytes"
	"crypto/rand"
	"errors"
	"reflect"
	"strings"
	"testing"
)

// TestEveryHeaderField changes each field of each kind of envelope, in Go values rather than
// in text: none opens, and none panics.
func TestEveryHeaderField(t *testing.T) {
	s := newStage(t)
	tried := 0
	for _, v := range sealedVectors(t) {
		if v.Expect != "success" || v.PadTo != 0 {
			continue
		}
		e, err := ParseEnvelope([]byte(v.Envelope))
		if err != nil {
			t.Fatal(err)
		}
		to := parseTestIdentity(t, v.RecipientPKCS8)
		var from PublicKey
		if v.SenderPublic != "" {
			from = must(ParsePublicKey(unbase64(t, v.SenderPublic)))
		}
		var day *Identity
		if v.DayPKCS8 != "" {
			day = s.day
		}
		typ := reflect.TypeFor[Envelope]()
		for i := range typ.NumField() {
			changed := *e
			f := reflect.ValueOf(&changed).Elem().Field(i)
			var others []any
			switch f.Interface().(type) {
			case int:
				others = []any{0, 2, -1}
			case Purpose:
				for p := range opForms {
					others = append(others, p)
				}
				others = append(others, Purpose(""), Purpose("x"))
			case KeyID:
				others = []any{KeyID(""), s.mallory.id, s.tab.id, KeyID("x")}
			case string:
				others = []any{"", "x", "other", f.String() + "x", strings.ToUpper(f.String()), opA, "c1.8", "practice.write"}
			case Bytes:
				b := f.Bytes()
				for _, n := range []int{0, len(b) / 2, len(b) - 1} {
					if n >= 0 && n < len(b) {
						c := bytes.Clone(b)
						c[n] ^= 0x80
						others = append(others, Bytes(c), Bytes(bytes.Clone(b[:n])))
					}
				}
				others = append(others, Bytes(nil), Bytes(append(bytes.Clone(b), 0)))
			}
			for _, o := range others {
				f.Set(reflect.ValueOf(o))
				if reflect.DeepEqual(&changed, e) || len(changed.Tag) == 0 && len(e.Tag) == 0 && typ.Field(i).Name == "Tag" && len(o.(Bytes)) == 0 {
					continue
				}
				tried++
				_, err := to.Open(&changed, from, day)
				if err == nil {
					t.Errorf("%s: it opens with %s %v", v.Name, typ.Field(i).Name, o)
				}
				if got := outcome(err); strings.HasPrefix(got, "another") {
					t.Errorf("%s with %s %v: %s", v.Name, typ.Field(i).Name, o, got)
				}
			}
		}
	}
	if t.Logf("%d changes", tried); tried < 1000 {
		t.Error("this test shows little")
	}
}

func TestSealRefuses(t *testing.T) {
	s := newStage(t)
	for _, c := range []struct {
		name string
		to   PublicKey
		day  *PublicKey
		h    Header
		size int
		want error
	}{
		{"no recipient", PublicKey{}, nil, Header{Purpose: PurposeSay}, 1, ErrMalformed},
		{"no purpose", s.bot.pub, nil, Header{}, 1, ErrMalformed},
		{"another purpose", s.bot.pub, nil, Header{Purpose: "shout"}, 1, ErrMalformed},
		{"what the broker seals", s.bot.pub, nil, Header{Purpose: PurposeTab, Op: "practice.read"}, 1, ErrPurpose},
		{"a space that is no id", s.bot.pub, nil, Header{Purpose: PurposeSay, Space: "a/b"}, 1, ErrMalformed},
		{"a thread that is too long", s.bot.pub, nil, Header{Purpose: PurposeSay, Thread: strings.Repeat("t", 65)}, 1, ErrMalformed},
		{"a credential to another", s.bot.pub, nil, Header{Purpose: PurposeCredential, Op: "c1.1"}, 1, ErrMalformed},
		{"a day for a say", s.bot.pub, &s.day.pub, Header{Purpose: PurposeSay}, 1, ErrMalformed},
		{"a day that is no key", s.bot.pub, &PublicKey{}, Header{Purpose: PurposeOp, Op: opA}, 1, ErrMalformed},
		{"a message that is too large", s.bot.pub, nil, Header{Purpose: PurposeSay}, 48 << 10, ErrTooBig},
		{"far too large", s.bot.pub, nil, Header{Purpose: PurposeSay}, MaxMessage + 1, ErrTooBig},
	} {
		t.Run(c.name, func(t *testing.T) {
			if e, err := s.ada.Seal(c.to, c.day, c.h, make([]byte, c.size)); !errors.Is(err, c.want) || e != nil {
				t.Fatalf("got %v, %v, want %v", e, err, c.want)
			}
		})
	}
	if _, err := SealOneTime(s.tab.pub, Header{Purpose: PurposeSay}, nil); !errors.Is(err, ErrPurpose) {
		t.Errorf("a say from nobody: %v", err)
	}
	if _, err := SealOneTime(PublicKey{}, Header{Purpose: PurposeTab, Op: "practice.read"}, nil); !errors.Is(err, ErrMalformed) {
		t.Errorf("to nobody: %v", err)
	}
}

// TestSize holds the computed length of an envelope against its JSON.
func TestSize(t *testing.T) {
	s := newStage(t)
	h := Header{Purpose: PurposeOp, Op: opA}
	for n := range 70 {
		h.Space, h.Thread = strings.Repeat("s", n%65), strings.Repeat("t", n/2)
		var day *PublicKey
		if n%2 == 0 {
			day = &s.day.pub
		}
		e := must(s.ada.Seal(s.bot.pub, day, h, make([]byte, n)))
		if b := must(e.Marshal()); len(b) != e.size() {
			t.Fatalf("size says %d, the JSON has %d bytes:\n%s", e.size(), len(b), b)
		}
	}
	e := must(SealOneTime(s.tab.pub, Header{Purpose: PurposeTab, Op: "practice.read"}, []byte("x")))
	if b := must(e.Marshal()); len(b) != e.size() {
		t.Errorf("size says %d, the JSON has %d bytes", e.size(), len(b))
	}
}

// TestLargestMessages: the largest picked result fits in one message with the longest ids,
// and so do the largest credential and hand-back.
func TestLargestMessages(t *testing.T) {
	s := newStage(t)
	h := Header{Space: strings.Repeat("s", 64), Thread: strings.Repeat("t", 64), Op: opA}
	result := &Result{V: 2, ID: opA, OK: true, Result: []byte(`"` + strings.Repeat("x", 45054) + `"`), Next: []byte(`{"page":12345678}`)}
	if _, err := s.bot.SealMessage(s.ada.pub, nil, h, result); err != nil {
		t.Errorf("the largest result: %v", err)
	}
	c, b := largestPair(t)
	if _, err := c.Seal(s.ada, h.Space); err != nil {
		t.Errorf("the largest credential: %v", err)
	}
	e, err := s.bot.SealMessage(s.ada.pub, nil, h, b)
	if err != nil {
		t.Fatalf("the largest hand-back: %v", err)
	}
	if _, err := s.bot.SealMessage(s.ada.pub, nil, h, &Result{V: 2, ID: opA, Error: &ResultError{Code: "provider"}, Handback: e}); err != nil {
		t.Errorf("the largest hand-back on a failure: %v", err)
	}
	o := &Op{V: 2, ID: opA, Service: "practice", Op: "book", Args: []byte(`{"x":"` + strings.Repeat("x", 16000) + `"}`)}
	call := bookCall(t)
	g := must(MintGrant(call.Manifest, c, GrantRequest{Use: UseOnce, Call: call, Preview: bookPreview, NeedsPair: true, Group: "g1"}, c.now()))
	o.Grant = must(g.Seal(s.ada, s.bot.pub, nil, h.Space, h.Thread, opA))
	if _, err := s.ada.SealMessage(s.bot.pub, &s.day.pub, h, o); err != nil {
		t.Errorf("the largest grant in an op with 16,000 bytes of args: %v", err)
	}
}

func TestSealResult(t *testing.T) {
	s := newStage(t)
	h := Header{Space: "space", Thread: "thread", Op: opA}
	_, b := largestPair(t)
	handback := must(s.bot.SealMessage(s.ada.pub, nil, h, b))
	small := &Result{V: 2, ID: opA, OK: true, Result: []byte(`1`), Handback: handback}
	large := &Result{V: 2, ID: opA, OK: true, Result: []byte(`"` + strings.Repeat("x", 45054) + `"`), Handback: handback}
	wrong := &Result{V: 2, ID: opA, OK: true, Result: []byte(`"` + strings.Repeat("x", 45055) + `"`), Handback: handback}

	got, err := s.bot.SealResult(s.ada.pub, h, small)
	if err != nil || len(got) != 1 {
		t.Fatalf("small: %d messages, %v", len(got), err)
	}
	var r Result
	if err := s.ada.OpenMessage(got[0], s.bot.pub, nil, &r); err != nil || r.Handback == nil {
		t.Fatalf("small: %+v, %v", r, err)
	}

	got, err = s.bot.SealResult(s.ada.pub, h, large)
	if err != nil || len(got) != 2 || got[0] != handback {
		t.Fatalf("large: %d messages, %v; the hand-back goes first", len(got), err)
	}
	if err := s.ada.OpenMessage(got[1], s.bot.pub, nil, &r); err != nil || r.Handback != nil || len(r.Result) != 45056 {
		t.Fatalf("large: %d bytes, %v", len(r.Result), err)
	}

	got, err = s.bot.SealResult(s.ada.pub, h, wrong)
	if !errors.Is(err, ErrTooBig) || len(got) != 1 || got[0] != handback {
		t.Fatalf("too large: %d messages, %v; the hand-back goes in any case", len(got), err)
	}
}

func TestTagKeysAreCachedAndBounded(t *testing.T) {
	me, peer := newTestIdentity(t), newTestIdentity(t)
	a := must(me.tagKeys(peer.pub))
	b := must(me.tagKeys(peer.pub))
	if &a.sent[0] != &b.sent[0] {
		t.Error("the keys are derived anew")
	}
	other := must(peer.tagKeys(me.pub))
	if !bytes.Equal(a.sent, other.received) || !bytes.Equal(a.received, other.sent) || bytes.Equal(a.sent, a.received) {
		t.Error("what one side sends the other receives, and the directions differ")
	}
	for range maxTagKeys + 10 {
		me.tags[KeyID(rand.Text())] = a
	}
	must(me.tagKeys(newTestIdentity(t).pub))
	if n := len(me.tags); n > maxTagKeys {
		t.Errorf("the cache holds %d", n)
	}
}

func TestConcurrentUse(t *testing.T) {
	me, peer := newTestIdentity(t), newTestIdentity(t)
	done := make(chan error)
	for range 8 {
		go func() {
			e, err := me.Seal(peer.pub, nil, Header{Purpose: PurposeSay}, []byte("x"))
			if err == nil {
				_, err = peer.Open(e, me.pub, nil)
			}
			done <- err
		}()
	}
	for range 8 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

func newTestIdentity(t testing.TB) *Identity {
	t.Helper()
	return must(NewIdentity())
}
