package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// startIn is how long a system may take to serve.
const startIn = 30 * time.Second

// Processes are those of a system.
type Processes struct{ all []*exec.Cmd }

// Start starts a process, whose output goes into a file of the folder.
func (p *Processes) Start(dir, name, binary string, args ...string) error {
	log, err := os.Create(filepath.Join(dir, name+".log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(binary, args...) //nolint:noctx // it is asked to stop, and killed if it does not
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p.all = append(p.all, cmd)
	return nil
}

// PIDs are the processes' numbers.
func (p *Processes) PIDs() []int {
	pids := make([]int, len(p.all))
	for i, cmd := range p.all {
		pids[i] = cmd.Process.Pid
	}
	return pids
}

// Stop ends all processes, in order if they can.
func (p *Processes) Stop() {
	for _, cmd := range p.all {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range p.all {
		killer := time.AfterFunc(12*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		killer.Stop()
	}
}

// Retry tries until it works or a system has had its time to start.
func Retry(ctx context.Context, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startIn)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			return nil
		}
		wait(ctx, 100*time.Millisecond)
		if ctx.Err() != nil {
			return fmt.Errorf("it does not serve: %w", err)
		}
	}
}

// VersionOf returns the first line that a command prints.
func VersionOf(ctx context.Context, binary string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, args...).Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w", binary, err)
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line, nil
}
