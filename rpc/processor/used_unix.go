//go:build unix

package processor

import (
	"time"

	"golang.org/x/sys/unix"
)

// used returns the processor time that this process has used; ok is false if the system does not report it.
func used() (busy time.Duration, ok bool) {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0, false
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), true
}
