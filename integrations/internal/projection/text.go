package projection

import (
	"math/bits"
	"strconv"
	"unicode/utf8"
)

const replacement = "\uFFFD"

// Visible reports whether a rune may be shown as it is. It is false for
// control characters other than tab, line feed and carriage return, for those
// that set the direction of text or take no room, and for noncharacters: what
// could hide or reorder text that a person or a model reads.
func Visible(r rune) bool {
	switch {
	case r < 0x20:
		return r == '\t' || r == '\n' || r == '\r'
	case r < 0x7F:
		return true
	case r < 0xA0: // DEL and C1
		return false
	case r < 0x2000: // Hangul fillers and other letters without a shape are among these
		return r != 0xAD && r != 0x34F && r != 0x61C && r != 0x115F && r != 0x1160 && r != 0x17B4 && r != 0x17B5 && !(r >= 0x180B && r <= 0x180F)
	case r < 0x2070:
		return !(r >= 0x200B && r <= 0x200F || r >= 0x2028 && r <= 0x202E ||
			r >= 0x2060 && r <= 0x206F)
	case r < 0xFDD0:
		return r != 0x2800 && r != 0x3164
	case r <= 0xFDEF:
		return false
	case r == 0xFEFF || r == 0xFFA0 || r >= 0xFFF0 && r <= 0xFFFB:
		return false
	case r >= 0x1BCA0 && r <= 0x1BCA3 || r >= 0x1D173 && r <= 0x1D17A:
		return false
	case r&0xFFFE == 0xFFFE:
		return false
	case r >= 0xE0000 && r <= 0xE0FFF: // tags and the variation selectors after them
		return false
	}
	return true
}

// appendQuoted appends text as a JSON string with every rune visible.
func appendQuoted[T string | []byte](b []byte, text T) []byte {
	b = append(b, '"')
	for _, r := range string(text) {
		b = appendEscaped(b, r)
	}
	return append(b, '"')
}

// appendEscaped appends one rune of a JSON string.
func appendEscaped(b []byte, r rune) []byte {
	switch r {
	case '"':
		return append(b, `\"`...)
	case '\\':
		return append(b, `\\`...)
	case '\t':
		return append(b, `\t`...)
	case '\n':
		return append(b, `\n`...)
	case '\r':
		return append(b, `\r`...)
	}
	if !Visible(r) {
		r = utf8.RuneError
	}
	return utf8.AppendRune(b, r)
}

// Eight bytes are looked at together: a byte's high bit is set in the result
// if the byte is special. Only the lowest bit set is exact, since a subtraction
// may borrow from the bytes above it, and no more is needed.
const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// special finds the bytes that end a run of plain ASCII in a string: a quote,
// a backslash, a control character, or part of a longer rune.
func special(x uint64) uint64 {
	return ((x ^ '"'*ones - ones) | (x ^ '\\'*ones - ones) | (x - ' '*ones) | x) & highs
}

// pass steps over one special piece of a skipped string other than its closing
// quote, and reads on at the end of the window.
func (s *scanner) pass(pos int) int {
	for {
		switch c := s.buf[pos]; {
		case c == '\\':
			_, next := s.escape(pos)
			return next
		case c >= utf8.RuneSelf:
			// Text in other scripts comes in runs.
			for s.buf[pos] >= utf8.RuneSelf {
				if s.end-pos < utf8.UTFMax {
					pos, _ = s.more(pos, pos)
				}
				r, n := utf8.DecodeRune(s.buf[pos:s.end])
				if r == utf8.RuneError && n <= 1 {
					return s.badRune(pos)
				}
				pos += n
			}
			return pos
		case pos == s.end:
			var ok bool
			if pos, ok = s.more(pos, pos); !ok {
				return s.failEnd()
			}
			return pos
		default:
			return s.fail(pos, "control character in string")
		}
	}
}

func (s *scanner) badRune(pos int) int {
	if !utf8.FullRune(s.buf[pos:s.end]) {
		return s.failEnd()
	}
	return s.fail(pos, "invalid UTF-8")
}

// escape decodes the escape sequence at pos and returns the position after it.
func (s *scanner) escape(pos int) (rune, int) {
	const longest = len(`\ud83d\ude00`)
	if s.end-pos < longest {
		pos, _ = s.more(pos, pos)
	}
	r, n, msg := unescape(s.buf[pos:s.end])
	if n == 0 {
		return 0, s.failEnd()
	}
	if msg != "" {
		return 0, s.fail(pos, msg)
	}
	return r, pos + n
}

const (
	msgEscape    = "invalid escape sequence"
	msgSurrogate = "lone surrogate"
)

// unescape decodes the escape sequence at the start of b. The length is 0 if b
// ends within it.
func unescape(b []byte) (r rune, n int, msg string) {
	if len(b) < 2 {
		return 0, 0, ""
	}
	switch b[1] {
	case '"', '\\', '/':
		return rune(b[1]), 2, ""
	case 'b':
		return '\b', 2, ""
	case 'f':
		return '\f', 2, ""
	case 'n':
		return '\n', 2, ""
	case 'r':
		return '\r', 2, ""
	case 't':
		return '\t', 2, ""
	case 'u':
	default:
		return 0, 2, msgEscape
	}
	r, n, msg = hex4(b)
	if n == 0 || msg != "" || r < 0xD800 || r > 0xDFFF {
		return r, n, msg
	}
	if r >= 0xDC00 {
		return 0, n, msgSurrogate
	}
	switch b = b[n:]; {
	case len(b) == 0 || len(b) == 1 && b[0] == '\\':
		return 0, 0, ""
	case b[0] != '\\' || b[1] != 'u':
		return 0, n, msgSurrogate
	}
	low, m, msg := hex4(b)
	if m == 0 || msg != "" {
		return 0, m, msg
	}
	if low < 0xDC00 || low > 0xDFFF {
		return 0, n, msgSurrogate
	}
	return (r-0xD800)<<10 + (low - 0xDC00) + 0x10000, n + m, ""
}

// hex4 decodes `\uXXXX`.
func hex4(b []byte) (r rune, n int, msg string) {
	for i := 2; i < 6; i++ {
		if i == len(b) {
			return 0, 0, ""
		}
		c := b[i]
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, i, msgEscape
		}
		r = r<<4 | rune(c)
	}
	return r, 6, ""
}

// str copies a string, of which pos is the first byte, to the output or to the
// captured text or to both.
func (s *scanner) str(pos int, out, text bool) int {
	start := pos
	var del uint64
	for {
		x := load(&s.buf, pos)
		m := special(x)
		if m != 0 {
			pos += bits.TrailingZeros64(m) >> 3
			del |= (x + ones) & (m - 1) &^ m
			break
		}
		del |= x + ones
		pos += 8
	}
	if s.buf[pos] == '"' && out && !text && del&highs == 0 {
		s.put(s.buf[start-1 : pos+1])
		return pos + 1
	}
	if out {
		s.putByte('"')
	}
	pos = s.pieces(start, out, text)
	if out && pos >= 0 {
		s.putByte('"')
	}
	return pos
}

// pieces copies what is inside of a string.
func (s *scanner) pieces(pos int, out, text bool) int {
	start := pos
	flush := func(to int) {
		if out {
			s.put(s.buf[start:to])
		}
		if text {
			s.keep(s.buf[start:to])
		}
	}
	for {
		x := load(&s.buf, pos)
		m := special(x) | (x+ones)&highs // DEL as well
		if m == 0 {
			pos += 8
			continue
		}
		pos += bits.TrailingZeros64(m) >> 3
		switch c := s.buf[pos]; {
		case c == '"':
			flush(pos)
			return pos + 1
		case c == '\\':
			flush(pos)
			r, next := s.escape(pos)
			if next < 0 {
				return next
			}
			var b [utf8.UTFMax]byte
			if out {
				s.put(appendEscaped(b[:0], r))
			}
			if text {
				s.keep(utf8.AppendRune(b[:0], r))
			}
			pos, start = next, next
		case c >= 0x7F:
			if s.end-pos < utf8.UTFMax {
				flush(pos)
				pos, _ = s.more(pos, pos)
				start = pos
			}
			r, n := utf8.DecodeRune(s.buf[pos:s.end])
			if r == utf8.RuneError && n <= 1 {
				return s.badRune(pos)
			}
			if !Visible(r) {
				flush(pos)
				if out {
					s.put([]byte(replacement))
				}
				if text {
					s.keep(s.buf[pos : pos+n])
				}
				start = pos + n
			}
			pos += n
		case pos == s.end:
			flush(pos)
			var ok bool
			if pos, ok = s.more(pos, pos); !ok {
				return s.failEnd()
			}
			start = pos
		default:
			return s.fail(pos, "control character in string")
		}
	}
}

// keep adds to the captured text.
func (s *scanner) keep(b []byte) {
	// A rune over the limit shows that there is more.
	s.text = append(s.text, b[:min(len(b), maxText+utf8.UTFMax-len(s.text))]...)
}

// captured returns the captured text, cut at a rune if it is too long.
func (s *scanner) captured() string {
	t := s.text
	if len(t) > maxText {
		n := maxText
		for !utf8.RuneStart(t[n]) {
			n--
		}
		t = t[:n]
	}
	return string(t)
}

// number returns the position after the number at pos, and that of the number
// itself, which moves if the window has to.
func (s *scanner) number(pos int) (start, next int) {
	digits := func(i int) int {
		for s.buf[i]-'0' < 10 {
			i++
		}
		return i
	}
	for {
		i, ok := pos, false
		if s.buf[i] == '-' {
			i++
		}
		if s.buf[i] == '0' {
			i, ok = i+1, true
		} else {
			n := digits(i)
			i, ok = n, n > i
		}
		if ok && s.buf[i] == '.' {
			n := digits(i + 1)
			i, ok = n, n > i+1
		}
		if ok && s.buf[i]|0x20 == 'e' {
			i++
			if c := s.buf[i]; c == '+' || c == '-' {
				i++
			}
			n := digits(i)
			i, ok = n, n > i
		}
		if i-pos > maxNumber {
			return 0, s.fail(pos, "number longer than "+strconv.Itoa(maxNumber)+" digits")
		}
		if i == s.end {
			// There may be more of it.
			var more bool
			if pos, more = s.more(pos, pos); more {
				continue
			}
			i = s.end
			if !ok {
				return 0, s.failEnd()
			}
		}
		if !ok {
			return 0, s.fail(i, "invalid number")
		}
		return pos, i
	}
}
