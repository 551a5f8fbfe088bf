package main

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"html"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/net/idna"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
	"github.com/elevenmessenger/connect/sidecar"
)

// flowWait is how long a person may take: a little longer than the broker keeps a flow.
const flowWait = 11 * time.Minute

// maxFragment bounds what the page hands over.
const maxFragment = custody.MaxMessage

// handPage gives the address's fragment, which a browser never sends, to this program.
const handScript = `const f=location.hash.slice(1),s=document.getElementById("say");
history.replaceState(null,"",location.pathname);
fetch(location.pathname,{method:"POST",body:f}).then(r=>r.text()).then(t=>{s.textContent=t},()=>{s.textContent="The program is no longer there. Start again in the terminal."});`

const handPage = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<title>Signing in – Connect</title>
<main><h1>Signing in</h1><p id="say" role="status">One moment.</p>
<noscript><p>This page needs JavaScript to hand the sign-in over. Turn it on and start again in the terminal.</p></noscript></main>
<script>` + handScript + `</script></html>
`

// A loopback is the address on this machine where a browser brings a flow's outcome: a
// literal address, a random port, one random path (RFC 8252).
type loopback struct {
	addr, path string
	key        *custody.Identity // of this flow alone
	op         string
	got        chan *custody.TabOutcome
	taken      atomic.Bool // an outcome is handed over once
	policy     string
}

func newLoopback(op string) (*loopback, net.Listener, error) {
	key, err := custody.NewIdentity()
	if err != nil {
		return nil, nil, err
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	var b [24]byte
	rand.Read(b[:])
	sum := sha256.Sum256([]byte(handScript))
	return &loopback{
		addr: ln.Addr().String(), path: "/" + base64.RawURLEncoding.EncodeToString(b[:]), key: key, op: op,
		got:    make(chan *custody.TabOutcome, 1),
		policy: "default-src 'none'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'",
	}, ln, nil
}

func (l *loopback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", l.policy)
	if r.Host != l.addr || r.URL.Path != l.path+"/connect/done" || r.URL.RawQuery != "" {
		http.NotFound(w, r)
		return
	}
	switch r.Method {
	case http.MethodGet:
		h.Set("Content-Type", "text/html; charset=utf-8")
		io.WriteString(w, handPage)
	case http.MethodPost:
		if o := r.Header.Values("Origin"); len(o) != 1 || o[0] != "http://"+l.addr {
			http.Error(w, "This is not from the program's own page.", http.StatusForbidden)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFragment))
		var out custody.TabOutcome
		if err == nil {
			err = l.open(string(body), &out)
		}
		if err != nil {
			http.Error(w, "This is not what the program waits for. Start again in the terminal.", http.StatusBadRequest)
			return
		}
		if !l.taken.CompareAndSwap(false, true) {
			http.Error(w, "The program has it already.", http.StatusConflict)
			return
		}
		l.got <- &out
		h.Set("Content-Type", "text/plain; charset=utf-8")
		io.WriteString(w, "Received. You can close this page and go back to the terminal.")
	default:
		h.Set("Allow", "GET, POST")
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (l *loopback) open(fragment string, out *custody.TabOutcome) error {
	e, err := custody.ParseFragment(fragment)
	if err != nil {
		return err
	}
	return l.key.OpenAnswer(e, l.op, out)
}

// appName is what stands in the address of an app at a service.
var appName = regexp.MustCompile(`^[A-Za-z0-9-]{1,100}$`)

// offered asks the broker whether a sign-in can start, before a person is sent there.
func (a *adder) offered(ctx context.Context, b *sidecar.Broker) error {
	cfg, err := b.Config(ctx, a.m.ID)
	var be *sidecar.BrokerError
	switch {
	case errors.As(err, &be) && be.Class == sidecar.Temporary:
		return &integrations.UnreachableError{Service: "the broker at " + a.broker, Err: be}
	case errors.As(err, &be) && be.Code == "not_a_broker":
		return &integrations.RefusedError{Reason: "what answers at " + a.broker + " is no broker", Hint: "look at --broker"}
	case err != nil || !cfg.Configured:
		return &integrations.RefusedError{Reason: fmt.Sprintf("the broker at %s does not offer %s", a.broker, a.m.Name),
			Hint: "its operator can; or connect add " + a.m.ID + " takes a token"}
	}
	if appName.MatchString(cfg.App) {
		a.app = cfg.App
	}
	return nil
}

// sayRenewal says before the sign-in what becomes of the connection later, where that is not
// what a person expects.
func (a *adder) sayRenewal(b *sidecar.Broker) {
	if r := a.m.Auth.OAuth.Refresh; !b.Token.IsZero() || r != nil && r.None != "" {
		return
	}
	a.c.note("Without an instance's token this connection ends with its access token: some end within hours, and then it is added again. connect add --help tells how to get one.")
}

// flow runs the browser flow and returns what came of it.
func (a *adder) flow(ctx context.Context, member *custody.Identity, open bool) (*custody.TabOutcome, error) {
	access := integrations.Read
	if a.write {
		access = integrations.Write
	}
	l, ln, err := newLoopback(custody.TabOp(a.m.ID, access))
	if err != nil {
		return nil, fmt.Errorf("this machine gives no address to return to: %w", err)
	}
	srv := &http.Server{Handler: l, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 20 * time.Second, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(ln)
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if srv.Shutdown(stop) != nil { // the page's answer is on its way
			srv.Close()
		}
	}()
	key, err := l.key.Public().MarshalText()
	if err != nil {
		return nil, err
	}
	q := url.Values{"access": {string(access)}, "return_to": {"http://" + l.addr + l.path}, "key": {string(key)}, "for": {string(member.ID())}}
	address := a.broker + "/oauth/" + a.m.ID + "/authorize?" + q.Encode()
	number := l.key.Public().CheckNumber()
	a.c.note("Open this address in a browser on this machine:\n\n  %s\n", address)
	a.c.note("The page shows the number %s %s. Go on only where it is the same.", number[:3], number[3:])
	if open {
		// That it cannot be shown is no fault: it stands in the terminal.
		if page, err := newSignInPage(address); err == nil {
			defer page.remove()
			openBrowser(page.file)
		}
	}
	select {
	case out := <-l.got:
		return out, flowError(a.m, out)
	case <-time.After(flowWait):
		return nil, &integrations.RefusedError{Reason: "nobody came back from the browser", Hint: "run the command again"}
	case <-ctx.Done():
		select {
		case out := <-l.got: // what came all the same is ended by whoever is told that it was left
			return out, flowError(a.m, out)
		default:
		}
		return nil, &integrations.RefusedError{Reason: "it was left before the browser came back"}
	}
}

func flowError(m *integrations.Manifest, out *custody.TabOutcome) error {
	switch out.Error {
	case "":
		return nil
	case "cancelled":
		return &integrations.RefusedError{Reason: "it was cancelled in the browser"}
	case "denied":
		return &integrations.RefusedError{Reason: m.Name + " says that it was not allowed"}
	case "expired":
		return &integrations.RefusedError{Reason: "it took too long", Hint: "run the command again"}
	case "missing_scopes":
		return &integrations.RefusedError{Reason: m.Name + " granted less than was asked", Hint: "leave every box on its page ticked"}
	}
	return &hintedError{fmt.Errorf("%s gave the broker no usable answer", m.Name), "run the command again; if it stays so, it is the broker's operator who can mend it"}
}

// signInHTML leads on to an address. %[1]s is the address, escaped.
const signInHTML = `<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer"><meta http-equiv="refresh" content="0; url=%[1]s">
<title>Signing in – Connect</title>
<main><h1>Signing in</h1><p><a href="%[1]s">Go on to the broker</a></p></main></html>
`

// A signInPage is a file that leads a browser to a flow's address. The address itself is for
// this person alone: whoever has it can hand over an outcome of another account, and every user
// of the machine reads what programs are started with.
type signInPage struct{ dir, file string }

func newSignInPage(address string) (*signInPage, error) {
	dir, err := os.MkdirTemp("", "connect-*") // mode 0700
	if err != nil {
		return nil, err
	}
	p := &signInPage{dir, filepath.Join(dir, "sign-in.html")}
	if err := os.WriteFile(p.file, fmt.Appendf(nil, signInHTML, html.EscapeString(address)), 0o600); err != nil {
		p.remove()
		return nil, err
	}
	return p, nil
}

func (p *signInPage) remove() { os.RemoveAll(p.dir) }

// openBrowser shows a file to a person, where the machine knows how.
func openBrowser(file string) {
	program := []string{"xdg-open"}
	switch runtime.GOOS {
	case "darwin":
		program = []string{"open"}
	case "windows":
		program = []string{"rundll32", "url.dll,FileProtocolHandler"}
	}
	cmd := exec.Command(program[0], append(program[1:], file)...)
	if cmd.Start() == nil {
		go cmd.Wait()
	}
}

var errBrokerOrigin = errors.New("it is the broker's origin as it stands, such as https://connect.example: in small ASCII letters, with no dot, slash or port 443 at its end")

// maxBrokerHost bounds what stands after https:// in an origin that a credential holds.
const maxBrokerHost = 255

var brokerHost = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// checkBrokerOrigin takes an origin in the one spelling that a broker has as its own, that is in
// tokens' aud, and that a stored connection can hold.
func checkBrokerOrigin(s string) error {
	rest, https := strings.CutPrefix(s, "https://")
	host, port, hasPort := strings.Cut(rest, ":")
	if !https || len(rest) > maxBrokerHost || len(host) > 253 || !brokerHost.MatchString(host) {
		return errBrokerOrigin
	}
	if ascii, err := idna.Lookup.ToASCII(host); err != nil || ascii != host {
		return errBrokerOrigin
	}
	// To a browser a last part of digits makes an address of four numbers.
	if last := host[strings.LastIndexByte(host, '.')+1:]; last == "localhost" || strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return errBrokerOrigin
	}
	if n, err := strconv.ParseUint(port, 10, 16); hasPort && (err != nil || n == 0 || n == 443 || strconv.FormatUint(n, 10) != port) {
		return errBrokerOrigin
	}
	return nil
}
