// Package configured makes the function that says what can be connected. It holds no secret:
// configured is what the operator lists, and "connect broker doctor" looks whether that is so.
package configured

import (
	"context"
	"net/http"
	"slices"

	"github.com/elevenmessenger/connect/broker/public"
	"github.com/elevenmessenger/connect/functions/internal/env"
	"github.com/elevenmessenger/connect/functions/internal/prebuilt"
	"github.com/elevenmessenger/connect/functions/internal/start"
)

// Handler serves GET /api/oauth/config.
func Handler(getenv func(string) string) (http.Handler, error) {
	r := env.New(getenv)
	listed := r.ServiceIDs(prebuilt.Connectable)
	return public.New(public.Config{
		Offers: &public.Offers{
			Known:      prebuilt.Known,
			Configured: func(_ context.Context, id string) bool { return slices.Contains(listed, id) },
			Apps:       r.Map(env.Apps),
		},
		Logger: start.Logger(),
	}), r.Err()
}
