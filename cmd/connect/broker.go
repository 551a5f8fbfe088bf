package main

import (
	"context"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/broker"
)

// How long the broker waits for others. A write covers two calls to a provider.
var brokerTimes = serverTimes{read: 15 * time.Second, write: 45 * time.Second, stop: 30 * time.Second, maxHeader: 32 << 10}

func (c *cli) brokerCommand() *cobra.Command {
	var s brokerServer
	cmd := &cobra.Command{
		Use:   "broker",
		Short: "Run the OAuth broker in one process",
		Long: `Broker serves the OAuth flows, refreshes and the registry of any number of instances,
and stores nothing. It speaks TLS with --cert and --key, which are read again when they
change, or plain HTTP to a proxy on this machine, which speaks TLS in its place. SIGTERM
and Ctrl-C let the requests that are under way end first; a second one does not.

Its configuration is its environment. Lists are separated by commas.

` + brokerVarsHelp() + `
--secrets-file is one JSON object of mode 0600, with an entry for each service:

` + secretsForm + `

"hosts": ["…"] beside the two is as LCHAT_OAUTH_<ID>_HOSTS, and "previous": {"client_id",
"client_secret"} the client before, while the provider still takes it. A public client has
no client_secret.

"connect broker token keys" makes the keys. The log is one line of JSON a request, to
standard error; it holds no address, code, token or secret.`,
		Example: `  connect broker --listen 127.0.0.1:8080
  connect broker --listen :443 --cert fullchain.pem --key privkey.pem --secrets-file secrets.json`,
		Args: words(0, 0, "connect broker takes no words; its configuration is its environment"),
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd.Context(), c) },
	}
	s.web.add(cmd.Flags(), "127.0.0.1:8080")
	cmd.Flags().StringVar(&s.secrets, "secrets-file", "", "take the OAuth clients from this JSON `FILE` (mode 0600), not from the environment; it is read again when it changes")
	cmd.AddCommand(c.brokerTokenCommand(), c.brokerDoctorCommand())
	return cmd
}

type brokerServer struct {
	web     webServer
	secrets string
}

func (s *brokerServer) run(ctx context.Context, c *cli) error {
	if _, err := s.web.check("127.0.0.1:8080", "secrets"); err != nil {
		return err
	}
	srv, err := s.web.server(brokerTimes)
	if err != nil {
		return err
	}
	cfg, err := brokerConfig(os.Getenv, s.secrets)
	if err != nil {
		return err
	}
	cfg.Logger = slog.New(slog.NewJSONHandler(c.err, nil))
	b, err := broker.New(cfg)
	if err != nil {
		return usagef("connect broker --help tells the variables", "%s", brokerWords(err))
	}
	sayOffered(ctx, c, cfg, b)
	srv.Handler = b
	ln, err := s.web.open("broker")
	if err != nil {
		return err
	}
	_, words := s.web.scheme()
	c.note("ready: %s on %s, as %s", words, ln.Addr(), cfg.PublicURL)
	if err := s.web.serve(ctx, "broker", srv, ln, brokerTimes.stop); err != nil {
		return err
	}
	c.note("stopped")
	return nil
}

// brokerWords says a configuration's fault by the variable, not by the field.
func brokerWords(err error) string {
	s := strings.TrimPrefix(err.Error(), "broker: ")
	for _, f := range []struct{ field, name string }{
		{"PublicURL", envPublicURL}, {"ReturnOrigins", envReturnOrigins}, {"Services", envServices},
		{"StateKeys", envStateKeys}, {"WrapKeys", envWrapKeys}, {"InstanceKeys", envInstanceKeys},
	} {
		if rest, ok := strings.CutPrefix(s, f.field); ok {
			return f.name + rest
		}
	}
	return s
}
