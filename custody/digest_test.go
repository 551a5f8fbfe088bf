package custody

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

func matches(pattern, s string) bool {
	return regexp.MustCompile(`^(?:` + pattern + `)$`).MatchString(s)
}

// TestOpDigestEveryLeaf changes every leaf of every manifest, and drops every field, one at
// a time, and compares the digest of every operation before and after. Which may differ is
// said by the path alone, in a few lines of this test's own.
func TestOpDigestEveryLeaf(t *testing.T) {
	ops, changes := 0, 0
	for _, m := range shipped(t) {
		if testing.Short() && m.ID != "practice" && m.ID != "dnsimple" {
			continue
		}
		var file map[string]any
		if err := json.Unmarshal(m.Raw(), &file); err != nil {
			t.Fatal(err)
		}
		before := make(map[string]Digest)
		for _, op := range m.Ops {
			before[op.Name] = must(OpDigest(m, op.Name))
			ops++
		}
		walk(file, nil, func(path []string, set func(any), value any) {
			for name, changed := range changesOf(value) {
				set(changed)
				data := must(json.Marshal(file))
				for i, op := range m.Ops {
					// What stands in another operation is tried with the first one alone.
					if path[0] == "ops" && path[1] != op.Name && i > 0 && (op.Preview == nil || op.Preview.Op != path[1]) {
						continue
					}
					changes++
					// Whether the changed file still loads is not the question: its text is.
					after, err := opDigest(data, m.ID, op.Name)
					differs := err != nil || after != before[op.Name]
					if want := counts(path, op); differs != want {
						t.Errorf("%s %s: %s at /%s: differs %v, want %v (%v)", m.ID, op.Name, name, strings.Join(path, "/"), differs, want, err)
					}
				}
				set(value)
			}
		})
	}
	t.Logf("%d operations, %d comparisons", ops, changes)
	if ops < 20 {
		t.Errorf("only %d operations", ops)
	}
}

type dropped struct{}

// changesOf are other values for a leaf.
func changesOf(v any) map[string]any {
	out := map[string]any{"dropped": dropped{}}
	switch v := v.(type) {
	case string:
		out["changed"] = v + "x"
	case float64:
		out["changed"] = v + 1
	case bool:
		out["changed"] = !v
	case nil:
		out["changed"] = true
	}
	return out
}

// walk visits every leaf, and every field and item whole. set changes it in place.
func walk(v any, path []string, visit func(path []string, set func(any), value any)) {
	each := func(key string, value any, set func(any)) {
		p := append(slices.Clone(path), key)
		switch value.(type) {
		case map[string]any, []any:
			walk(value, p, visit)
		default:
			visit(p, set, value)
		}
	}
	switch v := v.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			each(k, v[k], func(n any) {
				if _, drop := n.(dropped); drop {
					delete(v, k)
				} else {
					v[k] = n
				}
			})
		}
	case []any:
		for i := range v {
			each(fmt.Sprint(i), v[i], func(n any) {
				if _, drop := n.(dropped); drop {
					n = "dropped"
				}
				v[i] = n
			})
		}
	}
}

// counts says whether the leaf at path is part of what op's digest covers.
func counts(path []string, op *integrations.Op) bool {
	switch path[0] {
	case "manifest", "id", "name", "host", "headers", "error", "limits":
		return true
	case "auth":
		return path[1] == "authorization"
	case "ops":
	default:
		return false
	}
	if path[1] != op.Name && (op.Preview == nil || op.Preview.Op != path[1]) {
		return false
	}
	in := path[2:]
	switch in[0] {
	case "title", "about", "destructive", "idempotent", "labels", "deprecated", "status":
		return false
	case "args":
		// /args/<name>/about, /args/<name>/of/about, /args/<name>/of/object/<name>/about
		rest := in[2:]
		for len(rest) > 1 && rest[0] == "of" {
			if rest = rest[1:]; rest[0] == "object" {
				rest = rest[2:]
			}
		}
		return !(len(rest) == 1 && rest[0] == "about")
	case "pick":
		return !(len(in) == 4 && in[1] == "fields" && in[3] == "about")
	}
	return true
}

// TestOpDigestOrder: the order of keys, white space and escapes change nothing.
func TestOpDigestOrder(t *testing.T) {
	for _, m := range shipped(t) {
		var file any
		if err := json.Unmarshal(m.Raw(), &file); err != nil {
			t.Fatal(err)
		}
		sorted := must(json.Marshal(file)) // keys in order, < and > escaped
		for _, op := range m.Ops {
			if a, b := must(OpDigest(m, op.Name)), must(opDigest(sorted, m.ID, op.Name)); a != b {
				t.Errorf("%s %s: %s became %s", m.ID, op.Name, a, b)
			}
			if got, want := must(OpDigest(m, op.Name)), digest("op", []byte(opText(t, m, op.Name))); got != want {
				t.Errorf("%s %s: a second program makes %s, not %s", m.ID, op.Name, want, got)
			}
		}
	}
}

// TestDigestsAreApart: one digest's input is never another's.
func TestDigestsAreApart(t *testing.T) {
	seen := make(map[Digest]string)
	for _, label := range []string{"op", "args", "say", "preview"} {
		d := digest(label, []byte(`{}`))
		if seen[d] != "" {
			t.Errorf("%s and %s are one", label, seen[d])
		}
		seen[d] = label
	}
}

func TestDigestText(t *testing.T) {
	d := digest("say", nil)
	var got Digest
	if err := got.UnmarshalText([]byte(d.String())); err != nil || got != d {
		t.Errorf("%s became %s: %v", d, got, err)
	}
	for _, bad := range []string{"", "AAAA", d.String() + "A", d.String()[:42] + "_", d.String() + "\n", d.String() + "="} {
		if err := got.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is a digest", bad)
		}
	}
}
