package raftnode

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
)

// handover is raft's transfer of leadership, one at a time.
//
// An attempt that timed out leaves its question with the replication to the follower that it chose, which reads it when its call
// in flight has ended. Another attempt would wait for ever to leave its own (hashicorp/raft issue 696), and with it every call of
// this leader; so it comes when that call cannot be in flight any more.
type handover struct {
	// busy is held by the attempt that is running.
	busy chan struct{}
	// failed is when the last attempt that came to nothing ended.
	failed time.Time
}

// longestBackoff is how long raft's replication rests at most after failures, before its next call (10 ms, doubled ten times); it
// reads no question then.
const longestBackoff = 10 * time.Millisecond << 10

// handoverPause is longer than replication rests and calls (Timeout of the transport).
const handoverPause = longestBackoff + transportTimeout + time.Second

func newHandover() *handover { return &handover{busy: make(chan struct{}, 1)} }

// attempt hands over as soon as it may. It returns ctx's error where that is over before, and begin's where nothing began.
func (h *handover) attempt(ctx context.Context, begin func() (raft.Future, error), wait func(raft.Future) error) error {
	select {
	case h.busy <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-h.busy }()
	select {
	case <-time.After(time.Until(h.failed.Add(handoverPause))):
	case <-ctx.Done():
		return ctx.Err()
	}
	future, err := begin()
	if err != nil {
		return err
	}
	if err = wait(future); err != nil {
		h.failed = time.Now()
	}
	return err
}

// handOver gives leadership to another voter before this node stops, within two election timeouts.
func (n *Node) handOver(ctx context.Context) {
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
	err := n.handover.attempt(ctx, func() (raft.Future, error) { return n.raft.LeadershipTransfer(), nil }, wait)
	if err != nil && !errors.Is(err, ctx.Err()) {
		n.logger.Info("could not transfer leadership", "error", err)
	}
}
