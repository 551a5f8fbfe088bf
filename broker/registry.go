package broker

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"time"

	"github.com/andybalholm/brotli"

	"github.com/elevenmessenger/connect/broker/public"
	"github.com/elevenmessenger/connect/integrations"
)

// RegistryBodies returns what GET /registry and /registry/{id} answer. A zero asOf is left
// out. All of it takes a quarter of a second to compress: each form is made when it is first
// asked for, and once.
func RegistryBodies(services []*integrations.Manifest, asOf time.Time) (whole public.Body, byID map[string]public.Body, err error) {
	all := struct {
		AsOf     string            `json:"as_of,omitempty"`
		Services []json.RawMessage `json:"services"`
	}{Services: []json.RawMessage{}}
	if !asOf.IsZero() {
		all.AsOf = asOf.UTC().Format(time.RFC3339)
	}
	byID = make(map[string]public.Body)
	for _, m := range services {
		var b bytes.Buffer
		if err := json.Compact(&b, m.Raw()); err != nil {
			return whole, nil, err
		}
		all.Services = append(all.Services, json.RawMessage(b.Bytes()))
		byID[m.ID] = compress(b.Bytes())
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(all); err != nil {
		return whole, nil, err
	}
	return compress(b.Bytes()), byID, nil
}

func compress(body []byte) public.Body {
	return public.Body{
		JSON: func() []byte { return body },
		Gzip: func() []byte {
			var b bytes.Buffer
			z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
			z.Write(body)
			z.Close()
			return b.Bytes()
		},
		Brotli: func() []byte {
			var b bytes.Buffer
			w := brotli.NewWriterLevel(&b, brotli.BestCompression)
			w.Write(body)
			w.Close()
			return b.Bytes()
		},
	}
}
