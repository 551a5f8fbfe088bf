package integrations

import (
	"bytes"
	"cmp"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

const schemaFile = "registry/schema.json"

// TestSchemaIsCurrent: schema.json is made from the loader's own types, so that an editor
// and the loader cannot drift apart. -update writes it.
func TestSchemaIsCurrent(t *testing.T) {
	g := &schemaMaker{docs: fieldDocs(t), defs: make(map[string]any)}
	root := g.object(reflect.TypeFor[Manifest]())
	root["$schema"] = "http://json-schema.org/draft-07/schema#"
	root["title"] = "A Connect manifest, version 1"
	root["definitions"] = g.defs
	if g.bare != nil {
		t.Errorf("fields of the language without a comment: %v", g.bare)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(root); err != nil {
		t.Fatal(err)
	}
	current(t, schemaFile, b.Bytes())
}

// TestSchemaJudges: the schema takes the shipped manifests, and refuses what a schema can see.
func TestSchemaJudges(t *testing.T) {
	rs := resolvedSchema(t)
	reg, err := Default()
	if err != nil {
		t.Fatal(err)
	}
	var good string
	for _, m := range reg.All() {
		var v any
		if err := json.Unmarshal(m.Raw(), &v); err != nil {
			t.Fatal(err)
		}
		if err := rs.Validate(v); err != nil {
			t.Errorf("%s: %v", m.ID, err)
		}
		if m.ID == "github" {
			good = string(m.Raw())
		}
	}
	for _, bad := range []struct{ name, old, new string }{
		{"unknown key", `"viewer"`, `"veiwer"`},
		{"wrong type", `"manifest": 1`, `"manifest": "1"`},
		{"another version", `"manifest": 1`, `"manifest": 2`},
		{"bad id", `"id": "github"`, `"id": "GitHub"`},
		{"bad version", `"version": "1.0.0"`, `"version": "1.0"`},
		{"bad host", `"host": "api.github.com"`, `"host": "https://api.github.com"`},
		{"bad access", `"access": "read"`, `"access": "reads"`},
		{"bad method", `"method": "GET"`, `"method": "FETCH"`},
		{"bad scheme", `"authorization": "bearer"`, `"authorization": "token"`},
		{"missing host", `"host": "api.github.com",`, ``},
		{"http address", `"authorize_url": "https:`, `"authorize_url": "http:`},
		{"unknown effect", `"effects": ["visible"`, `"effects": ["harmless"`},
	} {
		text := strings.Replace(good, bad.old, bad.new, 1)
		if text == good {
			t.Errorf("%s: %q is not in the manifest", bad.name, bad.old)
			continue
		}
		var v any
		if err := json.Unmarshal([]byte(text), &v); err != nil {
			t.Fatal(err)
		}
		if rs.Validate(v) == nil {
			t.Errorf("%s: the schema takes it", bad.name)
		}
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s: the loader takes it", bad.name)
		}
	}
}

func resolvedSchema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	var s jsonschema.Schema
	if err := json.Unmarshal(Schema(), &s); err != nil {
		t.Fatal(err)
	}
	rs, err := s.Resolve(nil)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestSchemaAndLoader: an editor marks nothing that the loader takes, and marks every
// hostile manifest whose fault a schema can see.
func TestSchemaAndLoader(t *testing.T) {
	rs := resolvedSchema(t)
	tried := map[string]int{ // rules that a schema can hold
		"json.unknown_key": 0, "json.type": 0, "enum": 0, "required": 0, "pick.missing": 0,
		"id.form": 0, "version.semver": 0, "text.long": 0, "oauth.separator": 0,
	}
	rows := append(hostileRows(t), hostileRow{name: "the base", text: readFile(t, baseFile)})
	for _, r := range rows {
		var v any
		if json.Unmarshal(r.plain(), &v) != nil {
			continue
		}
		err := rs.Validate(v)
		if len(r.rules) == 0 && err != nil {
			t.Errorf("the schema refuses %q: %v", r.name, err)
		}
		for _, rule := range r.rules {
			if _, ok := tried[rule]; !ok {
				continue
			}
			tried[rule]++
			if err == nil {
				t.Errorf("the schema takes %q, refused by %s", r.name, rule)
			}
		}
	}
	for rule, n := range tried {
		if n == 0 {
			t.Errorf("no row of %s was tried", rule)
		}
	}
}

type schemaMaker struct {
	docs map[string]string // "Type.Field" → comment
	defs map[string]any
	bare []string // fields without a comment
}

// object describes a struct by its tags, as decode reads it.
func (g *schemaMaker) object(t reflect.Type) map[string]any {
	props := make(map[string]any)
	var required []string
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("json")
		if name == "" || name == "-" {
			continue
		}
		s := g.value(f.Type, f.Tag)
		doc := g.docs[t.Name()+"."+f.Name]
		if doc == "" {
			g.bare = append(g.bare, t.Name()+"."+f.Name)
		} else {
			if _, isRef := s["$ref"]; isRef { // draft-07 passes over what stands beside $ref
				s = map[string]any{"allOf": []any{s}}
			}
			s["description"] = doc
		}
		props[name] = s
		if f.Tag.Get("req") != "" {
			required = append(required, name)
		}
	}
	out := map[string]any{"type": "object", "properties": props, "additionalProperties": false}
	if required != nil {
		out["required"] = required
	}
	return out
}

// value describes one field's type.
func (g *schemaMaker) value(t reflect.Type, tag reflect.StructTag) map[string]any {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if u, ok := unions[t]; ok {
		return g.ref(t, func() map[string]any { return u(g, tag) })
	}
	switch t.Kind() {
	case reflect.String:
		return text(tag)
	case reflect.Bool:
		return map[string]any{"type": "boolean"}
	case reflect.Int:
		if tag.Get("json") == "manifest" {
			return map[string]any{"const": 1}
		}
		return map[string]any{"type": "integer", "minimum": 0, "maximum": 1 << 31}
	case reflect.Map:
		return map[string]any{"type": "object", "additionalProperties": g.value(t.Elem(), tag)}
	case reflect.Slice:
		elem := t.Elem()
		if elem.Kind() == reflect.Pointer {
			elem = elem.Elem()
		}
		if elem.Kind() == reflect.Struct {
			if f, ok := elem.FieldByName("Name"); ok && f.Tag.Get("key") != "" {
				return map[string]any{"type": "object", "propertyNames": map[string]any{"pattern": forms[f.Tag.Get("key")].pattern}, "additionalProperties": g.value(elem, "")}
			}
		}
		return map[string]any{"type": "array", "items": g.value(elem, tag)}
	case reflect.Struct:
		return g.ref(t, func() map[string]any { return g.object(t) })
	}
	panic("no schema for " + t.String())
}

// ref puts a named type into the definitions once; what depends on its field's tags is
// written in place.
func (g *schemaMaker) ref(t reflect.Type, make func() map[string]any) map[string]any {
	if inPlace[t] {
		return make()
	}
	if _, done := g.defs[t.Name()]; !done {
		g.defs[t.Name()] = true // for types that hold themselves
		g.defs[t.Name()] = make()
	}
	return map[string]any{"$ref": "#/definitions/" + t.Name()}
}

func text(tag reflect.StructTag) map[string]any {
	s := map[string]any{"type": "string"}
	if e := tag.Get("enum"); e != "" {
		s["enum"] = strings.Split(e, ",")
		return s
	}
	if p := forms[tag.Get("form")].pattern; p != "" {
		s["pattern"] = p
	}
	if m, err := strconv.Atoi(tag.Get("max")); err == nil {
		s["maxLength"] = m
	}
	return s
}

func anyOf(forms ...map[string]any) map[string]any { return map[string]any{"anyOf": forms} }

func word(values ...string) map[string]any { return map[string]any{"enum": values} }

// unions are the types whose JSON has more than one form: each beside its decodeNode.
var unions map[reflect.Type]func(*schemaMaker, reflect.StructTag) map[string]any

var inPlace = map[reflect.Type]bool{
	reflect.TypeFor[Paths](): true, reflect.TypeFor[Pairs](): true, reflect.TypeFor[Number](): true, reflect.TypeFor[Scalar](): true,
}

func init() { // a test's table that would otherwise refer to itself
	unions = map[reflect.Type]func(*schemaMaker, reflect.StructTag) map[string]any{
		reflect.TypeFor[Pairs](): func(*schemaMaker, reflect.StructTag) map[string]any {
			return map[string]any{"type": "object", "additionalProperties": map[string]any{"type": "string"}}
		},
		reflect.TypeFor[Paths](): func(_ *schemaMaker, tag reflect.StructTag) map[string]any {
			return anyOf(text(tag), map[string]any{"type": "array", "minItems": 1, "items": text(tag)})
		},
		reflect.TypeFor[Number](): func(*schemaMaker, reflect.StructTag) map[string]any {
			return map[string]any{"type": "number", "minimum": -(1 << 53), "maximum": 1 << 53}
		},
		reflect.TypeFor[Scalar](): func(*schemaMaker, reflect.StructTag) map[string]any {
			return map[string]any{"type": []string{"string", "number", "boolean"}}
		},
		reflect.TypeFor[Template](): func(*schemaMaker, reflect.StructTag) map[string]any {
			return map[string]any{"type": []string{"object", "array", "string", "number", "boolean", "null"}}
		},
		reflect.TypeFor[Authorization](): func(g *schemaMaker, _ reflect.StructTag) map[string]any {
			return anyOf(word("bearer", "none"), g.object(reflect.TypeFor[Authorization]()))
		},
		reflect.TypeFor[PKCE](): func(g *schemaMaker, _ reflect.StructTag) map[string]any {
			return anyOf(word("required", "supported"), g.object(reflect.TypeFor[PKCE]()))
		},
		reflect.TypeFor[Field](): func(g *schemaMaker, _ reflect.StructTag) map[string]any {
			return anyOf(text(`form:"fieldpath"`), g.object(reflect.TypeFor[Field]()))
		},
		reflect.TypeFor[FailList](): func(g *schemaMaker, _ reflect.StructTag) map[string]any {
			one := g.object(reflect.TypeFor[Fail]())
			return anyOf(one, map[string]any{"type": "array", "items": one})
		},
		reflect.TypeFor[Of](): func(g *schemaMaker, _ reflect.StructTag) map[string]any {
			return anyOf(word("string", "integer", "number", "boolean", "date", "datetime", "id"),
				g.object(reflect.TypeFor[Of]()), g.value(reflect.TypeFor[Arg](), ""))
		},
	}
}

// fieldDocs reads the comments above the fields of manifest.go, or behind them.
func fieldDocs(t *testing.T) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), "manifest.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	docs := make(map[string]string)
	ast.Inspect(f, func(n ast.Node) bool {
		ts, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		st, ok := ts.Type.(*ast.StructType)
		if !ok {
			return true
		}
		for _, field := range st.Fields.List {
			for _, name := range field.Names {
				doc := cmp.Or(field.Doc.Text(), field.Comment.Text())
				docs[ts.Name.Name+"."+name.Name] = strings.Join(strings.Fields(doc), " ")
			}
		}
		return true
	})
	return docs
}

// current holds a generated file against what it should be.
func current(t *testing.T, name string, want []byte) {
	t.Helper()
	if updating() {
		if err := os.WriteFile(name, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is stale (%v): go test ./integrations -update writes it", name, err)
	}
}
