package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// The vault is a folder that its owner alone reads: the key of this member, and credentials
// sealed to that key, one envelope a connection and one a broker whose token was given.
// Beside a connection stands a lock, which holds no more than the number of a pair. The local
// bot, which runs what is done with them, has a key and a folder of its own there.
const (
	vaultKey       = "identity.pem"
	vaultFolder    = "connections"
	vaultBrokers   = "brokers"
	vaultBotKey    = "bot.pem"
	vaultBotFolder = "bot" // not "sidecar", which is the folder of connect sidecar
	vaultAddLock   = "add.lock"
	vaultSpace     = "cli"
	maxVaultFile   = 1 << 20
)

// homeFlag says where the vault is.
type homeFlag struct{ dir string }

func (f *homeFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.dir, "home", "", "the `DIR` of stored connections; left out, $XDG_CONFIG_HOME/connect")
}

func (f *homeFlag) path() (string, error) {
	if f.dir != "" {
		return f.dir, nil
	}
	if dir := os.Getenv("XDG_CONFIG_HOME"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "connect"), nil
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", usagef("--home names one", "there is no folder for stored connections")
	}
	return filepath.Join(dir, "connect"), nil
}

type vault struct {
	dir    string
	member *custody.Identity
}

// errNoVault means that nothing has been stored yet.
var errNoVault = errors.New("nothing is connected yet")

// open opens the vault that is there.
func (f *homeFlag) open() (*vault, error) {
	dir, err := f.path()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, vaultKey)
	var open []string // what others can read
	missing := false
	for _, p := range []string{dir, file} {
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			missing = true
		case err != nil:
			return nil, fmt.Errorf("the stored connections: %w", withoutPath(err))
		case othersRead(info):
			open = append(open, commandWord(p))
		}
	}
	switch {
	case len(open) > 0:
		return nil, &hintedError{&integrations.RefusedError{Reason: "the folder of stored connections can be read by others"}, "chmod go= " + strings.Join(open, " ")}
	case missing:
		return nil, errNoVault
	}
	member, err := readKey(file, "the key of the stored connections")
	if err != nil {
		return nil, err
	}
	v := &vault{dir, member}
	v.sweep()
	return v, nil
}

// commandWord writes a path as a person types it in a shell, where that can be done.
func commandWord(path string) string {
	if w, ok := shellWord(path); ok {
		return w
	}
	return "DIR"
}

// files returns what a pattern fits in a folder. The folder's own name is no pattern.
func files(dir, pattern string) []string {
	names, err := fs.Glob(os.DirFS(dir), pattern)
	if err != nil {
		return nil
	}
	for i, name := range names {
		names[i] = filepath.Join(dir, name)
	}
	return names
}

// tempLife is how old a file is that nobody writes any more.
const tempLife = time.Hour

// sweep removes what processes that were killed left half written: it is sealed, and of no use.
func (v *vault) sweep() {
	for _, folder := range []string{"", vaultFolder, vaultBrokers} {
		for _, name := range files(filepath.Join(v.dir, folder), tempFiles) {
			if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > tempLife {
				os.Remove(name)
			}
		}
	}
}

// readKey reads a key that makeKey made. what it is stands in the error.
func readKey(file, what string) (*custody.Identity, error) {
	data, err := readFile(file, maxVaultFile)
	if err != nil {
		return nil, fmt.Errorf("%s %w", what, err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("%s (%s) is damaged", what, file)
	}
	id, err := custody.ParseIdentity(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("%s (%s) is damaged: %w", what, file, err)
	}
	return id, nil
}

// makeKey makes a key in a folder, unless another one is made there meanwhile.
func makeKey(dir, name, what string) error {
	id, err := custody.NewIdentity()
	if err != nil {
		return err
	}
	der, err := id.MarshalPKCS8()
	if err != nil {
		return err
	}
	temp, err := writeTemp(dir, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	// A link, unlike a rename, puts no other key aside that was made meanwhile.
	if err := os.Link(temp, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s: %w", what, linkError(err))
	}
	return nil
}

// make opens the vault, and makes it where there is none.
func (f *homeFlag) make() (*vault, error) {
	v, err := f.open()
	if !errors.Is(err, errNoVault) {
		return v, err
	}
	dir, err := f.path()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, vaultFolder), 0o700); err != nil {
		return nil, fmt.Errorf("the folder of stored connections: %w", withoutPath(err))
	}
	if err := makeKey(dir, vaultKey, "the key of stored connections"); err != nil {
		return nil, err
	}
	return f.open()
}

func linkError(err error) error {
	var le *os.LinkError
	if errors.As(err, &le) {
		return le.Err
	}
	return err
}

// tempFiles are files that are not written yet.
const tempFiles = ".new-*"

// writeTemp writes a file that its owner alone reads, and returns its name.
func writeTemp(dir string, data []byte) (name string, err error) {
	f, err := os.CreateTemp(dir, tempFiles) // mode 0600
	if err != nil {
		return "", fmt.Errorf("the folder of stored connections: %w", withoutPath(err))
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		os.Remove(f.Name())
		return "", fmt.Errorf("the folder of stored connections: %w", withoutPath(err))
	}
	return f.Name(), nil
}

func (v *vault) file(id string) string { return filepath.Join(v.dir, vaultFolder, id+".json") }

// all returns the connections by service and the time they were made, and the names of files
// that do not open.
func (v *vault) all() (list []*custody.Credential, damaged []string, err error) {
	for _, file := range files(filepath.Join(v.dir, vaultFolder), "*.json") {
		c, err := v.read(file)
		if err != nil {
			damaged = append(damaged, file)
			continue
		}
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b *custody.Credential) int {
		if n := strings.Compare(a.Service, b.Service); n != 0 {
			return n
		}
		return int(a.ConnectedAt - b.ConnectedAt)
	})
	return list, damaged, nil
}

func (v *vault) read(file string) (*custody.Credential, error) {
	data, err := readFile(file, maxVaultFile)
	if err != nil {
		return nil, err
	}
	e, err := custody.ParseEnvelope(data)
	if err != nil {
		return nil, err
	}
	c, err := custody.OpenCredential(v.member, e)
	if err != nil {
		return nil, err
	}
	if filepath.Base(file) != c.ID+".json" {
		return nil, errors.New("it is another connection's")
	}
	return c, nil
}

// get returns what is stored of a connection now, or an error that is fs.ErrNotExist.
func (v *vault) get(id string) (*custody.Credential, error) {
	c, err := v.read(v.file(id))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("the stored connection does not open: %w", err)
	}
	return c, err
}

// put stores a connection, over its older generation.
func (v *vault) put(c *custody.Credential) error { return v.write(vaultFolder, c) }

// write seals a credential into a folder. What was there stays until the new one is on disk.
func (v *vault) write(folder string, c *custody.Credential) error {
	data, err := v.seal(c)
	if err != nil {
		return err
	}
	dir := filepath.Join(v.dir, folder)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("the folder of stored connections: %w", withoutPath(err))
	}
	temp, err := writeTemp(dir, data)
	if err != nil {
		return err
	}
	defer os.Remove(temp)
	if err := os.Rename(temp, filepath.Join(dir, c.ID+".json")); err != nil {
		return fmt.Errorf("the folder of stored connections: %w", linkError(err))
	}
	return syncFolder(dir)
}

func (v *vault) seal(c *custody.Credential) ([]byte, error) {
	e, err := c.Seal(v.member, vaultSpace)
	if err != nil {
		return nil, err
	}
	return e.Marshal()
}

// syncFolder brings a rename to the disk. Windows has no call for that.
func syncFolder(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("the folder of stored connections: %w", withoutPath(err))
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("the folder of stored connections: %w", withoutPath(err))
	}
	return nil
}

// spare is how much longer a renewed credential may be than the one before it.
const spare = 64 << 10

// writable says whether a connection could be stored anew now.
func (v *vault) writable(c *custody.Credential) error {
	data, err := v.seal(c)
	if err != nil {
		return err
	}
	temp, err := writeTemp(filepath.Join(v.dir, vaultFolder), append(data, make([]byte, spare)...))
	if err != nil {
		return err
	}
	return withoutPath(os.Remove(temp))
}

func (v *vault) remove(c *custody.Credential) error {
	if err := os.Remove(v.file(c.ID)); err != nil {
		return fmt.Errorf("the stored connection: %w", withoutPath(err))
	}
	v.forget(c.ID)
	return syncFolder(filepath.Join(v.dir, vaultFolder))
}

// forget removes a connection's lock: whoever waits for it finds no connection.
func (v *vault) forget(id string) { os.Remove(v.lockFile(id)) }

// accountLabel is what a connection is called, on one line: it may be the provider's text.
func accountLabel(c *custody.Credential) string {
	if c.Account != nil {
		if s := printable(c.Account.Label); s != "" {
			return s
		}
	}
	return c.ID[:min(8, len(c.ID))]
}

func isAccount(c *custody.Credential, name string) bool {
	return name == c.ID || name == accountLabel(c) || c.Account != nil && (name == c.Account.ID || name == c.Account.Label)
}

// pick returns the one connection of a service, or of those called account. It returns nil
// where there is none.
func pick(list []*custody.Credential, m *integrations.Manifest, account string) (*custody.Credential, error) {
	var fit []*custody.Credential
	var labels []string
	for _, c := range list {
		if c.Service != m.ID {
			continue
		}
		labels = append(labels, accountLabel(c))
		if account == "" || isAccount(c, account) {
			fit = append(fit, c)
		}
	}
	switch {
	case len(fit) == 1:
		return fit[0], nil
	case len(fit) > 1 && account != "":
		return nil, usagef("connect list "+m.ID+" --json tells their ids, which --account takes too", "several accounts of %s have that name", m.Name)
	case len(fit) > 1:
		return nil, usagef("say which: --account NAME", "%s is connected with several accounts: %s", m.Name, strings.Join(labels, ", "))
	case account != "" && len(labels) > 0:
		return nil, usagef("they are: "+strings.Join(labels, ", "), "%s has no such account", m.Name)
	case account != "":
		return nil, usagef("connect add "+m.ID, "%s is not connected", m.Name)
	}
	return nil, nil
}
