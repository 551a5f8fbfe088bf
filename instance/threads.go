package instance

import (
	"context"
	"database/sql"
	"errors"
	"net/http"
	"strings"

	"github.com/elevenmessenger/connect/custody"
)

const (
	maxThreads       = 1000 // that one key may begin
	maxThreadMembers = 256
	maxInThreads     = 2000 // in which one key may be
)

type thread struct {
	ID      string          `json:"id"`
	Creator custody.KeyID   `json:"creator"`
	MadeAt  int64           `json:"made_at"`
	Members []custody.KeyID `json:"members"`
}

var (
	errNoThread  = refuse(http.StatusNotFound, "no_such_thread", "there is no such thread, or this key is not in it")
	errBotThread = refuse(http.StatusForbidden, "a_bot", "members decide who is in a thread; a bot may only leave")
	errFull      = refuse(http.StatusForbidden, "full", "a thread has at most %d members, and a key is in at most %d threads", maxThreadMembers, maxInThreads)
)

// readThread returns a thread that member is in.
func readThread(ctx context.Context, q querier, id string, member custody.KeyID) (*thread, error) {
	var t thread
	err := q.QueryRowContext(ctx, "SELECT t.id, t.creator, t.made_at FROM threads t JOIN thread_members m ON m.thread = t.id WHERE t.id = ? AND m.member = ? AND m.here = 1",
		id, string(member)).Scan(&t.ID, &t.Creator, &t.MadeAt)
	if errors.Is(err, sql.ErrNoRows) {
		return nil, errNoThread
	}
	if err != nil {
		return nil, err
	}
	t.Members = []custody.KeyID{}
	rows, err := q.QueryContext(ctx, "SELECT member FROM thread_members WHERE thread = ? AND here = 1 ORDER BY member", id)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var m custody.KeyID
		if err := rows.Scan(&m); err != nil {
			return nil, err
		}
		t.Members = append(t.Members, m)
	}
	return &t, rows.Err()
}

type threadsAnswer struct {
	Threads []*thread `json:"threads"`
}

func (i *Instance) getThreads(ctx context.Context, c *caller, _ *http.Request, _ *none) (*threadsAnswer, error) {
	rows, err := i.store.read.QueryContext(ctx, `SELECT t.id, t.creator, t.made_at, group_concat(a.member, ' ')
		FROM thread_members m JOIN threads t ON t.id = m.thread JOIN thread_members a ON a.thread = t.id AND a.here = 1
		WHERE m.member = ? AND m.here = 1 GROUP BY t.id ORDER BY t.id`, string(c.id))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := &threadsAnswer{Threads: []*thread{}}
	for rows.Next() {
		var t thread
		var members string
		if err := rows.Scan(&t.ID, &t.Creator, &t.MadeAt, &members); err != nil {
			return nil, err
		}
		for m := range strings.FieldsSeq(members) {
			t.Members = append(t.Members, custody.KeyID(m))
		}
		out.Threads = append(out.Threads, &t)
	}
	return out, rows.Err()
}

func (i *Instance) getThread(ctx context.Context, c *caller, r *http.Request, _ *none) (*thread, error) {
	return readThread(ctx, i.store.read, r.PathValue("id"), c.id)
}

type threadRequest struct {
	ID      string          `json:"id"`
	Members []custody.KeyID `json:"members"`
}

// postThread begins a thread under an id of the client's choice, so that a retry begins none.
func (i *Instance) postThread(ctx context.Context, c *caller, _ *http.Request, req *threadRequest) (t *thread, err error) {
	switch {
	case c.bot:
		return nil, errBotThread
	case !isID(req.ID):
		return nil, refuse(http.StatusBadRequest, "malformed", "id is 1 to 64 letters, digits, _, - and dots")
	case len(req.Members) >= maxThreadMembers:
		return nil, errFull
	}
	err = i.store.change(ctx, func(tx *sql.Tx) error {
		var creator custody.KeyID
		err := tx.QueryRowContext(ctx, "SELECT creator FROM threads WHERE id = ?", req.ID).Scan(&creator)
		switch {
		case err == nil && creator == c.id: // a retry
			t, err = readThread(ctx, tx, req.ID, c.id)
			return err
		case err == nil:
			return refuse(http.StatusConflict, "id_taken", "another thread has that id")
		case !errors.Is(err, sql.ErrNoRows):
			return err
		}
		var n int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM threads WHERE creator = ?", string(c.id)).Scan(&n); err != nil {
			return err
		}
		if n >= maxThreads {
			return refuse(http.StatusForbidden, "full", "one key begins at most %d threads", maxThreads)
		}
		if _, err := tx.ExecContext(ctx, "INSERT INTO threads (id, creator, made_at) VALUES (?, ?, ?)", req.ID, string(c.id), i.now().Unix()); err != nil {
			return err
		}
		for _, m := range append([]custody.KeyID{c.id}, req.Members...) {
			if err := i.enter(ctx, tx, req.ID, m); err != nil {
				return err
			}
		}
		t, err = readThread(ctx, tx, req.ID, c.id)
		return err
	})
	return t, err
}

// enter puts a key into a thread.
func (i *Instance) enter(ctx context.Context, tx *sql.Tx, id string, member custody.KeyID) error {
	if _, err := readMember(ctx, tx, member, i.now()); err != nil {
		return err
	}
	// Who has left counts as well: what settles an account still reaches them.
	var here, in int
	err := tx.QueryRowContext(ctx, "SELECT (SELECT count(*) FROM thread_members WHERE thread = ?1 AND member <> ?2), (SELECT count(*) FROM thread_members WHERE member = ?2 AND thread <> ?1)",
		id, string(member)).Scan(&here, &in)
	if err != nil {
		return err
	}
	if here >= maxThreadMembers || in >= maxInThreads {
		return errFull
	}
	_, err = tx.ExecContext(ctx, "INSERT INTO thread_members (thread, member, here) VALUES (?, ?, 1) ON CONFLICT DO UPDATE SET here = 1", id, string(member))
	return err
}

func (i *Instance) putThreadMember(ctx context.Context, c *caller, r *http.Request, _ *none) (t *thread, err error) {
	if c.bot {
		return nil, errBotThread
	}
	id := r.PathValue("id")
	err = i.store.change(ctx, func(tx *sql.Tx) error {
		if _, err := readThread(ctx, tx, id, c.id); err != nil {
			return err
		}
		if err := i.enter(ctx, tx, id, custody.KeyID(r.PathValue("member"))); err != nil {
			return err
		}
		t, err = readThread(ctx, tx, id, c.id)
		return err
	})
	return t, err
}

// deleteThreadMember takes a key out of a thread, its own or another's.
func (i *Instance) deleteThreadMember(ctx context.Context, c *caller, r *http.Request, _ *none) (*none, error) {
	id, member := r.PathValue("id"), r.PathValue("member")
	if c.bot && member != string(c.id) {
		return nil, errBotThread
	}
	return new(none), i.store.change(ctx, func(tx *sql.Tx) error {
		if _, err := readThread(ctx, tx, id, c.id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE thread_members SET here = 0 WHERE thread = ? AND member = ?", id, member)
		return err
	})
}
