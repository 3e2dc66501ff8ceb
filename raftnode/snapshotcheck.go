package raftnode

import (
	"errors"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// A snapshot takes the place of the log behind it, so a node reads each one back, and verifies it, before raft trims the log. What cannot
// be restored is removed; log and older snapshots stay, and the node goes on serving. This happens where raft closes the snapshot: for
// one that the node takes itself that is a goroutine of raft's that does nothing else, so that commands are applied meanwhile.

// openSnapshots makes raft's snapshot store. It keeps one snapshot more than configured until the newest one is verified.
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

// verifyNew reads a snapshot back that was just written, of a state if that is this node's, and removes it where it cannot be restored.
func (n *Node) verifyNew(id string, of *fsm.State) error {
	path := filepath.Join(n.config.DataDir, "snapshots", id)
	file, err := logstore.ReadSnapshot(path)
	switch {
	case err != nil:
	case of != nil && !n.mayRestore(file.Size):
		err = file.VerifyBy(of.VerifyWritten)
	default:
		err = file.Verify()
	}
	if err == nil {
		return nil
	}
	n.setUnreadable(err)
	n.logger.Error("a new snapshot of this node cannot be read back: removed it, and kept the log and the previous snapshot; check the disk",
		"snapshot", id, "error", err)
	return errors.Join(err, logstore.RemoveSnapshot(n.config.DataDir, id))
}

// restoredTimes is how many times its size a snapshot takes in memory while it is restored: 17 times were measured for a million leases
// (docs/performance.md).
const restoredTimes = 20

// mayRestore reports whether this node has the memory to restore a snapshot of a size next to its own state: that is the whole proof that a
// restart can. Otherwise the snapshot is only compared with the state, which has to add up.
func (n *Node) mayRestore(size int64) bool {
	if n.memoryMark == 0 {
		return size <= n.config.restoreUpTo
	}
	used, err := n.config.Memory()
	return err == nil && size < (n.memoryMark-used)/restoredTimes
}

// setUnreadable sets or ends the alarm.
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
