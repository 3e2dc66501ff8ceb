package raftnode

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// ErrConflictingLog says that this node's log conflicted with a snapshot of the leader. The conflicting end was cut off; after a restart
// the node continues from the snapshot.
var ErrConflictingLog = errors.New("the end of the log was never committed and conflicts with the leader's snapshot")

// checkedSnapshots is raft's snapshot store. A follower that installs a snapshot keeps the end of its log even if that conflicts with the
// snapshot. It then refuses every entry and gets the snapshot again, without end (hashicorp/raft issue 697). So checkedSnapshots cuts off
// the conflicting end, and the node stops, since raft still has it in memory.
type checkedSnapshots struct {
	raft.SnapshotStore
	log        *logstore.Log
	fatal      func(error)
	configured *configurations
	// readBack checks that a written snapshot can be restored; of is its state, nil for a snapshot from the leader. readBack itself may be
	// nil: no check. See snapshotcheck.go.
	readBack func(id string, index, term uint64, of *fsm.State) error
	// given is the index of the newest snapshot that the leader sent or an operator restored.
	given atomic.Uint64
}

// errOvertaken says that a newer snapshot was installed while this node wrote one of an older state. Raft would take the older one for its
// last (hashicorp/raft issue 248). After a restore such a leader finds no term for the entry before the next one. It then sends the
// restored snapshot to each follower again and again while it leads.
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

// checkedSink reads its snapshot back once it is durable, and then checks the log. If it returns an error, raft keeps the log.
type checkedSink struct {
	raft.SnapshotSink
	store       *checkedSnapshots
	index, term uint64
	// of is the node's own state that was written; nil for a snapshot from the leader or a restore.
	of *fsm.State
	// closed says that outcome is final.
	closed  bool
	outcome error
}

// Close implements raft.SnapshotSink. For a snapshot of this node's own state, Persist calls it, and raft calls it again before it takes
// the snapshot for its last.
func (s *checkedSink) Close() error {
	if !s.closed {
		s.closed, s.outcome = true, s.close()
	}
	if s.outcome == nil && s.overtaken() {
		return errOvertaken
	}
	return s.outcome
}

// overtaken reports whether this is a snapshot of the node's own state and a newer one was installed meanwhile.
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
