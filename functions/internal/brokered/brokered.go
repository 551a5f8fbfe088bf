// Package brokered makes the two functions that hold client secrets of their environment.
package brokered

import (
	"net/http"
	"os"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/awssecrets"
	"github.com/elevenmessenger/connect/functions/internal/env"
	"github.com/elevenmessenger/connect/functions/internal/services"
	"github.com/elevenmessenger/connect/functions/internal/start"
)

// OAuth serves authorize and callback.
func OAuth(getenv func(string) string) (http.Handler, error) {
	r := env.New(getenv)
	cfg, client := read(r, getenv)
	cfg.ReturnOrigins = r.List(env.ReturnOrigins)
	cfg.StateKeySource = &awssecrets.Keys{Client: client, SecretID: r.Required(env.StateKey)}
	return assemble(r, cfg, broker.NewOAuth)
}

// Refresh serves refresh and revoke.
func Refresh(getenv func(string) string) (http.Handler, error) {
	r := env.New(getenv)
	cfg, _ := read(r, getenv)
	for i, text := range r.List(env.InstanceKeys) {
		k, err := broker.ParseInstanceKey(text)
		if err != nil {
			r.Fault(env.InstanceKeys, "entry %d: %v", i+1, err)
			continue
		}
		cfg.InstanceKeys = append(cfg.InstanceKeys, k)
	}
	cfg.Refused = r.List(env.Refused)
	cfg.AllowWiderRevoke = r.Bool(env.AllowWiderRevoke)
	return assemble(r, cfg, broker.NewRefresh)
}

// read reads what both need. Nothing is sent: secrets and keys are asked for at the first
// request that needs them.
func read(r *env.Reader, getenv func(string) string) (broker.Config, *awssecrets.Client) {
	cfg := broker.Config{
		Registry: services.Catalog{},
		Services: r.ServiceIDs(func(id string) bool { return services.Catalog{}.Get(id) != nil }),
		Logger:   start.Logger(),
		Metrics:  os.Stdout,
		Stack:    r.Text(env.Stack),
	}
	client, err := awssecrets.NewClient(getenv)
	if err != nil {
		r.Fault("AWS_REGION", "is not set")
	}
	secrets := awssecrets.New(client, r.Text(env.SecretPrefix))
	secrets.Life, secrets.Logger = r.Seconds(env.SecretCache, 10, 3600), cfg.Logger
	cfg.Secrets = secrets
	cfg.WrapKeySource = &awssecrets.Keys{Client: client, SecretID: r.Required(env.WrappingKey)}
	return cfg, client
}

func assemble(r *env.Reader, cfg broker.Config, new func(broker.Config) (*broker.Broker, error)) (http.Handler, error) {
	url := r.Text(env.PublicURL)
	if err := r.Err(); err != nil {
		return nil, err
	}
	return start.PerOrigin(url, cfg.Logger, func(origin string) (http.Handler, error) {
		cfg := cfg
		cfg.PublicURL = origin
		b, err := new(cfg)
		if err != nil {
			return nil, err // not a nil *Broker in an interface
		}
		return b, nil
	})
}
