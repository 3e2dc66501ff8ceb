package sim

import (
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
)

// complete is the output of a tool that has finished its work.
const complete = "TASK_COMPLETE"

// terminated is the exit code of a tool that its runner stopped.
const terminated = 143

// job is a task with a retry budget, as its runner sees it.
type job struct {
	*agent
	// number is its number among the agent's tasks, from 1.
	number int
	name   string
	log    []*attempt
	// phase is its end: done, or failed for a shelved task; empty while it is open.
	phase fleet.Outcome
	// worked: an attempt has finished the work. All later attempts are in vain.
	worked bool
}

// attempt is one attempt at a job: a tool that loads its prompt, makes its calls, and ends.
type attempt struct {
	job        *job
	number     int
	begun, end int64
	open       bool
	// fence is the cluster's fence. expires is when the attempt is lost unless it is renewed, by the runner's own clock.
	fence   uint64
	expires int64
	task    *task
	// met is the outage that ended it; stopped: its runner stopped it because it was lost.
	met     provider.Answer
	stopped bool
	// outcome is its classification; means is its true outcome, if the file states it.
	outcome, means fleet.Outcome
	// finished: this attempt finished the work.
	finished bool
	// drawn are the amounts that its calls drew, by limit.
	drawn []int64
}

// runner begins attempts of a job, when permitted, and processes their ends.
type runner interface {
	next(j *job)
	// reported processes a tool's last output and its exit code.
	received(t *attempt, lines []string, code int)
}

// alive returns a function that does nothing once the present process has died.
func (a *agent) alive(run func()) func() {
	life := a.life
	return func() {
		if a.life == life {
			run()
		}
	}
}

// begin begins an attempt.
func (j *job) begin(fence uint64) *attempt {
	t := &attempt{job: j, number: len(j.log) + 1, begun: j.now, open: true, fence: fence, drawn: make([]int64, len(j.quotas))}
	t.task = &task{left: j.kind.Calls, attempt: t}
	j.log = append(j.log, t)
	if len(j.kind.Retry.Load) == 0 {
		j.work(t.task)
		return t
	}
	t.task.workers++
	j.want(&call{agent: j.agent, life: j.life, task: t.task, asked: j.now, uses: j.kind.Retry.Load, load: true})
	return t
}

// stops reports whether an answer ends the tool that works on a task, because the tool does not treat it as a mere refused
// call.
func (c *call) stops(said provider.Answer) bool {
	if c.task.attempt == nil || said.Says == "" {
		return false
	}
	c.task.attempt.met = said
	return true
}

// ended produces the tool's last output.
func (t *attempt) ended(calls *task) {
	j := t.job
	t.open = false
	if !t.stopped {
		t.end = j.now
	}
	lines, code := []string{complete}, 0
	switch end := j.kind.Retry.Of(j.number, t.number); {
	case t.stopped:
		lines, code = nil, terminated
	case t.met.Says != "":
		lines, code, t.means = []string{t.met.Says}, 1, fleet.Outcome(t.met.Means)
	case calls.failed:
		lines, code, t.means = []string{"gave up: no answer in time"}, 1, fleet.Failed
	case end == nil:
		t.finished, t.means = true, fleet.Done
	default:
		t.finished, t.means, code = end.Finished, end.Means, end.Exit
		if lines = append(lines, end.Says); !end.Finished {
			lines = lines[1:]
		}
	}
	t.finished = t.finished && !j.worked
	j.worked = j.worked || t.finished
	j.runner.received(t, lines, code)
}

// reportedUntil returns the end of the limit that ended an attempt; 0: no limit, or no known end.
func (t *attempt) reportedUntil() int64 {
	if t.means == fleet.Saturated || t.means == fleet.PlanExhausted {
		return t.met.Until
	}
	return 0
}

// close ends a job.
func (j *job) close(phase fleet.Outcome) {
	j.phase = phase
	j.over(phase == fleet.Done)
}

// die marks the running attempt as lost with the process.
func (j *job) die() {
	if n := len(j.log); n > 0 && j.log[n-1].open {
		t := j.log[n-1]
		t.end, t.open, t.outcome = j.now, false, fleet.Lost
	}
}

// drew records the amounts that a call of an attempt drew.
func (t *attempt) drew(c *call) {
	for _, amount := range c.charged {
		t.drawn[amount.Limit] += amount.N
	}
}
