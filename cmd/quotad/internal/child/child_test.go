package child

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// helperVariable makes this test binary a parent that runs a command, without a terminal.
const helperVariable = "QUOTAD_CHILD_HELPER"

func TestMain(m *testing.M) {
	if script := os.Getenv(helperVariable); script != "" {
		state, err := (&Command{
			Args: []string{"sh", "-c", script}, In: os.Stdin, Out: os.Stdout, Err: os.Stderr,
			OwnGroup: true,
		}).Run(context.Background())
		if err != nil {
			os.Exit(99)
		}
		code, _ := ExitOf(state)
		os.Exit(code)
	}
	goleak.VerifyTestMain(m)
}

// patience bounds every wait; no test concludes anything from a duration.
const patience = 60 * time.Second

// waitFor waits until a file has the text.
func waitFor(t *testing.T, path, text string) {
	t.Helper()
	deadline, ticker := time.NewTimer(patience), time.NewTicker(10*time.Millisecond)
	defer deadline.Stop()
	defer ticker.Stop()
	for {
		if got, err := os.ReadFile(path); err == nil && strings.Contains(string(got), text) {
			return
		}
		select {
		case <-ticker.C:
		case <-deadline.C:
			t.Fatalf("%s does not say %q", path, text)
		}
	}
}

// TestCommand_PassesSignalsToItsGroup: without a terminal a signal reaches all processes that the command started, and the
// parent ends with the command's exit code.
func TestCommand_PassesSignalsToItsGroup(t *testing.T) {
	for name, number := range map[string]syscall.Signal{"HUP": syscall.SIGHUP, "INT": syscall.SIGINT, "TERM": syscall.SIGTERM} {
		dir := t.TempDir()
		// A non-interactive shell starts background jobs with SIGINT ignored, so the grandchild is a foreground one.
		grandchild := `trap 'echo got >> ` + dir + `/grandchild; exit 0' ` + name + `; echo ready >> ` + dir +
			`/grandchild; while :; do sleep 0.05; done`
		script := `trap 'echo got >> ` + dir + `/child; exit 7' ` + name + `; sh -c "$0"; exit 8`
		parent := exec.CommandContext(t.Context(), os.Args[0])
		parent.Env = append(os.Environ(), helperVariable+"=set -- ; "+strings.ReplaceAll(script, `"$0"`, "'"+strings.ReplaceAll(grandchild, "'",
			`'\''`)+"'"))
		parent.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := parent.Start(); err != nil {
			t.Fatal(err)
		}
		waitFor(t, filepath.Join(dir, "grandchild"), "ready")
		if err := parent.Process.Signal(number); err != nil {
			t.Fatal(err)
		}
		err := parent.Wait()
		ended, ok := errors.AsType[*exec.ExitError](err)
		if !ok || ended.ExitCode() != 7 {
			t.Errorf("%s: ended with %v, want 7", name, err)
		}
		waitFor(t, filepath.Join(dir, "grandchild"), "got")
		waitFor(t, filepath.Join(dir, "child"), "got")
	}
}

// TestCommand_StopsWhenAsked: a command that is stopped gets SIGTERM, and its own exit code counts.
func TestCommand_StopsWhenAsked(t *testing.T) {
	dir := t.TempDir()
	stop := make(chan struct{})
	script := `trap 'exit 3' TERM; echo ready > ` + dir + `/ready; while :; do sleep 0.05; done`
	type ending struct {
		state *os.ProcessState
		err   error
	}
	ended := make(chan ending, 1)
	go func() {
		state, err := (&Command{Args: []string{"sh", "-c", script}, Stop: stop}).Run(context.Background())
		ended <- ending{state, err}
	}()
	waitFor(t, filepath.Join(dir, "ready"), "ready")
	close(stop)
	got := <-ended
	if got.err != nil {
		t.Fatal(got.err)
	}
	if code, _ := ExitOf(got.state); code != 3 {
		t.Errorf("exit code %d, want 3", code)
	}
}

// TestCommand_ExitCodeIsThatOfShell: exit codes are those of a shell, and the command gets the given streams and environment.
func TestCommand_ExitCodeIsThatOfShell(t *testing.T) {
	for script, want := range map[string]int{"exit 0": 0, "exit 42": 42, "kill -KILL $$": 137, "kill -TERM $$": 143} {
		state, err := (&Command{Args: []string{"sh", "-c", script}}).Run(t.Context())
		if err != nil {
			t.Fatalf("%s: %v", script, err)
		}
		if code, words := ExitOf(state); code != want || words == "" {
			t.Errorf("%s: exit code %d (%s), want %d", script, code, words, want)
		}
	}
	var out bytes.Buffer
	command := &Command{
		Args: []string{"sh", "-c", `echo "$NAME"; cat`}, Env: append(os.Environ(), "NAME=value"),
		In: strings.NewReader("input"), Out: &out,
	}
	if _, err := command.Run(t.Context()); err != nil || out.String() != "value\ninput" {
		t.Errorf("it wrote %q, with %v", out.String(), err)
	}
}

// TestCommand_NamesStartFailure: the errors distinguish a program that cannot run from one that does not exist, and a
// command whose parent was interrupted does not start.
func TestCommand_NamesStartFailure(t *testing.T) {
	dir := t.TempDir()
	plain, broken := filepath.Join(dir, "plain"), filepath.Join(dir, "broken")
	for path, mode := range map[string]os.FileMode{plain: 0o600, broken: 0o700} {
		if err := os.WriteFile(path, []byte("#!/no/such/interpreter\n"), mode); err != nil { //nolint:gosec // one of them has to be executable
			t.Fatal(err)
		}
	}
	if err := Find(filepath.Join(dir, "none")); !errors.As(err, new(*MissingError)) {
		t.Errorf("a missing program: %v", err)
	}
	if err := Find(plain); !errors.As(err, new(*NotStartedError)) || !errors.Is(err, os.ErrPermission) {
		t.Errorf("a plain file: %v", err)
	}
	if err := Find("sh"); err != nil {
		t.Errorf("sh: %v", err)
	}
	if _, err := (&Command{Args: []string{broken}}).Run(t.Context()); !errors.As(err, new(*NotStartedError)) {
		t.Errorf("a broken interpreter: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	mark := filepath.Join(dir, "mark")
	if _, err := (&Command{Args: []string{"touch", mark}}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted before its start: %v", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("it ran although its parent was interrupted")
	}
}
