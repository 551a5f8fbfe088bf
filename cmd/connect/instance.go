package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/instance"
)

// How long the instance waits for others. A stream is no request: it has times of its own.
var instanceTimes = serverTimes{read: 30 * time.Second, write: 30 * time.Second, stop: 20 * time.Second, maxHeader: 16 << 10}

const instanceFile = "instance.db"

func (c *cli) instanceCommand() *cobra.Command {
	var s instanceServer
	cmd := &cobra.Command{
		Use:   "instance",
		Short: "Run the reference instance: the messenger server of one space",
		Long: `Instance relays sealed messages between the members and bots of one space, keeps their
sealed blobs and links their devices. It holds no key that opens anything. docs/instance.md
is its API.

It keeps one SQLite file, and one process has it open. It speaks TLS with --cert and --key,
which are read again when they change, or plain HTTP to this machine alone or to a proxy
that speaks TLS in its place. SIGTERM and Ctrl-C let the requests that are under way end
first; a second one does not.

A new key joins the space with its invite, which --invite-file or $CONNECT_INVITE holds.
Without one, whoever reaches the instance may join: that is for this machine alone.

The log is one line of JSON a request, to standard error: its route, status and time, and
nothing of what it held or who sent it.`,
		Example: `  connect instance --space home
  connect instance --space home --listen :443 --cert fullchain.pem --key privkey.pem \
      --origin https://chat.example --invite-file invite --broker https://connect.example`,
		Args: words(0, 0, "connect instance takes no words, only flags"),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), c) },
	}
	s.home.add(cmd)
	cmd.Flags().Lookup("home").Usage = "the `DIR` in which " + instanceFile + " is kept; left out, $XDG_CONFIG_HOME/connect"
	f := cmd.Flags()
	s.server.add(f, "127.0.0.1:8090")
	f.StringVar(&s.db, "db", "", "the SQLite `FILE`, instead of the one in --home")
	f.StringVar(&s.space, "space", "", "the space's `ID`, which every message is bound to and which never changes")
	f.StringVar(&s.origin, "origin", "", "the `ORIGIN` at which clients reach it; left out on this machine, the address that it listens on")
	f.StringVar(&s.broker, "broker", "", "the `ORIGIN` of the broker that connects accounts, and whose registry is shown")
	f.StringVar(&s.invite, "invite-file", "", "take the space's invite from this `FILE` (mode 0600)")
	f.StringVar(&s.web, "web", "", "serve the web client's files from this `DIR`")
	return cmd
}

type instanceServer struct {
	server                                 webServer
	home                                   homeFlag
	db, space, origin, broker, invite, web string
}

// check says what is wrong with the flags by themselves, and whether other machines are meant
// to reach the instance.
func (s *instanceServer) check() (public bool, err error) {
	loopback, err := s.server.check("127.0.0.1:8090", "sessions")
	switch {
	case err != nil:
		return false, err
	case s.space == "":
		return false, usagef("such as --space home", "--space names the space: 1 to 64 letters, digits, _, - and dots")
	}
	public = !loopback || s.server.plain
	if s.origin != "" {
		u, err := url.Parse(s.origin)
		public = public || err != nil || !isLoopback(u.Hostname())
	}
	if public && s.origin == "" {
		return true, usagef("such as --origin https://chat.example", "--origin says where clients reach it, so that no other name opens it")
	}
	return public, nil
}

func (s *instanceServer) run(ctx context.Context, c *cli) error {
	public, err := s.check()
	if err != nil {
		return err
	}
	cfg := instance.Config{Space: s.space, Origin: s.origin, Broker: s.broker, Logger: slog.New(slog.NewJSONHandler(c.err, nil))}
	if cfg.Invite, err = s.readInvite(); err != nil {
		return err
	}
	if public && cfg.Invite == "" {
		return usagef("write some words into a file of mode 0600 and name it: --invite-file FILE", "without an invite whoever reaches the instance could join the space")
	}
	if s.web != "" {
		root, err := os.OpenRoot(s.web)
		if err != nil {
			return usagef("", "--web: the folder %w", withoutPath(err))
		}
		defer root.Close()
		cfg.Static = root.FS()
	}
	srv, err := s.server.server(instanceTimes)
	if err != nil {
		return err
	}
	if cfg.DB, err = s.file(); err != nil {
		return err
	}
	ln, err := s.server.open("instance")
	if err != nil {
		return err
	}
	scheme, words := s.server.scheme()
	if cfg.Origin == "" {
		cfg.Origin = scheme + "://" + ln.Addr().String()
	}
	in, err := instance.New(cfg)
	if err != nil {
		ln.Close()
		if errors.Is(err, instance.ErrStore) {
			return &hintedError{errors.New(instanceWords(err)), "--db names another file, --home another folder"}
		}
		return usagef("connect instance --help tells the flags", "%s", instanceWords(err))
	}
	srv.Handler = in
	if cfg.Invite == "" {
		c.note("note: there is no invite: whoever reaches this machine may join")
	}
	c.note("ready: %s on %s, as %s, space %s", words, ln.Addr(), cfg.Origin, s.space)
	err = s.server.serve(ctx, "instance", srv, ln, instanceTimes.stop)
	if err := errors.Join(err, in.Close()); err != nil { // which ends the streams
		return err
	}
	c.note("stopped")
	return nil
}

func (s *instanceServer) readInvite() (string, error) {
	if s.invite == "" {
		return strings.TrimSpace(os.Getenv("CONNECT_INVITE")), nil
	}
	return readSecret("--invite-file", s.invite)
}

// file returns the database's name, in a folder that its owner alone reads.
func (s *instanceServer) file() (string, error) {
	if s.db != "" {
		return s.db, nil
	}
	dir, err := s.home.path()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the folder of the instance: %w", withoutPath(err))
	}
	return filepath.Join(dir, instanceFile), nil
}

// instanceWords says a configuration's fault by the flag, not by the field.
func instanceWords(err error) string {
	s := strings.TrimPrefix(err.Error(), "instance: ")
	for _, f := range []struct{ field, flag string }{{"Space", "--space"}, {"Origin", "--origin"}, {"Broker", "--broker"}} {
		if rest, ok := strings.CutPrefix(s, f.field); ok {
			return f.flag + rest
		}
	}
	return s
}
