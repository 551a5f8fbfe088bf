package custody

import (
	"regexp"
	"strings"
	"testing"

	"github.com/elevenmessenger/connect/integrations"
)

// FuzzForms holds the forms that are code against the patterns that say them.
func FuzzForms(f *testing.F) {
	for _, s := range []string{"", "a", "a.0", "a.00", "a.01", "a.9999999999999999", "a.99999999999999999", "a.b.1", ".1", "a.", "github.read", "github.write", "github.", "github.read.x", "-a.read", "a\n",
		"rt1.k.x", "rt1.k.", "rt1..x", "rt1.k.x.y", "rt2.k.x", "rt1.k.x\n", "rt1." + strings.Repeat("k", 33) + ".x", strings.Repeat("x", 22), strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("a", 21)} {
		f.Add(s)
	}
	type form interface{ MatchString(string) bool }
	wrap := regexp.MustCompile(`^rt1\.[A-Za-z0-9_-]{1,32}\.[A-Za-z0-9_-]+$`)
	f.Fuzz(func(t *testing.T, s string) {
		for pattern, form := range map[string]form{
			`^[A-Za-z0-9_.-]{1,64}\.(0|[1-9][0-9]{0,15})$`: opForms[PurposeCredential],
			`^([A-Za-z0-9_.-]{1,64})?$`:                    opForms[PurposeSnapshot],
			`^([A-Za-z0-9_-]{22})?$`:                       opForms[PurposeGrant],
			`^[a-z][a-z0-9-]{0,19}\.(read|write)$`:         opForms[PurposeTab],
			`^[a-z][a-z0-9-]{0,19}$`:                       serviceID,
		} {
			if form.MatchString(s) != regexp.MustCompile(pattern).MatchString(s) {
				t.Errorf("%q: %s", s, pattern)
			}
		}
		if len(s) <= MaxWrap && validWrap(integrations.NewSecret(s)) != wrap.MatchString(s) {
			t.Errorf("%q is a wrap", s)
		}
	})
}
