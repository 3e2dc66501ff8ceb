//go:build !linux

package peer

import "net"

// setUserTimeout does nothing: only Linux lets a connection with data in flight die early. Keep-alives find the rest.
func setUserTimeout(net.Conn) {}
