//go:build unix

package logstore

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// onFile makes a system call on a file, and repeats it when a signal interrupts it.
func onFile(file *os.File, call func(fd int) error) (err error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	controlErr := raw.Control(func(fd uintptr) {
		for err = call(int(fd)); errors.Is(err, unix.EINTR); err = call(int(fd)) {
		}
	})
	return errors.Join(controlErr, err)
}
