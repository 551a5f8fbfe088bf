package instance_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance"
	"github.com/elevenmessenger/connect/instance/client"
)

// TestMigrate: a database of version 1, with what it held, is brought to the last version.
func TestMigrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "old.db")
	db, err := instance.OldStore(path, 1)
	if err != nil {
		t.Fatal(err)
	}
	anna, boris := identity(t), identity(t)
	e := say(t, anna, boris.Public(), "t1", "from before")
	text := []byte(marshal(t, e))
	copyOf, err := anna.SealIdentity(anna.Public(), space)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range []struct {
		sql  string
		args []any
	}{
		{"INSERT INTO meta VALUES ('space', ?)", []any{space}},
		{"INSERT INTO members (id, key, kind, name, joined_at) VALUES (?, ?, 'member', 'Anna', 1)", []any{string(anna.ID()), anna.Public().Bytes()}},
		{"INSERT INTO members (id, key, kind, name, joined_at, seq) VALUES (?, ?, 'member', 'Boris', 1, 1)", []any{string(boris.ID()), boris.Public().Bytes()}},
		{"INSERT INTO threads VALUES ('t1', ?, 1)", []any{string(anna.ID())}},
		{"INSERT INTO thread_members VALUES ('t1', ?, 1), ('t1', ?, 1)", []any{string(anna.ID()), string(boris.ID())}},
		{"INSERT INTO messages VALUES (?, 1, ?, 't1', 1, NULL, ?)", []any{string(boris.ID()), string(anna.ID()), text}},
		{"INSERT INTO blobs VALUES (?, 'identity', 4, 1, ?)", []any{string(anna.ID()), []byte(marshal(t, copyOf))}},
	} {
		if _, err := db.Exec(q.sql, q.args...); err != nil {
			t.Fatalf("%s: %v", q.sql, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// With a quota that has room for what was there and no more, to show that it was counted.
	p := start(t, func(c *instance.Config) { c.DB, c.Quota = path, int64(len(text)) })
	a, b := p.dial(t, anna, nil), p.dial(t, boris, nil)
	page, err := b.Since(t.Context(), 0)
	if err != nil || len(page.Messages) != 1 {
		t.Fatalf("%+v %v", page, err)
	}
	var s custody.Say
	if err := boris.OpenMessage(page.Messages[0].Envelope, anna.Public(), nil, &s); err != nil || s.Text != "from before" {
		t.Errorf("%+v %v", s, err)
	}
	if blob, err := a.Blob(t.Context(), "identity"); err != nil || blob.Generation != 4 {
		t.Errorf("%+v %v", blob, err)
	}
	if _, err := a.Post(t.Context(), "", e, time.Time{}); !errors.Is(err, client.ErrQuota) {
		t.Errorf("what was there is not counted: %v", err)
	}
	if m, err := a.Member(t.Context(), boris.ID()); err != nil || m.Name != "Boris" {
		t.Errorf("%+v %v", m, err)
	}
}

func open(path, space string) error {
	in, err := instance.New(instance.Config{Space: space, DB: path})
	if err == nil {
		err = in.Close()
	}
	return err
}

// TestStoreRefused: a database is taken or refused in words, and left as it is.
func TestStoreRefused(t *testing.T) {
	dir := t.TempDir()
	change := func(path, query string) {
		t.Helper()
		db, err := sql.Open("sqlite", path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		if _, err := db.Exec(query); err != nil {
			t.Fatal(err)
		}
	}
	newer := filepath.Join(dir, "newer.db")
	if err := open(newer, space); err != nil {
		t.Fatal(err)
	}
	if err := open(newer, space); err != nil {
		t.Errorf("a second time: %v", err)
	}
	change(newer, fmt.Sprintf("INSERT INTO migrations VALUES (%d, 'later', 1)", instance.LastVersion()+1))
	foreign := filepath.Join(dir, "foreign.db")
	change(foreign, "CREATE TABLE notes (text TEXT)")
	noise := filepath.Join(dir, "noise.db")
	if err := os.WriteFile(noise, bytes.Repeat([]byte("noise "), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	home := filepath.Join(dir, "home.db")
	if err := open(home, space); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, space, want string }{
		{newer, space, fmt.Sprintf("it is of version %d, and this program knows versions up to %d", instance.LastVersion()+1, instance.LastVersion())},
		{foreign, space, "another program made it"},
		{noise, space, "it cannot be read as SQLite"},
		{home, "work", `it belongs to the space "home", not to "work"`},
	} {
		before, _ := os.ReadFile(c.path)
		err := open(c.path, c.space)
		if !errors.Is(err, instance.ErrStore) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: %v, want %q", filepath.Base(c.path), err, c.want)
		}
		if after, _ := os.ReadFile(c.path); c.path != home && !bytes.Equal(before, after) {
			t.Errorf("%s was changed", filepath.Base(c.path))
		}
	}
	if err := open(filepath.Join(dir, "none", "x.db"), space); err == nil || strings.Contains(err.Error(), dir) {
		t.Errorf("no folder: %v", err)
	}
}

// TestOneProcess: a second instance of one database would not see what the first relays.
func TestOneProcess(t *testing.T) {
	p := start(t, nil)
	if err := open(p.db, space); !errors.Is(err, instance.ErrStore) || !strings.Contains(err.Error(), "another program has it open") {
		t.Errorf("%v", err)
	}
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if err := open(p.db, space); err != nil {
		t.Errorf("after the first: %v", err)
	}
}

func TestConfigRefused(t *testing.T) {
	good := instance.Config{Space: space, DB: filepath.Join(t.TempDir(), "x.db")}
	for name, change := range map[string]func(*instance.Config){
		"Space": func(c *instance.Config) { c.Space = "a b" }, "DB": func(c *instance.Config) { c.DB = "" },
		"Origin: plain": func(c *instance.Config) { c.Origin = "http://chat.example" }, "Origin: path": func(c *instance.Config) { c.Origin = "https://chat.example/a" },
		"Broker: user": func(c *instance.Config) { c.Broker = "https://secret@connect.example" }, "Broker: scheme": func(c *instance.Config) { c.Broker = "ftp://connect.example" },
	} {
		cfg := good
		change(&cfg)
		field, _, _ := strings.Cut(name, ":")
		if _, err := instance.New(cfg); err == nil || !strings.Contains(err.Error(), field) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(good.DB); err == nil {
		t.Error("a refused configuration makes a database")
	}
}

func TestFilesAreTheOwners(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes are unix's")
	}
	p := start(t, nil)
	p.join(t, "member")
	files := storeFiles(t, p.db)
	if len(files) < 3 {
		t.Errorf("%d files", len(files))
	}
	for name := range files {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", filepath.Base(name), info.Mode(), err)
		}
	}
}

// storeFiles copies every file of a database, its log included, as a thief would.
func storeFiles(t testing.TB, path string) map[string][]byte {
	t.Helper()
	names, err := filepath.Glob(path + "*")
	if err != nil || len(names) == 0 {
		t.Fatalf("%v %v", names, err)
	}
	out := make(map[string][]byte)
	for _, name := range names {
		if out[name], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// TestDeletedIsGone: what has come to its end is not in the files any more (G9), nor in what a
// second process would read.
func TestDeletedIsGone(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, bot := p.party(t, "member"), p.party(t, "bot")
	if err := anna.NewThread(ctx, "t1", bot.ID()); err != nil {
		t.Fatal(err)
	}
	stays := say(t, anna.Identity, bot.Public(), "t1", "this stays")
	var goes []*custody.Envelope
	for n := range 40 { // of pages' and of overflowing sizes
		e, err := anna.Seal(bot.Public(), nil, custody.Header{Purpose: custody.PurposeOp, Space: space, Thread: "t1", Op: custody.NewID()}, make([]byte, n*500))
		if err != nil {
			t.Fatal(err)
		}
		goes = append(goes, e)
		if _, err := anna.Post(ctx, "", e, time.Now().Add(2*time.Minute)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := anna.Post(ctx, "", stays, time.Time{}); err != nil {
		t.Fatal(err)
	}
	has := func(e *custody.Envelope) bool {
		text, _ := e.CT.MarshalText()
		for _, data := range storeFiles(t, p.db) {
			for _, part := range [][]byte{text[:60], text[len(text)-60:], e.CT[:40]} {
				if bytes.Contains(data, part) {
					return true
				}
			}
		}
		return false
	}
	for _, e := range append(goes, stays) {
		if !has(e) {
			t.Fatal("a message is not in the files: this test would see nothing")
		}
	}
	p.clock.advance(3 * time.Minute)
	if err := instance.Sweep(p.in); err != nil {
		t.Fatal(err)
	}
	left := 0
	for _, e := range goes {
		if has(e) {
			left++
		}
	}
	if left > 0 || !has(stays) {
		t.Errorf("%d of %d messages that were deleted are in the files; what stays is there: %v", left, len(goes), has(stays))
	}
}

// TestSurvivesACrash: what was answered is there after the process is gone, and the cursor
// goes on.
func TestSurvivesACrash(t *testing.T) {
	p := start(t, nil)
	ctx := t.Context()
	anna, boris := p.party(t, "member"), p.party(t, "member")
	if err := anna.NewThread(ctx, "t1", boris.ID()); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		if _, err := anna.Post(ctx, ids(n), say(t, anna.Identity, boris.Public(), "t1", "x"), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	// The files as they are now, without a shutdown.
	dir := t.TempDir()
	for name, data := range storeFiles(t, p.db) {
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(name)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in, err := instance.New(instance.Config{Space: space, DB: filepath.Join(dir, filepath.Base(p.db))})
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	srv := httptest.NewServer(in)
	defer srv.Close()
	c, err := client.Dial(ctx, srv.URL, boris.Identity, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a, err := client.Dial(ctx, srv.URL, anna.Identity, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if seq, err := a.Post(ctx, "", say(t, anna.Identity, boris.Public(), "t1", "y"), time.Time{}); err != nil || seq != 4 {
		t.Errorf("seq %d, %v", seq, err)
	}
	page, err := c.Since(ctx, 1)
	if err != nil || len(page.Messages) != 3 {
		t.Errorf("%+v %v", page, err)
	}
	reading, stop := context.WithCancel(ctx)
	defer stop()
	err = c.Receive(reading, 3, func(_ context.Context, m *client.Message) error {
		if m.Seq != 4 {
			t.Errorf("seq %d", m.Seq)
		}
		stop()
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
