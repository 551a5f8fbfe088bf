package broker

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"golang.org/x/net/idna"
)

//go:embed page.html
var pageHTML string

//go:embed page.css
var pageCSS string

// pages renders the few pages that a member sees here. They hold no script.
type pages struct {
	t     *template.Template
	style string // the CSP source of the one style sheet
}

func newPages() (*pages, error) {
	t, err := template.New("page").Parse(pageHTML)
	if err != nil {
		return nil, err
	}
	// The sheet stands inside the page, allowed by its digest: nothing else is loaded.
	sum := sha256.Sum256([]byte(pageCSS))
	return &pages{t: t, style: "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"}, nil
}

type consentData struct {
	Service, Number, Say, Action, Token, Provider string
	Write                                         bool
	Return                                        returnAddress
	Scopes                                        []string
	Values                                        url.Values
}

// Receiver is who will receive the connection, in full, as an address bar shows it.
func (d consentData) Receiver() string { return strings.TrimPrefix(d.Return.Origin, "https://") }

// Unicode is the receiver's name in its own letters, where it is not plain ASCII.
func (d consentData) Unicode() string {
	host := d.Receiver()
	if u, err := idna.Display.ToUnicode(host); err == nil && u != host {
		return u
	}
	return ""
}

// Program is the address of a program on this computer.
func (d consentData) Program() string {
	if !d.Return.CLI {
		return ""
	}
	u, err := url.Parse(d.Return.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

func (p *pages) write(w http.ResponseWriter, r *http.Request, status int, name, formAction string, data any) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; style-src "+p.style+"; form-action "+formAction+"; frame-ancestors 'none'; base-uri 'none'")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Cross-Origin-Opener-Policy", "same-origin-allow-popups")
	h.Set("Permissions-Policy", "interest-cohort=()")
	w.WriteHeader(status)
	if r.Method == http.MethodHead {
		return
	}
	p.t.ExecuteTemplate(w, name, struct {
		CSS  template.CSS
		Data any
	}{template.CSS(pageCSS), data})
}

func (p *pages) consent(w http.ResponseWriter, r *http.Request, d consentData) {
	// Some browsers hold the redirect after a form against form-action too.
	p.write(w, r, http.StatusOK, "consent", "'self' "+d.Provider, d)
}

// link is for an outcome too long for a redirect: the same address, as a link.
func (p *pages) link(w http.ResponseWriter, r *http.Request, ret returnAddress, to string) {
	p.write(w, r, http.StatusOK, "link", "'none'", struct{ Receiver, To string }{strings.TrimPrefix(ret.Origin, "https://"), to})
}

// A pageError is what a member reads when there is nothing to decide.
type pageError struct{ Title, Text string }

var (
	pageNotOffered = pageError{"Not offered here", "This service cannot be connected through this address. Nothing happened. Go back to Eleven and choose another way."}
	pageBadRequest = pageError{"This link does not work", "It is incomplete or was changed on the way. Nothing happened. Go back to Eleven and start again."}
	pageForbidden  = pageError{"This did not come from our page", "Nothing happened. Go back to Eleven and start again."}
	pageNotTicked  = pageError{"The box was not ticked", "Nothing happened. Go back, read who will receive the connection, and tick the box if it is right."}
	pageNoFlow     = pageError{"Nothing to finish here", "This sign-in is not waiting in this browser: it took longer than ten minutes, was finished already, or began elsewhere. If Eleven shows the connection, all is well. Otherwise start again there."}
)

func (b *Broker) errorPage(w http.ResponseWriter, r *http.Request, status int, e pageError) {
	if n := noteOf(r.Context()); n.class == "" {
		n.class = "page"
	}
	b.page.write(w, r, status, "error", "'none'", e)
}
