package fsm

import (
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
)

// BudgetTotals returns the totals of the shared budgets, without the accounts.
func (s *State) BudgetTotals() []accounts.View { return s.accounts.Totals(s.clock.Now) }

// Budgets returns the shared budgets and, for each, the top accounts by use. It reads all accounts, up to 65,536.
func (s *State) Budgets(top int) []accounts.View { return s.accounts.Views(top, s.clock.Now) }

// taking judges whether the present command may take more of a budget.
func (m *Machine) taking(b accounts.Budget) accounts.Verdict {
	return m.accounts.Taking(m.payer, b, m.clock.Now)
}

// takingFor judges whether an account may take more of a budget for the present command.
func (m *Machine) takingFor(number uint64, b accounts.Budget) accounts.Verdict {
	return m.accounts.TakingFor(number, b, m.payer.Operator, m.clock.Now)
}

// overBudget says that the caller has used up its part of a budget.
func (m *Machine) overBudget(b accounts.Budget, hint string) *logpb.Result {
	return m.accounts.OverBudget(b, hint)
}
