package fsm

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// BenchmarkReferenceMemory is the reference for BenchmarkApply: random changes of records of about a lease's size in a
// Go map. It does not depend on this package, and is bound by memory like a large state.
func BenchmarkReferenceMemory(b *testing.B) {
	type record struct {
		id, fence, deadline uint64
		holder              string
		next                *record
		_                   [8]uint64
	}
	for _, size := range sizes {
		b.Run(fmt.Sprintf("entries=%d", size), func(b *testing.B) {
			random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a benchmark's choices
			records := make(map[uint64]*record, size)
			for id := range uint64(size) {
				records[id] = &record{id: id, holder: fmt.Sprintf("h%d", id%100_000)}
			}
			b.ResetTimer()
			for n := range b.N {
				r := records[random.Uint64N(uint64(size))]
				r.deadline = uint64(n)
				r.next = records[random.Uint64N(uint64(size))]
				r.fence = r.next.deadline + uint64(len(r.holder))
			}
		})
	}
}
