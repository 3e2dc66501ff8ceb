package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testsOf returns the names of the tests of a package's folder, relative to the module.
func testsOf(t *testing.T, folder string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	files, err := filepath.Glob(filepath.Join("..", "..", filepath.FromSlash(folder), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range parsed.Decls {
			if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
				found[f.Name.Name] = true
			}
		}
	}
	return found
}

var (
	threatTest    = regexp.MustCompile("`([a-z/]+)`|\\b(Test\\w+)")
	threatsHeader = regexp.MustCompile(`^\| who \| .* \| test \|$`)
)

// TestThreats_NameTheirTests: each row of the threat table in SECURITY.md names tests, and each test exists in the package
// named before it.
func TestThreats_NameTheirTests(t *testing.T) {
	text, err := os.ReadFile("../../SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	rows, inTable := 0, false
	tests := map[string]map[string]bool{} // by folder
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case threatsHeader.MatchString(line):
			inTable = true
			continue
		case !strings.HasPrefix(line, "|"):
			inTable = false
		}
		if !inTable || strings.HasPrefix(line, "| ---") {
			continue
		}
		rows++
		cells := strings.Split(strings.Trim(line, "|"), " | ")
		folder, named := "", 0
		for _, match := range threatTest.FindAllStringSubmatch(cells[len(cells)-1], -1) {
			if match[1] != "" {
				folder = match[1]
				continue
			}
			named++
			if tests[folder] == nil {
				tests[folder] = testsOf(t, folder)
			}
			if !tests[folder][match[2]] {
				t.Errorf("%s: %q has no %s", cells[1], folder, match[2])
			}
		}
		if named == 0 {
			t.Errorf("the row names no test: %s", line)
		}
	}
	const least = 15
	if rows < least {
		t.Errorf("%d rows were found; is the table there still?", rows)
	}
}
