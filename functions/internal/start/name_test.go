package start

import (
	"regexp"
	"testing"
)

// FuzzGatewayName holds the form that is code against the pattern that says it.
func FuzzGatewayName(f *testing.F) {
	for _, s := range []string{"", "a1.execute-api.eu-central-1.amazonaws.com", "a1.execute-api.cn-north-1.amazonaws.com.cn", "a1.lambda-url.eu-central-1.on.aws", "a1.lambda-url.eu-central-1.amazonaws.com",
		"a1.execute-api.eu-central-1.on.aws", "a1.execute-api.x.amazonaws.com.evil.example", "A.lambda-url.x.on.aws", "a.b.lambda-url.x.on.aws", "a.lambda-url..on.aws", ".lambda-url.x.on.aws", "a.lambda-url.x.on.aws\n"} {
		f.Add(s)
	}
	pattern := regexp.MustCompile(`^[a-z0-9]+\.(execute-api\.[a-z0-9-]+\.amazonaws\.com(\.cn)?|lambda-url\.[a-z0-9-]+\.on\.aws)$`)
	f.Fuzz(func(t *testing.T, s string) {
		if isGatewayName(s) != pattern.MatchString(s) {
			t.Errorf("%q: %t", s, isGatewayName(s))
		}
	})
}
