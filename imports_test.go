// Package connect_test holds the rules of the repository as tests.
package connect_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/elevenmessenger/connect"

// layers says which of our folders each may import, beside what is below itself. Imports
// point one way: cmd and functions → broker, sidecar, instance → custody → integrations.
var layers = map[string][]string{
	"integrations": {},
	"custody":      {"integrations"},
	"broker":       {"custody", "integrations"},
	"sidecar":      {"custody", "integrations", "internal"}, // never broker: they speak HTTP
	"instance":     {"custody", "integrations", "internal"},
	"functions":    {"broker", "custody", "integrations"},
	"cmd":          {"broker", "sidecar", "instance", "custody", "integrations", "internal", "web"},
	"internal":     {},
	"web":          {},
}

// outside are the packages outside the standard library that the two lowest layers may
// use in code that is not a test. One more is a decision, with its line of reason in
// docs/dependencies.md.
var outside = map[string][]string{
	"integrations": {
		"code.dny.dev/ssrf",
		"github.com/agnivade/levenshtein",
		"github.com/go-json-experiment/json/jsontext",
		"github.com/vektah/gqlparser/v2/ast",
		"github.com/vektah/gqlparser/v2/parser",
		"golang.org/x/net/publicsuffix",
	},
	"custody": {
		"github.com/go-json-experiment/json",
		"github.com/go-json-experiment/json/jsontext",
	},
}

func TestImportsPointOneWay(t *testing.T) {
	files := 0
	for file, imports := range goFiles(t) {
		top, _, _ := strings.Cut(file, "/")
		allowed, known := layers[top]
		if !known {
			if strings.Contains(file, "/") {
				t.Errorf("%s: the folder %s has no layer; add it to this test and to ARCHITECTURE.md", file, top)
			}
			continue
		}
		files++
		for _, imp := range imports {
			ours, ok := strings.CutPrefix(imp, module+"/")
			if !ok {
				std := !strings.Contains(strings.Split(imp, "/")[0], ".")
				list, limited := outside[top]
				if !std && limited && !strings.HasSuffix(file, "_test.go") && !contains(list, imp) {
					t.Errorf("%s imports %s, which this layer does not use", file, imp)
				}
				continue
			}
			to, _, _ := strings.Cut(ours, "/")
			if to != top && !contains(allowed, to) {
				t.Errorf("%s imports %s: %s may import only %v", file, imp, top, allowed)
			}
		}
	}
	if files == 0 {
		t.Fatal("no Go file was looked at")
	}
}

// TestServicesAreData: a service is a manifest. Code that knows one by name would be a
// quirk that belongs into the language.
func TestServicesAreData(t *testing.T) {
	manifests, err := filepath.Glob("integrations/registry/*.json")
	if err != nil || len(manifests) < 5 {
		t.Fatalf("found %d manifests: %v", len(manifests), err)
	}
	for _, m := range manifests {
		id := strconv.Quote(strings.TrimSuffix(path.Base(filepath.ToSlash(m)), ".json"))
		for file := range goFiles(t) {
			if strings.HasSuffix(file, "_test.go") || strings.HasPrefix(file, "cmd/") || strings.Contains(file, "/internal/") ||
				file == "custody/legacy.go" || file == "sidecar/legacy.go" { // messages from before there were services
				continue
			}
			if strings.Contains(readFile(t, file), id) {
				t.Errorf("%s names the service %s", file, id)
			}
		}
	}
}

// goFiles returns the module's own Go files with what each imports.
func goFiles(t *testing.T) map[string][]string {
	t.Helper()
	files := make(map[string][]string)
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		p = filepath.ToSlash(p)
		if d.IsDir() {
			if name := d.Name(); name == "testdata" || name == "node_modules" || p != "." && strings.HasPrefix(name, ".") || nested(p) {
				return fs.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		imports := []string{}
		for _, spec := range f.Imports {
			imp, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, imp)
		}
		files[p] = imports
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// nested says whether a folder is a module of its own: peers of tests are.
func nested(dir string) bool {
	if dir == "." {
		return false
	}
	m, _ := filepath.Glob(dir + "/go.mod")
	return len(m) > 0
}

func contains(list []string, s string) bool {
	for _, e := range list {
		if e == s {
			return true
		}
	}
	return false
}
