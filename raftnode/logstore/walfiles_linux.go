package logstore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve makes a file so large, with space for all of it. File systems that cannot reserve leave it as it is.
func reserve(file *os.File, size int64) error {
	err := onFile(file, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// syncData makes a file's content durable, and of what describes it as much as is needed to read it.
func syncData(file *os.File) error { return onFile(file, unix.Fdatasync) }
