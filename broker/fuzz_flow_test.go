package broker_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/broker"
	"github.com/elevenmessenger/connect/broker/brokertest"
)

// FuzzOrigin: what is accepted as an origin is one to every reader of it, and its own
// canonical form.
func FuzzOrigin(f *testing.F) {
	for _, s := range []string{
		"https://chat.example", "https://CHAT.example:443", "https://chat.example:8443", "https://bücher.example", "https://good@evil.example", `https://good\@evil.example`, "https://0x7f.1", "https://[::1]",
		"https://good.example.", "https://good。example", "https://good.example\xc0\x8d", "https:evil", "//evil", "https://good.example#@evil.example", "https://xn--zzzzzz.example", "https://good\t.example", "https://１２７.0.0.1",
	} {
		f.Add(s)
	}
	canonical := regexp.MustCompile(`^https://([a-z0-9-]+\.)+[a-z0-9-]+(:[1-9][0-9]{0,4})?$`)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := broker.ParseOrigin(s)
		if err != nil {
			return
		}
		if !canonical.MatchString(got) {
			t.Fatalf("%q gives %q", s, got)
		}
		if again, err := broker.ParseOrigin(got); err != nil || again != got {
			t.Fatalf("%q gives %q, which gives %q, %v", s, got, again, err)
		}
		u, err := url.Parse(got)
		if err != nil || "https://"+u.Host != got || u.Hostname() == strings.TrimPrefix(brokertest.Origin, "https://") && u.Port() == "" && got != brokertest.Origin {
			t.Fatalf("%q gives %q, which reads as %v, %v", s, got, u, err)
		}
	})
}

// FuzzQuery: no parameter of a page's route comes back as markup, leads anywhere or calls a
// provider. (C10, S6, X1, X13)
func FuzzQuery(f *testing.F) {
	s, err := brokertest.Start(brokertest.Options{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(s.Close)
	key, err := brokertest.NewIdentity(f).Public().MarshalText()
	if err != nil {
		f.Fatal(err)
	}
	for _, in := range markup {
		if len(in) > 100 {
			continue // the fuzzer spends its time on making them shorter
		}
		for _, name := range []string{"return_to", "access", "for", "code", "state", "error", "error_description", "iss"} {
			f.Add(name, in)
		}
	}
	f.Add("return_to", "https://evil.example")
	f.Add("return_to", "https://bücher.example")
	f.Add("return_to", "http://127.0.0.1:4711/aaaaaaaaaaaaaaaa")
	template, err := os.ReadFile("page.html")
	if err != nil {
		f.Fatal(err)
	}
	const dashes = `"read"> "key"> "return_to"> "access"> "token" value="`
	tags := regexp.MustCompile(`(?s)<[^>]*>`)
	f.Fuzz(func(t *testing.T, name, value string) {
		for path, base := range map[string]url.Values{
			"/oauth/acme/authorize": {"access": {"read"}, "return_to": {brokertest.Instance}, "key": {string(key)}},
			"/oauth/acme/callback":  {"state": {"AAAAAAAAAAAAAAAAAAAAAA"}, "code": {"c"}},
		} {
			base.Set(name, value)
			r := httptest.NewRequest(http.MethodGet, "https://broker.test"+path+"?"+base.Encode(), nil)
			w := httptest.NewRecorder()
			s.Broker.ServeHTTP(w, r)
			body := w.Body.String()
			if loc := w.Header().Get("Location"); loc != "" || w.Code >= 500 || w.Code == http.StatusOK && strings.HasSuffix(path, "callback") {
				t.Fatalf("%s: %d, Location %q", path, w.Code, loc)
			}
			// Every tag is one that the templates have, with what they put in it.
			for _, tag := range tags.FindAllString(body, -1) {
				head := strings.ToLower(strings.Trim(strings.Fields(strings.Trim(tag, "<>/ ") + " ")[0], "/"))
				if !strings.Contains(" !doctype html meta title style main h1 bdi dl div dt dd br small p span form input label strong button code ", " "+head+" ") || strings.Contains(strings.ToLower(tag), " on") {
					t.Fatalf("%s: the page holds %q", path, tag)
				}
			}
			if len(value) > 3 && strings.ContainsAny(value, `<>"'&`) && strings.Contains(body, value) && !strings.Contains(string(template)+dashes, value) {
				t.Fatalf("%s: the page holds %q as it came", path, value)
			}
			for k, vs := range w.Header() {
				for _, v := range vs {
					if strings.ContainsAny(v, "\r\n\x00") {
						t.Fatalf("%s: header %s is %q", path, k, v)
					}
				}
			}
		}
		if n := s.Upstream.Count(); n != 0 {
			t.Fatalf("%d calls reached the provider", n)
		}
	})
}
