// Command links checks that every relative link in the Markdown files below the working directory leads to an existing file, and every
// #fragment to a heading in it. Each test named in a page must exist. If a folder precedes the test, it must exist below that folder:
// "`fsm` TestA, TestB; `client` TestC". A DESIGN.md is a map of its folder: it names each Go file in it, except tests, and no other. The
// command does not check other sites: a network error would fail it without a defect here.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
)

func main() {
	problems, err := check(os.DirFS("."))
	for _, problem := range problems {
		fmt.Println(problem)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "links:", err)
	}
	if err != nil || len(problems) > 0 {
		os.Exit(1)
	}
}

var (
	// link is an inline link or picture: its target is the first group.
	link = regexp.MustCompile(`\]\(([^()\s]+)(?:\s+"[^"]*")?\)`)
	// code matches code, in which a link does not count.
	code = regexp.MustCompile("`[^`]*`")
	// test matches the name of a test, or a possible folder of the tests that follow; testFunc is a test's declaration.
	test     = regexp.MustCompile("`([a-z][a-z0-9/]*)`|\\b(?:Test|Fuzz)[A-Z]\\w*|\\|")
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	// dropped are the characters that a heading's fragment leaves out.
	dropped = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	// file is a Go file of the page's own folder.
	file = regexp.MustCompile("`([a-z0-9_]+\\.go)`")
)

// page holds the checked parts of a Markdown file.
type page struct {
	links     []place
	tests     []place // "folder Test", or the test alone
	fragments map[string]bool
	// files are the Go files that the page names.
	files map[string]bool
}

// place is a link's target and its line.
type place struct {
	target string
	line   int
}

// check returns a line for each broken link, missing test and incomplete map.
func check(root fs.FS) ([]string, error) {
	pages := map[string]page{}
	tests := map[string][]string{} // by test, the folders that declare it
	var names, sources []string
	err := fs.WalkDir(root, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		// Folder bin holds what make builds or fetches.
		if entry.IsDir() && (name == "bin" || name != "." && strings.HasPrefix(entry.Name(), ".")) {
			return fs.SkipDir
		}
		tested := strings.HasSuffix(name, "_test.go")
		if path.Ext(name) == ".go" && !tested {
			sources = append(sources, name)
		}
		if entry.IsDir() || path.Ext(name) != ".md" && !tested {
			return nil
		}
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		if tested {
			for _, match := range testFunc.FindAllSubmatch(text, -1) {
				tests[string(match[1])] = append(tests[string(match[1])], path.Dir(name)+"/")
			}
			return nil
		}
		pages[name] = parse(string(text))
		names = append(names, name)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, errors.New("there is no Markdown file here: run it in the root of the repository")
	}
	var problems []string
	for _, from := range names {
		for _, l := range pages[from].links {
			if reason := follow(root, pages, from, l.target); reason != "" {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: %s", from, l.line, l.target, reason))
			}
		}
		for _, named := range pages[from].tests {
			if folder, name := path.Split(named.target); !slices.ContainsFunc(tests[name],
				func(in string) bool { return strings.HasPrefix(in, folder) }) {
				problems = append(problems, fmt.Sprintf("%s:%d: %s: no such test", from, named.line, named.target))
			}
		}
		if path.Base(from) == "DESIGN.md" {
			problems = append(problems, unlike(from, pages[from].files, sources)...)
		}
	}
	return problems, nil
}

// unlike returns a line for each difference between a folder and its map.
func unlike(design string, named map[string]bool, sources []string) (problems []string) {
	there := map[string]bool{}
	for _, source := range sources {
		if path.Dir(source) != path.Dir(design) {
			continue
		}
		name := path.Base(source)
		if there[name] = true; !named[name] {
			problems = append(problems, fmt.Sprintf("%s: does not say what %s is for", design, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if !there[name] {
			problems = append(problems, fmt.Sprintf("%s: %s: no such file", design, name))
		}
	}
	return problems
}

// parse finds the links and headings outside of code.
func parse(text string) page {
	p := page{fragments: map[string]bool{}, files: map[string]bool{}}
	for _, match := range file.FindAllStringSubmatch(text, -1) {
		p.files[match[1]] = true
	}
	fence := ""
	for i, line := range strings.Split(text, "\n") {
		trimmed := strings.TrimSpace(line)
		if fence != "" {
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
			continue
		}
		if strings.HasPrefix(trimmed, "```") || strings.HasPrefix(trimmed, "~~~") {
			fence = trimmed[:3]
			continue
		}
		if heading := strings.TrimLeft(line, "#"); heading != line && strings.HasPrefix(heading, " ") {
			p.addFragment(heading)
		}
		for _, match := range link.FindAllStringSubmatch(code.ReplaceAllString(line, ""), -1) {
			p.links = append(p.links, place{target: match[1], line: i + 1})
		}
		p.addTests(line, i+1)
	}
	return p
}

// addTests finds the tests that a line names. A folder counts for the tests that follow it in its cell of a table.
func (p *page) addTests(line string, number int) {
	folder := ""
	for _, match := range test.FindAllStringSubmatch(line, -1) {
		switch {
		case match[0] == "|":
			folder = ""
		case match[1] != "":
			folder = match[1] + "/"
		default:
			p.tests = append(p.tests, place{target: folder + match[0], line: number})
		}
	}
}

// addFragment derives a heading's fragment as code hosts do: lower case, punctuation dropped, blanks replaced by hyphens, a number appended
// to duplicates.
func (p *page) addFragment(heading string) {
	base := dropped.ReplaceAllString(strings.ToLower(strings.TrimSpace(heading)), "")
	base = strings.ReplaceAll(base, " ", "-")
	fragment := base
	for n := 1; p.fragments[fragment]; n++ {
		fragment = fmt.Sprintf("%s-%d", base, n)
	}
	p.fragments[fragment] = true
}

// follow says why a link is broken; "" if its target exists or is on another site.
func follow(root fs.FS, pages map[string]page, from, target string) string {
	if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
		return ""
	}
	file, fragment, _ := strings.Cut(target, "#")
	name := from
	if file != "" {
		name = path.Join(path.Dir(from), file)
	}
	if !fs.ValidPath(name) {
		return "leads out of the repository"
	}
	if _, err := fs.Stat(root, name); err != nil {
		return "no such file"
	}
	if to, ok := pages[name]; ok && fragment != "" && !to.fragments[fragment] {
		return "no such heading"
	}
	return ""
}
