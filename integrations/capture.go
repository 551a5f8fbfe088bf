package integrations

import (
	"slices"
	"strings"

	"github.com/elevenmessenger/connect/integrations/internal/projection"
)

// A captureSet says which values of the whole response are read beside the pick: what
// fail and next look at. Each index is into the projection's captures, -1 for none.
type captureSet struct {
	fail []failCapture
	next struct{ path, more, pages, field int }
}

type failCapture struct {
	when, unless, code int
	messages           []int
}

func (s *captureSet) compile(o *Op) []projection.Capture {
	var all []projection.Capture
	take := func(c projection.Capture) int {
		if c.Path == "" {
			return -1
		}
		if i := slices.Index(all, c); i >= 0 {
			return i
		}
		all = append(all, c)
		return len(all) - 1
	}
	add := func(path string, last bool) int { return take(projection.Capture{Path: path, Last: last}) }
	s.fail = nil
	for _, f := range o.Fail {
		at := failCapture{when: add(f.When, false), unless: add(f.Unless, false), code: add(f.Code, false)}
		for _, m := range f.Message {
			at.messages = append(at.messages, take(projection.Capture{Path: m, Item: true}))
		}
		s.fail = append(s.fail, at)
	}
	s.next.path, s.next.more, s.next.pages, s.next.field = -1, -1, -1, -1
	if n := o.Next; n != nil {
		s.next.path, s.next.more, s.next.pages = add(n.Path, false), add(n.More, false), add(n.Pages, false)
		if n.Field != "" {
			s.next.field = add(strings.TrimPrefix(o.Pick.Root+"."+n.Field, "."), true)
		}
	}
	return all
}

// An errorSet reads the body of an error status: first the paths of the message, then
// those of the error code.
type errorSet struct {
	projection *projection.Projection
	messages   int
}

func (m *Manifest) errorSet(o *Op) (errorSet, error) {
	var paths []projection.Capture
	if m.Error != nil {
		for _, p := range m.Error.Message {
			paths = append(paths, projection.Capture{Path: p, Item: true})
		}
	}
	set := errorSet{messages: len(paths)}
	for _, f := range o.Fail {
		if f.Code != "" {
			paths = append(paths, projection.Capture{Path: f.Code})
		}
	}
	if len(paths) == 0 {
		return set, nil
	}
	var err error
	set.projection, err = projection.Compile(projection.Spec{Captures: paths})
	return set, err
}
