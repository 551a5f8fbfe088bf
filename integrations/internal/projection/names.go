package projection

import (
	"hash/maphash"
	"math/bits"
	"strings"
	"unicode/utf8"
)

// memory is what a run remembers of the names it met.
//
// A shape stands for the objects at one path, arrays on the way ignored. Its
// entries are the names such objects had, each with what is needed to read the
// member again quickly: the bytes it was written with, the entry that came
// after it, the shape of the objects below it. An entry carries the serial
// number of the last object that had the name, so that a second one in the
// same object is noticed without a set of its own.
//
// The memory is bounded. Names for which there is no room are strays: only
// their hashes are kept, as long as their object is open.
type memory struct {
	shapes  []shape
	entries []entry
	arena   []byte   // the bytes of the entries
	table   []uint16 // entries by hash of shape and name
	full    bool     // nothing more is remembered

	stray  []byte   // the last stray name
	strays []uint64 // hashes of the strays of all open objects
	tables [][]int32
	over   [][]byte // the start of the stray being read, by depth
	unq    []byte   // a name without its escapes
}

type memoryArrays struct {
	shapes  [32]shape
	entries [96]entry
	arena   [2 << 10]byte
	table   [256]uint16
}

type shape struct {
	first      uint16 // entry that should come first
	other      uint16 // entry for all strays
	names      uint16 // number of entries
	pick, caps uint16 // places in the trees of paths
}

type entry struct {
	serial     uint32 // of the last object with the name
	hash       uint32
	off        uint16 // of the prefix in the arena
	name       uint16 // of the name in the arena
	prefix     uint8  // length of the member up to its value, 0 if unknown
	size       uint8  // length of the name
	flags      uint8
	shape      uint16 // that it is an entry of
	next       uint16 // entry that should come next
	below      uint16 // shape of objects below, 0 if none was met
	pick, caps uint16 // places in the trees of paths
}

const (
	entryTop   = 0 // the document
	entryOther = 1 // any name of shapeOther

	shapeOther = 1 // objects for which there is no room; has no names

	maxEntries    = 1024
	maxShapes     = 256
	maxShapeNames = 256
	maxArena      = 16 << 10
	maxPrefix     = 255 // of the length of a prefix
	maxEntryName  = 128

	fewStrays  = 32 // are looked through one by one
	moreStrays = 4  // objects full of strays may be open at a time

)

// What name returns instead of an entry.
const (
	nameAgain = 0xFFFF - iota // the window moved: look again
	nameClose                 // the object ends
	nameFail
)

var seed = maphash.MakeSeed()

// forget makes the memory empty.
func (s *scanner) forget() {
	m, a := &s.memory, &s.memory0
	if m.table == nil {
		m.shapes, m.entries, m.arena, m.table = a.shapes[:], a.entries[:], a.arena[:0], a.table[:]
	}
	clear(m.table)
	m.full = false
	m.arena = m.arena[:0]
	m.strays = m.strays[:0]
	m.shapes = append(m.shapes[:0], shape{}, shape{first: entryOther, other: entryOther})
	m.entries = append(m.entries[:0], entry{}, entry{flags: flagStray, next: entryOther, shape: shapeOther, below: shapeOther})
}

// shrink drops what only an answer with very many names needs.
func (m *memory) shrink() {
	if cap(m.strays) > 1<<10 {
		m.strays = nil
	}
	m.tables, m.over = nil, nil
}

// shapeOf returns the shape of an object that belongs to an entry.
func (s *scanner) shapeOf(at, pick, caps uint16) uint16 {
	e := &s.entries[at]
	if e.below == 0 {
		e.below = shapeOther
		if len(s.shapes) < maxShapes && !s.full {
			e.below = uint16(len(s.shapes))
			s.shapes = append(s.shapes, shape{first: entryOther, other: entryOther, pick: pick, caps: caps})
		}
	}
	if sh := &s.shapes[e.below]; sh.pick != pick || sh.caps != caps {
		// The entry is one for strays, and an earlier one led elsewhere.
		return shapeOther
	}
	return e.below
}

// entryName returns the name of an entry, nil if it is one for strays.
func (s *scanner) entryName(at uint16) []byte {
	e := &s.entries[at]
	if e.flags&flagStray != 0 {
		return nil
	}
	return s.arena[e.name : int(e.name)+int(e.size)]
}

// name reads a name and what follows it up to its value, and finds its entry.
func (s *scanner) name(pos int, f *frame) (int, uint16) {
	if s.end-pos <= maxPrefix {
		var ok bool
		if pos, ok = s.more(pos, pos); ok {
			return pos, nameAgain
		}
	}
	begin := s.base + int64(pos)
	if pos = s.blank(pos); pos < 0 {
		return pos, nameFail
	}
	if c := s.buf[pos]; c == '}' && f.count == 0 {
		return pos, nameClose
	} else if c != '"' {
		return s.failBetween(pos, "expected a name"), nameFail
	}

	start, pos, escaped := s.nameEnd(pos)
	if pos < 0 {
		return pos, nameFail
	}
	place := s.base + int64(start-1)
	name := s.buf[start:pos]
	if escaped {
		name = s.unq
	}
	for pos++; isBlank(s.buf[pos]); pos++ {
	}
	if s.buf[pos] != ':' {
		// The window may move before the colon comes.
		s.unq = append(s.unq[:0], name...)
		name = s.unq
		if pos = s.blank(pos); pos < 0 {
			return pos, nameFail
		}
		if s.buf[pos] != ':' {
			return s.failBetween(pos, "expected a colon"), nameFail
		}
	}
	for pos++; isBlank(s.buf[pos]); pos++ {
	}

	// The member is remembered as it is written here if all of that is still
	// in the window.
	var prefix []byte
	quote := 0
	if i := int(begin - s.base); i >= 0 && pos-i <= maxPrefix && !escaped {
		prefix = s.buf[i:pos]
		quote = start - i
	}

	at, fresh := s.find(f, name, prefix, quote)
	if !fresh {
		var b strings.Builder
		b.WriteString(s.path(false))
		appendPath(&b, name)
		return s.failIn(int(place-s.base), "duplicate name", b.String()), nameFail
	}
	if len(s.strays) > moreStrays*max(s.lim.MaxNames, defaultNames) {
		return s.failBetween(pos, "too many names"), nameFail
	}
	// The next object is expected to go on as this one does.
	if f.shape != shapeOther {
		if f.count == 0 {
			s.shapes[f.shape].first = at
		} else if f.at != entryOther {
			s.entries[f.at].next = at
		}
	}
	f.at = at
	return pos, at
}

func isBlank(c byte) bool {
	return c == ' ' || c == '\n' || c == '\t' || c == '\r'
}

// nameEnd reads the name whose first quote is at quote. It returns where the
// name is in the window; if it has escape sequences, s.unq is what they mean.
func (s *scanner) nameEnd(quote int) (start, end int, escaped bool) {
	i, wide := quote+1, false
	for {
		if i-quote-1 > s.lim.MaxName {
			return 0, s.failBetween(quote, "name too long"), false
		}
		m := special(load(&s.buf, i))
		if m == 0 {
			i += 8
			continue
		}
		i += bits.TrailingZeros64(m) >> 3
		c := s.buf[i]
		if c == '"' {
			break
		}
		switch {
		case c >= utf8.RuneSelf:
			wide = true
			i++
		case c == '\\' && i+1 < s.end:
			escaped = true
			i += 2
		case c == '\\' || i == s.end:
			var ok bool
			if i, ok = s.more(i, quote); !ok {
				return 0, s.failEnd(), false
			}
			quote = 0
		default:
			return 0, s.failBetween(i, "control character in name"), false
		}
	}
	start, end = quote+1, i
	if end-start > s.lim.MaxName {
		return 0, s.failBetween(quote, "name too long"), false
	}
	if wide && !utf8.Valid(s.buf[start:end]) {
		return 0, s.failBetween(start, "invalid UTF-8 in name"), false
	}
	if !escaped {
		return start, end, false
	}
	s.unq = s.unq[:0]
	for i := start; i < end; {
		if s.buf[i] != '\\' {
			s.unq = append(s.unq, s.buf[i])
			i++
			continue
		}
		r, n, msg := unescape(s.buf[i:s.end])
		if msg != "" {
			return 0, s.failBetween(i, msg), false
		}
		s.unq = utf8.AppendRune(s.unq, r)
		i += n
	}
	return start, end, true
}

// find returns the entry of a name, and whether the open object did not have
// the name yet. The name is at quote in its prefix, if that is not nil.
func (s *scanner) find(f *frame, name, prefix []byte, quote int) (at uint16, fresh bool) {
	hash := maphash.Bytes(seed, name)
	key := uint32(hash>>32) ^ uint32(f.shape)*0x9E3779B1
	slot := key & uint32(len(s.table)-1)
	for {
		at = s.table[slot]
		if at == 0 {
			break
		}
		e := &s.entries[at]
		if e.hash == key && e.shape == f.shape && string(s.entryName(at)) == string(name) {
			if e.serial == f.serial {
				return at, false
			}
			e.serial = f.serial
			if e.prefix == 0 && len(prefix) > 0 && len(s.arena)+len(prefix) <= maxArena {
				e.off = uint16(len(s.arena))
				e.prefix = uint8(len(prefix))
				s.arena = append(s.arena, prefix...)
			}
			return at, true
		}
		slot = (slot + 1) & uint32(len(s.table)-1)
	}

	pick, caps := s.p.below(f.pick, name), s.p.caps[f.caps].names[string(name)]
	e := entry{serial: f.serial, hash: key, size: uint8(len(name)), shape: f.shape, next: entryOther}
	e.lead(s.p, pick, caps)
	text := prefix
	if prefix == nil {
		text, quote = name, 0
	}
	sh := &s.shapes[f.shape]
	room := f.shape != shapeOther && sh.names < maxShapeNames && len(name) <= maxEntryName && !s.full
	if room && (len(s.entries) == maxEntries || len(s.arena)+len(text) > maxArena) {
		room, s.full = false, true
	}
	if room {
		sh.names++
		e.off = uint16(len(s.arena))
		e.name = e.off + uint16(quote)
		e.prefix = uint8(len(prefix))
		s.arena = append(s.arena, text...)
		at = uint16(len(s.entries))
		s.entries = append(s.entries, e)
		s.table[slot] = at
		if len(s.entries) > len(s.table)/2 {
			s.growTable()
		}
		return at, true
	}

	if !s.addStray(f, hash) {
		return 0, false
	}
	if sh.other == entryOther && f.shape != shapeOther && len(s.entries) < maxEntries {
		sh.other = uint16(len(s.entries))
		s.entries = append(s.entries, entry{shape: f.shape, next: entryOther})
	}
	s.stray = append(s.stray[:0], name...)
	for len(s.over) <= s.depth {
		s.over = append(s.over, nil)
	}
	s.over[s.depth] = append(s.over[s.depth][:0], name[:min(len(name), (maxPathName+1)*utf8.UTFMax)]...)
	o := &s.entries[sh.other]
	o.lead(s.p, pick, caps)
	o.flags |= flagStray
	return sh.other, true
}

// lead sets where a name leads to.
func (e *entry) lead(p *Projection, pick, caps uint16) {
	e.pick, e.caps, e.flags = pick, caps, 0
	if pick != 0 {
		e.flags |= flagPick
	}
	if len(p.caps[caps].ends) > 0 {
		e.flags |= flagCapture
	}
}

func (s *scanner) growTable() {
	s.table = make([]uint16, 2*len(s.table))
	for i := range s.entries {
		e := &s.entries[i]
		if i == entryTop || e.flags&flagStray != 0 {
			continue
		}
		slot := e.hash & uint32(len(s.table)-1)
		for s.table[slot] != 0 {
			slot = (slot + 1) & uint32(len(s.table)-1)
		}
		s.table[slot] = uint16(i)
	}
}

// addStray adds a name to the strays of the open object. It reports false if
// it is one of them already, or if there are far too many. That two of 65536
// different names have the same seeded hash is less likely than one in 2^32.
func (s *scanner) addStray(f *frame, hash uint64) bool {
	had := s.strays[f.stray:]
	if len(had) < fewStrays {
		for _, h := range had {
			if h == hash {
				return false
			}
		}
		s.strays = append(s.strays, hash)
		return true
	}
	for len(s.tables) <= s.depth {
		s.tables = append(s.tables, nil)
	}
	if 2*len(had) >= int(f.slots) {
		f.slots = max(4*fewStrays, 2*f.slots)
		t := s.tables[s.depth]
		if cap(t) < int(f.slots) {
			t = make([]int32, f.slots)
		} else {
			t = t[:f.slots]
			clear(t)
		}
		s.tables[s.depth] = t
		for i, h := range had {
			slot := int32(h) & (f.slots - 1)
			for t[slot] != 0 {
				slot = (slot + 1) & (f.slots - 1)
			}
			t[slot] = int32(i + 1)
		}
	}
	t := s.tables[s.depth][:f.slots]
	slot := int32(hash) & (f.slots - 1)
	for t[slot] != 0 {
		if had[t[slot]-1] == hash {
			return false
		}
		slot = (slot + 1) & (f.slots - 1)
	}
	t[slot] = int32(len(had) + 1)
	s.strays = append(s.strays, hash)
	return true
}
