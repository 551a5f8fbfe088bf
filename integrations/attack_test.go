package integrations

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// An attack is base.json with something wrong. In testdata/hostile/rows-*.txt it reads
//
//	=== name | rule.id
//	<<< text that stands in base.json once
//	>>> what stands there instead, with ◊ just before the place of the fault
//
// A text may also begin on the line after <<< or >>> and go on for several. There may be
// several pairs; a row without <<< takes that of the row before. "=== name | rule.id |
// whole" has one >>> with the whole file. ⟦hex⟧ stands for bytes and ⟦text*n⟧ for a
// repetition, so that nothing in these files is unseen. Unlike the rows of rows.txt, an
// attack may break more rules than the one that it names.
type attack struct {
	at, name, rule string
	whole          bool
	pairs          [][2]string
}

const attackMark = "◊"

var attackEscape = regexp.MustCompile(`⟦([^⟧]*)⟧`)

func attackText(t testing.TB, s string) string {
	return attackEscape.ReplaceAllStringFunc(s, func(m string) string {
		m = strings.TrimSuffix(strings.TrimPrefix(m, "⟦"), "⟧")
		if i := strings.LastIndexByte(m, '*'); i > 0 {
			n, err := strconv.Atoi(m[i+1:])
			if err != nil {
				t.Fatalf("⟦%s⟧: %v", m, err)
			}
			return strings.Repeat(m[:i], n)
		}
		b, err := hex.DecodeString(strings.ReplaceAll(m, " ", ""))
		if err != nil {
			t.Fatalf("⟦%s⟧: %v", m, err)
		}
		return string(b)
	})
}

func attackBase(t testing.TB) string {
	data, err := os.ReadFile("testdata/hostile/base.json")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func attacks(t testing.TB) []attack {
	files, err := filepath.Glob("testdata/hostile/rows-*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no rows: %v", err)
	}
	var rows []attack
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, parseAttacks(t, filepath.Base(file), string(data))...)
	}
	return rows
}

func parseAttacks(t testing.TB, file, data string) []attack {
	var rows []attack
	var into *string
	for i, line := range strings.Split(data, "\n") {
		at := fmt.Sprintf("%s:%d", file, i+1)
		switch {
		case strings.HasPrefix(line, "=== "):
			f := strings.Split(line[4:], " | ")
			if len(f) < 2 {
				t.Fatalf("%s: no rule", at)
			}
			rows = append(rows, attack{at: at, name: f[0], rule: f[1], whole: len(f) == 3 && f[2] == "whole"})
			into = nil
		case len(rows) == 0: // what the file is about
		case strings.HasPrefix(line, "<<<"):
			r := &rows[len(rows)-1]
			r.pairs = append(r.pairs, [2]string{strings.TrimPrefix(line[3:], " "), ""})
			into = &r.pairs[len(r.pairs)-1][0]
		case strings.HasPrefix(line, ">>>"):
			r := &rows[len(rows)-1]
			if len(r.pairs) == 0 {
				r.pairs = append(r.pairs, [2]string{})
			}
			into = &r.pairs[len(r.pairs)-1][1]
			*into = strings.TrimPrefix(line[3:], " ")
		case into != nil:
			*into += "\n" + line
		case line != "":
			t.Fatalf("%s: this line belongs to nothing", at)
		}
	}
	old := ""
	for _, r := range rows {
		for i, p := range r.pairs {
			p[0], p[1] = attackText(t, strings.Trim(p[0], "\n")), attackText(t, strings.Trim(p[1], "\n"))
			if p[0] == "" {
				p[0] = old
			}
			old, r.pairs[i] = p[0], p
		}
	}
	return rows
}

// manifest returns the attack's manifest and the place of the fault in it.
func (r attack) manifest(t testing.TB, base string) (data []byte, line, column int) {
	text := base
	for _, p := range r.pairs {
		if r.whole {
			text = p[1]
			continue
		}
		if n := strings.Count(text, p[0]); p[0] == "" || n != 1 {
			t.Fatalf("%s: %q stands %d times in the text", r.at, p[0], n)
		}
		text = strings.Replace(text, p[0], p[1], 1)
	}
	if strings.Count(text, attackMark) != 1 {
		t.Fatalf("%s: there is not one mark", r.at)
	}
	before, after, _ := strings.Cut(text, attackMark)
	return []byte(before + after), 1 + strings.Count(before, "\n"), len(before) - strings.LastIndexByte(before, '\n')
}

func TestAttacks(t *testing.T) {
	base := attackBase(t)
	if m, err := Parse([]byte(base)); err != nil || len(m.Ops) < 12 {
		t.Fatalf("the base of every row must load, and use the language: %v", err)
	}
	rows := attacks(t)
	covered, names := make(map[string]int), make(map[string]bool)
	for _, r := range rows {
		covered[r.rule]++
		if names[r.name] {
			t.Errorf("%s: two rows are called %q", r.at, r.name)
		}
		names[r.name] = true
		t.Run(r.name, func(t *testing.T) {
			data, line, column := r.manifest(t, base)
			m, err := Parse(data)
			var faults Faults
			if !errors.As(err, &faults) || !errors.Is(err, ErrManifest) {
				t.Fatalf("%s: accepted (error %v)", r.at, err)
			}
			if m != nil {
				t.Errorf("%s: a refused manifest came back all the same", r.at)
			}
			checkFaultsOf(t, faults, data)
			if !slices.ContainsFunc(faults, func(f Fault) bool { return f.Rule == r.rule && f.Line == line && f.Column == column }) {
				t.Errorf("%s: no %s at %d:%d in\n%v", r.at, r.rule, line, column, err)
			}
		})
	}
	loads := []string{"load.name", "load.collide", "load.empty"} // TestLoadFolder breaks these
	for _, ru := range Rules() {
		if covered[ru.ID] == 0 && !slices.Contains(loads, ru.ID) {
			t.Errorf("no row breaks the rule %s", ru.ID)
		}
	}
	for id := range covered {
		if _, ok := ruleByID(id); !ok {
			t.Errorf("rows name the rule %s, which there is not", id)
		}
	}
	t.Logf("%d rows break %d of %d rules", len(rows), len(covered), len(Rules()))
	if len(rows) < 160 {
		t.Errorf("%d rows; 160 at least are wanted", len(rows))
	}
}

// checkFaultsOf holds what is true of any faults of a manifest.
func checkFaultsOf(t testing.TB, faults Faults, data []byte) {
	t.Helper()
	if len(faults) == 0 {
		t.Error("refused without a fault")
	}
	lines := bytes.Split(data, []byte("\n"))
	for i, f := range faults {
		if _, ok := ruleByID(f.Rule); !ok {
			t.Errorf("a fault has the rule %q, which there is not", f.Rule)
		}
		if f.Line < 1 || f.Column < 1 || f.Line > len(lines) || f.Column > len(lines[f.Line-1])+1 {
			t.Errorf("a fault stands at %d:%d, outside the text", f.Line, f.Column)
		}
		if f.Message == "" || f.Mend == "" {
			t.Errorf("a fault of %s says not what is wrong or not what would be right", f.Rule)
		}
		if strings.ContainsAny(f.String(), "\r\n\x1b\u202e\u200b") {
			t.Errorf("a fault is more than one plain line: %q", f.String())
		}
		if i > 0 && (f.Line < faults[i-1].Line || f.Line == faults[i-1].Line && f.Column < faults[i-1].Column) {
			t.Errorf("faults are not in the order of the text: %v", faults)
		}
	}
}
