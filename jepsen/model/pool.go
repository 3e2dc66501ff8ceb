package model

import (
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// poolShares is how many items a waiting item of a pool counts as: a quota with as many ancestors as there can be.
const poolShares = 9

// members are those of a pool; nil: the quota is none, or does not exist.
func (j *Judge) members(name string) []*logpb.PoolMember {
	q := j.quotas[name]
	if q == nil {
		return nil
	}
	return q.definition.GetPool().GetMembers()
}

// drawsOn returns what one item may need: of a quota, that and its ancestors; of a pool, the pool and all that its members need, each as
// much as the one that needs most of it.
func (j *Judge) drawsOn(q *quota, asked *int64) (needs []need) {
	if q.rule.kind == poolKind {
		needs = append(needs, need{quota: q})
		for _, member := range j.members(q.name) {
			for _, n := range j.drawsOn(j.quotas[member.Quota], asked) {
				i := slices.IndexFunc(needs, func(other need) bool { return other.quota == n.quota })
				if i < 0 {
					needs = append(needs, n)
					continue
				}
				needs[i].amount, needs[i].own = max(needs[i].amount, n.amount), max(needs[i].own, n.own)
			}
		}
		return needs
	}
	amount := q.rule.estimate
	if asked != nil {
		amount = *asked
	}
	for _, each := range q.path() {
		n := need{quota: each, amount: amount}
		if each == q {
			n.own = amount
		}
		needs = append(needs, n)
	}
	return needs
}

// asked returns what a Reserve asks for: where it pins a member of pools, that member's quotas in their place.
func (j *Judge) asked(ask *logpb.Reserve) []*logpb.Item {
	if ask.Member == "" {
		return ask.Items
	}
	items := make([]*logpb.Item, len(ask.Items))
	for i, item := range ask.Items {
		items[i] = item
		for _, member := range j.members(item.Quota) {
			if member.Name == ask.Member {
				items[i] = &logpb.Item{Quota: member.Quota, Amount: item.Amount}
			}
		}
	}
	return items
}

// isMember tells whether a granted item is the member of a pool that was asked for, and the same member as the other items of its lease.
func (j *Judge) isMember(ask *logpb.Reserve, pool string, got *logpb.GrantedItem, granted *logpb.Granted) bool {
	if ask.Member != "" && got.Member != ask.Member || got.Pool != pool || got.InsteadOf != "" {
		return false
	}
	for _, other := range granted.Items {
		if other.Member != "" && other.Member != got.Member {
			return false
		}
	}
	return slices.ContainsFunc(j.members(pool), func(member *logpb.PoolMember) bool {
		return member.Name == got.Member && member.Quota == got.Quota
	})
}

// isPooled tells whether a quota is a member of a pool.
func (j *Judge) isPooled(name string) bool {
	for pool := range j.quotas {
		if slices.ContainsFunc(j.members(pool), func(member *logpb.PoolMember) bool { return member.Quota == name }) {
			return true
		}
	}
	return false
}

// freeMember returns a member of the pools that a Reserve asks for, by which it certainly could have been granted; empty: there is none, or
// these books cannot tell.
func (j *Judge) freeMember(ask *logpb.Reserve) string {
	first := slices.IndexFunc(ask.Items, func(item *logpb.Item) bool { return j.members(item.Quota) != nil })
	if first < 0 {
		return ""
	}
	for _, member := range j.members(ask.Items[first].Quota) {
		if ask.Member != "" && ask.Member != member.Name {
			continue
		}
		var items []*logpb.Item
		for _, item := range ask.Items {
			name := item.Quota
			if members := j.members(name); members != nil {
				at := slices.IndexFunc(members, func(other *logpb.PoolMember) bool { return other.Name == member.Name })
				if at < 0 {
					name = ""
				} else {
					name = members[at].Quota
				}
			}
			items = append(items, &logpb.Item{Quota: name, Amount: item.Amount})
		}
		if needs, ok := j.needs(items); ok && !slices.ContainsFunc(needs, func(n need) bool { return !j.certainlyFree(n) }) {
			return member.Name
		}
	}
	return ""
}

// certainlyFree tells whether there is enough of a quota for everybody who asks, and nothing else that these books know less well.
func (j *Judge) certainlyFree(n need) bool {
	q := n.quota
	return q.definition.GetPolicy() == nil && !j.overridden[q] && !q.cooling(j.clock.Now) && j.clock.Now >= q.others.lowered && !q.cap.is &&
		q.rule.kind != windowKind && q.rule.burst == 0 && q.waiting == 0 && n.own <= q.rule.maxHold &&
		n.amount <= q.rule.usable-q.held-q.perhaps.sum-q.keptAtMost(j.clock.Now)
}

// passesInPool judges a grant of a pool's member by those who wait for that pool alone: no member that is open had room for the first of
// them, so that all were kept for it. It cannot tell where members differ, or something else may keep a waiter back.
func (j *Judge) passesInPool(granted *logpb.Granted) {
	if slices.ContainsFunc(granted.Items, func(item *logpb.GrantedItem) bool { return item.Pool != "" }) {
		j.stats.Pooled++
	}
	if len(granted.Items) != 1 || granted.Items[0].Pool == "" {
		return
	}
	pool := j.quotas[granted.Items[0].Pool]
	if pool == nil {
		return
	}
	usable := int64(-1)
	for _, member := range j.members(pool.name) {
		q := j.quotas[member.Quota]
		if q.parent != nil || q.definition.GetPolicy() != nil || j.overridden[q] || usable >= 0 && q.rule.usable != usable ||
			q.rule.burst > 0 || q.definition.MaxHold != nil {
			return
		}
		usable = q.rule.usable
	}
	for _, l := range j.lanesOf[pool] {
		if len(l.quotas) != 1+len(j.members(pool.name)) {
			continue // for something else as well
		}
		for class := range granted.Class {
			if l.byClass[class] > 0 {
				j.violate("class-order", "lease %d of class %d for %v passes %d of class %d who wait for the pool",
					granted.Lease, granted.Class, granted.Items, l.byClass[class], class)
			}
		}
	}
}
