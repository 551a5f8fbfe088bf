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

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// The vault is a folder that its owner alone reads: the key of this member, and credentials
// sealed to that key, one envelope a connection and one a broker whose token was given.
// Beside a connection stands a lock, which holds no more than the number of a pair.
const (
	vaultKey     = "identity.pem"
	vaultFolder  = "connections"
	vaultBrokers = "brokers"
	vaultSpace   = "cli"
	maxVaultFile = 1 << 20
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
	for _, p := range []string{dir, file} {
		info, err := os.Stat(p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, errNoVault
		case err != nil:
			return nil, fmt.Errorf("the stored connections: %w", withoutPath(err))
		case runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0:
			return nil, &hintedError{&integrations.RefusedError{Reason: "the folder of stored connections can be read by others"},
				fmt.Sprintf("chmod go= %s %s", dir, file)}
		}
	}
	data, err := readFile(file, maxVaultFile)
	if err != nil {
		return nil, fmt.Errorf("the key of the stored connections %w", err)
	}
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, fmt.Errorf("the key of the stored connections (%s) is damaged", file)
	}
	member, err := custody.ParseIdentity(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the key of the stored connections (%s) is damaged: %w", file, err)
	}
	return &vault{dir, member}, nil
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
	member, err := custody.NewIdentity()
	if err != nil {
		return nil, err
	}
	der, err := member.MarshalPKCS8()
	if err != nil {
		return nil, err
	}
	temp, err := writeTemp(dir, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	if err != nil {
		return nil, err
	}
	defer os.Remove(temp)
	// A link, unlike a rename, puts no other key aside that was made meanwhile.
	if err := os.Link(temp, filepath.Join(dir, vaultKey)); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("the key of stored connections: %w", linkError(err))
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

// writeTemp writes a file that its owner alone reads, and returns its name.
func writeTemp(dir string, data []byte) (name string, err error) {
	f, err := os.CreateTemp(dir, ".new-*") // mode 0600
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
	files, err := filepath.Glob(filepath.Join(v.dir, vaultFolder, "*.json"))
	if err != nil {
		return nil, nil, err
	}
	for _, file := range files {
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
	os.Remove(v.lockFile(c.ID)) // whoever waits for it finds no connection
	return syncFolder(filepath.Join(v.dir, vaultFolder))
}

// accountLabel is what a connection is called.
func accountLabel(c *custody.Credential) string {
	if c.Account != nil && c.Account.Label != "" {
		return c.Account.Label
	}
	return c.ID[:min(8, len(c.ID))]
}

func isAccount(c *custody.Credential, name string) bool {
	return name == c.ID || name == accountLabel(c) || c.Account != nil && name == c.Account.ID
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
