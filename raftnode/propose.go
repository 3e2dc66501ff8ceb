package raftnode

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/budget"
)

// QueueBudgets returns the budgets of the proposer's queue that callers share: for commands, and for their bytes.
func (n *Node) QueueBudgets() []*budget.Budget {
	return []*budget.Budget{n.proposer.room.commands, n.proposer.room.bytes}
}

// Propose sends commands through the log and returns their results by position. It returns once all are applied here, or with
// *NotAcceptedError (none was or will be applied), or *UnknownError (some may be). The commands of one call are applied in order, not
// necessarily in one entry. The position is that of the last entry. The first command's Caller determines in whose line the call is queued,
// and to whose part of the queue it is charged.
func (n *Node) Propose(ctx context.Context, commands ...*logpb.Command) ([]*logpb.Result, Position, error) {
	return n.propose(ctx, false, &call{commands: commands})
}

// ProposeThrough is Propose for callers that clean up after a client that disconnects. The end of ctx cancels the call while none of its
// commands is in an entry. After that ProposeThrough waits for the outcome, which can still be an *UnknownError.
func (n *Node) ProposeThrough(ctx context.Context, commands ...*logpb.Command) ([]*logpb.Result, Position, error) {
	return n.propose(ctx, true, &call{commands: commands})
}

// proposeOwn is Propose for commands of the node itself. They precede all callers' commands, and no caller is charged for them.
func (n *Node) proposeOwn(ctx context.Context, commands ...*logpb.Command) error {
	_, _, err := n.propose(ctx, false, &call{commands: commands, own: true})
	return err
}

func (n *Node) propose(ctx context.Context, through bool, c *call) ([]*logpb.Result, Position, error) {
	if len(c.commands) == 0 {
		return nil, Position{}, nil
	}
	c.ctx, c.left, c.results, c.finished = ctx, len(c.commands), make([]*logpb.Result, len(c.commands)), make(chan struct{})
	if err := n.accepts(c.commands); err != nil {
		return nil, Position{}, err
	}
	switch err := c.encode(n.config.MaxEntryBytes / 2); {
	case errors.Is(err, errTooLarge):
		return nil, Position{}, n.notAccepted(TooLarge)
	case err != nil:
		return nil, Position{}, fmt.Errorf("encoding commands: %w", err)
	}
	if err := n.proposer.enqueue(c); err != nil {
		return nil, Position{}, err
	}
	if err := n.proposer.outcome(ctx, through, c); err != nil {
		return nil, Position{}, err
	}
	return c.results, c.at, nil
}

// accepts tells whether the node accepts commands at all, regardless of the queue.
func (n *Node) accepts(commands []*logpb.Command) error {
	if n.stopping.Load() {
		return n.notAccepted(Stopping)
	}
	if n.leading.Load() == nil {
		return n.notAccepted(n.whyNotLeading())
	}
	if n.diskRefusesGrants.Load() && takes(commands) {
		return n.notAccepted(DiskFull)
	}
	if n.memoryFull.Load() && grows(commands) {
		return n.notAccepted(MemoryFull)
	}
	if version := n.entryVersion.Load(); version < fsm.EntryVersion && entry.VersionOf(commands) > version {
		return n.notAccepted(OldMember)
	}
	return nil
}

func (n *Node) notAccepted(cause NotAcceptedCause) *NotAcceptedError {
	id, address, _ := n.Leader()
	return &NotAcceptedError{Cause: cause, Leader: id, LeaderAPIAddress: address}
}

// leadership implements host.
func (n *Node) leadership() *leadership {
	if n.paused.Load() {
		return nil
	}
	return n.leading.Load()
}

// header implements host.
func (n *Node) header(lead *leadership) *logpb.Entry {
	early, late, _ := n.samples.views(n) // 0 and 0 without enough samples
	return &logpb.Entry{Version: n.entryVersion.Load(), StampNs: lead.clock.now(), WallEarlyNs: early, WallLateNs: late}
}

// replicate implements host.
func (n *Node) replicate(data []byte) raft.Future { return n.raft.Apply(data, n.config.ApplyTimeout) }

// classify separates raft's errors: *NotAcceptedError if the entry was certainly not accepted, otherwise *UnknownError.
func (n *Node) classify(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout):
		return n.notAccepted(NotLeader)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		n.suspectTransfer()
		return n.notAccepted(NotReady)
	}
	// Leadership lost, aborted by a restore, shut down, a store's own error: the entry may yet be committed.
	return &UnknownError{Err: err}
}
