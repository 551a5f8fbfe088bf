package connect_test

import (
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// threatRows are those that docs/threat-model.md must have a test for. G3 is the
// client's, which has no row yet.
var threatRows = []string{
	"S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8", "S9", "S10", "S11", "S12", "S13", "S14", "S15", "S16",
	"C1", "C2", "C3", "C4", "C5", "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16",
	"T1", "T2", "T3", "T4", "T5", "T6", "T7", "T8", "T9", "T10", "T11", "T12", "T13",
	"R1", "R2", "R3", "R4", "R5", "R6", "R7", "R8", "R9", "R10",
	"X1", "X2", "X3", "X4", "X5", "X6", "X7", "X8", "X11", "X12", "X13", "X14", "X15",
	"G1", "G2", "G4", "G5", "G6", "G7", "G8", "G9", "G10",
}

var (
	threatRow  = regexp.MustCompile(`(?m)^\| ([A-Z][0-9]+) \|.*\|$`)
	goTest     = regexp.MustCompile("`([a-z/]+) (Test[A-Za-z]+)/([A-Za-z0-9_]+)`")
	jsTest     = regexp.MustCompile("`(web/[a-z/.]+\\.mjs): ([^`]+)`")
	threatName = regexp.MustCompile(`(?:threat|t\.Run)\("([A-Z][0-9]+_[a-z0-9_]+)"`)
)

// TestThreatModel holds docs/threat-model.md and the tests together: whatever the page names
// exists, whatever exists is named, and no row is without.
func TestThreatModel(t *testing.T) {
	page := readFile(t, "docs/threat-model.md")
	folders := make(map[string]string) // folder → the text of its tests
	for file := range goFiles(t) {
		if strings.HasSuffix(file, "_test.go") {
			folders[path.Dir(file)] += readFile(t, file)
		}
	}
	var rows, named []string
	for _, m := range threatRow.FindAllStringSubmatch(page, -1) {
		line, id := m[0], m[1]
		if slices.Contains(rows, id) {
			t.Errorf("docs/threat-model.md has %s twice", id)
		}
		rows = append(rows, id)
		tests := goTest.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("docs/threat-model.md names no test for %s", id)
		}
		for _, g := range tests {
			dir, top, name := g[1], g[2], g[3]
			if !strings.Contains(folders[dir], "func "+top+"(t *testing.T)") || !strings.Contains(folders[dir], `"`+name+`"`) {
				t.Errorf("docs/threat-model.md, %s: there is no %s/%s in %s", id, top, name, dir)
			}
			named = append(named, dir+" "+name)
		}
		for _, j := range jsTest.FindAllStringSubmatch(line, -1) {
			data, err := os.ReadFile(j[1])
			if err != nil || !strings.Contains(string(data), "test('"+j[2]+"'") && !strings.Contains(string(data), `test("`+j[2]+`"`) {
				t.Errorf("docs/threat-model.md, %s: there is no test %q in %s", id, j[2], j[1])
			}
		}
	}
	for _, id := range threatRows {
		if !slices.Contains(rows, id) {
			t.Errorf("docs/threat-model.md has no row %s", id)
		}
	}
	for dir, text := range folders {
		if dir == "." {
			continue
		}
		for _, m := range threatName.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(named, dir+" "+m[1]) {
				t.Errorf("docs/threat-model.md does not name %s of %s", m[1], dir)
			}
		}
	}
}
