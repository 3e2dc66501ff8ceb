package logstore

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/raft"
)

// slowLog is a store whose writes block until the test answers them.
type slowLog struct {
	Store
	writes  chan error
	entries []*raft.Log
	batches []int
	// closedAt is the number of its entries when it was closed.
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

func (*slowLog) CutAtOnce() uint64 { return unbounded }

// TestLog_LeaderReadsUnwrittenEntries: raft sees a leader's commands while they are being written, and commands that arrive meanwhile are
// written together. Followers, entries on which raft itself acts, and cuts of the log wait until the commands are on disk.
func TestLog_LeaderReadsUnwrittenEntries(t *testing.T) {
	for name, ask := range map[string]func(l *Log, leads *atomic.Bool) error{
		"the state machine": func(l *Log, _ *atomic.Bool) error {
			l.await(3)
			return nil
		},
		"a follower that is asked for it": func(l *Log, leads *atomic.Bool) error {
			leads.Store(false)
			return l.GetLog(3, new(raft.Log))
		},
		"a follower that is given more": func(l *Log, leads *atomic.Bool) error {
			leads.Store(false)
			return l.StoreLog(&raft.Log{Index: 4, Term: 8, Type: raft.LogCommand})
		},
		"a new configuration": func(l *Log, _ *atomic.Bool) error {
			return l.StoreLogs([]*raft.Log{{Index: 4, Type: raft.LogCommand}, {Index: 5, Type: raft.LogConfiguration}})
		},
		"what replaces its end": func(l *Log, leads *atomic.Bool) error {
			leads.Store(false)
			return l.DeleteRange(3, 3)
		},
		"what cuts its beginning": func(l *Log, _ *atomic.Bool) error { return l.DeleteRange(1, 1) },
		"the node's end":          func(l *Log, _ *atomic.Bool) error { return l.Wait(maxIndex) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				disk := &slowLog{writes: make(chan error)}
				var leads atomic.Bool
				leads.Store(true)
				l := New(disk, Options{Fatal: func(err error) { t.Error(err) }, Leads: leads.Load, Monotonic: monotonic})
				for index := uint64(1); index <= 3; index++ {
					if err := l.StoreLog(&raft.Log{Index: index, Term: 7, Type: raft.LogCommand, Data: []byte{byte(index)}}); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // its write has begun, or waits for the first one
				}
				var got raft.Log
				if err := l.GetLog(3, &got); err != nil || !intact(&got, 3) {
					t.Errorf("entry 3: %+v, %v", got, err)
				}
				if err := l.GetLog(4, &got); !errors.Is(err, raft.ErrLogNotFound) {
					t.Errorf("entry 4: %+v, %v", got, err)
				}
				if last, _ := l.LastIndex(); last != 3 || l.Durable(9) != 0 {
					t.Errorf("it ends at %d, and up to %d it is on disk", last, l.Durable(9))
				}
				answered := make(chan error, 1)
				go func() { answered <- ask(l, &leads) }()
				for _, durable := range []uint64{0, 1} {
					synctest.Wait()
					if at := l.Durable(9); at != durable || len(answered) > 0 {
						t.Errorf("up to %d it is on disk, answered: %t", at, len(answered) > 0)
					}
					disk.writes <- nil
				}
				synctest.Wait()
				close(disk.writes) // which answers all later writes
				if err := <-answered; err != nil {
					t.Error(err)
				}
				if err := l.Wait(maxIndex); err != nil || disk.batches[0] != 1 || disk.batches[1] != 2 || l.Durable(9) != 9 {
					t.Errorf("%v; written together: %v; %d of 9 on disk", err, disk.batches, l.Durable(9))
				}
			})
		})
	}
}

// TestLog_FailedWriteIsNeverApplied: a failed write ends the node. The entry stays not durable, and all waits for it end.
func TestLog_FailedWriteIsNeverApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk, broken := &slowLog{writes: make(chan error)}, errors.New("input/output error")
		var ended error
		l := New(disk, Options{Fatal: func(err error) { ended = err }, Leads: func() bool { return true }, Monotonic: monotonic})
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
		if applied || !errors.Is(ended, broken) || l.Durable(1) != 0 {
			t.Errorf("applied: %t, the node ends with %v, on disk up to %d", applied, ended, l.Durable(1))
		}
		for what, err := range map[string]error{
			"a command":       l.StoreLog(&raft.Log{Index: 2, Type: raft.LogCommand}),
			"a configuration": l.StoreLog(&raft.Log{Index: 2, Type: raft.LogConfiguration}),
			"a cut":           l.DeleteRange(1, 1),
			"the end":         l.Wait(1),
		} {
			if !errors.Is(err, broken) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestLog_EntryBehindGapWaits: raft's Restore skips an index. The entry after the gap waits for the entries before it, and a read of the
// gap returns no other entry.
func TestLog_EntryBehindGapWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowLog{writes: make(chan error)}
		l := New(disk, Options{Fatal: func(err error) { t.Error(err) }, Leads: func() bool { return true }, Monotonic: monotonic})
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

// TestClose_WaitsForWrites: Close waits for every write, also for those without a waiting caller.
func TestClose_WaitsForWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := &slowLog{writes: make(chan error)}
		l := New(disk, Options{Fatal: func(err error) { t.Error(err) }, Leads: func() bool { return true }, Monotonic: monotonic})
		if err := l.StoreLog(&raft.Log{Index: 1, Type: raft.LogCommand}); err != nil {
			t.Fatal(err)
		}
		closed := make(chan struct{})
		go func() {
			_ = l.Close()
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
