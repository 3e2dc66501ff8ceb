// Package model states the rules of quota a second time: plainly, slowly, and without code of package fsm. It does not predict. It reads
// each entry of a log with the results of its commands, keeps its own books, and reports violations. These are the rules, with the promises
// of docs/consistency.md that they guard:
//
//   - ceiling (1): with a grant, the held and counted amounts of a quota and of each of its ancestors are at most usable, or the total to
//     which a report lowered it. So after a limit was lowered nothing is granted until they are below it again.
//   - clamp (1): no hold exceeds the largest hold, and nothing of a suspended quota is granted.
//   - all-or-nothing (1): a grant covers all requested items, and nothing else.
//   - conservation (1): no operation consumes more than is held; only unused amounts return, once. An overrun is the use beyond the
//     estimate. A refusal's "available" is usable without the sum over leases and operations.
//   - unexplained (1): a command, a deadline or a baton explains every event.
//   - window (2): the amounts that surely fall into one calendar window are at most usable.
//   - burst (2): no interval has more than the burst and its refill.
//   - spend-by (2): consumed amounts may not be spent for longer than the definition says.
//   - cooldown (2): between a provider's report and its end nothing is granted or consumed. The end is the later of the old and the new
//     one, and within the bound of a single caller's report.
//   - reset (2): a reset less than a period after the last one frees and closes nothing by a single caller's report.
//   - cap (2): a report only lowers a window, and only if others use the key.
//   - fence-order (3): fences and lease IDs rise with every grant, without exception.
//   - dead-fence (3): an ended lease, or another's fence, changes nothing, except that an overrun is still charged, once.
//   - once (5): a numbered request has one effect and one answer, an operation is consumed and settled once.
//   - session (5): a session that is closed or idle for too long applies nothing; one in use does not end.
//   - clock (6): cluster time is that of the entries and never goes back.
//   - deadline (6): a lease has the requested length, and a Renew never shortens it.
//   - early-expiry, late-expiry (6): a lease expires with the first entry at or after its deadline. Each entry ends at most a thousand
//     expired objects of a kind.
//   - grace (6): a slot of an expired lease counts until its grace is over.
//   - item-closed (6): amounts held in a closed window cannot be consumed; no window closes early.
//   - override (2): an override of a limit counts from its command to its end.
//   - zone, share, ramp, breaker (8): nothing is granted that the quota's policy withholds.
//   - turn (8): while a workflow runs one step at a time, only the step with the baton is granted something. No two steps have it at
//     once, and no lease outlives its baton.
//   - sequential (8): a workflow runs one step at a time when enough of its steps were limited, and not before. It runs in parallel
//     again when it was calm for long enough, and not before.
//   - back-pressure (8): a step that is held back for a limited step is granted nothing.
//   - task-attempt (5): a task's attempts run one after the other, begin when they may, and end once.
//   - task-budget (5): a task's failures are counted, and it is shelved, once, when they reach its budget.
//   - class (8): a request is judged in its own class or a lower one.
//   - class-order (8): no request overtakes a waiting request of a higher class.
//   - fifo (8): requests of the same holder and class for the same quotas are served in the order of their arrival.
//   - late-wait, early-wait-end (9): a wait ends when its time is up, and before that only for a reason.
//   - false-refusal (9): the reason of a refusal is true.
//
// Where the state machine rounds to the safe side (ends of exposures, by a hundredth of a period) or the rules leave a choice, the model
// allows both. It is exact where an error would do harm.
//
// Policies and workflows are judged from one side: grants must have been permissible, by the reading of the rules that permits more where
// these books cannot tell. Shares of rates are judged from both: refusals for them must be for kept amounts, by the reading that keeps
// more.
//
// Not judged: virtual time of holders, retry times, refusals for policies (except shares of rates), the order of waiters for quotas with a
// policy and of steps, predictions, caps and floors of shares of windows, shares of single holders, the choice of the next step with a
// workflow's baton, refusals with CANNOT_SERVE_IN_TIME, refusals for lack of room in a window anchored at its provider's reset, limits in
// bytes, and whether definitions are valid. Stats counts the refusals among these.
package model

import (
	"fmt"
	"hash/maphash"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// promises are the promises of docs/consistency.md, by rule.
var promises = map[string]int{
	"ceiling": 1, "clamp": 1, "all-or-nothing": 1, "conservation": 1, "unexplained": 1,
	"window": 2, "burst": 2, "spend-by": 2, "cooldown": 2, "cap": 2, "reset": 2, "override": 2,
	"fence-order": 3, "dead-fence": 3,
	"once": 5, "session": 5, "task-attempt": 5, "task-budget": 5,
	"clock": 6, "deadline": 6, "early-expiry": 6, "late-expiry": 6, "grace": 6, "item-closed": 6,
	"class": 8, "class-order": 8, "fifo": 8,
	"zone": 8, "share": 8, "ramp": 8, "breaker": 8, "turn": 8, "sequential": 8, "back-pressure": 8,
	"late-wait": 9, "early-wait-end": 9, "false-refusal": 9,
}

// Violation is a violation of a rule.
type Violation struct {
	// Promise is the broken promise of docs/consistency.md.
	Promise int
	// Name is the rule's name, from the list above.
	Name string
	// Index is the entry's, Command the command's position in it; -1: no single command.
	Index   uint64
	Command int
	Detail  string
}

// Stats count the events of a log, to show what it covered.
type Stats struct {
	Granted      int `json:"granted"`
	Refused      int `json:"refused"`
	Failed       int `json:"failed"`
	Consumed     int `json:"consumed"`
	Settled      int `json:"settled"`
	Released     int `json:"released"`
	Renewed      int `json:"renewed"`
	Expired      int `json:"expired"`
	Revoked      int `json:"revoked"`
	DeadFences   int `json:"dead_fences"`
	Orphans      int `json:"orphans"` // overruns of leases that had ended
	Repeated     int `json:"repeated"`
	Sessions     int `json:"sessions"`
	Waited       int `json:"waited"`
	WaitsGranted int `json:"waits_granted"`
	WaitsEnded   int `json:"waits_ended"`
	Cooldowns    int `json:"cooldowns"`
	Resets       int `json:"resets"`
	Reopened     int `json:"reopened"` // by an operator's command
	Caps         int `json:"caps"`
	Overruns     int `json:"overruns"`
	ItemsClosed  int `json:"items_closed"`
	Lowered      int `json:"lowered"` // limits that were lowered below the amounts in use
	// SessionsEnded counts sessions found to have expired.
	SessionsEnded int `json:"sessions_ended"`
	// Attempts counts the attempts of tasks, Lost the lost ones; Shelved and PutBack count tasks.
	Attempts int `json:"attempts"`
	Lost     int `json:"lost"`
	Shelved  int `json:"shelved"`
	PutBack  int `json:"put_back"`
	// Overrides counts overrides set, OverridesEnded those that ended by themselves, Breakers opened ones, Instead grants of fallbacks.
	Overrides      int `json:"overrides"`
	OverridesEnded int `json:"overrides_ended"`
	Breakers       int `json:"breakers"`
	Forecasts      int `json:"forecasts"`
	Instead        int `json:"instead"`
	// Pooled counts grants of members of pools.
	Pooled int `json:"pooled"`
	// Withheld counts refusals and waits because of a policy or a workflow.
	Withheld int `json:"withheld"`
	// Lent counts grants of rates with shares to a class below one that asks, Kept the refusals and waits there because of these shares.
	Lent int `json:"lent"`
	Kept int `json:"kept"`
	// Sequentials and Parallels count the changes of workflows to one step at a time and back, Turns the events of batons.
	Sequentials int `json:"sequentials"`
	Parallels   int `json:"parallels"`
	Batons      int `json:"turns"`
	// Restores counts the restores of backups.
	Restores int `json:"restores"`
	// Unjudged counts the refusals and failures that the model cannot judge.
	Unjudged int `json:"unjudged"`
	// Most is the largest part of usable that a grant left in use, in percent, over all quotas.
	Most int64 `json:"most"`
}

// mostDue is how many expired objects of a kind the state machine ends with one entry.
const mostDue = 1000

// Judge judges a log from its first entry on.
type Judge struct {
	// level is the highest version of an entry so far.
	level  uint32
	quotas map[string]*quota
	leases map[uint64]*lease
	// ended are ended leases with operations that may still settle an overrun; forget holds their ends.
	ended   map[uint64]*lease
	forget  dues
	due     dues
	waitDue dues

	waiting    map[uint64]*waiter
	waitSets   map[string]*waitSet
	waitSetsOf map[*quota][]*waitSet
	rules      []*logpb.HolderRule
	sessions   map[uint64]*session
	keys       map[string]*answer
	limits     limits

	tasks      map[string]*task
	taskNamed  map[uint64]*task
	taskDue    dues
	taskRest   dues
	overridden map[*quota]bool
	workflows  map[string]*workflow

	clock                             fsm.Clock
	lastFence                         uint64
	lastLease, lastTicket, lastOpened uint64
	lastQuota                         int
	lastTask                          uint64
	clusterID                         string
	seed                              maphash.Seed
	stats                             Stats

	entry entry
}

// entry is the entry under judgment.
type entry struct {
	index    uint64
	command  int
	commands []*logpb.Command
	results  []*logpb.Result
	// fresh says of each command whether it was applied, and did not only get the answer of an earlier one.
	fresh []bool
	// next is the first command whose effect is not in the books yet.
	next int
	// granting is, by lease, the command that was granted it; waits, by ticket, the waiting one.
	granting, waits map[uint64]int
	// items counts, by lease, the granted items of events; made are the grants.
	items map[uint64]int
	made  map[uint64]*logpb.Granted
	// closing are quotas that a report must have closed.
	closing []closing
	// finals are the results of waits that ended with this entry.
	finals      map[uint64]uint64
	fenceBefore uint64
	idle        int64
	taskLife    int64
	waiters     int64
	keyLife     int64
	expired     int
	waitsOver   int
	lost        int
	// taskEnds and shelved count, by task, the ends of attempts and budgets without an event so far, broken the breakers, by quota and holder.
	taskEnds, shelved, broken map[string]int
	// began are the workflows that changed to one step at a time, with their previous change; dropped are the deleted ones.
	began   map[*workflow]int64
	dropped map[string]bool
	// perhaps are batons of which these books cannot tell whether they ended before this entry's commands, as the workflow became calm, or
	// with a command that changed the workflow.
	perhaps []baton
	// defined are the definitions that events have reported.
	defined    map[definedBy]bool
	violations []Violation
	// sample is the entry's sample of Unix time, reset the clock after the entry if a command reset it.
	sample span
	reset  fsm.Clock
	// closings counts the events of closed windows that are still to be handled.
	closings int
	// saved: the present grant may be to a waiter for which quotas were reserved.
	saved bool
}

// definedBy is a quota that a command defined.
type definedBy struct {
	result *logpb.Result
	quota  string
}

// New returns a judge of a log that begins with the formation of the cluster.
func New() *Judge {
	return &Judge{
		quotas: map[string]*quota{}, leases: map[uint64]*lease{}, ended: map[uint64]*lease{},
		waiting: map[uint64]*waiter{}, waitSets: map[string]*waitSet{}, waitSetsOf: map[*quota][]*waitSet{},
		sessions: map[uint64]*session{}, keys: map[string]*answer{}, limits: defaultLimits(), seed: maphash.MakeSeed(),
		tasks: map[string]*task{}, taskNamed: map[uint64]*task{}, overridden: map[*quota]bool{}, workflows: map[string]*workflow{},
	}
}

// Stats returns the counts so far.
func (j *Judge) Stats() Stats { return j.stats }

func (j *Judge) violate(name, format string, args ...any) {
	j.entry.violations = append(j.entry.violations, Violation{
		Promise: promises[name], Name: name, Index: j.entry.index, Command: j.entry.command, Detail: fmt.Sprintf(format, args...),
	})
}

// Entry judges one entry. Entries come in the order of their indices.
func (j *Judge) Entry(parsed *logpb.Entry, applied *fsm.Applied) []Violation {
	j.entry = entry{
		index: applied.Index, command: -1, commands: parsed.Commands, results: applied.Results,
		fenceBefore: j.lastFence, idle: j.limits.idle, taskLife: j.limits.taskLife, waiters: j.limits.waiters, keyLife: j.limits.keyLife,
		taskEnds: map[string]int{}, shelved: map[string]int{}, broken: map[string]int{}, began: map[*workflow]int64{}, dropped: map[string]bool{},
		defined: map[definedBy]bool{},
	}
	j.level = max(j.level, parsed.Version)
	j.time(parsed, applied.Clock)
	if len(parsed.Commands) != len(applied.Results) {
		j.violate("once", "%d commands have %d results", len(parsed.Commands), len(applied.Results))
		return j.entry.violations
	}
	j.read(applied.Events)
	for i := range applied.Events {
		j.happen(&applied.Events[i])
	}
	j.carryOut(len(parsed.Commands))
	j.entry.command = -1
	j.complete()
	j.oneAtATime()
	j.overdue()
	j.overdueTasks()
	return j.entry.violations
}

// time applies the entry's clock.
func (j *Judge) time(parsed *logpb.Entry, clock fsm.Clock) {
	if now := max(j.clock.Now, parsed.StampNs); clock.Now != now {
		j.violate("clock", "cluster time is %d, it was %d and the entry's stamp is %d", clock.Now, j.clock.Now, parsed.StampNs)
	}
	early, late := j.views(parsed, clock)
	clock.Now = max(clock.Now, j.clock.Now)
	if j.entry.resets() { // until the command is applied
		clock.WallEarly, clock.WallLate, clock.Shift = early, late, j.clock.Shift
	}
	j.clock = clock
}

// views judges the views of Unix time. The early one is at the entry's sample, or waits there until samples reach it: it neither goes back
// nor advances by itself. The late one is at the sample, and without one advances with cluster time. It returns both, as they are before
// the entry's commands.
func (j *Judge) views(parsed *logpb.Entry, clock fsm.Clock) (early, late int64) {
	early, late = j.clock.WallEarly, j.clock.WallLate
	j.entry.sample = span{parsed.WallEarlyNs, parsed.WallLateNs}
	switch {
	case parsed.WallEarlyNs > 0 && parsed.WallLateNs > 0:
		early = max(early, plus(parsed.WallEarlyNs, j.clock.Shift))
		late = max(early, plus(parsed.WallLateNs, j.clock.Shift))
	case late > 0:
		late = plus(late, max(parsed.StampNs-j.clock.Now, 0))
	}
	if j.entry.reset = clock; j.entry.resets() {
		return early, late // judged with the command
	}
	if clock.WallEarly != early {
		j.violate("clock", "the earlier view of Unix time goes from %d to %d, the sample is %d", j.clock.WallEarly, clock.WallEarly,
			parsed.WallEarlyNs)
	}
	if clock.WallLate != late {
		j.violate("clock", "the later view of Unix time goes from %d to %d, the sample is %d", j.clock.WallLate, clock.WallLate,
			parsed.WallLateNs)
	}
	return early, late
}

// complete finds effects that results announce and events lack.
func (j *Judge) complete() {
	for lease, granted := range j.entry.made {
		if got := j.entry.items[lease]; got != len(granted.Items) {
			j.violate("unexplained", "lease %d has %d items, %d events say so", lease, len(granted.Items), got)
		}
	}
	for _, c := range j.entry.closing {
		if c.quota.closedUntil < c.until && !c.quota.deleted {
			j.violate("cooldown", "%s was reported closed until %d, and is until %d", c.quota.name, c.until, c.quota.closedUntil)
		}
	}
	j.unbroken()
	j.overruled()
}

// overdue finds leases and waits that should have ended with this entry, unless so many ended that the rest follows with the next entry.
func (j *Judge) overdue() {
	now := j.clock.Now
	for first, ok := j.due.first(now); ok && j.entry.expired < mostDue; first, ok = j.due.first(now) {
		j.due.take()
		if l := j.leases[first.id]; l != nil && l.deadline == first.at {
			j.violate("late-expiry", "lease %d is there at %d, its deadline was %d", l.id, now, l.deadline)
		}
	}
	for first, ok := j.waitDue.first(now); ok && j.entry.waitsOver < mostDue; first, ok = j.waitDue.first(now) {
		j.waitDue.take()
		if w := j.waiting[first.id]; w != nil {
			j.violate("late-wait", "ticket %d waits at %d, its time was up at %d", w.ticket, now, w.until)
		}
	}
	for first, ok := j.forget.first(now); ok; first, ok = j.forget.first(now) {
		j.forget.take()
		if l := j.ended[first.id]; l != nil && l.counts(j.clock) {
			j.forget.add(plus(now, 10*minute), first.id) // views of Unix time that are ahead stand still, and windows with them
			continue
		}
		delete(j.ended, first.id)
	}
}
