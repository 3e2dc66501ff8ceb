// Package model is the rules of quota a second time: plain, slow and without a line of package fsm's decisions. It does
// not predict. It is given each entry of a log and what its commands came to, keeps its own books, and says what was not
// allowed. These are the rules, with the promises of docs/consistency.md that they guard:
//
//   - ceiling (1): with a grant, what a quota and each of its ancestors has held and counted is at most usable, or what a
//     report lowered it to; so nothing is granted after a limit was lowered until it is under again.
//   - clamp (1): no hold is larger than the largest hold, and none of a quota that is suspended.
//   - all-or-nothing (1): a grant is of all that was asked, and of nothing else.
//   - conservation (1): no operation consumes more than is held; what comes back is what was not used, once; overruns are
//     what was used on top; the refusals' "available" is the sum over leases and operations.
//   - unexplained (1): nothing happens that no command, deadline or turn explains.
//   - window (2): what surely falls into one calendar window is at most usable.
//   - burst (2): no interval has more than the burst and what refills in it.
//   - spend-by (2): what was consumed may not be spent for longer than the definition says.
//   - cooldown (2): between a provider's word and its end nothing is granted or consumed; the end is the later of old and
//     new, and within what one caller's word can do.
//   - reset (2): a reset that comes less than a period after the last one frees and closes nothing on one caller's word.
//   - cap (2): a report only lowers a window, and only where somebody else uses the key.
//   - fence-order (3): fences and lease ids grow with every grant, for ever.
//   - dead-fence (3): a lease that has ended, or another's fence, changes nothing; an overrun alone is still taken, once.
//   - once (5): a numbered request has one effect and one answer, an operation is consumed and settled once.
//   - session (5): a session that is closed or idle for too long carries nothing out; one in use does not end.
//   - clock (6): cluster time is that of the entries and never goes back.
//   - deadline (6): a lease has the length that was asked for, and a Renew never shortens it.
//   - early-expiry, late-expiry (6): a lease ends by itself at its deadline, with the first entry that is due. Of what is
//     due, a thousand things an entry.
//   - grace (6): a slot of a lease that ended by itself counts until its grace is over.
//   - item-closed (6): what was held in a window that has closed cannot be consumed; no window closes early.
//   - override (2): a limit in place of a quota's own counts from its command to its end, and not for longer.
//   - zone, share, ramp, breaker (8): nothing is granted that the quota's policy withholds.
//   - turn (8): while a workflow goes one at a time, nothing is granted to a step but the one that has the turn, no two have it
//     at once, and no lease of a turn outlives it.
//   - sequential (8): a workflow goes one at a time when enough of its steps were limited, and not before; all go again when
//     it was calm for long enough, and not before.
//   - back-pressure (8): who is kept back for a step that is limited is granted nothing.
//   - task-attempt (5): a task's attempts come one after the other, when they may, and end once.
//   - task-budget (5): a task's failures are counted, and it is shelved, once, when it has failed as often as it may.
//   - class (8): who asks is judged in its own class or a lower one.
//   - class-order (8): nobody of a lower class is granted what somebody of a higher one waits for.
//   - fifo (8): who waits for the same quotas in the same class is served in the order in which it asked.
//   - late-wait, early-wait-end (9): a wait ends when its time is up, and not before without a reason.
//   - false-refusal (9): the reason of a "no" is true.
//
// Where the state machine rounds to the safe side (ends of exposures, by a hundredth of a period) or the rules leave a
// choice, the model allows both; it is exact where a mistake would hurt.
//
// Policies and workflows are judged from one side: what is granted must have been permissible, by the reading of the rules
// that permits more where these books cannot tell. Shares of rates are judged from both: what is refused for them must have been
// kept, by the reading that keeps more.
//
// Not judged: turns between holders, retry times, whom a policy refuses (but for shares of rates), the order of waiters for quotas with a
// policy and of steps, predictions, caps and floors of shares of windows, shares of single holders, to whom a workflow's turn goes next,
// what is told as CANNOT_SERVE_IN_TIME, refusals for want of room in a window that is anchored at its provider's reset, limits in bytes,
// and whether definitions are possible. Stats counts the refusals among these.
package model

import (
	"fmt"
	"hash/maphash"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// promises are the promises of docs/consistency.md by rule.
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

// Violation is something that was not allowed.
type Violation struct {
	// Promise is the promise of docs/consistency.md that was broken.
	Promise int
	// Name is the rule's, from the list above.
	Name string
	// Index is the entry's, Command the command's position in it; -1: none of them.
	Index   uint64
	Command int
	Detail  string
}

// Stats are what a log had, to see that it tried something.
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
	Reopened     int `json:"reopened"` // on an operator's word
	Caps         int `json:"caps"`
	Overruns     int `json:"overruns"`
	ItemsClosed  int `json:"items_closed"`
	Lowered      int `json:"lowered"` // limits that were lowered below what was out
	// SessionsEnded are those that were found to have expired.
	SessionsEnded int `json:"sessions_ended"`
	// Attempts are those of tasks that began, Lost those that were, Shelved and PutBack are tasks.
	Attempts int `json:"attempts"`
	Lost     int `json:"lost"`
	Shelved  int `json:"shelved"`
	PutBack  int `json:"put_back"`
	// Overrides were set, OverridesEnded ended by themselves. Breakers opened. Instead are grants of fallbacks.
	Overrides      int `json:"overrides"`
	OverridesEnded int `json:"overrides_ended"`
	Breakers       int `json:"breakers"`
	Forecasts      int `json:"forecasts"`
	Instead        int `json:"instead"`
	// Pooled are grants of members of pools.
	Pooled int `json:"pooled"`
	// Withheld are refusals and waits for a policy's or a workflow's sake.
	Withheld int `json:"withheld"`
	// Lent are grants of rates with shares to a class below one that asks, Kept the refusals and waits there for these shares.
	Lent int `json:"lent"`
	Kept int `json:"kept"`
	// Sequentials and Parallels are how often a workflow began to go one at a time, and ended, Turns what was told of turns.
	Sequentials int `json:"sequentials"`
	Parallels   int `json:"parallels"`
	Turns       int `json:"turns"`
	// Restores are how often a backup took the state's place.
	Restores int `json:"restores"`
	// Unjudged counts the refusals and failures of which the model cannot tell whether they are true.
	Unjudged int `json:"unjudged"`
	// Most is the largest share of usable that a grant left in use, in percent, over all quotas.
	Most int64 `json:"most"`
}

// mostDue is how much of what is due of a kind the state machine carries out with one entry.
const mostDue = 1000

// Judge judges a log from its first entry on.
type Judge struct {
	// level is the highest version of an entry so far.
	level  uint32
	quotas map[string]*quota
	leases map[uint64]*lease
	// ended are leases that have ended and left operations that can still be settled upward; forget says until when.
	ended   map[uint64]*lease
	forget  dues
	due     dues
	waitDue dues

	waiting  map[uint64]*waiter
	lanes    map[string]*lane
	lanesOf  map[*quota][]*lane
	rules    []*logpb.HolderRule
	sessions map[uint64]*session
	keys     map[string]*answer
	limits   limits

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

// entry is what is being judged.
type entry struct {
	index    uint64
	command  int
	commands []*logpb.Command
	results  []*logpb.Result
	// fresh says of each command whether it was carried out, and did not only get the answer of an earlier one.
	fresh []bool
	// next is the first command whose effect is not in the books yet.
	next int
	// granting is, by lease, the command that was granted it; waits, by ticket, the one that waits.
	granting, waits map[uint64]int
	// items counts, by lease, the items that events named as granted; made are the grants.
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
	// taskEnds and shelved count, by task, the ends of attempts and budgets that events have not told yet, broken the
	// breakers, by quota and holder.
	taskEnds, shelved, broken map[string]int
	// began are the workflows that began to go one at a time, with when they last changed; dropped those that ended.
	began   map[*workflow]int64
	dropped map[string]bool
	// perhaps are turns of which it cannot be told whether they ended before this entry's commands, since all went again, or with
	// one of them, that changed the workflow.
	perhaps []turn
	// defined are the definitions that events have told.
	defined    map[definedBy]bool
	violations []Violation
	// sample is the entry's of Unix time, reset the clock after it where a command reset the clock.
	sample span
	reset  fsm.Clock
	// closings are how many events say that a window closed, and are still to come.
	closings int
	// saved: who is granted something now may have been saved up for.
	saved bool
}

// definedBy is a quota that a command defined.
type definedBy struct {
	result *logpb.Result
	quota  string
}

// New returns a judge of a log that begins with the cluster's birth.
func New() *Judge {
	return &Judge{
		quotas: map[string]*quota{}, leases: map[uint64]*lease{}, ended: map[uint64]*lease{},
		waiting: map[uint64]*waiter{}, lanes: map[string]*lane{}, lanesOf: map[*quota][]*lane{},
		sessions: map[uint64]*session{}, keys: map[string]*answer{}, limits: defaultLimits(), seed: maphash.MakeSeed(),
		tasks: map[string]*task{}, taskNamed: map[uint64]*task{}, overridden: map[*quota]bool{}, workflows: map[string]*workflow{},
	}
}

// Stats returns what the log had so far.
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

// time takes the entry's clock.
func (j *Judge) time(parsed *logpb.Entry, clock fsm.Clock) {
	if now := max(j.clock.Now, parsed.StampNs); clock.Now != now {
		j.violate("clock", "cluster time is %d, it was %d and the entry's stamp is %d", clock.Now, j.clock.Now, parsed.StampNs)
	}
	early, late := j.views(parsed, clock)
	clock.Now = max(clock.Now, j.clock.Now)
	if j.entry.resets() { // until the command is carried out
		clock.WallEarly, clock.WallLate, clock.Shift = early, late, j.clock.Shift
	}
	j.clock = clock
}

// views judges the views of Unix time. The earlier one is where the entry's sample is, or waits there until samples come up to it: it goes
// neither back nor on by itself. The later one is where the sample is, and where there is none goes on as cluster time does. It returns
// both, as they are before the entry's commands.
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
		j.violate("clock", "the earlier view of Unix time goes from %d to %d, the sample is %d", j.clock.WallEarly, clock.WallEarly, parsed.WallEarlyNs)
	}
	if clock.WallLate != late {
		j.violate("clock", "the later view of Unix time goes from %d to %d, the sample is %d", j.clock.WallLate, clock.WallLate, parsed.WallLateNs)
	}
	return early, late
}

// complete looks for what commands say and nothing came of.
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

// overdue looks for leases and waits whose time was up with this entry and that are still there, unless so much was due
// that the rest follows with the next entry.
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
