package raftnode

import (
	"context"
	"errors"
	"time"

	"github.com/quotad/quotad/raftnode/logstore"
)

// StateHash returns the state's hash and index once the entry at index at is applied. Testing only.
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

// SetFault sets faults of the clock and a crash point; nil leaves a setting unchanged. Testing only.
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

// DumpLog calls fn for the entries from..to (0: the last) of this node's log. Testing only.
func (n *Node) DumpLog(from, to uint64, fn func(logstore.Entry) error) error {
	if !n.config.Testing {
		return ErrTestingOnly
	}
	return n.log.Entries(from, to, fn)
}
