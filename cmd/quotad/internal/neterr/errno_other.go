//go:build !windows

package neterr

import "syscall"

var (
	inUse   = []syscall.Errno{syscall.EADDRINUSE}
	refused = []syscall.Errno{syscall.ECONNREFUSED}
	reset   = []syscall.Errno{syscall.ECONNRESET, syscall.EPIPE}
)
