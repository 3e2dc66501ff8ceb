//go:build !linux

package gateway

import "net"

// peerOf returns no name: peer credentials are read only on Linux.
func peerOf(net.Conn) string { return "" }
