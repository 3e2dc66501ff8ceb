package accounts_test

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// payer returns the payer of a holder's Reserve by a caller with a token.
func payer(caller string) accounts.Payer { return accounts.PayerOf(&logpb.Command{Caller: caller}) }

// atAddress returns the payer of a holder's Reserve by a caller that is known by its address only.
func atAddress(address, holder string) accounts.Payer {
	return accounts.PayerOf(&logpb.Command{
		Caller: address, PerHolder: true, Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{Holder: holder}},
	})
}

// byOperator returns a payer that may use the operators' part.
func byOperator(caller string) accounts.Payer {
	return accounts.PayerOf(&logpb.Command{Caller: caller, Operator: true})
}

// newBook returns a book with 1,600 leases, of which 100 are the operators' and each caller may have at least 8.
func newBook() *accounts.Book {
	k := accounts.New()
	k.Limits.Leases, k.Limits.OperatorsPPM, k.Limits.CallerMinPPM = 1600, 62_500, 5_000
	return &k
}

// takeAll charges a payer with leases until it may take no more, and returns how many it has taken and why it has to stop.
func takeAll(k *accounts.Book, p accounts.Payer) (taken int64, stop accounts.Verdict) {
	for stop = k.Taking(p, accounts.Leases, 0); stop == accounts.MayTake; stop = k.Taking(p, accounts.Leases, 0) {
		k.Bill(p, accounts.Leases, 1)
		taken++
	}
	return taken, stop
}

func TestTaking_LeavesHalfToOthers(t *testing.T) {
	t.Parallel()
	k := newBook()
	for i, want := range []int64{750, 375, 187, 94, 47, 23, 12, 8, 4, 0} { // half of what is left of 1,500, at least 8
		p := payer(fmt.Sprintf("token %d", i))
		wantStop := accounts.AtBudget
		if i >= 8 {
			wantStop = accounts.AllTaken
		}
		if taken, stop := takeAll(k, p); taken != want || stop != wantStop {
			t.Fatalf("caller %d took %d and stopped with %d, want %d and %d", i, taken, stop, want, wantStop)
		}
	}
	if taken, stop := takeAll(k, byOperator("operator")); taken != 50 || stop != accounts.AtBudget {
		t.Errorf("the first operator took %d of the 100 that are kept for operators and stopped with %d, want 50", taken, stop)
	}
	if stop := k.Taking(payer(""), accounts.Leases, 0); stop != accounts.MayTake {
		t.Errorf("a command that is charged to nobody: %d", stop)
	}
}

func TestTaking_HoldersShareTheirAddressesPart(t *testing.T) {
	t.Parallel()
	k := newBook()
	for i, want := range []int64{375, 188, 94, 47} { // half of what the address has left of its 750
		if taken, stop := takeAll(k, atAddress("10.0.0.1", fmt.Sprint("agent-", i))); taken != want || stop != accounts.AtBudget {
			t.Fatalf("holder %d took %d and stopped with %d, want %d", i, taken, stop, want)
		}
	}
	if taken, _ := takeAll(k, atAddress("10.0.0.2", "agent")); taken != (1500-704+1)/2/2 {
		t.Errorf("a holder at the next address took %d", taken)
	}
}

func TestOpen_BoundsAccounts(t *testing.T) {
	t.Parallel()
	k := accounts.New()
	for i := range accounts.MaxHoldersAccount {
		k.Bill(atAddress("10.0.0.1", fmt.Sprint("agent-", i)), accounts.Leases, 1)
	}
	address := k.FindAccount(0, "10.0.0.1").Number
	if got := k.Bill(atAddress("10.0.0.1", "one more"), accounts.Leases, 1); got != address {
		t.Errorf("a holder too many has account %d, want %d of its address", got, address)
	}
	for i := k.ByNumber.Len(); i < accounts.MaxAccounts; i++ {
		k.Bill(payer(fmt.Sprint("token ", i)), accounts.Leases, 1)
	}
	first, second := k.Bill(payer("one more"), accounts.Leases, 1), k.Bill(payer("and one"), accounts.Leases, 1)
	if first != second || k.Get(first).Name != "" || k.ByNumber.Len() != accounts.MaxAccounts+1 {
		t.Errorf("callers too many have accounts %d (%q) and %d of %d", first, k.Get(first).Name, second, k.ByNumber.Len())
	}
}

func TestReports_CountForOneMinute(t *testing.T) {
	t.Parallel()
	k := accounts.New()
	k.Limits.Reports, k.Limits.OperatorsPPM = 10, 0
	p := payer("token")
	for range 5 {
		if got := k.Taking(p, accounts.Reports, fixed.Minute-1); got != accounts.MayTake {
			t.Fatalf("of ten reports: %d", got)
		}
		k.CountReport(p, fixed.Minute-1)
	}
	if got := k.Taking(p, accounts.Reports, fixed.Minute-1); got != accounts.AtBudget {
		t.Errorf("the sixth of ten in the same minute: %d", got)
	}
	if got := k.Taking(p, accounts.Reports, fixed.Minute); got != accounts.MayTake {
		t.Errorf("in the next minute: %d", got)
	}
	k.ForgetReports(fixed.Minute)
	k.DropEmptied()
	if k.ByNumber.Len() != 0 {
		t.Errorf("%d accounts are left without reports", k.ByNumber.Len())
	}
}

// charge is an amount of a budget that an account is charged with.
type charge struct {
	number uint64
	budget accounts.Budget
	amount int64
}

// ledger has a book next to the plain list of all charges.
type ledger struct {
	book    accounts.Book
	charges []charge
	now     int64
}

func (l *ledger) each(fn func(number uint64, b accounts.Budget, amount int64)) {
	for _, c := range l.charges {
		fn(c.number, c.budget, c.amount)
	}
}

// restored returns a book that is read back from the records of a snapshot.
func (l *ledger) restored(t *rapid.T) *accounts.Book {
	k := accounts.New()
	k.Last, k.Limits = l.book.Last, l.book.Limits
	l.book.ByNumber.Scan(func(_ uint64, a *accounts.Account) bool {
		record := &logpb.SnapshotAccount{
			Number: a.Number, Parent: a.Parent, Name: a.Name, Minute: a.Minute, Reports: a.Used[accounts.Reports],
		}
		if err := k.Enter(record, l.now); err != nil {
			t.Fatalf("account %+v: %v", a, err)
		}
		return true
	})
	for _, c := range l.charges {
		if err := k.Charge(c.number, c.budget, c.amount); err != nil {
			t.Fatalf("charge %+v: %v", c, err)
		}
	}
	k.Link(l.now)
	return &k
}

// TestBook_AddsUp makes random charges, reports and copies. After each, every account has what the list of charges adds up to, and
// copies keep what they had; a book restored from a snapshot shows the same.
func TestBook_AddsUp(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := &ledger{book: accounts.New(), now: fixed.Minute}
		someone := func(t *rapid.T) accounts.Payer {
			if rapid.Bool().Draw(t, "by address") {
				return atAddress(rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.2"}).Draw(t, "address"),
					rapid.SampledFrom([]string{"", "a", "b", "c"}).Draw(t, "holder"))
			}
			return payer(rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, "token"))
		}
		type copied struct {
			book  accounts.Book
			views string
			now   int64
		}
		var copies []copied
		views := func(k *accounts.Book, now int64) string { return fmt.Sprintf("%+v", k.Views(5, now)) }
		t.Repeat(map[string]func(*rapid.T){
			"charge": func(t *rapid.T) {
				b := rapid.SampledFrom([]accounts.Budget{accounts.Sessions, accounts.Leases, accounts.Holders}).Draw(t, "budget")
				amount := rapid.Int64Range(1, 1000).Draw(t, "amount")
				l.charges = append(l.charges, charge{l.book.Bill(someone(t), b, amount), b, amount})
			},
			"release": func(t *rapid.T) {
				if len(l.charges) == 0 {
					t.Skip("nothing is charged")
				}
				at := rapid.IntRange(0, len(l.charges)-1).Draw(t, "charge")
				c := l.charges[at]
				l.charges = slices.Delete(l.charges, at, at+1)
				l.book.Add(c.number, c.budget, -c.amount)
			},
			"report": func(t *rapid.T) { l.book.CountReport(someone(t), l.now) },
			"wait": func(t *rapid.T) {
				l.now += rapid.Int64Range(0, fixed.Minute).Draw(t, "time")
				l.book.ForgetReports(l.now)
			},
			"copy": func(*rapid.T) {
				copies = append(copies, copied{l.book.Copy(), views(&l.book, l.now), l.now})
			},
			"restore": func(t *rapid.T) {
				if got, want := views(l.restored(t), l.now), views(&l.book, l.now); got != want {
					t.Fatalf("restored: %s, want %s", got, want)
				}
			},
			"": func(t *rapid.T) {
				l.book.DropEmptied()
				if err := l.book.Verify(l.each, l.now); err != nil {
					t.Fatal(err)
				}
				for _, c := range copies {
					if got := views(&c.book, c.now); got != c.views {
						t.Fatalf("a copy shows %s, it had %s", got, c.views)
					}
				}
			},
		})
	})
}

func TestVerify_FindsWhatDoesNotAddUp(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(k *accounts.Book, a *accounts.Account){
		"an account's use":         func(_ *accounts.Book, a *accounts.Account) { a.Used[accounts.Leases]++ },
		"the total":                func(k *accounts.Book, _ *accounts.Account) { k.Taken[accounts.Leases]++ },
		"an account without a use": func(k *accounts.Book, _ *accounts.Account) { k.Make(0, "idle") },
		"a missing name":           func(k *accounts.Book, _ *accounts.Account) { k.Names.PopMin() },
		"a missing account":        func(k *accounts.Book, a *accounts.Account) { k.ByNumber.Delete(a.Number) },
		"a parent without a place": func(_ *accounts.Book, a *accounts.Account) { a.Parent = 99 },
		"reports nobody lists":     func(_ *accounts.Book, a *accounts.Account) { a.Used[accounts.Reports] = 1 },
		"a number to come":         func(k *accounts.Book, _ *accounts.Account) { k.Last = 0 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := accounts.New()
			number := k.Bill(atAddress("10.0.0.1", "agent"), accounts.Leases, 1)
			verify := func() error {
				return k.Verify(func(fn func(uint64, accounts.Budget, int64)) { fn(number, accounts.Leases, 1) }, 0)
			}
			if err := verify(); err != nil {
				t.Fatal(err)
			}
			spoil(&k, k.Get(number))
			if verify() == nil {
				t.Error("nothing is found")
			}
		})
	}
}
