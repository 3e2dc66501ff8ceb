package main

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestCheck(t *testing.T) {
	tests := []struct {
		name   string
		text   string
		design string
		want   []string
	}{
		{name: "a file, a folder, a heading here and there", text: "# A b\n[x](docs/b.md) [x](docs) [x](#a-b) [x](docs/b.md#what-is-it)"},
		{name: "other sites are not looked at", text: "[x](https://example.org/none) [x](mailto:a@example.org)"},
		{name: "code is no link", text: "`[x](none)`\n```sh\n[x](none)\n# no heading\n```\n"},
		{name: "missing file", text: "\n[x](docs/none.md)", want: []string{"README.md:2: docs/none.md: no such file"}},
		{name: "missing picture", text: "![x](docs/none.svg \"a title\")", want: []string{"README.md:1: docs/none.svg: no such file"}},
		{name: "missing heading", text: "[x](docs/b.md#none)", want: []string{"README.md:1: docs/b.md#none: no such heading"}},
		{name: "a heading in code", text: "```\n# A\n```\n[x](#a)", want: []string{"README.md:4: #a: no such heading"}},
		{name: "the same heading twice", text: "# A\n# A\n[x](#a-1)"},
		{name: "tests", text: "TestThere, `FuzzThere`, Testing, TestGone", want: []string{"README.md:1: TestGone: no such test"}},
		{
			name: "tests of a folder", text: "| `a` TestThere, FuzzThere; `b` TestThere | TestThere |",
			want: []string{"README.md:1: b/TestThere: no such test"},
		},
		{name: "a map of a folder", design: "`a.go` and `b_linux.go`, `x/c.go`"},
		{name: "a file that the map lacks", design: "`a.go`", want: []string{"a/DESIGN.md: does not say what b_linux.go is for"}},
		{name: "a file that only the map has", design: "`a.go`, `b_linux.go`, `c.go`", want: []string{"a/DESIGN.md: c.go: no such file"}},
		{name: "outside", text: "[x](../none)", want: []string{"README.md:1: ../none: leads out of the repository"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			files := fstest.MapFS{
				"README.md":         {Data: []byte(test.text)},
				"docs/b.md":         {Data: []byte("## What *is* it?\n")},
				"a/a_test.go":       {Data: []byte("package a\n\nfunc TestThere(t *testing.T) {}\n\nfunc FuzzThere(f *testing.F) {}\n")},
				".hidden/ignore.md": {Data: []byte("[x](none)")},
				"a/a.go":            {}, "a/b_linux.go": {}, "a/x/c.go": {},
			}
			if test.design != "" {
				files["a/DESIGN.md"] = &fstest.MapFile{Data: []byte(test.design)}
			}
			got, err := check(files)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestCheck_RefusesAnEmptyFolder: without a page, no link is checked.
func TestCheck_RefusesAnEmptyFolder(t *testing.T) {
	if problems, err := check(fstest.MapFS{"a/a.go": {}}); err == nil {
		t.Errorf("no error, and %q", problems)
	}
}
