package client

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// linkEvery is how often both devices ask whether the other has done its part.
const linkEvery = 2 * time.Second

// ErrLinkForged means that the other side did not know the code.
var ErrLinkForged = errors.New("client: what came was not made with this code: begin again with another")

// A LinkCode goes from the screen of one device to the hand at the next, and never through
// the instance: 80 random bits, 16 letters of base32. It prints as "[code]".
type LinkCode struct{ letters string }

// NewLinkCode makes a code.
func NewLinkCode() LinkCode {
	var raw [10]byte
	rand.Read(raw[:])
	return LinkCode{base32.StdEncoding.EncodeToString(raw[:])}
}

// ParseLinkCode reads a code as a person types it: in any case, with spaces and dashes.
func ParseLinkCode(s string) (LinkCode, error) {
	letters := strings.ToUpper(strings.NewReplacer(" ", "", "-", "").Replace(s))
	raw, err := base32.StdEncoding.DecodeString(letters) // which passes over line breaks
	if err != nil || len(raw) != 10 {
		return LinkCode{}, errors.New("client: a code has 16 letters and digits, A to Z and 2 to 7")
	}
	return LinkCode{base32.StdEncoding.EncodeToString(raw)}, nil
}

// Show returns the code as it is shown to the person.
func (l LinkCode) Show() string {
	if len(l.letters) != 16 {
		return ""
	}
	return l.letters[:4] + "-" + l.letters[4:8] + "-" + l.letters[8:12] + "-" + l.letters[12:]
}

func (l LinkCode) String() string { return "[code]" }

// GoString keeps %#v from printing the code.
func (l LinkCode) GoString() string { return "[code]" }

func (l LinkCode) mac(parts ...[]byte) []byte {
	m := hmac.New(sha256.New, []byte(l.letters))
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// id names the link at the instance: 16 bytes of HMAC-SHA256(code, "connect/v1 link").
func (l LinkCode) id() string {
	return base64.RawURLEncoding.EncodeToString(l.mac([]byte("connect/v1 link"))[:16])
}

// offered is what the next device shows: HMAC-SHA256(code, its one-time key).
func (l LinkCode) offered(key custody.PublicKey) []byte { return l.mac(key.Bytes()) }

// linked is what the member's device answers: HMAC-SHA256(code, "connect/v1 linked" ‖ the
// member's key ‖ the one-time key). Without it an instance could hand the next device an
// identity of its own making.
func (l LinkCode) linked(member, key custody.PublicKey) []byte {
	return l.mac([]byte("connect/v1 linked"), member.Bytes(), key.Bytes())
}

// Link waits, ten minutes at most, for the device at which code is typed, and seals this
// identity to it.
func (c *Client) Link(ctx context.Context, code LinkCode) error {
	path := "/api/links/" + code.id()
	if err := c.call(ctx, http.MethodPost, "/api/links", map[string]string{"id": code.id()}, nil); err != nil {
		return err
	}
	for {
		var open struct {
			Offers []struct {
				Key custody.PublicKey `json:"key"`
				MAC custody.Bytes     `json:"mac"`
			} `json:"offers"`
		}
		if err := c.call(ctx, http.MethodGet, path, nil, &open); err != nil {
			return err
		}
		for _, o := range open.Offers {
			if !hmac.Equal(o.MAC, code.offered(o.Key)) {
				continue // a stranger's
			}
			e, err := c.identity.SealIdentity(o.Key, c.Space())
			if err != nil {
				return err
			}
			text, err := e.Marshal()
			if err != nil {
				return err
			}
			return c.call(ctx, http.MethodPost, path+"/answer",
				map[string]any{"envelope": json.RawMessage(text), "mac": custody.Bytes(code.linked(c.identity.Public(), o.Key))}, nil)
		}
		if err := sleep(ctx, linkEvery); err != nil {
			return err
		}
	}
}

// Linked waits, ten minutes at most, for the identity of the member at whose device code is
// shown, and returns it: Dial logs in with it.
func Linked(ctx context.Context, origin string, code LinkCode, opt Options) (*custody.Identity, error) {
	c, err := newClient(origin, opt)
	if err != nil {
		return nil, err
	}
	once, err := custody.NewIdentity()
	if err != nil {
		return nil, err
	}
	path := "/api/links/" + code.id()
	var offered struct {
		Ticket string `json:"ticket"`
	}
	offer := map[string]any{"key": once.Public(), "mac": custody.Bytes(code.offered(once.Public()))}
	if err := c.once(ctx, http.MethodPost, path+"/offer", "", offer, &offered); err != nil {
		return nil, err
	}
	for {
		var got struct {
			Key      custody.PublicKey `json:"key"`
			Envelope json.RawMessage   `json:"envelope"`
			MAC      custody.Bytes     `json:"mac"`
		}
		err := c.once(ctx, http.MethodPost, path+"/fetch", "", map[string]string{"ticket": offered.Ticket}, &got)
		var e *Error
		switch {
		case err == nil:
			if got.Key.IsZero() || !hmac.Equal(got.MAC, code.linked(got.Key, once.Public())) {
				return nil, ErrLinkForged
			}
			sealed, err := custody.ParseEnvelope(got.Envelope)
			if err != nil {
				return nil, err
			}
			if opt.Space != "" && sealed.Space != opt.Space {
				return nil, errors.New("client: the identity is of another space")
			}
			return once.OpenIdentity(sealed, got.Key)
		case errors.As(err, &e) && e.Code == "pending", passing(err):
		default:
			return nil, err
		}
		if err := sleep(ctx, linkEvery); err != nil {
			return nil, err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
