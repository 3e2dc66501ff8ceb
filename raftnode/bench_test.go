package raftnode

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/logstore"
)

// diskDir returns a directory on a disk: in the working directory, since temporary directories may be in memory.
func diskDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp(".", "bench-") //nolint:usetesting // see above
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// BenchmarkReferenceSync appends 4 KiB to a file and syncs it: the baseline for the other disk benchmarks.
func BenchmarkReferenceSync(b *testing.B) {
	file, err := os.Create(filepath.Join(diskDir(b), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	data := make([]byte, 4096)
	for b.Loop() {
		if _, err := file.Write(data); err != nil {
			b.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkStoreLogs is one durable append of entries of 200 bytes to each store.
func BenchmarkStoreLogs(b *testing.B) {
	for _, s := range []logstore.Kind{logstore.Bolt, logstore.WAL} {
		for _, count := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/entries=%d", s, count), func(b *testing.B) {
				disk, err := logstore.ReadDisk(diskDir(b))
				if err != nil {
					b.Fatal(err)
				}
				store, err := disk.Open(logstore.Options{
					Kind: s, Node: "n", Leads: func() bool { return false }, Fatal: func(err error) { b.Error(err) },
					Monotonic: NewSystemClock().Monotonic,
				})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = store.Close() }()
				index := uint64(0)
				for b.Loop() {
					logs := make([]*raft.Log, count)
					for i := range logs {
						index++
						logs[i] = &raft.Log{Index: index, Term: 1, Data: make([]byte, 200)}
					}
					if err := store.StoreLogs(logs); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// BenchmarkPropose is a grant by a cluster of one to callers that wait for each decision: the whole path except the network.
func BenchmarkPropose(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			conf := DefaultConfig()
			conf.ID, conf.DataDir, conf.RaftAddress, conf.LogStore = "n", diskDir(b), "127.0.0.1:0", UnderTest
			conf.Peers = []Peer{{ID: "n", RaftAddress: "127.0.0.1:0"}}
			n, err := Open(conf)
			if err != nil {
				b.Fatal(err)
			}
			defer n.Kill()
			poll(b, "the cluster is founded", func() bool { return n.leading.Load() != nil && n.cluster.Load() != nil })
			if _, _, err := n.Propose(b.Context(), slots(1<<50)); err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			work := make(chan struct{}, callers)
			var wg sync.WaitGroup
			for range callers {
				wg.Go(func() {
					for range work {
						if _, _, err := n.Propose(b.Context(), take(1)); err != nil {
							b.Error(err)
						}
					}
				})
			}
			for range b.N {
				work <- struct{}{}
			}
			close(work)
			wg.Wait()
		})
	}
}

// BenchmarkReadBack is the cost of reading back a snapshot of a million leases: time, and peak heap in addition to the state.
func BenchmarkReadBack(b *testing.B) {
	machine := fsm.New()
	index := uint64(0)
	apply := func(commands ...*logpb.Command) {
		index++
		data, err := proto.Marshal(&logpb.Entry{Version: fsm.EntryVersion, StampNs: 1, Commands: commands})
		if err != nil {
			b.Fatal(err)
		}
		machine.Follow(index, 1, data)
	}
	apply(slots(1 << 40))
	for lease := 0; lease < 1_000_000; {
		var commands []*logpb.Command
		for range 1000 {
			command := take(1)
			command.GetReserve().Holder, command.GetReserve().TtlNs = fmt.Sprintf("h%d", lease%100_000), int64(24*time.Hour)
			commands, lease = append(commands, command), lease+1
		}
		apply(commands...)
	}
	path := filepath.Join(b.TempDir(), "state.bin")
	file, err := os.Create(path)
	if err != nil {
		b.Fatal(err)
	}
	if err := errors.Join(machine.Freeze().WriteSnapshot(file), file.Close()); err != nil {
		b.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		b.Fatal(err)
	}
	snapshot := logstore.SnapshotFile{ID: "bench", Path: path, Size: info.Size()}
	state := machine.Freeze()
	b.Run("restored", func(b *testing.B) { readBack(b, snapshot, snapshot.Verify) })
	b.Run("compared", func(b *testing.B) {
		readBack(b, snapshot, func() error { return snapshot.VerifyBy(state.VerifyWritten) })
	})
	runtime.KeepAlive(machine)
}

// readBack measures one way of reading a snapshot back.
func readBack(b *testing.B, snapshot logstore.SnapshotFile, verify func() error) {
	b.Helper()
	var before, at runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	most := uint64(0)
	for b.Loop() {
		done := make(chan error, 1)
		go func() { done <- verify() }()
		for waiting := true; waiting; {
			select {
			case err := <-done:
				if err != nil {
					b.Fatal(err)
				}
				waiting = false
			case <-time.After(20 * time.Millisecond):
			}
			runtime.ReadMemStats(&at)
			most = max(most, at.HeapAlloc)
		}
	}
	b.ReportMetric(float64(snapshot.Size)/1e6, "MB/snapshot")
	b.ReportMetric(float64(before.HeapAlloc)/1e6, "MB/state")
	b.ReportMetric(float64(most-min(most, before.HeapAlloc))/1e6, "MB/beside")
}
