package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
	"github.com/elevenmessenger/connect/sidecar/local"
)

// A sidecarStatus is what the daemon answers, as this command needs it.
type sidecarStatus struct {
	Version  string           `json:"version"`
	Uptime   int64            `json:"uptime"`
	Bots     int              `json:"bots"`
	Counters sidecar.Counters `json:"counters"`
	Links    []local.Link     `json:"links"`
}

// maxStatus bounds the daemon's answer.
const maxStatus = 1 << 20

func (c *cli) sidecarStatusCommand() *cobra.Command {
	var home sidecarHome
	var listen, bearerFile string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Ask the running sidecar how it is",
		Long: `Status asks the sidecar that runs on the folder for its numbers. For one that listens
elsewhere give the same --listen and --bearer-file as to it.`,
		Args: words(0, 0, "connect sidecar status takes no words"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := home.path()
			if err != nil {
				return err
			}
			at, err := parseSidecarAddress(listen, dir, bearerFile)
			if err != nil {
				return err
			}
			token, err := bearer(bearerFile, false)
			if err != nil {
				return err
			}
			body, err := askSidecar(cmd.Context(), at, token, "/v1/status")
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(c.out, json.RawMessage(body))
			}
			var s sidecarStatus
			if err := json.Unmarshal(body, &s); err != nil {
				return errors.New("that is not a sidecar's answer")
			}
			return c.printStatus(&s)
		},
	}
	home.add(cmd)
	cmd.Flags().Lookup("keychain").Hidden = true
	cmd.Flags().StringVar(&listen, "listen", "", "where it listens: unix:PATH or a loopback `ADDRESS:PORT`")
	cmd.Flags().StringVar(&bearerFile, "bearer-file", "", "the token that an address asks for is in `FILE`")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

// askSidecar asks a running sidecar.
func askSidecar(ctx context.Context, at sidecarAddress, token integrations.Secret, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	host := "sidecar"
	if at.tcp != "" {
		host = at.tcp
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+host+path, nil)
	if err != nil {
		return nil, err
	}
	if !token.IsZero() {
		req.Header.Set("Authorization", "Bearer "+token.Reveal())
	}
	hc := &http.Client{
		Transport:     &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return at.dial(ctx) }, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	res, err := hc.Do(req)
	if err != nil {
		return nil, &hintedError{&noSidecarError{err}, "connect sidecar starts one; --home and --listen say where it is"}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxStatus))
	if err != nil {
		return nil, &noSidecarError{err}
	}
	if res.StatusCode != http.StatusOK {
		return nil, refusedf("give the same --listen and --bearer-file as to the sidecar", "what listens there answers %d", res.StatusCode)
	}
	return body, nil
}

// A noSidecarError means that none answers. It ends the program like a service that cannot be
// reached.
type noSidecarError struct{ err error }

func (e *noSidecarError) Error() string { return "no sidecar answers there" }
func (e *noSidecarError) Unwrap() []error {
	return []error{integrations.ErrUnreachable, e.err}
}

func (c *cli) printStatus(s *sidecarStatus) error {
	n := &s.Counters
	_, err := fmt.Fprintf(c.out, `version      %s
up           %s, since %s
bots         %d
operations   %d run, %d running, %d waiting
refused      %d by a check, %d busy
failed       %d
no answer    %d
renewals     %d, %d failed
outbox       %d
`, printable(s.Version), time.Duration(s.Uptime)*time.Second, time.Unix(n.Started, 0).UTC().Format(time.DateTime+" UTC"), s.Bots,
		n.Operations, n.Running, n.Waiting, n.Refused, n.Busy, n.Failed, n.Dropped, n.Rotations, n.NotRotated, n.Outbox)
	for _, l := range s.Links {
		state := "not connected"
		switch {
		case l.Connected:
			state = "connected"
		case l.Standby:
			state = "standing by for another process of the folder"
		}
		if err == nil {
			_, err = fmt.Fprintf(c.out, "%-12s %s since %s\n", printable(l.Bot), state, time.Unix(l.Since, 0).UTC().Format(time.DateTime+" UTC"))
		}
	}
	return err
}

var keyIDWord = regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`)

func (c *cli) sidecarTrustCommand() *cobra.Command {
	var home sidecarHome
	var end, asJSON bool
	cmd := &cobra.Command{
		Use:   "trust [KEY]",
		Short: "Take a member's new key, or list the keys that are held",
		Long: `A member's key is kept as it was first seen. Another key under the same name is held: it may
be the same person's new one, or somebody else's, and nothing of it is run. Without a word
trust lists those keys. When you have compared the fingerprint with the person, "trust KEY"
takes the key; --end holds one that was taken, such as a lost device's. A sidecar that runs
knows at once.`,
		Args: words(0, 1, "connect sidecar trust lists the keys, connect sidecar trust KEY takes one"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			dir, err := home.open(false)
			if err != nil {
				return err
			}
			db, err := openSidecarDB(ctx, dir)
			if err != nil {
				return err
			}
			defer db.close()
			if len(args) == 0 {
				if end {
					return usagef("connect sidecar trust --end KEY", "--end needs a key")
				}
				return c.listHeld(ctx, db, asJSON)
			}
			if !keyIDWord.MatchString(args[0]) {
				return usagef("connect sidecar trust lists those that are held", "a key is named by its id, 43 characters")
			}
			state, say := memberTaken, "What it grants is run from now on."
			if end {
				state, say = memberHeld, "Nothing of it is run from now on."
			}
			found, err := db.setMember(ctx, custody.KeyID(args[0]), state)
			switch {
			case err != nil:
				return fmt.Errorf("the sidecar's state: %w", err)
			case !found:
				return usagef("connect sidecar trust lists those that are held", "no member with that key has written to a bot here")
			}
			c.note("%s", say)
			return nil
		},
	}
	home.add(cmd)
	cmd.Flags().Lookup("keychain").Hidden = true
	cmd.Flags().BoolVar(&end, "end", false, "hold the key from now on")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

func (c *cli) listHeld(ctx context.Context, db *sidecarDB, asJSON bool) error {
	held, err := db.members(ctx, memberHeld)
	if err != nil {
		return fmt.Errorf("the sidecar's state: %w", err)
	}
	if asJSON {
		return writeJSON(c.out, append([]*pinned{}, held...))
	}
	for _, p := range held {
		if _, err := fmt.Fprintf(c.out, "%s\n  name         %s\n  fingerprint  %s\n  since        %s\n", p.ID, printable(p.Name), fingerprint(p.Key), time.Unix(p.Since, 0).UTC().Format(time.DateTime+" UTC")); err != nil {
			return err
		}
	}
	if len(held) == 0 {
		c.note("No key is held.")
	}
	return nil
}
