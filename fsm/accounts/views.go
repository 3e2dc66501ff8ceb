package accounts

import (
	"cmp"
	"slices"
)

// View is a budget as a reader sees it.
type View struct {
	// Name is the API's.
	Name string
	// Capacity is the whole budget, of which OperatorsPart is kept for operators. Minimum is how much each caller may
	// have while there is room at all.
	Capacity, OperatorsPart, Minimum, Used int64
	// Callers have some of it; AtBudget of them may take no more now.
	Callers, AtBudget int64
	// Refused counts refusals of callers for it since this replica has its state.
	Refused int64
	// Top are the accounts with the largest use.
	Top []Use
}

// Full reports whether only the operators' part is left.
func (b *View) Full() bool { return b.Used >= b.Capacity-b.OperatorsPart }

// Use is one account's use of a budget, and how much it may have now.
type Use struct {
	// Caller is the account's name; for a holder, its address and its name, separated by a blank.
	Caller string
	// Used is its use, Most its present limit.
	Used, Most int64
}

// Totals returns the budgets without the accounts.
func (k *Book) Totals(now int64) []View {
	views := make([]View, Budgets)
	for b := range Budget(Budgets) {
		views[b] = View{
			Name: Names[b], Capacity: k.Limits.Of(b), OperatorsPart: k.Limits.OperatorsPart(b), Minimum: k.Limits.minimum(b),
			Used: k.UsedOf(b, now), Refused: k.Refused[b],
		}
	}
	return views
}

// Views returns the budgets and, for each, the top accounts by use. It reads all accounts, up to 65,536.
func (k *Book) Views(top int, now int64) []View {
	views := k.Totals(now)
	k.ByNumber.Scan(func(_ uint64, a *Account) bool {
		above := a
		if a.Parent != 0 {
			above, _ = k.ByNumber.Get(a.Parent)
		}
		for b := range Budget(Budgets) {
			has := a.has(b, now)
			if has == 0 {
				continue
			}
			views[b].Callers++
			open := views[b].Capacity - views[b].OperatorsPart
			most := k.mostOf(b, above, open, now)
			if a.Parent != 0 {
				most = max(views[b].Minimum, most-above.has(b, now))
			}
			if has >= most {
				views[b].AtBudget++
			}
			if a.Parent == 0 || a.Name != "" {
				views[b].rank(Use{Caller: nameOf(above, a), Used: has, Most: most}, top)
			}
		}
		return true
	})
	return views
}

// rank enters an account among the top ones.
func (b *View) rank(use Use, top int) {
	at, _ := slices.BinarySearchFunc(b.Top, use, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Caller, b.Caller))
	})
	if at < top {
		b.Top = slices.Insert(b.Top, at, use)
		b.Top = b.Top[:min(len(b.Top), top)]
	}
}

// nameOf returns the displayed name of an account.
func nameOf(above, a *Account) string {
	switch {
	case a.Name == "":
		return "others"
	case a != above:
		return above.Name + " " + a.Name
	}
	return a.Name
}
