package sim

import (
	"fmt"
	"math"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/provider"
	"github.com/quotad/quotad/rpc/quotav1"
)

// agent is one running agent.
type agent struct {
	*world
	kind *fleet.Agent
	name string
	dice dice
	// number is its index among all agents.
	number int
	// settleMax says, by limit, whether the provider keeps the amount charged at admission.
	settleMax []bool
	caller    caller
	runner    runner
	// jobs are its tasks with retry budgets; chains are the workflows in which it is a step.
	jobs   []*job
	chains []*chain
	// followers continue its work. handed is the number of finished tasks of each agent that it follows, by their indexes.
	followers []*agent
	handed    map[int]int
	// life increases with each crash: the calls of an earlier life have no owner any more.
	life    int
	dead    bool
	running int
	// learner estimates the calls of this life.
	learner *estimate.Learner
	// begun counts tasks; left is the number of unfinished tasks, if their number is limited.
	begun, left int
	nextEvery   int64

	tally Holder
	// sentCalls counts the calls that were sent, retries excluded.
	sentCalls int64
}

// caller makes one call and reports its end.
type caller interface {
	call(c *call)
}

// call is one call that an agent wants to make.
type call struct {
	agent *agent
	life  int
	task  *task
	// uses are the amounts that it draws; load: it is the prompt of an attempt, before its calls.
	uses []fleet.Use
	load bool
	// asked is when the agent wanted it, granted when quotad granted it, sent when it was last sent.
	asked, granted, sent int64
	tries                int
	// actual is the real amount, by use; asks are the requests that were estimated, nil for uses with a given estimate.
	actual []int64
	asks   []*ask
	// member is the pool member on which it draws; empty: none. drawn are its uses at that member, charged is what the
	// provider counts.
	member  string
	drawn   []fleet.Use
	charged []provider.Amount
	// wants are the limits for which it waits while waiting is set.
	wants   []int
	waiting bool
}

// task is a number of calls, one after the other or in parallel.
type task struct {
	left    int
	workers int
	failed  bool
	// attempt is set for an attempt of a task with a retry budget.
	attempt *attempt
}

// addAgent makes an agent and schedules its first task, crashes and cuts.
func (w *world) addAgent(kind *fleet.Agent, name string, first bool, seed uint64) {
	a := &agent{world: w, kind: kind, name: name, number: len(w.agents), dice: newDice(seed, name), left: kind.Tasks, handed: map[int]int{}}
	a.tally = Holder{Name: name, Class: classWord(kind.Class), Weight: kind.Weight}
	for _, q := range w.quotas {
		a.settleMax = append(a.settleMax, q.Settle == quotav1.SettleMode_SETTLE_MODE_MAX)
	}
	w.agents = append(w.agents, a)
	if kind.Tasks > 0 {
		w.unfinished++
	} else {
		w.endless = true
	}
	a.born()
	a.nextEvery = a.dice.span(kind.Start)
	if len(kind.Follows) == 0 {
		a.arrangeNext()
	}
	if !first {
		return
	}
	for _, crash := range kind.Crashes {
		w.at(int64(crash.At), a.crash)
		if crash.For > 0 {
			w.at(int64(crash.At+crash.For), a.revive)
		}
	}
	for _, cut := range kind.Cuts {
		w.at(int64(cut.At), func() { a.cutOff(true) })
		w.at(int64(cut.At+cut.For), func() { a.cutOff(false) })
	}
}

// cutOff cuts the present process off from the cluster, or reconnects it.
func (a *agent) cutOff(cut bool) {
	if governed, ok := a.caller.(interface{ reach(cut bool) }); ok {
		governed.reach(cut)
	}
}

// born gives the agent the state of a new process.
func (a *agent) born() {
	a.learner = estimate.NewLearner(nil) // of what it remembers, only answers that are continued have an age
	a.caller = a.newCaller(a)
	a.runner, _ = a.caller.(runner)
}

// newCaller returns the caller of an agent in virtual time.
func newCaller(a *agent) caller {
	switch {
	case a.cluster == nil:
		return &alone{agent: a}
	case a.kind.Hold > 0:
		return newHeld(a)
	case a.kind.Batch:
		return newBatched(a)
	}
	return newGoverned(a)
}

// crash ends the process: its calls in flight are lost.
func (a *agent) crash() {
	if a.dead {
		return
	}
	a.life++
	if len(a.kind.Follows) > 0 && a.kind.Retry == nil {
		a.begun -= a.running // the work is still there for the next process
	}
	a.dead, a.running = true, 0
	a.book.died(a)
	for _, j := range a.jobs {
		j.die()
	}
	if mortal, ok := a.caller.(interface{ die() }); ok {
		mortal.die()
	}
}

// revive starts the agent again.
func (a *agent) revive() {
	if !a.dead {
		return
	}
	a.dead = false
	a.born()
	for _, j := range a.jobs {
		if j.phase == "" {
			a.running++
			a.runner.next(j)
		}
	}
	switch {
	case len(a.kind.Follows) > 0:
		a.takeOver()
	case !a.kind.Scheduled() && a.running == 0:
		a.in(a.dice.span(a.kind.Think), a.begin)
	}
}

// arrangeNext schedules the next task. Without a schedule it does so once: each task then starts the next.
func (a *agent) arrangeNext() {
	var at int64
	switch {
	case a.kind.Every > 0:
		at = a.nextEvery
		a.nextEvery += int64(a.kind.Every)
	case a.kind.Scheduled():
		next, ok := a.kind.Cron.Next(a.fleet.Begins.Add(time.Duration(a.nextEvery)))
		if !ok {
			return
		}
		at = int64(next.Sub(a.fleet.Begins))
		a.nextEvery = at
	default:
		a.at(a.nextEvery+a.dice.below(int64(a.kind.Jitter)+1), a.begin)
		return
	}
	a.at(at+a.dice.below(int64(a.kind.Jitter)+1), func() {
		if a.kind.Tasks == 0 || a.begun < a.kind.Tasks {
			a.begin()
		}
	})
	if at <= int64(a.fleet.For) {
		a.at(at, a.arrangeNext)
	}
}

// begin begins a task, if the overlap allows one more.
func (a *agent) begin() {
	if a.dead || a.kind.Tasks > 0 && a.begun >= a.kind.Tasks && a.kind.Scheduled() {
		return
	}
	if a.running >= a.kind.Overlap {
		a.tally.Missed++
		return
	}
	a.begun++
	a.running++
	if a.kind.Retry != nil {
		j := &job{agent: a, number: a.begun, name: fmt.Sprintf("%s/%d", a.name, a.begun)}
		a.jobs = append(a.jobs, j)
		a.runner.next(j)
		return
	}
	a.work(&task{left: a.kind.Calls})
}

// work starts a task's calls.
func (a *agent) work(t *task) {
	for range min(a.kind.Parallel, a.kind.Calls) {
		t.workers++
		a.nextCall(t)
	}
}

// nextCall makes the next call of a task, or ends it.
func (a *agent) nextCall(t *task) {
	if t.left == 0 || t.failed {
		t.workers--
		if t.workers == 0 {
			a.ended(t)
		}
		return
	}
	t.left--
	a.want(&call{agent: a, life: a.life, task: t, asked: a.now, uses: a.kind.Uses})
}

// want starts a call.
func (a *agent) want(c *call) {
	a.draw(c)
	if c.wants = a.anyLimit(c); len(a.membersOf(c.uses)) == 0 {
		c.draws("")
	}
	a.tally.Calls++
	a.book.wanted(c)
	a.caller.call(c)
}

// finished ends a call. A task whose calls do not wait forever ends with the first cancelled call.
func (a *agent) finished(c *call, ok bool) {
	if c.life != a.life {
		return
	}
	a.book.ended(c, ok)
	if ok {
		a.learn(c)
	} else {
		c.task.failed = true
	}
	a.goOn(c)
}

// cutShort ends a call that ended its whole attempt.
func (a *agent) cutShort(c *call) {
	a.book.lost(c)
	c.task.failed = true
	a.goOn(c)
}

// goOn starts a task's next call, after a pause.
func (a *agent) goOn(c *call) {
	a.in(a.dice.span(a.kind.Think), func() {
		switch {
		case c.life != a.life:
		case c.load && !c.task.failed:
			c.task.workers--
			a.work(c.task)
		default:
			a.nextCall(c.task)
		}
	})
}

// ended ends a task, or an attempt of one.
func (a *agent) ended(t *task) {
	if t.attempt != nil {
		t.attempt.ended(t)
		return
	}
	a.over(!t.failed)
}

// over ends a task: its followers continue the work, and the next task may begin.
func (a *agent) over(done bool) {
	a.running--
	if done {
		a.tally.Tasks++
	} else {
		a.tally.TasksFailed++
	}
	if a.kind.Tasks > 0 {
		if a.left--; a.left == 0 {
			a.unfinished--
			a.book.finish = a.now
		}
	}
	if done {
		for _, next := range a.followers {
			next.handed[a.number]++
			next.takeOver()
		}
	}
	switch {
	case len(a.kind.Follows) > 0:
		a.takeOver()
	case !a.kind.Scheduled() && (a.kind.Tasks == 0 || a.begun < a.kind.Tasks):
		a.begin()
	}
}

// takeOver begins the tasks that all the agents it follows have finished, as far as the overlap allows.
func (a *agent) takeOver() {
	least := math.MaxInt
	for _, count := range a.handed { // the order does not matter
		least = min(least, count)
	}
	for !a.dead && a.running < a.kind.Overlap && a.begun < least {
		a.begin()
	}
}

// patienceLeft returns how long a call can still wait.
func (c *call) patienceLeft() int64 {
	if c.agent.kind.Patience == fleet.Forever {
		return int64(fleet.Forever)
	}
	return c.asked + int64(c.agent.kind.Patience) - c.agent.now
}
