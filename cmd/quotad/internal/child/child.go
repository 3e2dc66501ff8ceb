// Package child runs a command as a child process: it relays signals, stops the command on request, and turns its end into
// an exit code.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"
)

const (
	// stopGrace is the time between SIGTERM and SIGKILL for a command that is stopped.
	stopGrace = 10 * time.Second
	// drain is how long Run reads the streams of a command that has ended, where a process that it started holds them open.
	drain = 2 * time.Second
)

// Command is a command to run once.
type Command struct {
	// Args are the program and its arguments. Required.
	Args []string
	// Env is its environment; nil: this process's own.
	Env []string
	// In, Out and Err are its streams. The command inherits an *os.File directly.
	In       io.Reader
	Out, Err io.Writer
	// OwnGroup gives the command its own process group where there is no terminal, and signals reach the whole group.
	// Otherwise they reach the command alone. In a terminal the command stays in this process's group, so that keys reach
	// both and it can read. Windows has no such groups.
	OwnGroup bool
	// Stop ends the command when it is closed: SIGTERM, and SIGKILL ten seconds later; on Windows at once. Nil: never.
	Stop <-chan struct{}
}

// NotStartedError is the error for a program that cannot be started.
type NotStartedError struct{ Err error }

// Error implements error.
func (e *NotStartedError) Error() string { return "the command cannot be started: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *NotStartedError) Unwrap() error { return e.Err }

// MissingError is the error for a program that does not exist.
type MissingError struct{ Name string }

// Error implements error.
func (e *MissingError) Error() string { return e.Name + ": no such command" }

// Find looks for a program as the shell does; callers check before they reserve anything for it. The error is a
// *MissingError or a *NotStartedError.
func Find(name string) error {
	switch _, err := exec.LookPath(name); {
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return &MissingError{Name: name}
	case err != nil:
		return &NotStartedError{Err: fmt.Errorf("%s: %w", name, errors.Unwrap(err))}
	}
	return nil
}

// Run starts the command and waits for its end. If the context has ended before, the command does not start and the error
// is the context's cause. Later the context has no effect, because Run relays to the command the signal that ends it.
func (c *Command) Run(ctx context.Context) (*os.ProcessState, error) {
	cmd := exec.Command(c.Args[0], c.Args[1:]...) //nolint:noctx // its end is not this process's context, which a signal ends
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Env, c.In, c.Out, c.Err
	cmd.WaitDelay = drain
	to := prepare(cmd, c.OwnGroup)
	defer to.close()
	arriving := make(chan os.Signal, 16)
	signal.Notify(arriving, relayed...)
	defer signal.Stop(arriving)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := cmd.Start(); err != nil {
		return nil, &NotStartedError{Err: err}
	}
	to.started(cmd.Process)
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	failed := c.watch(to, arriving, ended)
	if cmd.ProcessState == nil {
		return nil, failed
	}
	return cmd.ProcessState, nil
}

// watch relays signals until the command has ended, and stops it on request.
func (c *Command) watch(to *target, arriving <-chan os.Signal, ended <-chan error) error {
	stop := c.Stop
	var kill <-chan time.Time
	for {
		select {
		case err := <-ended:
			return err
		case s := <-arriving:
			to.relay(s)
		case <-stop:
			to.stop()
			timer := time.NewTimer(stopGrace)
			defer timer.Stop()
			stop, kill = nil, timer.C
		case <-kill:
			to.kill()
		}
	}
}

// signalBase is what a shell adds to the number of the signal that ended a process, to form its exit code.
const signalBase = 128

// ExitOf returns the exit code of an ended process, and a description of its end.
func ExitOf(state *os.ProcessState) (code int, words string) {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return signalBase + int(status.Signal()), "signal: " + status.Signal().String()
	}
	return state.ExitCode(), ExitWords(state.ExitCode())
}

// ExitWords describes an exit code.
func ExitWords(code int) string { return fmt.Sprintf("exit code %d", code) }
