package logstore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// reserve extends a file to a size and allocates the space. On file systems that cannot do so it changes nothing.
func reserve(file *os.File, size int64) error {
	err := onFile(file, func(fd int) error { return unix.Fallocate(fd, 0, 0, size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return nil
	}
	return err
}

// syncData makes a file's content durable, with only the metadata needed to read it.
func syncData(file *os.File) error { return onFile(file, unix.Fdatasync) }
