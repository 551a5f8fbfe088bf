package custody

import (
	"crypto/hpke"
	"errors"
	"fmt"
)

// An AnswerSealer seals one answer to a one-time key. What can fail, and what takes time, the
// key agreement, is done when it is made: before the call whose answer must not be lost.
type AnswerSealer struct {
	e      *Envelope
	enc    []byte
	sender *hpke.Sender // nil once it has sealed
}

// NewAnswerSealer makes one for an answer of purpose p. op says what will be answered.
func NewAnswerSealer(to PublicKey, p Purpose, op string) (*AnswerSealer, error) {
	if !p.unsigned() {
		return nil, fmt.Errorf("%w: %s has a sender", ErrPurpose, p)
	}
	if to.IsZero() {
		return nil, fmt.Errorf("%w: no public key", ErrMalformed)
	}
	e := &Envelope{V: 1, Suite: Suite, Purpose: p, Op: op, To: to.ID()}
	if err := e.checkHeader(); err != nil {
		return nil, err
	}
	pk, err := hpke.NewDHKEMPublicKey(to.key)
	if err != nil {
		return nil, err
	}
	enc, sender, err := hpke.NewSender(pk, hpke.HKDFSHA256(), hpke.AES256GCM(), e.info())
	if err != nil {
		return nil, err
	}
	return &AnswerSealer{e, enc, sender}, nil
}

// Seal seals the answer: a [TabOutcome] or [RefreshAnswer]. One that is refused, as malformed
// or too big, may be followed by another; one that was sealed may not.
func (s *AnswerSealer) Seal(m Message) (*Envelope, error) {
	if s.sender == nil {
		return nil, errors.New("custody: this answer has been sealed")
	}
	h := Header{Purpose: s.e.Purpose, Op: s.e.Op}
	if m.purpose() != h.Purpose {
		return nil, fmt.Errorf("%w: an answer of another purpose", ErrPurpose)
	}
	pt, err := encode(h, false, m)
	if err != nil {
		return nil, err
	}
	// As large as it will be, before anything is used up.
	s.e.CT = make([]byte, len(s.enc)+len(pt)+gcmTag)
	if _, err := s.e.fits(); err != nil {
		return nil, err
	}
	ct, err := s.sender.Seal(nil, pt)
	if err != nil {
		return nil, err
	}
	s.sender = nil
	s.e.CT = append(s.enc, ct...)
	return s.e, nil
}
