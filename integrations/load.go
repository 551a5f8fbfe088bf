package integrations

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sort"
	"strings"
)

// A Registry is a set of services that was loaded whole.
type Registry struct {
	all []*Manifest
}

//go:embed registry/*.json
var embedded embed.FS

// Schema returns the JSON Schema of a manifest, for editors.
func Schema() []byte {
	b, err := embedded.ReadFile("registry/schema.json")
	if err != nil {
		panic("integrations: the schema is not built in")
	}
	return b
}

// Default loads the registry that is built into the program. A program whose registry
// does not load should not start.
func Default() (*Registry, error) {
	sub, err := fs.Sub(embedded, "registry")
	if err != nil {
		return nil, err
	}
	return Load(sub)
}

// Load reads every *.json file at the top of a folder, but schema.json, as a manifest.
// Either all of them load or none: the error is then [Faults], each with its file.
func Load(fsys fs.FS) (*Registry, error) {
	names, err := fs.Glob(fsys, "*.json")
	if err != nil {
		return nil, err
	}
	sort.Strings(names)
	var reg Registry
	var faults Faults
	whole := func(file, rule, msg string) {
		ru, _ := ruleByID(rule)
		faults = append(faults, Fault{File: file, Line: 1, Column: 1, Rule: rule, Message: msg, Mend: ru.Mend})
	}
	tools := make(map[string]string) // name → file
	for _, name := range names {
		if name == "schema.json" {
			continue
		}
		data, err := readBounded(fsys, name)
		if err != nil {
			return nil, fmt.Errorf("registry: %w", err)
		}
		m, err := Parse(data)
		var found Faults
		if errors.As(err, &found) {
			for _, f := range found {
				f.File = name
				faults = append(faults, f)
			}
			continue
		}
		if want := strings.TrimSuffix(path.Base(name), ".json"); m.ID != want {
			whole(name, "load.name", fmt.Sprintf("the file is named %q and the service %q", clip(want), m.ID))
		}
		for _, tool := range m.toolNames() {
			if other, taken := tools[tool]; taken {
				whole(name, "load.collide", fmt.Sprintf("the name %s is also one of %s", tool, clip(other)))
				break
			}
			tools[tool] = name
		}
		reg.all = append(reg.all, m)
	}
	if len(reg.all) == 0 && len(faults) == 0 {
		whole("", "load.empty", "there is no manifest in this folder")
	}
	if len(faults) > 0 {
		return nil, faults.sorted()
	}
	sort.Slice(reg.all, func(i, j int) bool { return reg.all[i].ID < reg.all[j].ID })
	return &reg, nil
}

// toolNames returns the names that no other service may have: the service's in the
// environment, and its operations' as tools.
func (m *Manifest) toolNames() []string {
	id := strings.ReplaceAll(m.ID, "-", "_")
	names := []string{strings.ToUpper(id)}
	for _, o := range m.Ops {
		names = append(names, id+"_"+o.Name)
	}
	return names
}

// readBounded reads a file, but no more of it than shows that it is too large.
func readBounded(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxManifestBytes+1))
}

// Get returns the service called id, or nil.
func (r *Registry) Get(id string) *Manifest {
	for _, m := range r.all {
		if m.ID == id {
			return m
		}
	}
	return nil
}

// All returns the services, by id.
func (r *Registry) All() []*Manifest { return append([]*Manifest(nil), r.all...) }
