//go:build unix

package gateway

import "os"

// socketMode lets the owner and the group connect.
const socketMode = 0o660

// protectSocket restricts access to a socket.
func protectSocket(path string) error { return os.Chmod(path, socketMode) }
