package main

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// sayings collects the output of a process.
type sayings struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (s *sayings) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.Write(p)
}

func (s *sayings) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all.String()
}

// startStuck starts a node with one call in flight that never ends: a restore whose body never arrives.
func startStuck(t *testing.T) (*exec.Cmd, *sayings, <-chan error) {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	env := documentEnv(t)
	program := filepath.Join(strings.TrimPrefix(strings.Split(env[0], ":")[0], "PATH="), "quotad")
	node, said := exec.Command(program, "dev", "--listen", address, "--log-level", "info"), new(sayings)
	node.Env, node.Stderr = env, said
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()
	t.Cleanup(func() { _ = node.Process.Kill() })
	waitFor(t, said, func() bool {
		code, _ := fetch("http://" + address + "/readyz")
		return code == 200
	})
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /quota.v1.AdminService/Restore HTTP/1.1\r\nHost: %s\r\n"+
		"Content-Type: application/connect+proto\r\nTransfer-Encoding: chunked\r\n\r\n", address)
	if err != nil {
		t.Fatal(err)
	}
	waitFor(t, said, func() bool {
		_, body := fetch("http://" + address + "/metrics")
		return strings.Contains(body, "quotad_api_calls_in_flight 1")
	})
	return node, said, ended
}

func waitFor(t *testing.T, said *sayings, fine func() bool) {
	t.Helper()
	deadline := time.After(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for !fine() {
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("not within %v; the node said:\n%s", patience, said)
		}
	}
}

// TestStop_StuckCallDoesNotDelayIt: one call that hangs does not keep a node from an orderly end.
func TestStop_StuckCallDoesNotDelayIt(t *testing.T) {
	t.Parallel() // mostly waiting
	node, said, ended := startStuck(t)
	if err := node.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v:\n%s", err, said)
		}
	case <-time.After(patience):
		t.Fatalf("still there:\n%s", said)
	}
}

// TestStop_SecondSignalEndsAtOnce: the second signal ends a node at once, whatever it still waits for.
func TestStop_SecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel() // mostly waiting
	node, said, ended := startStuck(t)
	if err := node.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	waitFor(t, said, func() bool { return strings.Contains(said.String(), "stopping") })
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	deadline := time.After(patience)
	for {
		_ = node.Process.Signal(syscall.SIGTERM) // the process may be gone
		select {
		case err := <-ended:
			if err == nil {
				t.Fatalf("it ended in order:\n%s", said)
			}
			status, ok := node.ProcessState.Sys().(syscall.WaitStatus)
			if !ok || !status.Signaled() || status.Signal() != syscall.SIGTERM {
				t.Errorf("ended with %v, not by the signal:\n%s", node.ProcessState, said)
			}
			return
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("still there:\n%s", said)
		}
	}
}
