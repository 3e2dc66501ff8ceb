package fleet

import "time"

// Outcome is how an attempt of a task with a retry budget ended, in the terms of docs/tasks.md.
type Outcome string

// The outcomes.
const (
	// Done: the task is done.
	Done Outcome = "done"
	// Failed: it used up one failure of its budget.
	Failed Outcome = "failed"
	// Saturated: the provider was overloaded, or was called too fast.
	Saturated Outcome = "saturated"
	// PlanExhausted: the plan is used up.
	PlanExhausted Outcome = "plan_exhausted"
	// FinishedThenLimited: the work was finished before the attempt hit a limit.
	FinishedThenLimited Outcome = "finished_then_limited"
	// Lost: it was not renewed before its deadline.
	Lost Outcome = "lost"
)

// Outcomes are all outcomes; a tool's output can mean all except the last.
var Outcomes = []Outcome{Done, Failed, Saturated, PlanExhausted, FinishedThenLimited, Lost}

// Retry is a task's retry budget: an attempt begins only with permission, and ends with an outcome.
type Retry struct {
	// MaxFailures is the number of failures at which a task is shelved.
	MaxFailures int
	// TTL is how long an attempt lives after its last renewal.
	TTL time.Duration
	// Quotas are the quotas to which the limits of an attempt are reported; while one is closed no attempt begins.
	Quotas []string
	// Load is what each attempt draws before it does anything else: its prompt.
	Load []Use
	// Ends are the ends of some tasks' attempts. All other attempts are done when they have made their calls.
	Ends []End
}

// End is the end of some attempts that made all their calls.
type End struct {
	// Task is the task's number, from 1; 0: all tasks. Times is the number of its first attempts that end in this way; 0:
	// all.
	Task, Times int
	// Finished: the work was finished, and the tool's output said so.
	Finished bool
	// Says is the tool's output then, Exit its exit code.
	Says string
	Exit int
	// Means is the expected classification of the attempt; empty: nothing is expected.
	Means Outcome
}

// Of returns the end of a task's nth attempt; nil: it is done.
func (r *Retry) Of(task, attempt int) *End {
	for i := range r.Ends {
		if e := &r.Ends[i]; (e.Task == 0 || e.Task == task) && (e.Times == 0 || attempt <= e.Times) {
			return e
		}
	}
	return nil
}

// ExpectTasks is what tasks with retry budgets must show. In every run, no task may fail more often than its budget allows,
// and each attempt must be classified as the file says.
type ExpectTasks struct {
	// Delays are the pauses after a task's first failure, its second, and so on; the last one applies to all later
	// failures.
	Delays []time.Duration
	// Shelved is the number of shelved tasks at the end, by agent; for other agents 0.
	Shelved map[string]int64
	// Unfinished is the maximum number of tasks that are neither done nor shelved at the end; -1: any number.
	Unfinished int64
	// Outcomes is the minimum number of attempts with each outcome: expected outcomes must occur.
	Outcomes map[Outcome]int64
	// Attempts is the maximum number of attempts of one task; -1: any number. AloneAttempts is the minimum, alone, for the
	// task with the most attempts.
	Attempts, AloneAttempts int64
	// Burnt is the maximum amount, by quota, that attempts draw without finishing their task; AloneBurnt is the minimum of
	// that amount alone.
	Burnt, AloneBurnt map[string]int64
}

// ExpectChain is what agents that continue each other's work must show. In every run, while a workflow runs one step at a
// time, no two of its steps may call at once. No step upstream of one that the provider refused may be granted a call
// before it.
type ExpectChain struct {
	// Complete: all tasks of limited number are finished.
	Complete bool
	// Sequential is the minimum number of times that a workflow switches to one step at a time. At the end none may be in
	// that state.
	Sequential int64
	// KeptBack is the minimum number of calls that back-pressure delays.
	KeptBack int64
	// AloneWave is the minimum peak of the binding quota in one period after an outage, alone: the second wave.
	AloneWave int64
}
