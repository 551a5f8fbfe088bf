package sidecar

import (
	"context"
	"database/sql"
	"errors"

	"github.com/elevenmessenger/connect/custody"
)

// The states of a refresh token.
const (
	redeeming = "redeeming" // asked for; no answer is on disk
	live      = "live"      // may be redeemed
	old       = "old"       // another came in its place
)

// A tokenRow is what the store knows of a refresh token and one member.
type tokenRow struct {
	line, state string
	tries       int
	at          int64
}

// token returns what is known of a token for a member, nil where nothing is, and whether it
// is old for anybody else.
func (s *store) token(ctx context.Context, id string, member custody.KeyID) (row *tokenRow, oldElsewhere bool, err error) {
	rows, err := s.db.QueryContext(ctx, `SELECT member, line, state, tries, at FROM tokens WHERE id = ?`, id)
	if err != nil {
		return nil, false, err
	}
	defer rows.Close()
	for rows.Next() {
		var who custody.KeyID
		var r tokenRow
		if err := rows.Scan(&who, &r.line, &r.state, &r.tries, &r.at); err != nil {
			return nil, false, err
		}
		if who == member {
			row = &r
		} else if r.state == old {
			oldElsewhere = true
		}
	}
	return row, oldElsewhere, rows.Err()
}

// redeem writes, before the broker is asked, that a token is about to be redeemed.
func (s *store) redeem(ctx context.Context, id string, member custody.KeyID, line string, now, until int64) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO tokens (id, member, line, state, tries, at, until) VALUES (?, ?, ?, 'redeeming', 1, ?, ?)
		ON CONFLICT DO UPDATE SET state = 'redeeming', tries = tries + 1, at = CASE WHEN tries > 0 THEN at ELSE excluded.at END, until = max(until, excluded.until)`,
		id, member, line, now, until)
	return err
}

// unredeemed writes that the token was not redeemed after all. Of one that began no line yet
// nothing is kept: whoever makes tokens up leaves nothing behind.
func (s *store) unredeemed(ctx context.Context, id string, member custody.KeyID) error {
	res, err := s.db.ExecContext(ctx, `DELETE FROM tokens WHERE id = ?1 AND member = ?2 AND state = 'redeeming' AND tries <= 1 AND line = ?1
		AND NOT EXISTS (SELECT 1 FROM lines WHERE line = ?1 AND member = ?2)`, id, member)
	if err != nil {
		return err
	}
	if n, err := res.RowsAffected(); n > 0 || err != nil {
		return err
	}
	_, err = s.db.ExecContext(ctx, `UPDATE tokens SET state = 'live', tries = max(tries - 1, 0) WHERE id = ? AND member = ? AND state = 'redeeming'`, id, member)
	return err
}

// A rotation is what the store keeps of a fresh pair: all of it or nothing.
type rotation struct {
	id, next     string // next is "" where the same token stays
	member       custody.KeyID
	line         string
	credential   string
	pair         int64
	handback     []byte
	bot          custody.KeyID
	handoff      []byte
	handoffUntil int64
	now, until   int64
}

// errCycle means that a provider answered with a token that is old already.
var errCycle = errors.New("the provider answered with a refresh token that was replaced before")

// redeemed writes a fresh pair. It is on the disk when redeemed returns.
func (s *store) redeemed(ctx context.Context, r *rotation) error {
	return s.tx(ctx, func(tx *sql.Tx) error {
		state := live
		if r.next != "" {
			state = old
			var n int
			if err := tx.QueryRow(`SELECT count(*) FROM tokens WHERE id = ? AND state = 'old'`, r.next).Scan(&n); err != nil {
				return err
			}
			if n > 0 {
				return errCycle
			}
			if _, err := tx.Exec(`INSERT INTO tokens (id, member, line, state, tries, at, until) VALUES (?, ?, ?, 'live', 0, ?, ?) ON CONFLICT DO UPDATE SET line = excluded.line, until = excluded.until`,
				r.next, r.member, r.line, r.now, r.until); err != nil {
				return err
			}
		}
		if _, err := tx.Exec(`UPDATE tokens SET state = ?, tries = 0, at = ?, until = ? WHERE id = ? AND member = ?`, state, r.now, r.until, r.id, r.member); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT INTO lines (line, member, pair, handback, bot, handoff, handoff_until, until) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
			ON CONFLICT DO UPDATE SET pair = excluded.pair, handback = excluded.handback, bot = excluded.bot, handoff = excluded.handoff, handoff_until = excluded.handoff_until, until = excluded.until`,
			r.line, r.member, r.pair, r.handback, r.bot, r.handoff, r.handoffUntil, r.until); err != nil {
			return err
		}
		_, err := tx.Exec(`INSERT INTO outbox (member, credential, pair, envelope, at) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET envelope = excluded.envelope, at = excluded.at`,
			r.member, r.credential, r.pair, r.handback, r.now)
		return err
	})
}

// A tail is the newest pair of a line.
type tail struct {
	pair              int64
	handback, handoff *custody.Envelope // handoff is nil when its time is over
	bot               custody.KeyID
	until             int64 // of the hand-off
}

func (s *store) tail(ctx context.Context, line string, member custody.KeyID, now int64) (*tail, error) {
	var t tail
	var handback, handoff []byte
	switch err := s.db.QueryRowContext(ctx, `SELECT pair, handback, bot, handoff, handoff_until FROM lines WHERE line = ? AND member = ?`, line, member).
		Scan(&t.pair, &handback, &t.bot, &handoff, &t.until); {
	case errors.Is(err, sql.ErrNoRows):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var err error
	if t.handback, err = custody.ParseEnvelope(handback); err != nil {
		return nil, err
	}
	if len(handoff) > 0 && now < t.until {
		if t.handoff, err = custody.ParseEnvelope(handoff); err != nil {
			return nil, err
		}
	}
	return &t, nil
}
