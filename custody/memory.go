package custody

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

// A Memory is what one device remembers of its member's connections, by their id, so that
// whoever stores the blobs cannot bring back an older one. It is made as any map and kept, as
// JSON, beside the device's key.
type Memory map[string]Seen

// Seen is what is remembered of one connection.
type Seen struct {
	Generation int64               `json:"generation"`   // the highest
	Pair       int64               `json:"pair"`         // the highest
	Cap        integrations.Access `json:"cap"`          // the cap last set, or the narrowest seen since
	Sum        Digest              `json:"sum,omitzero"` // of what is in it; none where an older program remembered it
}

// ErrWider means that a newer blob allows more than what was last set. Another of the
// member's devices may have set it, so she is asked, and Confirm says that she agreed.
var ErrWider = errors.New("it allows more than what was last set on this device")

// See holds an opened credential against what is remembered: one that is older, or another
// one of the same generation, is ErrOlder, one with a wider cap ErrWider. Where all is well
// it is remembered.
func (m Memory) See(c *Credential) error {
	sum, err := c.sum()
	if err != nil {
		return err
	}
	seen, known := m[c.ID]
	if !known {
		m.Confirm(c)
		return nil
	}
	readOnly := !c.CapAllows(integrations.Write)
	switch {
	case c.Generation < seen.Generation || c.Pair < seen.Pair:
		return fmt.Errorf("%w: generation %d and pair %d, after %d and %d", ErrOlder, c.Generation, c.Pair, seen.Generation, seen.Pair)
	case c.Generation == seen.Generation && (c.Pair != seen.Pair || readOnly != (seen.Cap != integrations.Write) || seen.Sum != Digest{} && sum != seen.Sum):
		return fmt.Errorf("%w: another one of generation %d", ErrOlder, c.Generation)
	case !readOnly && seen.Cap != integrations.Write:
		return ErrWider
	}
	m.Confirm(c)
	return nil
}

// Confirm remembers a credential that this device has made, or whose wider cap the member
// has agreed to. See comes before: Confirm does not look back.
func (m Memory) Confirm(c *Credential) {
	sum, _ := c.sum() // without one, what is opened is still held against the rest
	m[c.ID] = Seen{Generation: c.Generation, Pair: c.Pair, Cap: c.Cap, Sum: sum}
}

// sum tells one content of a generation from another. It is kept beside the key that opens
// that content.
func (c *Credential) sum() (Digest, error) {
	data, err := marshal(c)
	if err != nil {
		return Digest{}, fmt.Errorf("%w credential: it cannot be written", ErrMalformed)
	}
	if data, err = jcs(jsontext.Value(data)); err != nil {
		return Digest{}, fmt.Errorf("%w credential: it cannot be written", ErrMalformed)
	}
	return digest("memory", data), nil
}

// Remove remembers that a connection has ended: no blob of its id is taken again.
func (m Memory) Remove(id string) { m[id] = Seen{Generation: maxCount + 1} }
