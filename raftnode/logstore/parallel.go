package logstore

import (
	"math"
	"runtime"
	"sync"

	"github.com/hashicorp/raft"
)

// parallelLog lets a leader send commands while it writes them: raft sees stored entries at once, and they reach the disk a little later.
// So a decision waits for one disk, not for two in turn (Ongaro, "Consensus: bridging theory and practice", 10.2.1). Raft then counts a
// leader that has not synced yet in the majority, so nothing may depend on that before the sync:
//
//   - The state machine applies an entry once this node has it on disk (Wait), so no caller is answered earlier.
//   - Followers learn of commits only up to the last entry on disk (Durable).
//   - Only commands are stored this way. Entries on which raft itself acts, such as members and a new leader's first entry, are on disk
//     when StoreLogs returns.
//   - On a follower every entry that it reads is on disk: a deposed leader waits for the entries it wrote as leader before it answers for
//     them.
//
// A failed write ends the node, as in failStop, and ends the waits for it.
type parallelLog struct {
	*failStop
	leads func() bool

	mu sync.Mutex
	// writing has the entries, in order, that are not known to be on disk.
	writing []*raft.Log
	// recent has the entries right before them, which are on disk.
	recent recentEntries
	// written is signalled when entries reach the disk, or err is set.
	written *sync.Cond
	// err is the error of a failed write; no later write is attempted.
	err error
}

// maxIndex is above the index of every entry.
const maxIndex = math.MaxUint64

func newParallelLog(store *failStop, leads func() bool) *parallelLog {
	l := &parallelLog{failStop: store, leads: leads}
	l.written = sync.NewCond(&l.mu)
	return l
}

// StoreLog implements raft.LogStore.
func (l *parallelLog) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (l *parallelLog) StoreLogs(logs []*raft.Log) error {
	sealed, err := seal(logs)
	if err != nil {
		return err // damaged on the way here; the leader sends it again
	}
	if !l.leads() || !areCommands(logs) || !l.goesOn(logs[0].Index) {
		return l.storeAfter(sealed)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if len(l.writing) == 0 {
		go l.writeAll()
	}
	l.writing = append(l.writing, sealed...)
	return nil
}

// storeAfter stores entries and returns when they and all earlier ones are on disk.
func (l *parallelLog) storeAfter(sealed []*raft.Log) error {
	if err := l.Wait(maxIndex); err != nil {
		return err
	}
	if err := l.storeSealed(sealed); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.recent.add(sealed)
	return nil
}

func areCommands(logs []*raft.Log) bool {
	for _, log := range logs {
		if log.Type != raft.LogCommand {
			return false
		}
	}
	return true
}

// goesOn says whether an entry directly follows the ones in flight. Raft's Restore skips an index.
func (l *parallelLog) goesOn(index uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.writing) == 0 || l.writing[len(l.writing)-1].Index+1 == index
}

// writeAll writes until no entries are left. Entries that arrive during a write go into the next one together.
func (l *parallelLog) writeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.writing) > 0 {
		logs := l.writing
		l.mu.Unlock()
		err := l.storeSealed(logs)
		l.mu.Lock()
		if l.err = err; err == nil {
			l.recent.add(logs)
			l.writing = l.writing[len(logs):]
		}
		l.written.Broadcast()
		if err != nil {
			return
		}
	}
	l.writing = nil
}

// Wait waits until all entries of the log up to an index are on this node's disk. It returns the error of a failed write.
func (l *parallelLog) Wait(index uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.writing) > 0 && l.writing[0].Index <= index {
		if l.err != nil {
			return l.err
		}
		l.written.Wait()
	}
	return nil
}

// Err returns the error of a failed write. After one, no entry is applied any more.
func (l *parallelLog) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// await is Wait for goroutines of raft that cannot handle an error. After a failed write the node stops, and await ends the calling
// goroutine.
func (l *parallelLog) await(index uint64) {
	if l.Wait(index) != nil {
		runtime.Goexit()
	}
}

// Durable returns the last index, at most index, up to which the log is on disk.
func (l *parallelLog) Durable(index uint64) uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.writing) > 0 {
		return min(index, l.writing[0].Index-1)
	}
	return index
}

// GetLog implements raft.LogStore.
func (l *parallelLog) GetLog(index uint64, log *raft.Log) error {
	if !l.leads() {
		l.await(index)
	}
	if entry := l.inMemory(index); entry != nil {
		*log = *entry
		return nil
	}
	return l.failStop.GetLog(index, log)
}

// inMemory returns an entry that is not on disk yet, or was written recently; nil for others.
func (l *parallelLog) inMemory(index uint64) *raft.Log {
	l.mu.Lock()
	defer l.mu.Unlock()
	if entry := entryAt(l.writing, index); entry != nil {
		return entry
	}
	return entryAt(l.recent.entries, index)
}

// LastIndex implements raft.LogStore.
func (l *parallelLog) LastIndex() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.writing) > 0 {
		return l.writing[len(l.writing)-1].Index, nil
	}
	return l.failStop.LastIndex()
}

// DeleteRange implements raft.LogStore. It waits for the entry after last too: only then is it known whether the range is the log's end.
func (l *parallelLog) DeleteRange(first, last uint64) error {
	if err := l.Wait(last + 1); err != nil {
		return err
	}
	l.mu.Lock()
	l.recent = recentEntries{}
	l.mu.Unlock()
	return l.failStop.DeleteRange(first, last)
}
