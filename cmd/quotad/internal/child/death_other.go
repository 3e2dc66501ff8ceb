//go:build unix && !linux

package child

import "syscall"

// dieWithParent does nothing here: a child continues after its parent is killed.
func dieWithParent() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
