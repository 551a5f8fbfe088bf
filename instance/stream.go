package instance

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
	"github.com/go-json-experiment/json"

	"github.com/elevenmessenger/connect/custody"
)

const (
	maxStreams      = 2048
	maxStreamsOfKey = 16
	maxHello        = 512       // bytes
	streamPage      = 128 << 10 // bytes that a stream holds at once, and one message more
)

// streamTimes are how long a stream waits for the other side.
type streamTimes struct{ hello, ping, pong, write time.Duration }

func (t *streamTimes) defaults() {
	for _, d := range []struct {
		at   *time.Duration
		zero time.Duration
	}{{&t.hello, 10 * time.Second}, {&t.ping, 30 * time.Second}, {&t.pong, 10 * time.Second}, {&t.write, 10 * time.Second}} {
		if *d.at <= 0 {
			*d.at = d.zero
		}
	}
}

// A hub wakes the streams of a key when something came for it. A stream holds no queue: it
// reads the log from where it is, a page at a time, so a slow reader fills nothing.
type hub struct {
	mu      sync.Mutex
	streams map[custody.KeyID]map[*stream]struct{}
	count   int
	closed  bool
	work    sync.WaitGroup
}

type stream struct {
	wake chan struct{} // holds one
	stop chan struct{} // closed when the instance ends
	gone chan error    // holds why reading has ended
}

func (h *hub) add(id custody.KeyID, s *stream) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || h.count >= maxStreams || len(h.streams[id]) >= maxStreamsOfKey {
		return false
	}
	if h.streams == nil {
		h.streams = make(map[custody.KeyID]map[*stream]struct{})
	}
	if h.streams[id] == nil {
		h.streams[id] = make(map[*stream]struct{})
	}
	h.streams[id][s] = struct{}{}
	h.count++
	h.work.Add(1)
	return true
}

func (h *hub) remove(id custody.KeyID, s *stream) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.streams[id], s)
	if len(h.streams[id]) == 0 {
		delete(h.streams, id)
	}
	h.count--
	h.work.Done()
}

func (h *hub) notify(id custody.KeyID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for s := range h.streams[id] {
		select {
		case s.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

func (h *hub) close() {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return
	}
	h.closed = true
	for _, of := range h.streams {
		for s := range of {
			close(s.stop)
		}
	}
	h.mu.Unlock()
	h.work.Wait()
}

// A hello is the first and only thing that a client says: a browser can set no header, and a
// session has no place in an address.
type hello struct {
	Session string `json:"session"`
	Cursor  int64  `json:"cursor"`
}

// caughtUp tells that everything up to the cursor has been sent.
type caughtUp struct {
	Cursor int64 `json:"cursor"`
}

// getStream sends a key's log from the client's cursor on, one frame a message, as it grows.
func (i *Instance) getStream(w http.ResponseWriter, r *http.Request) {
	if wait := i.strangers.take(remote(r), i.now()); wait > 0 {
		i.fail(w, r, tooMany(wait))
		return
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		w.Header().Set("Upgrade", "websocket")
		i.fail(w, r, refuse(http.StatusUpgradeRequired, "upgrade", "this address is a WebSocket"))
		return
	}
	conn, err := websocket.Accept(w, r, nil) // which looks at Origin, too
	if err != nil {
		noteOf(r).code = "upgrade"
		return // answered
	}
	defer conn.CloseNow()
	conn.SetReadLimit(maxHello)
	c, cursor, err := i.hello(r.Context(), conn)
	if err != nil {
		i.closeStream(r, conn, err)
		return
	}
	s := &stream{make(chan struct{}, 1), make(chan struct{}), make(chan error, 1)}
	if !i.hub.add(c.id, s) {
		i.closeStream(r, conn, tooMany(time.Minute))
		return
	}
	defer i.hub.remove(c.id, s)
	// Not conn.CloseRead, which on a second text waits for itself for 15 seconds. Nor does the
	// end of reading end a context of writing: that would tear the connection before its
	// reason was said.
	go func() {
		_, _, err := conn.Read(r.Context())
		if err == nil {
			err = errSpoke
		}
		s.gone <- err
		close(s.gone)
	}()
	i.closeStream(r, conn, i.send(r.Context(), conn, c, cursor, s))
	conn.CloseNow()
	for range s.gone { // until reading has ended
	}
}

var errSpoke = refuse(http.StatusBadRequest, "malformed", "a stream takes nothing after its first frame")

func (i *Instance) hello(ctx context.Context, conn *websocket.Conn) (*caller, int64, error) {
	ctx, cancel := context.WithTimeout(ctx, i.cfg.stream.hello)
	defer cancel()
	kind, data, err := conn.Read(ctx)
	if err != nil {
		return nil, 0, err
	}
	var h hello
	if kind != websocket.MessageText {
		return nil, 0, refuse(http.StatusBadRequest, "malformed", "the first frame is a text")
	}
	if err := decode(data, &h); err != nil {
		return nil, 0, err
	}
	if h.Cursor < 0 || h.Cursor > maxCount {
		return nil, 0, refuse(http.StatusBadRequest, "malformed", "cursor is a whole number")
	}
	c, err := i.session(ctx, h.Session)
	return c, h.Cursor, err
}

// closeStream says by the code of a refusal why a stream ends.
func (i *Instance) closeStream(r *http.Request, conn *websocket.Conn, err error) {
	var e *refusal
	switch {
	case errors.As(err, &e):
		noteOf(r).code = e.code
		status := websocket.StatusPolicyViolation
		if e.wait > 0 {
			status = websocket.StatusTryAgainLater
		}
		conn.Close(status, e.code)
	case errors.Is(err, errStopping):
		conn.Close(websocket.StatusGoingAway, "stopping")
	default:
		noteOf(r).code = "cut" // the client has gone, or reads too slowly
	}
}

var errStopping = errors.New("instance: stopping")

// send sends until the client closes or says more, or the instance stops.
func (i *Instance) send(ctx context.Context, conn *websocket.Conn, c *caller, cursor int64, s *stream) error {
	ping := time.NewTicker(i.cfg.stream.ping)
	defer ping.Stop()
	for first := true; ; first = false {
		if err := i.still(ctx, c); err != nil {
			return err
		}
		sent := cursor
		for more := true; more; {
			select {
			case <-s.stop: // between writes: within one it would tear the connection
				return errStopping
			default:
			}
			page, err := i.readMessages(ctx, c.id, "", cursor, pageMessages, streamPage)
			if err != nil {
				return err
			}
			for _, m := range page.Messages {
				if err := i.frame(ctx, conn, m); err != nil {
					return err
				}
			}
			cursor, more = page.Cursor, page.More
		}
		if first || cursor != sent {
			if err := i.frame(ctx, conn, caughtUp{cursor}); err != nil {
				return err
			}
		}
		select {
		case err := <-s.gone:
			return err
		case <-s.stop:
			return errStopping
		case <-s.wake:
		case <-ping.C:
			pong, cancel := context.WithTimeout(ctx, i.cfg.stream.pong)
			err := conn.Ping(pong)
			cancel()
			if err != nil {
				return err
			}
		}
	}
}

// still holds that the session has not ended meanwhile.
func (i *Instance) still(ctx context.Context, c *caller) error {
	var one int
	err := i.store.read.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM sessions WHERE hash = ? AND until > ?)", c.hash, i.now().Unix()).Scan(&one)
	if err == nil && one == 0 {
		err = errSession
	}
	return err
}

// frame writes one frame. A reader that does not take it in time is cut, and comes back with
// its cursor.
func (i *Instance) frame(ctx context.Context, conn *websocket.Conn, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, i.cfg.stream.write)
	defer cancel()
	return conn.Write(ctx, websocket.MessageText, data)
}
