package fsm

import "github.com/quotad/quotad/fsm/logpb"

// standing is how a Reserve stands in the order.
type standing struct {
	// class is its own: by the operator's rules, or lower as it asked. Caps and shares are this class's.
	class int32
	// rank is the class as which it counts in the order, in zones and for what is kept: its own, or the next higher one
	// when its holder has grown old without a grant.
	rank int32
}

// standingOf returns how a Reserve stands.
func (m *Machine) standingOf(ask *logpb.Reserve, needs []need) standing {
	own, _ := m.byRules(ask.Holder)
	class := classOf(own, ask.Class)
	as := standing{class: class, rank: class}
	if at := m.agesAt(ask.Holder, as, needs); at != 0 && at <= m.clock.Now {
		as.rank = classStandard
	}
	return as
}

// agesAt returns when background work of a holder counts as standard where it needs all of this; 0: never. What it needs
// of several quotas that age it, the last one says.
func (m *Machine) agesAt(name string, as standing, needs []need) (at int64) {
	if as.rank != classBackground {
		return 0
	}
	for _, n := range needs {
		ageing := n.quota.rule.policy.ageing
		if ageing == 0 {
			continue
		}
		denied := m.tallyOf(name, n.quota).denied
		if denied == 0 {
			denied = m.clock.Now
		}
		at = max(at, addSaturated(denied, ageing))
	}
	return at
}

// noteDenied notes since when a holder of background work asks in vain.
func (m *Machine) noteDenied(name string, as standing, needs []need) {
	if as.class != classBackground {
		return
	}
	for _, n := range needs {
		if n.quota.rule.policy.ageing == 0 || m.tallyOf(name, n.quota).denied != 0 {
			continue
		}
		m.tally(name, n.quota).denied = max(m.clock.Now, 1)
	}
}

// age has waiters count as standard whose holders have grown old.
func (m *Machine) age() {
	for _, old := range takeDue(m.ages, func(d due) bool { return d.at <= m.clock.Now }) {
		if w, ok := m.waiters.Get(old.id); ok {
			m.changeWaiter(w, func(aged *waiter) { aged.rank, aged.ages = classStandard, 0 })
		}
	}
}
