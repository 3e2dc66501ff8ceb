package child

import "syscall"

// dieWithParent makes the kernel end the child when this process dies, however it dies: nobody would renew the child's
// lease or attempt, and the next holder or attempt may begin.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
