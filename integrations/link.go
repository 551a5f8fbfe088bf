package integrations

import (
	"net/url"
	"strings"
)

// nextLink returns the first target with the relation "next" in Link headers (RFC 8288).
// ok is false where there is none.
func nextLink(headers []string) (target string, ok bool) {
	for _, h := range headers {
		for len(h) > 0 {
			var params string
			h = strings.TrimLeft(h, " \t,")
			if !strings.HasPrefix(h, "<") {
				break // not a link-value: nothing after it can be told apart
			}
			end := strings.IndexByte(h, '>')
			if end < 0 {
				break
			}
			uri := h[1:end]
			params, h = cutOutside(h[end+1:], ',')
			if hasRel(params, "next") {
				return uri, true
			}
		}
	}
	return "", false
}

// cutOutside cuts s at the first sep that stands in no quoted text.
func cutOutside(s string, sep byte) (before, after string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == sep && !quoted:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}

// hasRel says whether the first rel parameter names the relation.
func hasRel(params, rel string) bool {
	for params != "" {
		var p string
		params = strings.TrimLeft(params, " \t;")
		p, params = cutOutside(params, ';')
		name, value, _ := strings.Cut(p, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "rel") {
			continue
		}
		value = strings.Trim(strings.TrimSpace(value), `"`)
		for _, r := range strings.Fields(value) {
			if strings.EqualFold(r, rel) {
				return true
			}
		}
		return false
	}
	return false
}

// queryValue returns a parameter of an address's query. The address itself is never
// followed.
func queryValue(target, name string) (string, bool) {
	u, err := url.Parse(target)
	if err != nil {
		return "", false
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil || !q.Has(name) {
		return "", false
	}
	return q.Get(name), true
}
