//go:build !linux

package logstore

import "os"

// reserve does nothing on this system.
func reserve(*os.File, int64) error { return nil }

// syncData makes a file durable.
func syncData(file *os.File) error { return file.Sync() }
