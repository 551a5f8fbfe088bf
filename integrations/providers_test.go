package integrations_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/pb33f/libopenapi"
	v3 "github.com/pb33f/libopenapi/datamodel/high/v3"
	"github.com/vektah/gqlparser/v2"
	"github.com/vektah/gqlparser/v2/ast"

	"github.com/elevenmessenger/connect/integrations"
)

// What the providers publish about their own APIs, cut to what the manifests use. See the
// README there; cut_test.go makes it.
const providersDir = "testdata/providers"

// A truth is what is known of a provider's API, from the provider.
type truth struct {
	openapi *v3.Document // nil where the API is GraphQL
	base    string       // path of the OpenAPI document's server, such as /v2
	schema  *ast.Schema  // nil where the API is not GraphQL

	dated []datedPath // newer paths of the same operations
	about
}

// About is proof.json: what the tests must know of a service beside what its provider
// publishes.
type about struct {
	Licences   []string          // texts that travel with what is copied
	Connection map[string]string // what a connection would have learnt
	Facts      map[string]fact   // "GET /path" → what is known of an operation that no schema has
	Stays      []stay            // what the proof finds and what stays

	Args    map[string]integrations.Args // operation → the args of its replay
	Answers map[string]string            // operation → what its response file calls it, where GraphQL has one path for all
	Errors  map[string][]string          // error file → the operations that it is replayed to
}

// A stay is a problem that the proof finds and that stays, with its reason.
type stay struct{ Problem, Reason string }

// A datedPath maps an operation of the OpenAPI document to the path that replaces it.
type datedPath struct {
	Operation string
	Legacy    string // "GET /crm/v3/objects/contacts"
	Dated     string // "GET /crm/objects/2026-09/contacts", or empty
	Scope     string
}

// A fact is an operation that is known from the provider's pages alone.
type fact struct {
	Source string
	Scope  string
	Fields map[string]string // name → JSON type
}

// loadTruth reads what is known of a service: the provider's own files from dir, ours from
// testdata.
func loadTruth(service, dir string) (*truth, error) {
	t := new(truth)
	if err := readJSON(filepath.Join(providersDir, service, "proof.json"), &t.about); err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, "openapi.json"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		sdl, err := os.ReadFile(filepath.Join(dir, "schema.graphql"))
		if err != nil {
			return nil, fmt.Errorf("no openapi.json and no schema.graphql: %w", err)
		}
		if t.schema, err = gqlparser.LoadSchema(&ast.Source{Name: "schema.graphql", Input: string(sdl)}); err != nil {
			return nil, err
		}
		return t, nil
	case err != nil:
		return nil, err
	}
	doc, err := libopenapi.NewDocument(data)
	if err != nil {
		return nil, err
	}
	model, err := doc.BuildV3Model()
	if err != nil {
		return nil, err
	}
	t.openapi = &model.Model
	if len(t.openapi.Servers) > 0 {
		server, err := url.Parse(t.openapi.Servers[0].URL)
		if err != nil {
			return nil, err
		}
		t.base = strings.TrimSuffix(server.Path, "/")
	}
	var dated struct{ Paths []datedPath }
	if err := readJSON(filepath.Join(dir, "dated-paths.json"), &dated); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	t.dated = dated.Paths
	return t, nil
}

func readJSON(file string, v any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return nil
}

// source returns where the truth describes an operation: the method and the path in its
// own document.
func (t *truth) source(op *integrations.Op) (method, path string) {
	method, path = op.Method, op.Path
	if _, ok := t.fact(op); ok {
		return method, path
	}
	for _, d := range t.dated {
		m, p, _ := strings.Cut(d.Dated, " ")
		if m == method && sameTemplate(p, path) {
			method, path, _ = strings.Cut(d.Legacy, " ")
			return method, path
		}
	}
	if rest, ok := strings.CutPrefix(path, t.base); ok {
		path = rest
	}
	return method, path
}

// fact returns what is known of an operation that no schema has.
func (t *truth) fact(op *integrations.Op) (fact, bool) {
	for key, f := range t.Facts {
		m, p, _ := strings.Cut(key, " ")
		if m == op.Method && sameTemplate(p, op.Path) {
			return f, true
		}
	}
	return fact{}, false
}

// operation finds the operation of the OpenAPI document, with the path's own template.
func (t *truth) operation(method, path string) (template string, item *v3.PathItem, op *v3.Operation) {
	for p, it := range t.openapi.Paths.PathItems.FromOldest() {
		if !sameTemplate(p, path) {
			continue
		}
		if o, ok := it.GetOperations().Get(strings.ToLower(method)); ok {
			return p, it, o
		}
	}
	return "", nil, nil
}

var placeholderSegment = regexp.MustCompile(`\{[^{}/]+\}`)

// sameTemplate says whether two paths are the same but for the names in their braces.
func sameTemplate(a, b string) bool {
	return placeholderSegment.ReplaceAllString(a, "{}") == placeholderSegment.ReplaceAllString(b, "{}")
}

// registry loads the manifests that are built into the program.
func registry(t *testing.T) []*integrations.Manifest {
	t.Helper()
	reg, err := integrations.Default()
	if err != nil {
		t.Fatalf("the embedded registry does not load:\n%v", err)
	}
	return reg.All()
}

// A response is what a provider answered, or says that it answers.
type response struct {
	file string

	Operation string
	Method    string
	Path      string // a template
	Status    int
	Headers   map[string]any
	Origin    string
	Body      json.RawMessage
	Request   struct{ Path string }
}

// The origins of a response, from the best to the worst.
const (
	recorded  = "recorded"  // from the provider's live API
	published = "published" // the provider's own fixture, documented example or mock
	generated = "generated" // from the schema, or written here: proves shapes, never behaviour
)

// origin classifies the response's own words about where it comes from.
func (r *response) origin() string {
	switch {
	case strings.HasPrefix(r.Origin, "recorded ("):
		return recorded
	case strings.HasPrefix(r.Origin, "published"), strings.HasPrefix(r.Origin, "documented"), strings.HasPrefix(r.Origin, "recorded from stripe-mock"):
		return published
	}
	return generated
}

// variant tells a second response of the same operation from the first.
func (r *response) variant() string {
	name := strings.TrimSuffix(path.Base(filepath.ToSlash(r.file)), ".json")
	name = strings.TrimSuffix(name, ".synthetic")
	return strings.TrimPrefix(strings.TrimPrefix(name, strings.ReplaceAll(r.Operation, "/", "-")), ".")
}

// loadResponses reads a service's response files, in the order of their names.
func loadResponses(t *testing.T, service string) []*response {
	t.Helper()
	var files []string
	for _, dir := range []string{"responses", "written"} {
		found, err := filepath.Glob(filepath.Join(providersDir, service, dir, "*.json"))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	sort.Strings(files)
	var all []*response
	for _, f := range files {
		r := &response{file: f}
		if err := readJSON(f, r); err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		t.Fatalf("%s: there is no response to replay in %s", service, filepath.Join(providersDir, service))
	}
	return all
}

// special says that the response is an error or a page, and no operation's plain answer.
func (r *response) special() bool { return strings.HasPrefix(filepath.Base(r.file), "_") }

// answers returns the responses that belong to an operation.
func (t *truth) answers(op *integrations.Op, all []*response) []*response {
	method, path := t.source(op)
	var found []*response
	for _, r := range all {
		switch {
		case r.special():
		case op.IsGraphQL():
			name := op.Name
			if n, ok := t.Answers[op.Name]; ok {
				name = n
			}
			if r.Operation == name {
				found = append(found, r)
			}
		case r.Method == method && sameTemplate(r.Path, path):
			if !slices.ContainsFunc(found, func(f *response) bool { return bytes.Equal(f.Body, r.Body) }) {
				found = append(found, r)
			}
		}
	}
	return found
}
