package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/base64"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/internal/database"
)

// A sidecarDB is state.db: which key each bot had last, how far its log has been handled, and
// the members' keys as they were first seen. Nothing in it opens anything.
type sidecarDB struct{ db *sql.DB }

// The members' states.
const (
	memberTaken = "taken"
	memberHeld  = "held" // nothing of it is run until a person has compared fingerprints
)

var sidecarSchema = []database.Migration{{Version: 1, Name: "0001_start", SQL: `
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE bots (name TEXT PRIMARY KEY, id TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE cursors (bot TEXT, instance TEXT, seq INTEGER NOT NULL, PRIMARY KEY (bot, instance)) STRICT, WITHOUT ROWID;
CREATE TABLE members (id TEXT PRIMARY KEY, key TEXT NOT NULL, name TEXT NOT NULL, folded TEXT NOT NULL, state TEXT NOT NULL, since INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE INDEX members_by_name ON members (folded);
`}}

func openSidecarDB(ctx context.Context, dir string) (*sidecarDB, error) {
	db, err := database.Open(filepath.Join(dir, sidecarState), database.Immediate, 10*time.Second, "synchronous(FULL)", "cache_size(-512)")
	if err != nil {
		return nil, fmt.Errorf("the sidecar's state: %w", err)
	}
	db.SetMaxOpenConns(1)
	if err := database.Migrate(ctx, db, sidecarSchema, time.Now()); err != nil {
		db.Close()
		return nil, fmt.Errorf("the sidecar's state: %w", err)
	}
	return &sidecarDB{db}, nil
}

func (s *sidecarDB) close() error { return s.db.Close() }

// group returns the name under which members lend to this folder's sidecars. Replicas on
// several machines have it from their secret.
func (s *sidecarDB) group(ctx context.Context, secret []byte) (string, error) {
	if len(secret) > 0 {
		mac := hmac.New(sha256.New, secret)
		mac.Write([]byte("connect/v1 group name"))
		return base64.RawURLEncoding.EncodeToString(mac.Sum(nil)[:16]), nil
	}
	if _, err := s.db.ExecContext(ctx, `INSERT INTO meta (name, value) VALUES ('group', ?) ON CONFLICT DO NOTHING`, rand.Text()); err != nil {
		return "", err
	}
	var name string
	return name, s.db.QueryRowContext(ctx, `SELECT value FROM meta WHERE name = 'group'`).Scan(&name)
}

// bot returns the key id that a bot had last, "" where it is new.
func (s *sidecarDB) bot(ctx context.Context, name string) (custody.KeyID, error) {
	var id custody.KeyID
	err := s.db.QueryRowContext(ctx, `SELECT id FROM bots WHERE name = ?`, name).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return id, err
}

func (s *sidecarDB) setBot(ctx context.Context, name string, id custody.KeyID) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO bots (name, id) VALUES (?, ?) ON CONFLICT DO UPDATE SET id = excluded.id`, name, id)
	return err
}

// cursor returns how far a bot's log has been handled.
func (s *sidecarDB) cursor(ctx context.Context, bot custody.KeyID, instance string) (int64, error) {
	var seq int64
	err := s.db.QueryRowContext(ctx, `SELECT seq FROM cursors WHERE bot = ? AND instance = ?`, bot, instance).Scan(&seq)
	if errors.Is(err, sql.ErrNoRows) {
		return 0, nil
	}
	return seq, err
}

func (s *sidecarDB) setCursor(ctx context.Context, bot custody.KeyID, instance string, seq int64) error {
	_, err := s.db.ExecContext(ctx, `INSERT INTO cursors (bot, instance, seq) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET seq = excluded.seq`, bot, instance, seq)
	return err
}

// A pinned member is one as it was first seen.
type pinned struct {
	ID    custody.KeyID     `json:"id"`
	Key   custody.PublicKey `json:"key"`
	Name  string            `json:"name"`
	State string            `json:"state"`
	Since int64             `json:"since"`
}

func scanPinned(row interface{ Scan(...any) error }) (*pinned, error) {
	var p pinned
	var key string
	if err := row.Scan(&p.ID, &key, &p.Name, &p.State, &p.Since); err != nil {
		return nil, err
	}
	if err := p.Key.UnmarshalText([]byte(key)); err != nil {
		return nil, err
	}
	if p.Key.ID() != p.ID {
		return nil, errors.New("the sidecar's state: a member's key is another than its id says")
	}
	return &p, nil
}

// member returns a member that was seen before, else nil.
func (s *sidecarDB) member(ctx context.Context, id custody.KeyID) (*pinned, error) {
	p, err := scanPinned(s.db.QueryRowContext(ctx, `SELECT id, key, name, state, since FROM members WHERE id = ?`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return nil, nil
	}
	return p, err
}

// pin keeps a member's key at first use. Where another key has come under the same name
// before, this one is held: it may be the same person's new key, or somebody else's.
func (s *sidecarDB) pin(ctx context.Context, key custody.PublicKey, name string, now time.Time) (*pinned, error) {
	text, err := key.MarshalText()
	if err != nil {
		return nil, err
	}
	folded := strings.ToLower(strings.Join(strings.Fields(name), " "))
	// One statement: another process of this folder may see the same name just now.
	_, err = s.db.ExecContext(ctx, `INSERT INTO members (id, key, name, folded, state, since)
		SELECT ?1, ?2, ?3, ?4, CASE WHEN ?4 <> '' AND EXISTS (SELECT 1 FROM members WHERE folded = ?4 AND id <> ?1) THEN 'held' ELSE 'taken' END, ?5
		ON CONFLICT DO NOTHING`, key.ID(), string(text), name, folded, now.Unix())
	if err != nil {
		return nil, err
	}
	return s.member(ctx, key.ID())
}

// members returns all that were seen, or those of one state.
func (s *sidecarDB) members(ctx context.Context, state string) ([]*pinned, error) {
	rows, err := s.db.QueryContext(ctx, `SELECT id, key, name, state, since FROM members WHERE ?1 = '' OR state = ?1 ORDER BY folded, since, id`, state)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var all []*pinned
	for rows.Next() {
		p, err := scanPinned(rows)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, rows.Err()
}

// setMember changes a member's state. It returns false where there is no such member.
func (s *sidecarDB) setMember(ctx context.Context, id custody.KeyID, state string) (bool, error) {
	res, err := s.db.ExecContext(ctx, `UPDATE members SET state = ? WHERE id = ?`, state, id)
	if err != nil {
		return false, err
	}
	n, err := res.RowsAffected()
	return n == 1, err
}
