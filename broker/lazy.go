package broker

import (
	"regexp"
	"sync"
)

// A lazyRegexp is compiled when it is first used. Compiled at start, a package's patterns
// take longer than all else that a Lambda function does before its first event.
type lazyRegexp func() *regexp.Regexp

func lazily(pattern string) lazyRegexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(pattern) })
}

func (l lazyRegexp) MatchString(s string) bool { return l().MatchString(s) }
