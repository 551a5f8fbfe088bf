package connect_test

import (
	"encoding/json"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

func readFile(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestDependenciesHaveReasons: every direct dependency has its line in
// docs/dependencies.md, and the page names none that is gone.
func TestDependenciesHaveReasons(t *testing.T) {
	mod, err := modfile.Parse("go.mod", []byte(readFile(t, "go.mod")), nil)
	if err != nil {
		t.Fatal(err)
	}
	page := readFile(t, "docs/dependencies.md")
	direct := make(map[string]bool)
	for _, r := range mod.Require {
		if r.Indirect {
			continue
		}
		direct[r.Mod.Path] = true
		if !strings.Contains(page, "`"+r.Mod.Path+"`") {
			t.Errorf("docs/dependencies.md has no line for %s", r.Mod.Path)
		}
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)`").FindAllStringSubmatch(page, -1) {
		if !direct[m[1]] && !strings.Contains(readFile(t, "go.mod"), m[1]) && !peer(m[1]) {
			t.Errorf("docs/dependencies.md names %s, which go.mod does not", m[1])
		}
	}
}

// peer says whether a module is one of the test peers, which have a module of their own.
func peer(path string) bool {
	data, err := os.ReadFile("internal/peers/go.mod")
	return err == nil && strings.Contains(string(data), path)
}

// TestChangelogHasUnreleased: Keep a Changelog's form.
func TestChangelogHasUnreleased(t *testing.T) {
	if !strings.Contains(readFile(t, "CHANGELOG.md"), "\n## [Unreleased]\n") {
		t.Error("CHANGELOG.md has no [Unreleased] section")
	}
}

// TestNodeDependenciesHaveReasons: the same for package.json, whose versions are pinned.
func TestNodeDependenciesHaveReasons(t *testing.T) {
	var pkg struct {
		Dependencies    map[string]string `json:"dependencies"`
		DevDependencies map[string]string `json:"devDependencies"`
	}
	if err := json.Unmarshal([]byte(readFile(t, "package.json")), &pkg); err != nil {
		t.Fatal(err)
	}
	page := readFile(t, "docs/dependencies.md")
	maps.Copy(pkg.DevDependencies, pkg.Dependencies)
	for name, version := range pkg.DevDependencies {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("docs/dependencies.md has no line for %s", name)
		}
		if !regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+$`).MatchString(version) {
			t.Errorf("package.json: %s is not pinned: %s", name, version)
		}
	}
}
