package report

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/quotad/quotad/jepsen/check"
	"github.com/quotad/quotad/jepsen/history"
)

// TestWrite_ShowsAWholeRun: the page has a row for each verdict and each kind of fault. Its template is checked only when it is executed.
func TestWrite_ShowsAWholeRun(t *testing.T) {
	path, err := Write(history.Dir(t.TempDir()), &check.Result{
		Facts: &history.Facts{Mix: "short", Network: "loopback", Nodes: []string{"n1"}, Defect: "planted-here", Seed: 7},
		Verdicts: []*check.Verdict{
			{Checker: "service", Promise: "it serves", Outcome: check.Fail, Count: 3, Examples: []string{"silent for 9 s"}, Checked: 4711},
		},
		Stats: check.Stats{
			Calls: 10, Drawn: map[string]int{"kill-leader": 2}, Injected: map[string]int{"kill-leader": 1}, Faults: map[string]int{"kill-leader": 1},
			Outages: map[string][]float64{"kill-leader": {1.25}},
		},
		Series: check.Series{Answered: []int{1, 2}, Unknown: []int{0, 1}},
		Faults: []*history.Fault{{Kind: "kill-leader"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"short", "planted-here", "service", "it serves", "fail (3)", "silent for 9 s", "4711", "kill-leader", "1.25",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// TestPicture_NamesLanesBesideTime: bars begin right of the longest name of a lane, and a node that replaced another has its colour.
func TestPicture_NamesLanesBesideTime(t *testing.T) {
	const kind = "stopped-leader-with-forwarded-calls"
	drawn := string(picture(&check.Result{
		Facts: &history.Facts{},
		Series: check.Series{
			Answered: []int{1}, Unknown: []int{0}, Leaders: []check.Leadership{{Node: "n2"}, {Second: 0.5, Node: "n2.11"}},
		},
		Faults: []*history.Fault{{Kind: kind, Ended: 1}},
	}))
	if got := strings.Count(drawn, `class="leader l2"`); got != 2 {
		t.Errorf("%d of 2 leaderships of n2 have its colour:\n%s", got, drawn)
	}
	_, bar, _ := strings.Cut(drawn, `class="fault" x="`)
	var x float64
	if _, err := fmt.Sscanf(bar, "%f", &x); err != nil || x < 5.5*float64(len(kind)) {
		t.Errorf("the bar of %s begins at %v, %v:\n%s", kind, x, err, drawn)
	}
}
