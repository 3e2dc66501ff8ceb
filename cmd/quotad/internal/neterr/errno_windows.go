package neterr

import (
	"syscall"

	"golang.org/x/sys/windows"
)

var (
	inUse   = []syscall.Errno{windows.WSAEADDRINUSE, windows.WSAEACCES} // the second: another process has exclusive use of the address
	refused = []syscall.Errno{windows.WSAECONNREFUSED}
	reset   = []syscall.Errno{windows.WSAECONNRESET, windows.WSAECONNABORTED, windows.ERROR_BROKEN_PIPE, windows.ERROR_NETNAME_DELETED}
)
