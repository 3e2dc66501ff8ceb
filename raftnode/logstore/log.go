package logstore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
)

// ErrUncommittedRestore says that this node began a restore as leader, and that its cluster continued without it.
var ErrUncommittedRestore = errors.New("the restore was not committed: the cluster continued without it")

// Options are what a Log needs of its node.
type Options struct {
	// Kind is the store in which the log is kept, or made.
	Kind Kind
	// Node is this node's id.
	Node string
	// Leads says whether raft is leader at that moment.
	Leads func() bool
	// Fatal is called once per failure; the node must stop then. It must return quickly.
	Fatal func(error)
	// Monotonic is a clock in nanoseconds that never jumps.
	Monotonic func() int64
	// Crash is called at points where a test may end the process; nil: no such test.
	Crash func(point string)
	// Append, if set, makes the appends: it calls write, at once or later, or returns an error without a call.
	Append func(write func() error) error
	// Took, if set, gets the duration of each write.
	Took func(time.Duration)
	// Logger takes messages; nil: they are discarded.
	Logger hclog.Logger
}

// Log is raft's log, with its terms and votes, as raft sees it. For a follower it also contains the entry at which a snapshot ends, without
// the content.
//
// Reason: a leader whose first entries after a snapshot were stored, but whose answer was lost, sends them again. The follower looks up the
// entry before them to compare its term. The snapshot covers that entry, but raft does not look there. So the leader sends the snapshot
// many times a second, until it has a newer one. A leader does not see such entries, so that it sends the snapshot to followers that lack
// it. No node would store one, since its checksum is invalid.
type Log struct {
	*parallelLog
	dir    string
	nonce  string
	logger hclog.Logger
	ends   snapshotEnds
}

// New makes a Log over a store; Close closes the store too. It has no witness: Disk.Open makes a Log with one.
func New(store Store, o Options) *Log {
	if o.Crash == nil {
		o.Crash = func(string) {}
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	return &Log{
		parallelLog: newParallelLog(&failStop{
			store: store, fatal: o.Fatal, monotonic: o.Monotonic, crash: o.Crash, append: o.Append, took: o.Took,
		}, o.Leads),
		logger: o.Logger,
	}
}

// Open opens or creates the directory's log, checks all parts of the directory against each other, and removes the remains of interrupted
// starts and snapshots. Errors are ErrDataDirInUse, *OtherKindError, ErrTwoLogStores, ErrDamaged, ErrWiped, ErrUnfitBuild, and the
// system's.
func (d *Disk) Open(o Options) (_ *Log, err error) {
	if err := prepareDir(d.dir); err != nil {
		return nil, err
	}
	if err := d.dropBlank(); err != nil {
		return nil, err
	}
	store, err := openStore(d.dir, o.Kind, storeOptions{failed: o.Fatal, logger: o.Logger, judge: d.judgeExisting})
	if err != nil {
		return nil, err
	}
	l := New(store, o)
	l.dir = d.dir
	defer func() {
		if err != nil {
			_ = l.Close()
		}
	}()
	if err := d.bind(l, o.Node); err != nil {
		return nil, err
	}
	if err := clearSnapshots(d.dir); err != nil {
		return nil, err
	}
	if err := l.dropUnverified(); err != nil {
		return nil, err
	}
	if err := verifySnapshots(d.dir, l.store); err != nil {
		return nil, err
	}
	if err := l.cutOldConflict(); err != nil {
		return nil, err
	}
	return l, verifyVersions(d.dir, l.failStop)
}

// judgeExisting checks the store before anything in it changes, so that a refused disk stays as it was found.
func (d *Disk) judgeExisting(log Store) error {
	values, err := stableOf(log)
	if err != nil {
		return err
	}
	return d.judge(log, values)
}

// bind checks the store, also a new one, against the rest of the disk, and opens the witness.
func (d *Disk) bind(l *Log, node string) error {
	values, err := stableOf(l.store)
	if err != nil {
		return err
	}
	if err := d.judge(l.store, values); err != nil {
		return err
	}
	if d.slot != nil {
		l.logger.Warn("one of the two slots of the witness is damaged: writing it again from the other slot", "error", d.slot)
	}
	keeper, err := d.claim(node, values, l.write)
	if err != nil {
		return err
	}
	l.nonce = strings.TrimSpace(d.parts[NonceFile])
	l.keeper, l.bound = keeper, true
	return nil
}

// Nonce is the random name of this directory. It tells a wiped disk from the one before.
func (l *Log) Nonce() string { return l.nonce }

// Run writes the witness until one of the channels is closed.
func (l *Log) Run(closing, done <-chan struct{}) { l.keeper.run(closing, done) }

// WritePart replaces a small file of the data directory.
func (l *Log) WritePart(name, content string) error { return l.keeper.part(name, content) }

// Start says that raft runs. From then on a failed read or term write ends the calling goroutine of raft, which would panic otherwise.
func (l *Log) Start() { l.running.Store(true) }

// Started says whether raft runs.
func (l *Log) Started() bool { return l.running.Load() }

// StartError returns the error, if any, that raft met before Start and may have panicked at.
func (l *Log) StartError() error { return l.met }

// Close waits for writes in flight, writes the witness and closes the store.
func (l *Log) Close() error {
	_ = l.Wait(maxIndex)
	if l.keeper != nil {
		_ = l.keeper.close()
	}
	return l.store.Close()
}

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(log *raft.Log) error { return l.StoreLogs([]*raft.Log{log}) }

// StoreLogs implements raft.LogStore. A snapshot covers committed entries only, with one exception: raft's Restore writes its snapshot to
// this disk before other nodes know of it. If the leader is lost then, its successor gives the snapshot's index to another entry. Raft
// would skip that entry here and apply the next ones to the restored state.
func (l *Log) StoreLogs(logs []*raft.Log) error {
	for _, log := range logs {
		if term, ok := l.ends.term(log.Index); ok && term != log.Term {
			err := fmt.Errorf("%w: entry %d is of term %d, the restore was of term %d; replace this node with a new one", ErrUncommittedRestore,
				log.Index, log.Term, term)
			l.fatal(err)
			return err
		}
	}
	return l.parallelLog.StoreLogs(logs)
}

// GetLog implements raft.LogStore.
func (l *Log) GetLog(index uint64, log *raft.Log) error {
	err := l.parallelLog.GetLog(index, log)
	if !errors.Is(err, raft.ErrLogNotFound) || !l.Started() || l.leads() {
		return err
	}
	term, ok := l.ends.term(index)
	if !ok {
		return err
	}
	*log = raft.Log{Index: index, Term: term, Type: raft.LogNoop, Extensions: []byte("snapshot")}
	return nil
}

// Has says whether this node has the entry of an index and term on disk, and so all before it, in a snapshot or in its log.
func (l *Log) Has(index, term uint64) bool {
	if index <= l.ends.last() {
		return true
	}
	if l.Wait(index) != nil { // not l.GetLog, which would end the calling goroutine
		return false
	}
	var log raft.Log
	return l.failStop.GetLog(index, &log) == nil && log.Term == term
}

// Entries calls fn for the entries from..to (0: the last) that are on disk.
func (l *Log) Entries(from, to uint64, fn func(Entry) error) error {
	return eachEntry(l.failStop, from, to, fn)
}

// CutConflict cuts the log from an index on if its entry there has another term.
func (l *Log) CutConflict(index, term uint64) (cut bool, err error) {
	return cutConflict(l.parallelLog, index, term)
}

func cutConflict(log raft.LogStore, index, term uint64) (cut bool, err error) {
	var entry raft.Log
	switch err := log.GetLog(index, &entry); {
	case errors.Is(err, raft.ErrLogNotFound):
		return false, nil
	case err != nil:
		return false, err
	case entry.Term == term:
		return false, nil
	}
	last, err := log.LastIndex()
	if err != nil {
		return false, err
	}
	return true, log.DeleteRange(index, last)
}

// cutOldConflict repeats the cut of a conflict that an earlier process did not finish.
func (l *Log) cutOldConflict() error {
	all, _, err := ListSnapshots(l.dir)
	if err != nil || len(all) == 0 {
		return err
	}
	_, err = cutConflict(l.failStop, all[0].Index, all[0].Term)
	return err
}

// AddSnapshot records that this disk has a snapshot that ends at an index.
func (l *Log) AddSnapshot(index, term uint64) { l.ends.add(index, term) }

// RecordSnapshot records a verified snapshot in the witness.
func (l *Log) RecordSnapshot(id string, index, term uint64) error {
	description, err := os.ReadFile(filepath.Join(l.dir, "snapshots", id, "meta.json"))
	if err != nil {
		return err
	}
	return l.keeper.recordSnapshot(index, term, description)
}

// dropUnverified verifies snapshots that were not read back before the process ended. It removes an unreadable one if the disk still has
// the state before it.
func (l *Log) dropUnverified() error {
	verified := l.keeper.last.snapshot
	first, err := l.FirstIndex()
	if err != nil {
		return err
	}
	for {
		all, _, err := ListSnapshots(l.dir)
		if err != nil || len(all) == 0 || all[0].Index <= verified {
			return err
		}
		before := uint64(0)
		if len(all) > 1 {
			before = all[1].Index
		}
		err = all[0].Verify()
		if err == nil {
			return l.RecordSnapshot(all[0].ID, all[0].Index, all[0].Term)
		}
		if errors.Is(err, fsm.ErrNewerSnapshot) || first > before+1 {
			return err
		}
		l.logger.Error("the newest snapshot was not verified before the process ended and cannot be restored: removing it",
			"snapshot", all[0].ID, "error", err)
		if err := RemoveSnapshot(l.dir, all[0].ID); err != nil {
			return err
		}
	}
}

// RemoveSnapshot removes a snapshot durably.
func RemoveSnapshot(dir, id string) error {
	path := filepath.Join(dir, "snapshots", id)
	return errors.Join(os.RemoveAll(path), syncDir(filepath.Dir(path)))
}
