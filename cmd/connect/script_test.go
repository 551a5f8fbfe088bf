package main

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/cmd/connect/internal/peer"
	"github.com/elevenmessenger/connect/custody"
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
//	op CODE SERVICE WORD…       the same for connect op, with $TOKEN and the script's peer;
//	                            --stored: without $TOKEN
//	connected CODE add SERVICE WORD…   the same for connect add
//	env TYPED=FILE              the next program gets a terminal, and each line of the file when
//	                            it asks; what the terminal showed is in the file screen
//	private DIR                 hold that a vault's files are its owner's, and hold no token
//	awaitfile FILE              wait until a file is there
//	signedin DIR SERVICE UNTIL [token]  store a made-up connection by a broker that is nowhere,
//	                            whose access token ends then (such as 1h or -1h), and a token for it
//	repin DIR OP                make a stored connection's operation another than it was agreed to
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
				if all := strings.Join(args, " "); !strings.Contains(all, "--token-") && !strings.Contains(all, "--no-token") && !strings.Contains(all, "--stored") {
					words = append(words, "--token-env", "TOKEN")
				}
				words = drop(drop(words, "--no-token"), "--stored")
				status(ts, args[0], "connect", words)
			},
			"connected": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 3 || args[1] != "add" {
					ts.Fatalf("usage: connected CODE add SERVICE WORD…")
				}
				words := append(args[1:], "--connect-to", hosts[args[2]]+":443:"+ts.Getenv("PEER"), "--cacert", ts.Getenv("CA"))
				if !strings.Contains(strings.Join(args, " "), "--token-") {
					words = append(words, "--token-env", "TOKEN")
				}
				status(ts, args[0], "connect", words)
			},
			"private": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 1 {
					ts.Fatalf("usage: private DIR")
				}
				private(ts, ts.MkAbs(args[0]))
			},
			"signedin": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) < 3 {
					ts.Fatalf("usage: signedin DIR SERVICE UNTIL [token]")
				}
				ts.Check(signedIn(ts.MkAbs(args[0]), args[1], args[2], len(args) > 3))
			},
			"repin": func(ts *testscript.TestScript, neg bool, args []string) {
				if neg || len(args) != 2 {
					ts.Fatalf("usage: repin DIR OP")
				}
				ts.Check(repin(ts.MkAbs(args[0]), args[1]))
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

// nowhere is a broker that has no address.
const nowhere = "https://broker.invalid"

func signedIn(dir, service, until string, token bool) error {
	v, err := (&homeFlag{dir: dir}).make()
	if err != nil {
		return err
	}
	d, err := time.ParseDuration(until)
	if err != nil {
		return err
	}
	now := time.Now()
	c := &custody.Credential{
		V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: service, Kind: custody.KindOAuth, Secret: integrations.NewSecret("at_" + secretMark),
		Refresh: integrations.NewSecret("rt1.w1.AAAA" + secretMark), Broker: nowhere, ExpiresAt: now.Add(d).Unix(), ConnectedAt: now.Unix(),
		Account: &custody.Account{ID: "1", Label: "Ada"},
	}
	if err := v.put(c); err != nil || !token {
		return err
	}
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return err
	}
	text, err := broker.SignToken(key, "k", broker.Claims{Origins: []string{"cli:" + string(v.member.ID())}, RegisteredClaims: jwt.RegisteredClaims{
		Issuer: "test", Audience: jwt.ClaimStrings{nowhere}, ID: "1", IssuedAt: jwt.NewNumericDate(now), ExpiresAt: jwt.NewNumericDate(now.Add(time.Hour))}})
	if err != nil {
		return err
	}
	return v.putBrokerToken(nowhere, integrations.NewSecret(text), now.Add(time.Hour), nil)
}

func repin(dir, op string) error {
	v, err := (&homeFlag{dir: dir}).open()
	if err != nil {
		return err
	}
	list, _, err := v.all()
	if err != nil {
		return err
	}
	for _, c := range list {
		d := c.Ops[op]
		d[0]++
		c.Ops[op] = d
		c.Generation++
		if err := v.put(c); err != nil {
			return err
		}
	}
	return nil
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
	var err error
	if answers := ts.Getenv("TYPED"); answers != "" {
		ts.Setenv("TYPED", "")
		err = execTyped(ts, strings.Split(strings.TrimSuffix(ts.ReadFile(answers), "\n"), "\n"), program, words)
	} else {
		err = ts.Exec(program, words...)
	}
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

// private holds that nobody else can read a vault, and that no file of it holds the token,
// in clear or as base64 would write it.
func private(ts *testscript.TestScript, dir string) {
	files := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if runtime.GOOS != "windows" && info.Mode().Perm() != want {
			return fmt.Errorf("%s has mode %04o", path, info.Mode().Perm())
		}
		if d.IsDir() {
			return nil
		}
		files++
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		forms := []string{secretMark}
		for i := range 3 { // where the token stands among base64's groups of three
			for _, enc := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
				text := enc.EncodeToString([]byte(strings.Repeat("x", i) + ts.Getenv("TOKEN")))
				forms = append(forms, text[4:len(text)-4])
			}
		}
		for _, form := range forms {
			if strings.Contains(string(data), form) {
				return fmt.Errorf("%s holds the token", path)
			}
		}
		return nil
	})
	if err != nil {
		ts.Fatalf("%v", err)
	}
	if files < 2 {
		ts.Fatalf("%s holds %d files", dir, files)
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
