package projection

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// A SyntaxError reports input that is not the JSON this package accepts. It
// carries names of the input, made harmless to print, but none of its values.
type SyntaxError struct {
	Offset int64  // bytes before the place
	Path   string // names that lead to the place, joined by dots
	Msg    string
	early  bool
}

func (e *SyntaxError) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("json: %s at byte %d", e.Msg, e.Offset)
	}
	return fmt.Sprintf("json: %s at byte %d in %s", e.Msg, e.Offset, e.Path)
}

// Unwrap returns [io.ErrUnexpectedEOF] if the input ended too early.
func (e *SyntaxError) Unwrap() error {
	if e.early {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// A LimitError reports that the input is longer than Limits.MaxBytes.
type LimitError struct {
	MaxBytes int64
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("json: longer than %d bytes", e.MaxBytes)
}

// A ReadError wraps an error of the reader.
type ReadError struct {
	Offset int64 // bytes read before the error
	Err    error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("json: reading after byte %d: %v", e.Offset, e.Err)
}

func (e *ReadError) Unwrap() error { return e.Err }

// fail records a syntax error inside the value being read and returns -1.
func (s *scanner) fail(pos int, msg string) int {
	return s.failIn(pos, msg, s.path(true))
}

// failBetween is fail for a place outside of the members of the open object.
func (s *scanner) failBetween(pos int, msg string) int {
	return s.failIn(pos, msg, s.path(false))
}

func (s *scanner) failIn(pos int, msg, path string) int {
	s.err = &SyntaxError{Offset: s.base + int64(pos), Path: path, Msg: msg}
	return -1
}

// failEnd records that the input has no more bytes and returns -1.
func (s *scanner) failEnd() int {
	if s.readErr != io.EOF {
		s.err = s.readErr
		return -1
	}
	e := &SyntaxError{Offset: s.base + int64(s.end), Path: s.path(true), Msg: "ends early", early: true}
	if e.Offset == 0 {
		e.Msg = "empty"
	}
	s.err = e
	return -1
}

// path joins the names that lead to the value being read. With member false
// the innermost open object adds no name.
func (s *scanner) path(member bool) string {
	var b strings.Builder
	for i := 1; i <= s.depth; i++ {
		f := &s.stack[i]
		if f.array || f.count == 0 || i == s.depth && !member {
			continue
		}
		name := s.entryName(f.at)
		if name == nil {
			name = s.over[i]
		}
		appendPath(&b, name)
	}
	return b.String()
}

const maxPathName = 64

func appendPath(b *strings.Builder, name []byte) {
	if b.Len() > 0 {
		b.WriteByte('.')
	}
	for n := 0; len(name) > 0; n++ {
		if n == maxPathName {
			b.WriteRune('…')
			break
		}
		r, size := utf8.DecodeRune(name)
		if !Visible(r) || r < ' ' {
			r = utf8.RuneError
		}
		b.WriteRune(r)
		name = name[size:]
	}
}
