package sim

import (
	"time"

	"github.com/quotad/quotad/cmd/quotad/internal/fleet"
	"github.com/quotad/quotad/cmd/quotad/internal/fleet/provider"
	"github.com/quotad/quotad/rpc/quotav1"
)

// agent is one agent at work.
type agent struct {
	*world
	kind *fleet.Agent
	name string
	dice dice
	// number is its place among all agents.
	number int
	// settleMax tells, by use, whether the provider keeps what it charged at admission.
	settleMax []bool
	caller    caller
	// life is raised by each crash: what an earlier life had under way is nobody's any more.
	life    int
	dead    bool
	running int
	// begun counts tasks; left is how many counted ones are not finished.
	begun, left int
	nextEvery   int64

	tally Holder
	// sentCalls is how many calls were sent, however often.
	sentCalls int64
}

// caller makes one call and says when it is over.
type caller interface {
	call(c *call)
}

// call is one call that an agent wants to make.
type call struct {
	agent *agent
	life  int
	task  *task
	// asked is when it was wanted, sent when it was sent last.
	asked, sent int64
	tries       int
	// actual is what it really uses, by use; charged what the provider counts.
	actual  []int64
	charged []provider.Amount
	waiting bool
}

// task is some calls in a row, or some at once.
type task struct {
	left    int
	workers int
	failed  bool
}

// addAgent makes an agent and arranges its life.
func (w *world) addAgent(kind *fleet.Agent, name string, first bool, seed uint64) {
	a := &agent{world: w, kind: kind, name: name, number: len(w.agents), dice: newDice(seed, name), left: kind.Tasks}
	a.tally = Holder{Name: name, Class: classWord(kind.Class), Weight: kind.Weight}
	for _, use := range kind.Uses {
		a.settleMax = append(a.settleMax, w.fleet.Quotas[w.limits[use.Quota]].Settle == quotav1.SettleMode_SETTLE_MODE_MAX)
	}
	w.agents = append(w.agents, a)
	if kind.Tasks > 0 {
		w.unfinished++
	} else {
		w.endless = true
	}
	a.born()
	a.nextEvery = a.dice.span(kind.Start)
	a.arrangeNext()
	if !first {
		return
	}
	for _, crash := range kind.Crashes {
		w.at(int64(crash.At), a.crash)
		if crash.For > 0 {
			w.at(int64(crash.At+crash.For), a.revive)
		}
	}
	if governed, ok := a.caller.(interface{ reach(cut bool) }); ok {
		for _, cut := range kind.Cuts {
			w.at(int64(cut.At), func() { governed.reach(true) })
			w.at(int64(cut.At+cut.For), func() { governed.reach(false) })
		}
	}
}

// born gives the agent what a new process has.
func (a *agent) born() {
	switch {
	case a.cluster == nil:
		a.caller = &alone{agent: a}
	case a.kind.Hold > 0:
		a.caller = newHeld(a)
	case a.kind.Batch:
		a.caller = newBatched(a)
	default:
		a.caller = newGoverned(a)
	}
}

// crash ends the process: what it had under way is lost.
func (a *agent) crash() {
	if a.dead {
		return
	}
	a.life++
	a.dead, a.running = true, 0
	a.book.died(a)
	if mortal, ok := a.caller.(interface{ die() }); ok {
		mortal.die()
	}
}

// revive starts it anew.
func (a *agent) revive() {
	if !a.dead {
		return
	}
	a.dead = false
	a.born()
	if !a.kind.Scheduled() {
		a.in(a.dice.span(a.kind.Think), a.begin)
	}
}

// arrangeNext arranges when the next task begins. Without a schedule that is once; each task arranges the next.
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

// begin begins a task, if there is room for it.
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
	t := &task{left: a.kind.Calls}
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
	c := &call{agent: a, life: a.life, task: t, asked: a.now}
	c.actual, c.charged = a.draw(a)
	a.tally.Calls++
	a.book.wanted(c)
	a.caller.call(c)
}

// finished ends a call. A task that is not made at any price ends with its first call that was given up.
func (a *agent) finished(c *call, ok bool) {
	if c.life != a.life {
		return
	}
	a.book.ended(c, ok)
	if !ok {
		c.task.failed = true
	}
	a.in(a.dice.span(a.kind.Think), func() {
		if c.life == a.life {
			a.nextCall(c.task)
		}
	})
}

// ended ends a task.
func (a *agent) ended(t *task) {
	a.running--
	if t.failed {
		a.tally.TasksFailed++
	} else {
		a.tally.Tasks++
	}
	if a.kind.Tasks > 0 {
		if a.left--; a.left == 0 {
			a.unfinished--
			a.book.finish = a.now
		}
	}
	if !a.kind.Scheduled() && (a.kind.Tasks == 0 || a.begun < a.kind.Tasks) {
		a.begin()
	}
}

// patienceLeft returns how long a call goes on waiting.
func (c *call) patienceLeft() int64 {
	if c.agent.kind.Patience == fleet.Forever {
		return int64(fleet.Forever)
	}
	return c.asked + int64(c.agent.kind.Patience) - c.agent.now
}
