//go:build unix

package logstore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// tryLock takes a file's lock, shared or exclusive; taken is false if another process has it. bbolt takes the same lock.
func tryLock(file *os.File, shared bool) (taken bool, err error) {
	how := unix.LOCK_EX
	if shared {
		how = unix.LOCK_SH
	}
	err = onFile(file, func(fd int) error { return unix.Flock(fd, how|unix.LOCK_NB) })
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, nil
	}
	return err == nil, err
}
