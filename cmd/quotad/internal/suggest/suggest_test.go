package suggest

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestNearest(t *testing.T) {
	keys := []string{"limit", "every", "anchor", "skew", "default_estimate"}
	for word, want := range map[string]string{
		"limt": "limit", "ilmit": "limit", "limits": "limit", "evry": "every", "default_estimat": "default_estimate",
		"skwe": "skew", "zzzzz": "", "": "", strings.Repeat("limit", 100): "",
	} {
		if got, _ := Nearest(word, keys); got != want {
			t.Errorf("Nearest(%q) = %q, want %q", word, got, want)
		}
	}
	if got := Hint("limt", keys); got != `did you mean "limit"?` {
		t.Errorf("Hint: %s", got)
	}
	if got := Hint("zzzzz", keys); got != "" {
		t.Errorf("Hint of something far away: %s", got)
	}
}

func TestDistance_OfOneEditIsOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[a-z]{1,20}`).Draw(t, "word")
		at := rapid.IntRange(0, len(word)-1).Draw(t, "at")
		if d := distance(word, word); d != 0 {
			t.Fatalf("a word is %d away from itself", d)
		}
		if d := distance(word, word[:at]+word[at+1:]); d != 1 {
			t.Fatalf("one letter less is %d away", d)
		}
		other := rapid.StringMatching(`[a-z]{0,20}`).Draw(t, "other")
		if distance(word, other) != distance(other, word) {
			t.Fatal("the way back is not as long")
		}
	})
}
