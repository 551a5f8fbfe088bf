// The function registry serves GET /registry and /registry/{id}. It holds no secret.
package main

import (
	"github.com/elevenmessenger/connect/broker/public"
	"github.com/elevenmessenger/connect/functions/internal/prebuilt"
	"github.com/elevenmessenger/connect/functions/internal/start"
)

func main() {
	registry, err := prebuilt.Registry()
	start.Serve(public.New(public.Config{Registry: registry, Logger: start.Logger()}), err)
}
