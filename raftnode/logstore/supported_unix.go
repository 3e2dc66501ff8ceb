//go:build unix

package logstore

// Supported returns an *UnsupportedError where the system cannot hold a node's data.
func Supported() error { return nil }
