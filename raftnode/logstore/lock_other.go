//go:build !unix

package logstore

import "os"

// tryLock fails: this system is not supported.
func tryLock(*os.File, bool) (bool, error) { return false, Supported() }
