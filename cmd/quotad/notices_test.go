package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestNotices_NameEachModule: docs/notices.md names each module of which the binary has packages.
func TestNotices_NameEachModule(t *testing.T) {
	page, err := os.ReadFile("../../docs/notices.md")
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for module := range strings.FieldsSeq(string(list)) {
		switch {
		case module == "github.com/quotad/quotad":
		case strings.Contains(string(page), "`"+module+"`"):
			named++
		default:
			t.Errorf("%s is missing", module)
		}
	}
	if named < 30 {
		t.Errorf("%d packages of other modules are named", named)
	}
}
