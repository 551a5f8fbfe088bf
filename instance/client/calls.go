package client

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/elevenmessenger/connect/custody"
)

// A Member is what the instance says of a key: a member's or a bot's. Nothing proves it.
type Member struct {
	ID       custody.KeyID     `json:"id"`
	Key      custody.PublicKey `json:"key"`
	Kind     string            `json:"kind"` // "member" or "bot"
	Name     string            `json:"name"`
	Group    string            `json:"group"` // of a bot
	Day      *Day              `json:"day"`   // of a bot that has published one that lives
	JoinedAt int64             `json:"joined_at"`
}

// A Day is a bot's key of the day.
type Day struct {
	Key   custody.PublicKey `json:"key"`
	Until int64             `json:"until"` // seconds since 1970 UTC
}

// check holds that a record is of the key that it names.
func (m *Member) check() error {
	if m.Key.IsZero() || m.Key.ID() != m.ID || m.Day != nil && m.Day.Key.IsZero() {
		return errAnswer
	}
	return nil
}

// Member returns what the instance says of a key, which the caller pins.
func (c *Client) Member(ctx context.Context, id custody.KeyID) (*Member, error) {
	m := new(Member)
	if err := c.call(ctx, http.MethodGet, "/api/members/"+url.PathEscape(string(id)), nil, m); err != nil {
		return nil, err
	}
	if m.ID != id {
		return nil, errAnswer
	}
	return m, m.check()
}

// Members returns all members and bots of the space.
func (c *Client) Members(ctx context.Context) ([]*Member, error) {
	var all []*Member
	for after := custody.KeyID(""); ; {
		var page struct {
			Members []*Member     `json:"members"`
			Next    custody.KeyID `json:"next"`
		}
		path := "/api/members"
		if after != "" {
			path += "?after=" + url.QueryEscape(string(after))
		}
		if err := c.call(ctx, http.MethodGet, path, nil, &page); err != nil {
			return nil, err
		}
		for _, m := range page.Members {
			if m == nil || m.check() != nil {
				return nil, errAnswer
			}
		}
		all = append(all, page.Members...)
		if page.Next == "" {
			return all, nil
		}
		if page.Next <= after {
			return nil, errAnswer // it would go on for ever
		}
		after = page.Next
	}
}

// SetName changes what this key is called.
func (c *Client) SetName(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodPut, "/api/me", map[string]string{"name": name}, nil)
}

// SetGroup changes which group this bot says it belongs to.
func (c *Client) SetGroup(ctx context.Context, group string) error {
	return c.call(ctx, http.MethodPut, "/api/me", map[string]string{"group": group}, nil)
}

// PublishDay publishes this bot's key of the day, which lives 24 hours at most.
func (c *Client) PublishDay(ctx context.Context, key custody.PublicKey, until time.Time) error {
	return c.call(ctx, http.MethodPut, "/api/me/day", Day{key, until.Unix()}, nil)
}

// A Thread is one that this key is in.
type Thread struct {
	ID      string          `json:"id"`
	Creator custody.KeyID   `json:"creator"`
	Members []custody.KeyID `json:"members"`
}

// Threads returns the threads that this key is in.
func (c *Client) Threads(ctx context.Context) ([]*Thread, error) {
	var out struct {
		Threads []*Thread `json:"threads"`
	}
	err := c.call(ctx, http.MethodGet, "/api/threads", nil, &out)
	return out.Threads, err
}

// NewThread begins a thread with others under an id of the caller's choice.
func (c *Client) NewThread(ctx context.Context, id string, others ...custody.KeyID) error {
	return c.call(ctx, http.MethodPost, "/api/threads", map[string]any{"id": id, "members": append([]custody.KeyID{}, others...)}, nil)
}

// Enter puts a key into a thread that this one is in.
func (c *Client) Enter(ctx context.Context, thread string, member custody.KeyID) error {
	return c.call(ctx, http.MethodPut, "/api/threads/"+url.PathEscape(thread)+"/members/"+url.PathEscape(string(member)), nil, nil)
}

// Leave takes a key out of a thread: this one, or another.
func (c *Client) Leave(ctx context.Context, thread string, member custody.KeyID) error {
	return c.call(ctx, http.MethodDelete, "/api/threads/"+url.PathEscape(thread)+"/members/"+url.PathEscape(string(member)), nil, nil)
}

// NewID makes the id under which a message is posted.
func NewID() string {
	var raw [16]byte
	rand.Read(raw[:])
	return base64.RawURLEncoding.EncodeToString(raw[:])
}

// Post posts an envelope to its own thread and reader. The instance deletes it at until, or
// keeps it where until is zero; what holds a grant is deleted in any case. id is the caller's
// choice: a message that is posted again under it, today, is no second one. "" makes a fresh
// id, for callers that do not post again. It returns the message's place in the reader's log.
func (c *Client) Post(ctx context.Context, id string, e *custody.Envelope, until time.Time) (seq int64, err error) {
	if id == "" {
		id = NewID()
	}
	text, err := e.Marshal()
	if err != nil {
		return 0, err
	}
	in := struct {
		ID       string          `json:"id"`
		Thread   string          `json:"thread,omitzero"`
		Envelope json.RawMessage `json:"envelope"`
		Until    int64           `json:"until,omitzero"`
	}{ID: id, Thread: e.Thread, Envelope: text}
	if !until.IsZero() {
		in.Until = until.Unix()
	}
	var out struct {
		Seq int64 `json:"seq"`
	}
	err = c.call(ctx, http.MethodPost, "/api/messages", in, &out)
	return out.Seq, err
}

// Forget deletes a message of this key's own log.
func (c *Client) Forget(ctx context.Context, seq int64) error {
	return c.call(ctx, http.MethodDelete, "/api/messages/"+strconv.FormatInt(seq, 10), nil, nil)
}

// A Blob is one envelope that this key keeps for itself.
type Blob struct {
	ID         string
	Generation int64
	Envelope   *custody.Envelope
}

// A BlobInfo says which generation of a blob is there, and whether it was deleted.
type BlobInfo struct {
	ID         string `json:"id"`
	Generation int64  `json:"generation"`
	Deleted    bool   `json:"deleted"`
	Size       int64  `json:"size"`
}

type blob struct {
	Generation int64           `json:"generation"`
	Envelope   json.RawMessage `json:"envelope"`
}

func blobPath(id string) string { return "/api/blobs/" + url.PathEscape(id) }

// Blobs lists this key's blobs, deleted ones too.
func (c *Client) Blobs(ctx context.Context) ([]*BlobInfo, error) {
	var out struct {
		Blobs []*BlobInfo `json:"blobs"`
	}
	err := c.call(ctx, http.MethodGet, "/api/blobs", nil, &out)
	return out.Blobs, err
}

// Blob returns a blob. One that is not there is ErrNotFound, a deleted one ErrDeleted.
func (c *Client) Blob(ctx context.Context, id string) (*Blob, error) {
	var b blob
	if err := c.call(ctx, http.MethodGet, blobPath(id), nil, &b); err != nil {
		return nil, err
	}
	e, err := custody.ParseEnvelope(b.Envelope)
	if err != nil {
		return nil, err
	}
	return &Blob{id, b.Generation, e}, nil
}

// PutBlob replaces the blob of generation expect, 0 where none is there, by one of a later
// generation. Where another is there it is ErrConflict, with that one's in Error.
func (c *Client) PutBlob(ctx context.Context, id string, expect, generation int64, e *custody.Envelope) error {
	text, err := e.Marshal()
	if err != nil {
		return err
	}
	in := map[string]any{"expect": expect, "generation": generation, "envelope": json.RawMessage(text)}
	return c.call(ctx, http.MethodPut, blobPath(id), in, nil)
}

// DeleteBlob deletes the blob of generation expect. What stays is its id with the next
// generation, so that no older one comes back.
func (c *Client) DeleteBlob(ctx context.Context, id string, expect int64) error {
	return c.call(ctx, http.MethodDelete, blobPath(id)+"?expect="+strconv.FormatInt(expect, 10), nil, nil)
}
