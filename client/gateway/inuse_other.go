//go:build !windows

package gateway

import (
	"errors"
	"syscall"
)

// inUse reports whether another process listens at an address.
func inUse(err error) bool { return errors.Is(err, syscall.EADDRINUSE) }
