package fsm

import (
	"cmp"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// budget is something of the state that callers share, and of which each has a part.
type budget int

// The budgets.
const (
	budgetSessions budget = 0
	budgetKeys     budget = 1
	budgetResults  budget = 2
	budgetWaiters  budget = 3
	budgetTasks    budget = 4
	// budgetLeases counts live leases, and waiting Reserves as the leases that they may become: so no grant to a waiter is
	// ever over a budget. Each four items count as one lease.
	budgetLeases budget = 5
	// budgetReports counts the reports of the present minute of cluster time.
	budgetReports budget = 6
	// budgetHolders counts the bytes remembered of holders: their virtual times, stats and meters.
	budgetHolders budget = 7
	// budgetOperations counts the bytes of records of operations, of leases that live and of those that have ended.
	budgetOperations budget = 8
)

// budgets is how many there are.
const budgets = 9

// budgetNames are the API's.
var budgetNames = [budgets]string{
	"sessions", "keys", "result_bytes", "waiters", "tasks", "leases", "reports", "holder_bytes", "operation_bytes",
}

// Bounds of accounts. Names of holders cost nothing to make up, and neither do addresses to some: those who come when there
// are too many accounts share one.
const (
	maxAccounts       = 1 << 16
	maxHoldersAccount = 1 << 10
	millionth         = 1_000_000
)

// What budgets are at first, where that is not said elsewhere. All of them together take about 1.6 GB: a lease takes up to 460
// bytes, a waiting Reserve 850. A sixteenth is kept for operators; a thousandth is what a caller may have of what is
// nearly full.
const (
	defaultMaxKeys      = 100_000
	defaultMaxLeases    = 500_000
	defaultMaxReports   = 1_200_000
	defaultMaxHolders   = 128 << 20
	defaultMaxRecords   = 256 << 20
	defaultOperatorsPPM = 62_500
	defaultCallerMinPPM = 1_000

	maxOperatorsPPM = 500_000
	maxCallerMinPPM = 100_000
)

// account is what one caller has of each budget. Callers that are known by an address only share the address's account, and
// each of their holders has one of its own within it. An account that has nothing is dropped.
type account struct {
	generation uint64
	number     uint64
	// parent is the account of the address, of which this is one of a holder's; 0: it is one itself, or a token's.
	parent uint64
	// name is the caller's, or the holder's.
	name string
	// children counts the accounts within this one. What they have, this one has.
	children int64
	used     [budgets]int64
	// minute is that in which it reported as often as used says.
	minute int64
}

// accountName leads to an account.
type accountName struct {
	parent uint64
	name   string
	number uint64
}

func lessAccountName(a, b accountName) bool {
	return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.name, b.name)) < 0
}

// itemsOfOne is how many items, the shares of ancestors included, count as one lease, or one waiting Reserve.
const itemsOfOne = 4

// weightOf returns as how many a lease or a waiting Reserve of some items counts.
func weightOf(items int) int64 { return int64(items+itemsOfOne-1) / itemsOfOne }

// empty tells whether nothing keeps an account.
func (a *account) empty() bool { return a.children == 0 && a.used == [budgets]int64{} }

// has returns what an account, if it exists, has of a budget at a moment.
func (a *account) has(b budget, now int64) int64 {
	if a == nil || b == budgetReports && a.minute != now/fixed.Minute {
		return 0
	}
	return a.used[b]
}

// payer is whom a command is charged to.
type payer struct {
	// caller is the account's name; empty: nobody's.
	caller string
	// holder has an account of its own within a caller's that is perHolder; empty: it is not known.
	holder    string
	perHolder bool
	operator  bool
}

// payerOf returns whom a command is charged to.
func payerOf(command *logpb.Command) payer {
	p := payer{caller: command.Caller, perHolder: command.PerHolder, operator: command.Operator}
	if p.perHolder {
		switch kind := command.Kind.(type) {
		case *logpb.Command_Reserve:
			p.holder = kind.Reserve.GetHolder()
		case *logpb.Command_OpenSession:
			p.holder = kind.OpenSession.GetHolder()
		case *logpb.Command_BeginTask:
			p.holder = kind.BeginTask.GetHolder()
		}
	}
	return p
}

// of returns all of a budget.
func (l *limits) of(b budget) int64 {
	return [budgets]int64{
		l.sessions, l.keys, l.resultBytes, l.waiters, l.tasks, l.leases, l.reports, l.holderBytes, l.operationBytes,
	}[b]
}

// operatorsPart returns what of a budget is kept for operators.
func (l *limits) operatorsPart(b budget) int64 {
	return fixed.MulDivFloor(l.of(b), l.operatorsPPM, millionth)
}

// minimum returns what of a budget each caller may have while there is room at all.
func (l *limits) minimum(b budget) int64 {
	return max(1, fixed.MulDivFloor(l.of(b), l.callerMinPPM, millionth))
}

// usedOf returns what all have of a budget.
func (s *State) usedOf(b budget) int64 {
	if b != budgetReports {
		return s.taken[b]
	}
	if s.reportMinute == s.clock.Now/fixed.Minute {
		return s.reports
	}
	return 0
}

// verdict says whether something may be taken from a budget.
type verdict int

const (
	mayTake verdict = 0
	// atBudget: the caller has its part.
	atBudget verdict = 1
	// allTaken: all have theirs, and there is none left but for operators.
	allTaken verdict = 2
)

// judgeTaking judges whether more of a budget may be taken by whom an account belongs to, within that of its address (both
// nil: nothing is charged to anybody yet). A caller may have at most half of what the others leave, and each holder at an
// address half of what is left of that: so there is room for everybody who comes, and whoever is alone gets much. What is
// there already stays, also where others have come since.
func (s *State) judgeTaking(b budget, top, own *account, operator bool) verdict {
	open, least, used := s.limits.of(b), s.limits.minimum(b), s.usedOf(b)
	if !operator {
		open -= s.limits.operatorsPart(b)
	}
	most := s.mostOf(b, top, open)
	had := top.has(b, s.clock.Now)
	switch {
	case had >= most, own != top && own.has(b, s.clock.Now) >= max(least, most-had):
		return atBudget
	case used >= open:
		return allTaken
	}
	return mayTake
}

// mostOf returns what an account that belongs to no other may have of the open part of a budget.
func (s *State) mostOf(b budget, top *account, open int64) int64 {
	others := s.usedOf(b) - top.has(b, s.clock.Now)
	return max(s.limits.minimum(b), (open-others)/2)
}

// taking judges whether the present command may take more of a budget.
func (m *Machine) taking(b budget) verdict {
	if m.payer.caller == "" {
		return m.takingUncharged(b)
	}
	top, own := m.accountsOf(m.payer)
	return m.judgeTaking(b, top, own, m.payer.operator)
}

// takingFor judges whether an account may take more of a budget, on the word of the present command.
func (m *Machine) takingFor(number uint64, b budget) verdict {
	own := m.getAccount(number)
	if own == nil {
		return m.takingUncharged(b)
	}
	top := own
	if own.parent != 0 {
		top = m.getAccount(own.parent)
	}
	return m.judgeTaking(b, top, own, m.payer.operator)
}

// hasLessThan tells whether an account has less than a part of what it may have of a budget: half of it, a third, and so on.
func (m *Machine) hasLessThan(part int64, number uint64, b budget) bool {
	own := m.getAccount(number)
	if own == nil {
		return m.usedOf(b) < m.limits.of(b)/part
	}
	top := own
	if own.parent != 0 {
		top = m.getAccount(own.parent)
	}
	open := m.limits.of(b) - m.limits.operatorsPart(b)
	return top.used[b] < m.mostOf(b, top, open)/part && m.usedOf(b) < open
}

// takingUncharged judges whether nobody's command may take more of a budget.
func (m *Machine) takingUncharged(b budget) verdict {
	if m.usedOf(b) >= m.limits.of(b) {
		return allTaken
	}
	return mayTake
}

// accountsOf returns the account of a payer and, where it is a holder's, that of its address; nil for what does not exist.
func (m *Machine) accountsOf(p payer) (top, own *account) {
	top = m.findAccount(0, p.caller)
	if top == nil && m.accounts.Len() >= maxAccounts {
		top = m.findAccount(0, "")
	}
	if top == nil || !p.perHolder || p.holder == "" {
		return top, top
	}
	own = m.findAccount(top.number, p.holder)
	if own == nil && m.noMoreHolders(top) {
		return top, top
	}
	return top, own
}

// noMoreHolders tells whether further holders at an address are charged to the address alone.
func (m *Machine) noMoreHolders(top *account) bool {
	return top.children >= maxHoldersAccount || m.accounts.Len() >= maxAccounts
}

// bill charges the present command's payer with some of a budget, and returns the account's number; 0: it was charged to
// nobody.
func (m *Machine) bill(b budget, amount int64) uint64 {
	number := m.openAccount(m.payer)
	m.addTo(number, b, amount)
	return number
}

// openAccount returns the number of a payer's account, which it makes where there is none.
func (m *Machine) openAccount(p payer) uint64 {
	if p.caller == "" {
		return 0
	}
	top, own := m.accountsOf(p)
	if top == nil {
		name := p.caller
		if m.accounts.Len() >= maxAccounts {
			name = ""
		}
		top = m.newAccount(0, name)
		own = top
		if p.perHolder && p.holder != "" && !m.noMoreHolders(top) {
			own = nil
		}
	}
	if own == nil {
		own = m.newAccount(top.number, p.holder)
		m.editAccount(top.number).children++
	}
	return own.number
}

func (m *Machine) newAccount(parent uint64, name string) *account {
	m.lastAccount++
	a := &account{generation: m.generation, number: m.lastAccount, parent: parent, name: name}
	m.enterAccount(a)
	return a
}

func (m *Machine) enterAccount(a *account) {
	m.accounts.Set(a.number, a)
	m.accountNames.Set(accountName{parent: a.parent, name: a.name, number: a.number})
	m.cache.keepAccount(a)
}

// addTo adds to what is taken of a budget, and to what an account, if any, and the one that it belongs to, has of it.
func (m *Machine) addTo(number uint64, b budget, amount int64) {
	m.taken[b] += amount
	for number != 0 {
		a := m.editAccount(number)
		a.used[b] += amount
		if amount < 0 && a.empty() {
			m.emptied = append(m.emptied, number)
		}
		number = a.parent
	}
}

// countReport charges the present command's payer with a report.
func (m *Machine) countReport() {
	number, present := m.openAccount(m.payer), m.clock.Now/fixed.Minute
	if number == 0 {
		return
	}
	if m.reportMinute != present {
		m.reportMinute, m.reports = present, 0
	}
	m.reports++
	for number != 0 {
		a := m.editAccount(number)
		if a.minute != present || a.used[budgetReports] == 0 {
			m.reporters.Delete(due{at: a.minute, id: number})
			a.minute, a.used[budgetReports] = present, 0
			m.reporters.Set(due{at: present, id: number})
		}
		a.used[budgetReports]++
		number = a.parent
	}
}

// forgetReports forgets the reports of minutes that are over.
func (m *Machine) forgetReports() {
	for _, old := range takeDue(m.reporters, func(d due) bool { return d.at < m.clock.Now/fixed.Minute }) {
		a := m.editAccount(old.id)
		a.minute, a.used[budgetReports] = 0, 0
		if a.empty() {
			m.emptied = append(m.emptied, old.id)
		}
	}
}

// dropEmptied drops the accounts that have nothing any more. While a command is carried out none is dropped: what it takes
// from an account it may give back to it.
func (m *Machine) dropEmptied() {
	for len(m.emptied) > 0 {
		number := m.emptied[len(m.emptied)-1]
		m.emptied = m.emptied[:len(m.emptied)-1]
		a := m.getAccount(number)
		if a == nil || !a.empty() {
			continue
		}
		m.accounts.Delete(number)
		m.accountNames.Delete(accountName{parent: a.parent, name: a.name})
		m.cache.forgetAccount(number)
		if a.parent == 0 {
			continue
		}
		parent := m.editAccount(a.parent)
		if parent.children--; parent.empty() {
			m.emptied = append(m.emptied, parent.number)
		}
	}
}

// findAccount returns an account by name, nil where there is none.
func (m *Machine) findAccount(parent uint64, name string) *account {
	cached := m.cache.accountName(parent, name)
	if cached.parent == parent && cached.name == name && cached.number != 0 {
		if a := m.getAccount(cached.number); a != nil {
			return a
		}
	}
	found, ok := m.accountNames.Get(accountName{parent: parent, name: name})
	if !ok {
		return nil
	}
	*cached = found
	return m.getAccount(found.number)
}

// getAccount returns an account, nil where there is none. It must not be changed.
func (m *Machine) getAccount(number uint64) *account {
	if a := m.cache.account(number); a != nil {
		return a
	}
	a, _ := m.accounts.Get(number)
	return a
}

// editAccount returns an account, which must exist, that may be changed.
func (m *Machine) editAccount(number uint64) *account {
	a := m.getAccount(number)
	if a.generation != m.generation {
		c := *a
		c.generation = m.generation
		a = &c
		m.accounts.Set(number, a)
	}
	m.cache.keepAccount(a)
	return a
}
