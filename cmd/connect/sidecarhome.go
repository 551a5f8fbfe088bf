package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

// The sidecar's folder is its owner's alone. It holds the bots' keys, where they are files,
// the core's own sidecar.db, and state.db: what belongs to the way to an instance.
const (
	sidecarBots   = "bots"
	sidecarLock   = "lock"
	sidecarSocket = "sidecar.sock"
	sidecarState  = "state.db"
)

var botName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)

// sidecarHome says where the folder is, and whether keys are in the keychain instead.
type sidecarHome struct {
	dir      string
	keychain bool
}

func (h *sidecarHome) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&h.dir, "home", "", "the sidecar's `DIR`; left out, $STATE_DIRECTORY, else $XDG_CONFIG_HOME/connect/sidecar")
	cmd.Flags().BoolVar(&h.keychain, "keychain", false, "keep the bots' keys in the operating system's keychain, not in files")
}

// A refusedError says why nothing was changed or begun. It ends the program as refused.
type refusedError struct{ reason string }

func (e *refusedError) Error() string { return e.reason }
func (e *refusedError) Unwrap() error { return integrations.ErrRefused }

func refusedf(hint, format string, args ...any) error {
	return &hintedError{&refusedError{fmt.Sprintf(format, args...)}, hint}
}

// path returns the folder's name, absolute: a keychain's entries are named after it.
func (h *sidecarHome) path() (string, error) {
	dir := h.dir
	if s := os.Getenv("STATE_DIRECTORY"); dir == "" && filepath.IsAbs(s) && !strings.Contains(s, ":") {
		dir = s
	}
	if dir == "" {
		base, err := (&homeFlag{}).path()
		if err != nil {
			return "", usagef("--home names one", "there is no folder for the sidecar")
		}
		dir = filepath.Join(base, "sidecar")
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("the sidecar's folder: %w", withoutPath(err))
	}
	return abs, nil
}

// open returns the folder, which it makes where make says so. A folder that others can read
// is refused.
func (h *sidecarHome) open(make bool) (string, error) {
	dir, err := h.path()
	if err != nil {
		return "", err
	}
	if make {
		if err := os.MkdirAll(filepath.Join(dir, sidecarBots), 0o700); err != nil {
			return "", fmt.Errorf("the sidecar's folder: %w", withoutPath(err))
		}
	}
	for _, d := range []string{dir, filepath.Join(dir, sidecarBots)} {
		info, err := os.Stat(d)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return "", usagef("connect sidecar --bot NAME makes it; --home names another one", "there is no sidecar in that folder")
		case err != nil:
			return "", fmt.Errorf("the sidecar's folder: %w", withoutPath(err))
		case !info.IsDir():
			return "", usagef("", "the sidecar's folder is a file")
		case othersRead(info):
			return "", refusedf("chmod go= "+d, "the sidecar's folder can be read by others")
		}
	}
	return dir, nil
}

func othersRead(info fs.FileInfo) bool {
	return runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0
}

// inCredentials says whether a file is one that systemd hands over. It guards those itself,
// and writes its rule for the service's user as a right of the group.
func inCredentials(file string) bool {
	dir := os.Getenv("CREDENTIALS_DIRECTORY")
	return filepath.IsAbs(dir) && filepath.Dir(filepath.Clean(file)) == filepath.Clean(dir)
}

// maxSecretFile bounds the files that hold one secret.
const maxSecretFile = 16 << 10

// readSecret reads a file that its owner alone may read, without the line's end. what names
// it in errors.
func readSecret(what, file string) (string, error) {
	info, err := os.Stat(file)
	switch {
	case err != nil:
		return "", usagef("", "%s: the file %w", what, withoutPath(err))
	case othersRead(info) && !inCredentials(file):
		return "", &hintedError{usageError{fmt.Errorf("%s: the file can be read by others (mode %04o)", what, info.Mode().Perm())}, "chmod 600 it"}
	}
	data, err := readFile(file, maxSecretFile)
	if err != nil {
		return "", usagef("", "%s: the file %w", what, err)
	}
	text := strings.TrimSpace(string(data))
	if text == "" {
		return "", usagef("", "%s: the file is empty", what)
	}
	return text, nil
}

// hold takes the folder's lock: daemons share it, and whoever changes a key has it alone.
// The operating system lets go of it with the process.
func (h *sidecarHome) hold(dir string, alone bool) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, sidecarLock), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("the sidecar's folder: %w", withoutPath(err))
	}
	got, err := tryLock(f, !alone)
	switch {
	case err != nil:
		f.Close()
		return nil, fmt.Errorf("the sidecar's folder cannot be locked: %w", err)
	case !got && alone:
		f.Close()
		return nil, refusedf("stop it first, and start it again afterwards", "a sidecar runs on this folder")
	case !got:
		f.Close()
		return nil, refusedf("start again in a moment", "a key of this folder is just being changed")
	}
	return f, nil
}

// names returns the bots that are meant: those that were named, else those of the folder.
func (h *sidecarHome) names(dir string, named []string) ([]string, error) {
	for i, n := range named {
		if !botName.MatchString(n) {
			return nil, usagef("such as --bot helper", "a bot's name is 1 to 32 small letters, digits and -, and begins with a letter")
		}
		if slices.Contains(named[:i], n) {
			return nil, usagef("", "--bot names the same bot twice")
		}
	}
	if len(named) > 0 {
		return named, nil
	}
	files, err := filepath.Glob(filepath.Join(dir, sidecarBots, "*.pem"))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if n := strings.TrimSuffix(filepath.Base(f), ".pem"); botName.MatchString(n) {
			named = append(named, n)
		}
	}
	if len(named) == 0 {
		return nil, usagef("name it: --bot helper", "there is no bot in the folder yet, and none was named")
	}
	return named, nil
}
