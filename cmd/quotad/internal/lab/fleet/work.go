package fleet

import "time"

// Outcome says how an attempt of a task with a retry budget ended, in the words of docs/tasks.md.
type Outcome string

// The outcomes.
const (
	// Done: the task is done.
	Done Outcome = "done"
	// Failed: one failure of its budget is used up.
	Failed Outcome = "failed"
	// Saturated: the provider had too much to do, or was called too fast.
	Saturated Outcome = "saturated"
	// PlanExhausted: the plan is used up.
	PlanExhausted Outcome = "plan_exhausted"
	// FinishedThenLimited: the work was finished before a limit was met.
	FinishedThenLimited Outcome = "finished_then_limited"
	// Lost: nothing was heard of it until its deadline.
	Lost Outcome = "lost"
)

// Outcomes are all of them; what a tool says can mean all but the last.
var Outcomes = []Outcome{Done, Failed, Saturated, PlanExhausted, FinishedThenLimited, Lost}

// Retry is a task's retry budget: its attempts are begun by permission, and end with an outcome.
type Retry struct {
	// MaxFailures is at how many failures a task is shelved.
	MaxFailures int
	// TTL is how long an attempt lives after its runner's last word.
	TTL time.Duration
	// Quotas are told of the limits that an attempt meets; while one is closed nothing begins.
	Quotas []string
	// Load is what each attempt draws before it does anything: its prompt.
	Load []Use
	// Ends are the ends of some tasks' attempts. All others are done when their calls are made.
	Ends []End
}

// End is how attempts of one task end that made all their calls.
type End struct {
	// Task is the task's number, from 1, or 0 for all; Times how many of its attempts end so, the first ones; 0: all.
	Task, Times int
	// Finished: the work was finished, and the tool said so.
	Finished bool
	// Says is what the tool prints then, Exit its exit code.
	Says string
	Exit int
	// Means is what the attempt has to be taken for; empty: nothing is expected.
	Means Outcome
}

// Of returns how the nth attempt of a task ends; nil: it is done.
func (r *Retry) Of(task, attempt int) *End {
	for i := range r.Ends {
		if e := &r.Ends[i]; (e.Task == 0 || e.Task == task) && (e.Times == 0 || attempt <= e.Times) {
			return e
		}
	}
	return nil
}

// ExpectTasks is what must hold of tasks with retry budgets. Always expected is that none fails more often than its budget
// says, and that what an attempt met is taken for what the file says that it means.
type ExpectTasks struct {
	// Delays are the pauses after a task's first failure, its second, and so on; the last one holds for all later ones.
	Delays []time.Duration
	// Shelved is how many tasks are shelved in the end, by agent; of others none may be.
	Shelved map[string]int64
	// Unfinished is the most tasks that may be neither done nor shelved in the end; -1: any number.
	Unfinished int64
	// Outcomes is how many attempts must end so, at least: what is expected of them must be seen to happen.
	Outcomes map[Outcome]int64
	// Attempts is the most attempts of one task; -1: any number. AloneAttempts is how many, at least, the task with the
	// most makes alone.
	Attempts, AloneAttempts int64
	// Burnt is the most, by quota, that attempts may draw which did not finish their task; AloneBurnt the least that
	// they must draw alone.
	Burnt, AloneBurnt map[string]int64
}

// ExpectChain is what must hold of agents that hand work on. Always expected is that, while a workflow goes one at a time,
// no two of its steps call at once, and that nobody upstream of a step that the provider refused is granted a call before it.
type ExpectChain struct {
	// Complete: all tasks that are counted are finished.
	Complete bool
	// Sequential is how often, at least, a workflow goes one at a time. In the end none may.
	Sequential int64
	// KeptBack is how many calls, at least, back-pressure keeps back.
	KeptBack int64
	// AloneWave is the least that a period of the binding quota sees alone after an outage: the second wave.
	AloneWave int64
}
