package custody

import (
	"crypto/hmac"
	"crypto/hpke"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
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
	ErrVersion   = errors.New("of a version or suite that is not known here")
	ErrPurpose   = fmt.Errorf("%w: an envelope for something else", ErrMalformed)
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

// dated says whether the key of the day may be used. What lives longer than it must not.
func (p Purpose) dated() bool { return p == PurposeOp || p == PurposeRevoke || p == PurposeGrant }

// self says whether envelopes of the purpose go from a key to itself.
func (p Purpose) self() bool {
	return p == PurposeCredential || p == PurposeSnapshot || p == PurposeHandoff
}

// opForms holds, for each purpose, the form of the header's op.
var opForms = map[Purpose]interface{ MatchString(string) bool }{
	PurposeIdentity:   word{},     // empty
	PurposeCredential: blobName{}, // <credential>.<generation>
	PurposeSay:        word{},
	PurposeSnapshot:   orEmpty(idPattern),
	PurposeOp:         randomID,
	PurposeGrant:      orEmpty(randomID), // the op's, for once
	PurposeResult:     randomID,
	PurposeHandback:   orEmpty(randomID),
	PurposeAck:        word{},
	PurposeEnd:        word{},
	PurposeRevoke:     randomID,
	PurposeHandoff:    keyIDPattern, // the line's id
	PurposeTab:        tabName{},
	PurposeRefresh:    keyIDPattern, // SHA-256 of the request
}

// A Header says what an envelope belongs to. All of it is bound: nothing in it can be
// changed without the envelope being refused.
type Header struct {
	Purpose Purpose
	Space   string
	Thread  string
	Op      string
}

// Header returns what the envelope belongs to: whoever took it from a space and a thread
// holds it against those.
func (e *Envelope) Header() Header { return Header{e.Purpose, e.Space, e.Thread, e.Op} }

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
	idPattern    = word{1, 64, true}
	randomID     = word{22, 22, false} // 128 bits
	keyIDPattern = word{43, 43, false}
)

// A word is from least to most letters, digits, _ and -, and dots where they may be. It is what
// the pattern would say, in a tenth of the time: each message is full of ids.
type word struct {
	least, most int
	dots        bool
}

func (w word) MatchString(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-' || c == '.' && w.dots:
		default:
			return false
		}
	}
	return w.least <= len(s) && len(s) <= w.most
}

// orEmpty is a word, or nothing.
type orEmpty word

func (w orEmpty) MatchString(s string) bool { return s == "" || word(w).MatchString(s) }

// A blobName is <credential>.<generation>.
type blobName struct{}

func (blobName) MatchString(s string) bool {
	i := strings.LastIndexByte(s, '.')
	if i < 0 || !idPattern.MatchString(s[:i]) {
		return false
	}
	n := s[i+1:]
	return len(n) >= 1 && len(n) <= 16 && strings.Trim(n, "0123456789") == "" && (n == "0" || n[0] != '0')
}

// A tabName is <service>.<access>.
type tabName struct{}

func (tabName) MatchString(s string) bool {
	service, access, _ := strings.Cut(s, ".")
	return serviceID.MatchString(service) && (access == "read" || access == "write")
}

// lp appends the four-byte big-endian length of x, then x.
func lp(b []byte, x string) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(x)))
	return append(b, x...)
}

// info is what binds the header to the ciphertext.
func (e *Envelope) info() []byte {
	b := make([]byte, 0, 512)
	b = append(b, "connect/v1"...)
	b = lp(b, strconv.Itoa(e.V))
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
		return nil, fmt.Errorf("%w: %s has no sender", ErrPurpose, h.Purpose)
	}
	e := &Envelope{V: 1, Suite: Suite, Purpose: h.Purpose, Space: h.Space, Thread: h.Thread, Op: h.Op, From: i.id, To: to.ID()}
	if day != nil {
		if e.Day = day.ID(); e.Day == "" {
			return nil, fmt.Errorf("%w: the key of the day is none", ErrMalformed)
		}
	}
	info, err := e.seal(to, day, plaintext)
	if err != nil {
		return nil, err
	}
	keys, err := i.tagKeys(to)
	if err != nil {
		return nil, err
	}
	e.Tag = tag(keys.sent, info, e.CT)
	return e.fits()
}

// SealOneTime seals plaintext to a one-time key, from nobody: what the broker answers.
func SealOneTime(to PublicKey, h Header, plaintext []byte) (*Envelope, error) {
	if !h.Purpose.unsigned() {
		return nil, fmt.Errorf("%w: %s has a sender", ErrPurpose, h.Purpose)
	}
	e := &Envelope{V: 1, Suite: Suite, Purpose: h.Purpose, Space: h.Space, Thread: h.Thread, Op: h.Op, To: to.ID()}
	if _, err := e.seal(to, nil, plaintext); err != nil {
		return nil, err
	}
	return e.fits()
}

// seal sets ct and returns the info that it is bound to.
func (e *Envelope) seal(to PublicKey, day *PublicKey, plaintext []byte) (info []byte, err error) {
	if err := e.checkHeader(); err != nil {
		return nil, err
	}
	if len(plaintext) > MaxMessage {
		return nil, fmt.Errorf("%w: %d bytes", ErrTooBig, len(plaintext))
	}
	info = e.info()
	ct, err := hpkeSeal(to, info, plaintext)
	if err == nil && day != nil {
		ct, err = hpkeSeal(*day, outer(info), ct)
	}
	e.CT = ct
	return info, err
}

func outer(info []byte) []byte { return append(info[:len(info):len(info)], "outer"...) }

func hpkeSeal(to PublicKey, info, plaintext []byte) ([]byte, error) {
	pk, err := hpke.NewDHKEMPublicKey(to.key)
	if err != nil {
		return nil, err
	}
	return hpke.Seal(pk, hpke.HKDFSHA256(), hpke.AES256GCM(), info, plaintext)
}

func hpkeOpen(i *Identity, info, ct []byte) ([]byte, error) {
	pt, err := hpke.Open(i.hpke, hpke.HKDFSHA256(), hpke.AES256GCM(), info, ct)
	if err != nil {
		return nil, ErrOpen
	}
	return pt, nil
}

func tag(key, info, ct []byte) []byte {
	m := hmac.New(sha256.New, key)
	m.Write(info)
	m.Write(ct)
	return m.Sum(nil)
}

// Open opens an envelope that was sealed to i. from is the key that the caller knows for
// e.From: the tag is held against it before anything is opened. day is the key of the day,
// nil where there is none. Open knows nothing of where the envelope came from: whoever
// calls it holds [Envelope.Header] against that, and the purpose against what it expects.
func (i *Identity) Open(e *Envelope, from PublicKey, day *Identity) ([]byte, error) {
	if err := e.checkSealed(); err != nil {
		return nil, err
	}
	if e.To != i.id {
		return nil, ErrNotMine // its tag is made with a key that only e.To has
	}
	info := e.info()
	if !e.Purpose.unsigned() {
		if from.IsZero() || from.ID() != e.From {
			return nil, ErrForged
		}
		keys, err := i.tagKeys(from)
		if err != nil {
			return nil, ErrForged
		}
		if !hmac.Equal(tag(keys.received, info, e.CT), e.Tag) {
			return nil, ErrForged
		}
	}
	ct := []byte(e.CT)
	if e.Day != "" {
		if day == nil || day.id != e.Day {
			return nil, ErrDay
		}
		var err error
		if ct, err = hpkeOpen(day, outer(info), ct); err != nil {
			return nil, err
		}
	}
	return hpkeOpen(i, info, ct)
}

// checkHeader holds the header against the format.
func (e *Envelope) checkHeader() error {
	bad := func(what string) error { return fmt.Errorf("%w envelope: %s", ErrMalformed, what) }
	p := e.Purpose
	form, known := opForms[p]
	switch {
	case e.V != 1:
		return versionError(e.V)
	case e.Suite != Suite:
		return fmt.Errorf("%w: the suite is not %s", ErrVersion, Suite)
	case !known:
		return bad("the purpose is not known")
	case e.Space != "" && !idPattern.MatchString(e.Space):
		return bad("space is not an id")
	case e.Thread != "" && !idPattern.MatchString(e.Thread):
		return bad("thread is not an id")
	case !form.MatchString(e.Op):
		return bad("op does not have the form that it has for " + string(p))
	case !keyIDPattern.MatchString(string(e.To)):
		return bad("to is not a key's id")
	case e.Day != "" && (!p.dated() || !keyIDPattern.MatchString(string(e.Day))):
		return bad("day is not a key's id, or stands where none may")
	case p.unsigned() && (e.From != "" || e.Space != "" || e.Thread != ""):
		return bad("this purpose has no from, space or thread")
	case !p.unsigned() && !keyIDPattern.MatchString(string(e.From)):
		return bad("from is not a key's id")
	case p.self() && e.From != e.To:
		return bad("this purpose goes from a key to itself")
	}
	return nil
}

// versionError tells what a later program made from what none did.
func versionError(v int) error {
	if v < 1 || v > maxCount {
		return fmt.Errorf("%w: v is not a version", ErrMalformed)
	}
	return fmt.Errorf("%w: v is %d", ErrVersion, v)
}

// maxCount bounds every counter and number of seconds: JavaScript and JCS are exact up to it.
const maxCount = 1 << 52

// fits returns the envelope where it is not larger than a message may be.
func (e *Envelope) fits() (*Envelope, error) {
	if n := e.size(); n > MaxMessage {
		return nil, fmt.Errorf("%w: the envelope has %d bytes, at most %d are sent", ErrTooBig, n, MaxMessage)
	}
	return e, nil
}

// size is the length of what Marshal writes. Nothing in an envelope is escaped in JSON.
func (e *Envelope) size() int {
	n := len(`{"v":1,"suite":"","purpose":"","to":"","ct":""}`) + len(e.Suite) + len(e.Purpose) + len(e.To) +
		base64.RawURLEncoding.EncodedLen(len(e.CT))
	for _, f := range [...]struct {
		name   string
		length int
	}{
		{"space", len(e.Space)}, {"thread", len(e.Thread)}, {"op", len(e.Op)}, {"from", len(e.From)}, {"day", len(e.Day)},
		{"tag", base64.RawURLEncoding.EncodedLen(len(e.Tag))},
	} {
		if f.length > 0 {
			n += len(`,"":""`) + len(f.name) + f.length
		}
	}
	return n
}

// Marshal writes the envelope as it is sent.
func (e *Envelope) Marshal() ([]byte, error) { return marshal(e) }

// ParseEnvelope reads an envelope strictly; nothing is opened.
func ParseEnvelope(data []byte) (*Envelope, error) {
	e := new(Envelope)
	if err := parse(data, MaxMessage, 1, e); err != nil {
		return nil, err
	}
	if err := e.checkSealed(); err != nil {
		return nil, err
	}
	return e, nil
}

// checkSealed holds the envelope against the format, but for the cryptography.
func (e *Envelope) checkSealed() error {
	if err := e.checkHeader(); err != nil {
		return err
	}
	least, tag := encSize+gcmTag, sha256.Size
	if e.Day != "" {
		least *= 2
	}
	if e.Purpose.unsigned() {
		tag = 0
	}
	switch {
	case len(e.CT) < least:
		return fmt.Errorf("%w envelope: ct is too short", ErrMalformed)
	case len(e.Tag) != tag:
		return fmt.Errorf("%w envelope: tag has %d bytes, not %d", ErrMalformed, len(e.Tag), tag)
	}
	return nil
}

// checkAs holds an envelope inside a message against its purpose.
func (e *Envelope) checkAs(p Purpose) error {
	if e.Purpose != p {
		return fmt.Errorf("%w: one for %s stands where one for %s belongs", ErrPurpose, e.Purpose, p)
	}
	return e.checkSealed()
}
