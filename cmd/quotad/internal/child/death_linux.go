package child

import "syscall"

// dieWithParent makes the kernel end the child when this process dies, however it dies: nobody would renew its lease or attempt any
// more, and the next one may begin.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
