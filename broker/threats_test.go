package broker_test

import (
	"maps"
	"slices"
	"testing"
)

// threats are the rows of docs/threat-model.md that are shown here, by name. Every file of
// tests adds its own with threat, at the top level:
//
//	var _ = threat("S1_confused_deputy", func(t *testing.T) { … })
var threats map[string]func(*testing.T)

func threat(name string, run func(*testing.T)) bool {
	if threats == nil {
		threats = make(map[string]func(*testing.T))
	}
	if threats[name] != nil {
		panic("two tests are called " + name)
	}
	threats[name] = run
	return true
}

// TestThreats drives a running broker over HTTP, one subtest a row. The page says what each
// attack is; repository tests hold page and names together.
func TestThreats(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(threats)) {
		t.Run(name, threats[name])
	}
}
