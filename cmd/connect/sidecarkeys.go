package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/zalando/go-keyring"

	"github.com/elevenmessenger/connect/custody"
)

// keychainService is what the operating system's keychain calls our entries.
const keychainService = "connect sidecar"

// Where a bot's key is.
const (
	inFile       = "file"
	inCredential = "systemd credential" // read-only
	inKeychain   = "keychain"
)

// A botKey is a bot with its key.
type botKey struct {
	name  string
	where string
	id    *custody.Identity
}

// errNoKey means that a bot has no key yet, or none any more.
var errNoKey = errors.New("there is no key")

// A keyStore holds the keys of one folder's bots.
type keyStore struct {
	dir      string
	keychain bool
}

func (k keyStore) file(name string) string { return filepath.Join(k.dir, sidecarBots, name+".pem") }

// get returns a bot's key: systemd's, else the keychain's or the file's.
func (k keyStore) get(name string) (*botKey, error) {
	file, there := k.file(name), false
	if _, err := os.Lstat(file); err == nil {
		there = true
	}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) {
		cred := filepath.Join(dir, name+".pem")
		switch _, err := os.Stat(cred); {
		case err == nil && (there || k.keychain):
			return nil, usagef("keep one of them", "%s has two keys: a systemd credential, and one in the folder or keychain", name)
		case err == nil:
			return k.read(name, inCredential, cred)
		}
	}
	if k.keychain {
		if there {
			return nil, usagef("leave --keychain out, or remove the file", "%s has a key in the folder already", name)
		}
		text, err := keyring.Get(keychainService, k.entry(name))
		switch {
		case errors.Is(err, keyring.ErrNotFound):
			return nil, errNoKey
		case err != nil:
			return nil, keychainError(err)
		}
		return parseKey(name, inKeychain, []byte(text))
	}
	if !there {
		return nil, errNoKey
	}
	return k.read(name, inFile, file)
}

func (k keyStore) read(name, where, file string) (*botKey, error) {
	text, err := readSecret("the key of "+name, file)
	if err != nil {
		return nil, err
	}
	return parseKey(name, where, []byte(text))
}

func parseKey(name, where string, data []byte) (*botKey, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, fmt.Errorf("the key of %s (%s) is no private key in PEM", name, where)
	}
	defer clear(block.Bytes)
	id, err := custody.ParseIdentity(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key of %s (%s): %w", name, where, err)
	}
	return &botKey{name, where, id}, nil
}

// entry names a key in the keychain, which all folders of a user share.
func (k keyStore) entry(name string) string { return name + " " + k.dir }

func keychainError(err error) error {
	return &hintedError{fmt.Errorf("the operating system's keychain does not answer: %w", err), "it needs a session of a user who has unlocked it; a service is better off with a file or a systemd credential"}
}

// make makes a bot's key where there is none. Of two processes that make one the first wins.
func (k keyStore) make(name string) (*botKey, error) {
	id, text, err := newKey()
	if err != nil {
		return nil, err
	}
	if k.keychain {
		if err := keyring.Set(keychainService, k.entry(name), string(text)); err != nil {
			return nil, keychainError(err)
		}
		return &botKey{name, inKeychain, id}, nil
	}
	temp, err := writeTemp(filepath.Join(k.dir, sidecarBots), text)
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp)
	if err := os.Link(temp, k.file(name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("the key of %s: %w", name, linkError(err))
	}
	if err := syncFolder(filepath.Join(k.dir, sidecarBots)); err != nil {
		return nil, err
	}
	return k.get(name)
}

func newKey() (*custody.Identity, []byte, error) {
	id, err := custody.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	der, err := id.MarshalPKCS8()
	if err != nil {
		return nil, nil, err
	}
	defer clear(der)
	return id, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// replace puts a new key in the place of the old one, which is overwritten where it was.
func (k keyStore) replace(name string, text []byte) error {
	if k.keychain {
		if err := keyring.Set(keychainService, k.entry(name), string(text)); err != nil {
			return keychainError(err)
		}
		return nil
	}
	if dir := os.Getenv("CREDENTIALS_DIRECTORY"); filepath.IsAbs(dir) {
		if _, err := os.Stat(filepath.Join(dir, name+".pem")); err == nil {
			return refusedf("put another key there; docs/operating.md says how", "the key of %s is a systemd credential, which this program only reads", name)
		}
	}
	temp, err := writeTemp(filepath.Join(k.dir, sidecarBots), text)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	old, err := os.OpenFile(k.file(name), os.O_WRONLY, 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the key of %s: %w", name, withoutPath(err))
	}
	if old != nil {
		defer old.Close()
	}
	if err := os.Rename(temp, k.file(name)); err != nil {
		return fmt.Errorf("the key of %s: %w", name, linkError(err))
	}
	if err := syncFolder(filepath.Join(k.dir, sidecarBots)); err != nil {
		return err
	}
	if old == nil {
		return nil
	}
	info, err := old.Stat()
	if err == nil {
		_, err = old.WriteAt(make([]byte, info.Size()), 0)
	}
	if err = errors.Join(err, old.Sync()); err != nil {
		return fmt.Errorf("%s has its new key, but the old one could not be overwritten: %w", name, withoutPath(err))
	}
	return nil
}
