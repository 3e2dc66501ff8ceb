package packaging

import (
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// released returns the folder of a built release; `make test-release` names one.
func released(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("QUOTAD_TEST_RELEASE")
	if dir == "" {
		t.Skip("QUOTAD_TEST_RELEASE names no release: make test-release builds one")
	}
	return dir
}

// binaryName matches the name of a binary: its version, system and processor.
var binaryName = regexp.MustCompile(`^quotad-(\d+\.\d+\.\d+)-(?:(linux|darwin)-(amd64|arm64)|(windows)-(amd64|arm64)\.exe)$`)

// binaries returns the names of a release's binaries, by platform.
func binaries(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, entry := range entries {
		if match := binaryName.FindStringSubmatch(entry.Name()); match != nil {
			found[match[2]+match[4]+"/"+match[3]+match[5]] = entry.Name()
		}
	}
	return found
}

// TestRelease_SumsCoverEveryFile: SHA256SUMS lists each file of the release, and nothing else.
func TestRelease_SumsCoverEveryFile(t *testing.T) {
	dir := released(t)
	text, err := os.ReadFile(filepath.Join(dir, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		listed[name] = sum
	}
	there := map[string]string{}
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || entry.Name() == "SHA256SUMS" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, path)
		sum := sha256.Sum256(data)
		there[name] = hex.EncodeToString(sum[:])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if !maps.Equal(listed, there) {
		t.Errorf("listed are\n%v\nthere are\n%v", listed, there)
	}
}

// TestRelease_HasABinaryForEachPlatform: each binary is static, built from one commit without changes, and names no folder
// of the build machine.
func TestRelease_HasABinaryForEachPlatform(t *testing.T) {
	dir := released(t)
	want := []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64", "windows/amd64", "windows/arm64"}
	all := binaries(t, dir)
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Fatalf("binaries for %v, want %v", got, want)
	}
	commits := map[string]bool{}
	for platform, name := range all {
		info, err := buildinfo.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		settings := map[string]string{}
		for _, setting := range info.Settings {
			settings[setting.Key] = setting.Value
		}
		if got := settings["GOOS"] + "/" + settings["GOARCH"]; got != platform {
			t.Errorf("%s is for %s", name, got)
		}
		for key, value := range map[string]string{"CGO_ENABLED": "0", "-trimpath": "true", "vcs.modified": "false"} {
			if settings[key] != value {
				t.Errorf("%s has %s=%q, want %q", name, key, settings[key], value)
			}
		}
		commits[settings["vcs.revision"]] = true
		if strings.HasPrefix(platform, "linux/") {
			wantStatic(t, filepath.Join(dir, name))
		}
	}
	if len(commits) != 1 || commits[""] {
		t.Errorf("the binaries are of the commits %v", slices.Sorted(maps.Keys(commits)))
	}
}

// wantStatic fails if a binary needs a loader or a library.
func wantStatic(t *testing.T, path string) {
	t.Helper()
	file, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	for _, program := range file.Progs {
		if program.Type == elf.PT_INTERP || program.Type == elf.PT_DYNAMIC {
			t.Errorf("%s is linked dynamically: it has a segment %v", path, program.Type)
		}
	}
}

// TestRelease_ListsModulesOfEachBinary: the bill of materials of each binary lists the modules that the toolchain
// recorded in it.
func TestRelease_ListsModulesOfEachBinary(t *testing.T) {
	dir := released(t)
	for _, name := range binaries(t, dir) {
		info, err := buildinfo.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, strings.TrimSuffix(name, ".exe")+".cdx.json"))
		if err != nil {
			t.Fatal(err)
		}
		var bill struct {
			BOMFormat  string
			Components []struct{ Name, Version string }
		}
		if err := json.Unmarshal(data, &bill); err != nil {
			t.Fatal(err)
		}
		listed := map[string]string{}
		for _, component := range bill.Components {
			listed[component.Name] = component.Version
		}
		if bill.BOMFormat != "CycloneDX" {
			t.Errorf("%s: the bill has the format %q", name, bill.BOMFormat)
		}
		for _, module := range info.Deps {
			if listed[module.Path] != module.Version {
				t.Errorf("%s: %s %s is listed as %q", name, module.Path, module.Version, listed[module.Path])
			}
		}
	}
}

// TestRelease_HasPagesAndCompletions: each command has its manual page, and each shell its completions.
func TestRelease_HasPagesAndCompletions(t *testing.T) {
	dir := released(t)
	for name, word := range map[string]string{
		"man/quotad.1": "quotad-serve(1)", "man/quotad-serve.1": "--data-dir", "man/quotad-quota-apply.1": "quotad quota apply",
		"completions/quotad.bash": "__quotad", "completions/_quotad": "#compdef quotad", "completions/quotad.fish": "complete -c quotad",
		"completions/quotad.ps1": "Register-ArgumentCompleter",
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
			continue
		}
		if !strings.Contains(strings.ReplaceAll(string(text), `\-`, "-"), word) {
			t.Errorf("%s does not have %q", name, word)
		}
	}
}
