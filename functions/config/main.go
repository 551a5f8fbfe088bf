// The function config serves GET /api/oauth/config.
package main

import (
	"os"

	"github.com/elevenmessenger/connect/functions/internal/configured"
	"github.com/elevenmessenger/connect/functions/internal/start"
)

func main() { start.Serve(configured.Handler(os.Getenv)) }
