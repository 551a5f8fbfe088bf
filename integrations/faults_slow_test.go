package integrations

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestAttacksAreCheap: a file of 256 KB full of faults is refused in little time, well under a
// second each, where a loop over all faults for each of them took twenty. A busy machine may
// take any time; then what counts is that four times the faults do not take sixteen times as
// long.
func TestAttacksAreCheap(t *testing.T) {
	if testing.Short() {
		t.Skip("the race detector tells nothing of what an attack costs")
	}
	parse := func(text string) (time.Duration, error) {
		start := time.Now()
		_, err := Parse([]byte(text))
		return time.Since(start), err
	}
	quarters := attacks(t, (maxManifestBytes-4096)/4)
	for name, text := range attacks(t, maxManifestBytes-4096) {
		took, err := parse(text)
		if took > 10*time.Second {
			if quarter, _ := parse(quarters[name]); took > 10*quarter {
				t.Errorf("%s (%d bytes): %v, and a quarter of it %v", name, len(text), took, quarter)
			}
		}
		t.Logf("%s: %v", name, took)
		if (err == nil) != (name == "base") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// attacks are manifests of about size bytes, each full of one fault; base has none.
func attacks(t *testing.T, size int) map[string]string {
	many := func(f string) string {
		var b strings.Builder
		for i := 0; b.Len() < size-len(f); i++ {
			fmt.Fprintf(&b, f, i)
		}
		return strings.TrimSuffix(b.String(), ",")
	}
	return map[string]string{
		"unknown keys":    "{" + many(`"k%d":1,`) + "}",
		"one key":         "{" + many(`"k":%d,`) + "}",
		"headers":         `{"headers":{` + many(`"X-%d":"é",`) + "}}",
		"operations":      `{"ops":{` + many(`"o%d":{},`) + "}}",
		"args":            `{"ops":{"a":{"args":{` + many(`"a%d":{},`) + "}}}}",
		"bad args":        `{"ops":{"a":{"args":{` + many(`"A%d":{"min":9,"max":1},`) + "}}}}",
		"fields":          `{"ops":{"a":{"pick":{"fields":[` + many(`"a%d",`) + "]}}}}",
		"pasted prefixes": `{"auth":{"pasted":[` + many(`{"prefix":"%d"},`) + "]}}",
		"scopes":          `{"auth":{"oauth":{"scopes":[` + many(`"s%d",`) + `],"scopes_write":[]}}}`,
		"values":          `{"ops":{"a":{"args":{"a":{"type":"enum","values":[` + many(`"v%d",`) + "]}}}}}",
		"one_of":          `{"ops":{"a":{"one_of":[` + many(`"v%d",`) + "]}}}",
		"effects":         `{"ops":{"a":{"access":"write","effects":[` + many(`"v%d",`) + "]}}}",
		"connect":         `{"connect":{` + many(`"v%d":{"op":"x"},`) + `},"ops":{"a":{}}}`,
		"placeholders":    `{"ops":{"a":{"query":{"q":"` + many(`{a%d} `) + `"}}}}`,
		"a body":          `{"ops":{"a":{"body_json":{` + many(`"_method%d":"{x}",`) + "}}}}",
		"a GraphQL text":  `{"ops":{"a":{"path":"/graphql","method":"POST","body_json":{"query":"query { ` + strings.Repeat("a { ", 50000) + strings.Repeat("} ", 50000) + `}"}}}}`,
		"an account":      `{"viewer":"a","account":{"id":[` + many(`"v%d",`) + `]},"ops":{"a":{"pick":{"fields":["x"]}}}}`,
		"base":            attackBase(t),
	}
}
