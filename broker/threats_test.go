package broker_test

import (
	"maps"
	"slices"
	"testing"
)

// A shelf holds subtests by name, which several files fill.
type shelf map[string]func(*testing.T)

func (s *shelf) add(name string, run func(*testing.T)) bool {
	if *s == nil {
		*s = make(shelf)
	}
	if (*s)[name] != nil {
		panic("two tests are called " + name)
	}
	(*s)[name] = run
	return true
}

func (s shelf) run(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(s)) {
		t.Run(name, s[name])
	}
}

// threats are the rows of docs/threat-model.md that are shown here, by name. Every file of
// tests adds its own with threat, at the top level:
//
//	var _ = threat("S1_confused_deputy", func(t *testing.T) { … })
var threats shelf

func threat(name string, run func(*testing.T)) bool { return threats.add(name, run) }

// TestThreats drives a running broker over HTTP, one subtest a row. The page says what each
// attack is; repository tests hold page and names together.
func TestThreats(t *testing.T) { threats.run(t) }

// cases are faults that users of systems like this one reported, retold; a row stands for its
// whole kind. Every file of tests adds its own:
//
//	var _ = reported("case_073", func(t *testing.T) { … })
var cases shelf

func reported(name string, run func(*testing.T)) bool { return cases.add(name, run) }

// TestCases shows what is right for each.
func TestCases(t *testing.T) { cases.run(t) }
