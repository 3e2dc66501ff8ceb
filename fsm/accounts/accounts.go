package accounts

import (
	"cmp"

	"github.com/tidwall/btree"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Budget is something of the state that callers share, and of which each has a part.
type Budget int

// The budgets.
const (
	Sessions Budget = 0
	Keys     Budget = 1
	Results  Budget = 2
	Waiters  Budget = 3
	Tasks    Budget = 4
	// Leases counts live leases, and waiting Reserves as the leases that they may become: so no grant to a waiter is
	// ever over a budget. Each four items count as one lease.
	Leases Budget = 5
	// Reports counts the reports of the present minute of cluster time.
	Reports Budget = 6
	// Holders counts the bytes remembered of holders: their virtual times, stats and meters.
	Holders Budget = 7
	// Operations counts the bytes of records of operations, of leases that live and of those that have ended.
	Operations Budget = 8
)

// Budgets is how many there are.
const Budgets = 9

// Names are the API's.
var Names = [Budgets]string{
	"sessions", "keys", "result_bytes", "waiters", "tasks", "leases", "reports", "holder_bytes", "operation_bytes",
}

// Bounds of accounts. Names of holders cost nothing to make up, and neither do addresses to some: those who come when there
// are too many accounts share one.
const (
	MaxAccounts       = 1 << 16
	MaxHoldersAccount = 1 << 10
)

// What budgets are at first, where that is not said elsewhere. All of them together take about 1.6 GB: a lease takes up to 460
// bytes, a waiting Reserve 850. A sixteenth is kept for operators; a thousandth is what a caller may have of what is
// nearly full.
const (
	DefaultMaxKeys      = 100_000
	DefaultMaxLeases    = 500_000
	DefaultMaxReports   = 1_200_000
	DefaultMaxHolders   = 128 << 20
	DefaultMaxRecords   = 256 << 20
	DefaultMaxTasks     = 100_000
	DefaultTaskLife     = 7 * fixed.Day
	DefaultOperatorsPPM = 62_500
	DefaultCallerMinPPM = 1_000

	MaxOperatorsPPM = 500_000
	MaxCallerMinPPM = 100_000
)

// What callers share of each node, at first and at least and at most. At the least an operator still finds a call and a connection next to
// callers that have their parts.
const (
	DefaultMaxCalls       = 24_000
	DefaultMaxStreams     = 4096
	DefaultMaxConnections = 10_000

	MinCalls       = 64
	MinStreams     = 16
	MinConnections = 64

	MaxOfNode = 1_000_000
)

// Limits are the bounds that are part of the state's meaning: what there is of each budget, and how long in nanoseconds what is idle is
// kept.
type Limits struct {
	// SessionIdle, KeyLife and TaskLife are times, the others are budgets.
	Sessions, ResultBytes, SessionIdle, KeyLife, Waiters, Tasks, TaskLife int64
	// HolderBytes and OperationBytes are budgets in bytes.
	Keys, Leases, Reports, HolderBytes, OperationBytes int64
	// OperatorsPPM is the part of each budget that is kept for operators, callerMinPPM what each caller may have of it.
	OperatorsPPM, CallerMinPPM int64
	// Calls in flight, Streams and Connections are what callers share of each node. The state keeps them and charges nobody with them.
	Calls, Streams, Connections int64
}

// defaultLimits returns those of a cluster that was never told others.
func defaultLimits() Limits {
	return Limits{
		Sessions: 262_144, ResultBytes: 256 << 20, SessionIdle: fixed.Hour, KeyLife: fixed.Day, Waiters: 200_000,
		Tasks: DefaultMaxTasks, TaskLife: DefaultTaskLife, Keys: DefaultMaxKeys, Leases: DefaultMaxLeases,
		Reports: DefaultMaxReports, HolderBytes: DefaultMaxHolders, OperationBytes: DefaultMaxRecords,
		OperatorsPPM: DefaultOperatorsPPM, CallerMinPPM: DefaultCallerMinPPM,
		Calls: DefaultMaxCalls, Streams: DefaultMaxStreams, Connections: DefaultMaxConnections,
	}
}

// Account is what one caller has of each budget. Callers that are known by an address only share the address's account, and
// each of their holders has one of its own within it. An account that has nothing is dropped.
type Account struct {
	generation uint64
	// Number is what other tables name it by.
	Number uint64
	// Parent is the account of the address, of which this is one of a holder's; 0: it is one itself, or a token's.
	Parent uint64
	// Name is the caller's, or the holder's.
	Name string
	// children counts the accounts within this one. What they have, this one has.
	children int64
	// Used is what it has of each budget.
	Used [Budgets]int64
	// Minute is that in which it reported as often as used says.
	Minute int64
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

// WeightOf returns as how many a lease or a waiting Reserve of some items counts.
func WeightOf(items int) int64 { return int64(items+itemsOfOne-1) / itemsOfOne }

// empty tells whether nothing keeps an account.
func (a *Account) empty() bool { return a.children == 0 && a.Used == [Budgets]int64{} }

// has returns what an account, if it exists, has of a budget at a moment.
func (a *Account) has(b Budget, now int64) int64 {
	if a == nil || b == Reports && a.Minute != now/fixed.Minute {
		return 0
	}
	return a.Used[b]
}

// Book is who has how much of each budget. It is copy-on-write: an account of an older generation may be shared with a copy.
type Book struct {
	// generation rises with each copy.
	generation uint64
	// Last is the number of the newest account.
	Last uint64
	// Limits are the cluster's.
	Limits Limits
	// ByNumber has all accounts; Names leads to them.
	ByNumber *btree.Map[uint64, *Account]
	Names    *btree.BTreeG[accountName]
	// Taken is what all have of each budget, charged to an account or to nobody, but for reports.
	Taken [Budgets]int64
	// reporters are the accounts that have reports, by the minute; reports counts those of all in reportMinute.
	reporters             *btree.BTreeG[reporting]
	reportMinute, reports int64
	// Refused counts refusals for budgets since this replica has its state. It decides nothing, and is in no snapshot.
	Refused [Budgets]int64
	// emptied are accounts that may have nothing any more.
	emptied []uint64
	cache   *cache
}

// reporting says that an account has reports of a minute.
type reporting struct {
	minute int64
	number uint64
}

func lessReporting(a, b reporting) bool {
	return a.minute < b.minute || a.minute == b.minute && a.number < b.number
}

// New returns a book without accounts.
func New() Book {
	tree := btree.Options{NoLocks: true}
	return Book{
		generation: 1, Limits: defaultLimits(), ByNumber: new(btree.Map[uint64, *Account]),
		Names:     btree.NewBTreeGOptions(lessAccountName, tree),
		reporters: btree.NewBTreeGOptions(lessReporting, tree),
		cache:     new(cache),
	}
}

// Copy returns a book for reading, which shares everything until this one changes.
func (k *Book) Copy() Book {
	k.generation++
	c := *k
	c.ByNumber, c.Names, c.reporters, c.cache, c.emptied = k.ByNumber.Copy(), k.Names.Copy(), k.reporters.Copy(), nil, nil
	return c
}

// Payer is whom a command is charged to.
type Payer struct {
	// Caller is the account's name; empty: nobody's.
	Caller string
	// Holder has an account of its own within a caller's that is perHolder; empty: it is not known.
	Holder    string
	perHolder bool
	// Operator: what is kept for operators may be taken.
	Operator bool
}

// PayerOf returns whom a command is charged to.
func PayerOf(command *logpb.Command) Payer {
	p := Payer{Caller: command.Caller, perHolder: command.PerHolder, Operator: command.Operator}
	if p.perHolder {
		switch kind := command.Kind.(type) {
		case *logpb.Command_Reserve:
			p.Holder = kind.Reserve.GetHolder()
		case *logpb.Command_OpenSession:
			p.Holder = kind.OpenSession.GetHolder()
		case *logpb.Command_BeginTask:
			p.Holder = kind.BeginTask.GetHolder()
		}
	}
	return p
}

// Of returns all of a budget.
func (l *Limits) Of(b Budget) int64 {
	return [Budgets]int64{
		l.Sessions, l.Keys, l.ResultBytes, l.Waiters, l.Tasks, l.Leases, l.Reports, l.HolderBytes, l.OperationBytes,
	}[b]
}

// OperatorsPart returns what of a budget is kept for operators.
func (l *Limits) OperatorsPart(b Budget) int64 {
	return fixed.MulDivFloor(l.Of(b), l.OperatorsPPM, fixed.Million)
}

// minimum returns what of a budget each caller may have while there is room at all.
func (l *Limits) minimum(b Budget) int64 {
	return max(1, fixed.MulDivFloor(l.Of(b), l.CallerMinPPM, fixed.Million))
}

// UsedOf returns what all have of a budget.
func (k *Book) UsedOf(b Budget, now int64) int64 {
	if b != Reports {
		return k.Taken[b]
	}
	if k.reportMinute == now/fixed.Minute {
		return k.reports
	}
	return 0
}

// Verdict says whether something may be taken from a budget.
type Verdict int

// The verdicts.
const (
	// MayTake: it may.
	MayTake Verdict = 0
	// AtBudget: the caller has its part.
	AtBudget Verdict = 1
	// AllTaken: all have theirs, and there is none left but for operators.
	AllTaken Verdict = 2
)

// judgeTaking judges whether more of a budget may be taken by whom an account belongs to, within that of its address (both
// nil: nothing is charged to anybody yet). A caller may have at most half of what the others leave, and each holder at an
// address half of what is left of that. So a new caller always finds room, and a caller that is alone may use half of the
// budget. Nothing that was granted is taken back when others come.
func (k *Book) judgeTaking(b Budget, top, own *Account, operator bool, now int64) Verdict {
	open, least, used := k.Limits.Of(b), k.Limits.minimum(b), k.UsedOf(b, now)
	if !operator {
		open -= k.Limits.OperatorsPart(b)
	}
	most := k.mostOf(b, top, open, now)
	had := top.has(b, now)
	switch {
	case had >= most, own != top && own.has(b, now) >= max(least, most-had):
		return AtBudget
	case used >= open:
		return AllTaken
	}
	return MayTake
}

// mostOf returns what an account that belongs to no other may have of the open part of a budget.
func (k *Book) mostOf(b Budget, top *Account, open, now int64) int64 {
	others := k.UsedOf(b, now) - top.has(b, now)
	return max(k.Limits.minimum(b), (open-others)/2)
}

// Taking judges whether a payer may take more of a budget.
func (k *Book) Taking(p Payer, b Budget, now int64) Verdict {
	if p.Caller == "" {
		return k.takingUncharged(b, now)
	}
	top, own := k.accountsOf(p)
	return k.judgeTaking(b, top, own, p.Operator, now)
}

// TakingFor judges whether an account may take more of a budget, on the word of an operator or of anybody.
func (k *Book) TakingFor(number uint64, b Budget, operator bool, now int64) Verdict {
	own := k.Get(number)
	if own == nil {
		return k.takingUncharged(b, now)
	}
	top := own
	if own.Parent != 0 {
		top = k.Get(own.Parent)
	}
	return k.judgeTaking(b, top, own, operator, now)
}

// HasLessThan tells whether an account has less than a part of what it may have of a budget: half of it, a third, and so on.
func (k *Book) HasLessThan(part int64, number uint64, b Budget, now int64) bool {
	own := k.Get(number)
	if own == nil {
		return k.UsedOf(b, now) < k.Limits.Of(b)/part
	}
	top := own
	if own.Parent != 0 {
		top = k.Get(own.Parent)
	}
	open := k.Limits.Of(b) - k.Limits.OperatorsPart(b)
	return top.Used[b] < k.mostOf(b, top, open, now)/part && k.UsedOf(b, now) < open
}

// takingUncharged judges whether nobody's command may take more of a budget.
func (k *Book) takingUncharged(b Budget, now int64) Verdict {
	if k.UsedOf(b, now) >= k.Limits.Of(b) {
		return AllTaken
	}
	return MayTake
}

// accountsOf returns the account of a payer and, where it is a holder's, that of its address; nil for what does not exist.
func (k *Book) accountsOf(p Payer) (top, own *Account) {
	top = k.FindAccount(0, p.Caller)
	if top == nil && k.ByNumber.Len() >= MaxAccounts {
		top = k.FindAccount(0, "")
	}
	if top == nil || !p.perHolder || p.Holder == "" {
		return top, top
	}
	own = k.FindAccount(top.Number, p.Holder)
	if own == nil && k.noMoreHolders(top) {
		return top, top
	}
	return top, own
}

// noMoreHolders tells whether further holders at an address are charged to the address alone.
func (k *Book) noMoreHolders(top *Account) bool {
	return top.children >= MaxHoldersAccount || k.ByNumber.Len() >= MaxAccounts
}

// Bill charges a payer with some of a budget, and returns the account's number; 0: it was charged to
// nobody.
func (k *Book) Bill(p Payer, b Budget, amount int64) uint64 {
	number := k.Open(p)
	k.Add(number, b, amount)
	return number
}

// Open returns the number of a payer's account, which it makes where there is none.
func (k *Book) Open(p Payer) uint64 {
	if p.Caller == "" {
		return 0
	}
	top, own := k.accountsOf(p)
	if top == nil {
		name := p.Caller
		if k.ByNumber.Len() >= MaxAccounts {
			name = ""
		}
		top = k.Make(0, name)
		own = top
		if p.perHolder && p.Holder != "" && !k.noMoreHolders(top) {
			own = nil
		}
	}
	if own == nil {
		own = k.Make(top.Number, p.Holder)
		k.editAccount(top.Number).children++
	}
	return own.Number
}

// Make makes an account that has nothing yet.
func (k *Book) Make(parent uint64, name string) *Account {
	k.Last++
	a := &Account{generation: k.generation, Number: k.Last, Parent: parent, Name: name}
	k.enterAccount(a)
	return a
}

func (k *Book) enterAccount(a *Account) {
	k.ByNumber.Set(a.Number, a)
	k.Names.Set(accountName{parent: a.Parent, name: a.Name, number: a.Number})
	k.cache.keep(a)
}

// Add adds to what is taken of a budget, and to what an account, if any, and the one that it belongs to, has of it.
func (k *Book) Add(number uint64, b Budget, amount int64) {
	k.Taken[b] += amount
	for number != 0 {
		a := k.editAccount(number)
		a.Used[b] += amount
		if amount < 0 && a.empty() {
			k.emptied = append(k.emptied, number)
		}
		number = a.Parent
	}
}

// CountReport charges a payer with a report.
func (k *Book) CountReport(p Payer, now int64) {
	number, present := k.Open(p), now/fixed.Minute
	if number == 0 {
		return
	}
	if k.reportMinute != present {
		k.reportMinute, k.reports = present, 0
	}
	k.reports++
	for number != 0 {
		a := k.editAccount(number)
		if a.Minute != present || a.Used[Reports] == 0 {
			k.reporters.Delete(reporting{minute: a.Minute, number: number})
			a.Minute, a.Used[Reports] = present, 0
			k.reporters.Set(reporting{minute: present, number: number})
		}
		a.Used[Reports]++
		number = a.Parent
	}
}

// ForgetReports forgets the reports of minutes that are over.
func (k *Book) ForgetReports(now int64) {
	for {
		old, ok := k.reporters.Min()
		if !ok || old.minute >= now/fixed.Minute {
			return
		}
		k.reporters.Delete(old)
		a := k.editAccount(old.number)
		a.Minute, a.Used[Reports] = 0, 0
		if a.empty() {
			k.emptied = append(k.emptied, old.number)
		}
	}
}

// DropEmptied drops the accounts that have nothing any more. While a command is carried out none is dropped: what it takes
// from an account it may give back to it.
func (k *Book) DropEmptied() {
	for len(k.emptied) > 0 {
		number := k.emptied[len(k.emptied)-1]
		k.emptied = k.emptied[:len(k.emptied)-1]
		a := k.Get(number)
		if a == nil || !a.empty() {
			continue
		}
		k.ByNumber.Delete(number)
		k.Names.Delete(accountName{parent: a.Parent, name: a.Name})
		k.cache.forget(number)
		if a.Parent == 0 {
			continue
		}
		parent := k.editAccount(a.Parent)
		if parent.children--; parent.empty() {
			k.emptied = append(k.emptied, parent.Number)
		}
	}
}

// FindAccount returns an account by name, nil where there is none.
func (k *Book) FindAccount(parent uint64, name string) *Account {
	cached := k.cache.name(parent, name)
	if cached.parent == parent && cached.name == name && cached.number != 0 {
		if a := k.Get(cached.number); a != nil {
			return a
		}
	}
	found, ok := k.Names.Get(accountName{parent: parent, name: name})
	if !ok {
		return nil
	}
	*cached = found
	return k.Get(found.number)
}

// Get returns an account, nil where there is none. It must not be changed.
func (k *Book) Get(number uint64) *Account {
	if a := k.cache.find(number); a != nil {
		return a
	}
	a, _ := k.ByNumber.Get(number)
	return a
}

// editAccount returns an account, which must exist, that may be changed.
func (k *Book) editAccount(number uint64) *Account {
	a := k.Get(number)
	if a.generation != k.generation {
		c := *a
		c.generation = k.generation
		a = &c
		k.ByNumber.Set(number, a)
	}
	k.cache.keep(a)
	return a
}
