package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/coder/websocket"

	"github.com/elevenmessenger/connect/custody"
)

// A Message is one envelope in this key's log. Its header is held against the log's: it is
// to this key, of this space, and from the key whose session posted it.
type Message struct {
	Seq      int64 // the cursor after it
	At       time.Time
	Until    time.Time // when the instance deletes it; zero: never
	Envelope *custody.Envelope
}

type frame struct {
	Seq      int64           `json:"seq"`
	At       int64           `json:"at"`
	Until    int64           `json:"until"`
	Author   custody.KeyID   `json:"author"`
	Envelope json.RawMessage `json:"envelope"`
	Cursor   int64           `json:"cursor"` // of a frame that says how far all was sent
}

// message returns what may be opened, or nil: an instance that sends anything else does not
// stop what comes after it.
func (c *Client) message(f *frame) *Message {
	e, err := custody.ParseEnvelope(f.Envelope)
	if err != nil || f.Seq <= 0 || e.To != c.identity.ID() || e.From != f.Author || e.Space != c.Space() {
		return nil
	}
	m := &Message{Seq: f.Seq, At: time.Unix(f.At, 0), Envelope: e}
	if f.Until > 0 {
		m.Until = time.Unix(f.Until, 0)
	}
	return m
}

// A Page is a part of the log.
type Page struct {
	Messages []*Message
	Cursor   int64 // of the next page
	More     bool  // whether there is one now
}

// Since returns what came after cursor, oldest first.
func (c *Client) Since(ctx context.Context, cursor int64) (*Page, error) {
	return c.since(ctx, url.Values{"since": {strconv.FormatInt(cursor, 10)}})
}

// SinceIn is Since of one thread.
func (c *Client) SinceIn(ctx context.Context, thread string, cursor int64) (*Page, error) {
	return c.since(ctx, url.Values{"since": {strconv.FormatInt(cursor, 10)}, "thread": {thread}})
}

func (c *Client) since(ctx context.Context, q url.Values) (*Page, error) {
	var in struct {
		Messages []*frame `json:"messages"`
		Cursor   int64    `json:"cursor"`
		More     bool     `json:"more"`
	}
	if err := c.call(ctx, http.MethodGet, "/api/messages?"+q.Encode(), nil, &in); err != nil {
		return nil, err
	}
	out := &Page{Cursor: in.Cursor, More: in.More}
	for _, f := range in.Messages {
		if f == nil {
			return nil, errAnswer
		}
		if m := c.message(f); m != nil {
			out.Messages = append(out.Messages, m)
		}
	}
	return out, nil
}

const (
	maxFrame    = custody.MaxMessage + 4096
	quietStream = 90 * time.Second // three of the instance's pings
	handshake   = 20 * time.Second
)

// errHandler wraps what f of Receive returned.
type errHandler struct{ error }

func (e errHandler) Unwrap() error { return e.error }

// Receive calls f with each message after cursor, in order, as they come, one at a time. It
// goes on over lost connections, and ends with ctx, with an error of f, or with a refusal
// that another try does not change, such as ErrCursor. A message whose f did not return nil
// is delivered again to a Receive that begins before it: f keeps the cursor, Message.Seq,
// with what it did.
func (c *Client) Receive(ctx context.Context, cursor int64, f func(context.Context, *Message) error) error {
	for try := 0; ; try++ {
		before, began := cursor, time.Now()
		err := c.stream(ctx, &cursor, f)
		var own errHandler
		switch {
		case errors.As(err, &own):
			return own.error
		case ctx.Err() != nil:
			return ctx.Err()
		case !passing(err) && !errors.Is(err, ErrSession):
			return err
		}
		if cursor > before || time.Since(began) > quietStream {
			try = 0
		}
		if err := pause(ctx, try, err); err != nil {
			return err
		}
	}
}

// stream receives over one connection.
func (c *Client) stream(ctx context.Context, cursor *int64, f func(context.Context, *Message) error) error {
	session, err := c.login(ctx, "")
	if err != nil {
		return err
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return err
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxFrame)
	hello, err := json.Marshal(map[string]any{"session": session, "cursor": *cursor})
	if err != nil {
		return err
	}
	said, cancel := context.WithTimeout(ctx, handshake)
	err = conn.Write(said, websocket.MessageText, hello)
	cancel()
	if err != nil {
		return unreachable(err)
	}
	for {
		fr, err := c.next(ctx, conn, session)
		if err != nil {
			return err
		}
		if fr.Envelope == nil {
			*cursor = max(*cursor, fr.Cursor)
			continue
		}
		if fr.Seq <= *cursor {
			continue // an instance that sends one twice
		}
		if m := c.message(fr); m != nil {
			if err := f(ctx, m); err != nil {
				return errHandler{err}
			}
		}
		*cursor = fr.Seq
	}
}

func (c *Client) dial(ctx context.Context) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	conn, res, err := websocket.Dial(ctx, "ws"+strings.TrimPrefix(c.origin, "http")+"/api/stream", &websocket.DialOptions{HTTPClient: c.http})
	if err == nil {
		return conn, nil
	}
	if res != nil && res.StatusCode != http.StatusSwitchingProtocols {
		return nil, &Error{Status: res.StatusCode}
	}
	return nil, unreachable(err)
}

// next reads one frame. The instance's pings are answered within Read, and a dead connection
// is noticed by our own: a stream may be silent for days.
func (c *Client) next(ctx context.Context, conn *websocket.Conn, session string) (*frame, error) {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	alive := time.AfterFunc(quietStream, func() { c.alive(reading, cancel, conn) })
	defer alive.Stop()
	_, data, err := conn.Read(reading)
	if err == nil {
		fr := new(frame)
		if json.Unmarshal(data, fr) != nil {
			return nil, fmt.Errorf("%w: %w", ErrUnreachable, errAnswer)
		}
		return fr, nil
	}
	var closed websocket.CloseError
	if errors.As(err, &closed) {
		if closed.Reason == "session" {
			c.drop(session)
		}
		if class := byCode[closed.Reason]; class != nil {
			return nil, closeError(closed, class)
		}
	}
	return nil, unreachable(err)
}

// closeError says why the instance closed a stream.
func closeError(closed websocket.CloseError, class error) error {
	if closed.Code == websocket.StatusTryAgainLater {
		return &Error{Status: http.StatusTooManyRequests, Code: closed.Reason, Message: "the instance has too many streams"}
	}
	return class
}

// alive pings until the connection fails or the read ends.
func (c *Client) alive(ctx context.Context, cut context.CancelFunc, conn *websocket.Conn) {
	for {
		ping, cancel := context.WithTimeout(ctx, handshake)
		err := conn.Ping(ping)
		cancel()
		if err != nil {
			cut()
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(quietStream):
		}
	}
}

// drop forgets a session that has ended.
func (c *Client) drop(session string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == session {
		c.session = ""
	}
}
