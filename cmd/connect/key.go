package main

import (
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
)

func (c *cli) keyCommand() *cobra.Command {
	var home homeFlag
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Show the id of this member's key",
		Long: `Key shows the public id of the key that stored connections are sealed to, and makes the key
where there is none yet. Neither is secret: a broker's operator signs a token for the id
("connect broker token sign --cli ID"), and two people who read the fingerprint to each
other know that the id is the right one.`,
		Args: words(0, 0, "connect key takes no words"),
		RunE: func(*cobra.Command, []string) error {
			v, err := home.make()
			if err != nil {
				return err
			}
			id, print := v.member.ID(), fingerprint(v.member.Public())
			if asJSON {
				return writeJSON(c.out, struct {
					ID          custody.KeyID `json:"id"`
					Fingerprint string        `json:"fingerprint"`
				}{id, print})
			}
			_, err = fmt.Fprintf(c.out, "id           %s\nfingerprint  %s\n", id, print)
			return err
		},
	}
	home.add(cmd)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

// fingerprint writes the first 128 bits of what the id is made of, SHA-256 of the point,
// as eight groups of five digits: digits are read aloud alike in every language.
func fingerprint(p custody.PublicKey) string {
	sum := sha256.Sum256(p.Bytes())
	var groups []string
	for i := range 8 {
		n := uint32(sum[2*i])<<8 | uint32(sum[2*i+1])
		groups = append(groups, fmt.Sprintf("%05d", n))
	}
	return strings.Join(groups, " ")
}
