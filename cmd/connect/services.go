package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
)

func (c *cli) servicesCommand() *cobra.Command {
	var registry registryFlag
	cmd := &cobra.Command{
		Use:   "services",
		Short: "List the services",
		Args:  words(0, 0, "connect show SERVICE tells of one"),
		RunE: func(*cobra.Command, []string) error {
			reg, err := registry.load(c)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "SERVICE\tNAME\tREADS\tWRITES\tCONNECT BY\tABOUT")
			for _, m := range reg.All() {
				reads, writes := countOps(m)
				fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%s\t%s\n", m.ID, m.Name, reads, writes, ways(m), m.About)
			}
			if err := w.Flush(); err != nil {
				return err
			}
			c.note("\nconnect show SERVICE tells what one can do.")
			return nil
		},
	}
	registry.add(cmd)
	return cmd
}

func countOps(m *integrations.Manifest) (reads, writes int) {
	for _, o := range m.Ops {
		if o.Access == integrations.Write {
			writes++
		} else {
			reads++
		}
	}
	return reads, writes
}

// ways says how a service is connected.
func ways(m *integrations.Manifest) string {
	var ways []string
	if m.Auth.Authorization.Scheme != "no" {
		ways = append(ways, "token")
	}
	if m.Auth.OAuth != nil {
		ways = append(ways, "OAuth")
	}
	return strings.Join(ways, " or ")
}
