package integrations

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// A form is what the text of a field must look like. Patterns serve the loader and
// schema.json alike; check says the rest in words, "" when there is nothing to say.
type form struct {
	rule    string
	pattern string // anchored; RE2 and ECMAScript read it alike
	is      string // what it should be, for the message
	check   func(string) string
}

const dnsName = `^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)+$`

var dnsNamePattern = regexp.MustCompile(dnsName)

var forms = map[string]form{
	"id":               {"id.form", `^[a-z][a-z0-9-]{0,19}$`, "a lower-case letter, then at most 19 letters, digits or hyphens", nil},
	"op-id":            {"op.name", `^[a-z][a-z0-9_]{0,26}$`, "a lower-case letter, then at most 26 letters, digits or underscores", nil},
	"arg":              {"arg.name", `^[a-z][a-z0-9_]{0,47}$`, "a lower-case letter, then at most 47 letters, digits or underscores", nil},
	"semver":           {"version.semver", `^(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$`, "three numbers with points, such as 1.0.0", nil},
	"words":            {"text.plain", "", "one line of plain text", plainText},
	"sentence":         {"confirm.text", "", "one line of plain text", plainText},
	"host":             {"host.form", dnsName, "one plain DNS name, such as api.example.com", checkHost},
	"https":            {"url.https", `^https://`, "an https address on a public name", checkHTTPS},
	"header":           {"header.name", "^[A-Za-z][A-Za-z0-9-]{0,63}$", "a header name", nil},
	"token-word":       {"auth.scheme", `^[A-Za-z][A-Za-z0-9-]{0,31}$`, "one word, such as Bot", nil},
	"scope":            {"oauth.scope", `^[!#-\[\]-~]{1,128}$`, "a scope token (RFC 6749, section 3.3)", nil},
	"separator":        {"oauth.separator", `^[ ,+;]$`, "a space, comma, plus or semicolon", nil},
	"param":            {"oauth.param", `^[!-~]{1,64}$`, "1 to 64 printable ASCII characters without spaces", nil},
	"dotpath":          {"path.dotted", `^[^.<>\s]+(\.[^.<>\s]+)*$`, "names joined by points, such as data.items", nil},
	"dotpath-or-empty": {"path.dotted", `^([^.<>\s]+(\.[^.<>\s]+)*)?$`, "names joined by points, or nothing", nil},
	"fieldpath":        {"path.dotted", `^([^.<>\s]+|<any>)(\.([^.<>\s]+|<any>))*$`, "names joined by points, such as user.login", nil},
	"date":             {"status.date", `^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$`, "a day, such as 2026-12-02", nil},
}

var formPatterns = func() map[string]*regexp.Regexp {
	m := make(map[string]*regexp.Regexp)
	for name, f := range forms {
		if f.pattern != "" {
			m[name] = regexp.MustCompile(f.pattern)
		}
	}
	return m
}()

// plainText refuses what could change how a person reads a line: markup, and
// characters that are not seen or turn the direction of text.
func plainText(s string) string {
	for _, c := range s {
		switch {
		case c == '\n' || c == '\r' || c == '\t' || !projection.Visible(c):
			return fmt.Sprintf("it holds the character U+%04X, which is not seen or changes the line", c)
		case strings.ContainsRune("<>`*", c):
			return fmt.Sprintf("it holds %q, which reads as markup", c)
		}
	}
	if strings.Contains(s, "](") || strings.Contains(s, "://") || strings.Contains(s, "__") {
		return "it holds a link or other markup"
	}
	if s == "" || strings.TrimSpace(s) != s {
		return "it is empty or has a space at an end"
	}
	return ""
}

func checkHost(s string) string {
	if len(s) > 253 {
		return "it is longer than 253 characters"
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return "it is an IP address"
	}
	if last := s[strings.LastIndexByte(s, '.')+1:]; strings.Trim(last, "0123456789") == "" {
		return "it reads as an IP address"
	}
	if privateName(s) {
		return "it is a name for a private network"
	}
	return ""
}

// privateName says whether a DNS name never stands for a public host (RFC 6761, RFC
// 8375, and what ICANN set aside).
func privateName(s string) bool {
	for _, suffix := range []string{"localhost", "local", "internal", "localdomain", "lan", "home", "corp", "intranet", "private", "home.arpa", "test", "invalid", "onion", "alt"} {
		if s == suffix || strings.HasSuffix(s, "."+suffix) {
			return true
		}
	}
	return !strings.Contains(s, ".")
}

var placeholderInURL = regexp.MustCompile(`\{[a-z_]+\}`)

func checkHTTPS(s string) string {
	if strings.ContainsAny(s, " \t\r\n\\\"<>^`") || !utf8.ValidString(s) {
		return "it holds a character that no address may hold"
	}
	// Only a path may hold placeholders; the rest of the address is fixed.
	u, err := url.Parse(placeholderInURL.ReplaceAllString(s, "x"))
	if err != nil {
		return "it does not parse"
	}
	switch {
	case u.Scheme != "https":
		return "it is not https"
	case u.User != nil:
		return "it holds a user name"
	case u.Fragment != "" || strings.Contains(s, "#"):
		return "it has a fragment"
	case u.Port() != "" || strings.HasSuffix(u.Host, ":"):
		return "it names a port"
	}
	if strings.ContainsAny(strings.TrimPrefix(s, "https://")[:len(u.Host)], "{}") {
		return "its host holds a placeholder"
	}
	if !dnsNamePattern.MatchString(u.Host) {
		return "its host is not one plain DNS name"
	}
	return checkHost(u.Host)
}
