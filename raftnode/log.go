package raftnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// snapshotLog is the log as raft sees it. To a follower it also has the entry with which a snapshot ends, without what that says.
//
// A leader whose first entries after a snapshot were stored, and the answer lost, sends them again. The follower looks up the entry
// before them, to compare its term; it has the snapshot in that one's place, where raft does not look, and so it is given the
// snapshot again, and again, many times a second, until its leader has a newer one. A leader is not told of such an entry, so that
// it sends the snapshot to who lacks that; and no node would store one, whose checksum is none.
type snapshotLog struct {
	*parallelLog
	ends *snapshotEnds
}

// StoreLog implements raft.LogStore.
func (l snapshotLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. What a snapshot stands for is committed, but for one case: raft's Restore has its snapshot on this
// disk before anybody else knows of it. If the leader is lost then, its successor gives the snapshot's index to an entry, and raft would
// leave that one out here and apply the next ones to what was restored.
func (l snapshotLog) StoreLogs(logs []*raft.Log) error {
	for _, log := range logs {
		if term, ok := l.ends.term(log.Index); ok && term != log.Term {
			err := fmt.Errorf("%w: entry %d is of term %d, the restore was of term %d; replace this node by a new one", ErrUncommittedRestore,
				log.Index, log.Term, term)
			l.fatal(err)
			return err
		}
	}
	return l.parallelLog.StoreLogs(logs)
}

// GetLog implements raft.LogStore.
func (l snapshotLog) GetLog(index uint64, log *raft.Log) error {
	err := l.parallelLog.GetLog(index, log)
	if !errors.Is(err, raft.ErrLogNotFound) || !l.running.Load() || l.leads() {
		return err
	}
	term, ok := l.ends.term(index)
	if !ok {
		return err
	}
	*log = raft.Log{Index: index, Term: term, Type: raft.LogNoop, Extensions: []byte("snapshot")}
	return nil
}

// cutConflict cuts a log off from an index on, where its entry there is of another term.
func cutConflict(log raft.LogStore, index, term uint64) (cut bool, err error) {
	var entry raft.Log
	switch err := log.GetLog(index, &entry); {
	case errors.Is(err, raft.ErrLogNotFound):
		return false, nil
	case err != nil:
		return false, err
	case entry.Term == term:
		return false, nil
	}
	last, err := log.LastIndex()
	if err != nil {
		return false, err
	}
	return true, log.DeleteRange(index, last)
}

// cutOldConflict cuts the log of a node that ended before it had done so.
func cutOldConflict(dir string, log raft.LogStore) error {
	all, _, err := listSnapshots(dir)
	if err != nil || len(all) == 0 {
		return err
	}
	_, err = cutConflict(log, all[0].Index, all[0].Term)
	return err
}

// recordSnapshot tells the witness of a snapshot that was verified.
func (n *Node) recordSnapshot(id string, index, term uint64) error {
	description, err := os.ReadFile(filepath.Join(n.config.DataDir, "snapshots", id, "meta.json"))
	if err != nil {
		return err
	}
	return n.keeper.recordSnapshot(index, term, description)
}

// dropUnverified verifies snapshots that were not read back before the process ended. One that cannot be restored is removed where what
// was before it is still there.
func (n *Node) dropUnverified() error {
	verified := n.keeper.last.snapshot
	first, err := n.store.FirstIndex()
	if err != nil {
		return err
	}
	for {
		all, _, err := listSnapshots(n.config.DataDir)
		if err != nil || len(all) == 0 || all[0].Index <= verified {
			return err
		}
		before := uint64(0)
		if len(all) > 1 {
			before = all[1].Index
		}
		err = all[0].verify()
		if err == nil {
			return n.recordSnapshot(all[0].ID, all[0].Index, all[0].Term)
		}
		if errors.Is(err, fsm.ErrNewerSnapshot) || first > before+1 {
			return err
		}
		n.logger.Error("the newest snapshot was not read back before the process ended and cannot be restored: it is removed",
			"snapshot", all[0].ID, "error", err)
		path := filepath.Join(n.config.DataDir, "snapshots", all[0].ID)
		if err := errors.Join(os.RemoveAll(path), syncDir(filepath.Dir(path))); err != nil {
			return err
		}
	}
}
