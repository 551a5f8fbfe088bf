package integrations

import (
	"errors"
	"fmt"
	"sort"
	"strings"
)

// ErrManifest is what every manifest that is refused is, for [errors.Is].
var ErrManifest = errors.New("manifest refused")

// A Fault is one thing wrong with a manifest: what, where, and what would be right.
type Fault struct {
	File    string // the file's name, where there is one
	Pointer string // JSON Pointer (RFC 6901) of the place
	Line    int    // from 1
	Column  int    // from 1, in bytes
	Rule    string // the rule's id, see Rules
	Message string // what is wrong
	Mend    string // what would be right
}

// String puts the fault on one line. What it repeats of the manifest is made visible and
// cut short; Pointer itself is not.
func (f Fault) String() string {
	var b strings.Builder
	if f.File != "" {
		b.WriteString(visible(f.File) + ":")
	}
	fmt.Fprintf(&b, "%d:%d: ", f.Line, f.Column)
	if f.Pointer != "" {
		segs := strings.Split(f.Pointer, "/")
		for i, s := range segs {
			segs[i] = clip(visible(s))
		}
		b.WriteString(strings.Join(segs, "/") + ": ")
	}
	fmt.Fprintf(&b, "%s [%s]", f.Message, f.Rule)
	return b.String()
}

// Faults is all that is wrong with a manifest or a registry, in the order of the text.
type Faults []Fault

// Error gives each fault on its own line, each followed by a line with its mend.
func (fs Faults) Error() string {
	var b strings.Builder
	for i, f := range fs {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(f.String())
		if f.Mend != "" {
			b.WriteString("\n  hint: " + f.Mend)
		}
	}
	return b.String()
}

// Unwrap makes the error an [ErrManifest].
func (fs Faults) Unwrap() error { return ErrManifest }

func (fs Faults) sorted() Faults {
	sort.SliceStable(fs, func(i, j int) bool {
		a, b := fs[i], fs[j]
		if a.File != b.File {
			return a.File < b.File
		}
		if a.Line != b.Line {
			return a.Line < b.Line
		}
		return a.Column < b.Column
	})
	return fs
}
