package report

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/history"
)

// TestTable: the runs of one mix on links of one kind are added up, and the faults of all.
func TestTable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "summary.jsonl")
	for i, nodes := range [][]string{{"n1", "n2", "n3"}, {"n1", "n2", "n3", "n3.1"}, {"n1", "n2", "n3", "n4", "n5"}} {
		result := &check.Result{
			Facts: &history.Facts{Mix: "links", Network: "namespaces", Nodes: nodes, Ended: 60e9},
			Stats: check.Stats{
				Calls: 10, Entries: 5, Faults: map[string]int{"kill-leader": 2}, Outages: map[string][]float64{"kill-leader": {float64(i), 0.5}},
			},
		}
		if i == 1 {
			result.Verdicts = []*check.Verdict{{Checker: "service", Outcome: check.Fail}}
		}
		if err := Summarize(path, result); err != nil {
			t.Fatal(err)
		}
	}
	lines, err := ReadSummary(path)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	Table(&b, lines)
	for _, want := range []string{
		"| links | namespaces | 2 | 1 | 2 | 20 | 10 | 0 | 0 | 4 |", "| links | namespaces, 5 nodes | 1 | 1 | 1 | 10 | 5 | 0 | 0 | 2 |",
		"| all |  | 3 | 2 | 3 | 30 | 15 | 0 | 0 | 6 |", "| kill-leader | 6 | 0.50 s | 2.00 s | 2.00 s |",
	} {
		if !strings.Contains(b.String(), want+"\n") {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
