//go:build unix

package child

import (
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// relayed are the signals that this process relays to the command. SIGPIPE is among the captured ones: a reader that goes
// away then ends the command as it would without us, and this process lives to report how the command ended.
var relayed = []os.Signal{
	syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGPIPE,
}

// target is the recipient of signals: a process or its group.
type target struct {
	process *os.Process
	group   bool
}

// prepare makes the target of a command that does not run yet.
func prepare(cmd *exec.Cmd, ownGroup bool) *target {
	cmd.SysProcAttr = dieWithParent()
	cmd.SysProcAttr.Setpgid = ownGroup && !hasTerminal()
	return &target{group: cmd.SysProcAttr.Setpgid}
}

func (t *target) started(process *os.Process) { t.process = process }

func (*target) close() {}

// relay sends a signal to the command, unless the command has received it already or it concerns this process only.
func (t *target) relay(s os.Signal) {
	if s == syscall.SIGPIPE || fromTerminal(s) && !t.group && inForeground() {
		return
	}
	t.send(s)
}

// stop requests the command's end.
func (t *target) stop() { t.send(syscall.SIGTERM) }

// kill ends it at once.
func (t *target) kill() { t.send(syscall.SIGKILL) }

// send sends a signal; the command may have ended.
func (t *target) send(s os.Signal) {
	if number, ok := s.(syscall.Signal); ok && t.group {
		_ = syscall.Kill(-t.process.Pid, number)
		return
	}
	_ = t.process.Signal(s)
}

// hasTerminal reports whether a terminal controls this process.
func hasTerminal() bool {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	_ = terminal.Close()
	return true
}

// fromTerminal reports whether a terminal's keys can raise a signal. Such a signal goes to every process in the foreground,
// so the child has received it.
func fromTerminal(s os.Signal) bool { return s == syscall.SIGINT || s == syscall.SIGQUIT }

// inForeground reports whether this process's group is the foreground group of its terminal.
func inForeground() bool {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer func() { _ = terminal.Close() }()
	group, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
