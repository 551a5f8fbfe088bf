package instance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"net/http"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/custody"
)

// How long what holds a grant or a pair stays, with the sidecar's seven days at most for a
// grant: longest whatever the poster says, usual where the poster says nothing.
const (
	longestGrant = 7*24*time.Hour + custody.Skew
	usualOp      = time.Hour
	longestUntil = 400 * 24 * time.Hour
)

// passes says which purposes go through the messages, and how.
var passes = map[custody.Purpose]struct {
	usual, longest time.Duration // 0: as long as the poster says, or for good
	settles        bool          // reaches also those who have left: no pair and no end is lost
	threadless     bool          // may stand outside of a thread
}{
	custody.PurposeSay:      {},
	custody.PurposeOp:       {usual: usualOp, longest: longestGrant, threadless: true},
	custody.PurposeRevoke:   {usual: usualOp, longest: longestGrant, threadless: true},
	custody.PurposeGrant:    {usual: longestGrant, longest: longestGrant, threadless: true},
	custody.PurposeResult:   {settles: true, threadless: true},
	custody.PurposeHandback: {settles: true, threadless: true},
	custody.PurposeAck:      {settles: true, threadless: true},
	custody.PurposeEnd:      {settles: true, threadless: true},
	custody.PurposeHandoff:  {usual: usualOp, longest: longestGrant, threadless: true},
}

type messageRequest struct {
	ID       string         `json:"id"`
	Thread   string         `json:"thread,omitzero"`
	Envelope jsontext.Value `json:"envelope"`
	Until    int64          `json:"until,omitzero"`
}

type messageAnswer struct {
	Seq   int64 `json:"seq"` // in the reader's log
	At    int64 `json:"at"`
	Until int64 `json:"until,omitzero"` // when it will be deleted
}

// envelope reads one that a caller may put here: of this space, from its own key.
func (i *Instance) envelope(raw jsontext.Value, from custody.KeyID) (*custody.Envelope, []byte, error) {
	if len(raw) > custody.MaxMessage {
		return nil, nil, errTooBig
	}
	e, err := custody.ParseEnvelope(raw)
	switch {
	case errors.Is(err, custody.ErrTooBig):
		return nil, nil, errTooBig
	case errors.Is(err, custody.ErrVersion):
		return nil, nil, refuse(http.StatusBadRequest, "version", "the envelope is %v", err)
	case err != nil:
		return nil, nil, refuse(http.StatusBadRequest, "envelope", "the envelope is not one: %v", err) // says where, never what stood there
	case e.From != from:
		return nil, nil, refuse(http.StatusForbidden, "not_yours", "the envelope is not from the key that is logged in")
	case e.Space != i.cfg.Space:
		return nil, nil, refuse(http.StatusBadRequest, "space", "the envelope is for another space")
	}
	text, err := e.Marshal() // the one form, without spaces
	return e, text, err
}

// postMessage relays one envelope to its reader.
func (i *Instance) postMessage(ctx context.Context, c *caller, _ *http.Request, req *messageRequest) (*messageAnswer, error) {
	if !isID(req.ID) {
		return nil, refuse(http.StatusBadRequest, "malformed", "id is 1 to 64 letters, digits, _, - and dots")
	}
	e, text, err := i.envelope(req.Envelope, c.id)
	if err != nil {
		return nil, err
	}
	how, ok := passes[e.Purpose]
	switch {
	case !ok:
		return nil, refuse(http.StatusBadRequest, "purpose", "an envelope of this purpose is no message")
	case e.Thread != req.Thread:
		return nil, refuse(http.StatusBadRequest, "thread", "the envelope is for another thread than it is posted to")
	case e.Thread == "" && !how.threadless:
		return nil, refuse(http.StatusBadRequest, "thread", "an envelope of this purpose belongs to a thread")
	}
	now := i.now()
	until := req.Until
	switch {
	case until < 0 || until > maxCount:
		return nil, refuse(http.StatusBadRequest, "until", "until is in seconds since 1970")
	case until == 0 && how.usual > 0:
		until = now.Add(how.usual).Unix()
	}
	longest := longestUntil
	if how.longest > 0 {
		longest = how.longest
	}
	if until > 0 {
		until = min(until, now.Add(longest).Unix())
	}
	// The until that was asked for: what was made of it depends on when.
	digest := sha256.Sum256(binary.BigEndian.AppendUint64(bytes.Clone(text), uint64(req.Until)))
	out := new(messageAnswer)
	err = i.store.change(ctx, func(tx *sql.Tx) error {
		var have []byte
		err := tx.QueryRowContext(ctx, "SELECT digest, seq, at, coalesce(until, 0) FROM posted WHERE author = ? AND id = ?", string(c.id), req.ID).
			Scan(&have, &out.Seq, &out.At, &out.Until)
		switch {
		case err == nil && bytes.Equal(have, digest[:]):
			return nil // the answer was lost
		case err == nil:
			return refuse(http.StatusConflict, "id_taken", "another message was posted under that id")
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		if until > 0 && until <= now.Unix() {
			return refuse(http.StatusBadRequest, "until", "until is over: the message would be deleted at once")
		}
		if err := mayReach(ctx, tx, c.id, e, how.settles); err != nil {
			return err
		}
		return i.append(ctx, tx, c.id, req.ID, e, text, digest[:], until, now, out)
	})
	if err != nil {
		return nil, err
	}
	i.hub.notify(e.To)
	return out, nil
}

// mayReach says whether author may send e to its reader.
func mayReach(ctx context.Context, tx *sql.Tx, author custody.KeyID, e *custody.Envelope, settles bool) error {
	here := 1
	if settles {
		here = 0
	}
	if e.Thread == "" {
		if e.To == author {
			return nil
		}
		var shared int
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM thread_members a JOIN thread_members b ON b.thread = a.thread WHERE a.member = ? AND b.member = ? AND a.here >= ? AND b.here >= ?)",
			string(author), string(e.To), here, here).Scan(&shared)
		if err == nil && shared == 0 {
			err = refuse(http.StatusForbidden, "reader", "these two keys share no thread")
		}
		return err
	}
	var us, them int
	err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM thread_members WHERE thread = ?1 AND member = ?2 AND here >= ?4), EXISTS (SELECT 1 FROM thread_members WHERE thread = ?1 AND member = ?3 AND here >= ?4)",
		e.Thread, string(author), string(e.To), here).Scan(&us, &them)
	switch {
	case err != nil:
		return err
	case us == 0:
		return errNoThread
	case them == 0:
		return refuse(http.StatusForbidden, "reader", "the key that it is sealed to is not in the thread")
	}
	return nil
}

func (i *Instance) append(ctx context.Context, tx *sql.Tx, author custody.KeyID, id string, e *custody.Envelope, text, digest []byte, until int64, now time.Time, out *messageAnswer) error {
	var filled int64
	err := tx.QueryRowContext(ctx, "SELECT coalesce((SELECT bytes FROM filled WHERE reader = ? AND author = ?), 0)", string(e.To), string(author)).Scan(&filled)
	if err != nil {
		return err
	}
	if filled+int64(len(text)) > i.cfg.Quota {
		return refuse(http.StatusInsufficientStorage, "quota", "one author fills at most %d bytes of one reader's log; the reader can delete some", i.cfg.Quota)
	}
	out.At, out.Until = now.Unix(), until
	if err := tx.QueryRowContext(ctx, "UPDATE members SET seq = seq + 1 WHERE id = ? RETURNING seq", string(e.To)).Scan(&out.Seq); err != nil {
		return err
	}
	end := sql.NullInt64{Int64: until, Valid: until > 0}
	if _, err := tx.ExecContext(ctx, "INSERT INTO messages (reader, seq, author, thread, at, until, envelope) VALUES (?, ?, ?, ?, ?, ?, ?)",
		string(e.To), out.Seq, string(author), e.Thread, out.At, end, text); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO posted (author, id, digest, seq, at, until) VALUES (?, ?, ?, ?, ?, ?)", string(author), id, digest, out.Seq, out.At, end)
	return err
}

// The bounds of one page of messages: the second may be overrun by one message.
const (
	pageMessages = 100
	pageBytes    = 1 << 20
)

// A message is one envelope in its reader's log.
type message struct {
	Seq      int64          `json:"seq"`
	At       int64          `json:"at"`
	Until    int64          `json:"until,omitzero"`
	Author   custody.KeyID  `json:"author"` // whose session posted it
	Envelope jsontext.Value `json:"envelope"`
}

type messagesAnswer struct {
	Messages []*message `json:"messages"`
	Cursor   int64      `json:"cursor"` // since of the next page
	More     bool       `json:"more"`   // whether there is one now
}

// errCursor tells a reader that this store has lost what she has seen, as one does that was
// brought back from a copy: its numbers will be given again.
var errCursor = refuse(http.StatusConflict, "cursor", "the cursor is ahead of this instance, whose store is older than what was read from it; begin again at 0")

// readMessages returns what a reader has after since, in the order in which it came; thread
// "" means all of it. limit and bytes bound the page, which holds one message at least.
func (i *Instance) readMessages(ctx context.Context, reader custody.KeyID, thread string, since int64, limit, bytes int) (*messagesAnswer, error) {
	tx, err := i.store.read.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}) // one snapshot
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	out := &messagesAnswer{Messages: []*message{}}
	if err := tx.QueryRowContext(ctx, "SELECT seq FROM members WHERE id = ?", string(reader)).Scan(&out.Cursor); err != nil {
		return nil, err
	}
	if since > out.Cursor {
		return nil, errCursor
	}
	in, args := "", []any{string(reader), since, i.now().Unix(), limit + 1}
	if thread != "" {
		in, args = " AND thread = ?5", append(args, thread)
	}
	rows, err := tx.QueryContext(ctx, "SELECT seq, at, coalesce(until, 0), author, envelope FROM messages WHERE reader = ?1 AND seq > ?2 AND (until IS NULL OR until > ?3)"+in+" ORDER BY seq LIMIT ?4", args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	size := 0
	for rows.Next() {
		m := new(message)
		var text []byte
		if err := rows.Scan(&m.Seq, &m.At, &m.Until, &m.Author, &text); err != nil {
			return nil, err
		}
		if len(out.Messages) == limit || size >= bytes {
			out.More = true
			out.Cursor = out.Messages[len(out.Messages)-1].Seq
			break
		}
		m.Envelope = text
		size += len(text)
		out.Messages = append(out.Messages, m)
	}
	return out, rows.Err()
}

func (i *Instance) getMessages(ctx context.Context, c *caller, r *http.Request, _ *none) (*messagesAnswer, error) {
	q, err := query(r, "since", "thread", "limit")
	if err != nil {
		return nil, err
	}
	since, err := number(q["since"], "since")
	if err != nil {
		return nil, err
	}
	limit, err := number(q["limit"], "limit")
	if err != nil {
		return nil, err
	}
	if limit == 0 || limit > pageMessages {
		limit = pageMessages
	}
	if t := q["thread"]; t != "" && !isID(t) {
		return nil, refuse(http.StatusBadRequest, "malformed", "thread is 1 to 64 letters, digits, _, - and dots")
	}
	return i.readMessages(ctx, c.id, q["thread"], since, int(limit), pageBytes)
}

// deleteMessage lets a reader forget a message of her own log.
func (i *Instance) deleteMessage(ctx context.Context, c *caller, r *http.Request, _ *none) (*none, error) {
	seq, err := number(r.PathValue("seq"), "seq")
	if err != nil {
		return nil, err
	}
	return new(none), i.store.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "DELETE FROM messages WHERE reader = ? AND seq = ?", string(c.id), seq)
		return err
	})
}
