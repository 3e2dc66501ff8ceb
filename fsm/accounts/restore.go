package accounts

import (
	"fmt"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Enter enters an account, with its reports and no other use.
func (k *Book) Enter(encoded *logpb.SnapshotAccount, now int64) error {
	a := &Account{generation: k.generation, Number: encoded.Number, Parent: encoded.Parent, Name: encoded.Name, Minute: encoded.Minute}
	a.Used[Reports] = encoded.Reports
	_, twice := k.ByNumber.Get(a.Number)
	_, named := k.Names.Get(accountName{parent: a.Parent, name: a.Name})
	switch {
	case a.Number == 0 || a.Number > k.Last || twice || named:
		return fmt.Errorf("account %d, named %q within %d, comes twice or cannot be", a.Number, a.Name, a.Parent)
	case encoded.Reports < 0 || encoded.Reports > fixed.MaxAmount || encoded.Minute < 0 || encoded.Minute > now/fixed.Minute:
		return fmt.Errorf("account %d has %d reports in minute %d", a.Number, encoded.Reports, encoded.Minute)
	}
	if a.Parent != 0 {
		parent := k.Get(a.Parent)
		if parent == nil || parent.Parent != 0 {
			return fmt.Errorf("account %d belongs to account %d, to which none can", a.Number, a.Parent)
		}
		parent.children++
	}
	k.enterAccount(a)
	if encoded.Reports > 0 {
		k.reporters.Set(reporting{minute: a.Minute, number: a.Number})
	}
	return nil
}

// ChargeOne charges one of a budget to an account; number 0 means nobody.
func (k *Book) ChargeOne(number uint64, b Budget) error { return k.Charge(number, b, 1) }

// Charge charges an amount of a budget to an account; number 0 means nobody.
func (k *Book) Charge(number uint64, b Budget, amount int64) error {
	if number != 0 && k.Get(number) == nil {
		return fmt.Errorf("something is charged to account %d, which does not exist", number)
	}
	k.Add(number, b, amount)
	return nil
}

// Link counts the reports of the present minute, and drops empty accounts.
func (k *Book) Link(now int64) {
	k.reportMinute, k.reports = now/fixed.Minute, 0
	k.ByNumber.Scan(func(number uint64, a *Account) bool {
		if a.Parent == 0 {
			k.reports += a.has(Reports, now)
		}
		if a.empty() {
			k.emptied = append(k.emptied, number)
		}
		return true
	})
	k.DropEmptied()
}

// Verify recomputes each account's use from the charged objects, and checks the tables of accounts.
func (k *Book) Verify(eachCharge func(fn func(number uint64, b Budget, amount int64)), now int64) error {
	used := map[uint64]*Account{}
	var taken [Budgets]int64
	add := func(number uint64, b Budget, amount int64) {
		taken[b] += amount
		for number != 0 {
			if used[number] == nil {
				used[number] = &Account{}
			}
			used[number].Used[b] += amount
			a, _ := k.ByNumber.Get(number)
			if a == nil {
				return // the check below reports it
			}
			number = a.Parent
		}
	}
	eachCharge(add)
	if taken != k.Taken {
		return fmt.Errorf("of budgets %v is taken, what is charged adds up to %v", k.Taken, taken)
	}
	var reports int64
	children, reporters := map[uint64]int64{}, 0
	k.ByNumber.Scan(func(_ uint64, a *Account) bool {
		if a.Parent != 0 {
			children[a.Parent]++
		} else {
			reports += a.has(Reports, now)
		}
		if a.Used[Reports] != 0 {
			reporters++
		}
		return true
	})
	if k.ByNumber.Len() != k.Names.Len() || reporters != k.reporters.Len() || reports != k.UsedOf(Reports, now) {
		return fmt.Errorf("%d accounts, %d names of them; %d have reports, %d are listed; %d reports, counted %d",
			k.ByNumber.Len(), k.Names.Len(), reporters, k.reporters.Len(), reports, k.UsedOf(Reports, now))
	}
	var err error
	k.ByNumber.Scan(func(number uint64, a *Account) bool {
		has := used[number]
		if has == nil {
			has = &Account{}
		}
		delete(used, number)
		has.Used[Reports] = a.Used[Reports]
		err = k.verifyAccount(a, has.Used, children[number])
		return err == nil
	})
	if err == nil && len(used) > 0 {
		err = fmt.Errorf("%d accounts are charged with something and do not exist", len(used))
	}
	return err
}

// verifyAccount checks one account against the recomputed use.
func (k *Book) verifyAccount(a *Account, used [Budgets]int64, children int64) error {
	found, _ := k.Names.Get(accountName{parent: a.Parent, name: a.Name})
	parent, _ := k.ByNumber.Get(a.Parent)
	_, listed := k.reporters.Get(reporting{minute: a.Minute, number: a.Number})
	switch {
	case a.Used != used:
		return fmt.Errorf("account %d (%q) has %v, what names it adds up to %v", a.Number, a.Name, a.Used, used)
	case a.children != children:
		return fmt.Errorf("account %d (%q) has %d accounts within it, counted %d", a.Number, a.Name, children, a.children)
	case a.empty():
		return fmt.Errorf("account %d (%q) has nothing", a.Number, a.Name)
	case found.number != a.Number, a.Number > k.Last:
		return fmt.Errorf("account %d (%q within %d) is not found by name, which leads to %d", a.Number, a.Name, a.Parent, found.number)
	case a.Parent != 0 && (parent == nil || parent.Parent != 0):
		return fmt.Errorf("account %d belongs to account %d, to which none can", a.Number, a.Parent)
	case listed != (a.Used[Reports] != 0):
		return fmt.Errorf("account %d has %d reports of minute %d, listed: %t", a.Number, a.Used[Reports], a.Minute, listed)
	}
	return nil
}
