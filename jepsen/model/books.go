package model

import (
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// quota is an account.
type quota struct {
	name       string
	definition *logpb.Quota
	// usable is what may be out and counted; before the present entry it may have been more.
	usable, usableBefore int64
	changedAt            uint64
	held                 int64
	charges              []*charge
	// windows are what surely falls into a calendar window, by its number.
	windows map[int64]int64
	// closedUntil and closedAt are the cooldown's end and the entry that began it.
	closedUntil int64
	closedAt    uint64
}

// charge is an amount that counts until its end and, for a rate, a period longer.
type charge struct {
	amount int64
	end    int64
	// window is the calendar window into which it surely falls; -1: none.
	window int64
}

// lease is a lease.
type lease struct {
	id, fence uint64
	holder    string
	deadline  int64
	ttl       int64
	held      map[string]int64
	ops       map[uint64]*operation
	// tentative says that its first Consume or Renew gives it its full length.
	tentative bool
	// ended says how it ended, endedAt with which entry.
	ended   string
	endedAt uint64
	// fresh says that it was granted and ended with one entry, and its grant is not judged yet.
	fresh bool
}

func newLease(id, fence uint64) *lease {
	return &lease{id: id, fence: fence, held: map[string]int64{}, ops: map[uint64]*operation{}}
}

// operation is one Consume.
type operation struct {
	items           map[string]int64
	charges         map[string][]*charge // by the item's quota: its own and those of the ancestors
	spendBy         int64
	unspent, actual bool
}

// waiter is a waiting Reserve.
type waiter struct {
	// class is -1 where it is not known; unclassed says that the request named none.
	class     int32
	unclassed bool
	quotas    string
	needs     map[string]int64
	holder    string
	until     int64
	since     uint64
}

// path is a quota and its ancestors.
func (j *Judge) path(name string) []*quota {
	var path []*quota
	for q := j.quotas[name]; q != nil && !slices.Contains(path, q); q = j.quotas[q.definition.Parent] {
		path = append(path, q)
	}
	return path
}

// define takes a quota's definition.
func (j *Judge) define(definition *logpb.Quota) {
	q := j.quotas[definition.Name]
	if q == nil {
		q = &quota{name: definition.Name, windows: map[int64]int64{}}
		j.quotas[definition.Name] = q
	}
	if q.changedAt != j.index {
		q.usableBefore, q.changedAt = q.usable, j.index
	}
	q.definition = definition
	limit := definition.GetRate().GetLimit() + definition.GetWindow().GetLimit() + definition.GetSlots().GetLimit()
	q.usable = usableOf(limit, int64(definition.HeadroomPpm))
	q.usableBefore = max(q.usableBefore, q.usable)
}

// usableOf is the limit without its headroom, rounded down.
func usableOf(limit, headroomPPM int64) int64 {
	whole, rest := limit/1_000_000, limit%1_000_000
	return whole*(1_000_000-headroomPPM) + rest*(1_000_000-headroomPPM)/1_000_000
}

// counted is what counts of a quota now, at least: exposures that ended more than a period ago do not.
func (q *quota) counted(now int64) int64 {
	cutoff := now
	if rate := q.definition.GetRate(); rate != nil {
		cutoff -= rate.PerNs
	}
	kept := q.charges[:0]
	var sum int64
	for _, c := range q.charges {
		if c.end > cutoff && c.amount > 0 {
			kept = append(kept, c)
			sum += c.amount
		}
	}
	clear(q.charges[len(kept):])
	q.charges = kept
	return sum
}

// ceilings judges the quotas of which something was granted with this entry.
func (j *Judge) ceilings() {
	for name := range j.touched {
		q := j.quotas[name]
		if q == nil || j.overran[name] || q.definition.GetWindow() != nil {
			continue
		}
		usable := q.usable
		if q.changedAt == j.index {
			usable = q.usableBefore
		}
		counted := q.counted(j.now)
		if usable > 0 {
			j.stats.Most = max(j.stats.Most, (q.held+counted)*100/usable)
		}
		if q.held+counted > usable {
			rule := "ceiling"
			if q.definition.GetSlots() != nil && counted > 0 {
				rule = "grace"
			}
			j.violate(rule, "%s has %d held and %d counted, usable are %d", name, q.held, counted, usable)
		}
	}
}

// open tells whether a quota or an ancestor was closed by an earlier entry and is still.
func (j *Judge) closed(name string) *quota {
	for _, q := range j.path(name) {
		if q.closedAt != 0 && q.closedAt < j.index && j.now < q.closedUntil {
			return q
		}
	}
	return nil
}

// hold enters what a lease holds.
func (j *Judge) hold(l *lease, items []*logpb.GrantedItem) {
	for _, item := range items {
		l.held[item.Quota] += item.Amount
		for _, q := range j.path(item.Quota) {
			q.held += item.Amount
			j.touched[q.name] = true
		}
	}
}

// drop takes from what a lease holds.
func (j *Judge) drop(l *lease, quota string, amount int64) {
	if amount > l.held[quota] {
		j.violate("conservation", "lease %d gives back or consumes %d of %s and holds %d", l.id, amount, quota, l.held[quota])
	}
	l.held[quota] -= amount
	for _, q := range j.path(quota) {
		q.held -= amount
	}
}

// bury takes what leases that ended held; slots of those that ended by themselves count until their grace is over.
func (j *Judge) bury(ended []*lease) {
	for _, l := range ended {
		for quota, amount := range l.held {
			if amount == 0 {
				continue
			}
			j.drop(l, quota, amount)
			q := j.quotas[quota]
			if q == nil {
				continue
			}
			if slots := q.definition.GetSlots(); slots != nil && l.ended == "expired" && slots.GraceNs > 0 {
				for _, each := range j.path(quota) {
					each.charges = append(each.charges, &charge{amount: amount, end: l.deadline + slots.GraceNs, window: -1})
				}
			}
		}
		clear(l.held)
	}
}
