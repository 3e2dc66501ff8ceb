//go:build !linux

package peer

import "net"

// setUserTimeout does nothing: only Linux can end a silent connection early while data is in flight. Keep-alives end the others.
func setUserTimeout(net.Conn) {}
