// Package suggest finds the known word that is nearest to a mistyped one. Configuration keys, environment variables, flags
// and choices use it, so that every "unknown" error names a way out.
package suggest

// Nearest returns the candidate with the fewest edits (insert, delete, replace, swap of neighbours) from word, and whether
// it is near enough to suggest. That is at most one edit more than a third of word's length. Of equally near candidates the
// first wins.
func Nearest(word string, candidates []string) (string, bool) {
	if len(word) > longest {
		return "", false
	}
	best, fewest := "", len(word)/3+1
	for _, candidate := range candidates {
		if edits := distance(word, candidate); edits <= fewest && (best == "" || edits < fewest) {
			best, fewest = candidate, edits
		}
	}
	return best, best != ""
}

// Hint is Nearest as the end of a sentence: `did you mean "limit"?`; it is empty if no candidate is near.
func Hint(word string, candidates []string) string {
	if best, ok := Nearest(word, candidates); ok {
		return `did you mean "` + best + `"?`
	}
	return ""
}

// longest bounds the work for hostile input, in bytes: longer words get no suggestion.
const longest = 64

// distance counts the edits between two words, row by row of the usual table; three rows are enough to detect swaps.
func distance(a, b string) int {
	before, above, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range above {
		above[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(above[j]+1, row[j-1]+1, above[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, above, row = above, row, before
	}
	return above[len(b)]
}
