package gateway

import (
	"errors"

	"golang.org/x/sys/windows"
)

// inUse reports whether another process listens at an address.
func inUse(err error) bool {
	return errors.Is(err, windows.WSAEADDRINUSE) || errors.Is(err, windows.WSAEACCES)
}
