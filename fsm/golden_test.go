package fsm

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// goldenList has the checksum of each golden file and of each row of versions. Lines are only added, by the commit that
// adds the file: other content needs another version.
const goldenList = "testdata/golden.sha256"

var goldenName = regexp.MustCompile(`^(?:(?:history|snapshot)-v\d+(?:-[a-z]+)?\.bin|row-v\d+)$`)

// goldenMistakes compares golden files and rows with the list, both as checksums by name.
func goldenMistakes(listed, files map[string]string) (mistakes []string) {
	note := func(format string, values ...any) { mistakes = append(mistakes, fmt.Sprintf(format, values...)) }
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		switch sum, there := files[name]; {
		case !there:
			note("%s is listed and gone: restore it", name)
		case sum != listed[name]:
			note("%s was rewritten: restore it, and give what changed another version", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !goldenName.MatchString(name) {
			note("%s: no version is in the name of this golden file", name)
			continue
		}
		if _, known := listed[name]; !known {
			note("%s is not in %s: add %s", name, goldenList, files[name])
		}
	}
	return mistakes
}

// TestGolden_IsNeverRewritten: golden files and rows have their original content, and none is missing.
func TestGolden_IsNeverRewritten(t *testing.T) {
	listed, files := map[string]string{}, map[string]string{}
	list, err := os.ReadFile(goldenList)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		sum, name, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if _, twice := listed[name]; !ok || twice {
			t.Errorf("%s: unreadable line %q, or a name twice", goldenList, line)
		}
		listed[name] = sum
	}
	paths, err := filepath.Glob("testdata/*.bin")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(data)
		files[filepath.Base(path)] = hex.EncodeToString(sum[:])
	}
	for _, row := range versions {
		sum := sha256.Sum256(fmt.Appendf(nil, "%+v", row)) // maps are printed in order
		files[fmt.Sprintf("row-v%d", row.entries)] = hex.EncodeToString(sum[:])
	}
	for _, mistake := range goldenMistakes(listed, files) {
		t.Error(mistake)
	}
	for version := 1; version <= EntryVersion; version++ {
		names := []string{fmt.Sprintf("snapshot-v%d.bin", version), fmt.Sprintf("snapshot-v%d-tasks.bin", version)}
		if version > 1 { // the entries of the first version were not recorded
			names = append(names, fmt.Sprintf("history-v%d.bin", version))
		}
		for _, name := range names {
			if listed[name] == "" {
				t.Errorf("%s has no line for %s", goldenList, name)
			}
		}
	}
}

// TestGoldenMistakes_NamesEachKind: a rewritten file, a missing one and an unlisted one are reported.
func TestGoldenMistakes_NamesEachKind(t *testing.T) {
	const old = "snapshot-v7.bin"
	for name, c := range map[string]struct {
		listed, files map[string]string
		want          string
	}{
		"as it was":         {map[string]string{old: "a"}, map[string]string{old: "a"}, ""},
		"rewritten":         {map[string]string{old: "a"}, map[string]string{old: "b"}, old + " was rewritten"},
		"gone":              {map[string]string{old: "a"}, nil, old + " is listed and gone"},
		"not listed":        {nil, map[string]string{old: "a"}, old + " is not in " + goldenList},
		"a row":             {map[string]string{"row-v7": "a"}, map[string]string{"row-v7": "b"}, "row-v7 was rewritten"},
		"without a version": {nil, map[string]string{"snapshot.bin": "a"}, "snapshot.bin: no version"},
	} {
		mistakes := goldenMistakes(c.listed, c.files)
		if (c.want == "") != (len(mistakes) == 0) || c.want != "" && (len(mistakes) != 1 || !strings.HasPrefix(mistakes[0], c.want)) {
			t.Errorf("%s: %q, want %q", name, mistakes, c.want)
		}
	}
}
