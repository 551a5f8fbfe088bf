// Command alone is a sidecar that takes deliveries line by line, as JSON, and prints how many
// envelopes each was answered with: a benchmark asks what it takes of memory.
package main

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

type config struct {
	Dir       string
	Bot       []byte // PKCS #8
	ConnectTo map[string]string
	CA        []byte // PEM
	Max       int
}

func main() {
	if err := run(os.Getenv("CONNECT_ALONE")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(text string) error {
	var cfg config
	if err := json.Unmarshal([]byte(text), &cfg); err != nil {
		return err
	}
	bot, err := custody.ParseIdentity(cfg.Bot)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(cfg.CA)
	s, err := sidecar.New(context.Background(), sidecar.Config{Bots: []*custody.Identity{bot}, Dir: cfg.Dir, MaxOperations: cfg.Max, MaxPerMember: cfg.Max,
		Executor: &integrations.Executor{ConnectTo: cfg.ConnectTo, RootCAs: pool}, OpTimeout: 5 * time.Minute})
	if err != nil {
		return err
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	in := bufio.NewReaderSize(os.Stdin, 1<<16)
	fmt.Println("ready")
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		var d sidecar.Delivery
		if err := json.Unmarshal(line, &d); err != nil {
			return err
		}
		wg.Go(func() {
			all, err := s.Handle(context.Background(), d)
			mu.Lock()
			defer mu.Unlock()
			fmt.Println(len(all), err)
		})
	}
	wg.Wait()
	return s.Close(context.Background())
}
