package check

import (
	"path/filepath"

	"github.com/quotad/quotad/jepsen/canary"
	"github.com/quotad/quotad/jepsen/history"
)

// The most that a process may use after the workload beyond its use before: the state has grown, and connections between nodes remain. Each
// node keeps up to kept connections to each other node (three of raft, four of its own), without a goroutine, and has as many from it, with
// one goroutine each.
const (
	kept           = 3 + 4
	moreGoroutines = 6
	moreHeap       = 128 << 20
)

// Settled says whether a process uses no more than before the workload, within these bounds.
func Settled(usage *history.Usage, fresh []history.Usage) bool {
	var most history.Usage
	for _, before := range fresh {
		most.Goroutines = max(most.Goroutines, before.Goroutines)
		most.Descriptors = max(most.Descriptors, before.Descriptors)
		most.Heap = max(most.Heap, before.Heap)
	}
	others := float64(len(fresh) - 1)
	return usage.Goroutines <= most.Goroutines+moreGoroutines+kept*others && usage.Descriptors <= most.Descriptors+2*kept*others &&
		usage.Heap <= most.Heap+moreHeap
}

// resources checks that nodes release the resources that the workload and the faults took.
func (r *run) resources() {
	v := r.verdict("resources",
		"When the workload has ended, each process is back at the goroutines, descriptors and memory that it began with.")
	for i := range r.facts.Final {
		usage := &r.facts.Final[i].Usage
		if usage.Node == "" {
			v.violate("%s did not tell what it uses", r.facts.Final[i].Node)
			continue
		}
		v.Checked++
		if !Settled(usage, r.facts.Fresh) {
			v.violate("%+v, before the workload: %+v", *usage, r.facts.Fresh)
		}
	}
}

// secrets checks that the token that all calls carried is in no log, record, snapshot or data folder.
func (r *run) secrets() {
	v := r.verdict("secrets", "The token that all calls carry is in no log, record, snapshot or data folder.")
	found, scanned, err := canary.Scan(string(r.dir))
	if err != nil {
		v.violate("%v", err)
	}
	v.Checked = scanned
	for _, path := range found {
		relative, _ := filepath.Rel(string(r.dir), path)
		v.violate("it is in %s", relative)
	}
}
