package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/integrations"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"connect": main})
}

// secretMark is in every token of these tests, and may be in nothing that is printed.
const secretMark = "MARKER"

// TestScripts runs testdata/script. Beside testscript's own commands there are:
//
//	status CODE connect WORD…   run the program, which must end with this exit code
//	op CODE SERVICE WORD…       the same for connect op, with $TOKEN and the script's peer
//	awaitfile FILE              wait until a file is there
//
// The peer answers with the script's peer/*.json and writes what it is asked to the file
// requests, which is there only when something was sent. /hang never answers.
func TestScripts(t *testing.T) {
	reg, err := integrations.Default()
	if err != nil {
		t.Fatal(err)
	}
	hosts := map[string]string{"example": "api.example.com"}
	for _, m := range reg.All() {
		hosts[m.ID] = m.Host
	}
	var names []string
	for _, h := range hosts {
		names = append(names, h)
	}
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			srv, err := peer.Start(scriptPeer(env.WorkDir), names...)
			if err != nil {
				return err
			}
			env.Defer(func() { srv.Close() })
			env.Setenv("PEER", srv.Addr)
			env.Setenv("CA", filepath.Join(env.WorkDir, "ca.pem"))
			env.Setenv("TOKEN", "rk_test_"+secretMark+"0123456789abcdef")
			return os.WriteFile(env.Getenv("CA"), srv.CA, 0o600)
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"status": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 2 {
					ts.Fatalf("usage: status CODE PROGRAM WORD…")
				}
				status(ts, args[0], args[1], args[2:])
			},
			"op": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 3 {
					ts.Fatalf("usage: op CODE SERVICE OPERATION WORD…")
				}
				words := append([]string{"op"}, args[1:]...)
				words = append(words, "--connect-to", hosts[args[1]]+":443:"+ts.Getenv("PEER"), "--cacert", ts.Getenv("CA"))
				if all := strings.Join(args, " "); !strings.Contains(all, "--token-") && !strings.Contains(all, "--no-token") {
					words = append(words, "--token-env", "TOKEN")
				}
				words = drop(words, "--no-token")
				status(ts, args[0], "connect", words)
			},
			"awaitfile": func(ts *testscript.TestScript, neg bool, args []string) {
				for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
					if _, err := os.Stat(ts.MkAbs(args[0])); err == nil {
						return
					}
				}
				ts.Fatalf("%s did not appear", args[0])
			},
		},
	})
}

func drop(words []string, word string) []string {
	var kept []string
	for _, w := range words {
		if w != word {
			kept = append(kept, w)
		}
	}
	return kept
}

// status runs a program and holds its exit code, and that no token is in its output.
func status(ts *testscript.TestScript, want, program string, words []string) {
	err := ts.Exec(program, words...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(got) != want {
		ts.Fatalf("exit code %d, want %s", got, want)
	}
	for _, stream := range []string{"stdout", "stderr"} {
		if strings.Contains(ts.ReadFile(stream), secretMark) {
			ts.Fatalf("the token is in %s", stream)
		}
	}
}

// scriptPeer answers with what is in peer/ when the first request comes.
func scriptPeer(dir string) http.Handler {
	var once sync.Once
	var replay *peer.Replay
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		once.Do(func() {
			exchanges, err := peer.ReadExchanges(os.DirFS(dir), "peer/*.json")
			if err != nil {
				panic(err)
			}
			replay = &peer.Replay{Exchanges: exchanges, Seen: func(rq peer.Request) { logRequest(dir, rq) }}
		})
		if r.URL.Path == "/hang" {
			logRequest(dir, peer.Request{Method: r.Method, Host: r.Host, URI: r.RequestURI, Header: r.Header})
			<-r.Context().Done()
			return
		}
		replay.ServeHTTP(w, r)
	})
}

func logRequest(dir string, rq peer.Request) {
	f, err := os.OpenFile(filepath.Join(dir, "requests"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		panic(err)
	}
	defer f.Close()
	fmt.Fprintf(f, "%s %s %s\nAuthorization: %s\n%s\n", rq.Method, rq.Host, rq.URI, rq.Header.Get("Authorization"), rq.Body)
}
