package instance

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"time"

	"github.com/elevenmessenger/connect/internal/database"
)

//go:embed migrations/*.sql
var migrations embed.FS

// ErrStore is a database that is not taken as it is, for [errors.Is]. The message says why
// and what to do.
var ErrStore = errors.New("instance: the database is not taken")

// A store is the database. Everything is written through one connection, so that no writer
// waits for another inside SQLite; readers have their own.
type store struct {
	write, read *sql.DB
	lock        *storeLock
}

const (
	busyTimeout = 5 * time.Second
	readers     = 4
)

// openStore opens the database of a space, and makes it where there is none.
func openStore(ctx context.Context, path, space string, now time.Time) (_ *store, err error) {
	all, err := database.Migrations(migrations, "migrations")
	if err != nil {
		return nil, fmt.Errorf("instance: %w", err)
	}
	s := new(store)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.lock, err = lockStore(ctx, path); err != nil {
		return nil, err
	}
	if s.write, err = database.Open(path, database.Immediate, busyTimeout, "synchronous(FULL)", "foreign_keys(1)", "secure_delete(1)"); err != nil {
		return nil, fmt.Errorf("instance: the database cannot be opened: %w", err)
	}
	s.write.SetMaxOpenConns(1)
	if err := notTaken(database.Migrate(ctx, s.write, all, now)); err != nil {
		return nil, err
	}
	if err := s.claim(ctx, space); err != nil {
		return nil, err
	}
	if s.read, err = database.Open(path, database.Deferred, busyTimeout, "query_only(1)"); err != nil {
		return nil, err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s, nil
}

// A storeLock keeps a second process out: what is told to its streams would be missing from
// ours. SQLite's own lock is the same on every system and ends with the process.
type storeLock struct {
	db   *sql.DB
	conn *sql.Conn
}

func lockStore(ctx context.Context, path string) (_ *storeLock, err error) {
	path += ".lock"
	l := new(storeLock)
	if l.db, err = database.Open(path, database.Deferred, busyTimeout, "locking_mode(EXCLUSIVE)"); err != nil {
		return nil, fmt.Errorf("instance: the database cannot be opened: %w", err)
	}
	if l.conn, err = l.db.Conn(ctx); err == nil {
		_, err = l.conn.ExecContext(ctx, "PRAGMA busy_timeout = 0")
	}
	if err == nil {
		_, err = l.conn.ExecContext(ctx, "BEGIN EXCLUSIVE") // held until close
	}
	if err != nil {
		l.close()
		return nil, fmt.Errorf("%w: another program has it open; stop that one, or use another database", ErrStore)
	}
	return l, nil
}

func (l *storeLock) close() error {
	if l.conn != nil {
		l.conn.Close()
	}
	return l.db.Close()
}

func (s *store) close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	if s.lock != nil {
		errs = append(errs, s.lock.close())
	}
	return errors.Join(errs...)
}

// claim holds the database against the space that it was made for: every envelope in it is
// bound to that one.
func (s *store) claim(ctx context.Context, space string) error {
	if _, err := s.write.ExecContext(ctx, "INSERT INTO meta (name, value) VALUES ('space', ?) ON CONFLICT DO NOTHING", space); err != nil {
		return err
	}
	var have string
	if err := s.write.QueryRowContext(ctx, "SELECT value FROM meta WHERE name = 'space'").Scan(&have); err != nil {
		return err
	}
	if have != space {
		return fmt.Errorf("%w: it belongs to the space %q, not to %q; name that space, or another database", ErrStore, have, space)
	}
	return nil
}

// change runs f in one transaction.
func (s *store) change(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	if err := f(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// notTaken says of a database that is refused what to do.
func notTaken(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, database.ErrDamaged):
		return fmt.Errorf("%w: it cannot be read as SQLite: name another file, or a copy of this one from before it was damaged", ErrStore)
	case errors.Is(err, database.ErrForeign):
		return fmt.Errorf("%w: another program made it; name another file", ErrStore)
	case errors.Is(err, database.ErrNewer):
		return fmt.Errorf("%w: %w; run the newer program, or take a copy from before", ErrStore, err)
	}
	return fmt.Errorf("instance: %w", err)
}

// postedKept is how long a retry of a post is known as one.
const postedKept = 24 * time.Hour

// sweep deletes what has come to its end, from the file too: freed pages are overwritten
// (secure_delete), and the log that still holds them is emptied.
func (s *store) sweep(ctx context.Context, now time.Time) error {
	err := s.change(ctx, func(tx *sql.Tx) error {
		for _, q := range []struct {
			sql string
			arg int64
		}{
			{"DELETE FROM messages WHERE until IS NOT NULL AND until <= ?", now.Unix()},
			{"DELETE FROM sessions WHERE until <= ?", now.Unix()},
			{"DELETE FROM posted WHERE at <= ?", now.Add(-postedKept).Unix()},
			{"UPDATE members SET day = NULL, day_until = 0 WHERE day IS NOT NULL AND day_until <= ?", now.Unix()},
		} {
			if _, err := tx.ExecContext(ctx, q.sql, q.arg); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Busy readers keep it from being emptied now; the next sweep tries again.
	_, err = s.write.ExecContext(ctx, "PRAGMA wal_checkpoint(TRUNCATE)")
	return err
}
