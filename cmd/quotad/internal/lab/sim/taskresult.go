package sim

import (
	"math"
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/fsm/logpb"
	fsmtask "github.com/quotad/quotad/fsm/task"
)

// TaskResult is the result of one task with a retry budget.
type TaskResult struct {
	Task   string `json:"task"`
	Holder string `json:"holder"`
	// Phase is its runner's view at the end: done, shelved or open. Listed is quotad's.
	Phase    string `json:"phase"`
	Listed   string `json:"listed,omitempty"`
	Failures int64  `json:"failures"`
	Attempts int64  `json:"attempts"`
	// Burnt is the amount, by quota, that attempts drew without finishing the work or after it was finished.
	Burnt map[string]int64 `json:"burnt,omitempty"`
	// Log are its attempts.
	Log []AttemptResult `json:"-"`

	kind *fleet.Agent
}

// Kind is the name of its agent's description.
func (t *TaskResult) Kind() string { return t.kind.Name }

// Budget is the number of failures at which it must be shelved.
func (t *TaskResult) Budget() int64 { return int64(t.kind.Retry.MaxFailures) }

// Free reports whether it depends on no quota: only its own delays can defer its next attempt.
func (t *TaskResult) Free() bool { return len(t.kind.Retry.Quotas) == 0 }

// AttemptResult is the result of one attempt. Times count from the begin of the run.
type AttemptResult struct {
	// Begun and End are the tool's start and end, as the runner saw them; End is 0 if it still ran at the end.
	Begun, End time.Duration
	// Outcome is its classification, Means its true outcome according to the file; empty: the file does not say.
	Outcome, Means fleet.Outcome
	// Until is the end of the limit that ended it, if the limit named that time; else 0.
	Until time.Duration
}

// The phases of a task.
const (
	PhaseDone    = "done"
	PhaseShelved = "shelved"
	PhaseOpen    = "open"
)

// taskResults returns the results of the tasks with retry budgets, in the order of agents and then of begins.
func (b *book) taskResults() []TaskResult {
	listed := b.listed()
	var all []TaskResult
	for _, a := range b.w.agents {
		for _, j := range a.jobs {
			r := j.result()
			if view, ok := listed[j.name]; ok {
				r.Listed, r.Failures = phaseWord(view.Phase), max(r.Failures, int64(view.Failures))
			}
			all = append(all, r)
		}
	}
	return all
}

// listed returns quotad's list at the end, by task.
func (b *book) listed() map[string]fsmtask.View {
	all := map[string]fsmtask.View{}
	if b.w.cluster == nil {
		return all
	}
	views := b.w.cluster.machine.State().Tasks("", "", logpb.TaskPhase_TASK_PHASE_UNSPECIFIED, "", math.MaxInt, b.w.cluster.present())
	for _, view := range views {
		all[view.Name] = view
	}
	return all
}

func phaseWord(phase logpb.TaskPhase) string {
	switch phase {
	case logpb.TaskPhase_TASK_PHASE_DONE:
		return PhaseDone
	case logpb.TaskPhase_TASK_PHASE_SHELVED:
		return PhaseShelved
	case logpb.TaskPhase_TASK_PHASE_READY, logpb.TaskPhase_TASK_PHASE_IN_FLIGHT, logpb.TaskPhase_TASK_PHASE_WAITING,
		logpb.TaskPhase_TASK_PHASE_UNSPECIFIED:
	}
	return PhaseOpen
}

// result computes a job's result.
func (j *job) result() TaskResult {
	r := TaskResult{Task: j.name, Holder: j.agent.name, Phase: PhaseOpen, Attempts: int64(len(j.log)), Burnt: map[string]int64{}, kind: j.kind}
	switch j.phase {
	case "":
	case fleet.Done:
		r.Phase = PhaseDone
	default:
		r.Phase = PhaseShelved
	}
	for _, t := range j.log {
		if t.outcome == fleet.Failed || t.outcome == fleet.Lost {
			r.Failures++
		}
		r.Log = append(r.Log, AttemptResult{
			Begun: time.Duration(t.begun), End: time.Duration(t.end), Outcome: t.outcome, Means: t.means, Until: time.Duration(t.reportedUntil()),
		})
		if t.finished || t.open {
			continue
		}
		for limit, amount := range t.drawn {
			if amount > 0 {
				r.Burnt[j.quotas[limit].Name] += amount
			}
		}
	}
	return r
}

// Burnt returns the amount of a quota that tasks drew in vain.
func (r *Result) Burnt(quota string) (sum int64) {
	for i := range r.Tasks {
		sum += r.Tasks[i].Burnt[quota]
	}
	return sum
}
