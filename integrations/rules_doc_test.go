package integrations

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestRulesPage: docs/rules.md is made from the rules. -update writes it.
func TestRulesPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# The rules for manifests

<!-- Made from integrations.Rules: go test ./integrations -run TestRulesPage -update -->

The loader accepts a manifest or tells everything that is wrong with it, each fault with its
place, the id of a rule and what would be right:

    $ connect manifest check github.json
    github.json:41:9: /ops/list_issues: "pick" is missing [pick.missing]
      hint: add pick with fields, or {"nothing": "why"}

A rule's id is stable: it never comes to mean something else. ` + "`connect manifest rules ID`" + ` prints one.
Whatever is not known is refused, so that a manifest cannot say less than its reader thinks.

Each rule has an example: what is refused after a minus, what is accepted in its place after a plus.
Nearly all of them are pieces of integrations/testdata/hostile/base.json, and a test tries each.
`)
	area := ""
	for _, r := range rules {
		if a, _, _ := strings.Cut(r.ID, "."); a != area {
			area = a
			if title := ruleAreas[a]; title != "" {
				fmt.Fprintf(&b, "\n## %s\n", title)
			}
		}
		text := strings.NewReplacer("\\", "\\\\", "<", "\\<", "*", "\\*") // <any> would be taken for HTML
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\nRight: %s.\n", r.ID, text.Replace(r.Why), text.Replace(strings.TrimSuffix(r.Mend, ".")))
		fmt.Fprintf(&b, "\n```diff\n- %s\n+ %s\n```\n", strings.ReplaceAll(r.Bad, "\n", "\n- "), strings.ReplaceAll(r.Good, "\n", "\n+ "))
	}
	current(t, "../docs/rules.md", []byte(b.String()))
}

// ruleAreas are the headings, at the first rule of an area.
var ruleAreas = map[string]string{
	"json": "The file", "text": "What people read", "manifest": "The service", "header": "Headers, errors, limits", "auth": "Connecting",
	"oauth": "OAuth", "viewer": "Who, whether, what", "ops": "Operations", "template": "Placeholders", "arg": "Args",
	"pick": "What flows back", "confirm": "Consent", "graphql": "GraphQL", "load": "The folder",
}

func TestRulesAreWritten(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+(\.[a-z0-9_]+)?$`)
	seen := make(map[string]bool)
	for _, r := range Rules() {
		if !form.MatchString(r.ID) || seen[r.ID] {
			t.Errorf("the id %q has not the form area.name, or stands twice", r.ID)
		}
		seen[r.ID] = true
		if !strings.HasSuffix(r.Why, ".") || r.Mend == "" || r.Bad == "" || r.Good == "" {
			t.Errorf("%s: a rule has a sentence, a mend and two examples", r.ID)
		}
	}
}

// TestRuleExamples: the good example of a rule stands in the base of the hostile manifests,
// which loads; with the bad one in its place, the manifest is refused by that rule.
func TestRuleExamples(t *testing.T) {
	// What no piece of a manifest shows.
	whole := []string{
		"json.size", "json.bom", "json.utf8", "json.object", "json.trailing", "json.depth", "ops.none",
		"arg.maybe_unsent", "pick.missing", "confirm.long", "load.name", "load.collide", "load.empty",
	}
	base := readFile(t, baseFile)
	for _, r := range Rules() {
		if slices.Contains(whole, r.ID) {
			continue
		}
		if !strings.Contains(base, r.Good) {
			t.Errorf("%s: the base does not hold %s", r.ID, r.Good)
			continue
		}
		_, err := Parse([]byte(strings.Replace(base, r.Good, r.Bad, 1)))
		var faults Faults
		if errors.As(err, &faults); !slices.ContainsFunc(faults, func(f Fault) bool { return f.Rule == r.ID }) {
			t.Errorf("%s: for %s it is not refused, but: %v", r.ID, r.Bad, err)
		}
	}
}
