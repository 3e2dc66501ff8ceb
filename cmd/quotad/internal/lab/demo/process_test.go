package demo_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/quotad/quotad/client/providertest"
	"github.com/quotad/quotad/cmd/quotad/internal/cli"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/demo"
)

// TestMain runs quotad if the arguments are those of quotad: the demo starts its own binary, which is this test binary.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "demo" || os.Args[1] == "serve" || os.Args[1] == "gateway") {
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
		app := &cli.App{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Extra: []*cobra.Command{demo.Command()}}
		code := app.Run(ctx, os.Args[1:])
		stop()
		os.Exit(int(code))
	}
	goleak.VerifyTestMain(m)
}

// running is a running demo.
type running struct {
	cmd  *exec.Cmd
	dir  string
	said bytes.Buffer
	// nodes are the addresses of the nodes.
	nodes []string
	ended chan struct{}
	err   error
}

var nodesLine = regexp.MustCompile(`three nodes run \(([^)]*)\)`)

// start starts a demo and returns once its agents work.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	if testing.Short() {
		t.Skip("a dozen processes for many seconds")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r := &running{dir: filepath.Join(t.TempDir(), "demo"), ended: make(chan struct{})}
	r.cmd = exec.Command(binary, append([]string{"demo", "--dir", r.dir, "--fleet", "governed"}, args...)...)
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	r.cmd.Stderr = r.cmd.Stdout
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	working := make(chan []string, 1)
	go func() {
		defer close(r.ended)
		var nodes []string
		for lines := bufio.NewScanner(out); lines.Scan(); {
			line := lines.Text()
			r.said.WriteString(line + "\n")
			if found := nodesLine.FindStringSubmatch(line); found != nil {
				nodes = strings.Split(found[1], ", ")
			}
			if strings.Contains(line, "nine agents begin") {
				working <- nodes
			}
		}
		r.err = r.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
		if t.Failed() {
			t.Log(r.said.String())
		}
	})
	select {
	case r.nodes = <-working:
	case <-r.ended:
		t.Fatal("the demo ended early")
	case <-time.After(2 * time.Minute):
		t.Fatal("the demo did not begin")
	}
	return r
}

// wait waits for the end and returns the exit code.
func (r *running) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-r.ended:
	case <-time.After(3 * time.Minute):
		t.Fatal("the demo did not end")
	}
	return r.cmd.ProcessState.ExitCode()
}

// gone fails if a node still listens.
func (r *running) gone(t *testing.T) {
	t.Helper()
	if len(r.nodes) != 3 {
		t.Fatalf("nodes: %v", r.nodes)
	}
	deadline := time.Now().Add(30 * time.Second)
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for _, address := range r.nodes {
		for {
			connection, err := net.DialTimeout("tcp", address, time.Second)
			if err != nil {
				break
			}
			_ = connection.Close()
			if time.Now().After(deadline) {
				t.Fatalf("the node at %s is still there", address)
			}
			<-poll.C
		}
	}
}

// TestDemo_SurvivesKilledLeaderWithoutRefusal is the main case, shortened: nine agents, a killed leader, no refusal, and nothing left
// behind.
func TestDemo_SurvivesKilledLeaderWithoutRefusal(t *testing.T) {
	r := start(t, "--duration", "16s", "--seed", "11")
	if code := r.wait(t); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	r.gone(t)
	data, err := os.ReadFile(filepath.Join(r.dir, "report.json"))
	if err != nil {
		t.Fatal(err)
	}
	var report struct {
		OK        bool
		Seed      uint64
		Killed    string
		Restarted bool
		Fleets    []struct {
			Mode     string
			Requests struct{ Arrived, Admitted int64 }
			Agents   map[string]struct{ Tasks int }
		}
	}
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	if !report.OK || report.Seed != 11 || report.Killed == "" || !report.Restarted || len(report.Fleets) != 1 ||
		len(report.Fleets[0].Agents) != 9 {
		t.Errorf("report: %+v", report)
	}
	file, err := os.Open(filepath.Join(r.dir, "provider-requests.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	records, err := providertest.ReadRecords(file)
	if err != nil {
		t.Fatal(err)
	}
	holders := map[string]int{}
	for _, record := range records {
		holders[record.Holder]++
		if record.Verdict != providertest.Admitted {
			t.Errorf("not admitted: %+v", record)
		}
	}
	if len(holders) != 9 || int64(len(records)) < report.Fleets[0].Requests.Arrived {
		t.Errorf("who called: %v", holders)
	}
	for _, want := range []string{
		"THROUGH QUOTAD", "is killed (SIGKILL)", "is started again", "Through quotad no call was refused", "Seed: 11",
	} {
		if !strings.Contains(r.said.String(), want) {
			t.Errorf("it did not say %q", want)
		}
	}
}

func TestDemo_StopsOnInterrupt(t *testing.T) {
	r := start(t, "--duration", "5m")
	if err := r.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code := r.wait(t); code != int(cli.ExitInterrupted) {
		t.Errorf("exit code %d", code)
	}
	r.gone(t)
}

func TestDemo_KilledLeavesNoProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux ends the nodes of a demo that is killed")
	}
	r := start(t, "--duration", "5m")
	if err := r.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	r.wait(t)
	r.gone(t)
}

// TestDemo_RefusesWrongFlags: wrong usage has its own exit code, and creates no folder.
func TestDemo_RefusesWrongFlags(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "demo")
	for name, args := range map[string][]string{
		"fleet": {"--fleet", "none"}, "no fleet": {"--fleet", ""}, "too short": {"--duration", "1s"}, "too long": {"--duration", "1h"},
		"no duration": {"--duration", "soon"}, "no seed": {"--seed", "-1"}, "unknown flag": {"--sed", "1"},
	} {
		var said bytes.Buffer
		app := &cli.App{In: strings.NewReader(""), Out: &said, Err: &said, Extra: []*cobra.Command{demo.Command()}}
		if code := app.Run(t.Context(), append([]string{"demo", "--dir", dir}, args...)); code != cli.ExitUsage {
			t.Errorf("%s: exit code %d: %s", name, code, said.String())
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the folder was made")
	}
}
