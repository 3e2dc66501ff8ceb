package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Node is a node and its current process.
type Node struct {
	// ID is its name in the cluster; API, Raft and Ops are its addresses.
	ID, API, Raft, Ops string

	cluster          *Cluster
	host             Host
	how              []string
	quota            quotav1connect.QuotaServiceClient
	admin, operators quotav1connect.AdminServiceClient

	mu   sync.Mutex
	life *life
	// binary is the quotad that its next process runs.
	binary string
	// down says that the node was stopped on purpose: the supervisor leaves it alone.
	down bool
	// retired says that it was removed from the cluster.
	retired bool
}

// life is one process.
type life struct {
	process *os.Process
	ended   chan struct{}
	// asked says that its end was requested.
	asked bool
}

// URL is the URL of its API.
func (n *Node) URL() string { return n.scheme() + n.API }

// OpsURL is the URL of its port for operators.
func (n *Node) OpsURL() string { return n.scheme() + n.Ops }

func (n *Node) scheme() string {
	if n.cluster.config.Certificates != nil {
		return "https://"
	}
	return "http://"
}

// errRunning says that a node runs already.
var errRunning = errors.New("it runs already")

// Start starts the node's process.
func (n *Node) Start() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != nil {
		return fmt.Errorf("%s: %w", n.ID, errRunning)
	}
	n.down = false
	return n.startLocked()
}

func (n *Node) startLocked() error {
	c := n.cluster.config
	log, err := appendTo(c.History.Log(n.ID))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the process has its own descriptor
	flags, err := n.cluster.flags(n.host, n.ID, c.Data(n.ID), n.how)
	if err != nil {
		return err
	}
	flags = append(flags, "--testing=true", "--testing-record", c.History.Record(n.ID))
	cmd := exec.CommandContext(context.Background(), n.binary, flags...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.host.Start(cmd); err != nil {
		return fmt.Errorf("%s: %w", n.ID, err)
	}
	l := &life{process: cmd.Process, ended: make(chan struct{})}
	n.life = l
	n.cluster.wg.Go(func() { n.supervise(cmd, l) })
	return nil
}

// flags are the flags of a process that serves on a host.
func (c *Cluster) flags(host Host, id, data string, how []string) ([]string, error) {
	flags := append([]string{
		"serve", "--node-id", id, "--data-dir", data,
		"--api-listen", net.JoinHostPort(host.ListenIP(), fmt.Sprint(APIPort)), "--api-advertise", apiAddress(host),
		"--raft-listen", net.JoinHostPort(host.ListenIP(), fmt.Sprint(RaftPort)), "--raft-advertise", raftAddress(host),
		"--ops-listen", net.JoinHostPort(host.ListenIP(), fmt.Sprint(OpsPort)),
	}, how...)
	if c.config.Certificates == nil {
		flags = append(flags, "--api-insecure=true", "--raft-insecure=true") // only the suite's hosts reach them
	} else {
		if err := c.config.Certificates.Add(context.Background(), id, host.IP()); err != nil {
			return nil, err
		}
		flags = append(flags, c.config.Certificates.Flags(id)...)
	}
	return append(flags, c.config.Flags...), nil
}

// supervise waits for the end of a process, and restarts it as a service supervisor does.
func (n *Node) supervise(cmd *exec.Cmd, l *life) {
	err := cmd.Wait()
	n.mu.Lock()
	n.life = nil
	asked, down := l.asked, n.down
	n.mu.Unlock()
	close(l.ended)
	if asked {
		return
	}
	how := "exit 0"
	if err != nil {
		how = err.Error()
	}
	n.cluster.mu.Lock()
	n.cluster.exits = append(n.cluster.exits, history.Exit{Node: n.ID, At: history.Now(), How: how})
	n.cluster.mu.Unlock()
	if down {
		return
	}
	time.Sleep(n.cluster.config.RestartAfter)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cluster.mu.Lock()
	done := n.cluster.done
	n.cluster.mu.Unlock()
	if n.life == nil && !n.down && !done {
		_ = n.startLocked() // the next check of the node shows a failure
	}
}

// Running says whether the node's process lives.
func (n *Node) Running() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life != nil
}

// end marks the node as down, signals its process, and waits for its end.
func (n *Node) end(signal syscall.Signal, within time.Duration) bool {
	n.mu.Lock()
	n.down = true
	l := n.life
	if l != nil {
		l.asked = true
		_ = l.process.Signal(signal) // it may have ended just now
	}
	n.mu.Unlock()
	if l == nil {
		return false
	}
	select {
	case <-l.ended:
		return true
	case <-time.After(within):
		return false
	}
}

// Kill kills the process with SIGKILL and keeps it down until Start. It says whether there was a process.
func (n *Node) Kill() bool { return n.end(syscall.SIGKILL, 10*time.Second) }

// Stop stops the process with SIGTERM and keeps it down until Start. It says whether the process ended within 15 s.
func (n *Node) Stop() bool { return n.end(syscall.SIGTERM, 15*time.Second) }

// Pause stops the process with SIGSTOP; Resume continues it.
func (n *Node) Pause() error { return n.signal(syscall.SIGSTOP) }

// Resume continues a paused process.
func (n *Node) Resume() error { return n.signal(syscall.SIGCONT) }

// Reload makes the process read its files again, by SIGHUP, and waits until its log confirms it.
func (n *Node) Reload(ctx context.Context) error {
	path := n.cluster.config.History.Log(n.ID)
	before, err := countLines(path, reloaded)
	if err != nil {
		return err
	}
	if err := n.signal(syscall.SIGHUP); err != nil {
		return err
	}
	for {
		now, err := countLines(path, reloaded)
		if err != nil || now > before {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s does not say that it read its files again: %w", n.ID, ctx.Err())
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// Said is the node's whole log.
func (n *Node) Said() ([]byte, error) { return os.ReadFile(n.cluster.config.History.Log(n.ID)) }

// reloaded is in the log line of a node that has read all its files again.
const reloaded = ": reloaded:"

// countLines counts the occurrences of a word in a file.
func countLines(path, word string) (int, error) {
	text, err := os.ReadFile(path)
	return strings.Count(string(text), word), err
}

func (n *Node) signal(signal syscall.Signal) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life == nil {
		return fmt.Errorf("%s does not run", n.ID)
	}
	return n.life.process.Signal(signal)
}

// State is the process's state in the kernel: R, S, D, T, Z, or "" without a process.
func (n *Node) State() string {
	n.mu.Lock()
	l := n.life
	n.mu.Unlock()
	if l == nil {
		return ""
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", l.process.Pid))
	if err != nil {
		return ""
	}
	_, rest, ok := strings.Cut(string(stat), ") ")
	if !ok || rest == "" {
		return ""
	}
	return rest[:1]
}

// Status returns the node's own status.
func (n *Node) Status(ctx context.Context) (*quotav1.GetStatusResponse, error) {
	return n.admin.GetStatus(ctx, &quotav1.GetStatusRequest{})
}

// Admin is the node's API for operators, called from the operator's host.
func (n *Node) Admin() quotav1connect.AdminServiceClient { return n.admin }

// Operators is the API for operators at the separate port.
func (n *Node) Operators() quotav1connect.AdminServiceClient { return n.operators }

// Quota is the node's API for holders.
func (n *Node) Quota() quotav1connect.QuotaServiceClient { return n.quota }

// SetClock shifts the node's wall clock by an offset and sets the rate of its monotonic clock, in millionths.
func (n *Node) SetClock(ctx context.Context, offset time.Duration, ratePPM int64) error {
	_, err := n.admin.SetFault(ctx, &quotav1.SetFaultRequest{WallOffset: durationpb.New(offset), ClockRatePpm: &ratePPM})
	return err
}

// CrashAt makes the process kill itself when it passes a named point for the count-th time.
func (n *Node) CrashAt(ctx context.Context, point string, count int32) error {
	_, err := n.admin.SetFault(ctx, &quotav1.SetFaultRequest{CrashAt: &point, CrashCount: count})
	return err
}

// awaitReady waits until the node reports that it is ready.
func (n *Node) awaitReady(ctx context.Context) error {
	for {
		err := n.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (n *Node) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, n.URL()+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := n.cluster.http.Do(request)
	if err != nil {
		return err
	}
	_ = response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz says %d", response.StatusCode)
	}
	return nil
}

func appendTo(path string) (*os.File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}
