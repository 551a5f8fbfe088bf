package custody

import (
	"bytes"
	"crypto/ecdh"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

var update = flag.Bool("update", false, "write the vectors that are missing or made anew")

// A vector is one file of testdata/vectors. Its README documents the fields.
type vector struct {
	Name   string `json:"name"`
	Kind   string `json:"kind"`
	About  string `json:"about,omitempty"`
	Expect string `json:"expect"`

	RecipientPKCS8  string `json:"recipient_pkcs8,omitempty"`
	SenderPublic    string `json:"sender_public,omitempty"`
	DayPKCS8        string `json:"day_pkcs8,omitempty"`
	Purpose         string `json:"purpose,omitempty"`
	Envelope        string `json:"envelope,omitempty"`
	EnvelopeBytes   Bytes  `json:"envelope_bytes,omitempty"`
	PadTo           int    `json:"pad_to,omitempty"`
	Plaintext       Bytes  `json:"plaintext,omitempty"`
	PlaintextSHA256 string `json:"plaintext_sha256,omitempty"`

	Message string `json:"message,omitempty"`
	Op      string `json:"op,omitempty"`
	Day     bool   `json:"day,omitempty"`

	Public      string `json:"public,omitempty"`
	KeyID       string `json:"key_id,omitempty"`
	CheckNumber string `json:"check_number,omitempty"`

	Manifest   string            `json:"manifest,omitempty"`
	Args       string            `json:"args,omitempty"`
	Connection map[string]string `json:"connection,omitempty"`
	Sentence   string            `json:"sentence,omitempty"`
	Picked     string            `json:"picked,omitempty"`
	JSON       string            `json:"json,omitempty"`
	Canonical  string            `json:"canonical,omitempty"`
	Digest     string            `json:"digest,omitempty"`

	Credential string `json:"credential,omitempty"`
	Handback   string `json:"handback,omitempty"`
	Proof      string `json:"proof,omitempty"`
	Pair       int64  `json:"pair,omitempty"`
	Generation int64  `json:"generation,omitempty"`

	Keep map[string]string `json:"keep,omitempty"`

	Request *grantVector `json:"request,omitempty"`
	Now     int64        `json:"now,omitempty"`
	Grant   string       `json:"grant,omitempty"`

	Steps []memoryStep `json:"steps,omitempty"`
}

type grantVector struct {
	ID        string   `json:"id,omitempty"`
	Use       Use      `json:"use"`
	Op        string   `json:"op,omitempty"`
	Args      string   `json:"args,omitempty"`
	Preview   string   `json:"preview,omitempty"`
	Ops       []string `json:"ops,omitempty"`
	Until     int64    `json:"until,omitempty"`
	Question  string   `json:"question,omitempty"`
	Charter   string   `json:"charter,omitempty"`
	Window    *Window  `json:"window,omitempty"`
	Group     string   `json:"group,omitempty"`
	NeedsPair bool     `json:"needs_pair,omitempty"`
}

type memoryStep struct {
	Do         string              `json:"do"` // see, confirm, remove
	ID         string              `json:"id"`
	Generation int64               `json:"generation,omitempty"`
	Pair       int64               `json:"pair,omitempty"`
	Cap        integrations.Access `json:"cap,omitempty"`
	Secret     string              `json:"secret,omitempty"`
	Expect     string              `json:"expect"`
}

// outcomes are the names of what can come of a vector. The first that fits counts.
var outcomes = []struct {
	name string
	err  error
}{
	{"link", ErrLink}, {"purpose", ErrPurpose}, {"forged", ErrForged}, {"not_mine", ErrNotMine}, {"day", ErrDay},
	{"open", ErrOpen}, {"too_big", ErrTooBig}, {"version", ErrVersion}, {"older", ErrOlder}, {"gap", ErrGap}, {"wider", ErrWider},
	{"cap", ErrCap}, {"service", ErrService}, {"no_op", ErrNoOp}, {"once", ErrOnce}, {"expiry", ErrExpiry}, {"expired", ErrExpired},
	{"asks", ErrAsks}, {"unattended", ErrUnattended}, {"lent", ErrLent}, {"author", ErrAuthor}, {"consent", ErrConsent},
	{"malformed", ErrMalformed},
}

func outcome(err error) string {
	if err == nil {
		return "success"
	}
	for _, o := range outcomes {
		if errors.Is(err, o.err) {
			return o.name
		}
	}
	var refused *integrations.RefusedError
	if errors.As(err, &refused) {
		return "malformed"
	}
	return "another error: " + err.Error()
}

const vectorDir = "testdata/vectors"

// TestVectors runs every vector. With -update it first writes those that are missing; what
// holds no fresh randomness is written anew.
func TestVectors(t *testing.T) {
	made := makeVectors(t)
	want := make(map[string]bool)
	for _, v := range made {
		name := filepath.Join(vectorDir, v.Name+".json")
		if want[name] {
			t.Fatalf("two vectors are called %s", v.Name)
		}
		want[name] = true
		data := marshalVector(t, v)
		old, err := os.ReadFile(name)
		sealed := v.Kind == "envelope" || strings.HasPrefix(v.Kind, "legacy_") // made with fresh randomness
		switch {
		case err == nil && (sealed || bytes.Equal(old, data)):
		case *update:
			if err := os.WriteFile(name, data, 0o644); err != nil {
				t.Fatal(err)
			}
		case err != nil:
			t.Errorf("%s is missing; go test -run TestVectors -update makes it", name)
		default:
			t.Errorf("%s is not what this test makes; is the change meant? Then -update", name)
		}
	}
	files, err := filepath.Glob(vectorDir + "/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("there is no vector in %s: %v", vectorDir, err)
	}
	t.Logf("%d vectors", len(files))
	for _, file := range files {
		if !want[file] {
			t.Errorf("%s: nothing makes this file", file)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		v := new(vector)
		dec := json.NewDecoder(bytes.NewReader(data))
		dec.DisallowUnknownFields()
		if err := dec.Decode(v); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		t.Run(v.Name, func(t *testing.T) {
			if v.Name+".json" != filepath.Base(file) {
				t.Errorf("the file is called %s", file)
			}
			if got := outcome(v.run(t)); got != v.Expect {
				t.Errorf("%s, want %s (%s)", got, v.Expect, v.About)
			}
		})
	}
}

func marshalVector(t *testing.T, v *vector) []byte {
	t.Helper()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func (v *vector) run(t *testing.T) error {
	switch v.Kind {
	case "envelope":
		return v.runEnvelope(t)
	case "message":
		return v.runMessage(t)
	case "key":
		p, err := ParsePublicKey(unbase64(t, v.Public))
		if err == nil {
			compare(t, "key id", string(p.ID()), v.KeyID)
			compare(t, "check number", p.CheckNumber(), v.CheckNumber)
		}
		return err
	case "op_digest":
		m := parseManifest(t, v.Manifest)
		d, err := OpDigest(m, v.Op)
		if err == nil {
			v.compareDigest(t, "op", d)
		}
		return err
	case "args_digest":
		call, err := v.bind(t)
		if err != nil {
			return err
		}
		d, err := ArgsDigest(call)
		if err == nil {
			v.compareDigest(t, "args", d)
			compare(t, "sentence", call.Sentence().Text, v.Sentence)
		}
		return err
	case "say_digest":
		call, err := v.bind(t)
		if err != nil {
			return err
		}
		compare(t, "sentence", call.Sentence().Text, v.Sentence)
		v.compareDigest(t, "say", SayDigest(call))
		return nil
	case "preview_digest":
		d, err := PreviewDigest(&integrations.Result{JSON: json.RawMessage(v.Picked)})
		if err == nil {
			v.compareDigest(t, "preview", d)
		}
		return err
	case "jcs":
		b, err := jcs(jsontext.Value(v.JSON))
		if err != nil {
			return ErrMalformed
		}
		compare(t, "canonical", string(b), v.Canonical)
		return nil
	case "handback", "rotated":
		return v.runHandback(t)
	case "fragment":
		e, err := ParseFragment(v.JSON + strings.Repeat("=", max(0, v.PadTo-len(v.JSON))))
		if err != nil {
			return err
		}
		b, err := e.Marshal()
		compare(t, "envelope", string(b), v.Envelope)
		return err
	case "grant":
		return v.runGrant(t)
	case "memory":
		m := make(Memory)
		for i, s := range v.Steps {
			c := &Credential{ID: s.ID, Generation: s.Generation, Pair: s.Pair, Cap: s.Cap, Secret: integrations.NewSecret(s.Secret)}
			var err error
			switch s.Do {
			case "see":
				err = m.See(c)
			case "confirm":
				m.Confirm(c)
			case "remove":
				m.Remove(s.ID)
			}
			if got := outcome(err); got != s.Expect {
				t.Errorf("step %d: %s, want %s", i, got, s.Expect)
			}
			kept := must(json.Marshal(m)) // as after a restart
			m = nil
			if err := json.Unmarshal(kept, &m); err != nil {
				t.Fatal(err)
			}
		}
		return nil
	case "legacy_op":
		o, err := ParseLegacyOp([]byte(v.Message))
		if err != nil {
			return err
		}
		g, err := parseTestIdentity(t, v.RecipientPKCS8).OpenLegacyGrant(o, time.Unix(v.Now, 0))
		if err == nil {
			compare(t, "token", g.Token.Reveal(), v.Sentence)
		}
		return err
	case "legacy_credential":
		c, err := OpenLegacyCredential(parseTestIdentity(t, v.RecipientPKCS8), unbase64(t, v.Message))
		if err == nil {
			compare(t, "token", c.Secret.Reveal(), v.Sentence)
			if !c.CapAllows(integrations.Read) || c.CapAllows(integrations.Write) {
				t.Error("a connection of before reads, and no more")
			}
		}
		return err
	}
	t.Fatalf("the kind %q is not known", v.Kind)
	return nil
}

func (v *vector) runEnvelope(t *testing.T) error {
	text := []byte(v.Envelope)
	if v.EnvelopeBytes != nil {
		text = v.EnvelopeBytes
	}
	if n := v.PadTo - len(text); n > 0 {
		text = append(text, strings.Repeat(" ", n)...)
	}
	e, err := ParseEnvelope(text)
	if err != nil {
		return err
	}
	var from PublicKey
	if v.SenderPublic != "" {
		if from, err = ParsePublicKey(unbase64(t, v.SenderPublic)); err != nil {
			t.Fatal(err)
		}
	}
	var day *Identity
	if v.DayPKCS8 != "" {
		day = parseTestIdentity(t, v.DayPKCS8)
	}
	pt, err := openAs(parseTestIdentity(t, v.RecipientPKCS8), e, Purpose(v.Purpose), from, day)
	if err == nil {
		sum := sha256.Sum256(pt)
		compare(t, "plaintext", string(pt), string(v.Plaintext))
		compare(t, "hash of the plaintext", hex.EncodeToString(sum[:]), v.PlaintextSHA256)
	}
	return err
}

func messageOf(p Purpose) Message {
	return map[Purpose]Message{
		PurposeCredential: new(Credential), PurposeSay: new(Say), PurposeSnapshot: new(Snapshot), PurposeOp: new(Op),
		PurposeGrant: new(Grant), PurposeResult: new(Result), PurposeHandback: new(Handback), PurposeAck: new(Ack),
		PurposeEnd: new(End), PurposeRevoke: new(Revoke), PurposeHandoff: new(Handoff), PurposeTab: new(TabOutcome),
		PurposeRefresh: new(RefreshAnswer),
	}[p]
}

func (v *vector) runMessage(t *testing.T) error {
	m := messageOf(Purpose(v.Purpose))
	e := &Envelope{Purpose: Purpose(v.Purpose), Op: v.Op}
	if v.Day {
		e.Day = "day"
	}
	if err := decode([]byte(v.Message), e, m); err != nil {
		return err
	}
	// What is accepted is written so that it is accepted again, as the same.
	again := messageOf(Purpose(v.Purpose))
	b, err := encode(e.Header(), v.Day, m)
	if err != nil {
		t.Errorf("written again: %v", err)
	}
	if err := decode(b, e, again); err != nil {
		t.Errorf("read again: %v", err)
	}
	if b2, _ := encode(e.Header(), v.Day, again); !bytes.Equal(b, b2) {
		t.Errorf("it became\n%s\nthen\n%s", b, b2)
	}
	return nil
}

func (v *vector) bind(t *testing.T) (*integrations.Call, error) {
	args, err := parseArgs(v.Args)
	if err != nil {
		return nil, err
	}
	return parseManifest(t, v.Manifest).Bind(v.Op, args, v.Connection)
}

// compareDigest holds the digest against the vector's, and that against its canonical form.
func (v *vector) compareDigest(t *testing.T, label string, d Digest) {
	t.Helper()
	compare(t, "digest", d.String(), v.Digest)
	compare(t, "digest of the canonical form", digest(label, []byte(v.Canonical)).String(), v.Digest)
}

func (v *vector) runHandback(t *testing.T) error {
	c, h := new(Credential), new(Handback)
	if err := parse([]byte(v.Credential), MaxMessage, 1, c); err != nil {
		t.Fatal(err)
	}
	if err := parse([]byte(v.Handback), MaxMessage, 1, h); err != nil {
		return err
	}
	var n *Credential
	var err error
	if v.Kind == "handback" {
		n, err = c.Take(h)
	} else {
		var e *Envelope
		if e, err = ParseEnvelope([]byte(v.Envelope)); err != nil {
			t.Fatal(err)
		}
		var proof Digest
		if err := proof.UnmarshalText([]byte(v.Proof)); err != nil {
			t.Fatal(err)
		}
		n, err = c.TakeRotated(h, e, proof)
	}
	if err != nil {
		return err
	}
	if n.Pair != v.Pair || n.Generation != v.Generation || n.Secret != h.Secret {
		t.Errorf("pair %d, generation %d; want %d, %d and the new secret", n.Pair, n.Generation, v.Pair, v.Generation)
	}
	if !maps.Equal(n.Keep, v.Keep) {
		t.Errorf("it keeps %v, want %v", n.Keep, v.Keep)
	}
	return nil
}

func (v *vector) runGrant(t *testing.T) error {
	g, err := v.mint(t)
	if err != nil {
		return err
	}
	b, err := marshal(g)
	compare(t, "grant", string(mustJCS(b)), v.Grant)
	return err
}

func (v *vector) mint(t *testing.T) (*Grant, error) {
	m := parseManifest(t, v.Manifest)
	c := new(Credential)
	if err := parse([]byte(v.Credential), MaxMessage, 1, c); err != nil {
		t.Fatal(err)
	}
	r := v.Request
	req := GrantRequest{
		ID: r.ID, Use: r.Use, Ops: r.Ops, Question: r.Question, Charter: r.Charter, Window: r.Window, Group: r.Group, NeedsPair: r.NeedsPair,
	}
	if r.Until != 0 {
		req.Until = time.Unix(r.Until, 0)
	}
	if r.Preview != "" {
		req.Preview = &integrations.Result{JSON: json.RawMessage(r.Preview)}
	}
	if r.Op != "" {
		args, err := parseArgs(r.Args)
		if err != nil {
			t.Fatal(err)
		}
		if req.Call, err = m.Bind(r.Op, args, connectionValues(c.Connection)); err != nil {
			t.Fatal(err)
		}
		canonical, _ := jcs(req.Call.Args())
		compare(t, "args in their one form", string(canonical), v.Canonical)
		compare(t, "sentence", req.Call.Sentence().Text, v.Sentence)
	}
	return MintGrant(m, c, req, time.Unix(v.Now, 0))
}

// parseArgs reads args strictly, with each number's own digits.
func parseArgs(text string) (args integrations.Args, err error) {
	if !jsontext.Value(text).IsValid() {
		return nil, ErrMalformed
	}
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	return args, dec.Decode(&args)
}

func mustJCS(b []byte) []byte {
	b, err := jcs(jsontext.Value(b))
	if err != nil {
		panic(err)
	}
	return b
}

func compare(t *testing.T, what, got, want string) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got\n%s\nwant\n%s", what, got, want)
	}
}

func unbase64(t *testing.T, s string) []byte {
	t.Helper()
	var b Bytes
	if err := b.UnmarshalText([]byte(s)); err != nil {
		t.Fatal(err)
	}
	return b
}

func parseTestIdentity(t *testing.T, pkcs8 string) *Identity {
	t.Helper()
	i, err := ParseIdentity(unbase64(t, pkcs8))
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// practiceFile stands in a vector for the whole text of testdata/practice.json.
const practiceFile = "practice.json"

func parseManifest(t testing.TB, text string) *integrations.Manifest {
	t.Helper()
	if text == practiceFile {
		text = practice(t)
	}
	m, err := integrations.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// testIdentity makes the key of a name, which anyone can make.
func testIdentity(t testing.TB, name string) *Identity {
	t.Helper()
	scalar := sha256.Sum256([]byte("connect: a key for tests, no secret: " + name))
	k, err := ecdh.P256().NewPrivateKey(scalar[:])
	if err != nil {
		t.Fatal(err)
	}
	i, err := newIdentity(k)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func pkcs8Of(t testing.TB, i *Identity) string {
	t.Helper()
	der, err := i.MarshalPKCS8()
	if err != nil {
		t.Fatal(err)
	}
	return base64Of(der)
}

func base64Of(b []byte) string {
	s, _ := Bytes(b).MarshalText()
	return string(s)
}

func practice(t testing.TB) string {
	t.Helper()
	b, err := os.ReadFile("testdata/practice.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
