package custody

import (
	"encoding/json"
	"errors"
	"fmt"
)

// The limits of a Say, in bytes, beside that of the whole message.
const (
	MaxSayText = 16384
	MaxSayArgs = 32768
)

// A Say is what a member or a bot says in a thread: a text, an operation that a bot
// proposes, an app's typed event, a charter, the receipt of a run. At least one of them
// stands. Of the last three this package knows no more than that each is one JSON object.
type Say struct {
	V       int             `json:"v"`
	ID      string          `json:"id"`
	At      int64           `json:"at"`
	Text    string          `json:"text,omitzero"`
	Propose *Proposal       `json:"propose,omitzero"`
	Event   json.RawMessage `json:"event,omitzero"`
	Charter json.RawMessage `json:"charter,omitzero"`
	Receipt json.RawMessage `json:"receipt,omitzero"`
}

// A Proposal is an operation that a bot would like to run. Nothing runs before a member has
// granted it.
type Proposal struct {
	Service string          `json:"service"`
	Op      string          `json:"op"`
	Args    json.RawMessage `json:"args"` // an object
}

// A Snapshot is an app's folded state: any JSON, which only the app reads.
type Snapshot struct{ JSON json.RawMessage }

// MarshalJSON returns the JSON itself.
func (s Snapshot) MarshalJSON() ([]byte, error) { return s.JSON, nil }

// UnmarshalJSON keeps the JSON itself.
func (s *Snapshot) UnmarshalJSON(data []byte) error {
	s.JSON = append(s.JSON[:0:0], data...)
	return nil
}

func (*Say) purpose() Purpose         { return PurposeSay }
func (*Say) version() int             { return 1 }
func (*Say) bound(Header, bool) error { return nil }

func (s *Say) check() error {
	bad := func(what string) error { return fmt.Errorf("%w say: %s", ErrMalformed, what) }
	objects := 0
	for name, raw := range map[string]json.RawMessage{"event": s.Event, "charter": s.Charter, "receipt": s.Receipt} {
		if raw == nil {
			continue
		}
		if objects++; !isObject(raw) {
			return bad(name + " is not an object")
		}
	}
	switch {
	case s.V != 1:
		return versionError(s.V)
	case !idPattern.MatchString(s.ID):
		return bad("id is not an id")
	case !goodTime(s.At) || s.At == 0:
		return bad("at is out of range")
	case len(s.Text) > MaxSayText:
		return fmt.Errorf("%w say: a text of %d bytes", ErrTooBig, len(s.Text))
	case s.Text == "" && s.Propose == nil && objects == 0:
		return bad("it says nothing")
	}
	if p := s.Propose; p != nil {
		switch {
		case !serviceID.MatchString(p.Service) || !idPattern.MatchString(p.Op):
			return bad("what it proposes has no service or op")
		case !isObject(p.Args):
			return bad("the args are not an object")
		case len(p.Args) > MaxSayArgs:
			return fmt.Errorf("%w say: args of %d bytes", ErrTooBig, len(p.Args))
		}
	}
	return nil
}

func (*Snapshot) purpose() Purpose         { return PurposeSnapshot }
func (*Snapshot) version() int             { return 0 }
func (*Snapshot) bound(Header, bool) error { return nil }

func (s *Snapshot) check() error {
	if len(s.JSON) == 0 {
		return errors.Join(ErrMalformed, errors.New("a snapshot of nothing"))
	}
	return nil
}
