package integrations_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pb33f/libopenapi/datamodel/high/base"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"

	"github.com/elevenmessenger/connect/integrations"
)

// proveREST holds an operation against the provider's OpenAPI document.
func (p *prover) proveREST() {
	if f, ok := p.t.fact(p.op); ok {
		p.proveFact(f)
		return
	}
	method, path := p.t.source(p.op)
	template, item, op := p.t.operation(method, path)
	if op == nil {
		p.problem("path", "the provider has no %s %s", method, path)
		return
	}
	for _, d := range p.t.dated {
		if d.Legacy == method+" "+template && d.Scope != "" && !slices.Contains(p.op.Scopes, d.Scope) {
			p.problem("scopes", "the provider wants %s", d.Scope)
		}
	}
	params := append(slices.Clone(item.Parameters), op.Parameters...)
	p.provePath(template, params)
	p.proveQuery(params)
	p.proveBody(op.RequestBody)
	answer := p.answer(op.Responses)
	p.provePick(answer)
	p.proveErrors(op.Responses)
}

// proveFact holds an operation against what the provider's pages alone say of it.
func (p *prover) proveFact(f fact) {
	for _, field := range p.op.Pick.Fields {
		if f.Fields[field.Path] == "" {
			p.problem("pick/"+field.Path, "the provider's pages name only %s", strings.Join(slices.Sorted(maps.Keys(f.Fields)), ", "))
		}
	}
	if f.Scope != "" && !slices.Contains(p.op.Scopes, f.Scope) {
		p.problem("scopes", "the provider wants %s", f.Scope)
	}
	if len(p.op.Args) > 0 {
		p.problem("args", "the provider's pages name no parameter")
	}
}

// provePath holds the args in the path against the provider's, one after the other: a
// dated path has other words around them, but the same ones in the same order.
func (p *prover) provePath(template string, params []*v3.Parameter) {
	ours, theirs := placeholderSegment.FindAllString(p.op.Path, -1), placeholderSegment.FindAllString(template, -1)
	if len(ours) != len(theirs) {
		p.problem("path", "the provider's %s holds %d args", template, len(theirs))
		return
	}
	for i, ref := range ours {
		for _, prm := range params {
			if prm.In == "path" && prm.Name == strings.Trim(theirs[i], "{}") {
				p.fits("path/"+strings.Trim(ref, "{}"), p.op.Args.Get(strings.Trim(ref, "{}")), prm.Schema, wire{place: "path"})
			}
		}
	}
}

func (p *prover) proveQuery(params []*v3.Parameter) {
	for _, q := range p.op.Query {
		at := "query/" + q.Name
		var prm *v3.Parameter
		var names []string
		for _, c := range params {
			if c.In == "query" {
				names = append(names, c.Name)
				if c.Name == strings.TrimSuffix(q.Name, "[]") {
					prm = c
				}
			}
		}
		if prm == nil {
			p.problem(at, "the provider knows no such parameter; it has: %s", strings.Join(names, ", "))
			continue
		}
		explode := prm.Explode == nil || *prm.Explode
		p.text(at, q.Value, prm.Schema, wire{place: "query", deep: prm.Style == "deepObject", explode: explode})
	}
	for _, prm := range params {
		if prm.In != "query" || prm.Required == nil || !*prm.Required {
			continue
		}
		if v, ok := p.op.Query.Get(prm.Name); !ok || !p.always(v) {
			p.problem("query/"+prm.Name, "the provider requires it, and it may not be sent")
		}
	}
}

func (p *prover) proveBody(body *v3.RequestBody) {
	var schema *base.SchemaProxy
	media := ""
	switch {
	case p.op.BodyJSON != nil:
		media = "application/json"
	case p.op.BodyForm != nil:
		media = "application/x-www-form-urlencoded"
	}
	if body != nil && body.Content != nil {
		for m, c := range body.Content.FromOldest() {
			if m == media || media == "" {
				schema = c.Schema
			}
		}
		if schema == nil && media != "" {
			p.problem("body", "the provider does not take %s", media)
			return
		}
	}
	if body == nil || body.Content == nil {
		if media != "" {
			p.problem("body", "the provider takes no body")
		}
		return
	}
	switch {
	case p.op.BodyJSON != nil:
		raw, err := rawBody(p.m, p.op)
		if err != nil {
			p.problem("body", "%v", err)
			return
		}
		p.value("body", raw, schema)
	case p.op.BodyForm != nil:
		props := properties(schema)
		for _, f := range p.op.BodyForm {
			name, _, _ := strings.Cut(f.Name, "[")
			if props[name] == nil {
				p.problem("body/"+f.Name, "the provider knows no such field%s", near(name, props))
				continue
			}
			p.text("body/"+f.Name, f.Value, props[name], wire{place: "form", deep: true, explode: true})
		}
		for _, name := range required(schema) {
			if v, ok := p.op.BodyForm.Get(name); !ok || !p.always(v) {
				p.problem("body/"+name, "the provider requires it, and it may not be sent")
			}
		}
	default:
		for _, name := range required(schema) {
			p.problem("body/"+name, "the provider requires it, and there is no body")
		}
	}
}

// value holds a JSON template against a schema.
func (p *prover) value(at string, v any, schema *base.SchemaProxy) {
	switch v := v.(type) {
	case string:
		p.text(at, v, schema, wire{place: "json"})
	case map[string]any:
		if list, ok := v["each"].(string); ok && len(v) == 2 {
			p.each(at, list, v["as"], schema)
			return
		}
		props := properties(schema)
		for _, name := range slices.Sorted(maps.Keys(v)) {
			sub := props[name]
			if sub == nil {
				sub = additional(schema)
			}
			if sub == nil && !open(schema) {
				p.problem(at+"/"+name, "the provider knows no such field%s", near(name, props))
				continue
			}
			if sub != nil {
				p.value(at+"/"+name, v[name], sub)
			}
		}
		for _, name := range required(schema) {
			if w, ok := v[name]; !ok || !p.always(w) {
				p.problem(at+"/"+name, "the provider requires it, and it may not be sent")
			}
		}
	case []any:
		items := itemsOf(schema)
		if items == nil {
			p.problem(at, "the provider takes %s, not a list", kinds(schema))
			return
		}
		for i, e := range v {
			p.value(fmt.Sprintf("%s/%d", at, i), e, items)
		}
	default:
		want := map[bool]string{true: "boolean", false: "integer"}[v == true || v == false]
		if v != nil && !hasType(schema, want) && !hasType(schema, "number") {
			p.problem(at, "the provider takes %s, not %v", kinds(schema), v)
		}
	}
}

func (p *prover) each(at, list string, as any, schema *base.SchemaProxy) {
	items := itemsOf(schema)
	a := p.op.Args.Get(wholeRef(list))
	if items == nil || a == nil {
		p.problem(at, "the provider takes %s, not a list", kinds(schema))
		return
	}
	in := *p
	in.item = a
	in.value(at+"/0", as, items)
	p.problems = in.problems
}

// A wire says how a value travels.
type wire struct {
	place   string // "path", "query", "form" or "json"
	deep    bool   // name[key]= and name[]=
	explode bool   // a list repeats its name
}

// text holds a literal, a placeholder or text with placeholders against a schema.
func (p *prover) text(at, s string, schema *base.SchemaProxy, w wire) {
	if ref := wholeRef(s); ref != "" {
		p.fits(at, p.arg(ref), schema, w)
		return
	}
	if len(refs(s)) > 0 {
		if !hasType(schema, "string") {
			p.problem(at, "the provider takes %s, not text", kinds(schema))
		}
		return
	}
	why := "the provider takes " + kinds(schema) + ", not the text " + strconv.Quote(s)
	for _, b := range branches(schema) {
		switch t := typeOf(b); {
		case t == "array" && w.place != "json":
			if strings.Contains(s, ",") && w.explode {
				why = "the provider takes a repeated parameter, not " + strconv.Quote(s)
				continue
			}
			return
		case t == "string" || t == "":
			if values := enum(b); len(values) == 0 || slices.Contains(values, s) {
				return
			} else {
				why = fmt.Sprintf("the provider takes one of %s, not %q", strings.Join(values, ", "), s)
			}
		case w.place != "json" && (t == "integer" || t == "number"):
			if _, err := strconv.ParseFloat(s, 64); err == nil {
				return
			}
		case w.place != "json" && t == "boolean":
			if s == "true" || s == "false" {
				return
			}
		}
	}
	p.problem(at, "%s", why)
}

// fits holds an arg against the schema of what it fills.
func (p *prover) fits(at string, a *integrations.Arg, schema *base.SchemaProxy, w wire) {
	if a == nil {
		p.problem(at, "no arg stands behind it")
		return
	}
	var why string
	for _, b := range branches(schema) {
		if why = misfit(a, b, w); why == "" {
			return
		}
	}
	if why == "" {
		why = "the provider's schema is empty"
	}
	p.problem(at, "%s (%s): %s", a.Name, a.Kind(), why)
}

// misfit says why values of an arg are not all values of a schema, "" when they are.
func misfit(a *integrations.Arg, s *base.Schema, w wire) string {
	t := typeOf(s)
	takes := func(types ...string) string {
		if slices.Contains(types, t) || w.place != "json" && t == "string" && len(enum(s)) == 0 {
			return ""
		}
		return "the provider takes " + t
	}
	switch a.Kind() {
	case "integer":
		if why := takes("integer", "number"); why != "" {
			return why
		}
		return outside(a, s)
	case "number":
		if why := takes("number"); why != "" {
			return why
		}
		return outside(a, s)
	case "boolean":
		return takes("boolean")
	case "enum":
		if t != "string" {
			return "the provider takes " + t
		}
		if theirs := enum(s); len(theirs) > 0 {
			for _, v := range a.Values {
				if !slices.Contains(theirs, v) {
					return fmt.Sprintf("the provider does not take %q; it takes %s", v, strings.Join(theirs, ", "))
				}
			}
		}
		return ""
	case "date", "datetime":
		if a.As == "epoch_s" || a.As == "epoch_ms" {
			return takes("integer", "number")
		}
		if t != "string" || len(enum(s)) > 0 {
			return "the provider takes " + t
		}
		if want := map[string]string{"date": "date", "datetime": "date-time"}[a.Kind()]; s.Format != "" && s.Format != want {
			return "the provider takes " + s.Format
		}
		return ""
	case "list":
		return misfitList(a, s, w)
	case "map":
		if t != "object" || w.place != "json" && !w.deep {
			return "the provider takes " + t
		}
		if p := s.AdditionalProperties; p == nil || p.IsB() && !p.B || p.IsA() && !hasType(p.A, "string") {
			return "the provider takes no free names with texts"
		}
		return ""
	}
	// string, id, path
	if t != "string" && t != "" {
		return "the provider takes " + t
	}
	if values := enum(s); len(values) > 0 {
		return "the provider takes one of " + strings.Join(values, ", ") + ", not any text"
	}
	if s.MaxLength != nil {
		if most := number(a.Max, 4096); most > float64(*s.MaxLength) {
			return fmt.Sprintf("up to %v characters may be given, the provider takes %d", most, *s.MaxLength)
		}
	}
	return ""
}

func misfitList(a *integrations.Arg, s *base.Schema, w wire) string {
	t := typeOf(s)
	if w.place != "json" && a.Style == "comma" && t == "string" {
		return ""
	}
	if t != "array" {
		return "the provider takes " + t
	}
	if w.place != "json" {
		switch {
		case (a.Style == "brackets" || a.Style == "indexed") != w.deep:
			return "the provider writes lists in another style than " + a.Style
		case a.Style == "comma" && w.explode:
			return "the provider takes a repeated parameter, not commas"
		case a.Style == "repeat" && !w.explode:
			return "the provider takes commas, not a repeated parameter"
		}
	}
	items := []*base.Schema{}
	if s.Items != nil && s.Items.IsA() {
		items = branches(s.Items.A)
	}
	why := "the provider does not say what the list holds"
	for _, it := range items {
		if a.Of == nil || a.Of.Arg != nil {
			one := &integrations.Arg{Name: "item"}
			if a.Of != nil {
				one = a.Of.Arg
			}
			why = misfit(one, it, wire{place: "json"})
		} else {
			why = misfitObject(a.Of.Object, it)
		}
		if why == "" {
			return ""
		}
	}
	return "an item: " + why
}

func misfitObject(fields integrations.ArgList, s *base.Schema) string {
	if typeOf(s) != "object" || s.Properties == nil {
		return "the provider takes " + typeOf(s)
	}
	for _, f := range fields {
		sub, ok := s.Properties.Get(f.Name)
		if !ok {
			return "the provider knows no field " + f.Name
		}
		why := ""
		for _, b := range branches(sub) {
			if why = misfit(f, b, wire{place: "json"}); why == "" {
				break
			}
		}
		if why != "" {
			return f.Name + ": " + why
		}
	}
	for _, name := range s.Required {
		if f := fields.Get(name); f == nil || !f.Required() {
			return "the provider requires " + name
		}
	}
	return ""
}

// outside compares the range of an arg with the provider's, where both say one.
func outside(a *integrations.Arg, s *base.Schema) string {
	if s.Maximum != nil && a.Max != nil && number(a.Max, 0) > *s.Maximum {
		return fmt.Sprintf("up to %s may be given, the provider takes %v", a.Max.Text, *s.Maximum)
	}
	if s.Minimum != nil && a.Min != nil && number(a.Min, 0) < *s.Minimum {
		return fmt.Sprintf("from %s may be given, the provider takes %v", a.Min.Text, *s.Minimum)
	}
	return ""
}

func number(n *integrations.Number, absent float64) float64 {
	if n == nil {
		return absent
	}
	f, _ := strconv.ParseFloat(n.Text, 64)
	return f
}

// answer returns the schema of the answer, nil where it has no body.
func (p *prover) answer(r *v3.Responses) *base.SchemaProxy {
	nothing := false
	for _, code := range slices.Sorted(r.Codes.KeysFromOldest()) {
		resp, _ := r.Codes.Get(code)
		if !strings.HasPrefix(code, "2") {
			continue
		}
		if resp.Content == nil || resp.Content.Len() == 0 {
			nothing = true
			continue
		}
		if n := p.op.Next; n != nil && n.Style == "link" && resp.Headers != nil && resp.Headers.GetOrZero("Link") == nil {
			p.problem("next", "the provider's answer has no Link header")
		}
		if c, ok := resp.Content.Get("application/json"); ok {
			if p.op.Pick.Nothing != "" {
				p.problem("pick/nothing", "the provider answers %s with a body", code)
			}
			return c.Schema
		}
	}
	if p.op.Pick.Nothing == "" || !nothing {
		p.problem("pick", "the provider answers with no JSON body")
	}
	return nil
}

func (p *prover) provePick(answer *base.SchemaProxy) {
	if answer == nil {
		return
	}
	root := []*base.SchemaProxy{answer}
	if r := p.op.Pick.Root; r != "" {
		var why string
		if root, why = follow(root, r); why != "" {
			p.problem("pick/root", "%s: %s", r, why)
			return
		}
	}
	for _, f := range p.op.Pick.Fields {
		at := "pick/" + f.Path
		ends, why := follow(root, f.Path)
		if why == "" {
			why = scalar(ends, func(t string) bool {
				switch {
				case f.Money != nil, f.Time == "epoch_s", f.Time == "epoch_ms":
					return t == "integer"
				case f.Time != "":
					return t == "string"
				case f.Type != "":
					return t == f.Type
				}
				return true
			})
		}
		if why != "" {
			p.problem(at, "%s", why)
		}
	}
	ends := func(at, path string, from []*base.SchemaProxy, types ...string) {
		if path == "" {
			return
		}
		found, why := follow(from, path)
		if why == "" {
			why = scalar(found, func(t string) bool { return slices.Contains(types, t) })
		}
		if why != "" {
			p.problem(at, "%s: %s", path, why)
		}
	}
	whole := []*base.SchemaProxy{answer}
	if n := p.op.Next; n != nil {
		ends("next/path", n.Path, whole, "string", "integer")
		ends("next/more", n.More, whole, "boolean")
		ends("next/pages", n.Pages, whole, "integer", "number")
		ends("next/field", n.Field, root, "string", "integer")
	}
	for _, f := range p.op.Fail {
		ends("fail/when", f.When, whole, "string", "integer", "boolean")
		ends("fail/unless", f.Unless, whole, "boolean")
		for _, m := range f.Message {
			ends("fail/message", m, whole, "string")
		}
		ends("fail/code", f.Code, whole, "string", "integer")
	}
}

// proveErrors looks for the manifest's message in each error that the provider describes.
func (p *prover) proveErrors(r *v3.Responses) {
	if p.m.Error == nil {
		return
	}
	check := func(code string, resp *v3.Response) {
		if resp == nil || resp.Content == nil {
			return
		}
		c, ok := resp.Content.Get("application/json")
		if !ok || c.Schema == nil {
			return
		}
		var why string
		for _, path := range p.m.Error.Message {
			var ends []*base.SchemaProxy
			if ends, why = follow([]*base.SchemaProxy{c.Schema}, path); why == "" {
				if why = scalar(ends, func(t string) bool { return t == "string" }); why == "" {
					p.errors[path] = true
					return
				}
			}
		}
		if why != "" {
			p.problem("error/message", "in the answer %s: %s", code, why)
		}
	}
	for code, resp := range r.Codes.FromOldest() {
		if code >= "4" {
			check(code, resp)
		}
	}
	check("default", r.Default)
}

// follow walks a dot path from schemas, arrays mapped over and alternatives all tried, and
// returns what may stand at its end.
func follow(from []*base.SchemaProxy, path string) (ends []*base.SchemaProxy, why string) {
	for _, seg := range strings.Split(path, ".") {
		var next []*base.SchemaProxy
		props := map[string]*base.SchemaProxy{}
		loose := false
		for _, f := range from {
			for _, b := range flat(f) {
				loose = loose || b.AdditionalProperties != nil && b.AdditionalProperties.IsB() && b.AdditionalProperties.B
				if b.Properties != nil {
					for name, sub := range b.Properties.FromOldest() {
						props[name] = sub
						if name == seg || seg == "<any>" {
							next = append(next, sub)
						}
					}
				}
				if ap := b.AdditionalProperties; ap != nil && ap.IsA() && (b.Properties == nil || b.Properties.GetOrZero(seg) == nil) {
					next = append(next, ap.A)
				}
			}
		}
		if len(next) == 0 {
			if loose {
				return nil, fmt.Sprintf("the provider's schema leaves open what stands at %q", seg)
			}
			return nil, fmt.Sprintf("the provider's answer has no %q%s", seg, near(seg, props))
		}
		from = next
	}
	return from, ""
}

// scalar says why what stands at the end of a path is not a scalar or a list of scalars of
// a wanted type. Where it may be one or an object (Stripe's expandable ids), it is one.
func scalar(ends []*base.SchemaProxy, want func(t string) bool) string {
	object, other := false, ""
	for _, e := range ends {
		for _, b := range flat(e) {
			switch t := typeOf(b); t {
			case "string", "integer", "number", "boolean":
				if want(t) {
					return ""
				}
				other = t
			default:
				object = true
			}
		}
	}
	switch {
	case other != "":
		return "the provider's answer has a value of type " + other + " there"
	case object:
		return "the provider's answer has an object there, not a value"
	}
	return "the provider's schema does not say what stands there"
}

// branches returns the alternatives of a schema: itself, or what anyOf, oneOf and allOf
// hold. An allOf of one is how OpenAPI 3.0 makes a reference nullable.
func branches(s *base.SchemaProxy) []*base.Schema {
	if s == nil || s.Schema() == nil {
		return nil
	}
	var out []*base.Schema
	sch := s.Schema()
	for _, alts := range [][]*base.SchemaProxy{sch.AnyOf, sch.OneOf, sch.AllOf} {
		for _, a := range alts {
			out = append(out, branches(a)...)
		}
	}
	if len(out) == 0 || sch.Properties != nil && sch.Properties.Len() > 0 {
		out = append(out, sch)
	}
	return out
}

// flat returns the alternatives of a schema, and of its items where it is a list.
func flat(s *base.SchemaProxy) []*base.Schema {
	var out []*base.Schema
	for _, b := range branches(s) {
		if typeOf(b) == "array" && b.Items != nil && b.Items.IsA() {
			out = append(out, flat(b.Items.A)...)
			continue
		}
		out = append(out, b)
	}
	return out
}

func typeOf(s *base.Schema) string {
	if len(s.Type) > 0 {
		return s.Type[0]
	}
	if s.Properties != nil && s.Properties.Len() > 0 {
		return "object"
	}
	return ""
}

func hasType(s *base.SchemaProxy, t string) bool {
	return slices.ContainsFunc(branches(s), func(b *base.Schema) bool { return typeOf(b) == t })
}

// kinds names what a schema takes.
func kinds(s *base.SchemaProxy) string {
	var out []string
	for _, b := range branches(s) {
		if t := typeOf(b); !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return strings.Join(out, " or ")
}

func enum(s *base.Schema) []string {
	var values []string
	for _, n := range s.Enum {
		values = append(values, n.Value)
	}
	return values
}

func properties(s *base.SchemaProxy) map[string]*base.SchemaProxy {
	props := map[string]*base.SchemaProxy{}
	for _, b := range branches(s) {
		if b.Properties != nil {
			for name, sub := range b.Properties.FromOldest() {
				props[name] = sub
			}
		}
	}
	return props
}

func additional(s *base.SchemaProxy) *base.SchemaProxy {
	for _, b := range branches(s) {
		if b.AdditionalProperties != nil && b.AdditionalProperties.IsA() {
			return b.AdditionalProperties.A
		}
	}
	return nil
}

// open says that a schema takes any name with any value.
func open(s *base.SchemaProxy) bool {
	return slices.ContainsFunc(branches(s), func(b *base.Schema) bool {
		return b.AdditionalProperties != nil && b.AdditionalProperties.IsB() && b.AdditionalProperties.B
	})
}

// required returns what every alternative of a schema requires.
func required(s *base.SchemaProxy) []string {
	var names []string
	for i, b := range branches(s) {
		if i == 0 {
			names = slices.Clone(b.Required)
			continue
		}
		names = slices.DeleteFunc(names, func(n string) bool { return !slices.Contains(b.Required, n) })
	}
	return names
}

func itemsOf(s *base.SchemaProxy) *base.SchemaProxy {
	for _, b := range branches(s) {
		if b.Items != nil && b.Items.IsA() {
			return b.Items.A
		}
	}
	return nil
}

// near lists the names that a misspelt one may have meant.
func near(name string, props map[string]*base.SchemaProxy) string {
	var close []string
	for _, n := range slices.Sorted(maps.Keys(props)) {
		if strings.Contains(n, name) || strings.Contains(name, n) || len(n) > 2 && strings.HasPrefix(name, n[:3]) {
			close = append(close, n)
		}
	}
	if len(close) == 0 || len(close) > 8 {
		return ""
	}
	return "; near it: " + strings.Join(close, ", ")
}

var placeholder = regexp.MustCompile(`\{([A-Za-z_][A-Za-z0-9_.-]*)\}`)

// refs returns the names of the placeholders in a text.
func refs(s string) []string {
	var names []string
	for _, m := range placeholder.FindAllStringSubmatch(s, -1) {
		names = append(names, m[1])
	}
	return names
}

// wholeRef returns the name of the placeholder that is the whole text, or "".
func wholeRef(s string) string {
	if m := placeholder.FindString(s); m != "" && m == s {
		return m[1 : len(m)-1]
	}
	return ""
}

// rawBody returns an operation's body_json as the file has it.
func rawBody(m *integrations.Manifest, op *integrations.Op) (any, error) {
	var file struct {
		Ops map[string]struct {
			BodyJSON json.RawMessage `json:"body_json"`
		}
	}
	if err := json.Unmarshal(m.Raw(), &file); err != nil {
		return nil, err
	}
	var body any
	d := json.NewDecoder(bytes.NewReader(file.Ops[op.Name].BodyJSON))
	d.UseNumber()
	return body, d.Decode(&body)
}
