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

// ForeignBackupError says that a backup is from another cluster.
type ForeignBackupError struct{ Backup, Cluster string }

// Error implements error.
func (e *ForeignBackupError) Error() string {
	return fmt.Sprintf("the backup is of cluster %s, this is cluster %s", e.Backup, e.Cluster)
}

// Restore replaces the state by a backup, raises the epoch of fences and returns it. Only the leader can restore, and it accepts no
// commands meanwhile. The whole backup is checked before anything changes. *ForeignBackupError: the backup is from another cluster and
// fromOther is not set. *NotAcceptedError with OldMember: a member does not apply the backup's feature level and could not read the state.
// *UnknownError: the restore may or may not be kept.
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
	// Raft gives the restore the index after its last entry, and the state gets that index. So positions that callers saw before are not later
	// than those they see now.
	restored.Rebase(n.raft.LastIndex()+1, n.raft.CurrentTerm(), epoch, running.ClusterID(), running.Members(), present)
	n.mu.RUnlock()
	var snapshot bytes.Buffer
	if err := restored.State().WriteSnapshot(&snapshot); err != nil {
		return 0, Position{}, err
	}
	// Every node restores these bytes later, and cannot refuse them then.
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

// outcomeOfRestore determines the outcome of a restore for which raft returned an error; nil: the cluster has it. untouched says that raft
// read nothing of the backup, so nothing was done. before is the number of snapshots that this node had restored earlier.
//
// Raft restores on this node and then proposes an entry after the restore, which fails if leadership moves at that moment. The error does
// not tell whether the restore is kept. It is kept once this node has applied another entry after it. If the next leader lacks the restore,
// its entries conflict with this node's log, which ends the node, or its snapshot replaces them. That snapshot may hold a restore by the
// next leader under the same epoch.
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
			_ = n.await(n.raft.Barrier(n.config.ApplyTimeout)) // if this node still leads; otherwise it waits for its leader's entries
		case <-ctx.Done():
			return &UnknownError{Err: err}
		case <-n.done:
			return &UnknownError{Err: err}
		}
	}
	n.mu.RLock()
	defer n.mu.RUnlock()
	if n.restores.Load() != before+1 { // another snapshot arrived after the restore and may lack it
		return &UnknownError{Err: err}
	}
	return nil
}
