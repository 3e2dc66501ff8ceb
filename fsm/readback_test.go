package fsm

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

// allocated returns the bytes that were allocated so far, also those that are garbage.
func allocated() int64 {
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.TotalAlloc) //nolint:gosec // far below
}

// snapshotParts is in how many parts of a snapshot a memoryReader measures.
const snapshotParts = 8

// memoryReader reads a snapshot, and measures the memory of what reads from it.
type memoryReader struct {
	from *bytes.Reader
	// before is what was reachable and what had been allocated at the start.
	before struct{ reachable, allocated int64 }
	// ahead is what was allocated until the first Read, most how much more was reachable at one of them.
	ahead, most int64
	// parts counts the Reads that measured.
	parts int64
}

// Read implements io.Reader. It measures at the first Read, then after each part of the snapshot, and at the end.
func (r *memoryReader) Read(p []byte) (int, error) {
	if r.parts == 0 {
		r.ahead = allocated() - r.before.allocated
	}
	n, err := r.from.Read(p[:min(len(p), 4096)])
	if done := r.from.Size() - int64(r.from.Len()); err != nil || done*snapshotParts >= r.parts*r.from.Size() {
		r.parts++
		r.most = max(r.most, inUse()-r.before.reachable)
	}
	return n, err
}

// heapOf returns the bytes that a check of a snapshot takes, at most: all that it allocates before it reads, and then
// what is reachable.
func heapOf(t *testing.T, snapshot []byte, check func(io.Reader) error) int64 {
	t.Helper()
	r := &memoryReader{from: bytes.NewReader(snapshot)}
	r.before.reachable, r.before.allocated = inUse(), allocated()
	if err := check(r); err != nil {
		t.Fatal(err)
	}
	if r.parts < snapshotParts {
		t.Fatalf("the snapshot was read in %d parts", r.parts)
	}
	return max(r.ahead, r.most)
}

// leasesOf returns a machine with leases of one quota, and the bytes that it takes.
func leasesOf(leases, holders int) (m *Machine, size int64) {
	before := inUse()
	s := &scale{m: New()}
	s.apply(applyQuotas(rateOf("q", 1<<50, minute)))
	for first := 0; first < leases; first += MaxEntryCommands {
		commands := make([]*logpb.Command, min(MaxEntryCommands, leases-first))
		for i := range commands {
			commands[i] = asks(fmt.Sprint("h", (first+i)%holders), day, itemOf("q", 1))
		}
		s.apply(commands...)
	}
	forgetRoom(s.m)
	return s.m, inUse() - before
}

// readBack is the memory of reading a snapshot back, in bytes: of the state itself, of comparing the snapshot with it,
// and of restoring the snapshot next to it.
type readBack struct{ state, compared, restored int64 }

func measureReadBack(t *testing.T, leases, holders int) (r readBack) {
	t.Helper()
	m, size := leasesOf(leases, holders)
	state := m.Freeze()
	snapshot := snapshotOf(t, state)
	r = readBack{size, heapOf(t, snapshot, state.VerifyWritten), heapOf(t, snapshot, VerifySnapshot)}
	runtime.KeepAlive(m)
	t.Logf("%6d leases of %6d holders take %9d bytes, their snapshot %8d; comparing takes %8d more, restoring %9d",
		leases, holders, r.state, len(snapshot), r.compared, r.restored)
	return r
}

// TestVerifyWritten_TakesLittleMemory: to compare a snapshot with its state takes no more memory for four times as many
// leases, and a digest for each holder: a small part of the second state that a restore makes.
func TestVerifyWritten_TakesLittleMemory(t *testing.T) {
	const few, many = 20_000, 80_000
	small, large := measureReadBack(t, few, 100), measureReadBack(t, many, 100)
	if more, most := large.compared-small.compared, (large.state-small.state)/64; more > most {
		t.Errorf("four times as many leases take %d bytes more, want at most %d", more, most)
	}
	for name, r := range map[string]readBack{
		"few": small, "many": large, "few, a holder each": measureReadBack(t, few, few), "many, a holder each": measureReadBack(t, many, many),
	} { // in any order
		if most := r.state / 3; r.compared > most {
			t.Errorf("%s: comparing takes %d bytes, want at most %d", name, r.compared, most)
		}
		if r.restored < r.state/2 { // otherwise the measurement sees nothing
			t.Errorf("%s: restoring takes %d bytes next to a state of %d", name, r.restored, r.state)
		}
	}
}
