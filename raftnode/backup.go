package raftnode

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// ForeignBackupError says that a backup is of another cluster than the one that is to take it.
type ForeignBackupError struct{ Backup, Cluster string }

// Error implements error.
func (e *ForeignBackupError) Error() string {
	return fmt.Sprintf("the backup is of cluster %s, this is cluster %s", e.Backup, e.Cluster)
}

// Restore replaces the state by a backup, raises the fence's epoch and returns it. Only a leader does it. While it
// runs nothing is accepted. The backup is checked whole before anything changes. *ForeignBackupError: it is of another
// cluster, and fromOther does not say that this is meant.
func (n *Node) Restore(ctx context.Context, backup io.Reader, fromOther bool) (epoch uint32, at Position, err error) {
	restored, err := fsm.Restore(backup)
	if err != nil {
		return 0, Position{}, err
	}
	if n.leading.Load() == nil {
		return 0, Position{}, n.notAccepted(n.whyNotLeading())
	}
	if own, of := n.cluster.Load(), restored.State().ClusterID(); !fromOther && of != "" && own != nil && *own != of {
		return 0, Position{}, &ForeignBackupError{Backup: of, Cluster: *own}
	}
	if !n.paused.CompareAndSwap(false, true) {
		return 0, Position{}, n.notAccepted(NotReady)
	}
	defer n.paused.Store(false)
	if err := n.await(n.raft.Barrier(n.config.ApplyTimeout)); err != nil {
		return 0, Position{}, n.classify(err)
	}
	present := n.Clock()
	n.mu.RLock()
	running := n.machine.State()
	epoch = max(running.Epoch(), restored.State().Epoch()) + 1
	// Raft gives the restore the index after its last entry, and the state is that of this index: what a caller was shown before does not come
	// later than what it is shown now.
	restored.Rebase(n.raft.LastIndex()+1, n.raft.CurrentTerm(), epoch, running.ClusterID(), running.Members(), present)
	n.mu.RUnlock()
	var snapshot bytes.Buffer
	if err := restored.State().WriteSnapshot(&snapshot); err != nil {
		return 0, Position{}, err
	}
	timeout := 60 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: int64(snapshot.Len())}
	if err := n.raft.Restore(meta, &snapshot, timeout); err != nil {
		return 0, Position{}, &UnknownError{Err: err}
	}
	n.mu.RLock()
	at = positionOf(n.machine.State())
	n.mu.RUnlock()
	at.Index = n.raft.AppliedIndex()
	return epoch, at, nil
}

// StateHash returns the state's hash once index at least is applied. Testing only.
func (n *Node) StateHash(ctx context.Context, at uint64) (index uint64, ledger, whole [32]byte, err error) {
	if !n.config.Testing {
		return 0, ledger, whole, ErrTestingOnly
	}
	for n.appliedIndex.Load() < at {
		select {
		case <-ctx.Done():
			return 0, ledger, whole, ctx.Err()
		case <-n.done:
			return 0, ledger, whole, errors.New("the node stopped")
		case <-time.After(2 * time.Millisecond):
		}
	}
	n.mu.Lock()
	state := n.machine.Freeze()
	n.mu.Unlock()
	ledger, whole = state.Hash()
	return state.Index(), ledger, whole, nil
}

// SetFault sets faults of the clock and a crash point; nil leaves as it is. Testing only.
func (n *Node) SetFault(wallOffset *time.Duration, ratePPM *int64, crashAt *string, crashCount int32) error {
	if !n.config.Testing {
		return ErrTestingOnly
	}
	if wallOffset != nil {
		n.faulty.SetOffset(*wallOffset)
	}
	if ratePPM != nil {
		n.faulty.SetRate(*ratePPM)
	}
	if crashAt != nil {
		n.crash.set(*crashAt, crashCount)
	}
	return nil
}

// LogEntry is one entry of a node's log.
type LogEntry struct {
	Index, Term uint64
	Kind        string // command, noop, configuration, barrier
	Data        []byte
}

// DumpLog calls fn for the entries from..to (0: the last) of this node's log. Testing only.
func (n *Node) DumpLog(from, to uint64, fn func(LogEntry) error) error {
	if !n.config.Testing {
		return ErrTestingOnly
	}
	return eachEntry(n.store, from, to, fn)
}

// eachEntry calls fn for entries of a log.
func eachEntry(store raft.LogStore, from, to uint64, fn func(LogEntry) error) error {
	first, err := store.FirstIndex()
	if err != nil {
		return err
	}
	last, err := store.LastIndex()
	if err != nil {
		return err
	}
	if to == 0 || to > last {
		to = last
	}
	for index := max(from, first, 1); index <= to; index++ {
		var entry raft.Log
		if err := store.GetLog(index, &entry); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				continue
			}
			return err
		}
		if err := fn(LogEntry{Index: index, Term: entry.Term, Kind: kindOf(entry.Type), Data: entry.Data}); err != nil {
			return err
		}
	}
	return nil
}

func kindOf(t raft.LogType) string {
	switch t {
	case raft.LogCommand:
		return "command"
	case raft.LogNoop:
		return "noop"
	case raft.LogConfiguration:
		return "configuration"
	case raft.LogBarrier:
		return "barrier"
	case raft.LogAddPeerDeprecated, raft.LogRemovePeerDeprecated:
	}
	return "other"
}
