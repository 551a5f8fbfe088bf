package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// An exportedConnection is what a person keeps of a connection: nothing secret. What was
// pasted beside a token, or kept beside a pair, is left out too.
type exportedConnection struct {
	ID          string                             `json:"id"`
	Service     string                             `json:"service"`
	Account     *custody.Account                   `json:"account,omitempty"`
	Kind        string                             `json:"kind"`
	Cap         integrations.Access                `json:"cap"`
	Scopes      []string                           `json:"scopes,omitempty"` // what the service granted, where it said
	Wider       bool                               `json:"wider,omitzero"`   // more was granted than asked
	Connection  map[string]custody.ConnectionValue `json:"connection,omitempty"`
	Broker      string                             `json:"broker,omitempty"`
	ConnectedAt time.Time                          `json:"connected_at"`
	ExpiresAt   time.Time                          `json:"expires_at,omitzero"` // of the access token
	Refreshes   bool                               `json:"refreshes,omitzero"`
	Ops         map[string]custody.Digest          `json:"ops,omitempty"` // the operations as they were agreed to
}

type exportedVault struct {
	V           int                  `json:"v"`
	Member      custody.KeyID        `json:"member"` // the id of the key, as connect key shows it
	ExportedAt  time.Time            `json:"exported_at"`
	Connections []exportedConnection `json:"connections"`
}

func (c *cli) exportCommand() *cobra.Command {
	var home homeFlag
	var file string
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write down one's own connections, without their tokens",
		Long: `Export writes what is connected as JSON, to be kept: service, account, what it may do, what
was granted, since when, until when, and the digests of the operations as they were agreed
to. No token and no key is in it, so that nothing can be connected with it again.`,
		Args: words(0, 0, "connect export takes flags alone"),
		RunE: func(*cobra.Command, []string) error {
			v, list, _, err := c.connections(&home, nil)
			if err != nil {
				return err
			}
			if v == nil {
				return usagef("connect add SERVICE connects one", "nothing is connected")
			}
			data, err := json.MarshalIndent(v.export(list, time.Now()), "", "  ")
			if err != nil {
				return err
			}
			data = escapeJSON(append(data, '\n'))
			if file == "" {
				_, err := c.out.Write(data)
				return err
			}
			if err := writeNew(file, data); err != nil {
				return err
			}
			c.note("Written, without tokens. Connections: %d.", len(list))
			return nil
		},
	}
	home.add(cmd)
	cmd.Flags().StringVar(&file, "file", "", "write to `FILE`, which is not there yet")
	cmd.Flags().SortFlags = false
	return cmd
}

func (v *vault) export(list []*custody.Credential, now time.Time) exportedVault {
	all := exportedVault{V: 1, Member: v.member.ID(), ExportedAt: now.UTC().Truncate(time.Second), Connections: []exportedConnection{}}
	for _, cr := range list {
		all.Connections = append(all.Connections, exportedConnection{
			ID: cr.ID, Service: cr.Service, Account: cr.Account, Kind: cr.Kind, Cap: capOf(cr), Scopes: cr.Scopes, Wider: cr.Wider, Connection: cr.Connection,
			Broker: cr.Broker, ConnectedAt: unixTime(cr.ConnectedAt), ExpiresAt: unixTime(cr.ExpiresAt), Refreshes: v.refreshes(cr, now), Ops: cr.Ops,
		})
	}
	return all
}

// writeNew writes a file that its owner alone reads, and puts none aside.
func writeNew(file string, data []byte) error {
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return usagef("name another one", "--file: that file is there already")
	}
	if err == nil {
		_, err = f.Write(data)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err != nil {
		return usagef("", "--file: the file cannot be written: %w", cause(err))
	}
	return nil
}

// cause is a file error without the file's name.
func cause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}
