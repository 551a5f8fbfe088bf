package broker

import (
	"regexp"
	"strings"
	"testing"
)

// FuzzWord holds the forms that are code against the patterns that say them.
func FuzzWord(f *testing.F) {
	label := strings.Repeat("a", 63)
	for _, s := range []string{"", ".", "a", "a.b", "a.b.", ".a.b", "a..b", "-a.b", "a-.b", "a-b.c", "A.b", "a.b\n", "ä.b", "a_b.c", "127.0.0.1", label + ".b", label + "a.b", "a." + label, "a." + label + "a",
		strings.Repeat("_-aZ09", 5), strings.Repeat("x", 22), strings.Repeat("x", 43), strings.Repeat("x", 43) + "\n", strings.Repeat("x", 65)} {
		f.Add(s)
	}
	host := regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	words := map[word]*regexp.Regexp{
		kidPattern: regexp.MustCompile(`^[A-Za-z0-9_-]{1,32}$`), handlePattern: regexp.MustCompile(`^[A-Za-z0-9_-]{22}$`),
		loopbackSegment: regexp.MustCompile(`^[A-Za-z0-9_-]{16,64}$`), keyID: regexp.MustCompile(`^[A-Za-z0-9_-]{43}$`),
	}
	f.Fuzz(func(t *testing.T, s string) {
		if isHost(s) != host.MatchString(s) {
			t.Errorf("%q is a host: %t", s, isHost(s))
		}
		for w, p := range words {
			if w.MatchString(s) != p.MatchString(s) {
				t.Errorf("%q is of %d to %d: %t", s, w.least, w.most, w.MatchString(s))
			}
		}
	})
}
