package packaging

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience bounds the start or end of a node on a busy machine.
const patience = 2 * time.Minute

// The paths of the package's parts.
const (
	binaryPath = "/usr/bin/quotad"
	configPath = "/etc/quotad/quotad.yaml"
	unitPath   = "/usr/lib/systemd/system/quotad.service"

	gatewayUnitPath = "/usr/lib/systemd/system/quotad-gateway.service"
)

// TestPackage_InstallsFilesOfNode: the files are in their places, the configuration survives an upgrade, and no script
// starts a node.
func TestPackage_InstallsFilesOfNode(t *testing.T) {
	d := unpack(t)
	for path, mode := range map[string]os.FileMode{
		binaryPath: 0o755, configPath: 0o644, unitPath: 0o644, "/usr/lib/sysusers.d/quotad.conf": 0o644,
		gatewayUnitPath:                   0o644,
		"/usr/share/man/man1/quotad.1.gz": 0o644, "/usr/share/bash-completion/completions/quotad": 0o644,
		"/usr/share/zsh/vendor-completions/_quotad": 0o644, "/usr/share/fish/vendor_completions.d/quotad.fish": 0o644,
		"/usr/share/doc/quotad/copyright": 0o644,
	} {
		if got, ok := d.modes[path]; !ok || got.Perm() != mode {
			t.Errorf("%s has mode %v (there: %v), want %v", path, got, ok, mode)
		}
	}
	if got := strings.Fields(d.control["conffiles"]); !slices.Equal(got, []string{configPath}) {
		t.Errorf("conffiles are %v", got)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		text := d.control[script]
		if text == "" {
			t.Errorf("there is no %s", script)
		}
		for _, word := range []string{" start", "restart", "enable"} {
			if strings.Contains(strings.ReplaceAll(withoutComments(text), "disable", ""), word) {
				t.Errorf("%s has %q: installing starts nothing\n%s", script, word, text)
			}
		}
	}
}

// withoutComments drops a shell script's comments.
func withoutComments(script string) string {
	var kept []string
	for line := range strings.Lines(script) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

// TestPackage_IsOneForDpkg: dpkg reads the package as these tests do.
func TestPackage_IsOneForDpkg(t *testing.T) {
	path := packagePath(t)
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		t.Fatal("dpkg-deb is missing, and nothing else reads the package as dpkg does: install dpkg")
	}
	listed, err := exec.CommandContext(t.Context(), "dpkg-deb", "--contents", path).CombinedOutput()
	if err != nil || !bytes.Contains(listed, []byte("."+unitPath)) {
		t.Errorf("dpkg-deb lists, with %v:\n%s", err, listed)
	}
	fields, err := exec.CommandContext(t.Context(), "dpkg-deb", "--field", path, "Package", "Depends").CombinedOutput()
	if err != nil || !bytes.Contains(fields, []byte("Package: quotad")) {
		t.Errorf("dpkg-deb shows, with %v:\n%s", err, fields)
	}
}

// TestPackage_UnitsVerify: systemd finds no mistake in the units, and both give their process as little as it needs.
func TestPackage_UnitsVerify(t *testing.T) {
	d := unpack(t)
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Fatal("systemd-analyze is missing, and nothing else checks the units: install systemd")
	}
	for path, needs := range map[string][]string{
		unitPath:        {"NoNewPrivileges=true", "CapabilityBoundingSet=", "ProtectSystem=strict"},
		gatewayUnitPath: {"DynamicUser=true", "NoNewPrivileges=true", "CapabilityBoundingSet=", "ProtectSystem=strict"},
	} {
		shipped, err := os.ReadFile(filepath.Join(d.root, path))
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(string(shipped), "\n")
		for _, line := range needs {
			if !slices.Contains(lines, line) {
				t.Errorf("%s has no line %s", path, line)
			}
		}
		// The unit's program is not installed; use the unpacked one.
		unit := filepath.Join(t.TempDir(), filepath.Base(path))
		text := strings.ReplaceAll(string(shipped), binaryPath, filepath.Join(d.root, binaryPath))
		if err := os.WriteFile(unit, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		said, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit).CombinedOutput()
		if err != nil || len(said) > 0 {
			t.Errorf("%s: systemd-analyze says, with %v:\n%s", path, err, said)
		}
	}
}

// execStart returns the words of the unit's command, with the paths of the unpacked files.
func execStart(t *testing.T, d *deb) []string {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(d.root, unitPath))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(unit)) {
		if command, found := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); found {
			words := strings.Fields(command)
			for i, word := range words {
				if word == binaryPath || word == configPath {
					words[i] = filepath.Join(d.root, word)
				}
			}
			return words
		}
	}
	t.Fatalf("the unit has no ExecStart:\n%s", unit)
	return nil
}

// TestPackage_CommandOfTheUnitServes: the command of ExecStart, with the shipped configuration, notifies systemd that it is
// ready, serves, and ends in order. The test replaces only the directories of a system, and addresses that another node may
// use.
func TestPackage_CommandOfTheUnitServes(t *testing.T) {
	d := unpack(t)
	socket := filepath.Join(t.TempDir(), "notify")
	reported, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reported.Close() }()
	api, raft := freeAddress(t), freeAddress(t)
	words := append(execStart(t, d), "--data-dir", filepath.Join(t.TempDir(), "data"), "--api-listen", api, "--raft-listen", raft)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	node := exec.CommandContext(ctx, words[0], words[1:]...)
	node.Env = []string{"NOTIFY_SOCKET=" + socket}
	said := new(output)
	node.Stdout, node.Stderr = said, said
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	if err := reported.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	message := make([]byte, 4096)
	size, err := reported.Read(message)
	if err != nil || !strings.Contains(string(message[:size]), "READY=1") {
		t.Fatalf("systemd receives %q, %v; the node says:\n%s", message[:size], err, said)
	}
	awaitReady(ctx, t, api, said)
	if err := node.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("it ended with %v:\n%s", err, said)
	}
}

// awaitReady waits until a node is ready to serve.
func awaitReady(ctx context.Context, t *testing.T, api string, said *output) {
	t.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+api+"/readyz", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			body, readErr := io.ReadAll(response.Body)
			err = errors.Join(readErr, response.Body.Close())
			if err == nil && response.StatusCode == http.StatusOK {
				return
			}
			err = errors.Join(err, errors.New(string(body)))
		}
		select {
		case <-ctx.Done():
			t.Fatalf("not ready: %v; the node says:\n%s", err, said)
		case <-ticker.C:
		}
	}
}

// freeAddress returns an unused loopback address.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

// output collects the output of a process.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// TestPackage_StartsUnderSystemd installs the package where systemd runs, which starts nothing. Once started, the node
// serves, and continues to run while the package is upgraded.
func TestPackage_StartsUnderSystemd(t *testing.T) {
	path := packagePath(t)
	if _, err := os.Stat("/run/systemd/system"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("systemd does not run here")
	}
	if os.Geteuid() != 0 {
		t.Fatal("systemd runs here, and only root can install the package: run this as root")
	}
	if _, err := os.Stat(binaryPath); err == nil {
		t.Fatal("quotad is installed here already: remove it, or test on another machine")
	}
	run := func(program string, args ...string) string {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		said, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
		if err != nil {
			t.Errorf("%s %v: %v\n%s", program, args, err, said)
		}
		return string(said)
	}
	t.Cleanup(func() {
		run("dpkg", "--purge", "quotad")
		if err := os.RemoveAll("/var/lib/quotad"); err != nil {
			t.Error(err)
		}
	})
	run("dpkg", "--install", path)
	state := func() string {
		said, _ := exec.CommandContext(context.Background(), "systemctl", "is-active", "quotad").Output() // it fails for an inactive unit
		return strings.TrimSpace(string(said))
	}
	if got := state(); got != "inactive" {
		t.Errorf("installed, the node is %s", got)
	}
	run("systemctl", "start", "quotad")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	awaitReady(ctx, t, "127.0.0.1:7450", new(output))
	run("systemctl", "reload", "quotad")
	run("dpkg", "--install", path)
	if got := state(); got != "active" {
		t.Errorf("after an upgrade of the package the node is %s", got)
	}
	run("systemctl", "stop", "quotad")
	if got := state(); got != "inactive" {
		t.Errorf("stopped, the node is %s", got)
	}
}
