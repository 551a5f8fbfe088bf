package custody

import (
	"crypto/hmac"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"regexp"
)

// MaxMessage is the size of the largest message as it is sent, in bytes.
const MaxMessage = 65536

// Suite is the one suite of this version: DHKEM(P-256, HKDF-SHA256), HKDF-SHA256,
// AES-256-GCM (RFC 9180). A key takes exactly one suite; a later one has another name.
const Suite = "p256-sha256-aes256gcm"

// The ways in which an envelope or what is in it is refused, for [errors.Is]. Forged is
// looked at before anything is opened.
var (
	ErrMalformed = errors.New("malformed")
	ErrTooBig    = errors.New("larger than a message may be")
	ErrForged    = errors.New("not from the key that it names")
	ErrNotMine   = errors.New("sealed to another key")
	ErrDay       = errors.New("sealed to a key of another day")
	ErrOpen      = errors.New("does not open")
)

// A Purpose says what an envelope is for. An envelope of one purpose never opens as another.
type Purpose string

// The purposes, with who seals to whom.
const (
	PurposeIdentity   Purpose = "identity"   // member → herself: her key in PKCS #8
	PurposeCredential Purpose = "credential" // member → herself: a Credential
	PurposeSay        Purpose = "say"        // member → each reader: what is said in a thread
	PurposeSnapshot   Purpose = "snapshot"   // member → herself: an app's folded state
	PurposeOp         Purpose = "op"         // member → bot: an Op
	PurposeGrant      Purpose = "grant"      // member → bot: a Grant
	PurposeResult     Purpose = "result"     // bot → the grant's from: a Result
	PurposeHandback   Purpose = "handback"   // bot → the grant's from: a Handback
	PurposeAck        Purpose = "ack"        // member → bot: an Ack
	PurposeEnd        Purpose = "end"        // member → bot: an End
	PurposeRevoke     Purpose = "revoke"     // member → bot: a Revoke
	PurposeHandoff    Purpose = "handoff"    // bot → itself, between replicas: a fresh pair
	PurposeTab        Purpose = "tab"        // broker → a tab's one-time key: a TabOutcome
	PurposeRefresh    Purpose = "refresh"    // broker → a sidecar's one-time key: an answer to a refresh
)

// unsigned says whether envelopes of the purpose come from the broker, which has no key of
// this kind: they carry no from and no tag.
func (p Purpose) unsigned() bool { return p == PurposeTab || p == PurposeRefresh }

func (p Purpose) known() bool {
	switch p {
	case PurposeIdentity, PurposeCredential, PurposeSay, PurposeSnapshot, PurposeOp, PurposeGrant, PurposeResult,
		PurposeHandback, PurposeAck, PurposeEnd, PurposeRevoke, PurposeHandoff, PurposeTab, PurposeRefresh:
		return true
	}
	return false
}

// A Header says what an envelope belongs to. All of it is bound: nothing in it can be
// changed without the envelope being refused.
type Header struct {
	Purpose Purpose
	Space   string
	Thread  string
	Op      string
}

// An Envelope is a sealed message.
type Envelope struct {
	V       int     `json:"v"`
	Suite   string  `json:"suite"`
	Purpose Purpose `json:"purpose"`
	Space   string  `json:"space,omitempty"`
	Thread  string  `json:"thread,omitempty"`
	Op      string  `json:"op,omitempty"`
	From    KeyID   `json:"from,omitempty"`
	To      KeyID   `json:"to"`
	Day     KeyID   `json:"day,omitempty"`
	CT      Bytes   `json:"ct"`
	Tag     Bytes   `json:"tag,omitempty"`
}

// The least that a ciphertext has: an encapsulated key and AES-GCM's tag.
const (
	encSize = 65
	gcmTag  = 16
)

var (
	idPattern    = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,64}$`)
	keyIDPattern = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)
)

// lp appends the four-byte big-endian length of x, then x.
func lp(b []byte, x string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(x)))
	return append(b, x...)
}

// info is what binds the header to the ciphertext.
func (e *Envelope) info() []byte {
	b := []byte("connect/v1")
	b = lp(b, fmt.Sprint(e.V))
	for _, s := range []string{e.Suite, string(e.Purpose), e.Space, e.Thread, e.Op, string(e.From), string(e.To), string(e.Day)} {
		b = lp(b, s)
	}
	return b
}

// Seal seals plaintext for to. day, where it is not nil, is the bot's key of the day: the
// envelope then opens with both keys only. The result is refused where it would be larger
// than a message may be.
func (i *Identity) Seal(to PublicKey, day *PublicKey, h Header, plaintext []byte) (*Envelope, error) {
	if h.Purpose.unsigned() {
		return nil, fmt.Errorf("%w: %s has no sender", ErrMalformed, h.Purpose)
	}
	if to.IsZero() {
		return nil, fmt.Errorf("%w: there is no recipient", ErrMalformed)
	}
	e := &Envelope{V: 1, Suite: Suite, Purpose: h.Purpose, Space: h.Space, Thread: h.Thread, Op: h.Op, From: i.id, To: to.ID()}
	if err := e.seal(to, day, plaintext); err != nil {
		return nil, err
	}
	keys, err := i.tagKeys(to)
	if err != nil {
		return nil, err
	}
	e.Tag = e.tag(keys.sent)
	return e, e.fits()
}

// SealOneTime seals plaintext to a one-time key, from nobody: what the broker answers.
func SealOneTime(to PublicKey, h Header, plaintext []byte) (*Envelope, error) {
	if !h.Purpose.unsigned() {
		return nil, fmt.Errorf("%w: %s has a sender", ErrMalformed, h.Purpose)
	}
	if to.IsZero() {
		return nil, fmt.Errorf("%w: there is no recipient", ErrMalformed)
	}
	e := &Envelope{V: 1, Suite: Suite, Purpose: h.Purpose, Space: h.Space, Thread: h.Thread, Op: h.Op, To: to.ID()}
	if err := e.seal(to, nil, plaintext); err != nil {
		return nil, err
	}
	return e, e.fits()
}

func (e *Envelope) seal(to PublicKey, day *PublicKey, plaintext []byte) error {
	if day != nil {
		e.Day = day.ID()
	}
	if err := e.checkHeader(); err != nil {
		return err
	}
	if len(plaintext) > MaxMessage {
		return fmt.Errorf("%w: %d bytes", ErrTooBig, len(plaintext))
	}
	info := e.info()
	ct, err := hpkeSeal(to, info, plaintext)
	if err != nil {
		return err
	}
	if day != nil {
		if ct, err = hpkeSeal(*day, append(info, "outer"...), ct); err != nil {
			return err
		}
	}
	e.CT = ct
	return nil
}

func hpkeSeal(to PublicKey, info, plaintext []byte) ([]byte, error) {
	pk, err := hpke.NewDHKEMPublicKey(to.key)
	if err != nil {
		return nil, err
	}
	return hpke.Seal(pk, hpke.HKDFSHA256(), hpke.AES256GCM(), info, plaintext)
}

func (e *Envelope) tag(key []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(e.info())
	m.Write(e.CT)
	return m.Sum(nil)
}

// Open opens an envelope that was sealed to i. from is the key that the caller knows for
// e.From: the tag is held against it before anything is opened. day is the key of the day,
// nil where there is none.
func (i *Identity) Open(e *Envelope, from PublicKey, day *Identity) ([]byte, error) {
	if err := e.checkHeader(); err != nil {
		return nil, err
	}
	if e.To != i.id {
		return nil, ErrNotMine
	}
	if !e.Purpose.unsigned() {
		if from.IsZero() || from.ID() != e.From {
			return nil, ErrForged
		}
		keys, err := i.tagKeys(from)
		if err != nil {
			return nil, ErrForged
		}
		if !hmac.Equal(e.tag(keys.received), e.Tag) {
			return nil, ErrForged
		}
	}
	info := e.info()
	ct := []byte(e.CT)
	if e.Day != "" {
		if day == nil || day.id != e.Day {
			return nil, ErrDay
		}
		var err error
		if ct, err = hpke.Open(day.hpke, hpke.HKDFSHA256(), hpke.AES256GCM(), append(append([]byte(nil), info...), "outer"...), ct); err != nil {
			return nil, ErrOpen
		}
	}
	pt, err := hpke.Open(i.hpke, hpke.HKDFSHA256(), hpke.AES256GCM(), info, ct)
	if err != nil {
		return nil, ErrOpen
	}
	return pt, nil
}

// checkHeader holds all but the cryptography against the format.
func (e *Envelope) checkHeader() error {
	bad := func(what string) error { return fmt.Errorf("%w envelope: %s", ErrMalformed, what) }
	if e.V != 1 {
		return bad("v is not 1")
	}
	if e.Suite != Suite {
		return bad("the suite is not " + Suite)
	}
	if !e.Purpose.known() {
		return bad("the purpose is not known")
	}
	for _, f := range []struct{ name, s string }{{"space", e.Space}, {"thread", e.Thread}} {
		if f.s != "" && !idPattern.MatchString(f.s) {
			return bad(f.name + " is not an id")
		}
	}
	if len(e.Op) > 128 || e.Op != "" && !opPattern.MatchString(e.Op) {
		return bad("op is not an id")
	}
	if !keyIDPattern.MatchString(string(e.To)) {
		return bad("to is not a key's id")
	}
	if e.Day != "" && !keyIDPattern.MatchString(string(e.Day)) {
		return bad("day is not a key's id")
	}
	if e.Purpose.unsigned() {
		if e.From != "" || len(e.Tag) > 0 || e.Day != "" {
			return bad("this purpose has no from, tag or day")
		}
		return nil
	}
	if !keyIDPattern.MatchString(string(e.From)) {
		return bad("from is not a key's id")
	}
	return nil
}

// opPattern also takes "<credential id>.<generation>", "<service>.<access>" and the digest
// of a refresh request.
var opPattern = regexp.MustCompile(`^[A-Za-z0-9_.-]{1,128}$`)

func (e *Envelope) fits() error {
	b, err := e.Marshal()
	if err != nil {
		return err
	}
	if len(b) > MaxMessage {
		return fmt.Errorf("%w: the envelope has %d bytes, at most %d are sent", ErrTooBig, len(b), MaxMessage)
	}
	return nil
}

// Marshal writes the envelope as it is sent.
func (e *Envelope) Marshal() ([]byte, error) { return marshal(e) }

// ParseEnvelope reads an envelope strictly; nothing is opened.
func ParseEnvelope(data []byte) (*Envelope, error) {
	e := new(Envelope)
	if err := parse(data, MaxMessage, e); err != nil {
		return nil, err
	}
	return e, e.checkSealed()
}

// checkSealed holds a parsed envelope against the format.
func (e *Envelope) checkSealed() error {
	if err := e.checkHeader(); err != nil {
		return err
	}
	least := encSize + gcmTag
	if e.Day != "" {
		least *= 2
	}
	if len(e.CT) < least {
		return fmt.Errorf("%w envelope: ct is too short", ErrMalformed)
	}
	if !e.Purpose.unsigned() && len(e.Tag) != sha256.Size {
		return fmt.Errorf("%w envelope: tag has not 32 bytes", ErrMalformed)
	}
	return nil
}
