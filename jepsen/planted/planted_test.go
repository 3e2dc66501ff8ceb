package planted

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// declared matches the declaration of a test.
var declared = regexp.MustCompile(`(?m)^func (Test\w+)\(`)

// missingTests returns the tests that must catch a defect and are not in its package. known keeps the tests of each folder.
func missingTests(t *testing.T, defect Defect, known map[string][]string) (missing []string) {
	t.Helper()
	if defect.Tests == "" {
		return nil
	}
	if known[defect.Tests] == nil {
		known[defect.Tests] = testsIn(t, defect.Tests)
	}
	return slices.DeleteFunc(slices.Clone(defect.Caught), func(test string) bool { return slices.Contains(known[defect.Tests], test) })
}

// testsIn returns the names of the tests in a folder.
func testsIn(t *testing.T, folder string) (found []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, match := range declared.FindAllSubmatch(text, -1) {
			found = append(found, string(match[1]))
		}
	}
	return found
}

// version matches the end of an import path that is not the package's name. A folder go-x has the package x.
var version = regexp.MustCompile(`/v\d+$`)

// unused returns the imports that the edited files in a folder do not use.
func unused(t *testing.T, folder string) (names []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go.edited"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Error(err)
			continue
		}
		used := map[string]bool{"_": true, ".": true}
		ast.Inspect(parsed, func(node ast.Node) bool {
			if selector, ok := node.(*ast.SelectorExpr); ok {
				if of, ok := selector.X.(*ast.Ident); ok {
					used[of.Name] = true
				}
			}
			return true
		})
		for _, imported := range parsed.Imports {
			name := path.Base(version.ReplaceAllString(strings.Trim(imported.Path.Value, `"`), ""))
			if imported.Name != nil {
				name = imported.Name.Name
			}
			if !used[strings.TrimPrefix(name, "go-")] {
				names = append(names, name)
			}
		}
	}
	return names
}

// TestDefects_FitTheirPlaces: an edit that no longer matches the code, or leaves an import unused, fails here, not in a nightly run.
func TestDefects_FitTheirPlaces(t *testing.T) {
	all, err := All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 90 {
		t.Errorf("there are %d defects", len(all))
	}
	known := map[string][]string{}
	for _, defect := range all {
		for _, missing := range missingTests(t, defect, known) {
			t.Errorf("%s: %s has no %s", defect.Name, defect.Tests, missing)
		}
		folder := t.TempDir()
		if _, err := defect.Overlay("../..", folder); err != nil {
			t.Error(err)
		}
		for _, name := range unused(t, folder) {
			t.Errorf("%s: its edit uses no %s, and does not compile", defect.Name, name)
		}
	}
}

// TestParse_RefusesUnfitDefects: each case also has an edit that fits, so that it is refused for its own reason.
func TestParse_RefusesUnfitDefects(t *testing.T) {
	const fits = "-- go.mod --\n<<<<\nmodule github.com/quotad/quotad\n====\n>>>>\n"
	const run, tests = "mix: c\nlength: 1s\n", "tests: ./a\n"
	for name, c := range map[string]struct {
		text string
		ok   bool
	}{
		"a run":          {"about: a\ncaught: b\n" + run + fits, true},
		"seeds":          {"about: a\ncaught: b\nseeds: 4\n" + fits, true},
		"tests":          {"about: a\ncaught: TestA TestB\n" + tests + fits, true},
		"nowhere":        {"about: a\ncaught: b\n" + run + "-- go.mod --\n<<<<\nno such line\n====\n>>>>\n", false},
		"no file":        {"about: a\ncaught: b\n" + run + "-- no.go --\n<<<<\na\n====\n>>>>\n", false},
		"no block":       {"about: a\ncaught: b\n" + run + "-- go.mod --\nmodule github.com/quotad/quotad\n", false},
		"no edit":        {"about: a\ncaught: b\n" + run, false},
		"no run":         {"about: a\ncaught: b\n" + fits, false},
		"no number":      {"about: a\ncaught: b\nseeds: c\n" + fits, false},
		"no caught":      {"about: a\n" + run + fits, false},
		"no key":         {"abuot: a\ncaught: b\n" + run + fits, false},
		"a test in runs": {"about: a\ncaught: TestA\n" + run + fits, false},
		"not all tests":  {"about: a\ncaught: TestA rules\n" + tests + fits, false},
		"both":           {"about: a\ncaught: TestA\n" + tests + run + fits, false},
	} {
		defect, err := parse(name, []byte(c.text))
		if err == nil {
			_, err = defect.Overlay("../..", t.TempDir())
		}
		if (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}
