package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// fails returns the messages of a check.
func fails(check func(fail func(string, ...any))) string {
	var wrong []string
	check(func(format string, _ ...any) { wrong = append(wrong, format) })
	return strings.Join(wrong, "\n")
}

// TestJudgeWorkflows_ReportsWrongOrder: judgeWorkflows reports an overtaken step, and a call during another step's baton, without any
// expectation.
func TestJudgeWorkflows_ReportsWrongOrder(t *testing.T) {
	for want, w := range map[string]sim.WorkflowResult{"": {Parallel: true}, "overtook": {Overtook: 1}, "another step's turn": {Together: 1}} {
		got := fails(func(fail func(string, ...any)) {
			judgeWorkflows(&sim.Result{Workflows: []sim.WorkflowResult{w}}, fail)
		})
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%+v: %q, want %q", w, got, want)
		}
	}
}

// TestJudgeBudgets_ReportsBrokenBudgets: judgeBudgets reports a cluster that forgets budgets, does not list a shelved task, or ignores
// the provider's time.
func TestJudgeBudgets_ReportsBrokenBudgets(t *testing.T) {
	f, err := fleet.Parse("fleet.yaml", []byte(`
for: 10h
quotas: [{name: tokens, rate: {limit: 1000, per: 1m}}]
agents:
  - name: coder
    tasks: 1
    use: {tokens: 1}
    retry: {ends: [{says: "error: no", means: failed}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := sim.Run(t.Context(), f, sim.Governed, 1)
	if err != nil {
		t.Fatal(err)
	}
	forgotten, err := sim.Run(t.Context(), f, sim.Alone, 1) // alone, no failures are counted
	if err != nil {
		t.Fatal(err)
	}
	unlisted, early, mistaken := *kept, *kept, *kept
	for _, r := range []*sim.Result{&unlisted, &early, &mistaken} {
		r.Tasks = append([]sim.TaskResult(nil), kept.Tasks...)
		r.Tasks[0].Log = append([]sim.AttemptResult(nil), kept.Tasks[0].Log...)
	}
	unlisted.Tasks[0].Listed = sim.PhaseOpen
	early.Tasks[0].Log[0].Until = 9 * time.Hour
	mistaken.Tasks[0].Log[1].Outcome = fleet.Saturated
	for want, r := range map[string]*sim.Result{
		"": kept, "its budget is": forgotten, "is listed as": &unlisted, "had said not before": &early, "was taken for": &mistaken,
	} {
		got := fails(func(fail func(string, ...any)) { judgeBudgets(r, fail) })
		if !strings.Contains(got, want) || want == "" && got != "" {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
