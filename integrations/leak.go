package integrations

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"net/url"
	"slices"
	"strings"
)

// minLeak is the length from which a token is looked for in answers: shorter ones would
// be found in any text.
const minLeak = 8

// leaks says whether text holds the token, raw or in an encoding that a service might
// echo it in: JSON, base64 at any offset, hex or percent-encoded.
func (s Secret) leaks(text []byte) bool { return s.forms().in(text) }

// secretForms are what a token is looked for by: the letters and digits of its encodings,
// whatever stands between them and however they are cased, so that separators, escapes
// such as \/ and line breaks in base64 make no difference. Those that have few are looked
// for as they are.
type secretForms struct {
	letters [][]byte
	exact   []string
	raw     string
}

func (s Secret) forms() *secretForms {
	f := &secretForms{raw: s.s}
	if len(s.s) < minLeak {
		return f
	}
	add := func(form string) {
		l := letters(form)
		switch {
		case len(l) < minLeak:
			f.exact = append(f.exact, form)
		case !slices.ContainsFunc(f.letters, func(has []byte) bool { return bytes.Equal(has, l) }):
			f.letters = append(f.letters, l)
		}
	}
	add(s.s)
	quoted := appendText(nil, s.s)
	for _, form := range []string{string(quoted[1 : len(quoted)-1]), url.QueryEscape(s.s), url.PathEscape(s.s)} {
		if form != s.s {
			add(form)
		}
	}
	add(hex.EncodeToString([]byte(s.s)))
	// In base64 the token may begin at any of three offsets (after "user:", say); the
	// characters that it shares with its neighbours are left out of the comparison.
	for offset := range 3 {
		padded := append(make([]byte, offset, offset+len(s.s)), s.s...)
		e := base64.StdEncoding.EncodeToString(padded[:len(padded)/3*3])
		if offset > 0 {
			e = e[min(4, len(e)):]
		}
		if len(e) >= minLeak {
			add(e)
		}
	}
	return f
}

// in says whether text holds the token.
func (f *secretForms) in(text []byte) bool {
	if len(f.raw) < minLeak || len(text) == 0 {
		return false
	}
	plain := letters(text)
	if slices.ContainsFunc(f.letters, func(form []byte) bool { return bytes.Contains(plain, form) }) ||
		slices.ContainsFunc(f.exact, func(form string) bool { return strings.Contains(string(text), form) }) {
		return true
	}
	// Percent-encoding leaves a choice of characters.
	return bytes.IndexByte(text, '%') >= 0 && bytes.Contains(percentDecoded(text), []byte(f.raw))
}

// beginIn says whether text ends with the beginning of the token, as one that was cut may.
func (f *secretForms) beginIn(text []byte) bool {
	plain := letters(text)
	for _, form := range f.letters {
		for n := min(len(form), len(plain)); n >= minLeak; n-- {
			if bytes.HasSuffix(plain, form[:n]) {
				return true
			}
		}
	}
	return false
}

// letters keeps the letters and digits of text, in lower case.
func letters[T string | []byte](text T) []byte {
	out := make([]byte, len(text))
	n := 0
	for i := range len(text) {
		c := lowerCase[text[i]]
		out[n] = c // without a branch: it would be guessed wrong too often
		n += int(c+0x7f) >> 7
	}
	return out[:n]
}

// lowerCase has each letter and digit in lower case, zero for what is none.
var lowerCase = func() (t [256]byte) {
	for c := range byte(10) {
		t['0'+c] = '0' + c
	}
	for c := range byte(26) {
		t['a'+c], t['A'+c] = 'a'+c, 'a'+c
	}
	return t
}()

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
