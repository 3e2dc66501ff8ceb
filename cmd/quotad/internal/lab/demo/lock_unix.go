//go:build unix

package demo

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// lock claims a demo's folder for this process, until it closes the marker.
func lock(marker *os.File) error {
	if err := syscall.Flock(int(marker.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return fmt.Errorf("another demo runs in %s: choose another --dir", filepath.Dir(marker.Name()))
	}
	return nil
}
