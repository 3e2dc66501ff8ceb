// Package model is the rules of quota a second time: plain, slow and without a line of package fsm's decisions. It does
// not predict. It is given each entry of a log and what its commands came to, keeps its own books, and says what was not
// allowed:
//
//   - fence-order: fences and lease ids grow with every grant, for ever (promise 9).
//   - ceiling: with a grant, what a quota and each of its ancestors has out and has counted is at most usable (1, 2, 5).
//   - window: what surely falls into one calendar window is at most usable (2).
//   - early-expiry, late-expiry: a lease ends by itself at its deadline, with the first entry that is due (12, 13).
//   - grace: a slot of a lease that ended by itself counts until its grace is over (14).
//   - dead-fence: a lease that has ended, or another's fence, changes nothing and is told so (10).
//   - conservation: no operation consumes more than is held, nothing more comes back than went out (1, 6, 15).
//   - once: a numbered request has one effect and one answer (24).
//   - cooldown: between a provider's word and its end nothing new is granted or consumed (37).
//   - class-order: a waiter is not passed by one of a lower class that needs as much of the same quotas (31).
//   - late-wait: a wait ends when its time is up (33).
//   - clock: cluster time never goes back.
//
// Where the state machine rounds to the safe side or the rules leave a choice, the model allows both; it is exact where
// a mistake would hurt.
package model

import (
	"cmp"
	"fmt"

	"github.com/tidwall/btree"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// Violation is something that was not allowed.
type Violation struct {
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
	Consumed     int `json:"consumed"`
	Settled      int `json:"settled"`
	Expired      int `json:"expired"`
	DeadFences   int `json:"dead_fences"`
	Repeated     int `json:"repeated"`
	Waited       int `json:"waited"`
	WaitsGranted int `json:"waits_granted"`
	Cooldowns    int `json:"cooldowns"`
	Overruns     int `json:"overruns"`
	// Most is the largest share of usable that a grant left in use, in percent, over all quotas.
	Most int64 `json:"most"`
}

// mostDue is how much of what is due the state machine carries out with one entry.
const mostDue = 1000

// Judge judges a log from its first entry on.
type Judge struct {
	quotas   map[string]*quota
	leases   map[uint64]*lease
	waiting  map[uint64]*waiter
	requests map[request]*answered
	// classes are those that the present rules give holders, where a grant showed it.
	classes map[string]int32
	// due are the deadlines of leases and the ends of waits.
	due dues

	now                  int64
	early, late          int64
	lastFence, lastLease uint64
	stats                Stats

	// The rest is of the present entry.
	index      uint64
	command    int
	touched    map[string]bool
	overran    map[string]bool
	granted    []*logpb.Granted
	violations []Violation
}

// New returns a judge of a log that begins with the cluster's birth.
func New() *Judge {
	return &Judge{
		quotas: map[string]*quota{}, leases: map[uint64]*lease{}, waiting: map[uint64]*waiter{}, requests: map[request]*answered{},
		classes: map[string]int32{}, due: newDues(),
	}
}

// Stats returns what the log had so far.
func (j *Judge) Stats() Stats { return j.stats }

func (j *Judge) violate(name, format string, args ...any) {
	j.violations = append(j.violations, Violation{Name: name, Index: j.index, Command: j.command, Detail: fmt.Sprintf(format, args...)})
}

// Entry judges one entry. Entries come in the order of their indices.
func (j *Judge) Entry(entry *logpb.Entry, applied *fsm.Applied) []Violation {
	j.index, j.command, j.violations = applied.Index, -1, nil
	j.granted = nil
	j.touched, j.overran = map[string]bool{}, map[string]bool{}
	if applied.Clock.Now < j.now {
		j.violate("clock", "cluster time goes back from %d to %d", j.now, applied.Clock.Now)
	}
	if entry.StampNs > j.now && applied.Clock.Now != entry.StampNs {
		j.violate("clock", "cluster time is %d, the entry's stamp %d", applied.Clock.Now, entry.StampNs)
	}
	j.now, j.early, j.late = applied.Clock.Now, applied.Clock.WallEarly, applied.Clock.WallLate
	j.fences(applied.Events)
	ended := j.endings(applied.Events)
	if len(entry.Commands) != len(applied.Results) {
		j.violate("once", "%d commands came to %d results", len(entry.Commands), len(applied.Results))
		return j.violations
	}
	for i, command := range entry.Commands {
		j.command = i
		j.judge(command, applied.Results[i])
	}
	j.command = -1
	j.happened(applied.Events)
	j.classOrder()
	j.bury(ended)
	j.ceilings()
	j.overdue(len(ended))
	return j.violations
}

// fences looks at the grants in the order in which they happened.
func (j *Judge) fences(events []fsm.Event) {
	for i := range events {
		event := &events[i]
		if event.Kind != fsm.EventGranted || event.Lease == j.lastLease && event.Fence == j.lastFence {
			continue // the next item of one lease
		}
		if event.Fence <= j.lastFence || event.Lease <= j.lastLease {
			j.violate("fence-order", "lease %d with fence %d comes after lease %d with fence %d", event.Lease, event.Fence, j.lastLease, j.lastFence)
		}
		j.lastFence, j.lastLease = max(j.lastFence, event.Fence), max(j.lastLease, event.Lease)
	}
}

// endings takes note of leases that ended with this entry. They stay until its commands are judged: some of those may
// have come before.
func (j *Judge) endings(events []fsm.Event) []*lease {
	var ended []*lease
	for i := range events {
		event := &events[i]
		var how string
		switch event.Kind {
		case fsm.EventExpired:
			how = "expired"
			j.stats.Expired++
		case fsm.EventReleased, fsm.EventRevoked:
			how = "given back"
		default:
			continue
		}
		l := j.leases[event.Lease]
		if l == nil { // granted and ended with one entry
			l = newLease(event.Lease, event.Fence)
			l.deadline, l.fresh = j.now, true
			j.leases[event.Lease] = l
		}
		if l.ended != "" {
			j.violate("dead-fence", "lease %d ends again, it was %s before", l.id, l.ended)
			continue
		}
		if how == "expired" && l.deadline > j.now {
			j.violate("early-expiry", "lease %d ends at %d, its deadline is %d", l.id, j.now, l.deadline)
		}
		l.ended, l.endedAt = how, j.index
		ended = append(ended, l)
	}
	return ended
}

// happened takes the grants to waiters, cooldowns and overruns from the events.
func (j *Judge) happened(events []fsm.Event) {
	for i := range events {
		event := &events[i]
		switch event.Kind {
		case fsm.EventGranted:
			if event.Ticket != 0 && event.Result != nil {
				j.grantToWaiter(event)
			}
		case fsm.EventWaitEnded:
			delete(j.waiting, event.Ticket)
		case fsm.EventCooldown:
			j.stats.Cooldowns++
			if q := j.quotas[event.Quota]; q != nil {
				q.closedUntil, q.closedAt = j.now+event.Duration, j.index
			}
		case fsm.EventOverrun:
			j.stats.Overruns++
			for _, q := range j.path(event.Quota) {
				j.overran[q.name] = true
			}
		default:
		}
	}
}

// overdue looks for leases and waits whose time was up with this entry and that are still there.
func (j *Judge) overdue(ended int) {
	if ended >= mostDue {
		return // the rest follows with the next entry
	}
	for next, ok := j.due.take(j.now); ok; next, ok = j.due.take(j.now) {
		if l := j.leases[next.lease]; l != nil && l.ended == "" && l.deadline == next.at {
			j.violate("late-expiry", "lease %d is there at %d, its deadline was %d", l.id, j.now, l.deadline)
		}
		if w := j.waiting[next.ticket]; w != nil && next.ticket != 0 {
			j.violate("late-wait", "ticket %d waits at %d, its time was up at %d", next.ticket, j.now, w.until)
		}
	}
}

// due is when something ends by itself.
type due struct {
	at            int64
	lease, ticket uint64
}

// dues are in the order of time.
type dues struct{ tree *btree.BTreeG[due] }

func newDues() dues {
	return dues{btree.NewBTreeG(func(a, b due) bool {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.lease, b.lease), cmp.Compare(a.ticket, b.ticket)) < 0
	})}
}

func (d dues) add(one due) { d.tree.Set(one) }

// take takes the first that is due at a time.
func (d dues) take(now int64) (due, bool) {
	first, ok := d.tree.Min()
	if !ok || first.at > now {
		return due{}, false
	}
	d.tree.PopMin()
	return first, true
}
