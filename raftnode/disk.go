package raftnode

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// watchDisk ends the node when a write stalls or the disk is full, and stops grants before.
func (n *Node) watchDisk() {
	ticker := time.NewTicker(n.config.StallLimit / 8)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		if stalled := n.store.stalledFor(); stalled > n.config.StallLimit {
			n.fail(fmt.Errorf("a write to the log has been stuck for %v: the disk stalls", stalled.Round(time.Millisecond)))
			return
		}
		free, err := n.config.Free(n.config.DataDir)
		if err != nil {
			continue
		}
		low := n.config.FreeLow > 0 && free < n.config.FreeLow
		if low != n.diskLow.Swap(low) {
			n.logger.Warn("free disk space crossed the mark", "free", free, "mark", n.config.FreeLow, "low", low)
		}
		if n.config.FreeStop > 0 && free < n.config.FreeStop {
			n.fail(fmt.Errorf("%d bytes of disk are left, below the mark %d", free, n.config.FreeStop))
			return
		}
	}
}

// freeSpace tells how much a file system has left for us.
func freeSpace(dir string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(dir, &stat); err != nil {
		return 0, err
	}
	return int64(stat.Bavail) * int64(stat.Bsize), nil //nolint:unconvert // its type differs between systems
}
