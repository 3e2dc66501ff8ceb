package raftnode

import (
	"context"
	"fmt"
	"time"

	"github.com/quotad/quotad/raftnode/peer"
)

// checksPerStall is how often to check the log's disk within StallLimit.
const checksPerStall = 8

// stallWatch measures how long one write takes, in time during which the process ran. After a pause, or on a machine without a free
// processor, a write looks long too, though its disk is healthy: the process cannot see its end.
type stallWatch struct {
	// every is the time between two checks. A check that comes after more than twice that time is late, and counts nothing.
	every, limit time.Duration
	// at is when the last check ran, since when the write began that it saw (nanoseconds of the monotonic clock).
	at, since int64
	// ran is for how long checks on schedule have seen that write.
	ran time.Duration
}

// check processes one check: the time, and when the oldest write in flight began, if any is. It returns whether that write is stuck.
func (w *stallWatch) check(now, since int64, writing bool) (stuck bool) {
	passed := time.Duration(now - w.at)
	w.at = now
	if !writing || since != w.since {
		w.since, w.ran = since, 0
		return false
	}
	if passed <= 2*w.every {
		w.ran += passed
	}
	return w.ran > w.limit
}

// watchStall ends the node when one write takes too long.
func (n *Node) watchStall() {
	w := &stallWatch{every: n.checkEvery(), limit: n.config.StallLimit, at: n.config.Clock.Monotonic()}
	n.checkRepeatedly(func() bool {
		since, writing := n.log.OldestWrite()
		if !w.check(n.config.Clock.Monotonic(), since, writing) {
			return true
		}
		n.fail(fmt.Errorf("a write to the log has been stuck for %v: check the disk", n.log.StalledFor().Round(time.Millisecond)))
		return false
	})
}

// lowDisk decides what a node does about a low disk. A leader first transfers leadership to a node with free space: a leader that refuses
// grants refuses them to the whole fleet. A follower grants nothing itself, so it does nothing until it is elected.
type lowDisk struct {
	// lead is the leadership to which attempts belongs: how often this node began to transfer it.
	lead     *leadership
	attempts int
}

// check processes one check: whether the disk is low, the present leadership (nil: none), and whether a transfer is running. It returns
// whether to begin another transfer, and whether to refuse grants, which starts once the first transfer of this leadership has ended.
func (d *lowDisk) check(low bool, lead *leadership, transferring bool) (transfer, refuse bool) {
	if !low || lead != d.lead {
		d.lead, d.attempts = lead, 0
	}
	if !low || lead == nil {
		return false, false
	}
	if !transferring {
		d.attempts++
	}
	return !transferring, d.attempts > 1
}

// watchSpace refuses grants when the disk is nearly full and no other node can lead, and ends the node before the disk is full.
func (n *Node) watchSpace() {
	var d lowDisk
	n.checkRepeatedly(func() bool {
		free, err := n.config.Free(n.config.DataDir)
		if err != nil {
			return true
		}
		low := n.config.FreeLow > 0 && free < n.config.FreeLow
		if low != n.diskLow.Swap(low) {
			n.reportSpace(low, free)
		}
		transfer, refuse := d.check(low, n.leading.Load(), n.transferring.Load())
		if refuse && !n.diskRefusesGrants.Swap(refuse) {
			n.logger.Warn("new grants are refused: the leader's disk is nearly full, and no other node can lead; free some space",
				"data_dir", n.config.DataDir)
		}
		n.diskRefusesGrants.Store(refuse)
		if transfer {
			n.transferring.Store(true)
			n.wg.Go(func() {
				defer n.transferring.Store(false)
				n.transferForSpace()
			})
		}
		if n.config.FreeStop > 0 && free < n.config.FreeStop {
			n.fail(fmt.Errorf("only %s are free for %s, less than disk.stop_below (%s): free some space and start the node again",
				mebibytes(free), n.config.DataDir, mebibytes(n.config.FreeStop)))
			return false
		}
		return true
	})
}

// transferForSpace transfers leadership to a voter that answers, has caught up and has free disk space: among these to the one with the
// longest log.
func (n *Node) transferForSpace() {
	ctx, cancel := context.WithTimeout(context.Background(), peer.Timeout)
	defer cancel()
	voters, _ := n.voters()
	best, last := "", uint64(0)
	for _, v := range voters {
		if string(v.ID) == n.config.ID {
			continue
		}
		reply, err := n.port.Ask(ctx, string(v.ID), string(v.Address), peer.Request{Kind: "probe"})
		if err == nil && reply.Node == string(v.ID) && reply.Room && reply.Last+caughtUp >= n.raft.LastIndex() && reply.Last >= last {
			best, last = reply.Node, reply.Last
		}
	}
	if best == "" {
		return
	}
	ctx, cancel = context.WithTimeout(context.Background(), 2*n.config.ElectionTimeout)
	defer cancel()
	if _, err := n.TransferLeadership(ctx, best); err != nil {
		n.logger.Info("the disk is nearly full: could not transfer leadership", "to", best, "error", err)
		return
	}
	n.logger.Warn("the disk is nearly full: transferred leadership to a node with free space", "to", best, "data_dir", n.config.DataDir)
}

// reportSpace logs that free space fell below the mark or rose above it again, with the consequence.
func (n *Node) reportSpace(low bool, free int64) {
	where := []any{"data_dir", n.config.DataDir, "free", mebibytes(free), "disk.refuse_below", mebibytes(n.config.FreeLow)}
	if low {
		n.logger.Warn("the disk is nearly full: free some space; if this node leads and no other can, new grants are refused", where...)
		return
	}
	n.logger.Info("the disk has enough free space again", where...)
}

// mebibytes formats a size in the unit of the settings.
func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// checkAtLeastEvery bounds the interval of checks: a large StallLimit must not delay the notice of a full disk.
const checkAtLeastEvery = 250 * time.Millisecond

// checkEvery returns the time between two checks.
func (n *Node) checkEvery() time.Duration {
	return min(n.config.StallLimit/checksPerStall, checkAtLeastEvery)
}

// checkRepeatedly calls look at intervals of checkEvery until it returns false or the node stops.
func (n *Node) checkRepeatedly(inspect func() bool) {
	ticker := time.NewTicker(n.checkEvery())
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-n.closing:
			return
		case <-n.done:
			return
		}
		if !inspect() {
			return
		}
	}
}
