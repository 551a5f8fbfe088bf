package projection

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
)

// This is the projection once more, written for plainness: encoding/json reads
// the whole text into a tree that keeps the order of names, and the rules are
// applied to that.

type member struct {
	name  string
	value any
}

type (
	objectValue []member
	arrayValue  []any
)

var errRefDuplicate = errors.New("duplicate name")

// refRead reads a text that json.Valid accepts.
func refRead(data []byte) (any, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	return refValue(dec)
}

func refValue(dec *json.Decoder) (any, error) {
	tok, err := dec.Token()
	if err != nil {
		return nil, err
	}
	switch tok {
	case json.Delim('{'):
		obj := objectValue{}
		seen := make(map[string]bool)
		for dec.More() {
			name, err := dec.Token()
			if err != nil {
				return nil, err
			}
			if seen[name.(string)] {
				return nil, errRefDuplicate
			}
			seen[name.(string)] = true
			v, err := refValue(dec)
			if err != nil {
				return nil, err
			}
			obj = append(obj, member{name.(string), v})
		}
		_, err := dec.Token()
		return obj, err
	case json.Delim('['):
		arr := arrayValue{}
		for dec.More() {
			v, err := refValue(dec)
			if err != nil {
				return nil, err
			}
			arr = append(arr, v)
		}
		_, err := dec.Token()
		return arr, err
	}
	return tok, nil
}

func refWrite(b *strings.Builder, v any) {
	switch v := v.(type) {
	case objectValue:
		b.WriteByte('{')
		for i, m := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			refWrite(b, m.name)
			b.WriteByte(':')
			refWrite(b, m.value)
		}
		b.WriteByte('}')
	case arrayValue:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			refWrite(b, e)
		}
		b.WriteByte(']')
	case string:
		b.WriteByte('"')
		for _, r := range v {
			switch {
			case r == '"' || r == '\\':
				b.WriteRune('\\')
				b.WriteRune(r)
			case r == '\t':
				b.WriteString(`\t`)
			case r == '\n':
				b.WriteString(`\n`)
			case r == '\r':
				b.WriteString(`\r`)
			case !Visible(r):
				b.WriteRune('\uFFFD')
			default:
				b.WriteRune(r)
			}
		}
		b.WriteByte('"')
	case json.Number:
		b.WriteString(v.String())
	case bool:
		if v {
			b.WriteString("true")
		} else {
			b.WriteString("false")
		}
	case nil:
		b.WriteString("null")
	}
}

// refFields are the fields that are left to go, as segments.
type refFields [][]string

// below returns the fields that lead through a name; leaf says that one ends
// there.
func (f refFields) below(name string) (next refFields, leaf bool) {
	for _, segs := range f {
		if segs[0] != name && segs[0] != Any {
			continue
		}
		if len(segs) == 1 {
			leaf = true
		} else {
			next = append(next, segs[1:])
		}
	}
	return next, leaf
}

func refPlain(v any) bool {
	switch v := v.(type) {
	case objectValue:
		return false
	case arrayValue:
		for _, e := range v {
			if !refPlain(e) {
				return false
			}
		}
	}
	return true
}

// refPick projects an array or object.
func refPick(v any, fields refFields) any {
	switch v := v.(type) {
	case objectValue:
		out := objectValue{}
		for _, m := range v {
			next, leaf := fields.below(m.name)
			switch {
			case leaf:
				if refPlain(m.value) {
					out = append(out, m)
				}
			case next != nil:
				switch m.value.(type) {
				case objectValue, arrayValue:
					out = append(out, member{m.name, refPick(m.value, next)})
				}
			}
		}
		return out
	case arrayValue:
		out := arrayValue{}
		for _, e := range v {
			switch e.(type) {
			case objectValue, arrayValue:
				out = append(out, refPick(e, fields))
			case nil:
				out = append(out, nil)
			}
		}
		return out
	}
	panic("not a container")
}

func refCapture(v any, segs []string, last bool, found *Value) {
	if arr, ok := v.(arrayValue); ok && len(segs) > 0 {
		for _, e := range arr {
			refCapture(e, segs, last, found)
		}
		return
	}
	if len(segs) > 0 {
		if obj, ok := v.(objectValue); ok {
			for _, m := range obj {
				if m.name == segs[0] {
					refCapture(m.value, segs[1:], last, found)
				}
			}
		}
		return
	}
	if found.Found && !last {
		return
	}
	*found = Value{Found: true, Met: found.Met}
	if last {
		found.Met++
	}
	switch v := v.(type) {
	case objectValue:
		found.Kind, found.Empty = '{', len(v) == 0
	case arrayValue:
		found.Kind, found.Empty = '[', len(v) == 0
	case string:
		found.Kind, found.Empty, found.Text = '"', v == "", v
		if len(v) > maxText {
			found.Text, found.Cut = strings.ToValidUTF8(v[:maxText], ""), true
		}
	case json.Number:
		found.Kind, found.Text = '0', v.String()
	case bool:
		found.Kind = 'f'
		if v {
			found.Kind = 't'
		}
	case nil:
		found.Kind = 'n'
	}
}

// refRun is Run for a text that json.Valid accepts.
func refRun(spec Spec, data []byte) (Output, error) {
	v, err := refRead(data)
	if err != nil {
		return Output{}, err
	}
	out := Output{Read: int64(len(data)), Captures: []Value{}}
	for _, c := range spec.Captures {
		var val Value
		refCapture(v, strings.Split(c.Path, "."), c.Last, &val)
		out.Captures = append(out.Captures, val)
	}
	found := true
	if spec.Root != "" {
	steps:
		for _, seg := range strings.Split(spec.Root, ".") {
			obj, _ := v.(objectValue)
			for _, m := range obj {
				if m.name == seg {
					v = m.value
					continue steps
				}
			}
			found = false
			break
		}
	}
	var fields refFields
	for _, f := range spec.Fields {
		fields = append(fields, strings.Split(f, "."))
	}
	if !found {
		return out, nil
	}
	out.Root = Scalar
	switch root := v.(type) {
	case nil:
		out.Root = Null
	case objectValue:
		out.Root = Object
		v = refPick(root, fields)
	case arrayValue:
		out.Root, out.Items = Array, len(root)
		v = refPick(root, fields)
	}
	if fields != nil && out.Root != Scalar {
		var b strings.Builder
		refWrite(&b, v)
		out.JSON, out.Size = []byte(b.String()), b.Len()
	}
	return out, nil
}
