// Package database opens a program's SQLite files and brings them to its version.
package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// Why a file is not taken, for errors.Is. It is left as it is.
var (
	ErrNewer   = errors.New("a newer version of this program wrote it")
	ErrForeign = errors.New("another program made it")
	ErrDamaged = errors.New("it cannot be read as SQLite")
)

// How a transaction begins. A writer's is immediate: one that reads first and then writes
// would fail where it should have waited.
const (
	Immediate = "immediate"
	Deferred  = "deferred"
)

// Open opens a file with pragmas, and makes it where there is none, for its owner alone:
// SQLite's other files get its mode. wait is how long a lock of another is waited for.
func Open(file, begin string, wait time.Duration, pragmas ...string) (*sql.DB, error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		var pe *fs.PathError // the caller names the file, or does not
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, err
	}
	f.Close()
	abs, err := filepath.Abs(file)
	if err != nil {
		return nil, err
	}
	name := filepath.ToSlash(abs)
	if !strings.HasPrefix(name, "/") {
		name = "/" + name // a drive's letter
	}
	q := url.Values{"_txlock": {begin}, "_pragma": append([]string{"busy_timeout(" + strconv.FormatInt(wait.Milliseconds(), 10) + ")"}, pragmas...)}
	// As a URL: a name may hold "?" or "#".
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: name, RawQuery: q.Encode()}).String())
}

// A Migration brings a database from the version before to its own.
type Migration struct {
	Version int
	Name    string
	SQL     string
}

// Migrations reads the numbered files of a folder, such as migrations/0001_start.sql, which
// must leave no number out.
func Migrations(fsys fs.FS, dir string) ([]Migration, error) {
	names, err := fs.Glob(fsys, path.Join(dir, "*.sql")) // sorted
	if err != nil {
		return nil, err
	}
	var all []Migration
	for _, name := range names {
		text, err := fs.ReadFile(fsys, name)
		if err != nil {
			return nil, err
		}
		base := strings.TrimSuffix(path.Base(name), ".sql")
		number, _, _ := strings.Cut(base, "_")
		if v, err := strconv.Atoi(number); err != nil || v != len(all)+1 {
			return nil, fmt.Errorf("%s is not migration %d", name, len(all)+1)
		}
		all = append(all, Migration{len(all) + 1, base, string(text)})
	}
	if len(all) == 0 {
		return nil, errors.New("there are no migrations")
	}
	return all, nil
}

// How long, and how often, a database is tried that several processes make at once.
const (
	busyFor  = 10 * time.Second
	busyRest = 5 * time.Millisecond
)

// Migrate brings a database to the last version, all of it or nothing, and notes each step in
// the table migrations. Several processes may do so at once. db must begin its transactions
// Immediate.
func Migrate(ctx context.Context, db *sql.DB, all []Migration, now time.Time) error {
	// SQLite waits for no lock while a file becomes one with a write-ahead log, whatever its
	// busy_timeout says.
	for end := time.Now().Add(busyFor); ; {
		err := migrate(ctx, db, all, now)
		if !isCode(err, sqlite3.SQLITE_BUSY) || time.Now().After(end) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(busyRest):
		}
	}
}

func isCode(err error, codes ...int) bool {
	var se *sqlite.Error
	return errors.As(err, &se) && slices.Contains(codes, se.Code()&0xff)
}

func migrate(ctx context.Context, db *sql.DB, all []Migration, now time.Time) error {
	if _, err := version(ctx, db, len(all)); err != nil {
		return err
	}
	// Not before: what is refused is left as it is. The mode stays with the file, and cannot
	// change in a transaction.
	if _, err := db.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	have, err := version(ctx, tx, len(all)) // another process may have been faster
	if err != nil || have == len(all) {
		return err
	}
	if _, err := tx.ExecContext(ctx, "CREATE TABLE IF NOT EXISTS migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT"); err != nil {
		return err
	}
	for _, m := range all[have:] {
		_, err := tx.ExecContext(ctx, m.SQL)
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO migrations (version, name, applied_at) VALUES (?, ?, ?)", m.Version, m.Name, now.Unix())
		}
		if err != nil {
			return fmt.Errorf("migration %s: %w", m.Name, err)
		}
	}
	return tx.Commit()
}

// version returns the version of a database, 0 where it is empty.
func version(ctx context.Context, q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}, known int) (have int, err error) {
	var tables, ours int
	err = q.QueryRowContext(ctx, "SELECT count(*), coalesce(sum(name = 'migrations'), 0) FROM sqlite_schema WHERE type = 'table'").Scan(&tables, &ours)
	switch {
	case isCode(err, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
		return 0, fmt.Errorf("%w: %w", ErrDamaged, err)
	case err != nil:
		return 0, err
	case tables == 0:
		return 0, nil
	case ours == 0:
		return 0, ErrForeign
	}
	if err := q.QueryRowContext(ctx, "SELECT coalesce(max(version), 0) FROM migrations").Scan(&have); err != nil {
		return 0, err
	}
	if have > known {
		return have, fmt.Errorf("%w: it is of version %d, and this program knows versions up to %d", ErrNewer, have, known)
	}
	return have, nil
}
