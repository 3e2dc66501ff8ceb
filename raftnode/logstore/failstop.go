package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// failStop is raft's log and stable store. The first failed write ends the node: after a failed fsync, data in memory cannot be trusted,
// and only reading it again tells what is on disk. A write that takes too long ends the node too: such a leader looks alive but serves no
// requests.
type failStop struct {
	store Store
	// fatal is called once per failure; it must return quickly.
	fatal func(error)
	// monotonic is a clock in nanoseconds.
	monotonic func() int64
	// crash is called at points where a test may end the process.
	crash func(point string)
	// append, if set, makes the appends. took, if set, gets the duration of each write.
	append func(write func() error) error
	took   func(time.Duration)
	// keeper records what is durable; nil: there is no witness.
	keeper *keeper
	// bound: the store's values have checksums. voteTerm is the term of the vote that is being written.
	bound    bool
	voteTerm uint64
	// running: raft runs, and a failed read or term write ends the calling goroutine. Before that, met keeps the error.
	running atomic.Bool
	met     error

	writesMu sync.Mutex
	// writes has the start of each write in flight (nanoseconds of the clock). A leader writes terms while it writes entries.
	writes []int64
}

func (s *failStop) write(what string, fn func() error) error {
	started := s.monotonic()
	s.began(started)
	err := fn()
	s.ended(started)
	if s.took != nil {
		s.took(time.Duration(s.monotonic() - started))
	}
	if err != nil {
		s.fatal(fmt.Errorf("%s failed: %w: the node stops; check the disk and start the node again", what, err))
	}
	return err
}

// FirstIndex implements raft.LogStore.
func (s *failStop) FirstIndex() (uint64, error) { return s.store.FirstIndex() }

// LastIndex implements raft.LogStore.
func (s *failStop) LastIndex() (uint64, error) { return s.store.LastIndex() }

// StoreLog implements raft.LogStore.
func (s *failStop) StoreLog(log *raft.Log) error { return s.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore.
func (s *failStop) StoreLogs(logs []*raft.Log) error {
	sealed, err := seal(logs)
	if err != nil {
		return err // damaged on the way here; the leader sends it again
	}
	return s.storeSealed(sealed)
}

func (s *failStop) storeSealed(logs []*raft.Log) error {
	s.crash("before-store")
	store := func() error { return s.store.StoreLogs(logs) }
	err := s.write("writing the log", func() error {
		if s.append != nil {
			return s.append(store)
		}
		return store()
	})
	s.crash("after-store")
	if err == nil && s.keeper != nil {
		s.keeper.recordSynced(logs[len(logs)-1])
	}
	return err
}

// GetLog implements raft.LogStore. A damaged entry is neither applied nor sent: the node stops. Raft would panic at the error, so its
// calling goroutine ends here.
func (s *failStop) GetLog(index uint64, log *raft.Log) error {
	err := getIntact(s.store, index, log)
	if errors.Is(err, ErrDamaged) {
		if s.running.Load() {
			s.fatal(err)
			runtime.Goexit()
		}
		s.met = err
	}
	return err
}

// DeleteRange implements raft.LogStore. It deletes in chunks of CutAtOnce entries. Their order leaves no hole in the log if the process
// ends in between: the log's beginning is deleted from the front, its end from the back.
func (s *failStop) DeleteRange(first, last uint64) error {
	end, err := s.LastIndex()
	if err != nil {
		return err
	}
	first, last = max(first, 1), min(last, end)
	for first <= last {
		s.crash("in-delete-range")
		rest := min(s.store.CutAtOnce()-1, last-first)
		from, to := first, first+rest
		if last == end {
			from, to = last-rest, last
		}
		if last == end {
			if err := s.lower(from); err != nil {
				return err
			}
		}
		if err := s.write("truncating the log", func() error { return s.store.DeleteRange(from, to) }); err != nil {
			return err
		}
		if last == end {
			last, end = from-1, from-1
		} else {
			first = to + 1
		}
	}
	return nil
}

// lower removes an entry and its successors from the witness.
func (s *failStop) lower(from uint64) error {
	if s.keeper == nil {
		return nil
	}
	var before raft.Log
	if err := s.store.GetLog(from-1, &before); err != nil {
		before.Term = 0 // missing, or damaged: other checks report that
	}
	return s.keeper.lower(from-1, before.Term)
}

func (s *failStop) values() *stable { return &stable{store: s.store, bound: s.bound} }

// Get implements raft.StableStore.
func (s *failStop) Get(key []byte) ([]byte, error) { return s.values().get(key) }

// GetUint64 implements raft.StableStore.
func (s *failStop) GetUint64(key []byte) (uint64, error) { return s.values().number(key) }

// Set implements raft.StableStore. A vote is in the witness too before raft sends it.
func (s *failStop) Set(key, value []byte) error {
	err := s.write("writing a vote", func() error { return s.values().set(key, value) })
	s.crash("before-witness")
	if err == nil && s.keeper != nil && bytes.Equal(key, keyVote) {
		err = s.keeper.change(func(w *witness) { w.voteTerm, w.voteFor = max(w.voteTerm, s.voteTerm), digest(value) })
	}
	s.crash("after-vote")
	return err
}

// SetUint64 implements raft.StableStore. If a term cannot be written, raft would panic before the node has stopped in order, so its calling
// goroutine ends here.
func (s *failStop) SetUint64(key []byte, value uint64) error {
	err := s.write("writing a term", func() error { return s.values().setNumber(key, value) })
	switch {
	case err != nil || s.keeper == nil:
	case bytes.Equal(key, keyVoteTerm):
		s.voteTerm = value // raft writes the vote next
	case bytes.Equal(key, keyTerm):
		s.crash("before-witness")
		err = s.keeper.change(func(w *witness) { w.term = value })
	}
	if err != nil {
		if s.running.Load() {
			runtime.Goexit()
		}
		s.met = err
	}
	return err
}

func (s *failStop) began(at int64) {
	s.writesMu.Lock()
	defer s.writesMu.Unlock()
	s.writes = append(s.writes, at)
}

func (s *failStop) ended(at int64) {
	s.writesMu.Lock()
	defer s.writesMu.Unlock()
	if i := slices.Index(s.writes, at); i >= 0 {
		s.writes = slices.Delete(s.writes, i, i+1)
	}
}

// OldestWrite returns when the oldest write in flight began, by the monotonic clock; false: no write is in flight.
func (s *failStop) OldestWrite() (at int64, writing bool) {
	s.writesMu.Lock()
	defer s.writesMu.Unlock()
	if len(s.writes) == 0 {
		return 0, false
	}
	return slices.Min(s.writes), true
}

// StalledFor returns how long the oldest write in flight has taken so far.
func (s *failStop) StalledFor() time.Duration {
	since, writing := s.OldestWrite()
	if !writing {
		return 0
	}
	return time.Duration(s.monotonic() - since)
}
