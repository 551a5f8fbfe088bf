package custody

import (
	"regexp"
	"sync"
)

// A lazyRegexp is compiled when it is first used. Compiled at start, a package's patterns take
// longer than all else that a Lambda function does before its first event. It is plain data
// until then: a program that uses none of them links no compiler of patterns.
type lazyRegexp struct {
	pattern string
	once    sync.Once
	re      *regexp.Regexp
}

func lazily(pattern string) *lazyRegexp { return &lazyRegexp{pattern: pattern} }

func (l *lazyRegexp) compiled() *regexp.Regexp {
	l.once.Do(func() { l.re = regexp.MustCompile(l.pattern) })
	return l.re
}

func (l *lazyRegexp) MatchString(s string) bool { return l.compiled().MatchString(s) }
