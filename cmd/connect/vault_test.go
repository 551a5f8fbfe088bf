package main

import (
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/broker/brokertest"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// aConnection is one that nothing is known of but its service.
func aConnection(service string) *custody.Credential {
	return &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: service, Kind: custody.KindPAT,
		Secret: integrations.NewSecret("x"), ConnectedAt: time.Now().Unix(), Account: &custody.Account{ID: "1", Label: "Ada"}}
}

// A damaged connection is named wherever it could be the one that is meant, with what to do.
func TestVaultDamaged(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a vault")
	v, err := (&homeFlag{dir: home}).make()
	if err != nil {
		t.Fatal(err)
	}
	c := aConnection("github")
	if err := v.put(c); err != nil {
		t.Fatal(err)
	}
	file := v.file(c.ID)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var e map[string]any
	if err := json.Unmarshal(data, &e); err != nil {
		t.Fatal(err)
	}
	e["op"] = c.ID + ".2" // an older generation that would pass for a newer one
	bad, err := json.Marshal(e)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, bad, 0o600); err != nil {
		t.Fatal(err)
	}
	w := new(world)
	named := "warning: the stored connection " + file + " is damaged, or of another member: it does not open with this member's key. Remove the file, "
	for _, c := range []struct {
		words []string
		code  int
		want  string
	}{
		{[]string{"list"}, 0, "No stored connection opens.\n"},
		{[]string{"list", "github"}, 0, "GitHub is not connected."},
		{[]string{"op", "github", "whoami"}, 2, "error: there is no token"},
		{[]string{"remove", "github"}, 2, "error: there is no such connection"},
	} {
		said, code := w.runAs(t, append(c.words, "--home", home)...)
		if code != c.code || !strings.Contains(said, named) || !strings.Contains(said, c.want) {
			t.Errorf("%v: exit code %d:\n%s", c.words, code, said)
		}
	}
	// What it says helps.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if said, code := w.runAs(t, "list", "--home", home); code != 0 || said != "Nothing is connected. connect add SERVICE connects one.\n" {
		t.Errorf("exit code %d:\n%s", code, said)
	}
}

// What stands in a lock's file, or in its place, keeps nobody from the connection.
func TestVaultLockDamaged(t *testing.T) {
	w := newWorld(t, brokertest.Options{})
	w.connect(t, "--broker-token-file", w.token(t, time.Hour))
	lock := w.vault(t).lockFile(w.one(t).ID)
	outside := filepath.Join(t.TempDir(), "outside")
	if err := os.WriteFile(outside, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, make := range map[string]func() error{
		"NUL bytes": func() error { return os.WriteFile(lock, []byte("\x00\x00"), 0o600) },
		"garbage":   func() error { return os.WriteFile(lock, []byte("garbage\n"), 0o600) },
		"a folder":  func() error { return os.Mkdir(lock, 0o700) },
		"a link":    func() error { return os.Symlink(outside, lock) },
	} {
		if err := os.Remove(lock); err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if err := make(); err != nil {
			t.Fatal(err)
		}
		before := w.edit(t, func(c *custody.Credential) { c.ObtainedAt, c.ExpiresAt = 1, 2 })
		said, code := w.run(t, "op", "github", "whoami")
		if now := w.one(t); code != 0 || now.Pair != before.Pair+1 {
			t.Errorf("%s: exit code %d, pair %d after %d:\n%s", what, code, now.Pair, before.Pair, said)
		}
		if said, code = w.runAs(t, "list", "--home", w.home); code != 0 || !strings.Contains(said, "refreshes itself") {
			t.Errorf("%s: exit code %d:\n%s", what, code, said)
		}
	}
	if data, err := os.ReadFile(outside); err != nil || string(data) != "precious" {
		t.Errorf("what the link led to: %q %v", data, err)
	}
	// A folder that is not empty is somebody's: it is named, and nothing is sent.
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(lock, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	said, code := w.run(t, "remove", "github")
	if code != 3 || !strings.Contains(said, "error: the stored connection cannot be locked: "+lock+" is no file") || !strings.Contains(said, "hint: look what it is, and remove it\n") {
		t.Errorf("a full folder: exit code %d:\n%s", code, said)
	}
	if err := os.RemoveAll(lock); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(lock, 0o700); err != nil {
		t.Fatal(err)
	}
	if said, code = w.run(t, "remove", "github"); code != 0 {
		t.Errorf("remove: exit code %d:\n%s", code, said)
	}
	w.gone(t)
}

// A folder that others read is refused with the command that mends it, of what is there.
func TestVaultOpenToOthers(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	dir := filepath.Join(t.TempDir(), "a vault")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w := new(world)
	for _, c := range []struct {
		what string
		make func() error
		hint string
	}{
		{"an empty folder", func() error { return nil }, "hint: chmod go= '" + dir + "'\n"},
		{"with a key", func() error { return makeKey(dir, vaultKey, "the key") }, "hint: chmod go= '" + dir + "'\n"},
		{"whose key is open too", func() error { return os.Chmod(filepath.Join(dir, vaultKey), 0o644) }, "hint: chmod go= '" + dir + "' '" + filepath.Join(dir, vaultKey) + "'\n"},
		{"and alone", func() error { return os.Chmod(dir, 0o700) }, "hint: chmod go= '" + filepath.Join(dir, vaultKey) + "'\n"},
	} {
		if err := c.make(); err != nil {
			t.Fatal(err)
		}
		if said, code := w.runAs(t, "key", "--home", dir); code != 3 || !strings.Contains(said, "can be read by others") || !strings.HasSuffix(said, c.hint) {
			t.Errorf("%s: exit code %d:\n%s", c.what, code, said)
		}
	}
}

// What a killed process left half written goes when the vault is opened an hour later, and
// nothing else does. The folder's name is no pattern.
func TestVaultSweeps(t *testing.T) {
	home := filepath.Join(t.TempDir(), "a[b]*vault")
	v, err := (&homeFlag{dir: home}).make()
	if err != nil {
		t.Fatal(err)
	}
	if err := v.put(aConnection("github")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(home, vaultBrokers), 0o700); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-tempLife - time.Minute)
	var keep []string
	for _, folder := range []string{"", vaultFolder, vaultBrokers} {
		for name, stays := range map[string]bool{".new-1": false, ".new-2": true, "new-3": true, "x.json.bak": true} {
			file := filepath.Join(home, folder, name)
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if name != ".new-2" {
				if err := os.Chtimes(file, old, old); err != nil {
					t.Fatal(err)
				}
			}
			if stays {
				keep = append(keep, file)
			}
		}
	}
	if v, err = (&homeFlag{dir: home}).open(); err != nil {
		t.Fatal(err)
	}
	var left []string
	if err := filepath.WalkDir(home, func(path string, d fs.DirEntry, err error) error {
		if name := filepath.Base(path); err == nil && (strings.Contains(name, "new-") || strings.HasSuffix(name, ".bak")) {
			left = append(left, path)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(keep)
	slices.Sort(left)
	if !slices.Equal(keep, left) {
		t.Errorf("left: %q, want %q", left, keep)
	}
	if list, damaged, err := v.all(); err != nil || len(list) != 1 || len(damaged) > 0 {
		t.Errorf("stored: %d, damaged %d, %v", len(list), len(damaged), err)
	}
}
