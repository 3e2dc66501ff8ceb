package fsm

import (
	"github.com/quotad/quotad/fsm/cow"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// quota is a named, limited resource with the amounts that count against it. Fields that every decision reads come
// first, so that they share few cache lines: with a thousand quotas, cache misses dominate a decision.
type quota struct {
	cow.Made
	number uint32
	// parent is the parent's number, 0 for none; children counts the quotas that name this one.
	parent, children uint32
	// scheduled says that it has timers; scheduledAt are their times.
	scheduled bool
	// name is its definition's.
	name       string
	definition *logpb.Quota
	// leases counts live leases with an item or an ancestor's share of it; waiting counts waiting Reserves.
	leases, waiting int64
	// cooldown is the cluster time until which the provider closed it; 0 or past: open.
	cooldown int64
	// reopened is when it began to reopen after its last cooldown. exhausted is when, by its samples, nothing will be
	// left (cluster time). 0: none.
	reopened, exhausted int64
	// override replaces its limit for a while; nil: none.
	override *override
	// servedTo is, by class, the largest virtual time of a grant.
	servedTo [ledger.Classes]uint64
	// changedIn is the last entry that changed it while it had waiters.
	changedIn   uint64
	ledger      ledger.Ledger
	rule        ledger.Rule
	scheduledAt [timerKinds]int64
	// wakeup is when to serve waiters again that were passed over (cluster time), 0: never. wakeNext says that a
	// command changed the quota since they were tried, so that the next entry serves them.
	wakeup   int64
	wakeNext bool
	// attempt counts cooldowns in a row.
	attempt int32
	// closer is the caller whose report closed it last, closedSince when that caller's present series of closings
	// began.
	closer      string
	closedSince int64
	// ramped is the amount let through while it reopens; leases up to rampLease were granted before.
	ramped    int64
	rampLease uint64
	// observed counts grants that it would have refused.
	observed int64
	// tried is when each class asked for it last; 0: never. It is recorded where there are shares, for windows
	// approximately.
	tried [ledger.Classes]int64
	// samples are the reported remainders of window sampledIn, never changed in place. stage is the stage of the
	// prediction at the last report.
	samples   []sample
	sampledIn int64
	stage     stage
	// first is the first ticket in line below critical ones, firstSince since when; 0: none, as far as wait sets were
	// examined.
	first      uint64
	firstSince int64
	// ahead counts the waiters that go before others.
	ahead ahead
	// pacer is used by a rate with shares.
	pacer pacer
	// burn is the recent grants of a rate with prediction.
	burn burn
	// providerLimit is the limit that its provider named last.
	providerLimit providerLimit
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

// numberOf returns the number of the quota with a name, 0 if there is none.
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

// get returns a quota for reading, not advanced to the present; nil if it was deleted.
func (qs *quotaTable) get(number uint32) *quota {
	if q := qs.cache.find(number, qs.generation); q != nil {
		return q
	}
	q, _ := qs.byNumber.Get(number)
	return q
}

// editNow returns a quota for update, advanced to the present; nil if it was deleted.
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

// parent returns a quota's parent for update, advanced to the present; nil if it has none.
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

// cooling reports whether a quota is closed by its provider.
func (q *quota) cooling(now int64) bool { return q.cooldown > now }

// named returns a quota by name, nil if there is none.
func (qs *quotaTable) named(name string) *quota {
	number, ok := qs.names.Get(name)
	if !ok {
		return nil
	}
	q, _ := qs.byNumber.Get(number)
	return q
}
