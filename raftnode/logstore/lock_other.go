//go:build !unix

package logstore

import "os"

// tryLock locks nothing here: no store is opened.
func tryLock(*os.File, bool) (bool, error) { return false, Supported() }
