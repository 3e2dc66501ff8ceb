package daemon

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/quotad/quotad/cmd/quotad/internal/config"
	"github.com/quotad/quotad/cmd/quotad/internal/quotafile"
	"github.com/quotad/quotad/fsm/accounts"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds every wait; no test concludes anything from a duration.
const patience = 60 * time.Second

// load returns a loader of the configuration of one node in a directory.
func load(dir string, flags map[string]string) func() (*config.Loaded, error) {
	all := map[string]string{
		"data-dir": dir, "api-listen": "127.0.0.1:0", "raft-listen": "127.0.0.1:0",
		"disk-refuse-below": "0B", "disk-stop-below": "0B",
	}
	maps.Copy(all, flags)
	return func() (*config.Loaded, error) { return config.Load(config.Input{Flags: all}) }
}

// TestRun_NotifiesSystemdAndLeavesNothing: a node reports its start and stop to systemd, and leaves nothing behind.
func TestRun_NotifiesSystemdAndLeavesNothing(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	listener, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("NOTIFY_SOCKET", socket)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	quotas, err := quotafile.Parse("quotas.yaml", []byte("quotas: [{name: a, slots: {limit: 1}}]"))
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- Run(ctx, Options{
			Load: load(filepath.Join(t.TempDir(), "data"), nil), LogTo: io.Discard, Version: "test", Quotas: quotas,
			Ready: func(_ string, quotas error) {
				if quotas != nil {
					t.Error(quotas)
				}
				cancel()
			},
		})
	}()
	select {
	case err = <-ended:
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
	if err != nil {
		t.Error(err)
	}
	if err := listener.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	var states []string
	for !slices.Contains(states, "STOPPING=1") {
		message := make([]byte, 256)
		count, err := listener.Read(message)
		if err != nil {
			t.Fatalf("systemd heard only %v: %v", states, err)
		}
		states = append(states, string(message[:count]))
	}
	if states[0] != "READY=1" {
		t.Errorf("systemd heard %v", states)
	}
	if err := listener.Close(); err != nil {
		t.Error(err)
	}
}

func TestStart_RefusesBadSettings(t *testing.T) {
	for name, c := range map[string]struct {
		flags map[string]string
		open  bool
		want  string
	}{
		"tokens that are not there":     {flags: map[string]string{"tokens-file": "none.yaml"}, want: "none.yaml"},
		"certificates that do not load": {flags: map[string]string{"api-tls-cert": "none.pem", "api-tls-key": "none.pem"}, want: "none.pem"},
		"quotas that are not there":     {flags: map[string]string{"quotas-file": "none.yaml"}, want: "none.yaml"},
		"an address that is not its own": {
			flags: map[string]string{"api-listen": "203.0.113.1:7450", "api-insecure": "true"}, want: "api.listen",
		},
		"a directory open to all": {open: true, want: "other users can write it"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.open {
				if err := os.Chmod(dir, 0o777); err != nil {
					t.Fatal(err)
				}
			}
			err := Run(t.Context(), Options{Load: load(dir, c.flags), LogTo: io.Discard})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v", err)
			}
			var unsafe *UnsafeDirError
			if c.open != errors.As(err, &unsafe) {
				t.Errorf("got %T", err)
			}
		})
	}
}

// TestFirstLimits_FitTheMemory: an empty cluster gets lower budgets where the default ones do not fit the node's memory.
func TestFirstLimits_FitTheMemory(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "off") // leave the limit of the test process unchanged
	for limit, lowered := range map[int64]bool{256 << 20: true, 1 << 30: true, 2 << 30: true, 8 << 30: false, -1: false} {
		p := &process{config: config.Config{MemoryLimit: limit}, logger: hclog.NewNullLogger()}
		if p.memory = p.memoryLimit(); p.memory != max(limit, 0) {
			t.Errorf("a limit of %d counts as %d", limit, p.memory)
		}
		got := p.firstLimits()
		if (got != nil) != lowered {
			t.Errorf("a limit of %d: %v", limit, got)
		}
		if byDefault := accounts.DefaultLimits(); got != nil && (got.GetMaxLeases() >= byDefault.Leases || got.GetMaxLeases() < 1000 ||
			got.MaxReports != nil || got.MaxCalls != nil) {
			t.Errorf("a limit of %d: %v", limit, got)
		}
	}
}

func TestMeasureSync_LeavesNothingBehind(t *testing.T) {
	dir := t.TempDir()
	median, err := measureSync(dir)
	if err != nil || median <= 0 {
		t.Fatalf("%v, %v", median, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := measureSync(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}
