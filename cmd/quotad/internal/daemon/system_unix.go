//go:build unix

package daemon

import (
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// makePrivate makes all files of this process its user's alone, unless a file's own mode says more.
func makePrivate() { unix.Umask(0o077) }

// otherOwner returns the owner of a file that belongs to another user than this process's. To root it may belong to anybody.
func otherOwner(info fs.FileInfo) (owner uint32, other bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || int(stat.Uid) == os.Geteuid() || os.Geteuid() == 0 {
		return 0, false
	}
	return stat.Uid, true
}

// openFilesLimit returns how many files this process may have open.
func openFilesLimit() (uint64, error) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return limit.Cur, err
}
