//go:build !unix

package gateway

import "fmt"

// protectSocket refuses a socket: its file has no mode that would keep others away, and its callers have no names here.
func protectSocket(path string) error {
	return fmt.Errorf("listen.unix %s: this system does not protect a socket by its file's mode: listen on a loopback address", path)
}
