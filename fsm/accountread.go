package fsm

import (
	"cmp"
	"slices"

	"github.com/quotad/quotad/fsm/logpb"
)

// BudgetView is something of the state that callers share, as a reader sees it.
type BudgetView struct {
	Name string
	// Capacity is all of it, of which OperatorsPart is kept for operators. Minimum is what each caller may have while there
	// is room at all.
	Capacity, OperatorsPart, Minimum, Used int64
	// Callers have some of it; AtBudget of them may not take more now.
	Callers, AtBudget int64
	// Refused is how often a caller was refused for it since this replica has its state.
	Refused int64
	// Top are those that have most of it.
	Top []BudgetUse
}

// Full tells whether nothing is left but for operators.
func (b *BudgetView) Full() bool { return b.Used >= b.Capacity-b.OperatorsPart }

// BudgetUse is what one caller has of a budget, and what it may have now.
type BudgetUse struct {
	// Caller is the account's name; a holder's is that of its address and its own, with a blank between.
	Caller     string
	Used, Most int64
}

// BudgetTotals returns what callers share, without what each of them has.
func (s *State) BudgetTotals() []BudgetView {
	views := make([]BudgetView, budgets)
	for b := range budget(budgets) {
		views[b] = BudgetView{
			Name: budgetNames[b], Capacity: s.limits.of(b), OperatorsPart: s.limits.operatorsPart(b), Minimum: s.limits.minimum(b),
			Used: s.usedOf(b), Refused: s.refusedFor[b],
		}
	}
	return views
}

// Budgets returns what callers share, and of each those who have most of it, up to some. It looks at all accounts, up to 65,536.
func (s *State) Budgets(top int) []BudgetView {
	views := s.BudgetTotals()
	s.accounts.Scan(func(_ uint64, a *account) bool {
		above := a
		if a.parent != 0 {
			above, _ = s.accounts.Get(a.parent)
		}
		for b := range budget(budgets) {
			has := a.has(b, s.clock.Now)
			if has == 0 {
				continue
			}
			views[b].Callers++
			open := views[b].Capacity - views[b].OperatorsPart
			most := s.mostOf(b, above, open)
			if a.parent != 0 {
				most = max(views[b].Minimum, most-above.has(b, s.clock.Now))
			}
			if has >= most {
				views[b].AtBudget++
			}
			if a.parent == 0 || a.name != "" {
				views[b].rank(BudgetUse{Caller: nameOf(above, a), Used: has, Most: most}, top)
			}
		}
		return true
	})
	return views
}

// rank enters a caller among those that have most, up to some.
func (b *BudgetView) rank(use BudgetUse, top int) {
	at, _ := slices.BinarySearchFunc(b.Top, use, func(a, b BudgetUse) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Caller, b.Caller))
	})
	if at < top {
		b.Top = slices.Insert(b.Top, at, use)
		b.Top = b.Top[:min(len(b.Top), top)]
	}
}

// nameOf returns how an account is shown.
func nameOf(above, a *account) string {
	switch {
	case a.name == "":
		return "others"
	case a != above:
		return above.name + " " + a.name
	}
	return a.name
}

// overBudget says that the caller has its part of a budget.
func (m *Machine) overBudget(b budget, hint string) *logpb.Result {
	m.refusedFor[b]++
	return failed(&logpb.Failure{
		Reason: logpb.Reason_REASON_CALLER_BUDGET, Message: "you have your part of the " + budgetNames[b] + " that callers share",
		Hint: hint, Budget: budgetNames[b],
	})
}

// fullFor says why something may not be taken of a budget; nil: it may.
func (m *Machine) fullFor(b budget, judged verdict, hint string) *logpb.Result {
	switch judged {
	case atBudget:
		return m.overBudget(b, hint)
	case allTaken:
		m.refusedFor[b]++
		return failed(&logpb.Failure{
			Reason: logpb.Reason_REASON_BUDGET_FULL, Message: "nothing is left of the " + budgetNames[b] + " that callers share",
			Hint: hint, Budget: budgetNames[b],
		})
	case mayTake:
	}
	return nil
}
