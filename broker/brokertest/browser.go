package brokertest

import (
	"errors"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/custody"
	"github.com/elevenmessenger/connect/integrations"
)

// A Browser keeps cookies as one does, says where its requests come from, and follows no
// redirect by itself.
type Browser struct {
	*http.Client
	s *Server
}

// A Page is an answer, read.
type Page struct {
	Status int
	Header http.Header
	Body   string
}

// Location is where the answer leads, or "".
func (p *Page) Location() string { return p.Header.Get("Location") }

// SetsCookie says whether the answer sets, rather than clears, a cookie whose name begins so.
func (p *Page) SetsCookie(prefix string) bool { return len(p.Cookies(prefix)) > 0 }

// Cookies returns the cookies that the answer sets, not those it clears.
func (p *Page) Cookies(prefix string) []*http.Cookie {
	var out []*http.Cookie
	for _, c := range (&http.Response{Header: p.Header}).Cookies() {
		if strings.HasPrefix(c.Name, prefix) && c.MaxAge >= 0 && c.Value != "" {
			out = append(out, c)
		}
	}
	return out
}

// FlowCookie is how the name of a flow's cookie begins.
const FlowCookie = "__Host-flow-"

// Browser returns one with an empty jar.
func (s *Server) Browser() *Browser {
	jar, err := cookiejar.New(nil)
	if err != nil {
		panic(err)
	}
	c := s.Client()
	c.Jar = jar
	return &Browser{c, s}
}

func do(c *http.Client, req *http.Request) (*Page, error) {
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return &Page{resp.StatusCode, resp.Header, string(body)}, err
}

// Do sends a request with further headers, written as "Name: value". "Host" among them is the
// host that is asked for.
func (b *Browser) Do(method, to string, form url.Values, headers ...string) (*Page, error) {
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequest(method, to, body)
	if err != nil {
		return nil, err
	}
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if strings.EqualFold(name, "Host") {
			req.Host = value
			continue
		}
		req.Header.Add(name, value)
	}
	return do(b.Client, req)
}

// Get loads a page as a person does who follows a link.
func (b *Browser) Get(t testing.TB, to string, headers ...string) *Page {
	t.Helper()
	p, err := b.Do(http.MethodGet, to, nil, append([]string{"Sec-Fetch-Dest: document", "Sec-Fetch-Mode: navigate"}, headers...)...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// Post sends a form as a page of the broker does.
func (b *Browser) Post(t testing.TB, to string, form url.Values, headers ...string) *Page {
	t.Helper()
	if len(headers) == 0 {
		headers = []string{"Origin: " + b.s.URL, "Sec-Fetch-Site: same-origin"}
	}
	p, err := b.Do(http.MethodPost, to, form, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// An Ask is what a client asks the broker for.
type Ask struct {
	Service  string
	Access   integrations.Access // "" means read
	ReturnTo string              // "" means Instance
	For      string
	Key      *custody.Identity // nil: a new one
	More     url.Values        // parameters that nobody asked for
}

func (a *Ask) fill() error {
	if a.Access == "" {
		a.Access = integrations.Read
	}
	if a.ReturnTo == "" {
		a.ReturnTo = Instance
	}
	if a.Key == nil {
		k, err := custody.NewIdentity()
		if err != nil {
			return err
		}
		a.Key = k
	}
	return nil
}

// URLOf is the address of the consent page. It fills in what a left open.
func (s *Server) URLOf(a *Ask) string {
	if err := a.fill(); err != nil {
		panic(err)
	}
	key, err := a.Key.Public().MarshalText()
	if err != nil {
		panic(err)
	}
	q := url.Values{"access": {string(a.Access)}, "return_to": {a.ReturnTo}, "key": {string(key)}}
	if a.For != "" {
		q.Set("for", a.For)
	}
	for k, v := range a.More {
		q[k] = append(q[k], v...)
	}
	return s.URL + "/oauth/" + a.Service + "/authorize?" + q.Encode()
}

var (
	inputTag = regexp.MustCompile(`<input type="(hidden|checkbox)" name="([^"]*)" value="([^"]*)"`)
	formTag  = regexp.MustCompile(`<form method="post" action="([^"]*)"`)
)

// Form returns what the page's form sends when its box is ticked, and where.
func (p *Page) Form() (action string, form url.Values, err error) {
	m := formTag.FindStringSubmatch(p.Body)
	if m == nil {
		return "", nil, fmt.Errorf("the page (%d) has no form", p.Status)
	}
	form = make(url.Values)
	for _, in := range inputTag.FindAllStringSubmatch(p.Body, -1) {
		form.Add(html.UnescapeString(in[2]), html.UnescapeString(in[3]))
	}
	return html.UnescapeString(m[1]), form, nil
}

// Begin loads the consent page, ticks the box and presses the button. What it returns is the
// answer, which leads to the provider.
func (b *Browser) Begin(t testing.TB, a *Ask) *Page {
	t.Helper()
	p := b.Get(t, b.s.URLOf(a))
	if p.Status != http.StatusOK {
		t.Fatalf("consent page: %d", p.Status)
	}
	action, form, err := p.Form()
	if err != nil {
		t.Fatal(err)
	}
	return b.Post(t, b.s.URL+action, form)
}

// Approve begins, and lets the provider approve. What it returns is the callback's address.
func (b *Browser) Approve(t testing.TB, a *Ask) string {
	t.Helper()
	p := b.Begin(t, a)
	if p.Status != http.StatusSeeOther {
		t.Fatalf("the press was answered %d, not 303", p.Status)
	}
	back := b.Get(t, p.Location())
	if back.Status != http.StatusFound {
		t.Fatalf("the provider answered %d: %s", back.Status, back.Body)
	}
	return back.Location()
}

// Open opens the outcome that a callback's answer carries.
func (a *Ask) Open(p *Page) (*custody.TabOutcome, error) {
	at, fragment, ok := strings.Cut(p.Location(), "#")
	if !ok {
		return nil, fmt.Errorf("the callback was answered %d, with no fragment", p.Status)
	}
	if at != a.ReturnTo+"/connect/done" {
		return nil, errors.New("the outcome goes to another address")
	}
	env, err := custody.ParseFragment(fragment)
	if err != nil {
		return nil, err
	}
	out := new(custody.TabOutcome)
	err = a.Key.OpenAnswer(env, custody.TabOp(a.Service, a.Access), out)
	return out, err
}

// Connect runs a whole flow in a browser of its own and opens what comes of it.
func (s *Server) Connect(t testing.TB, a Ask) *custody.TabOutcome {
	t.Helper()
	b := s.Browser()
	p := b.Get(t, b.Approve(t, &a))
	out, err := a.Open(p)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Body)
	}
	return out
}
