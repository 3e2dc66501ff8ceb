package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

// Nursery starts child processes and ensures that none outlives this one.
type Nursery struct {
	binary string
	logs   string
	starts chan func()
	done   chan struct{}

	mu       sync.Mutex
	children []*Child
}

// NewNursery returns a nursery for children of the binary, whose standard error goes to files in the folder logs. Close
// ends it.
func NewNursery(binary, logs string) *Nursery {
	n := &Nursery{binary: binary, logs: logs, starts: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(n.done)
		// Linux kills a child when the thread that started it ends, not when the process ends. So one thread starts all
		// children, and lives as long as they do.
		runtime.LockOSThread()
		for start := range n.starts {
			start()
		}
	}()
	return n
}

// Child is a started process.
type Child struct {
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	log   *os.File
	// ended is closed when the process has ended; err is then the result of its end.
	ended chan struct{}
	err   error
}

// Start starts the binary with arguments. Each line of its standard output goes to lines, if there is one.
func (n *Nursery) Start(name string, lines func([]byte), args ...string) (*Child, error) {
	log, err := os.OpenFile(filepath.Join(n.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(n.binary, args...) //nolint:noctx // a context would kill it; stop asks first
	cmd.Env = withoutQuotad(os.Environ())
	cmd.SysProcAttr = dieWithParent()
	cmd.WaitDelay = time.Second
	cmd.Stderr = log
	cmd.Stdout = log
	if lines != nil {
		cmd.Stdout = &lineReader{fn: lines}
	}
	c := &Child{name: name, cmd: cmd, log: log, ended: make(chan struct{})}
	if c.stdin, err = cmd.StdinPipe(); err == nil {
		started := make(chan error)
		n.starts <- func() { started <- cmd.Start() }
		err = <-started
	}
	if err != nil {
		_ = log.Close()
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	go func() {
		defer close(c.ended)
		c.err = cmd.Wait()
		_ = log.Close()
	}()
	n.mu.Lock()
	n.children = append(n.children, c)
	n.mu.Unlock()
	return c, nil
}

// withoutQuotad removes the variables that would configure a node.
func withoutQuotad(environ []string) []string {
	var kept []string
	for _, variable := range environ {
		if !strings.HasPrefix(variable, "QUOTAD_") {
			kept = append(kept, variable)
		}
	}
	return kept
}

// Name returns the name given to Start.
func (c *Child) Name() string { return c.name }

// PID returns the process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Log returns the path of its log.
func (c *Child) Log() string { return c.log.Name() }

// Ended is closed when the process has ended.
func (c *Child) Ended() <-chan struct{} { return c.ended }

// Alive reports whether the process still runs.
func (c *Child) Alive() bool {
	select {
	case <-c.ended:
		return false
	default:
		return true
	}
}

// ask requests the process's end, by the end of its input and by a signal.
func (c *Child) ask() {
	_ = c.stdin.Close() // the process may have ended
	if err := c.cmd.Process.Signal(politeSignal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		_ = c.cmd.Process.Kill()
	}
}

// Kill ends the process at once with SIGKILL, and waits for its end.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill() // the process may have ended
	<-c.ended
}

// Stop requests the end of processes, and kills those that have not ended after grace.
func Stop(grace time.Duration, children ...*Child) {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	for _, c := range children {
		if c.Alive() {
			c.ask()
		}
	}
	for _, c := range children {
		select {
		case <-c.ended:
		case <-ctx.Done():
			c.Kill()
		}
	}
}

// Close stops all running children, and then the nursery.
func (n *Nursery) Close(grace time.Duration) {
	n.mu.Lock()
	children := n.children
	n.mu.Unlock()
	Stop(grace, children...)
	close(n.starts)
	<-n.done
}
