package model

import (
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// poolShares is the number of items as which a waiting item of a pool counts: a quota with the most possible ancestors.
const poolShares = 9

// members are the members of a pool; nil: the quota is no pool, or does not exist.
func (j *Judge) members(name string) []*logpb.PoolMember {
	q := j.quotas[name]
	if q == nil {
		return nil
	}
	return q.definition.GetPool().GetMembers()
}

// drawsOn returns the most that one item may need. For a quota, it is that quota and its ancestors. For a pool, it is the pool and the
// quotas of its members, each with the largest need of any member.
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

// asked returns the items of a Reserve: if it pins a member of pools, that member's quotas instead of the pools.
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

// isMember says whether a granted item is a member of the requested pool, and the same member as the other items of its lease.
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

// isPooled says whether a quota is a member of a pool.
func (j *Judge) isPooled(name string) bool {
	for pool := range j.quotas {
		if slices.ContainsFunc(j.members(pool), func(member *logpb.PoolMember) bool { return member.Quota == name }) {
			return true
		}
	}
	return false
}

// freeMember returns a member of the requested pools that certainly had room for a Reserve; empty: none, or these books cannot tell.
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

// certainlyFree says whether a quota certainly has room, apart from anything that these books know less well.
func (j *Judge) certainlyFree(n need) bool {
	q := n.quota
	return q.definition.GetPolicy() == nil && !j.overridden[q] && !q.cooling(j.clock.Now) && j.clock.Now >= q.others.lowered && !q.cap.is &&
		q.rule.kind != windowKind && q.rule.burst == 0 && q.waiting == 0 && n.own <= q.rule.maxHold &&
		n.amount <= q.rule.usable-q.held-q.perhaps.sum-q.keptAtMost(j.clock.Now)
}

// passesInPool judges a grant of a pool's member against waiters for that pool alone: no open member had room for the first of them, so all
// were reserved for it. It does not judge pools whose members differ, or where something else may withhold the waiter's grant.
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
	for _, set := range j.waitSetsOf[pool] {
		if len(set.quotas) != 1+len(j.members(pool.name)) {
			continue // it waits for something else too
		}
		for class := range granted.Class {
			if set.byClass[class] > 0 {
				j.violate("class-order", "lease %d of class %d for %v passes %d of class %d who wait for the pool",
					granted.Lease, granted.Class, granted.Items, set.byClass[class], class)
			}
		}
	}
}
