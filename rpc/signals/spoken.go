package signals

import (
	"regexp"
	"strings"
	"time"
)

// spokenPart matches one number with its unit. Longer words come first, because the first match counts.
var spokenPart = regexp.MustCompile(`(?i)^\s*(?:,\s*)?(?:and\s+)?([0-9]+(?:\.[0-9]+)?)\s*` +
	`(milliseconds?|ms|seconds?|secs?|s|minutes?|mins?|m|hours?|hrs?|h|days?|d)`)

// spoken reads a length of time at the beginning of text, as Go and people write it: 41.724s, 6m0s, 2 minutes, 587 hours 33 minutes, 1
// day and 2 h. Parts are summed as long as their units grow smaller; the rest is ignored. More than 366 days are cut to that.
func spoken(text string) (sum time.Duration, ok bool) {
	above := maxSpan
	for {
		at := spokenPart.FindStringSubmatchIndex(text)
		if at == nil {
			return min(sum, maxSpan), ok
		}
		unit := spokenUnit(text[at[4]:at[5]])
		rest := text[at[1]:]
		// A letter after the unit makes it another word: 5months.
		if unit >= above || (rest != "" && isLetter(rest[0])) {
			return min(sum, maxSpan), ok
		}
		d, readable := decimal(text[at[2]:at[3]], unit)
		if !readable {
			return min(sum, maxSpan), ok
		}
		sum, ok, above, text = sum+min(d, maxSpan), true, unit, rest
	}
}

// spokenUnit returns the length of a unit that spokenPart matched.
func spokenUnit(word string) time.Duration {
	word = strings.ToLower(word)
	switch {
	case strings.HasPrefix(word, "mil"), word == "ms":
		return time.Millisecond
	case word[0] == 's':
		return time.Second
	case word[0] == 'm':
		return time.Minute
	case word[0] == 'h':
		return time.Hour
	}
	return 24 * time.Hour
}

func isLetter(c byte) bool { return c|0x20 >= 'a' && c|0x20 <= 'z' }
