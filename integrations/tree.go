package integrations

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// The bounds of a manifest file.
const (
	maxManifestBytes = 256 << 10
	maxManifestDepth = 32
)

// A node is a JSON value that knows where it stands. Manifests are small and read once,
// so they are kept whole: every fault can then be told with its place.
type node struct {
	kind    byte // '{', '[', '"', '0', 't', 'f', 'n'
	off     int
	name    string // the member's name, in an object
	nameOff int
	text    string // the decoded string, or the number's digits
	kids    []*node
	byName  map[string]*node // of a large object, made when first needed: see get
}

func (n *node) get(name string) *node {
	if n == nil || n.kind != '{' {
		return nil
	}
	if len(n.kids) > 16 {
		if n.byName == nil {
			n.byName = make(map[string]*node, len(n.kids))
			for _, k := range n.kids {
				n.byName[k.name] = k
			}
		}
		return n.byName[name]
	}
	for _, k := range n.kids {
		if k.name == name {
			return k
		}
	}
	return nil
}

func (n *node) kindWord() string {
	switch n.kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a text"
	case '0':
		return "a number"
	case 'n':
		return "null"
	}
	return "true or false"
}

// A reading is one manifest being read: its text, its tree and what is wrong so far.
type reading struct {
	data   []byte
	lines  []int // where each line begins
	root   *node
	faults Faults
	faulty map[string]bool // pointers of the faults and of all that holds them
}

func (r *reading) faultAt(off int, pointer, rule, msg string, mend ...string) {
	if r.lines == nil {
		r.lines = []int{0}
		for i, c := range r.data {
			if c == '\n' {
				r.lines = append(r.lines, i+1)
			}
		}
	}
	line := sort.SearchInts(r.lines, off+1) // the number of lines that begin at or before off
	f := Fault{Pointer: pointer, Line: line, Column: off - r.lines[line-1] + 1, Rule: rule, Message: visible(msg)}
	if len(mend) > 0 {
		f.Mend = visible(mend[0])
	} else if ru, ok := ruleByID(rule); ok {
		f.Mend = ru.Mend
	}
	r.faults = append(r.faults, f)
	if r.faulty == nil {
		r.faulty = make(map[string]bool)
	}
	for p := pointer; !r.faulty[p]; p = p[:max(0, strings.LastIndexByte(p, '/'))] {
		r.faulty[p] = true // and where it is, what holds it
	}
}

// fault reports a fault of the value at pointer, or of the deepest value on the way to it
// that exists.
func (r *reading) fault(pointer, rule, msg string, mend ...string) {
	n, _ := r.find(pointer)
	r.faultAt(n.off, pointer, rule, msg, mend...)
}

// faultKey reports a fault of the key that pointer ends with.
func (r *reading) faultKey(pointer, rule, msg string, mend ...string) {
	n, found := r.find(pointer)
	off := n.off
	if found && n.nameOff > 0 {
		off = n.nameOff
	}
	r.faultAt(off, pointer, rule, msg, mend...)
}

// find returns the value at pointer, or the deepest on the way to it that exists.
func (r *reading) find(pointer string) (n *node, found bool) {
	n = r.root
	if n == nil {
		return new(node), false
	}
	if pointer == "" {
		return n, true
	}
	for seg := range strings.SplitSeq(pointer[1:], "/") {
		seg = strings.ReplaceAll(strings.ReplaceAll(seg, "~1", "/"), "~0", "~")
		next := n.get(seg)
		if i, err := strconv.Atoi(seg); n.kind == '[' && err == nil && i >= 0 && i < len(n.kids) {
			next = n.kids[i]
		}
		if next == nil {
			return n, false
		}
		n = next
	}
	return n, true
}

// told says whether a fault has been reported at pointer or inside. What follows from it
// is not reported too.
func (r *reading) told(pointer string) bool {
	return r.faulty[pointer]
}

// item returns the pointer of item i of what stands at pointer, where a list may also be
// written as its one item.
func (r *reading) item(pointer string, i int) string {
	if n, _ := r.find(pointer); n.kind == '[' {
		return at(pointer, i)
	}
	return pointer
}

// at joins pointer segments, escaped as RFC 6901 says.
func at(pointer string, segs ...any) string {
	for _, s := range segs {
		t := fmt.Sprint(s)
		t = strings.ReplaceAll(t, "~", "~0")
		t = strings.ReplaceAll(t, "/", "~1")
		pointer += "/" + t
	}
	return pointer
}

// readTree reads data whole. It returns false when the text is not JSON at all, so that
// nothing further can be said of it.
func (r *reading) readTree() bool {
	if len(r.data) > maxManifestBytes {
		r.faultAt(maxManifestBytes, "", "json.size", fmt.Sprintf("the file has more than %s bytes", group(maxManifestBytes)))
		return false
	}
	if bytes.HasPrefix(r.data, []byte("\xef\xbb\xbf")) {
		r.faultAt(0, "", "json.bom", "the file begins with a byte-order mark")
		return false
	}
	for i := 0; i < len(r.data); {
		c, size := utf8.DecodeRune(r.data[i:])
		if c == utf8.RuneError && size == 1 {
			r.faultAt(i, "", "json.utf8", fmt.Sprintf("byte 0x%02x is not UTF-8", r.data[i]))
			return false
		}
		i += size
	}
	dec := jsontext.NewDecoder(bytes.NewReader(r.data), jsontext.AllowDuplicateNames(true))
	root, ok := r.readValue(dec, "", 1)
	if !ok {
		return false
	}
	r.root = root
	if root.kind != '{' {
		r.faultAt(root.off, "", "json.object", "a manifest is one JSON object, this is "+root.kindWord())
		return false
	}
	off := int(dec.InputOffset())
	if _, err := dec.ReadToken(); err != io.EOF {
		for off < len(r.data) && strings.IndexByte(" \t\r\n", r.data[off]) >= 0 {
			off++
		}
		r.faultAt(off, "", "json.trailing", "something follows the manifest's closing brace")
		return false
	}
	return true
}

func (r *reading) readValue(dec *jsontext.Decoder, pointer string, depth int) (*node, bool) {
	kind := dec.PeekKind()
	if kind != '{' && kind != '[' {
		v, err := dec.ReadValue()
		if err != nil {
			return r.syntax(dec, pointer, err)
		}
		n := &node{kind: byte(kind), off: int(dec.InputOffset()) - len(v), text: string(v)}
		if kind == '"' {
			t, err := jsontext.AppendUnquote(nil, v)
			if err != nil {
				return r.syntax(dec, pointer, err)
			}
			n.text = string(t)
		}
		return n, true
	}
	if _, err := dec.ReadToken(); err != nil {
		return r.syntax(dec, pointer, err)
	}
	n := &node{kind: byte(kind), off: int(dec.InputOffset()) - 1}
	if depth > maxManifestDepth {
		r.faultAt(n.off, pointer, "json.depth", fmt.Sprintf("objects and lists stand more than %d deep in each other", maxManifestDepth))
		return nil, false
	}
	var seen map[string]bool
	if kind == '{' {
		seen = make(map[string]bool)
	}
	for {
		switch dec.PeekKind() {
		case '}', ']':
			if _, err := dec.ReadToken(); err != nil {
				return r.syntax(dec, pointer, err)
			}
			return n, true
		}
		if kind == '[' {
			k, ok := r.readValue(dec, at(pointer, len(n.kids)), depth+1)
			if !ok {
				return nil, false
			}
			n.kids = append(n.kids, k)
			continue
		}
		key, ok := r.readValue(dec, pointer, depth+1)
		if !ok {
			return nil, false
		}
		p := at(pointer, key.text)
		twice := seen[key.text]
		if twice {
			r.faultAt(key.off, p, "json.duplicate", fmt.Sprintf("the key %q stands twice in this object", clip(key.text)))
		}
		seen[key.text] = true
		k, ok := r.readValue(dec, p, depth+1)
		if !ok {
			return nil, false
		}
		if !twice { // what is said of a key from here on is said of the first
			k.name, k.nameOff = key.text, key.off
			n.kids = append(n.kids, k)
		}
	}
}

func (r *reading) syntax(dec *jsontext.Decoder, pointer string, err error) (*node, bool) {
	off := int(dec.InputOffset())
	msg := "the text ends before the manifest does"
	var se *jsontext.SyntacticError
	if errors.As(err, &se) {
		off = int(se.ByteOffset)
		if !errors.Is(se.Err, io.ErrUnexpectedEOF) {
			msg = se.Err.Error()
		}
	}
	if len(bytes.TrimSpace(r.data)) == 0 {
		msg = "the file is empty"
	}
	r.faultAt(min(off, len(r.data)), pointer, "json.syntax", msg)
	return nil, false
}
