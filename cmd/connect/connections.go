package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

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
	ExpiresAt   time.Time                          `json:"expires_at,omitzero"` // of the access token
	Refreshes   bool                               `json:"refreshes,omitzero"`  // it is renewed when it is used
	Ended       bool                               `json:"ended,omitzero"`      // it is over, and is not renewed
	ConnectedAt time.Time                          `json:"connected_at"`
}

func (c *cli) listCommand() *cobra.Command {
	var home homeFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "list [SERVICE]",
		Short: "List the stored connections",
		Long: `List tells the stored connections. ENDS is where each stands: "until" a time, "ended",
"refreshes itself" where the broker's token is stored too, and nothing where the service
did not say.`,
		Args:              words(0, 1, "connect list, or connect list SERVICE"),
		ValidArgsFunction: new(registryFlag).complete(c, false),
		RunE: func(_ *cobra.Command, words []string) error {
			v, list, damaged, err := c.connections(&home, words)
			if err != nil {
				return err
			}
			none := "Nothing is connected. connect add SERVICE connects one."
			switch {
			case len(list) == 0 && len(words) > 0:
				reg, err := integrations.Default()
				if err != nil {
					return err
				}
				m, err := service(reg, words[0])
				if err != nil {
					return err
				}
				none = fmt.Sprintf("%s is not connected. connect add %s connects it.", m.Name, m.ID)
			case len(list) == 0 && damaged > 0:
				none = "No stored connection opens."
			}
			now := time.Now()
			if asJSON {
				all := []listedConnection{}
				for _, cr := range list {
					all = append(all, listedConnection{cr.ID, cr.Service, cr.Account, cr.Kind, capOf(cr), cr.Connection,
						unixTime(cr.ExpiresAt), v.refreshes(cr, now), v.ended(cr, now), unixTime(cr.ConnectedAt)})
				}
				return writeJSON(c.out, all)
			}
			if len(list) == 0 {
				c.note("%s", none)
				return nil
			}
			w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "SERVICE\tACCOUNT\tMAY\tCONNECTED\tENDS\tWITH")
			for _, cr := range list {
				var with []string
				for _, name := range slices.Sorted(maps.Keys(cr.Connection)) {
					v := cr.Connection[name]
					with = append(with, name+" "+choice{v.Value, v.Label}.String())
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\n", cr.Service, printable(accountLabel(cr)), capWords(cr),
					unixTime(cr.ConnectedAt).Format(time.DateOnly), v.endWords(cr, now), printable(strings.Join(with, ", ")))
			}
			return w.Flush()
		},
	}
	home.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

// capOf is what a connection may do. One from before caps reads.
func capOf(cr *custody.Credential) integrations.Access {
	if cr.CapAllows(integrations.Write) {
		return integrations.Write
	}
	return integrations.Read
}

// connections returns those that are stored, or of one service, and how many do not open, of
// which it warns.
func (c *cli) connections(home *homeFlag, words []string) (*vault, []*custody.Credential, int, error) {
	v, err := home.open()
	if errors.Is(err, errNoVault) {
		return nil, nil, 0, nil
	}
	if err != nil {
		return nil, nil, 0, err
	}
	list, damaged, err := v.all()
	for _, file := range damaged {
		c.note("%s", damagedWords(file))
	}
	if len(words) > 0 {
		list = slices.DeleteFunc(list, func(cr *custody.Credential) bool { return cr.Service != words[0] })
	}
	return v, list, len(damaged), err
}

// unixTime reads a stored time, the zero time for an unknown one.
func unixTime(t int64) time.Time {
	if t == 0 {
		return time.Time{}
	}
	return time.Unix(t, 0).UTC()
}

// refreshes says whether a connection is renewed when it is used.
func (v *vault) refreshes(c *custody.Credential, now time.Time) bool {
	if c.Refresh.IsZero() {
		return false
	}
	t, err := v.brokerToken(c.Broker)
	return err == nil && t != nil && now.Before(unixTime(t.ExpiresAt)) && !v.spent(c)
}

// spent says whether a connection's pair cannot be renewed any more.
func (v *vault) spent(c *custody.Credential) bool {
	f, err := os.Open(v.lockFile(c.ID))
	if err != nil {
		return false
	}
	defer f.Close()
	pair, err := (&vaultLock{f}).spent()
	return err == nil && pair == c.Pair
}

func (v *vault) ended(c *custody.Credential, now time.Time) bool {
	return c.ExpiresAt > 0 && !now.Before(unixTime(c.ExpiresAt)) && !v.refreshes(c, now)
}

func (v *vault) endWords(c *custody.Credential, now time.Time) string {
	switch {
	case v.refreshes(c, now):
		return "refreshes itself"
	case v.ended(c, now):
		return "ended"
	case c.ExpiresAt > 0:
		return "until " + unixTime(c.ExpiresAt).Format("2006-01-02 15:04 UTC")
	}
	return ""
}

// damagedWords says what to do about a file of a vault that does not open. What service it was
// for stands inside.
func damagedWords(file string) string {
	return fmt.Sprintf("warning: the stored connection %s is damaged, or of another member: it does not open with this member's key. "+
		"Remove the file, and add the connection anew; its token works at the service until you end it there", printable(file))
}

// printable leaves out what would move a terminal's cursor, begin a line or turn the text's
// direction: a label is the provider's text.
func printable(s string) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unprintable(r):
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "\ufffd")))
}

// unprintable says whether a character would act on a terminal, or be seen by nobody. Joiners
// are part of words in some scripts.
func unprintable(r rune) bool {
	return unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp) && r != '\u200c' && r != '\u200d'
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
func (f *storedFlags) connection(c *cli, m *integrations.Manifest, token *tokenFlags, registry *registryFlag) (*vault, *custody.Credential, error) {
	given := token.given()
	switch {
	case f.account != "" && given:
		return nil, nil, usagef("", "--account is for stored connections, and does not go with a token of its own")
	case f.account != "" && registry.dir != "":
		return nil, nil, usagef("", "stored connections are only for the manifests that are built in: another could lead a token elsewhere")
	case given || registry.dir != "":
		return nil, nil, nil
	}
	v, err := f.home.open()
	switch {
	case errors.Is(err, errNoVault) && f.account != "":
		return nil, nil, usagef("connect add "+m.ID, "%s is not connected", m.Name)
	case errors.Is(err, errNoVault):
		return nil, nil, nil
	case err != nil:
		return nil, nil, err
	}
	list, damaged, err := v.all()
	if err != nil {
		return nil, nil, err
	}
	conn, err := pick(list, m, f.account)
	if conn == nil { // it may be one of these
		for _, file := range damaged {
			c.note("%s", damagedWords(file))
		}
	}
	return v, conn, err
}
