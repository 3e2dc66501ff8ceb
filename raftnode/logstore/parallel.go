package logstore

import (
	"math"
	"runtime"
	"sync"

	"github.com/hashicorp/raft"
)

// parallelLog is a log whose leader sends commands while it writes them: what it stores is there for raft at once, and on disk a
// little later, so that a decision waits for one disk and not for two in turn (Ongaro, "Consensus: bridging theory and practice",
// 10.2.1). Raft then takes a leader for one of the majority that has not synced yet, so nothing may come of that before it has:
//
//   - The state machine applies an entry when this node has it on disk (Wait), and so nobody is answered before.
//   - Followers are told of commits up to there and no further (Durable).
//   - Only commands are stored so. What raft itself acts upon, as members and a new leader's first entry, it has written when it goes on.
//   - Who follows has an entry when it is on disk: it does not answer for what it wrote while it led before that is.
//
// A write that fails ends the node, as any does, and who waits for it waits no more.
type parallelLog struct {
	*failStop
	leads func() bool

	mu sync.Mutex
	// writing are entries in their order that are not on disk, or not known to be.
	writing []*raft.Log
	// recent are the entries right before them, which are on disk.
	recent recentEntries
	// written is signalled when some of them are, or err is set.
	written *sync.Cond
	// err is why a write failed; it was the last one.
	err error
}

// maxIndex is beyond every entry.
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
		return err // damaged on its way here: refused, and sent again
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

// storeAfter stores entries and returns when they, and all before them, are on disk.
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

// goesOn says whether an entry comes right after those that are in flight. Raft's Restore leaves an index out.
func (l *parallelLog) goesOn(index uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.writing) == 0 || l.writing[len(l.writing)-1].Index+1 == index
}

// writeAll writes until there is nothing left; what comes meanwhile is written together.
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

// Wait waits until this node has on disk what it has of the log up to an index.
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

// Err returns why a write failed, after which nothing is applied any more.
func (l *parallelLog) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// await is Wait for who cannot go on without. Where a write has failed the node stops, and the goroutine that asks, one of raft's, ends
// here.
func (l *parallelLog) await(index uint64) {
	if l.Wait(index) != nil {
		runtime.Goexit()
	}
}

// Durable returns how much of the log up to an index is on disk.
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

// inMemory returns an entry that is not on disk yet, or not for long; nil for any other.
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

// DeleteRange implements raft.LogStore. Whether the log ends with what is deleted can be told when the next entry is on disk.
func (l *parallelLog) DeleteRange(first, last uint64) error {
	if err := l.Wait(last + 1); err != nil {
		return err
	}
	l.mu.Lock()
	l.recent = recentEntries{}
	l.mu.Unlock()
	return l.failStop.DeleteRange(first, last)
}
