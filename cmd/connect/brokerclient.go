package main

import (
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// envBrokerToken is where a broker's token comes from when no file is named.
const envBrokerToken = "CONNECT_BROKER_TOKEN"

// brokerTokenService is the service of the credential that a broker's token is stored as.
const brokerTokenService = "connect-broker"

// brokerTokenFlag says where the token for a broker comes from. One that is given is kept,
// sealed like a connection, for the commands that follow.
type brokerTokenFlag struct{ file string }

func (f *brokerTokenFlag) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.file, "broker-token-file", "", "take the token by which the broker answers this program from `FILE`, and keep it; also $"+envBrokerToken)
}

// checkBrokerToken looks at what can be known of a token without its broker, and returns its
// end. The broker alone decides.
func checkBrokerToken(text, origin string, member custody.KeyID, now time.Time) (time.Time, error) {
	var claims broker.Claims
	if _, _, err := jwt.NewParser().ParseUnverified(text, &claims); err != nil || len(text) > maxTokenFile || claims.ExpiresAt == nil {
		return time.Time{}, errors.New(`it is no token that "connect broker token sign" makes`)
	}
	until := claims.ExpiresAt.Time
	switch {
	case !slices.Contains(claims.Audience, origin):
		return until, errors.New("it is for another broker than " + origin)
	case !slices.Contains(claims.Origins, "cli:"+string(member)):
		return until, errors.New("it is for another key than this member's")
	case claims.Bound != nil:
		return until, errors.New("it is bound to a key of another program (--jkt)")
	case !now.Before(until):
		return until, fmt.Errorf("it ended at %s", until.UTC().Format(time.DateTime+" UTC"))
	}
	return until, nil
}

// client returns the client of a broker. Its token is the one that is given, else the stored
// one, else none.
func (f *brokerTokenFlag) client(c *cli, v *vault, n *networkFlags, origin string) (*sidecar.Broker, error) {
	b := &sidecar.Broker{Origin: origin, Client: n.client()}
	text, from := strings.TrimSpace(os.Getenv(envBrokerToken)), envBrokerToken
	if f.file != "" {
		data, err := readFile(f.file, maxTokenFile)
		if err != nil {
			return nil, usagef("", "--broker-token-file: the file %w", err)
		}
		text, from = strings.TrimSpace(string(data)), "--broker-token-file"
	}
	stored, err := v.brokerToken(origin)
	if err != nil {
		c.note("warning: %v", err)
	}
	if text != "" || f.file != "" {
		until, err := checkBrokerToken(text, origin, v.member.ID(), time.Now())
		switch {
		case err != nil && f.file != "":
			return nil, usagef("connect key tells the key that the operator signs one for, by connect broker token sign --cli KEY --broker "+origin, "%s: %w", from, err)
		case err != nil:
			c.note("note: %s is not used: %v", from, err)
		default:
			b.Token = integrations.NewSecret(text)
			if stored == nil || stored.Secret != b.Token {
				if err := v.putBrokerToken(origin, b.Token, until, stored); err != nil {
					c.note("warning: the broker's token is used and could not be kept: %v", err)
				}
			}
			return b, nil
		}
	}
	if stored != nil && time.Now().Before(time.Unix(stored.ExpiresAt, 0)) {
		b.Token = stored.Secret
	}
	return b, nil
}

func brokerTokenID(origin string) string {
	sum := sha256.Sum256([]byte("connect/v1 broker token" + origin))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// brokerToken returns the stored token for a broker, nil where there is none.
func (v *vault) brokerToken(origin string) (*custody.Credential, error) {
	c, err := v.read(filepath.Join(v.dir, vaultBrokers, brokerTokenID(origin)+".json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil || c.Service != brokerTokenService || c.Account == nil || c.Account.ID != origin:
		return nil, fmt.Errorf("the stored token for %s does not open with this member's key; give it again with --broker-token-file", origin)
	}
	return c, nil
}

func (v *vault) putBrokerToken(origin string, token integrations.Secret, until time.Time, old *custody.Credential) error {
	now := time.Now().Unix()
	c := &custody.Credential{
		V: 1, ID: brokerTokenID(origin), Generation: 1, Pair: 1, Service: brokerTokenService, Kind: custody.KindPAT, Secret: token,
		ExpiresAt: until.Unix(), ObtainedAt: now, ConnectedAt: now, Account: &custody.Account{ID: origin, Label: origin},
	}
	if old != nil {
		c.Generation, c.Pair, c.ConnectedAt = old.Generation+1, old.Pair+1, old.ConnectedAt
	}
	return v.write(vaultBrokers, c)
}
