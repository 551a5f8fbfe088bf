package integrations_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"github.com/elevenmessenger/connect/integrations"
)

// document returns an operation's GraphQL document and its variables' templates.
func document(m *integrations.Manifest, op *integrations.Op) (doc string, variables map[string]any, err error) {
	raw, err := rawBody(m, op)
	if err != nil {
		return "", nil, err
	}
	body, _ := raw.(map[string]any)
	doc, ok := body["query"].(string)
	if !ok {
		return "", nil, fmt.Errorf("%s.%s: body_json has no query", m.ID, op.Name)
	}
	variables, _ = body["variables"].(map[string]any)
	return doc, variables, nil
}

// proveGraphQL holds an operation against the provider's GraphQL schema.
func (p *prover) proveGraphQL() {
	doc, variables, err := document(p.m, p.op)
	if err != nil {
		p.problem("body", "%v", err)
		return
	}
	query, errs := gqlparser.LoadQueryWithRules(p.t.schema, doc, rules.NewDefaultRules())
	for _, e := range errs {
		p.problem("body/query", "%s", e.Message)
	}
	if len(errs) > 0 || len(query.Operations) != 1 {
		return
	}
	q := query.Operations[0]
	for _, d := range q.VariableDefinitions {
		v, ok := variables[d.Variable]
		at := "variables/" + d.Variable
		switch {
		case !ok && d.Type.NonNull && d.DefaultValue == nil, ok && d.Type.NonNull && !p.always(v):
			p.problem(at, "the provider requires it, and it may not be sent")
		}
		if ok {
			p.input(at, v, d.Type)
		}
	}
	if i := p.op.Idempotency; i != nil && i.Body != "" {
		p.idempotency(i.Body, q)
	}
	taken := map[string]bool{}
	root := p.op.Pick.Root
	for _, f := range p.op.Pick.Fields {
		p.selected("pick/"+f.Path, root+"."+f.Path, q.SelectionSet, taken, func(d *ast.Definition) bool {
			switch {
			case f.Money != nil, f.Time == "epoch_s", f.Time == "epoch_ms":
				return d.Name == "Int"
			case f.Time != "":
				return d.Name == "DateTime" || d.Name == "String"
			}
			return true
		})
	}
	boolean := func(d *ast.Definition) bool { return d.Name == "Boolean" }
	text := func(d *ast.Definition) bool { return d.Name == "String" || d.Name == "ID" || d.Name == "Int" }
	if n := p.op.Next; n != nil {
		p.selected("next/path", n.Path, q.SelectionSet, taken, text)
		p.selected("next/more", n.More, q.SelectionSet, taken, boolean)
	}
	for _, f := range p.op.Fail {
		p.selected("fail/when", f.When, q.SelectionSet, taken, boolean)
		p.selected("fail/unless", f.Unless, q.SelectionSet, taken, boolean)
		for _, m := range f.Message {
			p.selected("fail/message", m, q.SelectionSet, taken, text)
		}
		p.selected("fail/code", f.Code, q.SelectionSet, taken, text)
	}
	p.leaves("data", q.SelectionSet, taken)
	p.reported()
}

// reported holds error.message against the shape of a GraphQL error (October 2021,
// section 7.1.2): extensions are the provider's own.
func (p *prover) reported() {
	if p.m.Error == nil {
		return
	}
	for _, path := range p.m.Error.Message {
		if !graphQLError(path) {
			p.problem("error/message", "%s: a GraphQL error has message and extensions", path)
		}
		p.errors[path] = true
	}
}

func graphQLError(path string) bool {
	return path == "errors" || path == "errors.message" || strings.HasPrefix(path, "errors.extensions.")
}

// selected walks a path of the answer through the selection set to a scalar.
func (p *prover) selected(at, path string, set ast.SelectionSet, taken map[string]bool, want func(*ast.Definition) bool) {
	if path == "" || graphQLError(path) {
		return
	}
	segs := strings.Split(path, ".")
	if segs[0] != "data" {
		p.problem(at, "%s: a GraphQL answer stands under data", path)
		return
	}
	here := "data"
	var field *ast.Field
	for _, seg := range segs[1:] {
		var found *ast.Field
		var names []string
		for _, f := range fields(set) {
			names = append(names, f.Alias)
			if f.Alias == seg {
				found = f
			}
		}
		if found == nil {
			p.problem(at, "the document does not ask for %q; it asks for: %s", seg, strings.Join(names, ", "))
			return
		}
		here += "." + seg
		field, set = found, found.SelectionSet
	}
	taken[here] = true
	if field == nil || len(field.SelectionSet) > 0 {
		p.problem(at, "the provider's answer has an object there, not a value")
		return
	}
	if def := p.t.schema.Types[field.Definition.Type.Name()]; !want(def) {
		p.problem(at, "the provider's answer has a %s there", def.Name)
	}
}

// leaves reports what the document asks for and nothing takes, and lists without a size.
func (p *prover) leaves(here string, set ast.SelectionSet, taken map[string]bool) {
	for _, f := range fields(set) {
		at := here + "." + f.Alias
		if f.Definition.Arguments.ForName("first") != nil && f.Arguments.ForName("first") == nil {
			p.problem("body/query", "%s: a list says its size (first)", at)
		}
		if len(f.SelectionSet) == 0 && !taken[at] {
			p.problem("body/query", "it asks for %s, which nothing takes", at)
		}
		p.leaves(at, f.SelectionSet, taken)
	}
}

func fields(set ast.SelectionSet) []*ast.Field {
	var out []*ast.Field
	for _, s := range set {
		switch s := s.(type) {
		case *ast.Field:
			out = append(out, s)
		case *ast.InlineFragment:
			out = append(out, fields(s.SelectionSet)...)
		case *ast.FragmentSpread:
			out = append(out, fields(s.Definition.SelectionSet)...)
		}
	}
	return out
}

// idempotency looks for a text at the place that takes the key.
func (p *prover) idempotency(path string, q *ast.OperationDefinition) {
	segs := strings.Split(path, ".")
	if len(segs) < 3 || segs[0] != "variables" {
		p.problem("idempotency", "%s is not in an input object", path)
		return
	}
	d := q.VariableDefinitions.ForName(segs[1])
	if d == nil {
		p.problem("idempotency", "the document has no variable $%s", segs[1])
		return
	}
	typ := d.Type
	for _, seg := range segs[2:] {
		f := p.t.schema.Types[typ.Name()].Fields.ForName(seg)
		if f == nil {
			p.problem("idempotency", "%s has no field %q", typ.Name(), seg)
			return
		}
		typ = f.Type
	}
	if n := typ.Name(); n != "String" && n != "ID" {
		p.problem("idempotency", "the provider takes %s there", n)
	}
}

// input holds a variable's template against its type.
func (p *prover) input(at string, v any, typ *ast.Type) {
	def := p.t.schema.Types[typ.Name()]
	switch v := v.(type) {
	case string:
		if ref := wholeRef(v); ref != "" {
			if why := misfitInput(p.arg(ref), typ, p.t.schema); why != "" {
				p.problem(at, "%s: %s", ref, why)
			}
			return
		}
		switch {
		case typ.Elem != nil:
			p.problem(at, "the provider takes a list")
		case def.Kind == ast.Enum && len(refs(v)) == 0 && def.EnumValues.ForName(v) == nil:
			p.problem(at, "the provider does not take %q", v)
		case def.Kind == ast.InputObject || def.Name == "Int" || def.Name == "Float" || def.Name == "Boolean":
			p.problem(at, "the provider takes %s, not text", def.Name)
		}
	case map[string]any:
		if list, ok := v["each"].(string); ok && len(v) == 2 {
			if a := p.op.Args.Get(wholeRef(list)); a != nil && typ.Elem != nil {
				in := *p
				in.item = a
				in.input(at+"/0", v["as"], typ.Elem)
				p.problems = in.problems
				return
			}
			p.problem(at, "the provider takes no list")
			return
		}
		if def.Kind != ast.InputObject || typ.Elem != nil {
			p.problem(at, "the provider takes %s, not an object", typ)
			return
		}
		for _, name := range slices.Sorted(maps.Keys(v)) {
			f := def.Fields.ForName(name)
			if f == nil {
				p.problem(at+"/"+name, "%s has no such field", def.Name)
				continue
			}
			p.input(at+"/"+name, v[name], f.Type)
		}
		for _, f := range def.Fields {
			if !f.Type.NonNull || f.DefaultValue != nil {
				continue
			}
			if w, ok := v[f.Name]; !ok || !p.always(w) {
				p.problem(at+"/"+f.Name, "the provider requires it, and it may not be sent")
			}
		}
	case []any:
		if typ.Elem == nil {
			p.problem(at, "the provider takes %s, not a list", typ)
			return
		}
		for i, e := range v {
			p.input(fmt.Sprintf("%s/%d", at, i), e, typ.Elem)
		}
	case nil:
		if typ.NonNull {
			p.problem(at, "the provider takes no null")
		}
	default:
		if n := def.Name; n != "Int" && n != "Float" && n != "Boolean" {
			p.problem(at, "the provider takes %s, not %v", n, v)
		}
	}
}

// misfitInput says why values of an arg are not all values of an input type.
func misfitInput(a *integrations.Arg, typ *ast.Type, schema *ast.Schema) string {
	if a == nil {
		return "no arg stands behind it"
	}
	if a.Clear && typ.NonNull {
		return "the provider takes no null"
	}
	if a.Kind() == "list" {
		if typ.Elem == nil {
			return "the provider takes " + typ.String() + ", not a list"
		}
		if a.Of != nil && a.Of.Object != nil {
			return "a list of objects is not held against an input type here"
		}
		one := &integrations.Arg{Name: "item"}
		if a.Of != nil {
			one = a.Of.Arg
		}
		return misfitInput(one, typ.Elem, schema)
	}
	if typ.Elem != nil {
		return "the provider takes a list"
	}
	def := schema.Types[typ.Name()]
	if def.Kind == ast.Enum {
		for _, v := range a.Values {
			if def.EnumValues.ForName(v) == nil {
				return fmt.Sprintf("the provider does not take %q", v)
			}
		}
		if a.Kind() == "enum" {
			return ""
		}
	}
	takes := map[string][]string{
		"integer": {"Int", "Float"}, "number": {"Float"}, "boolean": {"Boolean"},
		"date": {"TimelessDate", "String"}, "datetime": {"DateTime", "String"},
	}[a.Kind()]
	if takes == nil {
		takes = []string{"String", "ID"} // string, id, enum
	}
	if !slices.Contains(takes, def.Name) {
		return fmt.Sprintf("%s does not fit %s", a.Kind(), def.Name)
	}
	return ""
}
