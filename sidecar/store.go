package sidecar

import (
	"context"
	"crypto/rand"
	"database/sql"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/internal/database"
)

//go:embed migrations/*.sql
var migrations embed.FS

// A store keeps what must outlive the process, in one SQLite database of a folder that
// several processes of one machine may share. Nothing in it opens anything.
type store struct {
	db     *sql.DB // each commit reaches the disk before it is over
	holder string  // of this process's leases
	group  []byte  // the key of the ids of pairs

	beginStmt, doneStmt, seenStmt, endedStmt *sql.Stmt
}

// openStore opens the store of a folder, and makes it where there is none. secret, where it
// is not empty, is the group's key; else one is made and kept.
func openStore(ctx context.Context, dir string, secret []byte) (*store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the sidecar's folder: %w", err)
	}
	all, err := database.Migrations(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("the sidecar's store: %w", err)
	}
	db, err := database.Open(filepath.Join(dir, "sidecar.db"), database.Immediate, 10*time.Second, "synchronous(FULL)", "secure_delete(1)", "cache_size(-1024)", "foreign_keys(1)")
	if err != nil {
		return nil, fmt.Errorf("the sidecar's store: %w", err)
	}
	db.SetMaxOpenConns(2) // each has a cache of its own
	s := &store{db: db, holder: rand.Text()}
	if err := database.Migrate(ctx, db, all, time.Now()); err != nil {
		db.Close()
		return nil, fmt.Errorf("the sidecar's store: %w", err)
	}
	if s.group, err = s.groupKey(ctx, secret); err != nil {
		db.Close()
		return nil, fmt.Errorf("the sidecar's store: %w", err)
	}
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&s.beginStmt, `INSERT INTO journal (member, op, state, pair, holder, until) VALUES (?, ?, 'begun', ?, ?, ?) ON CONFLICT DO NOTHING`},
		{&s.doneStmt, `UPDATE journal SET state = ?, answer = ? WHERE member = ? AND op = ?`},
		{&s.seenStmt, `SELECT state, pair, answer FROM journal WHERE member = ? AND op = ?`},
		{&s.endedStmt, `SELECT count(*) FROM ends WHERE member = ?1 AND (
			kind = 'grant' AND name = ?2 AND (pause = 0 OR ?5 < pause) OR
			kind = 'credential' AND name = ?3 AND ?4 <= at OR
			kind = 'paused' AND name = ?3 AND ?4 <= at AND ?5 < pause)`},
	} {
		if *p.to, err = db.PrepareContext(ctx, p.sql); err != nil {
			db.Close()
			return nil, fmt.Errorf("the sidecar's store: %w", err)
		}
	}
	return s, nil
}

func (s *store) close() error { return s.db.Close() }

// tx runs f in a transaction that has reached the disk when tx returns nil.
func (s *store) tx(ctx context.Context, f func(*sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

func (s *store) groupKey(ctx context.Context, secret []byte) ([]byte, error) {
	if len(secret) > 0 {
		return secret, nil
	}
	key := make([]byte, 32)
	rand.Read(key)
	if _, err := s.db.ExecContext(ctx, `INSERT INTO meta (name, value) VALUES ('group', ?) ON CONFLICT DO NOTHING`, key); err != nil {
		return nil, err
	}
	err := s.db.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = 'group'`).Scan(&key)
	return key, err
}

// The states of a write in the journal.
const (
	begun   = "begun"   // it may have run
	reopens = "reopens" // nothing was done: the same ids may come once more, with another pair
	done    = "done"    // its answer stands
)

type entry struct {
	state  string
	pair   int64
	answer []*custody.Envelope
}

// seen returns what the journal says of an op; nil where nothing does.
func (s *store) seen(ctx context.Context, member custody.KeyID, op string) (*entry, error) {
	var e entry
	var answer []byte
	switch err := s.seenStmt.QueryRowContext(ctx, member, op).Scan(&e.state, &e.pair, &answer); {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if answer != nil {
		if err := json.Unmarshal(answer, &e.answer); err != nil {
			return nil, err
		}
	}
	return &e, nil
}

// begin writes that a write is about to be sent. It returns false where somebody was there
// before. A write that reopens begins anew, once.
func (s *store) begin(ctx context.Context, member custody.KeyID, op string, pair, until int64, reopened bool) (bool, error) {
	var res sql.Result
	var err error
	if reopened {
		// Another process may have the same op in hand.
		res, err = s.db.ExecContext(ctx, `UPDATE journal SET state = 'begun', pair = ?, holder = ?, until = max(until, ?) WHERE member = ? AND op = ? AND state = 'reopens'`, pair, s.holder, until, member, op)
	} else {
		res, err = s.beginStmt.ExecContext(ctx, member, op, pair, s.holder, until)
	}
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

// finish writes what was answered.
func (s *store) finish(ctx context.Context, member custody.KeyID, op, state string, answer []*custody.Envelope) error {
	data, err := json.Marshal(answer)
	if err != nil {
		return err
	}
	_, err = s.doneStmt.ExecContext(ctx, state, data, member, op)
	return err
}

// end writes what a member stopped.
func (s *store) end(ctx context.Context, member custody.KeyID, x *custody.End, until int64) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		put := func(kind, name string) error {
			_, err := tx.Exec(`INSERT INTO ends (member, kind, name, at, pause, until) VALUES (?, ?, ?, ?, ?, ?)
				ON CONFLICT DO UPDATE SET at = max(at, excluded.at), until = max(until, excluded.until),
				pause = CASE WHEN pause = 0 OR excluded.pause = 0 THEN 0 ELSE max(pause, excluded.pause) END`, member, kind, name, x.At, x.Pause, until)
			return err
		}
		for _, g := range x.Grants {
			if err := put("grant", g); err != nil {
				return err
			}
		}
		if x.Credential != "" {
			// Of a connection a pause never outweighs an end, and an end reaches only what was
			// minted before it: the two stand beside each other.
			kind := "credential"
			if x.Pause != 0 {
				kind = "paused"
			}
			return put(kind, x.Credential)
		}
		return nil
	})
}

// ended says whether a member stopped a grant.
func (s *store) ended(ctx context.Context, member custody.KeyID, g *custody.Grant, now int64) (bool, error) {
	var n int
	err := s.endedStmt.QueryRowContext(ctx, member, g.ID, g.Credential, g.IAT, now).Scan(&n)
	return n > 0, err
}

// ack drops what a member holds.
func (s *store) ack(ctx context.Context, member custody.KeyID, a *custody.Ack) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM outbox WHERE member = ? AND credential = ? AND pair <= ?`, member, a.Credential, a.Pair)
	return err
}

// waiting returns the hand-backs that no member has acknowledged, the oldest first.
func (s *store) waiting(ctx context.Context) ([]*custody.Envelope, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT envelope FROM outbox ORDER BY at, pair`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*custody.Envelope
	for rows.Next() {
		var data []byte
		if err := rows.Scan(&data); err != nil {
			return nil, err
		}
		e, err := custody.ParseEnvelope(data)
		if err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	return all, rows.Err()
}

// sweep forgets what is over: no hand-off is left in the file, nor in its log.
func (s *store) sweep(ctx context.Context, now int64) error {
	err := s.tx(ctx, func(tx *sql.Tx) error {
		for _, t := range []string{"journal", "ends", "tokens", "lines"} {
			if _, err := tx.Exec(`DELETE FROM `+t+` WHERE until < ?`, now); err != nil {
				return err
			}
		}
		_, err := tx.Exec(`UPDATE lines SET handoff = x'' WHERE handoff_until <= ? AND handoff <> x''`, now)
		return err
	})
	if err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, `PRAGMA wal_checkpoint(TRUNCATE)`)
	return err
}

// lease takes the right to redeem a token. It returns false while another process has it.
func (s *store) lease(ctx context.Context, id string, ttl time.Duration, now time.Time) (bool, error) {
	res, err := s.db.ExecContext(ctx, `INSERT INTO leases (id, holder, until) VALUES (?1, ?2, ?3)
		ON CONFLICT DO UPDATE SET holder = ?2, until = ?3 WHERE until <= ?4`, id, s.holder, now.Add(ttl).UnixMilli(), now.UnixMilli())
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}

func (s *store) release(ctx context.Context, id string) error {
	_, err := s.db.ExecContext(ctx, `DELETE FROM leases WHERE id = ? AND holder = ?`, id, s.holder)
	return err
}
