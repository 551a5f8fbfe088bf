// Package projection reads a JSON answer from a stream and copies out the
// fields a caller picked, without ever holding the whole answer.
//
// The input passes through a window of a few kilobytes. Everything is checked
// on the way, the skipped parts too: syntax, encoding, and that no object names
// a member twice. Numbers keep the digits they were written with.
package projection

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// Any is the path segment that matches every name of an object.
const Any = "<any>"

// Spec says what to read from an answer.
type Spec struct {
	// Root is the dot path of the value to project, "" for the whole answer.
	// It leads through objects only.
	Root string

	// Fields are the dot paths to keep of the root. Arrays on the way are
	// mapped over. One segment of a path may be [Any]. A field is a scalar or
	// an array of scalars; where it is anything else it is left out. Without
	// fields nothing is copied out.
	Fields []string

	// Captures are single values to read, wherever in the answer they are.
	Captures []Capture
}

// A Capture is one value to read beside the projection.
type Capture struct {
	Path string // dot path from the top of the answer; arrays on the way are mapped over
	Last bool   // take the last value met instead of the first
	Item bool   // of an array at the path take the first item, not the array itself
}

// RootKind says what was found where the root should be.
type RootKind uint8

const (
	Absent RootKind = iota
	Null
	Object
	Array
	Scalar
)

func (k RootKind) String() string {
	switch k {
	case Absent:
		return "absent"
	case Null:
		return "null"
	case Object:
		return "object"
	case Array:
		return "array"
	case Scalar:
		return "scalar"
	}
	return fmt.Sprintf("RootKind(%d)", uint8(k))
}

// Output is what [Projection.Run] read.
type Output struct {
	JSON     []byte   // the picked JSON, compact; nil if there is none or Size is over the limit
	Size     int      // length of the picked JSON, also when it is over the limit
	Root     RootKind // what the root is
	Items    int      // number of elements of the root, if it is an array
	Read     int64    // bytes read
	Captures []Value  // one for each Capture of the Spec
}

// A Value is a captured value.
type Value struct {
	Found bool
	Kind  byte   // 'n' null, 't' true, 'f' false, '0' number, '"' string, '[' array, '{' object
	Text  string // a number's digits, or a string's text, at most its first 4096 bytes
	Empty bool   // the value is "", [] or {}
	Cut   bool   // the string is longer than Text
	Met   int    // of a Capture with Last, how many values stood at its path
}

// Limits bound one run. A zero field stands for its default. Objects that
// are open inside each other may have about four times MaxNames together.
type Limits struct {
	MaxBytes int64 // bytes of input; 32 MiB, at most 4 GiB
	MaxDepth int   // arrays and objects inside each other; 64, at most 10000
	MaxOut   int   // bytes of output; 45056
	MaxNames int   // names in one object; 65536, at most 16777216
	MaxName  int   // bytes of a name as it is written; 4096, which is also the most
}

const (
	defaultBytes = 32 << 20
	defaultDepth = 64
	defaultOut   = 44 << 10
	defaultNames = 1 << 16
	maxBytes     = 4 << 30 // keeps the number of objects within 32 bits
	maxDepth     = 10000   // as encoding/json has it
	maxNames     = 1 << 24
	maxName      = 4096 // a name has to fit the window
	maxNumber    = 512
	maxText      = 4096
)

func (l Limits) filled() Limits {
	if l.MaxBytes <= 0 {
		l.MaxBytes = defaultBytes
	}
	if l.MaxDepth <= 0 {
		l.MaxDepth = defaultDepth
	}
	if l.MaxOut <= 0 {
		l.MaxOut = defaultOut
	}
	if l.MaxNames <= 0 {
		l.MaxNames = defaultNames
	}
	if l.MaxName <= 0 {
		l.MaxName = maxName
	}
	l.MaxBytes = min(l.MaxBytes, maxBytes)
	l.MaxDepth = min(l.MaxDepth, maxDepth)
	l.MaxNames = min(l.MaxNames, maxNames)
	l.MaxName = min(l.MaxName, maxName)
	return l
}

// A Projection is a compiled [Spec]. It does not change and may be used by any
// number of goroutines.
type Projection struct {
	nodes  []node
	caps   []capNode
	last   []bool // for each capture
	item   []bool // likewise
	fields bool
}

type kind uint8

const (
	kindNone    kind = iota
	kindDescend      // on the way to the root
	kindRoot
	kindInner // on the way to a field
	kindLeaf  // a field
)

// node is a place in the tree of picked paths; number 0 is nowhere and number
// 1 the top of the answer.
type node struct {
	kind  kind
	label []byte // `,"name":`, nil for Any
	names map[string]uint16
	any   uint16
}

// capNode is a place in the tree of captured paths, numbered likewise.
type capNode struct {
	names map[string]uint16
	ends  []int // the captures whose path ends here
	item  bool  // one of them is of an array's first item
}

// Compile checks a Spec and prepares it for use.
func Compile(spec Spec) (*Projection, error) {
	p := &Projection{fields: len(spec.Fields) > 0}

	var root []string
	if spec.Root != "" {
		var err error
		if root, err = segments(spec.Root); err != nil {
			return nil, fmt.Errorf("projection: root %q: %w", spec.Root, err)
		}
		if slices.Contains(root, Any) {
			return nil, fmt.Errorf("projection: root %q: %s is for fields only", spec.Root, Any)
		}
	}

	fields := make([][]string, len(spec.Fields))
	top := new(tree)
	for i, f := range spec.Fields {
		segs, err := segments(f)
		if err != nil {
			return nil, fmt.Errorf("projection: field %q: %w", f, err)
		}
		if n := slices.Index(segs, Any); n >= 0 && slices.Contains(segs[n+1:], Any) {
			return nil, fmt.Errorf("projection: field %q: more than one %s", f, Any)
		}
		for j, other := range fields[:i] {
			if slices.Equal(segs, other) {
				return nil, fmt.Errorf("projection: field %q is named twice", f)
			}
			if len(segs) != len(other) && overlap(segs, other) {
				return nil, fmt.Errorf("projection: one of the fields %q and %q leads through the other", spec.Fields[j], f)
			}
		}
		fields[i] = segs
		top.add(segs)
	}
	top.spread()

	p.nodes = make([]node, 1, 16)
	for i, name := range root {
		p.nodes = append(p.nodes, node{kind: kindDescend, names: map[string]uint16{name: uint16(i + 2)}})
	}
	if _, err := p.flatten(top, kindRoot, ""); err != nil {
		return nil, err
	}

	p.caps = make([]capNode, 2)
	for i, c := range spec.Captures {
		segs, err := segments(c.Path)
		if err != nil {
			return nil, fmt.Errorf("projection: capture %q: %w", c.Path, err)
		}
		if slices.Contains(segs, Any) {
			return nil, fmt.Errorf("projection: capture %q: %s is for fields only", c.Path, Any)
		}
		at := uint16(1)
		for _, name := range segs {
			next, ok := p.caps[at].names[name]
			if !ok {
				if len(p.caps) > math.MaxUint16 {
					return nil, errTooMany
				}
				next = uint16(len(p.caps))
				p.caps = append(p.caps, capNode{})
				if p.caps[at].names == nil {
					p.caps[at].names = make(map[string]uint16)
				}
				p.caps[at].names[name] = next
			}
			at = next
		}
		p.caps[at].ends = append(p.caps[at].ends, i)
		p.caps[at].item = p.caps[at].item || c.Item
		p.last = append(p.last, c.Last)
		p.item = append(p.item, c.Item)
	}
	return p, nil
}

var (
	errSegment = errors.New("empty segment")
	errTooMany = errors.New("projection: too many fields")
)

func segments(path string) ([]string, error) {
	segs := strings.Split(path, ".")
	if slices.Contains(segs, "") {
		return nil, errSegment
	}
	return segs, nil
}

// overlap reports whether the shorter of two paths can lead to a place on the
// other one.
func overlap(a, b []string) bool {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] && a[i] != Any && b[i] != Any {
			return false
		}
	}
	return true
}

// tree is the tree of fields while it is being built.
type tree struct {
	names map[string]*tree
}

func (t *tree) add(segs []string) {
	for _, s := range segs {
		next := t.names[s]
		if next == nil {
			next = new(tree)
			if t.names == nil {
				t.names = make(map[string]*tree)
			}
			t.names[s] = next
		}
		t = next
	}
}

// spread copies what lies below Any to the names beside it, so that a name
// leads to one place only.
func (t *tree) spread() {
	if any := t.names[Any]; any != nil {
		for name, sub := range t.names {
			if name != Any {
				sub.merge(any)
			}
		}
	}
	for _, sub := range t.names {
		sub.spread()
	}
}

func (t *tree) merge(from *tree) {
	for name, sub := range from.names {
		t.add([]string{name})
		t.names[name].merge(sub)
	}
}

// flatten appends t and everything below it to the nodes.
func (p *Projection) flatten(t *tree, k kind, name string) (uint16, error) {
	if len(p.nodes) > math.MaxUint16 {
		return 0, errTooMany
	}
	at := uint16(len(p.nodes))
	n := node{kind: k}
	if k != kindRoot && name != Any {
		n.label = append(appendQuoted([]byte{','}, name), ':')
	}
	p.nodes = append(p.nodes, n)
	for name, sub := range t.names {
		k := kindInner
		if len(sub.names) == 0 {
			k = kindLeaf
		}
		next, err := p.flatten(sub, k, name)
		if err != nil {
			return 0, err
		}
		if name == Any {
			p.nodes[at].any = next
			continue
		}
		if p.nodes[at].names == nil {
			p.nodes[at].names = make(map[string]uint16)
		}
		p.nodes[at].names[name] = next
	}
	return at, nil
}

// below returns the node a name leads to from node at, 0 if none.
func (p *Projection) below(at uint16, name []byte) uint16 {
	n := &p.nodes[at]
	if next, ok := n.names[string(name)]; ok {
		return next
	}
	return n.any
}

// Run reads one JSON text from r to its end. The error is a [*SyntaxError], a
// [*LimitError] if the text is longer than allowed, or a [*ReadError] that
// wraps the error of r. With an error only Output.Read is set.
func (p *Projection) Run(r io.Reader, lim Limits) (Output, error) {
	s := scanners.Get().(*scanner)
	defer s.release()
	return s.run(p, r, lim.filled())
}
