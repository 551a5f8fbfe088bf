package projection

import (
	"encoding/binary"
	"errors"
	"io"
	"math/bits"
	"sync"
)

const (
	window = 6 << 10 // more than the longest name

	// slack lets the hot loops look past the end of the input without asking:
	// a zero byte, which JSON never has, stands there and ends every token.
	slack = 8 + maxPrefix
)

// scanner is the state of one run. Its parts are small enough for a run from
// cold to take no more than 64 KB beside the output, unless the answer has
// hundreds of different names. What those can add is bounded too, see memory.
type scanner struct {
	buf     [window + slack]byte
	end     int   // of the input in buf
	base    int64 // offset of buf in the input
	eof     bool  // no byte follows those in buf
	readErr error // why
	r       io.Reader

	p     *Projection
	lim   Limits
	err   error
	depth int
	stack []frame

	memory

	output

	root   RootKind
	items  int
	values []Value
	text   []byte

	stack0  [16]frame
	memory0 memoryArrays
}

// frame is an open array or object. The frame at the bottom is the document.
type frame struct {
	shape      uint16 // of an object
	at         uint16 // entry of the member being read; of an array, the entry it belongs to
	pick, caps uint16 // places in the trees of paths
	mask       uint8  // the flags that count for the members
	array      bool
	emit       bool // is in the output
	wrote      bool // has a member in the output
	root       bool // is the root, an array
	field      bool // a field starts here that is an array
	outerWrote bool // wrote of the frame around a field
	serial     uint32
	stray      int32 // where its names among the strays start
	slots      int32 // size of the table of strays
	count      int64 // of the members
	mark       int   // size of the output before the field
}

// Flags say what a value needs besides being checked.
const (
	flagPick    = 1 << iota // its node is not nowhere
	flagCapture             // a captured path ends here
	flagStray               // of an entry: it has no name of its own

	flagAll = flagPick | flagCapture
)

var scanners = sync.Pool{New: func() any { return new(scanner) }}

func (s *scanner) run(p *Projection, r io.Reader, lim Limits) (Output, error) {
	s.p, s.r, s.lim = p, r, lim
	s.end, s.base, s.eof, s.readErr = 0, 0, false, nil
	s.err, s.depth = nil, 0
	if s.stack == nil {
		s.stack = s.stack0[:]
	}
	s.output.reset(lim.MaxOut)
	s.root, s.items = Absent, 0
	s.values = make([]Value, len(p.last))
	s.forget()

	pos := s.scan()
	out := Output{Read: s.base + int64(pos)}
	if s.err != nil {
		out.Read = s.base + int64(s.end)
		return out, s.err
	}
	out.Root, out.Items, out.Captures = s.root, s.items, s.values
	out.Size, out.JSON = s.size(), s.bytes()
	return out, nil
}

// release gives s back to the pool, without what only a large answer needed.
func (s *scanner) release() {
	s.p, s.r, s.readErr, s.err, s.values = nil, nil, nil, nil, nil
	if len(s.stack) > 2*defaultDepth {
		s.stack = nil
	}
	s.output.shrink()
	s.memory.shrink()
	scanners.Put(s)
}

// more reads the input on. The bytes before keep are dropped; pos is returned
// as it is after that. It reports false if nothing came, which is the end of
// the input unless all of the window is kept.
//
// The window is filled whenever the reader has enough to give, so that what is
// found does not depend on the pieces the reader gives.
func (s *scanner) more(pos, keep int) (int, bool) {
	if s.eof {
		return pos, false
	}
	if keep > 0 {
		copy(s.buf[:], s.buf[keep:s.end])
		s.base += int64(keep)
		s.end -= keep
	}
	before := s.end
	// One byte over the limit tells that the limit is exceeded.
	room := int(min(window, s.lim.MaxBytes+1-s.base))
	for idle := 0; s.end < room && !s.eof; {
		n, err := s.r.Read(s.buf[s.end:room])
		if n < 0 || n > room-s.end {
			n, err = 0, errBadRead
		}
		s.end += n
		if n > 0 {
			idle = 0
		} else if idle++; idle == 100 && err == nil {
			err = io.ErrNoProgress
		}
		if err != nil {
			s.eof = true
			s.readErr = err
			if err != io.EOF {
				s.readErr = &ReadError{Offset: s.base + int64(s.end), Err: err}
			}
		}
	}
	if s.base+int64(s.end) > s.lim.MaxBytes {
		s.end = int(s.lim.MaxBytes - s.base)
		s.eof = true
		s.readErr = &LimitError{MaxBytes: s.lim.MaxBytes}
	}
	binary.LittleEndian.PutUint64(s.buf[s.end:], 0)
	return pos - keep, s.end > before
}

var errBadRead = errors.New("reader returned an impossible count")

// load returns the eight bytes at pos.
func load(buf *[window + slack]byte, pos int) uint64 {
	return binary.LittleEndian.Uint64(buf[pos:])
}

// skip returns the position after white space, s.end if nothing follows.
func (s *scanner) skip(pos int) int {
	for {
		switch s.buf[pos] {
		case ' ', '\n', '\t', '\r':
			// Indentation comes eight spaces at a time.
			if load(&s.buf, pos) == ' '*ones {
				pos += 8
			} else {
				pos++
			}
			continue
		case 0:
			if pos == s.end {
				var ok bool
				if pos, ok = s.more(pos, pos); ok {
					continue
				}
			}
		}
		return pos
	}
}

// blank is skip where something has to follow; otherwise it returns -1.
func (s *scanner) blank(pos int) int {
	if pos = s.skip(pos); pos == s.end {
		return s.failEnd()
	}
	return pos
}

const (
	litTrue = 't' | 'r'<<8 | 'u'<<16 | 'e'<<24
	litFals = 'f' | 'a'<<8 | 'l'<<16 | 's'<<24
	litNull = 'n' | 'u'<<8 | 'l'<<16 | 'l'<<24
)

// literal returns the length of the literal at pos, 0 if there is none.
func literal(buf *[window + slack]byte, pos int) int {
	switch uint32(load(buf, pos)) {
	case litTrue, litNull:
		return 4
	case litFals:
		if buf[pos+4] == 'e' {
			return 5
		}
	}
	return 0
}

// wrongLiteral records that there is no literal at pos.
func (s *scanner) wrongLiteral(pos int) int {
	for _, lit := range []string{"true", "false", "null"} {
		if rest := string(s.buf[pos:s.end]); s.eof && len(rest) < len(lit) && lit[:len(rest)] == rest {
			return s.failEnd()
		}
	}
	return s.fail(pos, "invalid literal")
}

// scan reads the whole input. It returns the position of its end in the
// window, or -1 with s.err set.
//
// It is one function with jumps because nearly all of the time goes into
// stepping from one member to the next: calls would cost more than the work.
// The values that need more than a check are left to other methods.
func (s *scanner) scan() int {
	var (
		buf = &s.buf
		pos int
		c   byte
		ok  bool

		serial uint32
		next   uint16 // entry of the member that should come next

		// The value to be read: the entry it belongs to, its places in the
		// trees of paths, and its flags.
		at, pick, caps uint16
		flags          uint8
	)
	f := &s.stack[0]
	*f = frame{array: true}
	if s.more(0, 0); s.end >= 3 && string(buf[:3]) == "\xEF\xBB\xBF" {
		return s.fail(0, "byte order mark")
	}
	at, pick, caps, flags = entryTop, 1, 1, flagPick

value:
	c = buf[pos]
	if flags != 0 {
		goto wanted
	}
plain:
	if c == '"' {
		pos++
		for {
			m := special(load(buf, pos))
			if m == 0 {
				pos += 8
				continue
			}
			pos += bits.TrailingZeros64(m) >> 3
			if buf[pos] == '"' {
				pos++
				goto after
			}
			if pos = s.pass(pos); pos < 0 {
				return pos
			}
		}
	}
	if c-'1' < 9 {
		i := pos + 1
		for buf[i]-'0' < 10 {
			i++
		}
		if c = buf[i]; (c == ',' || c == '}' || c == ']') && i-pos <= maxNumber {
			pos = i
			goto after
		}
		if _, pos = s.number(pos); pos < 0 {
			return pos
		}
		goto after
	}
	switch c {
	case 't', 'f', 'n':
		n := literal(buf, pos)
		if n == 0 {
			if s.end-pos < 5 {
				if pos, ok = s.more(pos, pos); ok {
					goto value
				}
			}
			return s.wrongLiteral(pos)
		}
		pos += n
		goto after
	case '{', '[':
		f = s.push(pick, caps)
		if f == nil {
			return s.fail(pos, "too deep")
		}
		pos++
		goto open
	case '-', '0':
		if _, pos = s.number(pos); pos < 0 {
			return pos
		}
		goto after
	case ' ', '\n', '\t', '\r', 0:
		if pos = s.blank(pos); pos < 0 {
			return pos
		}
		if buf[pos] != 0 {
			goto value
		}
	}
	return s.fail(pos, "expected a value")

wanted:
	switch c {
	case '{', '[':
		g := s.push(pick, caps)
		if g == nil {
			return s.fail(pos, "too deep")
		}
		if flags&flagPick != 0 {
			s.begin(at, c)
		}
		f = g
		pos++
		if flags&flagCapture != 0 {
			if pos = s.container(pos, c, caps); pos < 0 {
				return pos
			}
		}
		goto open
	case '"', '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 't', 'f', 'n':
		if pos = s.scalar(pos, f, at, pick, caps, flags); pos < 0 {
			return pos
		}
		goto after
	}
	goto plain

open:
	if c == '[' {
		f.array = true
		f.at = at
		goto element
	}
	serial++
	f.serial = serial
	f.shape = s.shapeOf(at, pick, caps)
	next = s.shapes[f.shape].first
	goto member

after:
	c = buf[pos]
	if c == ',' {
		pos++
		if f.array {
			if s.depth == 0 {
				return s.failBetween(pos-1, "data after the value")
			}
			goto element
		}
		next = s.entries[f.at].next
		goto member
	}
	if c <= ' ' {
		if s.depth == 0 {
			goto finish
		}
		if pos = s.blank(pos); pos < 0 {
			return pos
		}
		if c = buf[pos]; c > ' ' {
			goto after
		}
	}
	if s.depth == 0 {
		return s.failBetween(pos, "data after the value")
	}
	if c == '}' && !f.array || c == ']' && f.array {
		goto closing
	}
	return s.failBetween(pos, "expected a comma or the end")

member:
	{
		// Objects at the same place mostly have the same names in the same
		// order. A member written as it was before needs no more than this.
		e := &s.entries[next]
		n := int(e.prefix)
		if n != 0 && string(buf[pos:pos+n]) == string(s.arena[e.off:int(e.off)+n]) && e.serial != f.serial {
			e.serial = f.serial
			pos += n
			f.at = next
			at, pick, caps, flags = next, e.pick, e.caps, e.flags&f.mask
		} else {
			switch pos, at = s.name(pos, f); at {
			case nameAgain:
				goto member
			case nameClose:
				goto closing
			case nameFail:
				return pos
			}
			e = &s.entries[at]
			pick, caps, flags = e.pick, e.caps, e.flags&f.mask
		}
		f.count++
		if f.count > int64(s.lim.MaxNames) {
			return s.fail(pos, "too many names")
		}
		goto value
	}

element:
	c = buf[pos]
	if f.count == 0 {
		if c <= ' ' {
			if pos = s.blank(pos); pos < 0 {
				return pos
			}
			c = buf[pos]
		}
		if c == ']' {
			goto closing
		}
	}
	f.count++
	at, pick, caps, flags = f.at, f.pick, f.caps, f.mask&flagPick
	if f.count == 1 && s.p.caps[caps].item {
		flags |= flagCapture
	}
	goto value

closing:
	pos++
	if f.emit {
		s.putByte(buf[pos-1])
	}
	if f.root {
		s.items = int(f.count)
	}
	s.strays = s.strays[:f.stray]
	s.depth--
	f = &s.stack[s.depth]
	goto after

finish:
	if pos = s.skip(pos); pos < s.end {
		return s.failBetween(pos, "data after the value")
	}
	if s.readErr != io.EOF {
		return s.failEnd()
	}
	return pos
}

// push opens a frame that is left out of the output. It returns nil if that is
// too deep. Frames may move.
func (s *scanner) push(pick, caps uint16) *frame {
	if s.depth == s.lim.MaxDepth {
		return nil
	}
	s.depth++
	if s.depth == len(s.stack) {
		s.stack = append(s.stack, make([]frame, len(s.stack))...)
	}
	g := &s.stack[s.depth]
	*g = frame{pick: pick, caps: caps, mask: flagCapture, stray: int32(len(s.strays))}
	return g
}

// begin decides what the picked container just pushed is to the output.
func (s *scanner) begin(at uint16, c byte) {
	f, g := &s.stack[s.depth-1], &s.stack[s.depth]
	switch s.p.nodes[g.pick].kind {
	case kindDescend:
		if c == '{' {
			g.mask = flagAll
		}
		return
	case kindRoot:
		if s.root == Absent {
			s.root = Object
			if c == '[' {
				s.root, g.root = Array, true
			}
			if !s.p.fields {
				return
			}
			break
		}
		s.sep(f)
	case kindInner:
		s.label(f, g.pick, at)
	case kindLeaf:
		if c == '{' {
			if f.array {
				s.drop()
			}
			return
		}
		if !f.array {
			g.field, g.outerWrote, g.mark = true, f.wrote, s.size()
		}
		s.label(f, g.pick, at)
	}
	s.putByte(c)
	g.mask, g.emit = flagAll, true
}

// drop takes back the field that the array around the innermost frame is part
// of: it has an object in it.
func (s *scanner) drop() {
	for i := s.depth - 1; ; i-- {
		f := &s.stack[i]
		f.mask, f.emit = flagCapture, false
		if f.field {
			s.cut(f.mark)
			s.stack[i-1].wrote = f.outerWrote
			return
		}
	}
}

func (s *scanner) sep(f *frame) {
	if f.wrote {
		s.putByte(',')
	}
	f.wrote = true
}

// label writes what comes before a value inside of f: its name, unless f is an
// array.
func (s *scanner) label(f *frame, pick, at uint16) {
	if f.array {
		s.sep(f)
		return
	}
	if label := s.p.nodes[pick].label; label != nil {
		if !f.wrote {
			f.wrote = true
			label = label[1:]
		}
		s.put(label)
		return
	}
	s.sep(f)
	name := s.entryName(at)
	if name == nil {
		name = s.stray
	}
	s.put(append(appendQuoted(nil, name), ':'))
}

// scalar reads a scalar that is picked or captured.
func (s *scanner) scalar(pos int, f *frame, at, pick, caps uint16, flags uint8) int {
	c := s.buf[pos]
	out := false
	if flags == flagPick && c == '"' && s.p.nodes[pick].kind == kindLeaf {
		s.label(f, pick, at)
		return s.str(pos+1, true, false)
	}
	if flags&flagPick != 0 {
		switch s.p.nodes[pick].kind {
		case kindRoot:
			if s.root == Absent {
				s.root = Scalar
				if c == 'n' {
					s.root = Null
					out = s.p.fields
				}
				break
			}
			fallthrough
		case kindInner:
			if f.array && c == 'n' {
				s.sep(f)
				out = true
			}
		case kindLeaf:
			s.label(f, pick, at)
			out = true
		}
	}
	text := flags&flagCapture != 0 && s.wants(caps)
	s.text = s.text[:0]
	v := Value{Found: true, Kind: c}
	switch c {
	case '"':
		if pos = s.str(pos+1, out, text); pos < 0 {
			return pos
		}
		v.Empty = len(s.text) == 0
	case 't', 'f', 'n':
		n := literal(&s.buf, pos)
		if n == 0 {
			pos, _ = s.more(pos, pos)
			if n = literal(&s.buf, pos); n == 0 {
				return s.wrongLiteral(pos)
			}
		}
		if out {
			s.put(s.buf[pos : pos+n])
		}
		pos += n
	default:
		v.Kind = '0'
		start, next := s.number(pos)
		if next < 0 {
			return next
		}
		pos = next
		if out {
			s.put(s.buf[start:pos])
		}
		if text {
			s.keep(s.buf[start:pos])
		}
	}
	if text {
		v.Text = s.captured()
		v.Cut = len(v.Text) < len(s.text)
		s.capture(caps, v, f.array)
	}
	return pos
}

// wants reports whether a capture that ends at a node still needs a value.
func (s *scanner) wants(caps uint16) bool {
	for _, i := range s.p.caps[caps].ends {
		if s.p.last[i] || !s.values[i].Found {
			return true
		}
	}
	return false
}

// capture takes a value; item says that it is the first of an array.
func (s *scanner) capture(caps uint16, v Value, item bool) {
	for _, i := range s.p.caps[caps].ends {
		switch {
		case item && !s.p.item[i] || v.Kind == '[' && s.p.item[i]:
		case s.p.last[i]:
			v.Met = s.values[i].Met + 1
			s.values[i] = v
		case !s.values[i].Found:
			v.Met = 0
			s.values[i] = v
		}
	}
}

// container captures an array or object by its kind and whether it is empty,
// for which it looks ahead from pos, just inside. It returns the position of
// what follows there.
func (s *scanner) container(pos int, c byte, caps uint16) int {
	if pos = s.blank(pos); pos >= 0 {
		s.capture(caps, Value{Found: true, Kind: c, Empty: s.buf[pos] == c+2}, s.stack[s.depth-1].array)
	}
	return pos
}
