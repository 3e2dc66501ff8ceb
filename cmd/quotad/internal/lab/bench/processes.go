package bench

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/local"
)

// startIn bounds the time until a system serves.
const startIn = 30 * time.Second

// Processes are the processes of a system.
type Processes struct {
	// nurseries started them, one nursery each, because the binaries of a system may differ.
	nurseries []*local.Nursery
	all       []*local.Child
}

// Start starts a process; its output goes to a file in the folder.
func (p *Processes) Start(dir, name, binary string, args ...string) error {
	nursery := local.NewNursery(binary, dir)
	p.nurseries = append(p.nurseries, nursery)
	child, err := nursery.Start(name, nil, args...)
	if err != nil {
		return err
	}
	p.all = append(p.all, child)
	return nil
}

// PIDs returns the process ids.
func (p *Processes) PIDs() []int {
	pids := make([]int, len(p.all))
	for i, child := range p.all {
		pids[i] = child.PID()
	}
	return pids
}

// stopGrace is the time that processes have for an orderly end.
const stopGrace = 12 * time.Second

// Stop ends all processes, in order if possible.
func (p *Processes) Stop() {
	local.Stop(stopGrace, p.all...)
	for _, nursery := range p.nurseries {
		nursery.Close(stopGrace)
	}
	p.nurseries, p.all = nil, nil
}

// Retry calls try until it succeeds or startIn is over.
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
