package integrations

import (
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"

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

var dnsNamePattern = lazily(dnsName)

var forms = map[string]form{
	"id":               {"id.form", `^[a-z][a-z0-9-]{0,19}$`, "a lower-case letter, then at most 19 letters, digits or hyphens", nil},
	"op-id":            {"op.name", `^[a-z][a-z0-9_]{0,26}$`, "a lower-case letter, then at most 26 letters, digits or underscores", nil},
	"arg":              {"arg.name", `^[a-z][a-z0-9_]{0,47}$`, "a lower-case letter, then at most 47 letters, digits or underscores", nil},
	"semver":           {"version.semver", `^(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})$`, "three numbers with points, such as 1.0.0", nil},
	"words":            {"text.plain", "", "one line of plain text", plainWords},
	"sentence":         {"confirm.text", "", "one line of plain text", plainText},
	"host":             {"host.form", dnsName, "one plain DNS name, such as api.example.com", checkHost},
	"https":            {"url.https", `^https://`, "an https address on a public name", checkHTTPS},
	"header":           {"header.name", "^[A-Za-z][A-Za-z0-9-]{0,63}$", "a header name", nil},
	"token-word":       {"auth.scheme", `^[A-Za-z][A-Za-z0-9-]{0,31}$`, "one word, such as Bot", nil},
	"scope":            {"oauth.scope", `^[!#-\[\]-~]{1,128}$`, "a scope token (RFC 6749, section 3.3)", nil},
	"separator":        {"oauth.separator", `^[ ,+;]$`, "a space, comma, plus or semicolon", nil},
	"param":            {"oauth.param", `^[!-~]{1,64}$`, "1 to 64 printable ASCII characters without spaces", nil},
	"code":             {"oauth.code", `^[!-~]([ -~]{0,62}[!-~])?$`, "1 to 64 printable ASCII characters, no space at an end", nil},
	"dotpath":          {"path.dotted", `^[^.<>\s]+(\.[^.<>\s]+)*$`, "names joined by points, such as data.items", allSeen},
	"dotpath-or-empty": {"path.dotted", `^([^.<>\s]+(\.[^.<>\s]+)*)?$`, "names joined by points, or nothing", allSeen},
	"fieldpath":        {"path.dotted", `^([^.<>\s]+|<any>)(\.([^.<>\s]+|<any>))*$`, "names joined by points, such as user.login", allSeen},
	"date":             {"status.date", `^20[0-9]{2}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$`, "a day, such as 2026-12-02", checkDate},
}

// patterns of forms, compiled as they are used. A function makes them, and no variable: what
// the loader alone needs is not linked where it is not.
var patterns struct {
	once sync.Once
	of   map[string]*lazyRegexp
}

func formPatterns() map[string]*lazyRegexp {
	patterns.once.Do(func() {
		patterns.of = make(map[string]*lazyRegexp)
		for name, f := range forms {
			if f.pattern != "" {
				patterns.of[name] = lazily(f.pattern)
			}
		}
	})
	return patterns.of
}

// misfit says how s differs from a form, and the rule that this breaks; msg is "" where
// it does not differ.
func misfit(s, name string) (rule, msg string) {
	f, ok := forms[name]
	switch {
	case !ok:
		panic("integrations: no form " + name)
	case f.pattern != "" && !formPatterns()[name].MatchString(s):
		return f.rule, "this is not " + f.is
	case f.check != nil:
		if why := f.check(s); why != "" {
			return f.rule, "this is not " + f.is + ": " + why
		}
	}
	return "", ""
}

var (
	// What the messengers and browsers that show a line may take for a link, an HTML
	// entity, emphasis, a heading or a list.
	markup = lazily(`\]\(|://|__|~~|\|\||&#|&[A-Za-z][A-Za-z0-9]*;|(?:^|[^\pL\pN])_[^_\s](?:[^_]*[^_\s])?_(?:$|[^\pL\pN])|^(?:#+|[-+]) `)
	// A word that mixes scripts whose letters look alike, such as Latin i and Cyrillic і.
	mixedScripts = lazily(`\p{Latin}\p{M}*[\p{Cyrillic}\p{Greek}]|[\p{Cyrillic}\p{Greek}]\p{M}*\p{Latin}`)

	placeholders = lazily(`\{[A-Za-z_][A-Za-z0-9_.-]*\}`)
)

// plainText refuses what could change how a person reads a line: markup, and
// characters that are not seen or turn the direction of text.
func plainText(s string) string {
	if why := allSeen(s); why != "" {
		return why
	}
	if i := strings.IndexAny(s, "<>`*"); i >= 0 {
		return fmt.Sprintf("it holds %q, which reads as markup", s[i])
	}
	switch {
	case markup.MatchString(placeholders.ReplaceAllString(s, "x")):
		return "it holds a link or other markup"
	case mixedScripts.MatchString(s):
		return "a word in it mixes letters of two scripts that look alike"
	case s == "" || strings.TrimSpace(s) != s:
		return "it is empty or has a space at an end"
	}
	return ""
}

// plainWords is plainText for what is never filled in.
func plainWords(s string) string {
	if strings.ContainsAny(s, "{}") {
		return "it holds a brace, and nothing is filled in here"
	}
	return plainText(s)
}

// allSeen refuses characters without a shape of their own. It is stricter than what the
// renderer marks in values: a manifest has no need of them.
func allSeen(s string) string {
	for _, c := range s {
		if !unicode.IsPrint(c) || !projection.Visible(c) || unicode.In(c, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector) || c == '\u2800' {
			return fmt.Sprintf("it holds the character U+%04X, which is not seen or changes the line", c)
		}
	}
	return ""
}

func checkDate(s string) string {
	if _, err := time.Parse(time.DateOnly, s); err != nil {
		return "there is no such day"
	}
	return ""
}

// A name whose last label is a number is an IPv4 address to a browser and to some
// resolvers, in any of its spellings (WHATWG URL, "ends in a number").
var ipLike = lazily(`(?:^|\.)(?:[0-9]+|0x[0-9a-f]*)$`)

func checkHost(s string) string {
	if len(s) > 253 {
		return "it is longer than 253 characters"
	}
	if _, err := netip.ParseAddr(s); err == nil {
		return "it is an IP address"
	}
	if ipLike.MatchString(s) {
		return "it reads as an IP address"
	}
	if strings.HasPrefix(s, "xn--") || strings.Contains(s, ".xn--") {
		return "it is an internationalised name, which can look like another"
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

var placeholderInURL = lazily(`\{[a-z_]+\}`)

func checkHTTPS(s string) string {
	if strings.ContainsAny(s, "\\\"<>^`") || strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return "it holds a character that no address may hold"
	}
	// Only a path may hold placeholders; the rest of the address is fixed.
	plain := placeholderInURL.ReplaceAllString(s, "x")
	if strings.ContainsAny(plain, "{}") {
		return "it holds a brace that belongs to no placeholder"
	}
	u, err := url.Parse(plain)
	if err != nil {
		return "it does not parse"
	}
	switch {
	case strings.Contains(s[strings.IndexByte(s+"?", '?'):], "{"):
		return "its query holds a placeholder"
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
