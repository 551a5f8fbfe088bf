// Package prebuilt holds the built-in registry as GET /registry answers it, compressed at
// build: compressing takes a quarter of a second, and loading the manifests takes as long as
// a function's whole start.
package prebuilt

import (
	"bytes"
	"compress/gzip"
	"embed"
	"io"
	"slices"
	"strings"

	"github.com/elevenmessenger/connect/broker/public"
)

//go:generate go test . -update

// data holds 0-all.json and one file a service, each as .gz and .br.
//
//go:embed data
var data embed.FS

// Registry serves what is built in.
func Registry() (*public.Registry, error) {
	files, err := data.ReadDir("data")
	if err != nil {
		return nil, err
	}
	var whole public.Body
	services := make(map[string]public.Body)
	for _, f := range files {
		id, isGzip := strings.CutSuffix(f.Name(), ".json.gz")
		switch {
		case !isGzip:
		case id == wholeName:
			whole = body(id)
		default:
			services[id] = body(id)
		}
	}
	return public.NewRegistry(whole, services), nil
}

// body reads what is built in; that it is all there and whole, a test holds.
func body(id string) public.Body {
	read := func(kind string) []byte {
		b, _ := data.ReadFile("data/" + id + ".json." + kind)
		return b
	}
	return public.Body{
		JSON: func() []byte { // seldom asked for: nearly every client takes gzip
			z, err := gzip.NewReader(bytes.NewReader(read("gz")))
			if err != nil {
				return nil
			}
			text, _ := io.ReadAll(z)
			return text
		},
		Gzip:   func() []byte { return read("gz") },
		Brotli: func() []byte { return read("br") },
	}
}

// wholeName cannot be a service's: ids begin with a letter.
const wholeName = "0-all"

// Known says whether there is a service.
func Known(id string) bool {
	_, err := data.Open("data/" + id + ".json.br")
	return err == nil && id != wholeName && !strings.ContainsAny(id, "/.")
}

// Connectable says whether a service is connected with OAuth.
func Connectable(id string) bool { return slices.Contains(connectable, id) }
