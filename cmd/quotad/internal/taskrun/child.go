package taskrun

import (
	"io"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stopGrace is how long a child whose attempt is lost has from SIGTERM to SIGKILL.
	stopGrace = 10 * time.Second
	// drain is how long the streams of a child that has ended are read on, where something it started holds them open.
	drain = 2 * time.Second
)

// relayed are the signals that are passed on to the child. SIGPIPE is among those that are taken so that a reader who goes
// away ends the child as it would without us, and not this process before it has told how it went.
var relayed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE,
}

// child is one run of the command.
type child struct {
	args     []string
	in       io.Reader
	out, err io.Writer
	hears    *listener
}

// run starts the command and waits for its end. A closed lost stops it.
func (c *child) run(lost <-chan struct{}) (*os.ProcessState, error) {
	out, errs := &tee{to: c.out, each: c.hears.hearOut}, &tee{to: c.err, each: c.hears.hearErr}
	cmd := exec.Command(c.args[0], c.args[1:]...) //nolint:noctx // its end is not this process's context, which a signal ends
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.in, out, errs
	cmd.WaitDelay, cmd.SysProcAttr = drain, dieWithParent()
	arriving := make(chan os.Signal, 16)
	signal.Notify(arriving, relayed...)
	defer signal.Stop(arriving)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	failed := c.watch(cmd.Process, arriving, lost, ended)
	out.end()
	errs.end()
	if cmd.ProcessState == nil {
		return nil, failed
	}
	return cmd.ProcessState, nil
}

// watch passes signals on until the child has ended, and stops it when its attempt is lost.
func (c *child) watch(process *os.Process, arriving <-chan os.Signal, lost <-chan struct{}, ended <-chan error) error {
	var kill <-chan time.Time
	for {
		select {
		case err := <-ended:
			return err
		case s := <-arriving:
			if s == syscall.SIGPIPE || fromTerminal(s) && inForeground() {
				continue
			}
			_ = process.Signal(s) // it may have ended
		case <-lost:
			_ = process.Signal(syscall.SIGTERM)
			timer := time.NewTimer(stopGrace)
			defer timer.Stop()
			lost, kill = nil, timer.C
		case <-kill:
			_ = process.Kill()
		}
	}
}

// fromTerminal tells whether a terminal's keys make a signal: it goes to every process in the foreground, so that the child
// has had it.
func fromTerminal(s os.Signal) bool { return s == syscall.SIGINT || s == syscall.SIGQUIT }

// inForeground tells whether this process's group is the one that its terminal listens to.
func inForeground() bool {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer func() { _ = terminal.Close() }()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
