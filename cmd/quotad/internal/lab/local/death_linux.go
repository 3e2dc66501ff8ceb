package local

import "syscall"

// politeSignal requests an orderly end of a process.
const politeSignal = syscall.SIGTERM

// dieWithParent makes the kernel kill the child when this process dies, however it dies. The child gets its own process
// group, so that Ctrl-C reaches only this process, which then stops the children in order.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
