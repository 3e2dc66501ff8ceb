package raftnode

import (
	"errors"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// A snapshot replaces the log before it, so a node reads each one back and verifies it before raft trims the log. An unreadable snapshot is
// removed; the log and older snapshots stay, and the node continues to serve. The check runs when raft closes the snapshot. For the node's
// own snapshots that is on a goroutine of raft that does nothing else, so commands are applied meanwhile.

// openSnapshots creates raft's snapshot store. It keeps one snapshot more than configured until the newest one is verified.
func (n *Node) openSnapshots() (*checkedSnapshots, error) {
	logger := n.logger.Named("snapshots")
	files, err := raft.NewFileSnapshotStoreWithLogger(n.config.DataDir, n.config.SnapshotsRetained+1, logger)
	if err != nil {
		return nil, err
	}
	kept, err := raft.NewFileSnapshotStoreWithLogger(n.config.DataDir, n.config.SnapshotsRetained, logger)
	if err != nil {
		return nil, err
	}
	return &checkedSnapshots{
		SnapshotStore: files, log: n.log, fatal: n.fail, configured: &n.configured,
		readBack: func(id string, index, term uint64, of *fsm.State) error {
			if err := n.verifyNew(id, of); err != nil {
				return err
			}
			if err := n.log.RecordSnapshot(id, index, term); err != nil {
				return err
			}
			n.setUnreadable(nil)
			return kept.ReapSnapshots()
		},
	}, nil
}

// verifyNew reads back a snapshot that was just written and removes it if it cannot be restored. of is the state written, nil for a
// snapshot from the leader: raft restores that one next, which verifies it again.
func (n *Node) verifyNew(id string, of *fsm.State) error {
	path := filepath.Join(n.config.DataDir, "snapshots", id)
	file, err := logstore.ReadSnapshot(path)
	switch {
	case err != nil:
	case n.mayRestore(file.Size):
		err = file.Verify()
	case of != nil:
		err = file.VerifyBy(of.VerifyWritten)
	default:
		err = file.VerifySum()
	}
	if err == nil {
		return nil
	}
	n.setUnreadable(err)
	n.logger.Error("a new snapshot of this node cannot be read back: removed it, and kept the log and the previous snapshot; check the disk",
		"snapshot", id, "error", err)
	return errors.Join(err, logstore.RemoveSnapshot(n.config.DataDir, id))
}

// restoredTimes is the memory that restoring a snapshot takes, as a multiple of its size. For a million leases 17 was measured
// (docs/performance.md).
const restoredTimes = 20

// mayRestore reports whether this node has the memory to restore a snapshot of a size next to its own state: only that proves that a
// restart can. Otherwise the node's own snapshot is only compared with the state, which must be consistent, and one from the leader with
// its checksum.
func (n *Node) mayRestore(size int64) bool {
	if n.memoryMark == 0 {
		return size <= n.config.restoreUpTo
	}
	used, err := n.config.Memory()
	return err == nil && size < (n.memoryMark-used)/restoredTimes
}

// setUnreadable sets the alarm, or clears it for nil.
func (n *Node) setUnreadable(err error) {
	if err == nil {
		n.unreadable.Store(nil)
		n.metrics.unreadable.Set(0)
		return
	}
	text := err.Error()
	n.unreadable.Store(&text)
	n.metrics.unreadable.Set(1)
	n.metrics.unreadableTotal.Inc()
}
