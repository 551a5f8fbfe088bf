package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/sidecar"
)

// keys opens the bots' keys, and makes those of bots that never had one where make says so.
func (h *sidecarHome) keys(ctx context.Context, dir string, named []string, db *sidecarDB, make bool, log *slog.Logger) ([]*botKey, error) {
	names, err := h.names(dir, named)
	if err != nil {
		return nil, err
	}
	store := keyStore{dir, h.keychain}
	var all []*botKey
	for _, name := range names {
		last, err := db.bot(ctx, name)
		if err != nil {
			return nil, fmt.Errorf("the sidecar's state: %w", err)
		}
		k, err := store.get(name)
		if errors.Is(err, errNoKey) {
			switch {
			case last != "":
				return nil, refusedf("put it back where it was (--keychain, LoadCredential, or the file from a backup); connect sidecar key rotate "+name+" makes a new one", "the key of %s is not there any more", name)
			case !make:
				return nil, usagef("connect sidecar key --bot "+name+" makes it", "there is no bot called %s in the folder", name)
			}
			if k, err = store.make(name); err == nil {
				log.Info("a key was made", "bot", name, "id", k.id.ID(), "where", k.where)
			}
		}
		if err != nil {
			return nil, err
		}
		for _, other := range all {
			if other.id.ID() == k.id.ID() {
				return nil, usagef("", "%s and %s have the same key", other.name, name)
			}
		}
		if last != "" && last != k.id.ID() {
			log.Warn("a bot has another key than before; members compare fingerprints and grant anew", "bot", name, "id", k.id.ID())
		}
		if last != k.id.ID() {
			if err := db.setBot(ctx, name, k.id.ID()); err != nil {
				return nil, fmt.Errorf("the sidecar's state: %w", err)
			}
		}
		all = append(all, k)
	}
	return all, nil
}

// A keyInfo is what a person may know of a bot's key.
type keyInfo struct {
	Bot         string            `json:"bot"`
	ID          custody.KeyID     `json:"id"`
	Key         custody.PublicKey `json:"key"`
	Fingerprint string            `json:"fingerprint"`
	Where       string            `json:"where"`
}

func infoOf(k *botKey) keyInfo {
	return keyInfo{k.name, k.id.ID(), k.id.Public(), fingerprint(k.id.Public()), k.where}
}

func (c *cli) printKey(k keyInfo) error {
	point, err := k.Key.MarshalText()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(c.out, "%s\n  id           %s\n  fingerprint  %s\n  key          %s\n  kept in      %s\n", k.Bot, k.ID, k.Fingerprint, point, k.Where)
	return err
}

func (c *cli) sidecarKeyCommand() *cobra.Command {
	var home sidecarHome
	var bots []string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "key",
		Short: "Show the bots' public keys",
		Long: `Key shows each bot's public key, its id and its fingerprint, none of which is secret, and
makes the key of a bot that is named and has none yet. A member who reads the same
fingerprint on her own screen knows that the bot is the right one.`,
		Args: words(0, 0, "connect sidecar key, or connect sidecar key rotate NAME"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			dir, err := home.open(len(bots) > 0)
			if err != nil {
				return err
			}
			db, err := openSidecarDB(ctx, dir)
			if err != nil {
				return err
			}
			defer db.close()
			keys, err := home.keys(ctx, dir, bots, db, true, slog.New(slog.DiscardHandler))
			if err != nil {
				return err
			}
			all := []keyInfo{}
			for _, k := range keys {
				all = append(all, infoOf(k))
			}
			if asJSON {
				return writeJSON(c.out, all)
			}
			for _, k := range all {
				if err := c.printKey(k); err != nil {
					return err
				}
			}
			return nil
		},
	}
	home.add(cmd)
	cmd.Flags().StringArrayVar(&bots, "bot", nil, "a bot's `NAME`; may be repeated; left out, all whose keys are in the folder")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	cmd.AddCommand(c.sidecarRotateCommand())
	return cmd
}

func (c *cli) sidecarRotateCommand() *cobra.Command {
	var home sidecarHome
	var losePairs, asJSON bool
	cmd := &cobra.Command{
		Use:   "rotate NAME",
		Short: "Give a bot a new key, which ends all grants of the old one",
		Long: `Rotate makes a new key for a bot and destroys the old one: what was sealed to it opens no
more, so all grants to the bot end. For members it is a new bot. No sidecar may run on the
folder meanwhile. Copies of the old key, in backups for example, are yours to destroy.`,
		Args: words(1, 1, "name the bot: connect sidecar key rotate NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, name := cmd.Context(), args[0]
			dir, err := home.open(false)
			if err != nil {
				return err
			}
			if _, err := home.names(dir, args); err != nil {
				return err
			}
			lock, err := home.hold(dir, true)
			if err != nil {
				return err
			}
			defer lock.Close()
			db, err := openSidecarDB(ctx, dir)
			if err != nil {
				return err
			}
			defer db.close()
			k, err := home.rotate(ctx, dir, name, db, losePairs)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(c.out, infoOf(k))
			} else {
				err = c.printKey(infoOf(k))
			}
			c.note("The old key is destroyed, and with it every grant to it. For members %s is a new bot: put it", name)
			c.note("into their threads, have them compare the fingerprint, and grant anew. What they lent the old")
			c.note("one comes back by itself when its time is over, at most a week.")
			return err
		},
	}
	home.add(cmd)
	cmd.Flags().BoolVar(&losePairs, "lose-pairs", false, "go ahead though renewed connections have not reached their members, who must connect them anew")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one line of JSON")
	return cmd
}

func (h *sidecarHome) rotate(ctx context.Context, dir, name string, db *sidecarDB, losePairs bool) (*botKey, error) {
	store := keyStore{dir, h.keychain}
	old, err := db.bot(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("the sidecar's state: %w", err)
	}
	have, err := store.get(name)
	switch {
	case errors.Is(err, errNoKey) && old == "":
		return nil, usagef("connect sidecar key lists them", "there is no bot called %s in the folder", name)
	case err != nil && !errors.Is(err, errNoKey):
		return nil, err
	case have != nil:
		old = have.id.ID()
	}
	id, text, err := newKey()
	if err != nil {
		return nil, err
	}
	defer clear(text)
	// A renewed pair that only the outbox holds could not be sent by the new key.
	waiting, err := waitingOf(ctx, dir, id, old)
	switch {
	case err != nil:
		return nil, err
	case waiting > 0 && !losePairs:
		return nil, refusedf("run the sidecar until connect sidecar status shows an empty outbox, or say --lose-pairs",
			"%d renewed connections have not reached their members yet, who would have to connect anew", waiting)
	}
	if err := store.replace(name, text); err != nil {
		return nil, err
	}
	if err := db.setBot(ctx, name, id.ID()); err != nil {
		return nil, fmt.Errorf("the sidecar's state: %w", err)
	}
	return store.get(name)
}

// waitingOf counts the hand-backs that a bot's members have not acknowledged.
func waitingOf(ctx context.Context, dir string, any *custody.Identity, of custody.KeyID) (int, error) {
	core, err := sidecar.New(ctx, sidecar.Config{Bots: []*custody.Identity{any}, Dir: dir})
	if err != nil {
		return 0, err
	}
	ending, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	defer core.Close(ending)
	all, err := core.Waiting(ctx)
	n := 0
	for _, e := range all {
		if e.From == of {
			n++
		}
	}
	return n, err
}
