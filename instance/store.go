package instance

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	_ "modernc.org/sqlite" // registers the driver
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
	all, err := readMigrations(migrations)
	if err != nil {
		return nil, err
	}
	// SQLite's other files get the mode of this one.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("instance: the database cannot be opened: %w", withoutPath(err))
	}
	f.Close()
	s := new(store)
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.lock, err = lockStore(ctx, path); err != nil {
		return nil, err
	}
	if s.write, err = openSQLite(path, "immediate", "synchronous(FULL)", "foreign_keys(1)", "secure_delete(1)"); err != nil {
		return nil, err
	}
	s.write.SetMaxOpenConns(1)
	if err := migrate(ctx, s.write, all, now); err != nil {
		return nil, err
	}
	if err := s.claim(ctx, space); err != nil {
		return nil, err
	}
	if s.read, err = openSQLite(path, "deferred", "query_only(1)"); err != nil {
		return nil, err
	}
	s.read.SetMaxOpenConns(readers)
	s.read.SetMaxIdleConns(readers)
	return s, nil
}

// openSQLite opens path with pragmas. A writer's transaction is begun immediate: one that
// reads first and then writes would fail where it should have waited.
func openSQLite(path, begin string, pragmas ...string) (*sql.DB, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	q := url.Values{"_txlock": {begin}, "_pragma": {"busy_timeout(" + strconv.FormatInt(busyTimeout.Milliseconds(), 10) + ")"}}
	q["_pragma"] = append(q["_pragma"], pragmas...)
	name := filepath.ToSlash(abs)
	if !strings.HasPrefix(name, "/") {
		name = "/" + name // a drive's letter
	}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: name, RawQuery: q.Encode()}).String())
}

// A storeLock keeps a second process out: what is told to its streams would be missing from
// ours. SQLite's own lock is the same on every system and ends with the process.
type storeLock struct {
	db   *sql.DB
	conn *sql.Conn
}

func lockStore(ctx context.Context, path string) (_ *storeLock, err error) {
	path += ".lock"
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("instance: the database's lock cannot be opened: %w", withoutPath(err))
	}
	f.Close()
	l := new(storeLock)
	if l.db, err = openSQLite(path, "deferred", "locking_mode(EXCLUSIVE)"); err != nil {
		return nil, err
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

// A migration brings a database from the version before to its own.
type migration struct {
	version int
	name    string
	sql     string
}

// readMigrations reads the numbered files, which must leave no number out.
func readMigrations(fsys fs.FS) ([]migration, error) {
	names, err := fs.Glob(fsys, "migrations/*.sql") // sorted
	if err != nil {
		return nil, err
	}
	var all []migration
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		base := filepath.Base(name)
		number, _, _ := strings.Cut(base, "_")
		if v, err := strconv.Atoi(number); err != nil || v != len(all)+1 {
			return nil, fmt.Errorf("instance: %s is not migration %d", name, len(all)+1)
		}
		all = append(all, migration{len(all) + 1, strings.TrimSuffix(base, ".sql"), string(text)})
	}
	if len(all) == 0 {
		return nil, errors.New("instance: there are no migrations")
	}
	return all, nil
}

// migrate brings a database to the last version, each step in one transaction with its line
// in the table of those that were applied.
func migrate(ctx context.Context, db *sql.DB, all []migration, now time.Time) error {
	var tables, ours int
	err := db.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(name = 'migrations'), 0) FROM sqlite_schema WHERE type = 'table'").Scan(&tables, &ours)
	if err != nil {
		return fmt.Errorf("%w: it cannot be read as SQLite: name another file, or a copy of this one from before it was damaged", ErrStore)
	}
	if tables > 0 && ours == 0 {
		return fmt.Errorf("%w: another program made it; name another file", ErrStore)
	}
	var have int
	if ours > 0 {
		if err := db.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM migrations").Scan(&have); err != nil {
			return err
		}
	}
	if have > len(all) {
		return fmt.Errorf("%w: it is of version %d, and this program knows versions up to %d; run the newer program that wrote it, or take a copy from before", ErrStore, have, len(all))
	}
	// Not before: what is refused is left as it is. The mode stays with the file.
	if _, err := db.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT"); err != nil {
		return err
	}
	for _, m := range all[have:] {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, m.sql)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO migrations (version, name, applied_at) VALUES (?, ?, ?)", m.version, m.name, now.Unix())
		}
		if err != nil {
			tx.Rollback()
			return fmt.Errorf("instance: migration %s: %w", m.name, err)
		}
		if err := tx.Commit(); err != nil {
			return fmt.Errorf("instance: migration %s: %w", m.name, err)
		}
	}
	return nil
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

// withoutPath takes the path out of a file's error: it is the caller's to say which.
func withoutPath(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
