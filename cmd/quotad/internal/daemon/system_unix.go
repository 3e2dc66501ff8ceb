//go:build unix

package daemon

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// makePrivate makes new files of this process accessible to its user alone. Group and others get no access, whatever mode a
// file is created with.
func makePrivate() { unix.Umask(0o077) }

// otherOwner returns the owner of a file that belongs to a user other than this process's. For root, any owner is accepted.
func otherOwner(info fs.FileInfo) (owner uint32, other bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() || os.Geteuid() == 0 {
		return 0, false
	}
	return stat.Uid, true
}

// openFilesLimit returns the process's limit of open files.
func openFilesLimit() (uint64, error) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return limit.Cur, err
}
