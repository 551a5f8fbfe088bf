package custody

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
)

// seeds adds what the vectors hold of one kind, and fails where there is nothing.
func seeds(f *testing.F, kind string, add func(*vector)) {
	f.Helper()
	files, err := filepath.Glob(vectorDir + "/*.json")
	if err != nil {
		f.Fatal(err)
	}
	n := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		v := new(vector)
		if err := json.Unmarshal(data, v); err != nil {
			f.Fatal(err)
		}
		if v.Kind == kind {
			add(v)
			n++
		}
	}
	if n == 0 {
		f.Fatalf("no vector of the kind %s", kind)
	}
}

// FuzzParseEnvelope: what is accepted holds the format, has the size that is computed, and is
// written so that it is accepted again as the same. Nothing opens, nothing panics.
func FuzzParseEnvelope(f *testing.F) {
	seeds(f, "envelope", func(v *vector) { f.Add([]byte(v.Envelope)) })
	s := newStage(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseEnvelope(data)
		if err != nil {
			if outcome(err) == "success" || strings.HasPrefix(outcome(err), "another") {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		b, err := e.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if len(b) != e.size() {
			t.Errorf("size says %d, the JSON has %d bytes", e.size(), len(b))
		}
		again, err := ParseEnvelope(b)
		if err != nil {
			t.Fatalf("what was written is refused: %v\n%s", err, b)
		}
		if b2 := must(again.Marshal()); !bytes.Equal(b, b2) {
			t.Errorf("it became\n%s\nthen\n%s", b, b2)
		}
		for _, from := range []PublicKey{{}, s.ada.pub, s.mallory.pub} {
			if _, err := s.day.Open(e, from, s.tab); err == nil {
				t.Error("it opens")
			}
		}
	})
}

var messagePurposes = []Purpose{
	PurposeCredential, PurposeSay, PurposeSnapshot, PurposeOp, PurposeGrant, PurposeResult, PurposeHandback, PurposeAck, PurposeEnd,
	PurposeRevoke, PurposeHandoff, PurposeTab, PurposeRefresh,
}

// FuzzOpenMessage seals any text as any message: what is accepted holds its own limits, and is
// written so that it is accepted again as the same.
func FuzzOpenMessage(f *testing.F) {
	seeds(f, "message", func(v *vector) {
		for i, p := range messagePurposes {
			if string(p) == v.Purpose {
				f.Add(uint8(i), v.Op, v.Day, []byte(v.Message))
			}
		}
	})
	f.Fuzz(func(t *testing.T, purpose uint8, op string, day bool, data []byte) {
		p := messagePurposes[int(purpose)%len(messagePurposes)]
		e := &Envelope{Purpose: p, Op: op}
		if day {
			e.Day = "day"
		}
		m := messageOf(p)
		if err := decode(data, e, m); err != nil {
			if strings.HasPrefix(outcome(err), "another") {
				t.Fatalf("an error of no class: %v", err)
			}
			return
		}
		b, err := encode(e.Header(), day, m)
		if err != nil {
			t.Fatalf("what was read is not written: %v", err)
		}
		again := messageOf(p)
		if err := decode(b, e, again); err != nil {
			t.Fatalf("what was written is refused: %v\n%s", err, b)
		}
		if b2, err := encode(e.Header(), day, again); err != nil || !bytes.Equal(b, b2) {
			t.Errorf("it became\n%s\nthen\n%s (%v)", b, b2, err)
		}
	})
}

// FuzzMalleability: of two texts that are accepted as the same bytes only one exists, and JSON
// that is accepted has one meaning: that which encoding/json, too, finds in it.
func FuzzMalleability(f *testing.F) {
	for _, s := range []string{"", "AA", "AB", "AAA", "AAB", "AAAA", "AA==", "A-_", "A+/", "AA\n", "AA\r\n", " AA", "AA AA", "é", "AAAAA"} {
		f.Add([]byte(s))
	}
	seeds(f, "message", func(v *vector) { f.Add([]byte(v.Message)) })
	f.Fuzz(func(t *testing.T, text []byte) {
		var b Bytes
		if err := b.UnmarshalText(text); err == nil {
			if back := must(b.MarshalText()); !bytes.Equal(back, text) {
				t.Errorf("%q stands for the same as %q", text, back)
			}
		}
		var s Snapshot
		if err := parse(text, MaxMessage, 0, &s); err != nil {
			return
		}
		if !bytes.Equal(bytes.TrimSpace(text), s.JSON) {
			t.Errorf("%q is carried as %q", text, s.JSON)
		}
		canonical, err := jcs(jsontext.Value(s.JSON))
		if err != nil {
			t.Fatalf("accepted, without a canonical form: %q, %v", s.JSON, err)
		}
		if twice, err := jcs(jsontext.Value(canonical)); err != nil || !bytes.Equal(canonical, twice) {
			t.Errorf("the canonical form of %q is %q: %v", canonical, twice, err)
		}
		if !json.Valid(text) {
			t.Errorf("encoding/json refuses %q", text)
		}
	})
}

// FuzzFragment: a fragment that is accepted is written as it was.
func FuzzFragment(f *testing.F) {
	seeds(f, "fragment", func(v *vector) { f.Add(v.JSON) })
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseFragment(s)
		if err != nil {
			return
		}
		if back, err := e.Fragment(); err != nil || back != s {
			t.Errorf("%q became %q: %v", s, back, err)
		}
	})
}

// FuzzHandback: no hand-back but the one that was signed is taken.
func FuzzHandback(f *testing.F) {
	seeds(f, "handback", func(v *vector) { f.Add([]byte(v.Handback)) })
	c := new(Credential)
	if err := parse(validMessages(f)["credential"], MaxMessage, 1, c); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		h := new(Handback)
		if err := decode(data, &Envelope{Purpose: PurposeHandback}, h); err != nil {
			return
		}
		n, err := c.Take(h)
		if err != nil {
			return
		}
		signed := *h
		if err := signed.Sign(c.Refresh); err != nil || signed.Link != h.Link {
			t.Errorf("taken with a link that is not its own: %v", err)
		}
		if n.Pair != c.Pair+1 || n.Generation != c.Generation+1 || n.ID != c.ID || n.Cap != c.Cap || n.Broker != c.Broker {
			t.Errorf("it became %+v", n)
		}
	})
}
