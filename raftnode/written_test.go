package raftnode

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// TestWrite_FailureAnswersAllCalls: raft took entries for committed before this node's write of the first of them failed. None is applied,
// each of their calls gets an unknown outcome, and no snapshot is made.
func TestWrite_FailureAnswersAllCalls(t *testing.T) {
	writing, outcome, broken := make(chan struct{}, 1), make(chan error), errors.New("input/output error")
	var armed atomic.Bool
	n := openOne(t, func(c *Config) {
		c.StallLimit = time.Minute
		c.Append = func(write func() error) error {
			if !armed.Load() {
				return write()
			}
			writing <- struct{}{}
			return <-outcome
		}
	})
	before := n.appliedIndex.Load()
	armed.Store(true)
	answers := make(chan error, n.config.EntriesInFlight)
	for i := range uint64(cap(answers)) {
		go func() {
			_, _, err := n.Propose(context.Background(), slots(1))
			answers <- err
		}()
		poll(t, "an entry is in flight", func() bool { return n.raft.LastIndex() > before+i })
	}
	future := n.raft.Apply([]byte("not for the state machine"), 0)
	<-writing
	poll(t, "raft takes all for committed", func() bool { return n.raft.CommitIndex() >= before+uint64(cap(answers))+1 })
	outcome <- broken
	for range cap(answers) {
		if err := <-answers; !isUnknown(err) {
			t.Errorf("the caller receives: %v", err)
		}
	}
	if err := future.Error(); err != nil {
		t.Errorf("the last entry: %v", err)
	}
	poll(t, "nothing is in flight", func() bool { return n.proposer.inFlight.Load() == 0 && len(n.proposer.slots) == 0 })
	if _, err := (machine{n}).Snapshot(); !errors.Is(err, broken) || !errors.Is(n.Err(), broken) {
		t.Errorf("a snapshot: %v; the node ends with %v", err, n.Err())
	}
	if n.appliedIndex.Load() != before {
		t.Errorf("%d is applied, %d was", n.appliedIndex.Load(), before)
	}
}

// TestStalledDisk_WrittenTermHidesNoStall: a leader's append hangs, and it writes a newer term meanwhile. It ends as any node with a
// stalled disk.
func TestStalledDisk_WrittenTermHidesNoStall(t *testing.T) {
	stuck := newStuckAppend()
	n := openOne(t, func(c *Config) { c.StallLimit, c.Append = 400*time.Millisecond, stuck.append })
	stuck.armed <- nil
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _, _ = n.Propose(context.Background(), slots(1))
	}()
	<-stuck.reached
	if err := n.log.SetUint64([]byte("SomeTerm"), 7); err != nil {
		t.Fatal(err)
	}
	poll(t, "the node ends", n.isDone)
	close(stuck.release)
	<-written
}

// TestSnapshot_CutsDisagreeingEntryInFlight: like one that is on disk already.
func TestSnapshot_CutsDisagreeingEntryInFlight(t *testing.T) {
	n := openOne(t)
	stuck, open := hold(t, n)
	go func() { _, _, _ = n.Propose(context.Background(), slots(1)) }()
	<-stuck
	end, term := n.raft.LastIndex(), n.raft.CurrentTerm()+1
	sink, err := n.snapshots.Create(raft.SnapshotVersionMax, end, term, raft.Configuration{}, 0, n.transport)
	if err != nil {
		t.Fatal(err)
	}
	if err := emptyState().WriteSnapshot(sink); err != nil {
		t.Fatal(err)
	}
	closed := make(chan error, 1)
	go func() { closed <- sink.Close() }()
	select {
	case err := <-closed:
		t.Fatalf("%v while entry %d is being written", err, end)
	case <-time.After(100 * time.Millisecond): // long enough for a failure to show
	}
	open()
	if err := <-closed; !errors.Is(err, ErrConflictingLog) || !errors.Is(n.Err(), ErrConflictingLog) {
		t.Errorf("%v; the node ends with %v", err, n.Err())
	}
	if last, err := n.log.LastIndex(); err != nil || last != end-1 {
		t.Errorf("the log ends at %d, %v; entry %d disagrees", last, err, end)
	}
}

// hold makes a node's next write of its log wait until open is called, at the latest at the test's end.
func hold(t *testing.T, n *Node) (stuck <-chan struct{}, open func()) {
	t.Helper()
	reached, gate := make(chan struct{}), make(chan struct{})
	open = sync.OnceFunc(func() { close(gate) })
	t.Cleanup(open)
	n.crash.crash = func() {
		close(reached)
		<-gate
	}
	n.crash.set("before-store", 1)
	return reached, open
}

// TestLeader_UnwrittenEntryHasNoEffect: both followers have an entry that their leader is still writing. Raft takes it for committed,
// but no caller is answered, and the leader's next entry does not announce it to a follower. Once the leader's disk answers, everything
// continues.
func TestLeader_UnwrittenEntryHasNoEffect(t *testing.T) {
	nodes := openThree(t)
	proposeTo(t, nodes, slots(2))
	leader := leaderOf(t, nodes)
	stuck, open := hold(t, leader)
	answered := make(chan error, 2)
	ask := func() {
		results, _, err := leader.Propose(context.Background(), take(1))
		if err == nil && results[0].GetGranted() == nil {
			err = fmt.Errorf("%v", results)
		}
		answered <- err
	}
	go ask()
	<-stuck
	index := leader.raft.LastIndex()
	poll(t, "raft takes the entry for committed", func() bool { return leader.raft.CommitIndex() >= index })
	go ask()
	poll(t, "and the next one", func() bool { return leader.raft.CommitIndex() > index })
	for _, n := range nodes {
		if n.raft.CommitIndex() >= index && n != leader || n.appliedIndex.Load() >= index || n.Status().CommitIndex >= index {
			t.Errorf("%s learned that %d is committed and applied %d; %d is still being written", n.config.ID, n.raft.CommitIndex(),
				n.appliedIndex.Load(), index)
		}
	}
	if len(answered) > 0 {
		t.Fatalf("answered before it was written: %v", <-answered)
	}
	open()
	for range 2 {
		if err := <-answered; err != nil {
			t.Error(err)
		}
	}
	for _, n := range nodes {
		poll(t, "all have it", func() bool { return n.appliedIndex.Load() > index })
	}
}
