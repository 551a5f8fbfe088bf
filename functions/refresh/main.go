// The function refresh serves POST /api/refresh and POST /api/revoke.
package main

import (
	"os"

	"github.com/elevenmessenger/connect/functions/internal/brokered"
	"github.com/elevenmessenger/connect/functions/internal/start"
)

func main() { start.Serve(brokered.Refresh(os.Getenv)) }
