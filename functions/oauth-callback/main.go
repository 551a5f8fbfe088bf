// The function oauth-callback serves /oauth/{service}/authorize and …/callback.
package main

import (
	"os"

	"github.com/elevenmessenger/connect/functions/internal/brokered"
	"github.com/elevenmessenger/connect/functions/internal/start"
)

func main() { start.Serve(brokered.OAuth(os.Getenv)) }
