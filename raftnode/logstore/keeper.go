package logstore

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"
)

// The witness is at most this far behind the log, in entries and in time.
const (
	witnessEntries = 1000
	witnessDelay   = time.Second
)

// keeper writes the witness. It writes terms, votes, snapshots and small files before the node acts on them. Appends only record their last
// entry in memory, and a goroutine of the node writes that to the witness.
type keeper struct {
	dir string
	// guard wraps each write: a failed or stalled one ends the node.
	guard func(what string, write func() error) error

	// mu guards file and last, the content last written. It is taken before pendingMu.
	mu   sync.Mutex
	file *os.File
	last witness

	pendingMu sync.Mutex
	// index and term are those of the last synced entry; fresh: it is not in the witness yet.
	index, term uint64
	fresh       bool
	// recorded is the index in the witness.
	recorded uint64

	// dirty has a token when there is something to write, soon when it must be written at once.
	dirty, soon chan struct{}
}

// openKeeper opens an existing witness whose content is w.
func openKeeper(dir string, w *witness, guard func(string, func() error) error) (*keeper, error) {
	file, err := os.OpenFile(filepath.Join(dir, witnessFile), os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	return &keeper{
		dir: dir, guard: guard, file: file, last: *w, recorded: w.index,
		dirty: make(chan struct{}, 1), soon: make(chan struct{}, 1),
	}, nil
}

// change changes the witness durably. It writes nothing if the content stays the same.
func (k *keeper) change(change func(w *witness)) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.changeLocked(change)
}

func (k *keeper) changeLocked(change func(w *witness)) error {
	next := k.last
	change(&next)
	if next == k.last {
		return nil
	}
	if k.file == nil {
		return os.ErrClosed
	}
	if err := k.guard("writing the witness", func() error { return next.write(k.file) }); err != nil {
		return err
	}
	k.last = next
	return nil
}

// recordSynced records that the log is durable up to an entry. It is on the append path and holds a lock only for a moment.
func (k *keeper) recordSynced(entry *raft.Log) {
	k.pendingMu.Lock()
	defer k.pendingMu.Unlock()
	k.index, k.term = entry.Index, entry.Term
	if !k.fresh {
		k.fresh = true
		wake(k.dirty)
	}
	if k.index >= k.recorded+witnessEntries {
		wake(k.soon)
	}
}

func wake(channel chan struct{}) {
	select {
	case channel <- struct{}{}:
	default:
	}
}

// flush writes to the witness how far the log is durable.
func (k *keeper) flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pendingMu.Lock()
	index, term, fresh := k.index, k.term, k.fresh
	k.fresh = false
	k.pendingMu.Unlock()
	if !fresh {
		return nil
	}
	err := k.changeLocked(func(w *witness) { w.index, w.entryTerm = index, term })
	k.pendingMu.Lock()
	defer k.pendingMu.Unlock()
	k.recorded = k.last.index
	return err
}

// lower removes the entries after index from the witness, before they are cut off. term is that of the entry at index; 0: unknown.
func (k *keeper) lower(index, term uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pendingMu.Lock()
	if k.index > index {
		k.index, k.term = index, term
	}
	k.pendingMu.Unlock()
	err := k.changeLocked(func(w *witness) {
		if w.index > index {
			w.index, w.entryTerm = index, term
		}
	})
	k.pendingMu.Lock()
	defer k.pendingMu.Unlock()
	k.recorded = k.last.index
	return err
}

// part replaces a small file of the data directory. The witness drops the old checksum first and gets the new one last, so that it agrees
// with the file wherever the process ends.
func (k *keeper) part(name, content string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	set := func(sum uint32) error {
		return k.changeLocked(func(w *witness) { *w.part(name) = sum })
	}
	if *k.last.part(name) != 0 {
		if err := set(0); err != nil {
			return err
		}
	}
	if err := writeDurably(filepath.Join(k.dir, name), content); err != nil {
		return err
	}
	return set(partSum([]byte(content)))
}

// part returns a pointer to the checksum of a small file.
func (w *witness) part(name string) *uint32 {
	for i, known := range partNames {
		if known == name {
			return &w.parts[i]
		}
	}
	panic("not a part of a data directory: " + name)
}

// recordSnapshot records a verified snapshot. meta is its description.
func (k *keeper) recordSnapshot(index, term uint64, meta []byte) error {
	return k.change(func(w *witness) {
		w.snapshot, w.snapshotTerm, w.snapshotMeta = index, term, partSum(meta)
	})
}

// run writes the witness until stop is closed: within witnessDelay after an append, or when it is witnessEntries behind.
func (k *keeper) run(stop ...<-chan struct{}) {
	for {
		select {
		case <-k.dirty:
		case <-stop[0]:
			return
		case <-stop[1]:
			return
		}
		delay := time.NewTimer(witnessDelay)
		select {
		case <-delay.C:
		case <-k.soon:
		case <-stop[0]:
		case <-stop[1]:
		}
		delay.Stop()
		if k.flush() != nil {
			return // the node stops
		}
	}
}

// close flushes and closes the file.
func (k *keeper) close() error {
	err := k.flush()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.file == nil {
		return err
	}
	err = errors.Join(err, k.file.Close())
	k.file = nil
	return err
}
