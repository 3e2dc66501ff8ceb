//go:build unix

package logstore

// Supported returns an *UnsupportedError if the system cannot hold a node's data; this one can.
func Supported() error { return nil }
