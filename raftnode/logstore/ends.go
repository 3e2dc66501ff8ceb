package logstore

import (
	"sync"

	"github.com/hashicorp/raft"
)

// snapshotEnds has the last entries of the newest snapshots on this disk.
type snapshotEnds struct {
	mu     sync.Mutex
	newest []raft.Log
}

// mostEnds is how many ends are kept: raft refers to at most two snapshots.
const mostEnds = 4

func (e *snapshotEnds) add(index, term uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.newest = append(e.newest, raft.Log{Index: index, Term: term})
	if len(e.newest) > mostEnds {
		e.newest = e.newest[1:]
	}
}

// last returns the last index that the newest snapshot covers; 0: there is none.
func (e *snapshotEnds) last() (index uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, end := range e.newest {
		index = max(index, end.Index)
	}
	return index
}

// term returns the term of the entry at which a snapshot ends.
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
