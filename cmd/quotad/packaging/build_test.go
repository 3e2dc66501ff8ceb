// Package packaging tests the release: the binaries and the Debian package.
package packaging

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuild_NamesItsCommit: `make build` in a plain clone makes a quotad that names its commit, whatever the machine's
// GOFLAGS, and says whether a file was changed.
func TestBuild_NamesItsCommit(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds twice")
	}
	clone := filepath.Join(t.TempDir(), "clone")
	command := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.Command(name, args...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=-buildvcs=false")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return strings.TrimSpace(string(out))
	}
	root := command(".", "git", "rev-parse", "--show-toplevel")
	command(root, "git", "clone", "-q", root, clone)
	commit := command(clone, "git", "rev-parse", "HEAD")
	for _, change := range []string{"", ", with changes"} {
		if change != "" {
			if err := os.WriteFile(filepath.Join(clone, "go.sum"), append([]byte(command(clone, "cat", "go.sum")), "\n\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		command(clone, "make", "build")
		said := strings.Fields(strings.ReplaceAll(command(clone, filepath.Join("bin", "quotad"), "version"), "\n", " \n "))
		if got := strings.Join(said, " "); !strings.Contains(got, " commit "+commit+change+" go ") {
			t.Errorf("%q does not name the commit %s%s", got, commit, change)
		}
	}
}
