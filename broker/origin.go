package broker

import (
	"errors"
	"net"
	"net/url"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/idna"

	"github.com/elevenmessenger/connect/custody"
)

var errOrigin = errors.New("an origin is https, a public host and at most a port, such as https://chat.example")

// parseOrigin returns the canonical form of an https origin: lower case, punycode, no port
// where it is 443. Everything that could read as another origin is refused.
func parseOrigin(s string) (string, error) {
	if s == "" || len(s) > 300 || !utf8.ValidString(s) || strings.ContainsFunc(s, func(c rune) bool { return c <= 0x20 || c == 0x7f || strings.ContainsRune(`\%@#?`, c) }) {
		return "", errOrigin
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return "", errOrigin
	}
	host, err := idna.Lookup.ToASCII(u.Hostname())
	if err != nil || len(host) > 253 || !isHost(host) || strings.HasSuffix(u.Host, ":") {
		return "", errOrigin
	}
	last := host[strings.LastIndexByte(host, '.')+1:]
	if strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x") {
		return "", errOrigin // an IPv4 address to a browser, however it is written
	}
	if last == "localhost" {
		return "", errOrigin
	}
	if p := u.Port(); p != "" && p != "443" {
		if n, err := strconv.Atoi(p); err != nil || n < 1 || n > 65535 || strconv.Itoa(n) != p {
			return "", errOrigin
		}
		return "https://" + net.JoinHostPort(host, p), nil
	}
	return "https://" + host, nil
}

// A returnAddress is where a flow's outcome goes.
type returnAddress struct {
	URL    string // "/connect/done#…" is appended
	Origin string // what a refresh token is bound to: the origin, "cli" or "cli:<key id>"
	CLI    bool   // a program on the member's own computer (RFC 8252)
}

// host is the host and port of the address.
func (a returnAddress) host() string {
	u, err := url.Parse(a.URL)
	if err != nil {
		return ""
	}
	return u.Host
}

var (
	loopbackSegment = word{16, 64}
	keyID           = word{43, 43}
)

// parseReturn reads return_to: an https origin, or a literal loopback address with a port
// and at most one random path segment. member is the key that a program acts for.
func (b *Broker) parseReturn(s, member string) (returnAddress, error) {
	if strings.HasPrefix(s, "http://") {
		u, err := url.Parse(s)
		if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.RawPath != "" || strings.ContainsAny(s, "?#@%\\ \t\r\n") {
			return returnAddress{}, errOrigin
		}
		port, err := strconv.Atoi(u.Port())
		if err != nil || port < 1024 || port > 65535 || u.Port() != strconv.Itoa(port) || u.Hostname() != "127.0.0.1" && u.Hostname() != "::1" ||
			u.Path != "" && !(u.Path[0] == '/' && loopbackSegment.MatchString(u.Path[1:])) {
			return returnAddress{}, errOrigin
		}
		origin := "cli"
		if member != "" {
			if !keyID.MatchString(member) {
				return returnAddress{}, errors.New("for is not a key's id")
			}
			origin += ":" + member
		}
		return returnAddress{URL: s, Origin: origin, CLI: true}, nil
	}
	origin, err := parseOrigin(s)
	if err != nil {
		return returnAddress{}, err
	}
	if member != "" {
		return returnAddress{}, errors.New("only a program on this computer says for whom it asks")
	}
	if origin == b.origin {
		return returnAddress{}, errors.New("the broker does not return to itself")
	}
	if len(b.cfg.ReturnOrigins) > 0 {
		ok := false
		for _, o := range b.cfg.ReturnOrigins {
			if c, _ := parseOrigin(o); c == origin {
				ok = true
			}
		}
		if !ok {
			return returnAddress{}, errors.New("this broker does not serve that instance")
		}
	}
	return returnAddress{URL: origin, Origin: origin}, nil
}

// parseKey reads the one-time key of a tab or sidecar.
func parseKey(s string) (custody.PublicKey, error) {
	var k custody.PublicKey
	err := k.UnmarshalText([]byte(s))
	return k, err
}
