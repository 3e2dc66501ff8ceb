package logstore

import (
	"fmt"
	"os"
	"testing"

	"github.com/hashicorp/raft"
)

// BenchmarkStoreLogs is one durable append, of so many entries of 200 bytes, to each store.
func BenchmarkStoreLogs(b *testing.B) {
	for _, s := range []Kind{Bolt, WAL} {
		for _, count := range []int{1, 64} {
			b.Run(fmt.Sprintf("%s/entries=%d", s, count), func(b *testing.B) {
				log, err := openStore(diskDir(b), s, storeOptions{})
				if err != nil {
					b.Fatal(err)
				}
				defer func() { _ = log.Close() }()
				store := New(log, Options{Fatal: func(err error) { b.Error(err) }, Leads: func() bool { return false }, Monotonic: monotonic})
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

// diskDir is a folder on a disk: where temporary folders are in memory, the working directory's.
func diskDir(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp(".", "bench-") //nolint:usetesting // see above
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
