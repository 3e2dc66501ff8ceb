//go:build unix

package bench

import "golang.org/x/sys/unix"

// kernel names the system's kernel; empty: not known.
func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
}

// flushDisks writes all that the kernel keeps for later.
func flushDisks() { unix.Sync() }
