package raftnode

import (
	"errors"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"
)

// snapshotEnds are the last entries of the newest snapshots that are on this disk.
type snapshotEnds struct {
	mu     sync.Mutex
	newest []raft.Log
}

// mostEnds is how many ends are kept: raft has at most two snapshots in mind.
const mostEnds = 4

func (e *snapshotEnds) add(index, term uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.newest = append(e.newest, raft.Log{Index: index, Term: term})
	if len(e.newest) > mostEnds {
		e.newest = e.newest[1:]
	}
}

// last returns the index up to which the newest snapshot stands for the log; 0: there is none.
func (e *snapshotEnds) last() (index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.newest {
		index = max(index, end.Index)
	}
	return index
}

// term returns the term of the entry with which a snapshot ends.
func (e *snapshotEnds) term(index uint64) (term uint64, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.newest {
		if end.Index == index {
			return end.Term, true
		}
	}
	return 0, false
}

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
