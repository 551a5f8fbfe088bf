package faults_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

const (
	root       = "../.."
	brokerName = "https://broker.test"
	instance   = "https://chat.test"
)

var bins = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "connect-faults-")
	if err != nil {
		return "", err
	}
	for _, p := range []string{"./broker/internal/testbroker", "./sidecar/faults/internal/replica"} {
		cmd := exec.Command("go", "build", "-o", dir+string(filepath.Separator), p)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("%s: %w\n%s", p, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	flag.Parse()
	flag.Set("test.parallel", "8") // most of the time is spent in waiting
	code := m.Run()
	if dir, err := bins(); err == nil {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// bin is a program of this module, built once.
func bin(t testing.TB, name string) string {
	t.Helper()
	dir, err := bins()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, name)
}

// A world is the real broker as a process, with TLS in front of an authorization server.
type world struct {
	at    map[string]string // host → address, as the broker's process says
	token string            // the instance's
	ca    []byte
	pool  *x509.CertPool
}

// newWorld starts the broker's process. host is where the provider at address lives; through
// is where the broker reaches it, "" directly.
func newWorld(t testing.TB, registry, host, address, through string) *world {
	t.Helper()
	args := []string{"-web", filepath.Join(root, "web"), "-registry", registry, "-front", host + "=" + address, "-unlimited"}
	if through != "" {
		args = append(args, "-through", host+"="+through)
	}
	cmd := exec.Command(bin(t, "testbroker"), args...)
	cmd.Stderr = os.Stderr
	in := must(cmd.StdinPipe())
	out := bufio.NewReader(must(cmd.StdoutPipe()))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); cmd.Wait() })
	line, err := out.ReadBytes('\n')
	if err != nil {
		t.Fatalf("the broker did not start: %v", err)
	}
	w := &world{at: make(map[string]string), pool: x509.NewCertPool()}
	if err := json.Unmarshal(line, &w.at); err != nil {
		t.Fatal(err)
	}
	w.token, w.ca = string(fetch(t, w.at["control"]+"/token")), fetch(t, w.at["control"]+"/ca")
	if !w.pool.AppendCertsFromPEM(w.ca) {
		t.Fatal("the CA is no PEM")
	}
	return w
}

func fetch(t testing.TB, address string) []byte {
	t.Helper()
	resp, err := http.Get(address)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return must(io.ReadAll(resp.Body))
}

// to is where a host's name leads.
func (w *world) to(host string) string { return w.at[host] }

// browser is a person's, who follows no redirect by herself.
func (w *world) browser() *http.Client {
	return &http.Client{Jar: must(cookiejar.New(nil)), Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.pool}, DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
				to := w.at[strings.TrimSuffix(addr, ":443")]
				if to == "" {
					return nil, fmt.Errorf("nothing stands at %s", addr)
				}
				var d net.Dialer
				return d.DialContext(ctx, network, to)
			}}}
}

var (
	formTag  = regexp.MustCompile(`(?s)<form[^>]* action="([^"]*)"(.*?)</form>`)
	inputTag = regexp.MustCompile(`<input[^>]*>`)
	nameAttr = regexp.MustCompile(` name="([^"]*)"`)
	valAttr  = regexp.MustCompile(` value="([^"]*)"`)
)

// load gets a page, or posts a form, and returns it with where it leads.
func load(b *http.Client, at *url.URL, form url.Values) (page string, next *url.URL, err error) {
	req := must(http.NewRequest(http.MethodGet, at.String(), nil))
	req.Header.Set("Sec-Fetch-Dest", "document")
	req.Header.Set("Sec-Fetch-Mode", "navigate")
	if form != nil {
		req = must(http.NewRequest(http.MethodPost, at.String(), strings.NewReader(form.Encode())))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Header.Set("Origin", at.Scheme+"://"+at.Host)
		req.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	resp, err := b.Do(req)
	if err != nil {
		return "", nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", nil, err
	}
	if to := resp.Header.Get("Location"); to != "" {
		next, err = at.Parse(to)
		return string(body), next, err
	}
	if resp.StatusCode != http.StatusOK {
		return "", nil, fmt.Errorf("%s was answered %d: %s", at.Path, resp.StatusCode, body)
	}
	return string(body), nil, nil
}

// connect runs the broker's flow as a person does who ticks, signs in and agrees. Where
// code is given, the provider's own pages are passed over, and it is what they gave.
func (w *world) connect(service, code string, now time.Time) (*custody.Credential, error) {
	key := must(custody.NewIdentity())
	b := w.browser()
	q := url.Values{"access": {"write"}, "return_to": {instance}, "key": {string(must(key.Public().MarshalText()))}}
	at := must(url.Parse(brokerName + "/oauth/" + service + "/authorize?" + q.Encode()))
	var form url.Values
	for range 20 {
		page, next, err := load(b, at, form)
		if err != nil {
			return nil, err
		}
		form = nil
		switch {
		case next == nil:
			if at, form, err = fill(at, page); err != nil {
				return nil, err
			}
		case strings.HasPrefix(next.String(), instance):
			return opened(key, service, next.Fragment, now)
		case code != "" && next.Query().Get("redirect_uri") != "":
			asked := next.Query()
			at = must(url.Parse(asked.Get("redirect_uri")))
			at.RawQuery = url.Values{"code": {code}, "state": {asked.Get("state")}}.Encode()
		default:
			at = next
		}
	}
	return nil, fmt.Errorf("the flow does not end")
}

// fill fills in the form of a page.
func fill(at *url.URL, page string) (*url.URL, url.Values, error) {
	m := formTag.FindStringSubmatch(page)
	if m == nil {
		return nil, nil, fmt.Errorf("%s has no form", at.Path)
	}
	form := make(url.Values)
	for _, in := range inputTag.FindAllString(m[2], -1) {
		name, value := nameAttr.FindStringSubmatch(in), valAttr.FindStringSubmatch(in)
		switch {
		case name == nil:
		case value != nil:
			form.Set(html.UnescapeString(name[1]), html.UnescapeString(value[1]))
		default:
			form.Set(html.UnescapeString(name[1]), "ada")
		}
	}
	to, err := at.Parse(html.UnescapeString(m[1]))
	return to, form, err
}

// opened makes a connection of what came back to the tab.
func opened(key *custody.Identity, service, fragment string, now time.Time) (*custody.Credential, error) {
	e, err := custody.ParseFragment(fragment)
	if err != nil {
		return nil, err
	}
	var out custody.TabOutcome
	if err := key.OpenAnswer(e, custody.TabOp(service, integrations.Write), &out); err != nil {
		return nil, err
	}
	if out.Error != "" {
		return nil, fmt.Errorf("the flow ended with %s", out.Error)
	}
	c := &custody.Credential{V: 1, ID: custody.NewID(), Generation: 1, Pair: 1, Service: service, Kind: custody.KindOAuth,
		Secret: out.Secret, Refresh: out.Refresh, Broker: brokerName, Keep: out.Keep, Scopes: out.Scopes, Wider: out.Wider, Cap: integrations.Write,
		Account: &custody.Account{ID: "1", Label: "ada"}, ObtainedAt: now.Unix(), ConnectedAt: now.Unix()}
	if out.ExpiresIn > 0 {
		c.ExpiresAt = now.Unix() + out.ExpiresIn
	}
	return c, nil
}
