package fsm

import (
	"fmt"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// takeAccount enters an account, without what it has but for its reports.
func (m *Machine) takeAccount(encoded *logpb.SnapshotAccount) error {
	a := &account{generation: m.generation, number: encoded.Number, parent: encoded.Parent, name: encoded.Name, minute: encoded.Minute}
	a.used[budgetReports] = encoded.Reports
	_, twice := m.accounts.Get(a.number)
	_, named := m.accountNames.Get(accountName{parent: a.parent, name: a.name})
	switch {
	case a.number == 0 || a.number > m.lastAccount || twice || named:
		return fmt.Errorf("account %d, named %q within %d, comes twice or cannot be", a.number, a.name, a.parent)
	case encoded.Reports < 0 || encoded.Reports > fixed.MaxAmount || encoded.Minute < 0 || encoded.Minute > m.clock.Now/fixed.Minute:
		return fmt.Errorf("account %d has %d reports in minute %d", a.number, encoded.Reports, encoded.Minute)
	}
	if a.parent != 0 {
		parent := m.getAccount(a.parent)
		if parent == nil || parent.parent != 0 {
			return fmt.Errorf("account %d belongs to account %d, to which none can", a.number, a.parent)
		}
		parent.children++
	}
	m.enterAccount(a)
	if encoded.Reports > 0 {
		m.reporters.Set(due{at: a.minute, id: a.number})
	}
	return nil
}

// takeCharge charges an account, if any, with one more of a budget.
func (m *Machine) takeCharge(number uint64, b budget) error { return m.takeBytes(number, b, 1) }

// takeBytes charges an account, if any, with so much more of a budget.
func (m *Machine) takeBytes(number uint64, b budget, amount int64) error {
	if number != 0 && m.getAccount(number) == nil {
		return fmt.Errorf("something is charged to account %d, which does not exist", number)
	}
	m.addTo(number, b, amount)
	return nil
}

// linkAccounts counts the reports of the present minute, and drops accounts that have nothing.
func (m *Machine) linkAccounts() {
	m.reportMinute, m.reports = m.clock.Now/fixed.Minute, 0
	m.accounts.Scan(func(number uint64, a *account) bool {
		if a.parent == 0 {
			m.reports += a.has(budgetReports, m.clock.Now)
		}
		if a.empty() {
			m.emptied = append(m.emptied, number)
		}
		return true
	})
	m.dropEmptied()
}

// verifyAccounts recomputes what each account has from what names it, and looks at each account from its tables.
func (s *State) verifyAccounts() error {
	used := map[uint64]*account{}
	var taken [budgets]int64
	add := func(number uint64, b budget, amount int64) {
		taken[b] += amount
		for number != 0 {
			if used[number] == nil {
				used[number] = &account{}
			}
			used[number].used[b] += amount
			a, _ := s.accounts.Get(number)
			if a == nil {
				return // noticed below: nothing has it
			}
			number = a.parent
		}
	}
	s.eachCharge(add)
	if taken != s.taken {
		return fmt.Errorf("of budgets %v is taken, what is charged adds up to %v", s.taken, taken)
	}
	var reports int64
	children, reporters := map[uint64]int64{}, 0
	s.accounts.Scan(func(_ uint64, a *account) bool {
		if a.parent != 0 {
			children[a.parent]++
		} else {
			reports += a.has(budgetReports, s.clock.Now)
		}
		if a.used[budgetReports] != 0 {
			reporters++
		}
		return true
	})
	if s.accounts.Len() != s.accountNames.Len() || reporters != s.reporters.Len() || reports != s.usedOf(budgetReports) {
		return fmt.Errorf("%d accounts, %d names of them; %d have reports, %d are listed; %d reports, counted %d",
			s.accounts.Len(), s.accountNames.Len(), reporters, s.reporters.Len(), reports, s.usedOf(budgetReports))
	}
	var err error
	s.accounts.Scan(func(number uint64, a *account) bool {
		has := used[number]
		if has == nil {
			has = &account{}
		}
		delete(used, number)
		has.used[budgetReports] = a.used[budgetReports]
		err = s.verifyAccount(a, has.used, children[number])
		return err == nil
	})
	if err == nil && len(used) > 0 {
		err = fmt.Errorf("%d accounts are charged with something and do not exist", len(used))
	}
	return err
}

// eachCharge calls fn with each thing that an account is charged with.
func (s *State) eachCharge(fn func(number uint64, b budget, amount int64)) {
	s.sessions.Scan(func(_ uint64, c *session) bool {
		fn(c.account, budgetSessions, 1)
		return true
	})
	s.results.Scan(func(r dedupEntry) bool {
		if c := s.ownerOf(r.session); c != nil {
			fn(c.account, budgetResults, sizeOf(r.result))
		}
		return true
	})
	s.keys.Scan(func(_ string, k keyEntry) bool {
		fn(k.account, budgetKeys, 1)
		fn(k.account, budgetResults, sizeOf(k.result))
		return true
	})
	s.waiters.Scan(func(_ uint64, w *waiter) bool {
		fn(w.account, budgetWaiters, weightOf(w.shares))
		fn(w.account, budgetLeases, weightOf(w.shares))
		if w.req.Consume {
			fn(w.account, budgetOperations, recordBytes(w.shares))
		}
		return true
	})
	s.tasks.Scan(func(_ string, t *task) bool {
		fn(t.account, budgetTasks, 1)
		return true
	})
	s.leases.Scan(func(_ uint64, l *lease) bool {
		fn(l.account, budgetLeases, weightOf(len(l.items)))
		for _, o := range l.records() {
			fn(o.account, budgetOperations, o.size())
		}
		return true
	})
	s.retiring.Scan(func(_ uint64, r *retiring) bool {
		for _, o := range r.list {
			fn(o.account, budgetOperations, o.size())
		}
		return true
	})
	s.detached.Scan(func(p keptPage) bool {
		for rest := p.packed; len(rest) > 0; {
			var packed []byte
			packed, rest = cut(rest)
			o := unpack(packed)
			fn(o.account, budgetOperations, orphanBytes(o, packed))
		}
		return true
	})
	s.eachMemory(func(h *holder, bytes int64) { fn(h.account, budgetHolders, bytes) })
}

// eachMemory calls fn with each thing that is remembered of a holder, and what it takes.
func (s *State) eachMemory(fn func(h *holder, bytes int64)) {
	of := func(name string, bytes int64) {
		if h, known := s.holders.Get(name); known { // else it is noticed elsewhere
			fn(h, bytes)
		}
	}
	s.holders.Scan(func(_ string, h *holder) bool {
		fn(h, h.size())
		return true
	})
	s.stats.Scan(func(t *holderStats) bool {
		of(t.holder, statsSize)
		return true
	})
	s.meters.Scan(func(t *meter) bool {
		of(t.holder, t.size())
		return true
	})
}

// verifyAccount checks one account against what names it.
func (s *State) verifyAccount(a *account, used [budgets]int64, children int64) error {
	found, _ := s.accountNames.Get(accountName{parent: a.parent, name: a.name})
	parent, _ := s.accounts.Get(a.parent)
	_, listed := s.reporters.Get(due{at: a.minute, id: a.number})
	switch {
	case a.used != used:
		return fmt.Errorf("account %d (%q) has %v, what names it adds up to %v", a.number, a.name, a.used, used)
	case a.children != children:
		return fmt.Errorf("account %d (%q) has %d accounts within it, counted %d", a.number, a.name, children, a.children)
	case a.empty():
		return fmt.Errorf("account %d (%q) has nothing", a.number, a.name)
	case found.number != a.number, a.number > s.lastAccount:
		return fmt.Errorf("account %d (%q within %d) is not found by name, which leads to %d", a.number, a.name, a.parent, found.number)
	case a.parent != 0 && (parent == nil || parent.parent != 0):
		return fmt.Errorf("account %d belongs to account %d, to which none can", a.number, a.parent)
	case listed != (a.used[budgetReports] != 0):
		return fmt.Errorf("account %d has %d reports of minute %d, listed: %t", a.number, a.used[budgetReports], a.minute, listed)
	}
	return nil
}
