package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/instance/client"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
	"github.com/elevenmessenger/connect/sidecar/local"
)

// Where what is secret comes from when no file is named.
const (
	envInstanceToken  = "CONNECT_INSTANCE_TOKEN"
	envInstanceInvite = "CONNECT_INVITE"
)

// What the sidecar's own numbers are, where no flag says otherwise.
const (
	sidecarOperations = 256
	sidecarQueue      = 1024
	sidecarOpTimeout  = time.Minute
	sidecarMaxTimeout = 10 * time.Minute
)

// A sidecarDaemon is what the flags of connect sidecar say.
type sidecarDaemon struct {
	home                        sidecarHome
	registry                    registryFlag
	network                     networkFlags
	replicas                    replicaFlags
	bots, brokers               []string
	instance, space, inviteFile string
	tokenFiles                  []string
	listen, bearerFile          string
	operations, queue, member   int
	opTimeout                   time.Duration
	noLegacy                    bool
}

func (c *cli) sidecarCommand() *cobra.Command {
	var d sidecarDaemon
	cmd := &cobra.Command{
		Use:   "sidecar",
		Short: "Run the device of one or more bots",
		Long: `Sidecar opens what members grant to its bots, checks it, and runs the one operation that
was granted. It receives from an instance with --instance, and answers a bot's own program
over a socket in its folder, or on a loopback address with --listen and --bearer-file:
docs/sidecar-openapi.json describes that API.

A bot's key is made on the first run. It is a file in the folder that nobody else may read,
or NAME.pem among systemd's credentials (LoadCredential), or with --keychain in the
operating system's keychain. Processes that share a folder count as one: one of them receives
from the instance, and another takes over when it ends. Replicas on several machines share
a NATS bucket (--replicas); there one alone has --instance.

The broker's token comes from --instance-token-file or $` + envInstanceToken + `, an invite to the
instance's space from --invite-file or $` + envInstanceInvite + `.

SIGTERM and Ctrl-C take nothing more, and finish and answer what was sent; a second one
ends the program at once. The log is JSON, to standard error, and holds no content.`,
		Example: `  connect sidecar --bot helper --instance https://chat.example
  connect sidecar --bot helper --listen 127.0.0.1:8390 --bearer-file bearer`,
		Args: words(0, 0, "connect sidecar takes no words; --bot names a bot"),
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd.Context(), c) },
	}
	f := cmd.Flags()
	d.home.add(cmd)
	f.StringArrayVar(&d.bots, "bot", nil, "a bot's `NAME`; may be repeated; left out, all whose keys are in the folder")
	f.StringVar(&d.instance, "instance", "", "the instance's origin, such as https://chat.example; its `URL`")
	f.StringVar(&d.space, "space", "", "the `ID` of the space that the instance must be of")
	f.StringVar(&d.inviteFile, "invite-file", "", "take the invite to the instance's space from `FILE` (mode 0600)")
	f.StringArrayVar(&d.brokers, "broker", nil, "the `URL` of a broker that renews members' connections; may be repeated")
	f.StringArrayVar(&d.tokenFiles, "instance-token-file", nil, "take a broker's token for the instance from `FILE` (mode 0600); may be repeated")
	d.replicas.add(cmd)
	f.StringVar(&d.listen, "listen", "", "answer the bot's program on unix:PATH or a loopback `ADDRESS:PORT`; left out, a socket in the folder")
	f.StringVar(&d.bearerFile, "bearer-file", "", "the token that an address asks for is in `FILE` (mode 0600), which is made where it is not there")
	f.IntVar(&d.operations, "max-operations", sidecarOperations, "run at most `N` operations at once")
	f.IntVar(&d.queue, "max-queue", sidecarQueue, "let at most `N` wait for one of those; -1: none")
	f.IntVar(&d.member, "max-per-member", 0, "let one member have at most `N` of both; 0: a quarter")
	f.DurationVar(&d.opTimeout, "op-timeout", sidecarOpTimeout, "give up an operation, with all that belongs to it, after this `DURATION`")
	f.BoolVar(&d.noLegacy, "no-legacy", false, "take no ops of before, which know no version")
	d.registry.add(cmd)
	d.network.addReach(cmd)
	f.SortFlags = false
	cmd.AddCommand(c.sidecarKeyCommand(), c.sidecarStatusCommand(), c.sidecarTrustCommand())
	return cmd
}

// check looks at what can be said without the folder.
func (d *sidecarDaemon) check() error {
	switch {
	case d.operations < 1 || d.operations > 100_000:
		return usagef("", "--max-operations is 1 to 100000")
	case d.queue < -1 || d.queue == 0 || d.queue > 1_000_000:
		return usagef("-1 lets none wait", "--max-queue is -1, or 1 to 1000000")
	case d.member < 0:
		return usagef("", "--max-per-member is 0 or more")
	case d.opTimeout < time.Second || d.opTimeout > sidecarMaxTimeout:
		return usagef("such as --op-timeout 1m", "--op-timeout is one second to %s", sidecarMaxTimeout)
	case d.instance == "" && (d.space != "" || d.inviteFile != ""):
		return usagef("name it: --instance https://chat.example", "--space and --invite-file belong to an instance")
	case len(d.brokers) == 0 && len(d.tokenFiles) > 0:
		return usagef("name it: --broker https://connect.example", "--instance-token-file belongs to a broker")
	}
	if err := d.replicas.check(); err != nil {
		return err
	}
	if d.instance != "" {
		o, err := daemonOrigin(d.instance)
		if err != nil {
			return usagef("such as --instance https://chat.example", "--instance %w", err)
		}
		d.instance = o
	}
	for i, b := range d.brokers {
		o, err := daemonOrigin(b)
		switch {
		case err != nil:
			return usagef("such as --broker https://connect.example", "--broker %w", err)
		case slices.Contains(d.brokers[:i], o):
			return usagef("", "--broker names the same broker twice")
		}
		d.brokers[i] = o
	}
	return nil
}

// daemonOrigin reads an origin: https, or http to this machine.
func daemonOrigin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" || u.Scheme != "https" && u.Scheme != "http" {
		return "", errors.New("is an origin, without path or query")
	}
	if u.Scheme == "http" && !isLoopback(u.Hostname()) {
		return "", errors.New("is https: tokens travel to it")
	}
	return u.Scheme + "://" + strings.ToLower(u.Host), nil
}

// clients returns the clients of the brokers, each with the token that was signed for it.
func (d *sidecarDaemon) clients(logger *slog.Logger) ([]*sidecar.Broker, error) {
	type given struct{ from, text string }
	var tokens []given
	for _, file := range d.tokenFiles {
		text, err := readSecret("--instance-token-file", file)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, given{"--instance-token-file", text})
	}
	if text := strings.TrimSpace(os.Getenv(envInstanceToken)); text != "" && len(d.brokers) > 0 {
		tokens = append(tokens, given{"$" + envInstanceToken, text})
	}
	const hint = "connect broker token sign --broker URL --origin INSTANCE makes one"
	now := time.Now()
	var all []*sidecar.Broker
	for _, origin := range d.brokers {
		b := &sidecar.Broker{Origin: origin, Client: d.network.client()}
		for _, t := range tokens {
			var claims broker.Claims
			if _, _, err := jwt.NewParser().ParseUnverified(t.text, &claims); err != nil || claims.ExpiresAt == nil {
				return nil, usagef(hint, "%s holds no token that a broker's operator signs", t.from)
			}
			if !slices.Contains(claims.Audience, origin) {
				continue
			}
			left := claims.ExpiresAt.Sub(now)
			switch {
			case left <= 0:
				return nil, usagef(hint, "%s: the token for %s has ended", t.from, origin)
			case claims.Bound != nil:
				return nil, usagef("sign one without --jkt", "%s: the token for %s is bound to a key of another program", t.from, origin)
			case left < 7*24*time.Hour:
				logger.Warn("a broker's token ends soon; put a new one there and start again", "broker", origin, "until", claims.ExpiresAt.UTC())
			}
			b.Token = integrations.NewSecret(t.text)
		}
		if b.Token.IsZero() {
			return nil, usagef(hint, "there is no token for %s: --instance-token-file, or $%s", origin, envInstanceToken)
		}
		all = append(all, b)
	}
	return all, nil
}

func (d *sidecarDaemon) run(ctx context.Context, c *cli) error {
	logger := slog.New(slog.NewJSONHandler(c.err, nil))
	if err := d.check(); err != nil {
		return err
	}
	reg, err := d.registry.load(c)
	if err != nil {
		return err
	}
	if err := d.network.readFor(reg, append([]string{d.instance}, d.brokers...), logger); err != nil {
		return err
	}
	cfg := sidecar.Config{Registry: reg, Executor: d.network.services(), MaxOperations: d.operations, MaxQueue: d.queue, MaxPerMember: d.member,
		OpTimeout: d.opTimeout, NoLegacy: d.noLegacy, Logger: logger}
	if cfg.Brokers, err = d.clients(logger); err != nil {
		return err
	}
	if cfg.Secret, err = d.replicas.secret(); err != nil {
		return err
	}
	invite := strings.TrimSpace(os.Getenv(envInstanceInvite))
	if d.inviteFile != "" {
		if invite, err = readSecret("--invite-file", d.inviteFile); err != nil {
			return err
		}
	}
	if cfg.Dir, err = d.home.open(true); err != nil {
		return err
	}
	at, err := parseSidecarAddress(d.listen, cfg.Dir, d.bearerFile)
	if err != nil {
		return err
	}
	token, err := bearer(d.bearerFile, true)
	if err != nil {
		return err
	}
	lock, err := d.home.hold(cfg.Dir, false)
	if err != nil {
		return err
	}
	defer lock.Close()
	db, err := openSidecarDB(ctx, cfg.Dir)
	if err != nil {
		return err
	}
	defer db.close()
	keys, err := d.home.keys(ctx, cfg.Dir, d.bots, db, true, logger)
	if err != nil {
		return err
	}
	names := make(map[custody.KeyID]string)
	for _, k := range keys {
		cfg.Bots = append(cfg.Bots, k.id)
		names[k.id.ID()] = k.name
	}
	if cfg.Group, err = db.group(ctx, cfg.Secret); err != nil {
		return fmt.Errorf("the sidecar's state: %w", err)
	}
	var leave func()
	if cfg.Replicas, leave, err = d.replicas.open(ctx, &d.network, cfg.Group); err != nil {
		return err
	}
	defer leave()
	ln, err := at.listen()
	if err != nil {
		return err
	}
	defer ln.Close()
	core, err := sidecar.New(ctx, cfg)
	if err != nil {
		return err
	}
	room := make(chan struct{}, min(d.operations+max(d.queue, 0), 1024))
	var links []*sidecarLink
	for _, k := range keys {
		if d.instance != "" {
			links = append(links, &sidecarLink{name: k.name, id: k.id, core: core, db: db, dir: cfg.Dir, instance: d.instance, group: cfg.Group, log: logger, room: room,
				options: client.Options{Space: d.space, HTTPClient: d.network.keeping(), Join: &client.Join{Kind: "bot", Name: k.name, Group: cfg.Group, Invite: invite}}})
		}
	}
	api := local.Config{Sidecar: core, Registry: reg, Names: names, Bearer: token, Version: version(), Logger: logger, Links: func() []local.Link {
		var all []local.Link
		for _, l := range links {
			all = append(all, l.link())
		}
		return all
	}}
	if at.tcp != "" {
		api.Host = ln.Addr().String()
	}
	handler, err := local.New(api)
	if err != nil {
		return err
	}
	srv := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 2 * time.Minute,
		WriteTimeout: 2*d.opTimeout + 30*time.Second, MaxHeaderBytes: 32 << 10, ErrorLog: log.New(io.Discard, "", 0)}
	where := "unix:" + at.socket
	if at.tcp != "" {
		where = ln.Addr().String()
	}
	logger.Info("ready", "version", version(), "listen", where, "bots", len(keys), "group", cfg.Group)
	return d.serve(ctx, srv, func() error { return srv.Serve(ln) }, links, core, logger)
}

// serve runs until ctx ends or something fails, and then finishes what was sent.
func (d *sidecarDaemon) serve(ctx context.Context, srv *http.Server, listen func() error, links []*sidecarLink, core *sidecar.Sidecar, logger *slog.Logger) error {
	taking, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	work, finish := context.WithCancel(context.WithoutCancel(ctx))
	defer finish()
	var running sync.WaitGroup
	for _, l := range links {
		running.Go(func() {
			if err := l.run(taking, work); err != nil {
				stop(err)
			}
		})
	}
	go func() {
		if err := listen(); !errors.Is(err, http.ErrServerClosed) {
			stop(fmt.Errorf("the sidecar has stopped listening: %w", err))
		}
	}()
	<-taking.Done()
	failed := context.Cause(taking)
	if ctx.Err() != nil {
		failed = nil // it was asked to stop
	}
	logger.Info("stopping: what was sent is finished and answered")
	// A change that has begun has the time of an operation, and one more for what was before it.
	limit := 2*d.opTimeout + 10*time.Second
	ending, cancel := context.WithTimeout(work, limit)
	defer cancel()
	answered := make(chan struct{})
	go func() { defer close(answered); running.Wait() }()
	err := srv.Shutdown(ending)
	select {
	case <-answered:
	case <-ending.Done():
		err = errors.Join(err, ending.Err())
		finish()
		<-answered
	}
	if cerr := core.Close(ending); cerr != nil {
		err = errors.Join(err, cerr)
	}
	if err != nil {
		err = fmt.Errorf("not everything ended within %s; what is missing is answered after the next start", limit)
	}
	logger.Info("stopped")
	return errors.Join(failed, err)
}
