package fsm

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestMatch_IsAsTheExpression: a pattern matches the same names as the equivalent regular expression.
func TestMatch_IsAsTheExpression(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab*]{0,7}`).Draw(t, "pattern")
		name := rapid.StringMatching(`[ab]{0,9}`).Draw(t, "name")
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		want := regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(name)
		if got := Match(pattern, name); got != want {
			t.Fatalf("%q fits %q: %t, wanted %t", pattern, name, got, want)
		}
	})
}
