package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestLessons_NameTestsAndSources: each row of docs/lessons.md names a test and its folder, and each defect of another project
// cites its source. .ci/links checks that the tests exist.
func TestLessons_NameTestsAndSources(t *testing.T) {
	page, err := os.ReadFile("../../docs/lessons.md")
	if err != nil {
		t.Fatal(err)
	}
	guard := regexp.MustCompile("`[a-z/]+` (Test|Fuzz)[A-Z]")
	reported := regexp.MustCompile(`\(.+\)$`)
	rows, source := 0, false
	for i, line := range strings.Split(string(page), "\n") {
		cells := strings.Split(line, " | ")
		switch {
		case !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| ---"):
		case len(cells) != 3:
			t.Errorf("line %d has %d cells, not three", i+1, len(cells))
		case strings.HasSuffix(line, "| guarded by |"):
			source = strings.HasPrefix(line, "| what happened |")
		default:
			rows++
			if !guard.MatchString(cells[2]) {
				t.Errorf("line %d names no test: %s", i+1, cells[2])
			}
			if source && !reported.MatchString(cells[0]) {
				t.Errorf("line %d does not name its source: %s", i+1, cells[0])
			}
		}
	}
	if rows < 30 {
		t.Errorf("only %d lessons were found: is the form of the page another one?", rows)
	}
}
