//go:build !unix

package logstore

import "runtime"

// Supported returns an *UnsupportedError: this system cannot hold a node's data. Reasons on Windows: a directory cannot be synced, so a
// power cut may lose a created or renamed file, and a vote with it. An open file cannot be replaced. A file's mode protects nothing. No
// fault run has tested a node there.
func Supported() error { return &UnsupportedError{System: runtime.GOOS} }
