package taskrun

import "syscall"

// dieWithParent has the kernel ask the child to end when this process dies, however it dies: nobody would keep its attempt
// alive any more, and the next one may begin.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} }
