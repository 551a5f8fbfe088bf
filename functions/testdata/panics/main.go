// Command panics is a function that goes wrong with what it was sent in its hands, for the
// test of what the runtime makes of that.
package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/elevenmessenger/connect/functions/internal/start"
)

func main() {
	start.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/text":
			panic(string(body))
		case "/error":
			panic(fmt.Errorf("%w: %s", errors.New(r.Header.Get("Cookie")), body))
		case "/half":
			w.Header().Set("Set-Cookie", string(body))
			w.Write(body)
			panic(body)
		case "/nil":
			var m map[string]string
			m[string(body)] = string(body)
		}
		io.WriteString(w, "still here\n")
	}), nil)
}
