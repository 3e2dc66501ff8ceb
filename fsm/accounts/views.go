package accounts

import (
	"cmp"
	"slices"
)

// View is something of the state that callers share, as a reader sees it.
type View struct {
	// Name is the API's.
	Name string
	// Capacity is all of it, of which OperatorsPart is kept for operators. Minimum is what each caller may have while there
	// is room at all.
	Capacity, OperatorsPart, Minimum, Used int64
	// Callers have some of it; AtBudget of them may not take more now.
	Callers, AtBudget int64
	// Refused is how often a caller was refused for it since this replica has its state.
	Refused int64
	// Top are those that have most of it.
	Top []Use
}

// Full tells whether nothing is left but for operators.
func (b *View) Full() bool { return b.Used >= b.Capacity-b.OperatorsPart }

// Use is what one caller has of a budget, and what it may have now.
type Use struct {
	// Caller is the account's name; a holder's is that of its address and its own, with a blank between.
	Caller string
	// Used is what it has, Most what it may have.
	Used, Most int64
}

// Totals returns what callers share, without what each of them has.
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

// Views returns what callers share, and of each those who have most of it, up to some. It looks at all accounts, up to 65,536.
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

// rank enters a caller among those that have most, up to some.
func (b *View) rank(use Use, top int) {
	at, _ := slices.BinarySearchFunc(b.Top, use, func(a, b Use) int {
		return cmp.Or(cmp.Compare(b.Used, a.Used), cmp.Compare(a.Caller, b.Caller))
	})
	if at < top {
		b.Top = slices.Insert(b.Top, at, use)
		b.Top = b.Top[:min(len(b.Top), top)]
	}
}

// nameOf returns how an account is shown.
func nameOf(above, a *Account) string {
	switch {
	case a.Name == "":
		return "others"
	case a != above:
		return above.Name + " " + a.Name
	}
	return a.Name
}
