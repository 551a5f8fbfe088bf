package integrations

import (
	"fmt"
	"strconv"
	"strings"
)

// A Call is an operation with its args, checked and in their one form: what is shown,
// hashed and sent is made from it alone. It is made by [Manifest.Bind].
type Call struct {
	Manifest *Manifest
	Op       *Op
	// IdempotencyKey makes a repeat of the same write harmless where the operation has
	// room for one. Whoever may repeat the call sets it; empty means a random key.
	IdempotencyKey string

	values   map[string]value
	sentence Sentence
	manifest *Manifest // as it was bound: the exported fields are for reading
	op       *Op
}

// Bind checks args against the operation and brings each into its one form. connection
// holds what the connection has learnt (Manifest.Connect), by name; it fills the args that
// say so when the caller leaves them out. The error is a [RefusedError].
func (m *Manifest) Bind(op string, args Args, connection map[string]string) (*Call, error) {
	o := m.Op(op)
	if o == nil {
		e := &RefusedError{Reason: fmt.Sprintf("%s has no operation %q", m.Name, clip(visible(op)))}
		var names []string
		for _, o := range m.Ops {
			names = append(names, o.Name)
		}
		if near := nearest(clip(op), names); near != "" {
			e.Hint = "did you mean " + near + "?"
		} else {
			e.Hint = "it has: " + strings.Join(names, ", ")
		}
		return nil, e
	}
	c := &Call{Manifest: m, Op: o, manifest: m, op: o, values: make(map[string]value)}
	for _, name := range sortedKeys(args) {
		if o.Args.Get(name) == nil {
			e := &RefusedError{Arg: unknownName(name), Reason: o.Name + " has no such arg"}
			if near := nearest(clip(name), o.Args.names()); near != "" {
				e.Hint = "did you mean " + near + "?"
			} else if len(o.Args) > 0 {
				e.Hint = "its args are: " + strings.Join(o.Args.names(), ", ")
			} else {
				e.Hint = "it takes no args"
			}
			return nil, e
		}
	}
	for _, a := range o.Args {
		v, given := args[a.Name]
		if !given && a.Connection != "" {
			if cv, ok := connection[a.Connection]; ok {
				v, given = cv, true
			}
		}
		if !given && a.Default != nil {
			v, given = a.Default.any(), true
		}
		if !given {
			if a.Optional {
				continue
			}
			e := &RefusedError{Arg: a.Name, Reason: "this is needed", Hint: a.About}
			if a.Connection != "" {
				e.Reason = "this is needed, and the connection has not learnt it"
			}
			return nil, e
		}
		cv, why := a.canonical(v)
		if why != "" {
			return nil, &RefusedError{Arg: a.Name, Reason: why, Hint: a.About}
		}
		c.values[a.Name] = cv
	}
	if len(o.OneOf) > 0 {
		n := 0
		for _, name := range o.OneOf {
			if _, ok := c.values[name]; ok {
				n++
			}
		}
		if n != 1 {
			return nil, &RefusedError{Arg: o.OneOf[0], Reason: fmt.Sprintf("exactly one of %s is given, not %d", strings.Join(o.OneOf, ", "), n)}
		}
	}
	if _, err := c.path(); err != nil {
		return nil, err
	}
	var err error
	c.sentence, err = c.makeSentence()
	if err != nil {
		return nil, err
	}
	return c, nil
}

// unknownName repeats a name that is not known only where it looks like one: what stands
// there may be a token that was pasted in the wrong place.
func unknownName(name string) string {
	if len(name) > 0 && len(name) <= 20 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz_") == "" {
		return name
	}
	return ""
}

func (s *Scalar) any() any {
	switch s.kind {
	case 't':
		return true
	case 'f':
		return false
	}
	return s.Text
}

// Args returns the args in their one form, for hashing and showing: every scalar as text,
// lists as []any, objects and maps as map[string]any, a cleared value as nil.
func (c *Call) Args() map[string]any {
	m := make(map[string]any, len(c.values))
	for name, v := range c.values {
		m[name] = v.any(c.Op.Args.Get(name))
	}
	return m
}

func (v value) any(a *Arg) any {
	switch {
	case v.null:
		return nil
	case a.Kind() == "list":
		list := make([]any, len(v.list))
		for i, it := range v.list {
			if a.Of != nil && a.Of.Object != nil {
				obj := make(map[string]any, len(it.fields))
				for _, f := range it.fields {
					obj[f.name] = f.value.any(a.Of.Object.Get(f.name))
				}
				list[i] = obj
			} else {
				list[i] = it.any(a.item())
			}
		}
		return list
	case a.Kind() == "map":
		m := make(map[string]any, len(v.fields))
		for _, f := range v.fields {
			m[f.name] = f.text
		}
		return m
	}
	return v.text
}

// Preview returns the call of the operation's preview, or nil where it has none.
func (c *Call) Preview() (*Call, error) {
	p := c.Op.Preview
	if p == nil {
		return nil, nil
	}
	args := make(Args)
	for _, pa := range p.args {
		if ref, ok := pa.t.whole(); ok {
			if v, ok := c.values[ref]; ok {
				args[pa.name] = v.any(c.Op.Args.Get(ref))
			}
			continue
		}
		if s, ok := c.expand(pa.t); ok {
			args[pa.name] = s
		}
	}
	return c.Manifest.Bind(p.Op, args, nil)
}

// TargetValue returns the value of the target arg, which a person types to confirm what
// cannot be undone, as it is shown; "" where the operation has no target.
func (c *Call) TargetValue() string {
	if c.Op.Target == "" {
		return ""
	}
	return c.show(c.Op.Args.Get(c.Op.Target), c.values[c.Op.Target])
}

// intArg returns the value of a whole-number arg, or absent where it is not given.
func (c *Call) intArg(name string, absent int64) int64 {
	if v, ok := c.values[name]; ok {
		if n, err := strconv.ParseInt(v.text, 10, 64); err == nil {
			return n
		}
	}
	return absent
}
