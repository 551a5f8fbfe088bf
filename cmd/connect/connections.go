package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A listedConnection is what --json says of one connection: nothing secret.
type listedConnection struct {
	ID          string                             `json:"id"`
	Service     string                             `json:"service"`
	Account     *custody.Account                   `json:"account,omitempty"`
	Kind        string                             `json:"kind"`
	Cap         integrations.Access                `json:"cap"`
	Connection  map[string]custody.ConnectionValue `json:"connection,omitempty"`
	ConnectedAt time.Time                          `json:"connected_at"`
}

func (c *cli) listCommand() *cobra.Command {
	var home homeFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:               "list [SERVICE]",
		Short:             "List the stored connections",
		Args:              words(0, 1, "connect list, or connect list SERVICE"),
		ValidArgsFunction: new(registryFlag).complete(c, false),
		RunE: func(_ *cobra.Command, words []string) error {
			list, err := c.connections(&home, words)
			if err != nil {
				return err
			}
			if asJSON {
				all := []listedConnection{}
				for _, cr := range list {
					cap := integrations.Read
					if cr.CapAllows(integrations.Write) {
						cap = integrations.Write
					}
					all = append(all, listedConnection{cr.ID, cr.Service, cr.Account, cr.Kind, cap, cr.Connection, time.Unix(cr.ConnectedAt, 0).UTC()})
				}
				return writeJSON(c.out, all)
			}
			if len(list) == 0 {
				c.note("Nothing is connected. connect add SERVICE connects one.")
				return nil
			}
			w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "SERVICE\tACCOUNT\tMAY\tCONNECTED\tWITH")
			for _, cr := range list {
				var with []string
				for _, name := range slices.Sorted(maps.Keys(cr.Connection)) {
					v := cr.Connection[name]
					with = append(with, name+" "+choice{v.Value, v.Label}.String())
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", cr.Service, printable(accountLabel(cr)), capWords(cr),
					time.Unix(cr.ConnectedAt, 0).UTC().Format(time.DateOnly), printable(strings.Join(with, ", ")))
			}
			return w.Flush()
		},
	}
	home.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

// connections returns those that are stored, or of one service, and warns of what does not open.
func (c *cli) connections(home *homeFlag, words []string) ([]*custody.Credential, error) {
	v, err := home.open()
	if errors.Is(err, errNoVault) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	list, damaged, err := v.all()
	for _, file := range damaged {
		c.note("warning: %s does not open with this member's key, and is left as it is", file)
	}
	if len(words) > 0 {
		list = slices.DeleteFunc(list, func(cr *custody.Credential) bool { return cr.Service != words[0] })
	}
	return list, err
}

// printable leaves out what would move a terminal's cursor: a label is the provider's text.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r >= 0x7f && r < 0xa0 {
			return -1
		}
		return r
	}, s)
}

func (c *cli) removeCommand() *cobra.Command {
	var home homeFlag
	var account string
	cmd := &cobra.Command{
		Use:   "remove SERVICE",
		Short: "Remove a stored connection",
		Long: `Remove deletes a stored connection from this machine, and says where its token is removed
at the service: a pasted token is its owner's, and works until then.`,
		Args:              words(1, 1, "connect list tells what is stored"),
		ValidArgsFunction: new(registryFlag).complete(c, false),
		RunE: func(_ *cobra.Command, words []string) error {
			v, err := home.open()
			if errors.Is(err, errNoVault) {
				return usagef("", "nothing is connected")
			}
			if err != nil {
				return err
			}
			list, err := c.connections(&home, words)
			if err != nil {
				return err
			}
			if len(list) == 0 {
				return usagef("connect list tells what is stored", "there is no such connection%s", quoted(words[0]))
			}
			reg, err := integrations.Default()
			if err != nil {
				return err
			}
			// A service that this version no longer knows can still be removed.
			m := reg.Get(words[0])
			if m == nil {
				m = &integrations.Manifest{ID: list[0].Service, Name: list[0].Service}
			}
			cr, err := pick(list, m, account)
			if err != nil {
				return err
			}
			if err := v.remove(cr); err != nil {
				return err
			}
			c.note("%s is no longer connected here: %s.", m.Name, printable(accountLabel(cr)))
			c.note("%s", whereToRemove(m, cr))
			return nil
		},
	}
	home.add(cmd)
	cmd.Flags().StringVar(&account, "account", "", "which one, where a service has several: `NAME` or id")
	return cmd
}

// whereToRemove says how the token itself is ended, since the program cannot do it.
func whereToRemove(m *integrations.Manifest, cr *custody.Credential) string {
	if o := m.Auth.OAuth; cr.Kind == custody.KindOAuth {
		switch {
		case o != nil && o.Revoke != nil && o.Revoke.None != "":
			return "The token itself still works until it ends. " + o.Revoke.None + "."
		default:
			return "The token itself still works until it ends, or until you remove the app in your settings at " + m.Name + "."
		}
	}
	if m.Auth.PATHelp != "" {
		return "The token itself still works until you delete it: its page is where it was made, " + m.Auth.PATHelp
	}
	return "The token itself still works until you delete it at " + m.Name + "."
}

// storedFlags say which stored connection an operation uses.
type storedFlags struct {
	home    homeFlag
	account string
}

func (f *storedFlags) add(cmd *cobra.Command) {
	f.home.add(cmd)
	cmd.Flags().StringVar(&f.account, "account", "", "the stored connection of this account: `NAME` or id")
}

// connection returns the stored connection to use, nil where the token is given otherwise or
// there is none.
func (f *storedFlags) connection(m *integrations.Manifest, token *tokenFlags, registry *registryFlag) (*custody.Credential, error) {
	given := token.given()
	switch {
	case f.account != "" && given:
		return nil, usagef("", "--account is for stored connections, and does not go with a token of its own")
	case f.account != "" && registry.dir != "":
		return nil, usagef("", "stored connections are only for the manifests that are built in: another could lead a token elsewhere")
	case given || registry.dir != "":
		return nil, nil
	}
	v, err := f.home.open()
	switch {
	case errors.Is(err, errNoVault) && f.account != "":
		return nil, usagef("connect add "+m.ID, "%s is not connected", m.Name)
	case errors.Is(err, errNoVault):
		return nil, nil
	case err != nil:
		return nil, err
	}
	list, _, err := v.all()
	if err != nil {
		return nil, err
	}
	return pick(list, m, f.account)
}
