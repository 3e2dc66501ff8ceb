//go:build !unix

package logstore

import "runtime"

// Supported returns an *UnsupportedError where the system cannot hold a node's data. What keeps Windows from it: a directory cannot be
// synced, so that a file that was made or renamed may be gone after a power cut, the vote in it included; an open file cannot be
// replaced; the mode of a file protects nothing; and no fault run has ever judged a node there.
func Supported() error { return &UnsupportedError{System: runtime.GOOS} }
