package broker

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"golang.org/x/net/idna"
	"golang.org/x/net/publicsuffix"

	"github.com/elevenmessenger/connect/broker/internal/markup"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// pages renders the few pages that a member sees here. They hold no script.
type pages struct {
	set   *markup.Set
	style string // the CSP source of the one style sheet
}

func newPages() (*pages, error) {
	set, err := markup.Parse(pageHTML)
	if err != nil {
		return nil, err
	}
	// The sheet stands inside the page, allowed by its digest: nothing else is loaded.
	sum := sha256.Sum256([]byte(pageCSS))
	return &pages{set: set, style: "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"}, nil
}

type consentData struct {
	Service, Number, Say, Action, Token, AuthorizeURL string
	Write                                             bool
	Return                                            returnAddress
	Scopes                                            []string
	Values                                            url.Values
}

// Receiver is who will receive the connection, in full, as an address bar shows it.
func (d consentData) Receiver() string { return strings.TrimPrefix(d.Return.Origin, "https://") }

// Unicode is the receiver's name in its own letters, where it is not plain ASCII.
func (d consentData) Unicode() string {
	host, port, _ := strings.Cut(d.Receiver(), ":")
	u, err := idna.Display.ToUnicode(host)
	if err != nil || u == host {
		return ""
	}
	if port != "" {
		u += ":" + port
	}
	return u
}

// Spelled is the check number as a screen reader shall say it: by its digits.
func (d consentData) Spelled() string {
	return strings.Join(strings.Split(strings.ReplaceAll(d.Number, " ", ""), ""), " ")
}

// data is what the page's source names.
func (d consentData) data() markup.Data {
	m := markup.Data{
		"Service": d.Service, "Write": d.Write, "Receiver": d.Receiver(), "Unicode": d.Unicode(), "Program": d.Program(), "Origin": d.Return.Origin,
		"Number": d.Number, "Spelled": d.Spelled(), "Say": d.Say, "Action": d.Action, "Token": d.Token,
	}
	var scopes, values []markup.Data
	for i, s := range d.Scopes {
		before := ""
		if i > 0 {
			before = ", "
		}
		scopes = append(scopes, markup.Data{"Before": before, "Name": s})
	}
	for _, k := range slices.Sorted(maps.Keys(d.Values)) {
		for _, v := range d.Values[k] {
			values = append(values, markup.Data{"Name": k, "Value": v})
		}
	}
	m["Scopes"], m["Values"] = scopes, values
	return m
}

// Program is the address of a program on this computer.
func (d consentData) Program() string {
	if !d.Return.CLI {
		return ""
	}
	return d.Return.host()
}

func (p *pages) write(w http.ResponseWriter, r *http.Request, status int, name, formAction string, data markup.Data) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src "+p.style+"; form-action "+formAction+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	io.WriteString(w, p.set.Render(name, markup.Data{"CSS": markup.CSS(pageCSS), "Data": data}))
}

func (p *pages) consent(w http.ResponseWriter, r *http.Request, d consentData) {
	// With no-referrer, browsers send "Origin: null" with the form (Fetch, "append a request
	// Origin header"); with this they name us to ourselves and to nobody else.
	w.Header().Set("Referrer-Policy", "same-origin")
	p.write(w, r, http.StatusOK, "consent", formTargets(d.AuthorizeURL, d.Return), d.data())
}

// formTargets is where the consent page's form may lead. Chromium holds every redirect after
// a form against form-action, until a page stands: those to and within the provider's own
// domain, and, where the provider does not ask again, those back here and to the receiver.
func formTargets(authorizeURL string, ret returnAddress) string {
	targets := []string{"'self'"}
	if u, err := url.Parse(authorizeURL); err == nil {
		targets = append(targets, "https://"+u.Host)
		if domain, err := publicsuffix.EffectiveTLDPlusOne(u.Hostname()); err == nil {
			targets = append(targets, "https://"+domain, "https://*."+domain)
		}
	}
	switch {
	case !ret.CLI:
		targets = append(targets, ret.Origin)
	case strings.HasPrefix(ret.URL, "http://["):
		targets = append(targets, "http:") // the policy's grammar has no IPv6 address
	default:
		targets = append(targets, "http://"+ret.host())
	}
	return strings.Join(targets, " ")
}

// link is for an outcome too long for a redirect: the same address, as a link.
func (p *pages) link(w http.ResponseWriter, r *http.Request, ret returnAddress, to string) {
	p.write(w, r, http.StatusOK, "link", "'none'", markup.Data{"Receiver": strings.TrimPrefix(ret.Origin, "https://"), "To": to})
}

// A pageError is what a member reads when there is nothing to decide.
type pageError struct{ Title, Text string }

var (
	pageNotOffered = pageError{"Not offered here", "This service cannot be connected through this address. Nothing happened. Go back to Eleven and choose another way."}
	pageBadRequest = pageError{"This link does not work", "It is incomplete or was changed on the way. Nothing happened. Go back to Eleven and start again."}
	pageForbidden  = pageError{"This did not come from our page", "Nothing happened. Go back to Eleven and start again."}
	pageNotTicked  = pageError{"The box was not ticked", "Nothing happened. Go back, read who will receive the connection, and tick the box if it is right."}
	pageTrouble    = pageError{"Not now", "Something here is out of order for the moment. Nothing happened. Try again in a few minutes."}
	pageLost       = pageError{"This did not work", "The answer could not be handed over. Go back to Eleven and start again."}
	pageNoFlow     = pageError{"Nothing to finish here", "This sign-in is not waiting in this browser: it took longer than ten minutes, was finished already, or began elsewhere. If Eleven shows the connection, all is well. Otherwise start again there."}
)

func (b *Broker) errorPage(w http.ResponseWriter, r *http.Request, status int, e pageError) {
	if n := noteOf(r.Context()); n.class == "" {
		n.class = "page"
	}
	b.page.write(w, r, status, "error", "'none'", markup.Data{"Title": e.Title, "Text": e.Text})
}
