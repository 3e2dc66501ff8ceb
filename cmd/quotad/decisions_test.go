package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDecisions_ListHasEveryRecord: records are numbered without gaps, and the list has a row for each, with the record's
// date.
func TestDecisions_ListHasEveryRecord(t *testing.T) {
	t.Parallel()
	const folder = "../../docs/decisions"
	list, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	records, err := filepath.Glob(filepath.Join(folder, "[0-9]*.md"))
	if err != nil {
		t.Fatal(err)
	}
	if rows := strings.Count(string(list), "\n| ["); rows != len(records) || rows == 0 {
		t.Errorf("the list has %d rows for %d records", rows, len(records))
	}
	head := regexp.MustCompile(`^# (\d+)\. .+\n\n(\d{4}-\d\d-\d\d), accepted`)
	for i, path := range records { // sorted by name
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, number := filepath.Base(path), fmt.Sprint(i+1)
		match := head.FindStringSubmatch(string(text))
		if match == nil {
			t.Errorf("%s does not begin with its number, title, date and status", name)
			continue
		}
		if match[1] != number || !strings.HasPrefix(name, fmt.Sprintf("%04d-", i+1)) {
			t.Errorf("%s is record %s, with number %s in its title", name, number, match[1])
		}
		row := regexp.MustCompile(`(?m)^\| \[` + number + `\]\(` + regexp.QuoteMeta(name) + `\) \| .+ \| ` + match[2] + ` \| accepted`)
		if !row.Match(list) {
			t.Errorf("the list has no row of %s with its date %s", name, match[2])
		}
	}
}
