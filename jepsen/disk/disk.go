//go:build linux

// Package disk is a file system with the faults of disks: it loses unsynced data when the power is cut, keeps parts of it, syncs slowly,
// fails to sync, and runs full. It stands under a node's data directory (FUSE, in the suite's process, mounted by a system call) and passes
// everything else to a directory.
//
// The model covers the content and size of files. A write is visible at once; until the file is synced it can be lost, completely or in
// part, in any order. A failed sync makes nothing durable, and no later sync makes its data durable, as on Linux. The model does not cover
// names: created, renamed and removed files stay so, as with a journal that is written in time. So syncs of directories are not tested.
package disk

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// ErrUnavailable says that this machine cannot mount file systems.
var ErrUnavailable = errors.New("file systems of the suite cannot be mounted here")

// Disk is a mounted file system.
type Disk struct {
	backing, mountpoint string

	mu     sync.Mutex
	server *fuse.Server
	files  map[uint64]*unsynced
	faults faults
	counts Counters
	// full is the number of bytes that still fit; below 0: no bound.
	full int64
	// healed is closed when the current faults end; it releases delayed syncs.
	healed chan struct{}
}

// faults are the current faults.
type faults struct {
	slowSync time.Duration
	// errno is the error of failing syncs: after more syncs succeed, then times syncs fail; below 0: until Heal.
	errno        syscall.Errno
	after, times int
}

// Counters count operations so far.
type Counters struct {
	Writes, Syncs uint64
	// SlowSyncs, FailedSyncs and NoSpace count the operations that a fault hit.
	SlowSyncs, FailedSyncs, NoSpace uint64
	// Lost counts the bytes that power cuts took back.
	Lost uint64
}

// Mount makes the content of backing visible at mountpoint. It creates missing directories.
func Mount(backing, mountpoint string) (*Disk, error) {
	for _, dir := range []string{backing, mountpoint} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	d := &Disk{backing: backing, mountpoint: mountpoint, files: map[uint64]*unsynced{}, full: -1, healed: make(chan struct{})}
	return d, d.mount()
}

func (d *Disk) mount() error {
	var st syscall.Stat_t
	if err := syscall.Stat(d.backing, &st); err != nil {
		return err
	}
	data := &fs.LoopbackRoot{Path: d.backing, Dev: st.Dev}
	root := &node{LoopbackNode: fs.LoopbackNode{RootData: data}, disk: d}
	data.RootNode = root
	// Names are not cached: after a power cut the kernel must not remember any. Without cached attributes it would ask for them at each
	// read, and a node reads its log in thousands of small ones; they expire before a node starts again.
	never, soon := time.Duration(0), 100*time.Millisecond
	server, err := fs.Mount(d.mountpoint, root, &fs.Options{
		AttrTimeout: &soon, EntryTimeout: &never,
		MountOptions: fuse.MountOptions{DirectMountStrict: true, FsName: "quotad-jepsen", Name: "jepsen", MaxWrite: 1 << 17, DisableXAttrs: true},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	d.mu.Lock()
	d.server = server
	d.mu.Unlock()
	return nil
}

// unmount unmounts the file system. A process that was just killed may hold it for another moment.
func (d *Disk) unmount() error {
	d.mu.Lock()
	server := d.server
	d.server = nil
	d.mu.Unlock()
	if server == nil {
		return nil
	}
	var err error
	for range 100 {
		if err = server.Unmount(); err == nil {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	// A process that still holds it keeps an orphan; the path is free.
	return errors.Join(err, syscall.Unmount(d.mountpoint, syscall.MNT_DETACH))
}

// Close unmounts. The written data is in the backing directory.
func (d *Disk) Close() error {
	d.Heal()
	err := d.unmount()
	d.mu.Lock()
	defer d.mu.Unlock()
	for ino := range d.files {
		d.forgetLocked(ino)
	}
	return err
}

// SlowSync delays each sync by longer; 0: no delay.
func (d *Disk) SlowSync(longer time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.slowSync = longer
}

// FailSync makes syncs fail: after more syncs succeed, then times syncs fail (below 0: until Heal).
func (d *Disk) FailSync(errno syscall.Errno, after, times int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults.errno, d.faults.after, d.faults.times = errno, after, times
}

// Full leaves room for free more bytes; below 0: no bound.
func (d *Disk) Full(free int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.full = free
}

// Heal ends all faults. The data of failed syncs stays lost.
func (d *Disk) Heal() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.faults, d.full = faults{}, -1
	close(d.healed)
	d.healed = make(chan struct{})
}

// Counters returns the counts so far.
func (d *Disk) Counters() Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.counts
}

// PowerCut takes back unsynced data: all of it or, with torn, a random part of each write's sectors. All users of the file system must have
// been killed. It returns the number of lost bytes.
func (d *Disk) PowerCut(r *rand.Rand, torn bool) (int64, error) {
	if err := d.unmount(); err != nil {
		return 0, err
	}
	d.mu.Lock()
	var lost int64
	var err error
	for ino, f := range d.files {
		n, undoErr := f.undo(r, torn)
		lost += n
		err = errors.Join(err, undoErr)
		d.forgetLocked(ino)
	}
	d.counts.Lost += uint64(lost)
	d.mu.Unlock()
	return lost, errors.Join(err, d.mount())
}

// sync applies the faults before a file is synced.
func (d *Disk) sync(ctx context.Context) syscall.Errno {
	d.mu.Lock()
	d.counts.Syncs++
	slow := d.faults.slowSync
	if slow > 0 {
		d.counts.SlowSyncs++
	}
	failed, healed := d.failsLocked(), d.healed
	d.mu.Unlock()
	if slow > 0 {
		select {
		case <-ctx.Done():
		case <-healed:
		case <-time.After(slow):
		}
	}
	return failed
}

func (d *Disk) failsLocked() syscall.Errno {
	f := &d.faults
	if f.errno == 0 || f.times == 0 {
		return 0
	}
	if f.after > 1 {
		f.after--
		return 0
	}
	if f.times > 0 {
		f.times--
	}
	d.counts.FailedSyncs++
	return f.errno
}

// takeLocked takes room for growth, and says whether there was enough.
func (d *Disk) takeLocked(growth int64) bool {
	if d.full < 0 || growth <= 0 {
		return true
	}
	if growth > d.full {
		d.counts.NoSpace++
		return false
	}
	d.full -= growth
	return true
}
