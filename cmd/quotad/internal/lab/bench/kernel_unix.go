//go:build unix

package bench

import "golang.org/x/sys/unix"

// kernel returns name and release of the kernel; empty: unknown.
func kernel() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Sysname[:]) + " " + unix.ByteSliceToString(name.Release[:])
}

// flushDisks writes the kernel's dirty pages to disk.
func flushDisks() { unix.Sync() }
