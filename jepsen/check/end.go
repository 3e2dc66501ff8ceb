package check

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quotad/quotad/jepsen/history"
)

// finalStates checks that after all faults are healed every node has the same state, and that it is the replayed one.
func (r *run) finalStates(rep *replayed) {
	v := r.verdict("converged", "After the last fault all nodes have one state: that of the log.")
	for _, final := range r.facts.Final {
		v.Checked++
		if final.Error != "" {
			v.violate("%s did not tell its state at the end: %s", final.Node, final.Error)
			continue
		}
		if final.Index != r.facts.Final[0].Index || final.Whole != r.facts.Final[0].Whole {
			v.violate("%s is at index %d with hash %.8s, %s at %d with %.8s", final.Node, final.Index, final.Whole,
				r.facts.Final[0].Node, r.facts.Final[0].Index, r.facts.Final[0].Whole)
		}
		if ledger := rep.ledgers[final.Index]; final.Ledger != ledger {
			v.violate("%s has the ledger %.8s at index %d, the log has %.8s", final.Node, final.Ledger, final.Index, ledger)
		}
	}
}

// marks are texts that no process may ever write to its log.
var marks = []string{"panic:", "fatal error:", "WARNING: DATA RACE", "[ERROR] raft: failed to", "BUG"}

// processes checks that nodes end only by faults that are meant to end them, and that no log shows a defect.
func (r *run) processes() {
	v := r.verdict("processes", "No node ends unless a fault is meant to end it; none panics.")
	for _, exit := range r.facts.Exits {
		if !r.meant(exit) {
			v.violate("%s ended by itself at %d: %s", exit.Node, exit.At, exit.How)
		}
	}
	paths, err := filepath.Glob(r.dir.Log("*"))
	if err != nil || len(paths) == 0 {
		v.violate("the processes' logs are missing (%v)", err)
	}
	for _, path := range paths {
		v.Checked++
		if err := grep(path, func(number int, line string) {
			v.violate("%s:%d: %s", filepath.Base(path), number, line)
		}); err != nil {
			v.violate("%v", err)
		}
	}
}

// meant says whether a fault explains the end of this node: a crash point, or a disk that fails, fills up or stalls. Its effect may come a
// little later.
func (r *run) meant(exit history.Exit) bool {
	for _, fault := range r.faults {
		if fault.Ends && fault.Began <= exit.At && exit.At <= fault.Ended+int64(recoverWithin) && slices.Contains(fault.Targets, exit.Node) {
			return true
		}
	}
	return false
}

// grep calls fn with each line that has a mark.
func grep(path string, fn func(number int, line string)) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for number := 1; lines.Scan(); number++ {
		for _, mark := range marks {
			if strings.Contains(lines.Text(), mark) {
				fn(number, lines.Text())
				break
			}
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
