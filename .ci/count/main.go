// Command count reads the JSON that `go test -json` prints, shows a line for each package and all that a failed test
// said, and ends with a line "N passed, N failed". It counts top-level tests, examples and fuzz targets once each; what
// fails without a test to its name (a build, a crash, a package that never ended, nothing at all) counts as one failure.
// It ends with exit code 1 where anything failed.
//
// Arguments name checks that failed before; each counts as one failure more.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

func main() {
	ok, err := run(os.Stdin, os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// event is one line of the stream; the fields are those of `go doc test2json`.
type event struct {
	Action, Package, ImportPath, Test, Output, FailedBuild string
	Elapsed                                                float64
}

// tally is what has been seen of a run.
type tally struct {
	out                     io.Writer
	passed, failed, skipped int
	// packages are the started ones that have not ended.
	packages map[string]*progress
	// builds is what compilers said, by import path.
	builds map[string][]string
}

// progress is what has been seen of one package.
type progress struct {
	// failed tests of it, sub-tests included.
	failed int
	// said is the output by test; "" is the package's own.
	said map[string][]string
}

func run(in io.Reader, out io.Writer, failedChecks []string) (ok bool, err error) {
	t := &tally{out: out, packages: map[string]*progress{}, builds: map[string][]string{}}
	err = t.read(in)
	for _, name := range sortedKeys(t.packages) {
		t.failed++
		fmt.Fprintf(out, "FAIL  %s  never ended\n", name)
		t.show(t.packages[name], "")
	}
	for _, check := range failedChecks {
		t.failed++
		fmt.Fprintf(out, "FAIL  %s\n", check)
	}
	if t.passed+t.failed == 0 {
		t.failed++
		fmt.Fprintln(out, "FAIL  no test ran")
	}
	if t.skipped > 0 {
		fmt.Fprintf(out, "%d skipped\n", t.skipped)
	}
	fmt.Fprintf(out, "%d passed, %d failed\n", t.passed, t.failed)
	return t.failed == 0, err
}

func (t *tally) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			t.line(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// line takes one line; what is no event (make's echo, a linker's warning) is passed on.
func (t *tally) line(line string) {
	var e event
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &e) != nil {
		fmt.Fprint(t.out, line)
		return
	}
	if strings.HasPrefix(e.Action, "build-") {
		t.builds[e.ImportPath] = append(t.builds[e.ImportPath], e.Output)
		return
	}
	p := t.packages[e.Package]
	if p == nil {
		p = &progress{said: map[string][]string{}}
		t.packages[e.Package] = p
	}
	switch e.Action {
	case "output":
		p.said[e.Test] = append(p.said[e.Test], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e, p)
		} else {
			t.endTest(e, p)
		}
	}
}

func (t *tally) endTest(e event, p *progress) {
	if e.Action == "fail" {
		p.failed++
		t.show(p, e.Test)
	}
	delete(p.said, e.Test)
	if strings.Contains(e.Test, "/") {
		return
	}
	switch e.Action {
	case "pass":
		t.passed++
	case "fail":
		t.failed++
	case "skip":
		t.skipped++
	}
}

func (t *tally) endPackage(e event, p *progress) {
	delete(t.packages, e.Package)
	switch e.Action {
	case "pass":
		fmt.Fprintf(t.out, "ok    %s  %.1fs\n", e.Package, e.Elapsed)
	case "skip":
		fmt.Fprintf(t.out, "-     %s  no tests\n", e.Package)
	case "fail":
		fmt.Fprintf(t.out, "FAIL  %s  %.1fs\n", e.Package, e.Elapsed)
		for _, text := range t.builds[e.FailedBuild] {
			fmt.Fprint(t.out, text)
		}
		// A crash leaves the tests that ran without an end; the runtime's report stands under one of them.
		for _, test := range sortedKeys(p.said) {
			t.show(p, test)
		}
		if p.failed == 0 {
			t.failed++
		}
	}
}

func (t *tally) show(p *progress, test string) {
	for _, text := range p.said[test] {
		fmt.Fprint(t.out, text)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
