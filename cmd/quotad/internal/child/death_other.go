//go:build unix && !linux

package child

import "syscall"

// dieWithParent does nothing here: a child whose parent is killed goes on.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
