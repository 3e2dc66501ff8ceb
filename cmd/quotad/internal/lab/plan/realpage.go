package plan

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/output"
)

// The marks around a page's section of runs in real time.
const realBegin, realEnd = "<!-- real time -->\n", "<!-- end of real time -->"

// writeReal regenerates a page's section of runs in real time.
func writeReal(path string, all []*realScenario, day time.Time) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var files []string
	for _, s := range all {
		files = append(files, s.path)
	}
	mark, err := filesMark(files)
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%s\nOne run of each, all at once, on %s, on a shared machine with %d processors.\n\n%sThrough quotad:\n\n%s",
		mark, day.UTC().Format(time.DateOnly), runtime.NumCPU(), markdown([]*output.Table{realTable(all)}),
		markdown([]*output.Table{processTable(all)}))
	made, err := between(string(page), realBegin, realEnd, text)
	if err != nil {
		return err
	}
	return os.WriteFile(path, []byte(made), 0o644) //nolint:gosec // a page is for everybody
}

// filesMark identifies the files of a section, by name and content, in a line that readers do not see. A test compares it
// with the current files without running them.
func filesMark(paths []string) (string, error) {
	var all strings.Builder
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		sum := sha256.Sum256(data)
		fmt.Fprintf(&all, " %s:%x", strings.TrimSuffix(filepath.Base(path), ".yaml"), sum[:6])
	}
	return "<!-- of" + all.String() + " -->\n", nil
}
