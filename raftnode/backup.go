package raftnode

import (
	"bytes"
	"context"
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
