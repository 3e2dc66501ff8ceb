//go:build !linux

package local

import "syscall"

// politeSignal requests an orderly end of a process.
const politeSignal = syscall.SIGTERM

// dieWithParent does nothing here: agents and provider end with their input, and Ctrl-C reaches every process of the group.
func dieWithParent() *syscall.SysProcAttr { return nil }
