package raftnode

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// ErrConflictingLog says that this node's log disagreed with a snapshot of the leader's. The disagreeing end is cut off;
// started again, the node goes on from the snapshot.
var ErrConflictingLog = errors.New("the end of the log was never committed and conflicts with the leader's snapshot")

// checkedSnapshots is raft's snapshot store. A follower that installs a snapshot keeps the end of its log even where that
// disagrees with the snapshot; then it refuses every entry, gets the snapshot again, and so on for ever
// (hashicorp/raft issue 697). So the end is cut off here, and, since raft has it in mind still, the node stops.
type checkedSnapshots struct {
	raft.SnapshotStore
	log        *logstore.Log
	fatal      func(error)
	configured *configurations
	// readBack says whether a snapshot that was written, of a state if that is this node's, can be restored; nil: nobody looks. See
	// snapshotcheck.go.
	readBack func(id string, index, term uint64, of *fsm.State) error
	// given is the index of the newest snapshot that the leader sent, or an operator restored.
	given atomic.Uint64
}

// errOvertaken says that a snapshot was given to this node while it wrote one of an older state. Raft would take the older one for its
// last (hashicorp/raft issue 248): after a restore, a leader then finds no term for the entry before the next one, and sends each follower
// the restored snapshot again and again, for as long as it leads.
var errOvertaken = errors.New("a newer snapshot was installed meanwhile")

// Create implements raft.SnapshotStore.
func (s *checkedSnapshots) Create(
	version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration, configurationIndex uint64, transport raft.Transport,
) (raft.SnapshotSink, error) {
	sink, err := s.SnapshotStore.Create(version, index, term, configuration, configurationIndex, transport)
	if err != nil {
		return nil, err
	}
	return &checkedSink{SnapshotSink: sink, store: s, index: index, term: term}, nil
}

// checkedSink reads its snapshot back when that is durable, and then checks the log. Where it returns an error raft keeps the log.
type checkedSink struct {
	raft.SnapshotSink
	store       *checkedSnapshots
	index, term uint64
	// of is the state that was written; nil where it was given.
	of *fsm.State
	// closed says that the outcome is known.
	closed  bool
	outcome error
}

// Close implements raft.SnapshotSink. Persist closes a snapshot of this node's own state, and raft does once more before it takes it for
// its last.
func (s *checkedSink) Close() error {
	if !s.closed {
		s.closed, s.outcome = true, s.close()
	}
	if s.outcome == nil && s.overtaken() {
		return errOvertaken
	}
	return s.outcome
}

// overtaken reports whether this is a snapshot of the node's own state, and a newer one was given meanwhile.
func (s *checkedSink) overtaken() bool { return s.of != nil && s.index < s.store.given.Load() }

func (s *checkedSink) close() error {
	if s.overtaken() {
		return errors.Join(errOvertaken, s.Cancel())
	}
	if err := s.SnapshotSink.Close(); err != nil {
		return err
	}
	if s.store.readBack != nil {
		if err := s.store.readBack(s.ID(), s.index, s.term, s.of); err != nil {
			return err
		}
	}
	cut, err := s.store.log.CutConflict(s.index, s.term)
	if err == nil && cut {
		err = fmt.Errorf("%w: removed it from index %d on; start the node again", ErrConflictingLog, s.index)
	}
	if err != nil {
		s.store.fatal(err)
		return err
	}
	s.store.log.AddSnapshot(s.index, s.term)
	if s.of == nil {
		s.store.given.Store(s.index)
	}
	return nil
}
