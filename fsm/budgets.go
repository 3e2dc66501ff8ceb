package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
)

// BudgetTotals returns what callers share, without what each of them has.
func (s *State) BudgetTotals() []accounts.View { return s.accounts.Totals(s.clock.Now) }

// Budgets returns what callers share, and of each those who have most of it, up to some. It looks at all accounts, up to 65,536.
func (s *State) Budgets(top int) []accounts.View { return s.accounts.Views(top, s.clock.Now) }

// taking judges whether the present command may take more of a budget.
func (m *Machine) taking(b accounts.Budget) accounts.Verdict {
	return m.accounts.Taking(m.payer, b, m.clock.Now)
}

// takingFor judges whether an account may take more of a budget, on the word of the present command.
func (m *Machine) takingFor(number uint64, b accounts.Budget) accounts.Verdict {
	return m.accounts.TakingFor(number, b, m.payer.Operator, m.clock.Now)
}

// overBudget says that the caller has its part of a budget.
func (m *Machine) overBudget(b accounts.Budget, hint string) *logpb.Result {
	return m.accounts.OverBudget(b, hint)
}
