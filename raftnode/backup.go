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
// cluster, and fromOther does not say that this is meant. *NotAcceptedError with OldMember: not every member applies the backup's feature
// level, and those that do not could not read the state.
func (n *Node) Restore(ctx context.Context, backup io.Reader, fromOther bool) (epoch uint32, at Position, err error) {
	restored, err := fsm.RestoreBackup(backup)
	if err != nil {
		return 0, Position{}, err
	}
	if n.leading.Load() == nil {
		return 0, Position{}, n.notAccepted(n.whyNotLeading())
	}
	if own, of := n.cluster.Load(), restored.State().ClusterID(); !fromOther && of != "" && own != nil && *own != of {
		return 0, Position{}, &ForeignBackupError{Backup: of, Cluster: *own}
	}
	if restored.State().FeatureLevel() > n.EntryVersion() {
		return 0, Position{}, n.notAccepted(OldMember)
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
	// Every node restores these bytes, and cannot refuse them then.
	if _, err := fsm.Restore(bytes.NewReader(snapshot.Bytes())); err != nil {
		return 0, Position{}, err
	}
	timeout := 60 * time.Second
	if deadline, ok := ctx.Deadline(); ok {
		timeout = min(timeout, time.Until(deadline))
	}
	meta := &raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: int64(snapshot.Len())}
	began, before := time.Now(), n.restores.Load()
	if err := n.raft.Restore(meta, &snapshot, timeout); err != nil {
		if err := n.outcomeOfRestore(ctx, err, int64(snapshot.Len()) == meta.Size, before, timeout-time.Since(began)); err != nil {
			return 0, Position{}, err
		}
	}
	n.mu.RLock()
	at = positionOf(n.machine.State())
	n.mu.RUnlock()
	at.Index = n.raft.AppliedIndex()
	return epoch, at, nil
}

// outcomeOfRestore finds out what came of a restore that raft answered with an error; nil: the cluster has it. untouched says that raft
// read nothing of the backup: then nothing was done. before is how many snapshots this node had restored before it.
//
// Raft restores on this node, and then asks for an entry behind the restore, which fails where leadership moves at that moment. The
// restore is lost or kept whatever the error says: it is kept once this node has applied another entry behind it. Where the next leader
// lacks it, its entries disagree with this node's log, which then ends the node, or its snapshot comes in place of them. That snapshot may
// hold a restore by the next leader, which began the same epoch.
func (n *Node) outcomeOfRestore(ctx context.Context, err error, untouched bool, before uint64, left time.Duration) error {
	moved := errors.Is(err, raft.ErrLeadershipTransferInProgress) || errors.Is(err, raft.ErrNotLeader) || errors.Is(err,
		raft.ErrLeadershipLost)
	switch {
	case untouched && (moved || errors.Is(err, raft.ErrEnqueueTimeout)):
		return n.classify(err)
	case !moved:
		return &UnknownError{Err: err}
	}
	restored := n.raft.AppliedIndex()
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	ticker := time.NewTicker(n.config.HeartbeatTimeout / 4)
	defer ticker.Stop()
	for n.raft.AppliedIndex() <= restored {
		select {
		case <-ticker.C:
			_ = n.await(n.raft.Barrier(n.config.ApplyTimeout)) // where this node leads on; else its leader's entries tell
		case <-ctx.Done():
			return &UnknownError{Err: err}
		case <-n.done:
			return &UnknownError{Err: err}
		}
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.restores.Load() != before+1 { // another snapshot came after the restore, and nobody knows whether it holds it
		return &UnknownError{Err: err}
	}
	return nil
}
