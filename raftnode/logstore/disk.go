package logstore

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/hashicorp/raft"
)

// Disk is what is known of a data directory before its log store is opened.
type Disk struct {
	dir     string
	witness *witness
	// slot is the error of a damaged slot of the witness, if one of the two is.
	slot error
	// parts has the contents of the small files that exist.
	parts map[string]string
	// has is the log store that exists; empty: none.
	has       Kind
	snapshots []SnapshotFile
}

// ReadDisk reads a data directory except its log, checks it against the witness, and refuses it if it took part in a cluster and a part is
// missing. It changes nothing. Errors are ErrDamaged, ErrWiped, ErrTwoLogStores, *UnsupportedError and the system's.
func ReadDisk(dir string) (*Disk, error) {
	if err := Supported(); err != nil {
		return nil, err
	}
	d, err := readDisk(dir)
	if err == nil && d.started() {
		err = d.complete()
	}
	return d, err
}

// Part returns the content of a small file, and whether the file exists.
func (d *Disk) Part(name string) (content string, there bool) {
	content, there = d.parts[name]
	return strings.TrimSpace(content), there
}

// readDisk is ReadDisk without the check for missing parts.
func readDisk(dir string) (*Disk, error) {
	d := &Disk{dir: dir, parts: map[string]string{}}
	var err error
	if d.witness, d.slot, err = readWitness(dir); err != nil {
		return nil, err
	}
	for _, name := range partNames {
		content, err := os.ReadFile(filepath.Join(dir, name))
		known := uint32(0)
		if d.witness != nil {
			known = *d.witness.part(name)
		}
		switch {
		case errors.Is(err, os.ErrNotExist) && known != 0:
			return nil, d.lost(name, "missing")
		case errors.Is(err, os.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		case known != 0 && partSum(content) != known:
			return nil, &DamageError{File: name, Place: wholeFile, Problem: "not what this node wrote (checksum mismatch)"}
		}
		d.parts[name] = string(content)
	}
	if d.has, err = storeOf(dir); err != nil {
		return nil, err
	}
	d.snapshots, _, err = ListSnapshots(dir)
	return d, err
}

func (d *Disk) lost(part, format string, args ...any) error {
	return &LostPartError{Dir: d.dir, Part: part, Problem: fmt.Sprintf(format, args...)}
}

// started says whether this disk took part in a cluster, judged by its files without the log.
func (d *Disk) started() bool {
	_, formed := d.parts[FormedFile]
	_, joined := d.parts[JoinedFile]
	_, cluster := d.parts[ClusterFile]
	return formed || joined || cluster || len(d.snapshots) > 0 || d.witness != nil && d.witness.started()
}

// complete returns an error if a part is missing. It is called for disks that took part in a cluster: every part was durable before that.
func (d *Disk) complete() error {
	if d.has == "" {
		return d.lost("log store", "neither raft.db nor wal/%s exists", walMetaFile)
	}
	for _, name := range []string{NodeFile, NonceFile} {
		if _, there := d.parts[name]; !there {
			return d.lost(name, "missing")
		}
	}
	_, formed := d.parts[FormedFile]
	if _, joined := d.parts[JoinedFile]; !formed && !joined {
		return d.lost(FormedFile, "missing, as is %s", JoinedFile)
	}
	w := d.witness
	if w == nil || w.snapshot == 0 {
		return nil
	}
	if len(d.snapshots) == 0 || d.snapshots[0].Index < w.snapshot {
		return d.lost("snapshots", "the snapshot of index %d is missing", w.snapshot)
	}
	if newest := d.snapshots[0]; newest.Index == w.snapshot && newest.Term == w.snapshotTerm && newest.meta != w.snapshotMeta {
		return &DamageError{File: newest.metaPath(), Place: wholeFile, Problem: "checksum mismatch"}
	}
	return nil
}

// judgeStore checks the log store of a stopped node. A store without witness and binding passes: a test or a tool made it.
func (d *Disk) judgeStore(log Store) error {
	values, err := stableOf(log)
	if err != nil {
		return err
	}
	if d.witness == nil && !values.bound {
		return nil
	}
	return d.judge(log, values)
}

// judge checks the log store of a disk against its witness.
func (d *Disk) judge(log Store, values *stable) error {
	term, err := values.number(keyTerm)
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return &DamageError{File: fileOf(log, 0), Place: "the end of the log", Problem: "cannot be read: " + err.Error(), cause: err}
	}
	nonce, err := values.get(keyWitness)
	if err != nil {
		return err
	}
	name := fileOf(log, 0)
	w := d.witness
	switch {
	case w == nil && values.bound:
		return d.lost(witnessFile, "missing")
	case w != nil && w.bound && !values.bound:
		return d.lost(name, "empty, or from another data directory")
	case values.bound && string(nonce) != strings.TrimSpace(d.parts[NonceFile]):
		return d.lost(name, "this file or %s is from another data directory", NonceFile)
	case !d.started() && term == 0 && last == 0:
		return nil // a new disk
	}
	if err := d.complete(); err != nil {
		return err
	}
	if w == nil { // from a version without a witness
		if term == 0 || last == 0 && len(d.snapshots) == 0 {
			return d.lost(name, "empty")
		}
		return nil
	}
	if term < w.term {
		return d.lost(name, "older than the node's witness: it has term %d, the node was in term %d", term, w.term)
	}
	// The witness may be as old as the store. A node is in a snapshot's term before it makes or installs that snapshot.
	if len(d.snapshots) > 0 && term < d.snapshots[0].Term {
		return d.lost(name, "older than the newest snapshot: it has term %d, the snapshot is of term %d", term, d.snapshots[0].Term)
	}
	if err := d.judgeVote(values, name); err != nil {
		return err
	}
	return d.judgeLog(log, d.storeName(), last)
}

func (d *Disk) judgeVote(values *stable, name string) error {
	voteTerm, err := values.number(keyVoteTerm)
	if err != nil {
		return err
	}
	vote, err := values.get(keyVote)
	if err != nil {
		return err
	}
	w := d.witness
	if voteTerm < w.voteTerm || voteTerm == w.voteTerm && voteTerm > 0 && digest(vote) != w.voteFor {
		return d.lost(name, "older than the node's witness: it has a vote of term %d, the node voted in term %d", voteTerm, w.voteTerm)
	}
	return nil
}

func (d *Disk) judgeLog(log Store, name string, last uint64) error {
	w := d.witness
	covered := uint64(0)
	if len(d.snapshots) > 0 {
		covered = d.snapshots[0].Index
	}
	if w.index > last && w.index > covered {
		return d.lost(name, "older than the node's witness: it ends at entry %d, but entry %d was synced", last, w.index)
	}
	var entry raft.Log
	switch err := getIntact(log, w.index, &entry); {
	case w.index == 0 || w.index > last:
		return nil
	case errors.Is(err, raft.ErrLogNotFound) && w.index <= covered:
		return nil
	case errors.Is(err, raft.ErrLogNotFound):
		return d.lost(name, "synced entry %d is missing", w.index)
	case err != nil:
		return err
	case w.entryTerm != 0 && entry.Term != w.entryTerm:
		return d.lost(name, "older than the node's witness: entry %d is of term %d, but was of term %d", w.index, entry.Term, w.entryTerm)
	}
	return nil
}

func (d *Disk) storeName() string {
	if d.has == WAL {
		return "wal"
	}
	return "raft.db"
}

// claim creates the missing parts of a new disk, gives a disk of a version without one its witness, and opens the keeper. From then on the
// witness agrees with the log store.
func (d *Disk) claim(id string, values *stable, guard func(string, func() error) error) (*keeper, error) {
	w := d.witness
	if w == nil {
		w = new(witness)
		if !d.started() {
			delete(d.parts, NonceFile) // from an interrupted start
		}
		for name, content := range map[string]string{NodeFile: id, NonceFile: newNonce()} {
			if _, there := d.parts[name]; there {
				continue
			}
			if err := writeDurably(filepath.Join(d.dir, name), content); err != nil {
				return nil, err
			}
			d.parts[name] = content
		}
		if err := createWitness(d.dir, w); err != nil {
			return nil, err
		}
	}
	if !values.bound {
		if err := values.bind(strings.TrimSpace(d.parts[NonceFile])); err != nil {
			return nil, err
		}
	}
	k, err := openKeeper(d.dir, w, guard)
	if err != nil {
		return nil, err
	}
	term, errTerm := values.number(keyTerm)
	voteTerm, errVoteTerm := values.number(keyVoteTerm)
	vote, errVote := values.get(keyVote)
	if err := firstError(errTerm, errVoteTerm, errVote); err != nil {
		return nil, err
	}
	err = k.change(func(w *witness) {
		w.bound, w.term, w.voteTerm, w.voteFor = true, term, voteTerm, digest(vote)
		for name, content := range d.parts {
			*w.part(name) = partSum([]byte(content))
		}
	})
	if err == nil && d.slot != nil { // writes both slots again
		err = firstError(k.last.write(k.file), k.last.write(k.file))
	}
	if err != nil {
		_ = k.close()
		return nil, err
	}
	return k, nil
}

func newNonce() string {
	random := make([]byte, 16)
	_, _ = rand.Read(random)
	return hex.EncodeToString(random)
}
