package custody

import "fmt"

// A Message is what travels in an envelope of one purpose: [Credential], [Say], [Snapshot],
// [Op], [Grant], [Result], [Handback], [Ack], [End], [Revoke], [Handoff], [TabOutcome],
// [RefreshAnswer].
type Message interface {
	purpose() Purpose
	version() int                   // the v that it has; 0 for what has none
	check() error                   // against the format
	bound(h Header, day bool) error // against the envelope around it
}

// SealMessage seals a message. Its kind decides the purpose, whatever h says.
func (i *Identity) SealMessage(to PublicKey, day *PublicKey, h Header, m Message) (*Envelope, error) {
	h.Purpose = m.purpose()
	pt, err := encode(h, day != nil, m)
	if err != nil {
		return nil, err
	}
	return i.Seal(to, day, h, pt)
}

// OpenMessage opens an envelope into m, whose kind decides the purpose that it must have.
// What m held before is gone.
func (i *Identity) OpenMessage(e *Envelope, from PublicKey, day *Identity, m Message) error {
	pt, err := openAs(i, e, m.purpose(), from, day)
	if err != nil {
		return err
	}
	return decode(pt, e, m)
}

// SealAnswer seals a [TabOutcome] or [RefreshAnswer] to a one-time key. op says what it
// answers. [AnswerSealer] does what can fail before the answer is there.
func SealAnswer(to PublicKey, op string, m Message) (*Envelope, error) {
	s, err := NewAnswerSealer(to, m.purpose(), op)
	if err != nil {
		return nil, err
	}
	return s.Seal(m)
}

// OpenAnswer opens a [TabOutcome] or [RefreshAnswer] with the one-time key that was made for
// it. op is what was asked: an answer to anything else is refused.
func (i *Identity) OpenAnswer(e *Envelope, op string, m Message) error {
	if e.Op != op {
		return fmt.Errorf("%w: it answers another request", ErrPurpose)
	}
	return i.OpenMessage(e, PublicKey{}, nil, m)
}

func encode(h Header, day bool, m Message) ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	if err := m.bound(h, day); err != nil {
		return nil, err
	}
	return marshal(m)
}

func decode(pt []byte, e *Envelope, m Message) error {
	if err := parse(pt, MaxMessage, m.version(), m); err != nil {
		return err
	}
	if err := m.check(); err != nil {
		return err
	}
	return m.bound(e.Header(), e.Day != "")
}

// openAs opens an envelope that must be of one purpose.
func openAs(me *Identity, e *Envelope, p Purpose, from PublicKey, day *Identity) ([]byte, error) {
	if e.Purpose != p {
		return nil, fmt.Errorf("%w: one for %s is not one for %s", ErrPurpose, e.Purpose, p)
	}
	return me.Open(e, from, day)
}

// boundTo is the bound of messages whose id is the header's op.
func boundTo(id string, h Header) error {
	if h.Op != id {
		return fmt.Errorf("%w: the header's op is not the id of what is in it", ErrMalformed)
	}
	return nil
}
