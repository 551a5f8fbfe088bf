package integrations

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
)

// minLeak is the length from which a token is looked for in answers: shorter ones would
// be found in any text.
const minLeak = 8

// leaks says whether text holds the token, raw or in an encoding that a service might
// echo it in: JSON, base64 at any offset, hex or percent-encoded.
func (s Secret) leaks(text []byte) bool { return s.leaksAs(text, s.encodings()) }

// leaksAs is leaks for whoever keeps the encodings.
func (s Secret) leaksAs(text []byte, encodings [][]byte) bool {
	if len(s.s) < minLeak || len(text) == 0 {
		return false
	}
	for _, form := range encodings {
		if bytes.Contains(text, form) {
			return true
		}
	}
	// Whatever stands between its letters and however they are cased: separators, escapes
	// such as \/ and line breaks in base64 go the same way.
	plain := letters(text)
	for _, form := range encodings {
		if l := letters(form); len(l) >= minLeak && bytes.Contains(plain, l) {
			return true
		}
	}
	// Percent-encoding leaves a choice of characters and of upper and lower case.
	return bytes.IndexByte(text, '%') >= 0 && bytes.Contains(percentDecoded(text), []byte(s.s))
}

// begins says whether text ends with the beginning of the token, as one that was cut may.
func (s Secret) begins(text []byte) bool {
	for _, form := range s.encodings() {
		for n := min(len(form), len(text)); n >= minLeak; n-- {
			if bytes.HasSuffix(text, form[:n]) {
				return true
			}
		}
	}
	return false
}

// letters keeps the letters and digits of text, in lower case.
func letters(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for _, c := range text {
		switch {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			out = append(out, c)
		case 'A' <= c && c <= 'Z':
			out = append(out, c+'a'-'A')
		}
	}
	return out
}

// percentDecoded decodes what is percent-encoded in text and keeps the rest.
func percentDecoded(text []byte) []byte {
	out := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			var c [1]byte
			if _, err := hex.Decode(c[:], text[i+1:i+3]); err == nil {
				out = append(out, c[0])
				i += 2
				continue
			}
		}
		out = append(out, text[i])
	}
	return out
}

func (s Secret) encodings() [][]byte {
	if len(s.s) < minLeak {
		return nil
	}
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
	// Most are the same: a token of letters and digits looks alike in all but two.
	different := forms[:0]
	for _, form := range forms {
		if !slices.ContainsFunc(different, func(f []byte) bool { return bytes.Equal(f, form) }) {
			different = append(different, form)
		}
	}
	return different
}
