package raftnode

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
)

// slowLog is a store whose writes wait.
type slowLog struct {
	raftLog
	writes  chan error
	entries []*raft.Log
	batches []int
	// closedAt is how many entries it had when it was closed.
	closedAt int
}

func (l *slowLog) StoreLogs(logs []*raft.Log) error {
	if err := <-l.writes; err != nil {
		return err
	}
	l.entries, l.batches = append(l.entries, logs...), append(l.batches, len(logs))
	return nil
}

func (l *slowLog) GetLog(index uint64, log *raft.Log) error {
	if index > uint64(len(l.entries)) {
		return raft.ErrLogNotFound
	}
	*log = *l.entries[index-1]
	return nil
}

func (l *slowLog) LastIndex() (uint64, error) { return uint64(len(l.entries)), nil }

func (l *slowLog) DeleteRange(first, _ uint64) error {
	l.entries = l.entries[:first-1]
	return nil
}

func (l *slowLog) Close() error {
	l.closedAt = len(l.entries)
	return nil
}

func (*slowLog) cutAtOnce() uint64 { return unbounded }

// TestALeaderHasWhatItWrites: a leader's commands are there for raft while they are being written, and what comes meanwhile is
// written together; for who follows, for what raft acts upon itself, and for who cuts the log, they are there when they are on disk.
func TestALeaderHasWhatItWrites(t *testing.T) {
	for name, ask := range map[string]func(l *parallelLog, leads *atomic.Bool) error{
		"the state machine": func(l *parallelLog, _ *atomic.Bool) error {
			l.await(3)
			return nil
		},
		"a follower that is asked for it": func(l *parallelLog, leads *atomic.Bool) error {
			leads.Store(false)
			return l.GetLog(3, new(raft.Log))
		},
		"a follower that is given more": func(l *parallelLog, leads *atomic.Bool) error {
			leads.Store(false)
			return l.StoreLog(&raft.Log{Index: 4, Term: 8, Type: raft.LogCommand})
		},
		"a new configuration": func(l *parallelLog, _ *atomic.Bool) error {
			return l.StoreLogs([]*raft.Log{{Index: 4, Type: raft.LogCommand}, {Index: 5, Type: raft.LogConfiguration}})
		},
		"what replaces its end": func(l *parallelLog, leads *atomic.Bool) error {
			leads.Store(false)
			return l.DeleteRange(3, 3)
		},
		"what cuts its beginning": func(l *parallelLog, _ *atomic.Bool) error { return l.DeleteRange(1, 1) },
		"the node's end":          func(l *parallelLog, _ *atomic.Bool) error { return l.wait(math.MaxUint64) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := &slowLog{writes: make(chan error)}
				var leads atomic.Bool
				leads.Store(true)
				l := newParallelLog(&failStop{raftLog: disk, fatal: func(err error) { t.Error(err) }, clock: NewSystemClock()}, leads.Load)
				for index := uint64(1); index <= 3; index++ {
					if err := l.StoreLog(&raft.Log{Index: index, Term: 7, Type: raft.LogCommand, Data: []byte{byte(index)}}); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // its write has begun, or waits for the first
				}
				var got raft.Log
				if err := l.GetLog(3, &got); err != nil || intact(&got, 3) != nil {
					t.Errorf("entry 3: %+v, %v", got, err)
				}
				if err := l.GetLog(4, &got); !errors.Is(err, raft.ErrLogNotFound) {
					t.Errorf("entry 4: %+v, %v", got, err)
				}
				if last, _ := l.LastIndex(); last != 3 || l.durable(9) != 0 {
					t.Errorf("it ends at %d, and up to %d it is on disk", last, l.durable(9))
				}
				answered := make(chan error, 1)
				go func() { answered <- ask(l, &leads) }()
				for _, durable := range []uint64{0, 1} {
					synctest.Wait()
					if at := l.durable(9); at != durable || len(answered) > 0 {
						t.Errorf("up to %d it is on disk, answered: %t", at, len(answered) > 0)
					}
					disk.writes <- nil
				}
				synctest.Wait()
				close(disk.writes) // which answers all further writes
				if err := <-answered; err != nil {
					t.Error(err)
				}
				if err := l.wait(math.MaxUint64); err != nil || disk.batches[0] != 1 || disk.batches[1] != 2 || l.durable(9) != 9 {
					t.Errorf("%v; written together: %v; %d of 9 on disk", err, disk.batches, l.durable(9))
				}
			})
		})
	}
}

// TestWhatFailsIsNeverApplied: a write that fails ends the node; the entry stays what it was, not durable, and nobody waits for it any more.
func TestWhatFailsIsNeverApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, broken := &slowLog{writes: make(chan error)}, errors.New("input/output error")
		var ended error
		l := newParallelLog(&failStop{raftLog: disk, fatal: func(err error) { ended = err }, clock: NewSystemClock()}, func() bool { return true })
		if err := l.StoreLog(&raft.Log{Index: 1, Type: raft.LogCommand}); err != nil {
			t.Fatal(err)
		}
		applied, gone := false, make(chan struct{})
		go func() {
			defer close(gone)
			l.await(1)
			applied = true
		}()
		synctest.Wait()
		disk.writes <- broken
		<-gone
		if applied || !errors.Is(ended, broken) || l.durable(1) != 0 {
			t.Errorf("applied: %t, the node ends with %v, on disk up to %d", applied, ended, l.durable(1))
		}
		for what, err := range map[string]error{
			"a command":       l.StoreLog(&raft.Log{Index: 2, Type: raft.LogCommand}),
			"a configuration": l.StoreLog(&raft.Log{Index: 2, Type: raft.LogConfiguration}),
			"a cut":           l.DeleteRange(1, 1),
			"the end":         l.wait(1),
		} {
			if !errors.Is(err, broken) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestAWriteThatFailsAnswersAll: entries that raft took for committed before this node's write of the first of them failed. None is
// applied, everybody who asked for one hears that there is no result, and no snapshot is made of what came of the others.
func TestAWriteThatFailsAnswersAll(t *testing.T) {
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
			t.Errorf("who asked hears: %v", err)
		}
	}
	if err := future.Error(); err != nil {
		t.Errorf("the last entry: %v", err)
	}
	poll(t, "nothing is in flight", func() bool { return n.inFlight.Load() == 0 && len(n.proposer.slots) == 0 })
	if _, err := (machine{n}).Snapshot(); !errors.Is(err, broken) || !errors.Is(n.Err(), broken) {
		t.Errorf("a snapshot: %v; the node ends with %v", err, n.Err())
	}
	if n.appliedIndex.Load() != before {
		t.Errorf("%d is applied, %d was", n.appliedIndex.Load(), before)
	}
}

// TestWhatIsNotNextWaits: raft's Restore leaves an index out; what comes after it is written when what was before it is, and nobody is
// given another entry in its place.
func TestWhatIsNotNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowLog{writes: make(chan error)}
		l := newParallelLog(&failStop{raftLog: disk, fatal: func(err error) { t.Error(err) }, clock: NewSystemClock()}, func() bool { return true })
		stored := make(chan error, 1)
		go func() {
			first := l.StoreLog(&raft.Log{Index: 1, Type: raft.LogCommand})
			stored <- errors.Join(first, l.StoreLog(&raft.Log{Index: 3, Type: raft.LogCommand}))
		}()
		synctest.Wait()
		var got raft.Log
		if err := l.GetLog(2, &got); !errors.Is(err, raft.ErrLogNotFound) || len(stored) > 0 {
			t.Errorf("entry 2 is %+v, %v; stored: %t", got, err, len(stored) > 0)
		}
		close(disk.writes)
		if err := <-stored; err != nil || len(disk.batches) != 2 {
			t.Errorf("%v; written together: %v", err, disk.batches)
		}
	})
}

// TestFilesAreClosedWhenAllIsWritten: also what nobody waited for.
func TestFilesAreClosedWhenAllIsWritten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowLog{writes: make(chan error)}
		store := &failStop{raftLog: disk, fatal: func(err error) { t.Error(err) }, clock: NewSystemClock()}
		n := &Node{store: store, log: newParallelLog(store, func() bool { return true })}
		if err := n.log.StoreLog(&raft.Log{Index: 1, Type: raft.LogCommand}); err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			n.closeFiles()
			close(closed)
		}()
		synctest.Wait()
		disk.writes <- nil
		<-closed
		if disk.closedAt != 1 {
			t.Errorf("the store was closed with %d of 1 entry", disk.closedAt)
		}
	})
}

// TestATermHidesNoStall: a leader whose append hangs, and which hears of another term meanwhile and writes that down, ends as any whose
// disk stalls.
func TestATermHidesNoStall(t *testing.T) {
	n := openOne(t, func(c *Config) { c.StallLimit = 400 * time.Millisecond })
	hangs, release, written := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		written <- n.store.write("writing the log", func() error {
			close(hangs)
			<-release
			return nil
		})
	}()
	<-hangs
	if err := n.store.SetUint64([]byte("SomeTerm"), 7); err != nil {
		t.Fatal(err)
	}
	poll(t, "the node ends", n.isDone)
	close(release)
	if err := <-written; err != nil {
		t.Error(err)
	}
}

// TestAnEndUnderWayThatDisagreesWithASnapshotIsCut: as one that is on disk already.
func TestAnEndUnderWayThatDisagreesWithASnapshotIsCut(t *testing.T) {
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
	case <-time.After(100 * time.Millisecond): // enough for it to go wrong
	}
	open()
	if err := <-closed; !errors.Is(err, ErrConflictingLog) || !errors.Is(n.Err(), ErrConflictingLog) {
		t.Errorf("%v; the node ends with %v", err, n.Err())
	}
	if last, err := n.store.LastIndex(); err != nil || last != end-1 {
		t.Errorf("the log ends at %d, %v; entry %d disagrees", last, err, end)
	}
}

// hold has a node's next write of its log wait until open is called. It is called at the test's end, too.
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

// TestNothingComesOfWhatALeaderHasNotWritten: both followers have an entry that their leader is still writing. Raft takes it for
// committed; nobody is answered, and no follower learns of it by the next entry that its leader sends. The leader's disk goes on,
// and so does all.
func TestNothingComesOfWhatALeaderHasNotWritten(t *testing.T) {
	nodes := openThree(t)
	leader := leaderOf(t, nodes)
	if _, _, err := leader.Propose(t.Context(), slots(2)); err != nil {
		t.Fatal(err)
	}
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
			t.Errorf("%s was told that %d is committed and applied %d; %d is still being written", n.config.ID, n.raft.CommitIndex(),
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
