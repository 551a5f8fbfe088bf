package integrations

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
)

// minLeak is the length from which a token is looked for in answers: shorter ones would
// be found in any text.
const minLeak = 8

// leaks says whether text holds the token, raw or in an encoding that a service might
// echo it in: JSON, base64 at any offset, hex or percent-encoded.
func (s Secret) leaks(text []byte) bool {
	if len(s.s) < minLeak || len(text) == 0 {
		return false
	}
	for _, form := range s.encodings() {
		if bytes.Contains(text, form) {
			return true
		}
	}
	return false
}

func (s Secret) encodings() [][]byte {
	raw := []byte(s.s)
	quoted := appendText(nil, s.s)
	forms := [][]byte{raw, quoted[1 : len(quoted)-1], []byte(url.QueryEscape(s.s)), []byte(url.PathEscape(s.s))}
	lower := make([]byte, hex.EncodedLen(len(raw)))
	hex.Encode(lower, raw)
	forms = append(forms, lower, bytes.ToUpper(lower))
	// In base64 the token may begin at any of three offsets (after "user:", say); the
	// characters that it shares with its neighbours are left out of the comparison.
	for offset := range 3 {
		padded := append(make([]byte, offset), raw...)
		end := len(padded) / 3 * 3
		start := 0
		if offset > 0 {
			start = 4
		}
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.URLEncoding} {
			if e := enc.EncodeToString(padded[:end]); len(e) >= start+8 {
				forms = append(forms, []byte(e[start:]))
			}
		}
	}
	return forms
}
