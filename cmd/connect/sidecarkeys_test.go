package main

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/zalando/go-keyring"

	"github.com/elevenmessenger/connect/integrations"
)

// keysOf opens the keys of a folder, as the daemon does.
func keysOf(t *testing.T, h sidecarHome, named ...string) ([]*botKey, error) {
	t.Helper()
	dir, err := h.open(true)
	if err != nil {
		t.Fatal(err)
	}
	db, err := openSidecarDB(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	return h.keys(t.Context(), dir, named, db, true, slog.New(slog.DiscardHandler))
}

func TestSidecarKeyFiles(t *testing.T) {
	h := sidecarHome{dir: filepath.Join(t.TempDir(), "bot")}
	made, err := keysOf(t, h, "helper", "clerk")
	if err != nil {
		t.Fatal(err)
	}
	again, err := keysOf(t, h)
	if err != nil || len(again) != 2 {
		t.Fatalf("%d keys: %v", len(again), err)
	}
	if again[1].id.ID() != made[0].id.ID() || again[1].where != inFile || made[0].id.ID() == made[1].id.ID() {
		t.Error("the keys are not those that were made")
	}
	file := filepath.Join(h.dir, sidecarBots, "helper.pem")
	old, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	// The same key twice, a key that others can read, no key, and one that is gone.
	if err := os.WriteFile(filepath.Join(h.dir, sidecarBots, "twin.pem"), old, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keysOf(t, h); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), "the same key") {
		t.Errorf("twins: %v", err)
	}
	os.Remove(filepath.Join(h.dir, sidecarBots, "twin.pem"))
	if runtime.GOOS != "windows" {
		os.Chmod(file, 0o640)
		if _, err := keysOf(t, h); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), "can be read by others (mode 0640)") {
			t.Errorf("open to a group: %v", err)
		}
		os.Chmod(file, 0o600)
	}
	for _, bad := range []string{"MARKER", "-----BEGIN PRIVATE KEY-----\nTUFSS0VS\n-----END PRIVATE KEY-----\n", strings.Replace(string(old), "PRIVATE", "PUBLIC", 2)} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := keysOf(t, h); err == nil || strings.Contains(err.Error(), "MARKER") {
			t.Errorf("a damaged key: %v", err)
		}
	}
	os.Remove(file)
	if _, err := keysOf(t, h, "helper"); !errors.Is(err, integrations.ErrRefused) {
		t.Errorf("a key that is gone: %v", err)
	}
}

func TestSidecarRotate(t *testing.T) {
	h := sidecarHome{dir: filepath.Join(t.TempDir(), "bot")}
	before, err := keysOf(t, h, "helper")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.dir, sidecarBots, "helper.pem")
	// The disk's own copy, by another name, shows what becomes of it.
	copied := filepath.Join(h.dir, "copy")
	if err := os.Link(file, copied); err != nil {
		t.Fatal(err)
	}
	db, err := openSidecarDB(t.Context(), h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	after, err := h.rotate(t.Context(), h.dir, "helper", db, false)
	if err != nil {
		t.Fatal(err)
	}
	if after.id.ID() == before[0].id.ID() {
		t.Error("the key is the old one")
	}
	if data, err := os.ReadFile(copied); err != nil || len(data) == 0 || strings.Trim(string(data), "\x00") != "" {
		t.Errorf("the old key is still there: %d bytes, %v", len(data), err)
	}
	if info, err := os.Stat(file); err != nil || runtime.GOOS != "windows" && info.Mode().Perm() != 0o600 {
		t.Errorf("the new key: %v %v", info, err)
	}
	now, err := keysOf(t, h)
	if err != nil || now[0].id.ID() != after.id.ID() {
		t.Errorf("the key afterwards: %v", err)
	}
	// A key that was lost can be replaced too.
	os.Remove(file)
	if _, err := h.rotate(t.Context(), h.dir, "helper", db, false); err != nil {
		t.Error(err)
	}
	if _, err := h.rotate(t.Context(), h.dir, "nobody", db, false); !errors.Is(err, errUsage) {
		t.Errorf("nobody: %v", err)
	}
}

func TestSidecarCredential(t *testing.T) {
	h := sidecarHome{dir: filepath.Join(t.TempDir(), "bot")}
	_, text, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	creds := t.TempDir()
	t.Setenv("CREDENTIALS_DIRECTORY", creds)
	cred := filepath.Join(creds, "helper.pem")
	if err := os.WriteFile(cred, text, 0o440); err != nil { // how systemd's rule for the service's user looks
		t.Fatal(err)
	}
	got, err := keysOf(t, h, "helper")
	if err != nil || got[0].where != inCredential {
		t.Fatalf("%v %v", got, err)
	}
	if files, _ := filepath.Glob(filepath.Join(h.dir, sidecarBots, "*.pem")); len(files) != 0 {
		t.Errorf("a key was made beside it: %v", files)
	}
	db, err := openSidecarDB(t.Context(), h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	if _, err := h.rotate(t.Context(), h.dir, "helper", db, false); !errors.Is(err, integrations.ErrRefused) || !strings.Contains(err.Error(), "only reads") {
		t.Errorf("rotate: %v", err)
	}
	os.Rename(cred, filepath.Join(creds, "other"))
	if _, err := keysOf(t, h, "helper"); !errors.Is(err, integrations.ErrRefused) {
		t.Errorf("without the credential: %v", err)
	}
	os.Rename(filepath.Join(creds, "other"), cred)
	if err := os.WriteFile(filepath.Join(h.dir, sidecarBots, "helper.pem"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := keysOf(t, h, "helper"); !errors.Is(err, errUsage) || !strings.Contains(err.Error(), "two keys") {
		t.Errorf("two keys: %v", err)
	}
}

// TestSidecarKeychain runs against the library's keychain in memory: no desktop is here. What
// the real ones do is the library's to show.
func TestSidecarKeychain(t *testing.T) {
	keyring.MockInit()
	h := sidecarHome{dir: filepath.Join(t.TempDir(), "bot"), keychain: true}
	made, err := keysOf(t, h, "helper")
	if err != nil || made[0].where != inKeychain {
		t.Fatalf("%v %v", made, err)
	}
	again, err := keysOf(t, h, "helper")
	if err != nil || again[0].id.ID() != made[0].id.ID() {
		t.Fatalf("%v %v", again, err)
	}
	if files, _ := filepath.Glob(filepath.Join(h.dir, sidecarBots, "*.pem")); len(files) != 0 {
		t.Errorf("a key is in the folder: %v", files)
	}
	db, err := openSidecarDB(t.Context(), h.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.close()
	after, err := h.rotate(t.Context(), h.dir, "helper", db, false)
	if err != nil || after.id.ID() == made[0].id.ID() {
		t.Errorf("rotate: %v", err)
	}
	if err := keyring.DeleteAll(keychainService); err != nil {
		t.Fatal(err)
	}
	if _, err := keysOf(t, h, "helper"); !errors.Is(err, integrations.ErrRefused) {
		t.Errorf("a key that is gone: %v", err)
	}
	keyring.MockInitWithError(errors.New("locked"))
	if _, err := keysOf(t, h, "helper"); err == nil || !strings.Contains(err.Error(), "keychain does not answer") {
		t.Errorf("a keychain that does not answer: %v", err)
	}
}

func TestSidecarSocket(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("sockets have no mode there")
	}
	dir, err := os.MkdirTemp("", "sc") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	at := sidecarAddress{socket: filepath.Join(dir, "s.sock")}
	ln, err := at.listen()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(at.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v %v", info, err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })}
	go srv.Serve(ln)
	if body, err := askSidecar(t.Context(), at, integrations.Secret{}, "/v1/status"); err != nil || string(body) != "/v1/status" {
		t.Errorf("%s %v", body, err)
	}
	if _, err := at.listen(); !errors.Is(err, integrations.ErrRefused) {
		t.Errorf("a second one: %v", err)
	}
	srv.Close()
	if all, _ := os.ReadDir(dir); len(all) != 0 {
		t.Errorf("left over: %v", all)
	}
	// What a crash leaves is taken away; anything else is not.
	stale, err := net.Listen("unix", at.socket)
	if err != nil {
		t.Fatal(err)
	}
	stale.(*net.UnixListener).SetUnlinkOnClose(false)
	stale.Close()
	if ln, err = at.listen(); err != nil {
		t.Fatalf("after a crash: %v", err)
	}
	ln.Close()
	if err := os.WriteFile(at.socket, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := at.listen(); !errors.Is(err, errUsage) {
		t.Errorf("a file in its place: %v", err)
	}
}

func TestSidecarBearer(t *testing.T) {
	file := filepath.Join(t.TempDir(), "bearer")
	if _, err := bearer(file, false); !errors.Is(err, errUsage) {
		t.Errorf("no file: %v", err)
	}
	made, err := bearer(file, true)
	if err != nil || len(made.Reveal()) < 40 {
		t.Fatalf("%d characters: %v", len(made.Reveal()), err)
	}
	if again, err := bearer(file, true); err != nil || again != made {
		t.Errorf("the token is another one: %v", err)
	}
	for _, bad := range []string{"short", "MARKER with some spaces in it", ""} {
		if err := os.WriteFile(file, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := bearer(file, true); !errors.Is(err, errUsage) || strings.Contains(err.Error(), "MARKER") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if runtime.GOOS != "windows" {
		os.Chmod(file, 0o604)
		if _, err := bearer(file, true); !errors.Is(err, errUsage) {
			t.Errorf("open to others: %v", err)
		}
	}
}
