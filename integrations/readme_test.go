package integrations_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// TestReadmeExample loads the commented manifest that the authors' README shows.
func TestReadmeExample(t *testing.T) {
	readme, err := os.ReadFile("registry/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(readme), "```jsonc\n")
	example, _, closed := strings.Cut(rest, "```\n")
	if !ok || !closed {
		t.Fatal("registry/README.md shows no example")
	}
	plain := regexp.MustCompile(`(?m)\s+// .*$`).ReplaceAllString(example, "")
	if plain == example {
		t.Error("the example has no comments")
	}
	m, err := integrations.Parse([]byte(plain))
	if err != nil {
		t.Fatalf("the example does not load:\n%v", err)
	}
	c, err := m.Bind("refund", integrations.Args{"payment": "pay_12"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Sentence().Text, "Refund the payment pay_12 in Acme?"; got != want {
		t.Errorf("got the sentence %q, want %q", got, want)
	}
}

// TestProvidersFiles: each file of the providers is small, and each service has its
// source and licence.
func TestProvidersFiles(t *testing.T) {
	for _, m := range registry(t) {
		dir := filepath.Join(providersDir, m.ID)
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		more, err := filepath.Glob(filepath.Join(dir, "*", "*"))
		if err != nil {
			t.Fatal(err)
		}
		var source, licence bool
		for _, f := range append(files, more...) {
			source = source || filepath.Base(f) == "SOURCE.md"
			licence = licence || strings.HasPrefix(filepath.Base(f), "LICENSE.")
			if info, err := os.Stat(f); err != nil || !info.IsDir() && info.Size() > maxCut {
				t.Errorf("%s is larger than %d bytes (%v)", f, maxCut, err)
			}
		}
		if !source || !licence {
			t.Errorf("%s has SOURCE.md: %v, a licence: %v; it needs both", dir, source, licence)
		}
	}
}
