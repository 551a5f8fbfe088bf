package integrations

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/agnivade/levenshtein"
)

// A nodeDecoder reads a field whose JSON has more than one form.
type nodeDecoder interface {
	decodeNode(r *reading, n *node, pointer string)
}

// decode reads n into v, a pointer's element, and reports all that does not fit. What the
// field's struct tags say (form, max, enum) is held against every text in it.
func (r *reading) decode(n *node, v reflect.Value, pointer string, tag reflect.StructTag) {
	if v.Kind() == reflect.Pointer {
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	if d, ok := v.Addr().Interface().(nodeDecoder); ok {
		d.decodeNode(r, n, pointer)
		if p, ok := d.(*Paths); ok {
			for i, s := range *p {
				r.text(s, r.item(pointer, i), tag)
			}
		}
		return
	}
	switch v.Kind() {
	case reflect.String:
		if r.want(n, '"', pointer) {
			v.SetString(n.text)
			r.text(n.text, pointer, tag)
		}
	case reflect.Bool:
		if n.kind != 't' && n.kind != 'f' {
			r.fault(pointer, "json.type", "this is "+n.kindWord()+"; true or false is wanted")
			return
		}
		v.SetBool(n.kind == 't')
	case reflect.Int:
		if !r.want(n, '0', pointer) {
			return
		}
		i, err := strconv.Atoi(n.text)
		if err != nil || i < 0 || i > 1<<31 {
			r.fault(pointer, "json.type", "this is not a whole number from 0 to 2147483648")
			return
		}
		v.SetInt(int64(i))
	case reflect.Struct:
		r.object(n, v, pointer)
	case reflect.Map:
		if !r.want(n, '{', pointer) {
			return
		}
		v.Set(reflect.MakeMap(v.Type()))
		for _, k := range n.kids {
			e := reflect.New(v.Type().Elem()).Elem()
			r.decode(k, e, at(pointer, k.name), tag)
			v.SetMapIndex(reflect.ValueOf(k.name), e)
		}
	case reflect.Slice:
		r.list(n, v, pointer, tag)
	default:
		panic("integrations: no decoding for " + v.Type().String())
	}
}

// list reads a JSON list, or, where the element says how it is called (key), an object.
func (r *reading) list(n *node, v reflect.Value, pointer string, tag reflect.StructTag) {
	elem := v.Type().Elem()
	v.Set(reflect.MakeSlice(v.Type(), 0, len(n.kids))) // an empty list is not an absent one
	st := elem
	if st.Kind() == reflect.Pointer {
		st = st.Elem()
	}
	key := ""
	if st.Kind() == reflect.Struct {
		if f, ok := st.FieldByName("Name"); ok {
			key = f.Tag.Get("key")
		}
	}
	if key == "" {
		if !r.want(n, '[', pointer) {
			return
		}
		for i, k := range n.kids {
			e := reflect.New(elem).Elem()
			r.decode(k, e, at(pointer, i), tag)
			v.Set(reflect.Append(v, e))
		}
		return
	}
	if !r.want(n, '{', pointer) {
		return
	}
	for _, k := range n.kids {
		p := at(pointer, k.name)
		r.formKey(k.name, key, p)
		e := reflect.New(st)
		e.Elem().FieldByName("Name").SetString(k.name)
		r.decode(k, e.Elem(), p, "")
		v.Set(reflect.Append(v, e))
	}
}

func (r *reading) object(n *node, v reflect.Value, pointer string) {
	if !r.want(n, '{', pointer) {
		return
	}
	t := v.Type()
	known := make(map[string]int)
	var names []string
	for i := range t.NumField() {
		if k := t.Field(i).Tag.Get("json"); k != "" && k != "-" {
			known[k] = i
			names = append(names, k)
		}
	}
	for _, k := range n.kids {
		p := at(pointer, k.name)
		i, ok := known[k.name]
		if !ok {
			r.faultAt(k.nameOff, p, "json.unknown_key", fmt.Sprintf("the key %q is not known here", clip(k.name)),
				didYouMean(k.name, names)+"the keys here are: "+strings.Join(names, ", "))
			continue
		}
		r.decode(k, v.Field(i), p, t.Field(i).Tag)
	}
	for _, name := range names {
		if n.get(name) == nil && t.Field(known[name]).Tag.Get("req") != "" {
			rule := "required"
			if t == reflect.TypeFor[Op]() && name == "pick" {
				rule = "pick.missing"
			}
			r.fault(pointer, rule, fmt.Sprintf("%q is missing", name))
		}
	}
}

func (r *reading) want(n *node, kind byte, pointer string) bool {
	if n.kind == kind {
		return true
	}
	r.fault(pointer, "json.type", "this is "+n.kindWord()+"; "+(&node{kind: kind}).kindWord()+" is wanted")
	return false
}

// text holds one text against the tags of its field.
func (r *reading) text(s, pointer string, tag reflect.StructTag) {
	if e := tag.Get("enum"); e != "" {
		values := strings.Split(e, ",")
		for _, v := range values {
			if s == v {
				return
			}
		}
		r.fault(pointer, "enum", "this value is not one of those that may stand here",
			didYouMean(s, values)+"one of: "+strings.Join(values, ", "))
		return
	}
	if f := tag.Get("form"); f != "" {
		r.form(s, f, pointer)
	}
	if m := tag.Get("max"); m != "" {
		limit, _ := strconv.Atoi(m)
		if n := utf8.RuneCountInString(s); n > limit {
			rule := "text.long"
			if tag.Get("form") == "sentence" {
				rule = "confirm.long"
			}
			r.fault(pointer, rule, fmt.Sprintf("the text has %d characters; at most %d may stand here", n, limit))
		}
	}
}

// form holds the text at pointer against a form.
func (r *reading) form(s, name, pointer string) {
	if rule, msg := misfit(s, name); msg != "" {
		r.fault(pointer, rule, msg)
	}
}

// formKey holds the key that pointer ends with against a form.
func (r *reading) formKey(s, name, pointer string) {
	if rule, msg := misfit(s, name); msg != "" {
		r.faultKey(pointer, rule, msg)
	}
}

// nearest returns the word closest to s, where one is close enough to be what was meant.
func nearest(s string, words []string) string {
	if len(s) > 64 {
		return "" // nobody meant a name
	}
	best, at := "", 1+min(2, len(s)/2)
	for _, w := range words {
		if len(w) > 64 {
			continue
		}
		if d := levenshtein.ComputeDistance(strings.ToLower(s), strings.ToLower(w)); d < at {
			best, at = w, d
		}
	}
	return best
}

// didYouMean begins a mend with the word closest to s, where there is one.
func didYouMean(s string, words []string) string {
	if near := nearest(s, words); near != "" {
		return "did you mean " + strconv.Quote(near) + "? "
	}
	return ""
}

// listed joins names from the file for a message.
func listed(names []string) string {
	const most = 30
	var b strings.Builder
	for i, name := range names {
		if i == most {
			fmt.Fprintf(&b, " and %d more", len(names)-most)
			break
		}
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(clip(name))
	}
	return b.String()
}

// clip shortens a name from the file for a message.
func clip(s string) string {
	if r := []rune(s); len(r) > 40 {
		return string(r[:40]) + "…"
	}
	return s
}

func (p *Pairs) decodeNode(r *reading, n *node, pointer string) {
	if !r.want(n, '{', pointer) {
		return
	}
	*p = make(Pairs, 0, len(n.kids)) // an empty object is not an absent one
	for _, k := range n.kids {
		if r.want(k, '"', at(pointer, k.name)) {
			*p = append(*p, Pair{k.name, k.text})
		}
	}
}

func (p *Paths) decodeNode(r *reading, n *node, pointer string) {
	if n.kind == '"' {
		*p = Paths{n.text}
		return
	}
	if n.kind != '[' || len(n.kids) == 0 {
		r.fault(pointer, "json.type", "this is "+n.kindWord()+"; a path or a list of paths is wanted")
		return
	}
	for i, k := range n.kids {
		if r.want(k, '"', at(pointer, i)) {
			*p = append(*p, k.text)
		}
	}
}

func (a *Authorization) decodeNode(r *reading, n *node, pointer string) {
	if n.kind == '"' {
		a.Scheme = n.text
		r.text(n.text, pointer, `enum:"bearer,none"`)
		return
	}
	r.object(n, reflect.ValueOf(a).Elem(), pointer)
	if n.kind != '{' {
		return // json.type has been reported
	}
	set := 0
	for _, key := range []string{"prefix", "header", "basic", "pasted"} {
		if n.get(key) != nil {
			set++
			a.Scheme = key
		}
	}
	if a.Scheme == "pasted" {
		a.Scheme = "no"
	}
	switch {
	case set != 1:
		r.fault(pointer, "auth.scheme", "this is not one scheme")
	case a.Scheme == "no" && n.get("why") == nil:
		r.fault(pointer, "auth.scheme", "a token cannot be pasted, and no reason is given")
	case a.Scheme != "no" && n.get("why") != nil:
		r.fault(at(pointer, "why"), "auth.scheme", "a reason belongs to \"pasted\": \"no\" alone")
	}
}

func (p *PKCE) decodeNode(r *reading, n *node, pointer string) {
	if n.kind == '"' {
		p.Mode = n.text
		r.text(n.text, pointer, `enum:"required,supported"`)
		return
	}
	p.Mode = "off"
	r.object(n, reflect.ValueOf(p).Elem(), pointer)
	if n.kind == '{' && n.get("off") == nil {
		r.fault(pointer, "oauth.pkce", "PKCE is off without a reason")
	}
}

func (f *Field) decodeNode(r *reading, n *node, pointer string) {
	if n.kind == '"' {
		f.Path = n.text
		r.form(n.text, "fieldpath", pointer)
		return
	}
	r.object(n, reflect.ValueOf(f).Elem(), pointer)
}

func (l *FailList) decodeNode(r *reading, n *node, pointer string) {
	if n.kind == '{' {
		*l = make(FailList, 1)
		r.object(n, reflect.ValueOf(&(*l)[0]).Elem(), pointer)
		return
	}
	if !r.want(n, '[', pointer) {
		return
	}
	*l = make(FailList, len(n.kids))
	for i, k := range n.kids {
		r.object(k, reflect.ValueOf(&(*l)[i]).Elem(), at(pointer, i))
	}
}

func (o *Of) decodeNode(r *reading, n *node, pointer string) {
	switch {
	case n.kind == '"':
		o.Arg = &Arg{Name: "item", Type: n.text}
		r.text(n.text, pointer, `enum:"string,integer,number,boolean,date,datetime,id"`)
	case n.get("object") != nil:
		r.object(n, reflect.ValueOf(o).Elem(), pointer)
		if obj := n.get("object"); obj.kind == '{' && len(obj.kids) == 0 {
			r.fault(at(pointer, "object"), "arg.list", "the object has no fields")
		}
	default:
		o.Arg = &Arg{Name: "item"}
		r.object(n, reflect.ValueOf(o.Arg).Elem(), pointer)
	}
}

func (x *Number) decodeNode(r *reading, n *node, pointer string) {
	if !r.want(n, '0', pointer) {
		return
	}
	if r.number(n, pointer) {
		x.Text = n.text
	}
}

// number reports a number that is not the same in every program. An exponent is not
// needed for any other, and one like 1e-999999999 would take long to work with.
func (r *reading) number(n *node, pointer string) bool {
	whole, _, _ := strings.Cut(n.text, ".")
	i, err := strconv.ParseInt(whole, 10, 64)
	if err != nil || i > 1<<53 || i < -(1<<53) || len(n.text) > 32 || strings.ContainsAny(n.text, "eE") {
		r.fault(pointer, "number.range", "numbers in a manifest are plain decimals within 2^53")
		return false
	}
	return true
}

func (x *Scalar) decodeNode(r *reading, n *node, pointer string) {
	switch n.kind {
	case '"', 't', 'f':
		x.Text, x.kind = n.text, n.kind
	case '0':
		if r.number(n, pointer) {
			x.Text, x.kind = n.text, n.kind
		}
	default:
		r.fault(pointer, "json.type", "this is "+n.kindWord()+"; a text, a number, true or false is wanted")
	}
}
