package local

import "syscall"

// politeSignal asks a process to end in order.
const politeSignal = syscall.SIGTERM

// dieWithParent has the kernel kill the child when this process dies, however it dies. The child gets a process group of
// its own, so that Ctrl-C reaches this process only, which then stops the others in their order.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
