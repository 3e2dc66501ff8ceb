//go:build unix

package raftnode

import "golang.org/x/sys/unix"

// freeSpace returns the bytes of a file system that this process may still use.
func freeSpace(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil //nolint:unconvert // its type differs between systems
}
