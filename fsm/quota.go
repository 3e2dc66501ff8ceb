package fsm

import (
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// quota is a named, limited resource and what counts against it. What every decision looks at stands first, so that it is on few
// lines of the processor's cache: with a thousand quotas that is what a decision waits for.
type quota struct {
	cow.Made
	number uint32
	// parent is the parent's number, 0 for none; children counts the quotas that name this one.
	parent, children uint32
	// scheduled says that it has timers, scheduledAt their times.
	scheduled bool
	// name is its definition's.
	name       string
	definition *logpb.Quota
	// leases counts live leases with an item or an ancestor's share of it; waiting counts waiting Reserves.
	leases, waiting int64
	// cooldown is the cluster time until which the provider closed it; 0 or past: open.
	cooldown int64
	// reopened is when it began to reopen after its last cooldown, exhausted when by its samples nothing will be left (cluster time); 0:
	// not to be seen.
	reopened, exhausted int64
	// override is a limit in place of its own; nil: none.
	override *override
	// servedTo is, by class, the largest virtual time of a grant.
	servedTo [ledger.Classes]uint64
	// changedIn is the last entry that changed it while it had waiters.
	changedIn   uint64
	ledger      ledger.Ledger
	rule        ledger.Rule
	scheduledAt [timerKinds]int64
	// wakeup is when to serve waiters again that were passed over (cluster time), 0: never; wakeNext says that a command changed the
	// quota since they were tried, so that the next entry serves them.
	wakeup   int64
	wakeNext bool
	// attempt counts cooldowns in a row.
	attempt int32
	// closer is the caller whose word closed it last, closedSince when that caller's present run of closings began.
	closer      string
	closedSince int64
	// ramped is what was let through while it reopens; what leases up to rampLease hold was granted before.
	ramped    int64
	rampLease uint64
	// observed counts grants that it would have refused.
	observed int64
	// tried is when each class asked for it last; 0: never. It is recorded where shares are, of windows about.
	tried [ledger.Classes]int64
	// samples is what the provider said was left of window sampledIn, never changed in place; stage is how far what they foresee
	// was acted upon at the last report.
	samples   []sample
	sampledIn int64
	stage     stage
	// first is the ticket that is first in line for it below critical ones, since when; 0: nobody, as far as the wait sets were looked at.
	first      uint64
	firstSince int64
	// ahead counts who waits for it before others.
	ahead ahead
	// pacer is that of a rate with shares.
	pacer pacer
	// burn is what was granted lately of a rate that is predicted.
	burn burn
	// told is the limit that its provider named last.
	told told
}

// edit returns a quota for update; nil if it was deleted.
func (qs *quotaTable) edit(number uint32) *quota {
	if q := qs.cache.find(number, qs.generation); q != nil {
		qs.markChanged(q)
		return q
	}
	q, ok := qs.byNumber.Get(number)
	if !ok {
		return nil
	}
	q, copied := cow.Edit(qs.byNumber, number, q, qs.generation)
	if copied {
		q.ledger = q.ledger.Clone()
	}
	qs.cache.keep(q)
	qs.markChanged(q)
	return q
}

// numberOf returns the number of the quota of a name, 0 where there is none.
func (qs *quotaTable) numberOf(name string) uint32 {
	if number := qs.cache.names.Number(name); number != 0 {
		return number
	}
	number, ok := qs.names.Get(name)
	if ok {
		qs.cache.names.Learn(name, number)
	}
	return number
}

// get returns a quota for reading, not brought to the present; nil if it was deleted.
func (qs *quotaTable) get(number uint32) *quota {
	if q := qs.cache.find(number, qs.generation); q != nil {
		return q
	}
	q, _ := qs.byNumber.Get(number)
	return q
}

// editNow returns a quota for update, brought to the present; nil if it was deleted.
func (qs *quotaTable) editNow(number uint32) *quota {
	q := qs.edit(number)
	if q == nil {
		return nil
	}
	available := q.ledger.Available(&q.rule)
	rolled, learned := q.ledger.Advance(&q.rule, q.rule.At(qs.clock))
	if rolled {
		qs.emit(effect.Event{Kind: effect.EventWindowClosed, Quota: q.name})
	}
	if learned {
		qs.emit(effect.Event{Kind: effect.EventResetLearned, Quota: q.name, Duration: q.ledger.CloseEnd - qs.clock.WallLate})
	}
	if q.ledger.Available(&q.rule) != available {
		qs.markDirty(q)
	}
	return q
}

// parent returns a quota's parent for update, brought to the present; nil if it has none.
func (qs *quotaTable) parent(q *quota) *quota {
	if q.parent == 0 {
		return nil
	}
	return qs.editNow(q.parent)
}

// ancestors returns a quota and its ancestors, the quota first.
func (qs *quotaTable) ancestors(q *quota) (path []*quota) {
	for ; q != nil; q = qs.parent(q) {
		path = append(path, q)
	}
	return path
}

// markDirty marks a quota whose waiters are to be served again.
func (qs *quotaTable) markDirty(q *quota) {
	if q.waiting > 0 {
		qs.dirty[q.number] = true
	}
}

// cooling tells whether a quota is closed by its provider.
func (q *quota) cooling(now int64) bool { return q.cooldown > now }

// named returns a quota by name, nil where there is none.
func (qs *quotaTable) named(name string) *quota {
	number, ok := qs.names.Get(name)
	if !ok {
		return nil
	}
	q, _ := qs.byNumber.Get(number)
	return q
}
