package raftnode

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// ErrConflictingLog says that this node's log disagreed with a snapshot of the leader's. The disagreeing end is cut off;
// started again, the node goes on from the snapshot.
var ErrConflictingLog = errors.New("the log's end was never committed and disagrees with the leader's snapshot")

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
}

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
	// of is the state that was written; nil where it came from a leader.
	of *fsm.State
}

// Close implements raft.SnapshotSink.
func (s *checkedSink) Close() error {
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
		err = fmt.Errorf("%w: it was cut off from index %d on, start the node again", ErrConflictingLog, s.index)
	}
	if err != nil {
		s.store.fatal(err)
		return err
	}
	s.store.log.AddSnapshot(s.index, s.term)
	return nil
}
