package plan

import (
	"fmt"
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
	"github.com/quotad/quotad/cmd/quotad/internal/output"
)

// tables returns the tables of some scenarios, for the first seed or for all: calls, then tasks with retry budgets and
// workflows, if there are any.
func tables(all []*scenario, runs func(*scenario) []Runs) []*output.Table {
	found := []*output.Table{comparison(all, runs)}
	for _, table := range []*output.Table{taskTable(all, runs), workflowTable(all, runs)} {
		if len(table.Rows) > 0 {
			found = append(found, table)
		}
	}
	return found
}

func firstSeed(s *scenario) []Runs { return s.runs[:1] }

func allSeeds(s *scenario) []Runs { return s.runs }

// sides returns the results of one side, seed by seed.
func sides(runs []Runs, side sim.Side) []*sim.Result {
	results := make([]*sim.Result, len(runs))
	for i := range runs {
		if results[i] = runs[i].Governed; side == sim.Alone {
			results[i] = runs[i].Alone
		}
	}
	return results
}

// most returns the maximum of a figure.
func most[T int64 | time.Duration](results []*sim.Result, figure func(*sim.Result) T) T {
	largest := figure(results[0])
	for _, r := range results[1:] {
		largest = max(largest, figure(r))
	}
	return largest
}

// least returns the minimum of a figure.
func least(results []*sim.Result, figure func(*sim.Result) int64) int64 {
	return -most(results, func(r *sim.Result) int64 { return -figure(r) })
}

// tasksIn counts the tasks in a phase.
func tasksIn(r *sim.Result, phase string) (count int64) {
	for i := range r.Tasks {
		if r.Tasks[i].Phase == phase {
			count++
		}
	}
	return count
}

func allAttempts(r *sim.Result) (sum int64) {
	for i := range r.Tasks {
		sum += r.Tasks[i].Attempts
	}
	return sum
}

// overBudget counts the tasks that failed more often than their budgets allow.
func overBudget(r *sim.Result) (count int64) {
	for i := range r.Tasks {
		if r.Tasks[i].Failures > r.Tasks[i].Budget() {
			count++
		}
	}
	return count
}

// taskTable shows the results of tasks with retry budgets.
func taskTable(all []*scenario, runs func(*scenario) []Runs) *output.Table {
	table := &output.Table{Header: []string{
		"TASKS OF", "SIDE", "DONE", "SHELVED", "OPEN", "ATTEMPTS", "OF ONE", "FAILURES OF ONE", "OVER BUDGET", "BURNT",
	}}
	for _, s := range all {
		if len(s.runs[0].Governed.Tasks) == 0 {
			continue
		}
		name, quota := s.name, mostBurnt(s)
		for _, side := range []sim.Side{sim.Alone, sim.Governed} {
			results := sides(runs(s), side)
			phase := func(phase string) func(*sim.Result) int64 {
				return func(r *sim.Result) int64 { return tasksIn(r, phase) }
			}
			burnt := most(results, func(r *sim.Result) int64 { return r.Burnt(quota) })
			table.Add(name, string(side), output.Int(least(results, phase(sim.PhaseDone))), output.Int(most(results, phase(sim.PhaseShelved))),
				output.Int(most(results, phase(sim.PhaseOpen))), output.Int(most(results, allAttempts)), output.Int(most(results, mostAttempts)),
				output.Int(most(results, mostFailures)), output.Int(most(results, overBudget)), fmt.Sprintf("%d %s", burnt, quota))
			name = ""
		}
	}
	return table
}

// mostBurnt returns the quota of which the fleet alone burns most.
func mostBurnt(s *scenario) (quota string) {
	most := int64(-1)
	for _, q := range s.fleet.Limits() {
		if burnt := s.runs[0].Alone.Burnt(q.Name); burnt > most {
			most, quota = burnt, q.Name
		}
	}
	return quota
}

// workflowTable shows the results of workflows.
func workflowTable(all []*scenario, runs func(*scenario) []Runs) *output.Table {
	table := &output.Table{Header: []string{
		"WORKFLOWS OF", "SIDE", "FINISHED", "PEAK AFTER OUTAGES", "LIMITED", "KEPT BACK", "ONE AT A TIME", "FOR", "TURNS", "OVERTOOK", "TOGETHER",
	}}
	for _, s := range all {
		if len(s.fleet.Workflows) == 0 {
			continue
		}
		name := s.name
		for _, side := range []sim.Side{sim.Alone, sim.Governed} {
			results := sides(runs(s), side)
			row := []string{name, string(side), finishedOf(results), waveText(s, results)}
			if side == sim.Alone {
				row = append(row, slices.Repeat([]string{output.Dash}, len(table.Header)-len(row))...)
			} else {
				row = append(row, workflowFigures(results)...)
			}
			table.Add(row...)
			name = ""
		}
	}
	return table
}

// finishedOf shows when all work was finished, if every run finished it.
func finishedOf(results []*sim.Result) string {
	for _, r := range results {
		if r.Finish == 0 {
			return finishedText(0)
		}
	}
	return finishedText(most(results, func(r *sim.Result) time.Duration { return r.Finish }))
}

// waveText shows the peak of the binding quota in a period after outages.
func waveText(s *scenario, results []*sim.Result) string {
	for i := range results[0].Quotas {
		if q := &results[0].Quotas[i]; q.Quota == s.fleet.Expect.Binding {
			return fmt.Sprintf("%d of %d", most(results, func(r *sim.Result) int64 { return r.Quotas[i].Wave }), q.Limit)
		}
	}
	return output.Dash
}

// workflowFigures are sums over all workflows of a fleet. Figures that a run must reach show their minimum, the others
// their maximum.
func workflowFigures(results []*sim.Result) []string {
	sum := func(of func(*sim.WorkflowResult) int64) func(*sim.Result) int64 {
		return func(r *sim.Result) (total int64) {
			for i := range r.Workflows {
				total += of(&r.Workflows[i])
			}
			return total
		}
	}
	length := most(results, sum(func(w *sim.WorkflowResult) int64 { return int64(w.InSequence) }))
	return []string{
		output.Int(least(results, sum(func(w *sim.WorkflowResult) int64 { return w.Limited }))),
		output.Int(least(results, sum(func(w *sim.WorkflowResult) int64 { return w.KeptBack }))),
		output.Int(least(results, sum(func(w *sim.WorkflowResult) int64 { return w.Sequential }))),
		waitText(time.Duration(length)),
		output.Int(least(results, sum(func(w *sim.WorkflowResult) int64 { return w.Batons }))),
		output.Int(most(results, sum(func(w *sim.WorkflowResult) int64 { return w.Overtook }))),
		output.Int(most(results, sum(func(w *sim.WorkflowResult) int64 { return w.Together }))),
	}
}
