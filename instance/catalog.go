package instance

import (
	"bytes"
	"context"
	"crypto/tls"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"

	experimental "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/elevenmessenger/connect/integrations"
)

// The bounds of the broker's registry.
const (
	registryTimeout = 15 * time.Second
	maxRegistry     = 8 << 20
	maxServices     = 1000
)

// A catalog is the body of GET /api/integrations, made anew when the broker's registry
// changes.
type catalog struct {
	body atomic.Pointer[[]byte]
	etag string // of the fetcher alone
}

type catalogAnswer struct {
	Broker   string            `json:"broker"`
	AsOf     string            `json:"as_of"`
	Services []json.RawMessage `json:"services"`
}

func (i *Instance) getIntegrations(w http.ResponseWriter, r *http.Request) {
	if wait := i.strangers.take(remote(r), i.now()); wait > 0 {
		i.fail(w, r, tooMany(wait))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(*i.catalog.body.Load())
}

// openCatalog shows what was fetched last, else what is built in.
func (i *Instance) openCatalog(ctx context.Context) error {
	out := catalogAnswer{Broker: i.cfg.Broker, Services: []json.RawMessage{}}
	if !i.cfg.AsOf.IsZero() {
		out.AsOf = i.cfg.AsOf.UTC().Format(time.RFC3339)
	}
	for _, m := range i.cfg.Registry.All() {
		out.Services = append(out.Services, m.Raw())
	}
	if err := i.show(&out); err != nil {
		return err
	}
	if i.cfg.Broker == "" {
		return nil
	}
	var body []byte
	err := i.store.read.QueryRowContext(ctx, "SELECT etag, body FROM registry WHERE broker = ?", i.cfg.Broker).Scan(&i.catalog.etag, &body)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := i.take(body); err != nil {
		i.catalog.etag = "" // another version's: fetched whole
	}
	return nil
}

func (i *Instance) show(out *catalogAnswer) error {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return err
	}
	body := b.Bytes()
	i.catalog.body.Store(&body)
	return nil
}

// take shows the broker's registry. A manifest that this program does not know is left out:
// a client gets only what was checked.
func (i *Instance) take(body []byte) error {
	var in struct {
		AsOf     string           `json:"as_of"`
		Services []jsontext.Value `json:"services"`
	}
	if err := experimental.Unmarshal(body, &in, experimental.RejectUnknownMembers(true)); err != nil {
		return errRegistry
	}
	if in.AsOf != "" {
		if _, err := time.Parse(time.RFC3339, in.AsOf); err != nil {
			return errRegistry
		}
	}
	if len(in.Services) == 0 || len(in.Services) > maxServices {
		return errRegistry
	}
	out := catalogAnswer{Broker: i.cfg.Broker, AsOf: in.AsOf, Services: []json.RawMessage{}}
	seen := make(map[string]bool)
	for _, s := range in.Services {
		m, err := integrations.Parse(s)
		if err != nil || seen[m.ID] {
			i.log.Warn("registry", "why", "a manifest is not taken")
			continue
		}
		seen[m.ID] = true
		out.Services = append(out.Services, json.RawMessage(s))
	}
	if len(out.Services) == 0 {
		return errRegistry
	}
	return i.show(&out)
}

var errRegistry = errors.New("instance: the broker's answer is not a registry")

// fetcher keeps the catalog fresh. While the broker is away the last one is served.
func (i *Instance) fetcher(ctx context.Context) {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: registryTimeout,
		TLSClientConfig: &tls.Config{RootCAs: i.cfg.RootCAs, MinVersion: tls.VersionTLS12}}
	client := &http.Client{Transport: t, Timeout: registryTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer t.CloseIdleConnections()
	for {
		if err := i.fetch(ctx, client); err != nil && ctx.Err() == nil {
			i.log.Warn("registry", "why", "the broker does not answer with its registry; the last one is served", "type", fmt.Sprintf("%T", err))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(i.cfg.RegistryEvery + rand.N(i.cfg.RegistryEvery/10+1)):
		}
	}
}

func (i *Instance) fetch(ctx context.Context, client *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.cfg.Broker+"/registry", nil)
	if err != nil {
		return err
	}
	if i.catalog.etag != "" {
		req.Header.Set("If-None-Match", i.catalog.etag)
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusNotModified && i.catalog.etag != "":
		return nil
	case res.StatusCode != http.StatusOK:
		return errRegistry
	}
	body, err := io.ReadAll(io.LimitReader(res.Body, maxRegistry+1))
	if err != nil {
		return err
	}
	if len(body) > maxRegistry {
		return errRegistry
	}
	if err := i.take(body); err != nil {
		return err
	}
	etag := res.Header.Get("Etag")
	if len(etag) > 256 {
		etag = ""
	}
	i.catalog.etag = etag
	return i.store.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO registry (broker, etag, body) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET etag = excluded.etag, body = excluded.body", i.cfg.Broker, etag, body)
		return err
	})
}
