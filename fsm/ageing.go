package fsm

import "github.com/quotad/quotad/fsm/logpb"

// priority is how a Reserve stands in the order.
type priority struct {
	// class is its own: by the operator's rules, or lower as it asked. Caps and shares are this class's.
	class int32
	// rank is the class as which it counts in the order, in zones and for what is kept: its own, or the next higher one
	// when its holder has grown old without a grant.
	rank int32
}

// priorityOf returns how a Reserve stands.
func (m *Machine) priorityOf(req *logpb.Reserve, needs []need) priority {
	own, _ := m.byRules(req.Holder)
	class := classOf(own, req.Class)
	as := priority{class: class, rank: class}
	if at := m.promotesAt(req.Holder, as, needs); at != 0 && at <= m.clock.Now {
		as.rank = classStandard
	}
	return as
}

// promotesAt returns when background work of a holder counts as standard where it needs all of this; 0: never. What it needs
// of several quotas that age it, the last one says.
func (m *Machine) promotesAt(name string, as priority, needs []need) (at int64) {
	if as.rank != classBackground {
		return 0
	}
	for _, n := range needs {
		ageing := n.quota.rule.policy.ageing
		if ageing == 0 {
			continue
		}
		denied := m.statsOf(name, n.quota).denied
		if denied == 0 {
			denied = m.clock.Now
		}
		at = max(at, addSaturated(denied, ageing))
	}
	return at
}

// recordStarving notes since when a holder of background work asks in vain.
func (m *Machine) recordStarving(name string, as priority, needs []need) {
	if as.class != classBackground {
		return
	}
	for _, n := range needs {
		if n.quota.rule.policy.ageing == 0 {
			continue
		}
		m.useHolder(name) // who asks in vain is not forgotten
		if m.statsOf(name, n.quota).denied != 0 {
			continue
		}
		m.editStats(name, n.quota).denied = max(m.clock.Now, 1)
	}
}

// promote has waiters count as standard whose holders have grown old.
func (m *Machine) promote() {
	for _, old := range takeDue(m.promotions, func(d due) bool { return d.at <= m.clock.Now }) {
		w, ok := m.waiters.Get(old.id)
		if !ok {
			continue
		}
		floor := m.standardVirtualTime(w)
		m.changeWaiter(w, func(aged *waiter) { aged.rank, aged.promotedAt, aged.promoteAt = classStandard, floor, 0 })
	}
}

// standardVirtualTime returns the turn of the first standard waiter in line for what a waiter needs. Who joins at it stands behind
// those of that turn that asked before, and before those whose holders were granted more.
func (m *Machine) standardVirtualTime(w *waiter) (first uint64) {
	l, _ := m.waitSets.Get(w.waitSet)
	for _, number := range l.quotas {
		if virtualTime, waits := m.minVirtualTime(number, classStandard); waits {
			first = max(first, virtualTime)
		}
	}
	return first
}

// demote does so at once as far as an entry may, else when all commands are carried out, once for all grants of a holder.
func (m *Machine) demote(name string) {
	h, ok := m.holders.Get(name)
	switch {
	case !ok || h.waiting == 0:
	case m.bounds.walks.left == 0:
		m.toDemote.Insert(name)
	default:
		m.bounds.walks.spend(int(h.waiting))
		m.demoteNow(name)
	}
}

// demoteNow has the other background waiters of a holder, which was granted something in whatever class, count as background
// again: it is the holder that grows old, not each of what it asks for. Who waits for something else is as old as before.
func (m *Machine) demoteNow(name string) {
	var waiting []*waiter
	m.eachWaiterOf(name, func(w *waiter) bool {
		if w.class == classBackground {
			waiting = append(waiting, w)
		}
		return true
	})
	for _, w := range waiting {
		needs, _ := m.needs(w.req)
		ages := m.promotesAt(name, priority{class: w.class, rank: w.class}, needs)
		if ages == w.promoteAt && w.rank == w.class || ages != 0 && ages <= m.clock.Now {
			continue
		}
		m.promotions.Delete(due{at: w.promoteAt, id: w.ticket})
		if ages != 0 {
			m.promotions.Set(due{at: ages, id: w.ticket})
		}
		m.changeWaiter(w, func(young *waiter) { young.rank, young.promotedAt, young.promoteAt = young.class, 0, ages })
		for _, n := range needs {
			m.reordered[n.quota.number] = true
		}
	}
}
