package main

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/broker"
)

// maxKeyFile bounds the file of a signing key.
const maxKeyFile = 16 << 10

var brokerKeyID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`)

func (c *cli) brokerTokenCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make a broker's keys, and sign an instance's token",
		Args:  words(0, 0, "connect broker token keys, or connect broker token sign"),
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(c.brokerKeysCommand(), c.brokerSignCommand())
	return cmd
}

func (c *cli) brokerKeysCommand() *cobra.Command {
	var id string
	var instance bool
	cmd := &cobra.Command{
		Use:   "keys",
		Short: "Make the broker's secret keys, or a pair that signs instances' tokens",
		Long: `Keys makes a state key and a wrapping key, as the broker's environment takes them; with
--instance it makes the pair that signs instances' tokens instead. They are printed once
and kept nowhere. To rotate a state or wrapping key put the new one before the old ones,
with a comma between, and keep old wrapping keys for as long as connections live.`,
		Example: `  (umask 077; connect broker token keys > broker.env)
  (umask 077; connect broker token keys --instance > instance-key.pem)`,
		Args: words(0, 0, "connect broker token keys takes no words"),
		RunE: func(*cobra.Command, []string) error {
			if id == "" {
				var b [3]byte
				rand.Read(b[:])
				// The date tells the operator which one is older.
				id = time.Now().UTC().Format("20060102") + "-" + hex.EncodeToString(b[:])
			}
			if !brokerKeyID.MatchString(id) {
				return usagef("", "--id is 1 to 32 letters, digits, _ or -")
			}
			c.noteOpen()
			if instance {
				return c.instanceKeyPair(id)
			}
			for _, name := range []string{envStateKeys, envWrapKeys} {
				var k [32]byte
				rand.Read(k[:])
				if _, err := fmt.Fprintf(c.out, "%s=%s:%s\n", name, id, base64.RawURLEncoding.EncodeToString(k[:])); err != nil {
					return err
				}
			}
			c.note("These are secret, and printed once. Without the wrapping key every connection must be made anew.")
			return nil
		},
	}
	cmd.Flags().StringVar(&id, "id", "", "the keys' `NAME`; left out, the date and a few random digits")
	cmd.Flags().BoolVar(&instance, "instance", false, "make the pair that signs instances' tokens")
	return cmd
}

// instanceKeyPair prints the private key in PEM, whose header names it, and beside it what
// the broker's environment takes.
func (c *cli) instanceKeyPair(id string) error {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return err
	}
	block := &pem.Block{Type: "PRIVATE KEY", Headers: map[string]string{"Key-Id": id}, Bytes: der}
	if err := pem.Encode(c.out, block); err != nil {
		return err
	}
	c.note("The private key is printed once; it stays with you, and the broker never needs it.")
	c.note("For the broker's environment:\n%s=%s:%s", envInstanceKeys, id, base64.RawURLEncoding.EncodeToString(public))
	return nil
}

// readSigningKey reads what instanceKeyPair printed.
func readSigningKey(file string) (key ed25519.PrivateKey, id string, err error) {
	data, err := readFile(file, maxKeyFile)
	if err != nil {
		return nil, "", fmt.Errorf("the file %w", err)
	}
	wrong := errors.New(`the file is not what "connect broker token keys --instance" prints`)
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, "", wrong
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	key, ok := parsed.(ed25519.PrivateKey)
	if err != nil || !ok {
		return nil, "", wrong
	}
	return key, block.Headers["Key-Id"], nil
}

const maxTokenDays = 90

// issuerName is what a list that is separated by commas, in an environment, can hold.
var issuerName = regexp.MustCompile(`^[A-Za-z0-9._:/@+-]{1,100}$`)

// noteOpen warns where what is printed goes to a file that others read.
func (c *cli) noteOpen() {
	f, ok := c.out.(*os.File)
	if !ok {
		return
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && othersRead(info) {
		c.note("warning: the file that this goes to can be read by others (mode %04o), and it is secret: chmod 600 it; umask 077 before makes it so", info.Mode().Perm())
	}
}

func (c *cli) brokerSignCommand() *cobra.Command {
	var (
		file, kid, issuer, audience, bound string
		origins, members                   []string
		days                               int
	)
	cmd := &cobra.Command{
		Use:   "sign --key-file FILE --issuer NAME --broker URL --origin ORIGIN",
		Short: "Sign the token by which an instance's sidecar has connections refreshed",
		Long: `Sign makes a token for an instance: whoever holds it may have the refresh tokens of
these origins' members refreshed, and no others. --cli lets a member's own program do so
with its own connections alone, by the id of its key. The token is secret; with --jkt it
is of use only beside a proof by that key (DPoP).`,
		Example: `  (umask 077; connect broker token sign --key-file instance-key.pem --issuer chat.example \
    --broker https://connect.example --origin https://chat.example --days 30 > chat.token)`,
		Args: words(0, 0, "connect broker token sign takes flags alone"),
		RunE: func(*cobra.Command, []string) error {
			if file == "" || issuer == "" || audience == "" {
				return usagef("", "--key-file, --issuer and --broker are needed")
			}
			if !issuerName.MatchString(issuer) {
				return usagef("such as --issuer chat.example", "--issuer is 1 to 100 letters, digits or ._:/@+-, as "+envRefused+" can name it")
			}
			if days < 1 || days > maxTokenDays {
				return usagef("", "--days is 1 to %d", maxTokenDays)
			}
			if err := checkBrokerOrigin(audience); err != nil {
				return usagef("a token for another spelling would be turned away", "--broker: %w", err)
			}
			key, id, err := readSigningKey(file)
			if err != nil {
				return usagef("", "--key-file: %w", err)
			}
			if kid == "" {
				kid = id
			}
			if !brokerKeyID.MatchString(kid) {
				return usagef("--kid names it", "--key-file: the file does not tell the key's id")
			}
			all := slices.Clone(origins)
			for _, m := range members {
				all = append(all, "cli:"+m)
			}
			if len(all) == 0 {
				return usagef("such as --origin https://chat.example", "a token is for at least one --origin or --cli")
			}
			c.noteOpen()
			now := time.Now()
			claims := broker.Claims{Origins: all, RegisteredClaims: jwt.RegisteredClaims{
				Issuer: issuer, Audience: jwt.ClaimStrings{audience}, ID: rand.Text(),
				IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Duration(days) * 24 * time.Hour)),
			}}
			if bound != "" {
				claims.Bound = &broker.Confirmation{JKT: bound}
			}
			token, err := broker.SignToken(key, kid, claims)
			if err != nil {
				return usagef("an origin is such as https://chat.example; --cli takes a key's id, of 43 characters", "%w", err)
			}
			c.note("Token %s of %s, until %s UTC. To turn it away before, add its id or its issuer to %s.",
				claims.ID, issuer, claims.ExpiresAt.UTC().Format(time.DateTime), envRefused)
			_, err = fmt.Fprintln(c.out, token)
			return err
		},
	}
	cmd.Flags().StringVar(&file, "key-file", "", "the private key, a `FILE` that keys --instance made")
	cmd.Flags().StringVar(&kid, "kid", "", "the key's `NAME`, where the file does not tell it")
	cmd.Flags().StringVar(&issuer, "issuer", "", "the instance's `NAME`")
	cmd.Flags().StringVar(&audience, "broker", "", "the broker's own origin, as its "+envPublicURL+" has it (`URL`)")
	cmd.Flags().StringArrayVar(&origins, "origin", nil, "an `ORIGIN` of the instance; may be repeated")
	cmd.Flags().StringArrayVar(&members, "cli", nil, "the id of the key of a member's own program, as connect key shows it (`KEY`); may be repeated")
	cmd.Flags().IntVar(&days, "days", 30, "how many `DAYS` it is good for, at most 90")
	cmd.Flags().StringVar(&bound, "jkt", "", "bind it to the key with this `THUMBPRINT`")
	cmd.Flags().SortFlags = false
	return cmd
}
