package plan

import (
	"maps"
	"slices"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/sim"
)

// promptly is the maximum delay of a task's next attempt after it may begin, if no quota prevents it: a leader may have
// been killed, and a runner polls.
const promptly = 10 * time.Second

// judgeBudgets checks attempts, whatever the file expects. Outcomes are classified as the file says, no budget is exceeded,
// shelved tasks are listed as shelved, and no attempt begins before the provider's time.
func judgeBudgets(governed *sim.Result, fail func(string, ...any)) {
	for i := range governed.Tasks {
		t := &governed.Tasks[i]
		if t.Failures > t.Budget() {
			fail("%s failed %d times; its budget is %d", t.Task, t.Failures, t.Budget())
		}
		if t.Phase == sim.PhaseShelved && (t.Listed != sim.PhaseShelved || t.Failures != t.Budget()) {
			fail("%s was shelved, and is listed as %s with %d of %d failures", t.Task, t.Listed, t.Failures, t.Budget())
		}
		for n, a := range t.Log {
			if a.Means != "" && a.Outcome != "" && a.Outcome != fleet.Lost && a.Outcome != a.Means {
				fail("attempt %d of %s was taken for %s; it was %s", n+1, t.Task, a.Outcome, a.Means)
			}
			if n > 0 && a.Begun < t.Log[n-1].Until {
				fail("attempt %d of %s began at %v; the provider had said not before %v", n+1, t.Task, round(a.Begun), round(t.Log[n-1].Until))
			}
		}
	}
}

// judgeWorkflows checks that workflows keep their order.
func judgeWorkflows(governed *sim.Result, fail func(string, ...any)) {
	for i := range governed.Workflows {
		w := &governed.Workflows[i]
		if w.Overtook > 0 {
			fail("%d calls upstream of a limited step of %s overtook it", w.Overtook, w.Workflow)
		}
		if w.Together > 0 {
			fail("%d calls of %s were made while another step's turn was", w.Together, w.Workflow)
		}
	}
}

// judgeTasks compares tasks with their expectations.
func judgeTasks(e *fleet.ExpectTasks, alone, governed *sim.Result, fail func(string, ...any)) {
	judgeDelays(e, governed, fail)
	shelved, unfinished, outcomes := map[string]int64{}, int64(0), make(map[fleet.Outcome]int64)
	for i := range governed.Tasks {
		t := &governed.Tasks[i]
		switch t.Phase {
		case sim.PhaseShelved:
			shelved[t.Kind()]++
		case sim.PhaseOpen:
			unfinished++
		}
		for _, a := range t.Log {
			outcomes[a.Outcome]++
		}
		if e.Attempts >= 0 && t.Attempts > e.Attempts {
			fail("%s was begun %d times; %d is the most", t.Task, t.Attempts, e.Attempts)
		}
	}
	if !maps.Equal(shelved, e.Shelved) {
		fail("shelved are %v, by agent; %v have to be", shelved, e.Shelved)
	}
	if e.Unfinished >= 0 && unfinished > e.Unfinished {
		fail("%d tasks are neither done nor shelved; %d may be", unfinished, e.Unfinished)
	}
	for _, outcome := range slices.Sorted(maps.Keys(e.Outcomes)) {
		if outcomes[outcome] < e.Outcomes[outcome] {
			fail("%d attempts were %s; %d have to be", outcomes[outcome], outcome, e.Outcomes[outcome])
		}
	}
	if most := mostAttempts(alone); most < e.AloneAttempts {
		fail("alone, no task was begun more than %d times; %d make the incident", most, e.AloneAttempts)
	}
	for _, quota := range slices.Sorted(maps.Keys(e.Burnt)) {
		if burnt := governed.Burnt(quota); burnt > e.Burnt[quota] {
			fail("%d of %s were burnt; %d is the most", burnt, quota, e.Burnt[quota])
		}
	}
	for _, quota := range slices.Sorted(maps.Keys(e.AloneBurnt)) {
		if burnt := alone.Burnt(quota); burnt < e.AloneBurnt[quota] {
			fail("alone, %d of %s were burnt; %d make the incident", burnt, quota, e.AloneBurnt[quota])
		}
	}
}

// mostAttempts returns the highest number of attempts of a task.
func mostAttempts(r *sim.Result) (most int64) {
	for i := range r.Tasks {
		most = max(most, r.Tasks[i].Attempts)
	}
	return most
}

// mostFailures returns the highest number of failures of a task.
func mostFailures(r *sim.Result) (most int64) {
	for i := range r.Tasks {
		most = max(most, r.Tasks[i].Failures)
	}
	return most
}

// judgeDelays checks the pauses after a task's failures. The pause after a lost attempt counts from its deadline, which is
// later than its end. A task that depends on a quota waits for that as well.
func judgeDelays(e *fleet.ExpectTasks, governed *sim.Result, fail func(string, ...any)) {
	if len(e.Delays) == 0 {
		return
	}
	for i := range governed.Tasks {
		t := &governed.Tasks[i]
		failures := 0
		for n := range t.Log {
			a := &t.Log[n]
			if a.Outcome != fleet.Failed && a.Outcome != fleet.Lost {
				continue
			}
			failures++
			if n+1 == len(t.Log) {
				break
			}
			delay, pause := e.Delays[min(failures, len(e.Delays))-1], t.Log[n+1].Begun-a.End
			if pause < delay || a.Outcome == fleet.Failed && t.Free() && pause > delay+promptly {
				fail("attempt %d of %s began %v after failure %d; %v is the delay", n+2, t.Task, round(pause), failures, delay)
			}
		}
	}
}

// judgeChain compares agents that continue each other's work with their expectations.
func judgeChain(e *fleet.Expect, alone, governed *sim.Result, fail func(string, ...any)) {
	if e.Chain.Complete && governed.Finish == 0 {
		fail("the chain did not finish its work")
	}
	var sequential, kept int64
	for i := range governed.Workflows {
		w := &governed.Workflows[i]
		sequential += w.Sequential
		kept += w.KeptBack
		if !w.Parallel {
			fail("%s goes one at a time still", w.Workflow)
		}
	}
	if sequential < e.Chain.Sequential {
		fail("one at a time went %d times; %d have to", sequential, e.Chain.Sequential)
	}
	if kept < e.Chain.KeptBack {
		fail("back-pressure kept %d calls back; %d have to be", kept, e.Chain.KeptBack)
	}
	for i := range alone.Quotas {
		if q := &alone.Quotas[i]; q.Quota == e.Binding && q.Wave < e.Chain.AloneWave {
			fail("alone, a period saw %d of %s after an outage; %d make the second wave", q.Wave, q.Quota, e.Chain.AloneWave)
		}
	}
}
