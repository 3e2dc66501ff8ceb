// Package planted has defects as edits of quotad's own source, each with the checkers or the quick tests that must catch it. Each is built
// with `go build -overlay`, so production code has no switch for it. An edit that no longer matches its place is an error: a defect that
// cannot be planted proves nothing.
package planted

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

//go:embed defects/*.txtar
var files embed.FS

// Defect is a planted defect.
type Defect struct {
	Name string
	// About describes the defect in one sentence.
	About string
	// Caught are the checkers of which at least one must fail; or, if Tests is set, tests that must all fail.
	Caught []string
	// Tests is the package whose quick tests show it; empty: a run or the simulation does.
	Tests string
	// Mix and Length are the run that shows it; empty: only the simulation does. Flags are further flags of the run or of go test.
	Mix    string
	Length time.Duration
	Flags  []string
	// Seeds is the number of seeds within which the simulation shows it; 0: it does not.
	Seeds int

	edits []edit
}

// edit replaces a piece of a file, which must occur exactly once.
type edit struct{ path, old, new string }

// All returns all defects, by name.
func All() ([]Defect, error) {
	paths, err := files.ReadDir("defects")
	if err != nil {
		return nil, err
	}
	var all []Defect
	for _, path := range paths {
		data, err := files.ReadFile("defects/" + path.Name())
		if err != nil {
			return nil, err
		}
		defect, err := parse(strings.TrimSuffix(path.Name(), ".txtar"), data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path.Name(), err)
		}
		all = append(all, defect)
	}
	return all, nil
}

// parse reads a defect: a head of "key: value" lines, then files with <<<< old ==== new >>>> blocks.
func parse(name string, data []byte) (Defect, error) {
	archive := txtar.Parse(data)
	defect := Defect{Name: name}
	for line := range strings.Lines(string(archive.Comment)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		var err error
		switch key {
		case "about":
			defect.About = value
		case "caught":
			defect.Caught = strings.Fields(value)
		case "tests":
			defect.Tests = value
		case "mix":
			defect.Mix = value
		case "length":
			defect.Length, err = time.ParseDuration(value)
		case "flags":
			defect.Flags = strings.Fields(value)
		case "seeds":
			defect.Seeds, err = strconv.Atoi(value)
		case "":
		default:
			err = fmt.Errorf("%q is no key", key)
		}
		if err != nil {
			return defect, err
		}
	}
	for _, file := range archive.Files {
		edits, err := blocks(file)
		if err != nil {
			return defect, fmt.Errorf("%s: %w", file.Name, err)
		}
		defect.edits = append(defect.edits, edits...)
	}
	if defect.About == "" || len(defect.Caught) == 0 || !defect.shown() || len(defect.edits) == 0 {
		return defect, fmt.Errorf("a defect needs about, caught, mix and length, or seeds, or tests, and an edit")
	}
	return defect, nil
}

// shown says whether a defect has one way to be shown: checkers judge runs and simulations, and tests belong to a package.
func (d Defect) shown() bool {
	tests := 0
	for _, caught := range d.Caught {
		if strings.HasPrefix(caught, "Test") {
			tests++
		}
	}
	if d.Tests != "" {
		return tests == len(d.Caught) && d.Mix == "" && d.Seeds == 0
	}
	return tests == 0 && (d.Mix != "" && d.Length != 0 || d.Mix == "" && d.Seeds > 0)
}

func blocks(file txtar.File) ([]edit, error) {
	var edits []edit
	rest := string(file.Data)
	for strings.TrimSpace(rest) != "" {
		before, inside, ok := strings.Cut(rest, "<<<<\n")
		body, after, closed := strings.Cut(inside, ">>>>\n")
		before = strings.TrimSpace(before)
		old, replacement, parted := strings.Cut(body, "====\n")
		if !ok || !closed || !parted || before != "" {
			return nil, fmt.Errorf("is not made of <<<< old ==== new >>>> blocks")
		}
		edits = append(edits, edit{file.Name, old, replacement})
		rest = after
	}
	return edits, nil
}

// Overlay writes the edited files (under names that ./... ignores) and the overlay file for the go command into a folder, and returns the
// path of the overlay file. root is the module's.
func (d Defect) Overlay(root, folder string) (string, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return "", err
	}
	texts := map[string][]byte{}
	for _, e := range d.edits {
		text, ok := texts[e.path]
		if !ok {
			var err error
			if text, err = os.ReadFile(filepath.Join(root, e.path)); err != nil {
				return "", err
			}
		}
		if count := bytes.Count(text, []byte(e.old)); count != 1 {
			return "", fmt.Errorf("%s: %s has the text to be replaced %d times, not once:\n%s", d.Name, e.path, count, e.old)
		}
		texts[e.path] = bytes.Replace(text, []byte(e.old), []byte(e.new), 1)
	}
	replace := map[string]string{}
	for path, text := range texts {
		edited := filepath.Join(folder, strings.ReplaceAll(path, "/", "_")+".edited")
		if err := os.WriteFile(edited, text, 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, path)] = edited
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "overlay.json")
	return path, os.WriteFile(path, overlay, 0o600)
}

// Build builds quotad and the suite with the defect, into a folder. The suite has the defect too: its workers use the client, and its
// replay must agree with the nodes so that the other checkers decide.
func (d Defect) Build(ctx context.Context, root, folder string) (quotad, suite string, err error) {
	overlay, err := d.Overlay(root, folder)
	if err != nil {
		return "", "", err
	}
	quotad, suite = filepath.Join(folder, "quotad"), filepath.Join(folder, "jepsen")
	for path, pkg := range map[string]string{quotad: "./cmd/quotad", suite: "./jepsen"} {
		build := exec.CommandContext(ctx, "go", "build", "-overlay", overlay, "-o", path, pkg)
		build.Dir = root
		if out, err := build.CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("%s: go build %s: %w\n%s", d.Name, pkg, err, out)
		}
	}
	return quotad, suite, nil
}

// BuildSimulation builds the simulation's test with the defect, into a folder.
func (d Defect) BuildSimulation(ctx context.Context, root, folder string) (path string, err error) {
	overlay, err := d.Overlay(root, folder)
	if err != nil {
		return "", err
	}
	path = filepath.Join(folder, "sim.test")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-overlay", overlay, "-o", path, "./jepsen/sim")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: go test -c: %w\n%s", d.Name, err, out)
	}
	return path, nil
}

// failedTest matches the line of a failed test.
var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (Test\w+)`)

// RunTests runs the quick tests that must catch the defect, built with it, and returns the failed ones. An error means that they did not
// run.
func (d Defect) RunTests(ctx context.Context, root, folder string) (failed []string, err error) {
	overlay, err := d.Overlay(root, folder)
	if err != nil {
		return nil, err
	}
	names := "^(" + strings.Join(d.Caught, "|") + ")$"
	args := append([]string{"test", "-count", "1", "-short", "-vet", "off", "-overlay", overlay, "-run", names, "-v"}, d.Flags...)
	args = append(args, d.Tests)
	test := exec.CommandContext(ctx, "go", args...)
	test.Dir = root
	tidy := leavesNoExamples(filepath.Join(root, d.Tests))
	out, err := test.CombinedOutput()
	tidy()
	for _, match := range failedTest.FindAllSubmatch(out, -1) {
		failed = append(failed, string(match[1]))
	}
	if len(failed) == 0 && err != nil {
		return nil, fmt.Errorf("%s: go test: %w\n%s", d.Name, err, out)
	}
	for _, name := range d.Caught {
		if !bytes.Contains(out, []byte("=== RUN   "+name+"\n")) {
			return nil, fmt.Errorf("%s: %s has no %s", d.Name, d.Tests, name)
		}
	}
	return failed, nil
}

// leavesNoExamples returns a function that removes the failing examples that random tests of a package have written since: those of a
// defect are useless.
func leavesNoExamples(pkg string) (tidy func()) {
	inputs := filepath.Join(pkg, "testdata")
	examples := filepath.Join(inputs, "rapid")
	if _, err := os.Stat(examples); err == nil {
		return func() {}
	}
	return func() {
		_ = os.RemoveAll(examples)
		_ = os.Remove(inputs) // it stays if it has other files
	}
}

// Catches says whether the failed checkers of a run catch the defect.
func (d Defect) Catches(failed []string) bool {
	return slices.ContainsFunc(d.Caught, func(checker string) bool { return slices.Contains(failed, checker) })
}
