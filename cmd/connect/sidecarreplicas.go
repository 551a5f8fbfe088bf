package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/url"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// replicaFlags say what replicas on several machines share.
type replicaFlags struct {
	server, credsFile, secretFile string
	copies                        int
}

func (r *replicaFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.server, "replicas", "", "the NATS server with JetStream that replicas on several machines share; its `URL`, such as tls://nats.example")
	cmd.Flags().StringVar(&r.credsFile, "replicas-creds-file", "", "the server's credentials for it are in `FILE` (mode 0600)")
	cmd.Flags().IntVar(&r.copies, "replicas-copies", 1, "keep what they share on `N` servers: 1, 3 or 5")
	cmd.Flags().StringVar(&r.secretFile, "replica-secret-file", "", "take the secret that those replicas share from `FILE` (mode 0600)")
}

// check looks at what can be said without the server.
func (r *replicaFlags) check() error {
	if r.server == "" {
		if r.secretFile != "" || r.credsFile != "" {
			return usagef("name it: --replicas tls://nats.example; processes that share a folder need neither", "--replica-secret-file and --replicas-creds-file belong to replicas on several machines")
		}
		return nil
	}
	u, err := url.Parse(r.server)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Scheme != "tls" && u.Scheme != "nats":
		return usagef("such as --replicas tls://nats.example; credentials go into --replicas-creds-file", "--replicas is the address of a NATS server")
	case u.Scheme == "nats" && !isLoopback(u.Hostname()):
		return usagef("such as --replicas tls://nats.example", "--replicas: a server on another machine is reached by tls")
	case r.copies != 1 && r.copies != 3 && r.copies != 5:
		return usagef("", "--replicas-copies is 1, 3 or 5")
	case r.secretFile == "":
		return usagef("(umask 077; head -c 32 /dev/urandom | base64 > FILE) makes one, and all replicas have the same", "--replicas needs the secret that they share: --replica-secret-file")
	}
	return nil
}

// secret reads the secret that replicas share, nil where there are none.
func (r *replicaFlags) secret() ([]byte, error) {
	if r.secretFile == "" {
		return nil, nil
	}
	text, err := readSecret("--replica-secret-file", r.secretFile)
	if err != nil {
		return nil, err
	}
	if len(text) < 32 {
		return nil, usagef("such as: (umask 077; head -c 32 /dev/urandom | base64 > FILE)", "--replica-secret-file: the file holds less than 32 characters")
	}
	return []byte(text), nil
}

// open opens the bucket of a group, and returns what closes it; nil where there is none.
func (r *replicaFlags) open(ctx context.Context, n *networkFlags, group string) (jetstream.KeyValue, func(), error) {
	if r.server == "" {
		return nil, func() {}, nil
	}
	opts := []nats.Option{nats.Name("connect sidecar"), nats.Timeout(10 * time.Second), nats.MaxReconnects(-1)}
	if u, err := url.Parse(r.server); err == nil && u.Scheme == "tls" {
		opts = append(opts, nats.Secure(&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: n.roots}))
	}
	if r.credsFile != "" {
		if _, err := readSecret("--replicas-creds-file", r.credsFile); err != nil {
			return nil, nil, err
		}
		opts = append(opts, nats.UserCredentials(r.credsFile))
	}
	nc, err := nats.Connect(r.server, opts...)
	if err != nil {
		return nil, nil, &integrations.UnreachableError{Service: "the replicas' server", Err: err}
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, nil, fmt.Errorf("the replicas' server: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	kv, err := sidecar.OpenBucket(ctx, js, group, r.copies)
	if err != nil {
		nc.Close()
		return nil, nil, &hintedError{err, "the server needs JetStream (2.11 or later), and these credentials the right to make a bucket"}
	}
	return kv, nc.Close, nil
}
