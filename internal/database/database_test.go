package database

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/fstest"
	"time"
)

var files = fstest.MapFS{
	"m/0001_start.sql": {Data: []byte("CREATE TABLE a (x INTEGER) STRICT; INSERT INTO a VALUES (1);")},
	"m/0002_more.sql":  {Data: []byte("ALTER TABLE a ADD COLUMN y INTEGER; UPDATE a SET y = x + 1;")},
}

func TestMigrate(t *testing.T) {
	all, err := Migrations(files, "m")
	if err != nil || len(all) != 2 || all[1].Name != "0002_more" {
		t.Fatal(all, err)
	}
	// A folder may be called anything, and several may come at once.
	for _, name := range []string{"plain", "with space", "a?b#c", "50%41", "ümlaut"} {
		file := filepath.Join(t.TempDir(), name)
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				db, err := Open(file, Immediate, 10*time.Second)
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				defer db.Close()
				steps := all
				if i == 0 {
					steps = all[:1]
				}
				if err := Migrate(t.Context(), db, steps, time.Now()); err != nil && (i > 0 || !errors.Is(err, ErrNewer)) {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
		wg.Wait()
		db, err := Open(file, Immediate, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var y, n int
		if err := db.QueryRow("SELECT y, (SELECT count(*) FROM migrations) FROM a").Scan(&y, &n); err != nil || y != 2 || n != 2 {
			t.Errorf("%s: y is %d after %d migrations, %v", name, y, n, err)
		}
		if info, err := os.Stat(file); err != nil || info.Size() == 0 || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: the file is %v, %v", name, info, err)
		}
		if err := Migrate(t.Context(), db, all[:1], time.Now()); !errors.Is(err, ErrNewer) {
			t.Errorf("%s: a newer one: %v", name, err)
		}
	}
}

// What is not taken is left as it is.
func TestNotTaken(t *testing.T) {
	all, err := Migrations(files, "m")
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(damaged, []byte("this is no database, and long enough to be looked at as one of a hundred bytes: .......................... "), 0o600); err != nil {
		t.Fatal(err)
	}
	db, err := Open(damaged, Immediate, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	before, _ := os.ReadFile(damaged)
	if err := Migrate(t.Context(), db, all, time.Now()); !errors.Is(err, ErrDamaged) {
		t.Errorf("damaged: %v", err)
	}
	if after, _ := os.ReadFile(damaged); string(after) != string(before) {
		t.Error("it was changed")
	}
	db, err = Open(filepath.Join(t.TempDir(), "foreign"), Immediate, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("CREATE TABLE theirs (x)"); err != nil {
		t.Fatal(err)
	}
	if err := Migrate(t.Context(), db, all, time.Now()); !errors.Is(err, ErrForeign) {
		t.Errorf("foreign: %v", err)
	}
	// A step that fails takes the ones before it back.
	db, err = Open(filepath.Join(t.TempDir(), "failing"), Immediate, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := Migrate(t.Context(), db, append(all[:1:1], Migration{2, "0002_wrong", "no SQL"}), time.Now()); err == nil {
		t.Error("a wrong step was taken")
	}
	if err := Migrate(t.Context(), db, all, time.Now()); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestMigrationsLeaveNoNumberOut(t *testing.T) {
	for _, fsys := range []fstest.MapFS{{}, {"m/0002_a.sql": {}}, {"m/0001_a.sql": {}, "m/0003_b.sql": {}}, {"m/x.sql": {}}} {
		if _, err := Migrations(fsys, "m"); err == nil {
			t.Errorf("%v was taken", fsys)
		}
	}
}
