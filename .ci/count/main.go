// Command count reads the JSON that `go test -json` prints. It shows a line for each package and all output of failed tests, and ends with
// a line "N passed, N failed". It counts top-level tests, examples and fuzz targets once each. A failure outside of any test counts once: a
// build, a crash, a package that never ended, a run without tests. The exit code is 1 if anything failed.
//
// Each argument names a check that failed before, and counts as one more failure.
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

// tally is the state of a run.
type tally struct {
	out                     io.Writer
	passed, failed, skipped int
	// packages that started and have not ended.
	packages map[string]*progress
	// builds is the compilers' output, by import path.
	builds map[string][]string
}

// progress is the state of one package.
type progress struct {
	// failed counts its failed tests, sub-tests included.
	failed int
	// said is the output by test; "" is the package's own output.
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

// line handles one line. It prints lines that are not events, such as make's echo or a linker's warning.
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
		// After a crash the running tests have no end event; the runtime's report is in the output of one of them.
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
