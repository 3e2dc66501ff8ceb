//go:build !unix

package gateway

import "fmt"

// protectSocket refuses a socket: on this system file modes do not protect it, and its callers have no names.
func protectSocket(path string) error {
	return fmt.Errorf("listen.unix %s: this system does not protect a socket by its file's mode: listen on a loopback address", path)
}
