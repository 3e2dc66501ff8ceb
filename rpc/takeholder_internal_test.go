package rpc

import (
	"testing"
)

// TestHolderOf_IsCoveredByTheToken: a take without a holder acts for a name that its token covers.
func TestHolderOf_IsCoveredByTheToken(t *testing.T) {
	for _, c := range []struct{ id, pattern, want string }{
		{"", "", "take@192.0.2.7"},
		{"ci", "*", "ci"},
		{"ci", "ci", "ci"},
		{"ci", "ci*", "ci"},
		{"team-red", "red-*", "red-team-red"},
		{"team-red", "*@node-7", "team-red@node-7"},
		{"ci", "picard", "picard"},
	} {
		who := &caller{id: c.id, pattern: c.pattern}
		got := holderOf(&request{who: who}, "192.0.2.7:4711")
		if got != c.want || !who.covers(got) && c.id != "" {
			t.Errorf("the token %q of %q acts for %q, want %q", c.id, c.pattern, got, c.want)
		}
	}
}
