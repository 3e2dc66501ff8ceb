package raftnode

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// transfers runs transfers of leadership with raft, one attempt at a time.
//
// A transfer that timed out leaves its request with the replication to the chosen follower, which reads it when its call in flight has
// ended. A second transfer before that would block indefinitely on leaving its own request (hashicorp/raft issue 696), and block every
// call of this leader. So the next attempt waits until that call has ended for certain.
type transfers struct {
	// busy has a token of the running attempt.
	busy chan struct{}
	// failed is when the last failed attempt ended.
	failed time.Time
}

// longestBackoff is the longest pause of raft's replication between failed calls (10 ms, doubled ten times). It reads no request meanwhile.
const longestBackoff = 10 * time.Millisecond << 10

// transferPause is longer than the longest pause plus one call (transportTimeout).
const transferPause = longestBackoff + transportTimeout + time.Second

func newTransfers() *transfers { return &transfers{busy: make(chan struct{}, 1)} }

// attempt runs one transfer as soon as it may. It returns ctx's error if ctx ends first, and begin's error if begin fails.
func (t *transfers) attempt(ctx context.Context, begin func() (raft.Future, error), wait func(raft.Future) error) error {
	select {
	case t.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-t.busy }()
	select {
	case <-time.After(time.Until(t.failed.Add(transferPause))):
	case <-ctx.Done():
		return ctx.Err()
	}
	future, err := begin()
	if err != nil {
		return err
	}
	if err = wait(future); err != nil {
		t.failed = time.Now()
	}
	return err
}

// transferOnStop transfers leadership to another voter before this node stops, within two election timeouts.
func (n *Node) transferOnStop(ctx context.Context) {
	if n.isDone() || !n.LeadsOthers() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*n.config.ElectionTimeout)
	defer cancel()
	wait := func(future raft.Future) error {
		finished := make(chan error, 1)
		go func() { finished <- future.Error() }()
		select {
		case err := <-finished:
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	err := n.transfers.attempt(ctx, func() (raft.Future, error) { return n.raft.LeadershipTransfer(), nil }, wait)
	if err != nil && !errors.Is(err, ctx.Err()) {
		n.logger.Info("could not transfer leadership", "error", err)
	}
}
