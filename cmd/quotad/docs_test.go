package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
)

// Every console block of README.md and of the pages below docs/ runs unchanged, in one shell per document, against the
// binary. A block's lines that begin with "$ " are commands (continued by "> "); the lines after them are their output. A
// command must succeed. Where the page shows its output, the output must be the same, apart from numbers, identifiers,
// durations and the width of columns; a line "..." stands for any lines, "..." in a line for any text. Ports 74xx of
// loopback become free ones.
//
// A document gets a `quotad dev` on port 7450, unless it contains the comment below: such a page starts its own nodes.
const startsNodes = "<!-- this page starts its own nodes -->"

func TestDocuments(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		commands := consoleCommands(string(text))
		if len(commands) == 0 {
			continue
		}
		ran += len(commands)
		t.Run(strings.TrimPrefix(path, "../../"), func(t *testing.T) {
			t.Parallel()
			runDocument(t, commands, strings.Contains(string(text), startsNodes))
		})
	}
	if ran < 10 {
		t.Errorf("only %d commands were found: is the form of the documents another one?", ran)
	}
}

// documents returns the pages for users: README.md and all below docs, in a fixed order.
func documents(t *testing.T) []string {
	t.Helper()
	pages := []string{"../../README.md"}
	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			pages = append(pages, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return pages
}

// TestDocuments_GoProgramsBuild: each whole program that a page shows builds against this module.
func TestDocuments_GoProgramsBuild(t *testing.T) {
	t.Parallel()
	built := 0
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range strings.Split(string(text), "```go\n")[1:] {
			program, _, _ := strings.Cut(block, "```")
			if !strings.HasPrefix(program, "package main\n") {
				continue
			}
			built++
			file := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(file, []byte(program), 0o600); err != nil {
				t.Fatal(err)
			}
			vet := exec.CommandContext(t.Context(), "go", "vet", file)
			if out, err := vet.CombinedOutput(); err != nil {
				t.Errorf("%s: %v\n%s", path, err, out)
			}
		}
	}
	if built == 0 {
		t.Error("no program was found")
	}
}

var (
	retryingCurl = regexp.MustCompile(`curl -\S+ [^|;\n]*--retry\b`)
	failingCurl  = regexp.MustCompile(`^curl -[a-zA-Z]*f`)
)

// TestDocuments_RetriesPrintOneAnswer: a curl that retries has -f. Without it curl prints the body of each failed attempt too, such as the
// 503 of a node that is not ready yet.
func TestDocuments_RetriesPrintOneAnswer(t *testing.T) {
	t.Parallel()
	found := 0
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range consoleCommands(string(text)) {
			for _, curl := range retryingCurl.FindAllString(command.text, -1) {
				found++
				if !failingCurl.MatchString(curl) {
					t.Errorf("%s:%d: write curl -f: %s", path, command.line, curl)
				}
			}
		}
	}
	if found == 0 {
		t.Error("no curl that retries was found")
	}
}

// consoleCommand is one command of a document, with the output that the page shows.
type consoleCommand struct {
	line int
	text string
	want []string
}

// consoleCommands finds the commands in the console blocks of a page.
func consoleCommands(page string) []consoleCommand {
	var all []consoleCommand
	inside := false
	for i, line := range strings.Split(page, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```console"
		case !inside:
		case strings.HasPrefix(line, "$ "):
			all = append(all, consoleCommand{line: i + 1, text: line[2:]})
		case len(all) == 0:
		case strings.HasPrefix(line, "> ") && len(all[len(all)-1].want) == 0:
			all[len(all)-1].text += "\n" + line[2:]
		default:
			last := &all[len(all)-1]
			last.want = append(last.want, line)
		}
	}
	return all
}

var loopbackPort = regexp.MustCompile(`127\.0\.0\.1:74\d\d`)

// runDocument runs a document's commands in one shell.
func runDocument(t *testing.T, commands []consoleCommand, startsItsNodes bool) {
	ports := map[string]string{}
	freed := func(text string) string {
		return loopbackPort.ReplaceAllStringFunc(text, func(address string) string {
			if ports[address] == "" {
				port, err := freePort()
				if err != nil {
					t.Fatal(err)
				}
				ports[address] = "127.0.0.1:" + strconv.Itoa(port)
			}
			return ports[address]
		})
	}
	dir := t.TempDir()
	home := freed("127.0.0.1:7450")
	shell := shellFor(t, dir, home)
	if !startsItsNodes {
		startDev(t, dir, home)
	}
	marker := "=== after command"
	var script strings.Builder
	for i, command := range commands {
		fmt.Fprintf(&script, "%s\nprintf '\\n%s %d: %%d\\n' $?\n", freed(command.text), marker, i)
	}
	shell.Stdin = strings.NewReader(script.String())
	var out bytes.Buffer
	shell.Stdout, shell.Stderr = &out, &out
	err := shell.Run()
	rest := out.String()
	for i, command := range commands {
		got, after, found := strings.Cut(rest, fmt.Sprintf("\n%s %d: ", marker, i))
		if !found {
			t.Fatalf("line %d: %s\nthe shell ended (%v):\n%s", command.line, command.text, err, rest)
		}
		status, remaining, _ := strings.Cut(after, "\n")
		rest = remaining
		if status != "0" {
			t.Errorf("line %d: %s\nended with %s:\n%s", command.line, command.text, status, got)
			continue
		}
		if len(command.want) > 0 && !sameOutput(strings.Split(strings.TrimRight(got, "\n"), "\n"), command.want) {
			t.Errorf("line %d: %s\nprinted\n%s\nthe page shows\n%s", command.line, command.text, got, strings.Join(command.want, "\n"))
		}
	}
}

// shellFor makes a shell with quotad in its PATH. All processes that it starts end with the test.
func shellFor(t *testing.T, dir, server string) *exec.Cmd {
	t.Helper()
	for _, program := range []string{"bash", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("the documents' commands need %s: %v", program, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	shell := exec.CommandContext(ctx, "bash")
	shell.Dir = dir
	shell.Env = documentEnv(t, "QUOTAD_SERVER="+server)
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	kill := func() error {
		err := syscall.Kill(-shell.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
	shell.Cancel, shell.WaitDelay = kill, 5*time.Second
	t.Cleanup(func() {
		cancel()
		if shell.Process != nil {
			_ = kill() // nodes that the page left running
		}
	})
	return shell
}

// documentEnv is an environment whose PATH starts with the quotad that runs documents' commands.
func documentEnv(t *testing.T, extra ...string) []string {
	t.Helper()
	bin := t.TempDir()
	command, err := commandLine()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(command, filepath.Join(bin, "quotad")); err != nil {
		t.Fatal(err)
	}
	return append([]string{"PATH=" + bin + ":" + os.Getenv("PATH"), "HOME=" + bin, "TMPDIR=" + bin, "GORACE=" + raceExit}, extra...)
}

func startDev(t *testing.T, dir, address string) {
	t.Helper()
	env := documentEnv(t)
	dev := exec.Command(filepath.Join(strings.TrimPrefix(strings.Split(env[0], ":")[0], "PATH="), "quotad"), "dev", "--listen", address)
	dev.Dir, dev.Env = dir, env
	var said bytes.Buffer
	dev.Stderr = &said
	if err := dev.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = dev.Process.Signal(syscall.SIGTERM)
		if err := dev.Wait(); err != nil {
			t.Errorf("quotad dev ended with %v:\n%s", err, said.String())
		}
	})
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		if code, _ := fetch("http://" + address + "/readyz"); code == 200 {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("quotad dev is not ready:\n%s", said.String())
		}
	}
}

var (
	varies = regexp.MustCompile(`\b[0-9a-f]{32,}\b|\b(\d+(\.\d+)?(h|ms|µs|m|s))+\b|\d+(\.\d+)?`)
	blanks = regexp.MustCompile(`\s+`)
)

// normal replaces the parts of a line that differ from run to run.
func normal(line string) string {
	return strings.TrimSpace(blanks.ReplaceAllString(varies.ReplaceAllString(line, "N"), " "))
}

// sameOutput compares output with the output that a page shows.
func sameOutput(got, want []string) bool {
	if len(want) == 0 {
		return len(got) == 0
	}
	if want[0] == "..." {
		for skip := 0; skip <= len(got); skip++ {
			if sameOutput(got[skip:], want[1:]) {
				return true
			}
		}
		return false
	}
	return len(got) > 0 && sameLine(normal(got[0]), normal(want[0])) && sameOutput(got[1:], want[1:])
}

// sameLine compares two lines; "..." in the wanted one stands for any text.
func sameLine(got, want string) bool {
	parts := strings.Split(want, "...")
	for i, part := range parts {
		parts[i] = regexp.QuoteMeta(part)
	}
	return regexp.MustCompile("^" + strings.Join(parts, ".*") + "$").MatchString(got)
}

func TestSameOutput(t *testing.T) {
	for _, c := range []struct {
		got, want string
		same      bool
	}{
		{"lease  1\nexpires in  4m59.9s", "lease  42\nexpires in  5m0s", true},
		{"a\nb\nc", "a\n...", true},
		{"a\nb\nc", "...\nc", true},
		{"a\nb\nc", "a\nc", false},
		{"n1 is healthy: leader", "n1 is ...", true},
		{"n1 is healthy: leader", "... is healthy", false},
		{"a", "a\nb", false},
		{"held 3", "consumed 3", false},
	} {
		if same := sameOutput(strings.Split(c.got, "\n"), strings.Split(c.want, "\n")); same != c.same {
			t.Errorf("%q and %q: %v", c.got, c.want, same)
		}
	}
}

// TestSettingsReference_MatchesConfig: the reference of the settings in docs/operations.md equals the table of package config, row by
// row.
func TestSettingsReference_MatchesConfig(t *testing.T) {
	const path, begin, end = "../../docs/operations.md", "<!-- settings -->\n", "<!-- end of settings -->"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), begin)
	table, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("the page has no place for the settings")
	}
	want := settingsTable()
	if *updateScripts {
		if err := os.WriteFile(path, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if table != want {
		t.Errorf("the page says\n%s\nthe settings are\n%s\nrun the tests of this package with -update", table, want)
	}
}

func settingsTable() string {
	var table strings.Builder
	table.WriteString("\n| key | default | unit | meaning |\n| --- | --- | --- | --- |\n")
	for _, s := range config.Settings() {
		value := "-"
		if s.Default != "" {
			value = "`" + s.Default + "`"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", s.Key, value, s.Unit, s.Help)
	}
	table.WriteString("\n")
	return table.String()
}

// TestReadme_IsShort: it says what quotad is and where to read on, on a page or two.
func TestReadme_IsShort(t *testing.T) {
	text, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(string(text), "\n"); lines > 150 {
		t.Errorf("README.md has %d lines; at most 150 are allowed", lines)
	}
}
