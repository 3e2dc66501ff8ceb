package logstore

import (
	"errors"
	"reflect"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/raft"
	"pgregory.net/rapid"
)

// memoryLog is a store that counts reads of entries.
type memoryLog struct {
	*raft.InmemStore
	reads atomic.Int64
}

func (l *memoryLog) GetLog(index uint64, log *raft.Log) error {
	l.reads.Add(1)
	return l.InmemStore.GetLog(index, log)
}

func (*memoryLog) CutAtOnce() uint64 { return 7 }

func (*memoryLog) Close() error { return nil }

func openMemory(t interface{ Errorf(string, ...any) }, leads func() bool) (*Log, *memoryLog) {
	disk := &memoryLog{InmemStore: raft.NewInmemStore()}
	return New(disk, Options{Fatal: func(err error) { t.Errorf("%v", err) }, Leads: leads, Monotonic: monotonic}), disk
}

// TestRecent_EntriesNeedNoRead: a follower reads entries on commit, a leader the entry before the next one, both from memory. Older
// entries are read from the store. The cache is bounded in number and size.
func TestRecent_EntriesNeedNoRead(t *testing.T) {
	for _, leads := range []bool{false, true} {
		l, disk := openMemory(t, func() bool { return leads })
		var got raft.Log
		for index := uint64(1); index <= 3*maxRecent; index++ {
			err := l.StoreLog(&raft.Log{Index: index, Type: raft.LogCommand, Data: []byte{byte(index)}})
			if err = errors.Join(err, l.GetLog(index, &got), l.GetLog(max(1, index-1), &got)); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Wait(maxIndex); err != nil || disk.reads.Load() != 0 || len(l.recent.entries) != maxRecent {
			t.Errorf("leads %t: %d entries were read back, %d are kept, %v", leads, disk.reads.Load(), len(l.recent.entries), err)
		}
		if err := l.GetLog(1, &got); err != nil || disk.reads.Load() != 1 || got.Data[0] != 1 {
			t.Errorf("leads %t: the first entry is %v after %d reads, %v", leads, got.Data, disk.reads.Load(), err)
		}
		large := make([]byte, maxRecentBytes/2)
		for index := uint64(3*maxRecent + 1); index <= 3*maxRecent+4; index++ {
			if err := l.StoreLog(&raft.Log{Index: index, Type: raft.LogCommand, Data: large}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Wait(maxIndex); err != nil || len(l.recent.entries) != 2 || l.recent.bytes > maxRecentBytes {
			t.Errorf("leads %t: %d entries of %d bytes are kept, %v", leads, len(l.recent.entries), l.recent.bytes, err)
		}
	}
}

// TestRecent_MatchesDisk: whatever raft does with its log, a read through the cache returns what the disk would.
func TestRecent_MatchesDisk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		leads := false
		l, disk := openMemory(t, func() bool { return leads })
		next, written := uint64(1), 0
		store := func(t *rapid.T) {
			logs := make([]*raft.Log, rapid.IntRange(1, 40).Draw(t, "entries"))
			for i := range logs {
				written++
				data := []byte(strconv.Itoa(written))
				if rapid.IntRange(0, 30).Draw(t, "large") == 0 {
					data = append(data, make([]byte, maxRecentBytes/3)...)
				}
				logs[i] = &raft.Log{Index: next, Term: uint64(written), Type: raft.LogCommand, Data: data}
				next++
			}
			if err := l.StoreLogs(logs); err != nil {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"store":             store,
			"lead or follow":    func(*rapid.T) { leads = !leads },
			"wait for the disk": func(*rapid.T) { _ = l.Wait(maxIndex) },
			"cut the beginning": func(t *rapid.T) {
				if err := l.DeleteRange(1, rapid.Uint64Range(1, next).Draw(t, "up to")); err != nil {
					t.Fatal(err)
				}
			},
			"cut the end": func(t *rapid.T) {
				from := rapid.Uint64Range(max(1, next-min(next, 200)), next).Draw(t, "from")
				if err := l.DeleteRange(from, next); err != nil {
					t.Fatal(err)
				}
				next = min(next, from)
				store(t)
			},
			"continue after a snapshot": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "cut before") {
					if err := l.DeleteRange(1, next); err != nil {
						t.Fatal(err)
					}
				}
				next += rapid.Uint64Range(1, 300).Draw(t, "further")
				store(t)
			},
			"": func(t *rapid.T) {
				if err := l.Wait(maxIndex); err != nil {
					t.Fatal(err)
				}
				for index := next - min(next, 300); index <= next+1; index++ {
					var got, want raft.Log
					err, wanted := l.GetLog(index, &got), disk.InmemStore.GetLog(index, &want)
					if !errors.Is(err, wanted) || !reflect.DeepEqual(got, want) {
						t.Fatalf("entry %d is of term %d with sum %x, %v; on disk of term %d with sum %x, %v",
							index, got.Term, got.Extensions, err, want.Term, want.Extensions, wanted)
					}
				}
			},
		})
	})
}
