package integrations_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strings"
	"testing"

	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"
	"github.com/vektah/gqlparser/v2/formatter"
	"github.com/vektah/gqlparser/v2/validator/rules"

	"github.com/elevenmessenger/connect/integrations"
)

var providersFlag = flag.String("providers", "", "cut testdata/providers anew from this folder of whole provider slices")

// maxCut bounds each file of testdata/providers.
const maxCut = 700 << 10

// TestCutProviders is no test but the tool that makes testdata/providers, see its README.
func TestCutProviders(t *testing.T) {
	if *providersFlag == "" {
		t.Skip("it runs only with -providers")
	}
	for _, m := range registry(t) {
		t.Run(m.ID, func(t *testing.T) {
			c := cutter{m: m, from: filepath.Join(*providersFlag, m.ID), to: filepath.Join(providersDir, m.ID)}
			if err := c.cut(*providersFlag); err != nil {
				t.Fatal(err)
			}
			for _, f := range c.written {
				t.Log(f)
			}
		})
	}
}

type cutter struct {
	m        *integrations.Manifest
	from, to string
	written  []string
}

func (c *cutter) cut(root string) error {
	whole, err := loadTruth(c.m.ID, c.from)
	if err != nil {
		return err
	}
	for _, old := range []string{"openapi.json", "schema.graphql", "dated-paths.json", "responses"} {
		if err := os.RemoveAll(filepath.Join(c.to, old)); err != nil {
			return err
		}
	}
	if whole.openapi != nil {
		err = c.cutOpenAPI(whole)
	} else {
		err = c.cutSchema(whole)
	}
	if err != nil {
		return err
	}
	if err := c.copyResponses(whole); err != nil {
		return err
	}
	if err := c.copy(filepath.Join(c.from, "SOURCE.md"), "SOURCE.md"); err != nil {
		return err
	}
	if len(whole.Licences) == 0 {
		return fmt.Errorf("%s: no licence text is named", c.m.ID)
	}
	for _, l := range whole.Licences {
		if err := c.copy(filepath.Join(root, "LICENSES", l), "LICENSE."+l); err != nil {
			return err
		}
	}
	return nil
}

func (c *cutter) copy(from, to string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return c.write(to, data)
}

func (c *cutter) write(name string, data []byte) error {
	if len(data) > maxCut {
		return fmt.Errorf("%s/%s: %d bytes, at most %d are kept", c.m.ID, name, len(data), maxCut)
	}
	file := filepath.Join(c.to, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	c.written = append(c.written, fmt.Sprintf("%s: %d bytes", file, len(data)))
	return os.WriteFile(file, append(bytes.TrimRight(data, "\n"), '\n'), 0o644)
}

// cutOpenAPI keeps the operations that the manifest uses and what they refer to.
func (c *cutter) cutOpenAPI(whole *truth) error {
	data, err := os.ReadFile(filepath.Join(c.from, "openapi.json"))
	if err != nil {
		return err
	}
	var doc map[string]any
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return err
	}
	paths := doc["paths"].(map[string]any)
	kept := map[string]any{}
	for _, op := range c.m.Ops {
		if _, ok := whole.fact(op); ok {
			continue
		}
		method, path := whole.source(op)
		template, _, found := whole.operation(method, path)
		if found == nil {
			return fmt.Errorf("%s.%s: the slice has no %s %s", c.m.ID, op.Name, method, path)
		}
		item, ok := kept[template].(map[string]any)
		if !ok {
			item = map[string]any{}
			if shared, ok := paths[template].(map[string]any)["parameters"]; ok {
				item["parameters"] = shared
			}
			kept[template] = item
		}
		item[strings.ToLower(method)] = paths[template].(map[string]any)[strings.ToLower(method)]
	}
	doc["paths"] = kept
	all, _ := doc["components"].(map[string]any)
	components := map[string]any{}
	var follow func(v any)
	follow = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				parts := strings.Split(strings.TrimPrefix(ref, "#/components/"), "/")
				if group, ok := components[parts[0]].(map[string]any); ok && group[parts[1]] != nil {
					return
				} else if !ok {
					components[parts[0]] = map[string]any{}
				}
				target := all[parts[0]].(map[string]any)[parts[1]]
				components[parts[0]].(map[string]any)[parts[1]] = target
				follow(target)
				return
			}
			for _, e := range v {
				follow(e)
			}
		case []any:
			for _, e := range v {
				follow(e)
			}
		}
	}
	follow(kept)
	if s := all["securitySchemes"]; s != nil {
		components["securitySchemes"] = s
	}
	doc["components"] = components
	out, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return err
	}
	if err := c.write("openapi.json", out); err != nil {
		return err
	}
	return c.cutDated(whole)
}

// cutDated keeps the newer paths of what the manifest uses.
func (c *cutter) cutDated(whole *truth) error {
	file := filepath.Join(c.from, "dated-paths.json")
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	var doc map[string]any
	if err == nil {
		err = json.Unmarshal(data, &doc)
	}
	if err != nil {
		return err
	}
	var kept []any
	for _, p := range doc["paths"].([]any) {
		dated, _ := p.(map[string]any)["dated"].(string)
		method, path, _ := strings.Cut(dated, " ")
		for _, op := range c.m.Ops {
			if op.Method == method && sameTemplate(op.Path, path) {
				kept = append(kept, p)
				break
			}
		}
	}
	doc["paths"] = kept
	out, err := json.MarshalIndent(doc, "", " ")
	if err != nil {
		return err
	}
	return c.write("dated-paths.json", out)
}

// copyResponses copies the manifest's responses, and all errors and pages, byte for byte
// but for two things that the slices cannot hold, see the README.
func (c *cutter) copyResponses(whole *truth) error {
	files, err := filepath.Glob(filepath.Join(c.from, "responses", "*.json"))
	if err != nil {
		return err
	}
	sort.Strings(files)
	var all []*response
	for _, f := range files {
		r := &response{file: f}
		if err := readJSON(f, r); err != nil {
			return err
		}
		if strings.HasSuffix(f, ".emulator.json") {
			continue // a third party's
		}
		all = append(all, r)
		if r.special() {
			if err := c.copy(f, filepath.Join("responses", filepath.Base(f))); err != nil {
				return err
			}
		}
	}
	for _, op := range c.m.Ops {
		for _, r := range whole.answers(op, all) {
			data, err := os.ReadFile(r.file)
			if err != nil {
				return err
			}
			if bytes.Contains(data, []byte(`"$ref": "#/components/examples/`)) {
				if data, err = c.resolveExample(r, all); err != nil {
					return err
				}
			}
			data = nameProperties(data, op)
			if err := c.write(filepath.Join("responses", filepath.Base(r.file)), data); err != nil {
				return err
			}
		}
	}
	return nil
}

// resolveExample fills a documented example that only refers to another one: GitHub's
// issues/get and issues/update share components.examples.issue.
func (c *cutter) resolveExample(r *response, all []*response) ([]byte, error) {
	for _, other := range all {
		if r.Operation == "issues/get" && other.Operation == "issues/update" {
			filled := map[string]any{
				"operation": r.Operation, "method": r.Method, "path": r.Path, "status": r.Status,
				"origin": r.Origin + " (the one that it shares with issues/update)",
				"body":   other.Body,
			}
			return json.MarshalIndent(filled, "", " ")
		}
	}
	return nil, fmt.Errorf("%s: its body refers to an example that is not there", r.file)
}

var anyProperty = regexp.MustCompile(`"properties": \{\s*"example": "example value"\s*\}`)

// nameProperties gives a generated map of properties (HubSpot) the names that the
// operation picks: the schema has no names, and the service returns what is asked for.
func nameProperties(data []byte, op *integrations.Op) []byte {
	var names []string
	for _, f := range op.Pick.Fields {
		if name, ok := strings.CutPrefix(f.Path, "properties."); ok {
			names = append(names, fmt.Sprintf("%q: %q", name, "example "+name))
		}
	}
	if len(names) == 0 {
		return data
	}
	names = append(names, `"not_picked": "example value"`)
	return anyProperty.ReplaceAll(data, []byte(`"properties": { `+strings.Join(names, ", ")+` }`))
}

// cutSchema keeps the types and fields that the documents use, and beside each used field
// the scalars of its type, so that a field can be added without cutting anew.
func (c *cutter) cutSchema(whole *truth) error {
	used := map[string]map[string]bool{} // type → fields; nil for all
	args := map[string]bool{}            // "Type.field.arg"
	use := func(typ, field string) {
		if used[typ] == nil {
			used[typ] = map[string]bool{}
		}
		if field != "" {
			used[typ][field] = true
		}
	}
	useInput := func(typ *ast.Type) { use(typ.Name(), "") }
	var useValue func(v *ast.Value)
	useValue = func(v *ast.Value) {
		if v.Definition != nil && v.Definition.Kind == ast.InputObject {
			for _, k := range v.Children {
				use(v.Definition.Name, k.Name)
			}
		}
		if v.ExpectedType != nil {
			useInput(v.ExpectedType)
		}
		for _, k := range v.Children {
			useValue(k.Value)
		}
	}
	var useSet func(set ast.SelectionSet)
	useSet = func(set ast.SelectionSet) {
		for _, s := range set {
			switch s := s.(type) {
			case *ast.Field:
				use(s.ObjectDefinition.Name, s.Name)
				use(s.Definition.Type.Name(), "")
				for _, a := range s.Arguments {
					args[s.ObjectDefinition.Name+"."+s.Name+"."+a.Name] = true
					useValue(a.Value)
				}
				useSet(s.SelectionSet)
			case *ast.InlineFragment:
				useSet(s.SelectionSet)
			}
		}
	}
	for _, op := range c.m.Ops {
		doc, _, err := document(c.m, op)
		if err != nil {
			return err
		}
		query, errs := gqlparser.LoadQueryWithRules(whole.schema, doc, rules.NewDefaultRules())
		if errs != nil {
			return fmt.Errorf("%s.%s: %w", c.m.ID, op.Name, errs)
		}
		for _, o := range query.Operations {
			for _, v := range o.VariableDefinitions {
				useInput(v.Type)
			}
			useSet(o.SelectionSet)
		}
	}
	kind := func(typ *ast.Type) ast.DefinitionKind { return whole.schema.Types[typ.Name()].Kind }
	leaf := func(typ *ast.Type) bool { k := kind(typ); return k == ast.Scalar || k == ast.Enum }
	var out ast.SchemaDocument
	for done := map[string]bool{}; len(done) < len(used); {
		var names []string
		for name := range used {
			if !done[name] {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		for _, name := range names {
			done[name] = true
			def := whole.schema.Types[name]
			if def.BuiltIn {
				continue
			}
			cut := &ast.Definition{Kind: def.Kind, Name: def.Name, EnumValues: plainValues(def.EnumValues)}
			root := def == whole.schema.Query || def == whole.schema.Mutation
			for _, f := range def.Fields {
				required := def.Kind == ast.InputObject && f.Type.NonNull && f.DefaultValue == nil
				if strings.HasPrefix(f.Name, "__") || !used[name][f.Name] && !required && (root || !leaf(f.Type)) {
					continue
				}
				field := &ast.FieldDefinition{Name: f.Name, Type: f.Type, DefaultValue: f.DefaultValue}
				use(f.Type.Name(), "")
				for _, a := range f.Arguments {
					if args[name+"."+f.Name+"."+a.Name] || a.Type.NonNull || leaf(a.Type) {
						use(a.Type.Name(), "")
						field.Arguments = append(field.Arguments, &ast.ArgumentDefinition{Name: a.Name, Type: a.Type, DefaultValue: a.DefaultValue})
					}
				}
				cut.Fields = append(cut.Fields, field)
			}
			out.Definitions = append(out.Definitions, cut)
		}
	}
	sort.Slice(out.Definitions, func(i, j int) bool { return out.Definitions[i].Name < out.Definitions[j].Name })
	var b bytes.Buffer
	b.WriteString("# Cut from the provider's schema, see SOURCE.md and ../README.md.\n\n")
	formatter.NewFormatter(&b, formatter.WithIndent("  ")).FormatSchemaDocument(&out)
	return c.write("schema.graphql", b.Bytes())
}

func plainValues(values ast.EnumValueList) ast.EnumValueList {
	var out ast.EnumValueList
	for _, v := range values {
		out = append(out, &ast.EnumValueDefinition{Name: v.Name})
	}
	return out
}
