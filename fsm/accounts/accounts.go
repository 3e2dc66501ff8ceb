package accounts

import (
	"cmp"

	"github.com/tidwall/btree"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// Budget is a bound on something in the state that callers share. Each caller has a part of it.
type Budget int

// Budgets by number.
const (
	Sessions Budget = 0
	Keys     Budget = 1
	Results  Budget = 2
	Waiters  Budget = 3
	Tasks    Budget = 4
	// Leases counts live leases, and waiting Reserves as the leases that they may become, so that a grant to a waiter
	// never exceeds a budget. Every four items count as one lease.
	Leases Budget = 5
	// Reports counts the reports of the present minute of cluster time.
	Reports Budget = 6
	// Holders counts the bytes of holders' records: their virtual times, stats and meters.
	Holders Budget = 7
	// Operations counts the bytes of records of operations, of live and of ended leases.
	Operations Budget = 8
)

// Budgets is the number of budgets.
const Budgets = 9

// Names are the names in the API.
var Names = [Budgets]string{
	"sessions", "keys", "result_bytes", "waiters", "tasks", "leases", "reports", "holder_bytes", "operation_bytes",
}

// Bounds of accounts. Clients can make up any number of holder names, and some any number of addresses. Callers beyond
// MaxAccounts share one account.
const (
	MaxAccounts       = 1 << 16
	MaxHoldersAccount = 1 << 10
)

// Default budgets. All together take about 1.6 GB: a lease takes up to 460 bytes, a waiting Reserve 850. A sixteenth is
// kept for operators. Each caller may have at least a thousandth of a budget that is nearly full.
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

// Defaults, minimums and the maximum of the limits that callers share on each node. At the minimum an operator still
// finds a call and a connection while callers use all of their parts.
const (
	DefaultMaxCalls       = 24_000
	DefaultMaxStreams     = 4096
	DefaultMaxConnections = 10_000

	MinCalls       = 64
	MinStreams     = 16
	MinConnections = 64

	MaxOfNode = 1_000_000
)

// Limits are the bounds that are part of the replicated state: the size of each budget, and how long idle objects are
// kept (nanoseconds).
type Limits struct {
	// SessionIdle, KeyLife and TaskLife are times, the others are budgets.
	Sessions, ResultBytes, SessionIdle, KeyLife, Waiters, Tasks, TaskLife int64
	// HolderBytes and OperationBytes are budgets in bytes.
	Keys, Leases, Reports, HolderBytes, OperationBytes int64
	// OperatorsPPM is the part of each budget that is kept for operators, CallerMinPPM the least part of each caller.
	OperatorsPPM, CallerMinPPM int64
	// Calls in flight, Streams and Connections are shared on each node. The state keeps these limits and charges nobody
	// for them.
	Calls, Streams, Connections int64
}

// DefaultLimits returns the limits of a cluster without a SetLimits.
func DefaultLimits() Limits {
	return Limits{
		Sessions: 262_144, ResultBytes: 256 << 20, SessionIdle: fixed.Hour, KeyLife: fixed.Day, Waiters: 200_000,
		Tasks: DefaultMaxTasks, TaskLife: DefaultTaskLife, Keys: DefaultMaxKeys, Leases: DefaultMaxLeases,
		Reports: DefaultMaxReports, HolderBytes: DefaultMaxHolders, OperationBytes: DefaultMaxRecords,
		OperatorsPPM: DefaultOperatorsPPM, CallerMinPPM: DefaultCallerMinPPM,
		Calls: DefaultMaxCalls, Streams: DefaultMaxStreams, Connections: DefaultMaxConnections,
	}
}

// Account is one caller's use of each budget. Callers known by an address only share the address's account; each of
// their holders has an account within it. An empty account is dropped.
type Account struct {
	generation uint64
	// Number is its key in other tables.
	Number uint64
	// Parent is the account of the address, for the account of a holder there; 0: the account of an address or of a
	// token.
	Parent uint64
	// Name is the caller's, or the holder's.
	Name string
	// children counts the accounts within this one. Their use is included in this one's.
	children int64
	// Used is its use of each budget.
	Used [Budgets]int64
	// Minute is the minute of cluster time that Used[Reports] counts.
	Minute int64
}

// accountName is the key of an account's name, with its number.
type accountName struct {
	parent uint64
	name   string
	number uint64
}

func lessAccountName(a, b accountName) bool {
	return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.name, b.name)) < 0
}

// itemsOfOne is how many items, including the shares of ancestors, count as one lease or one waiting Reserve.
const itemsOfOne = 4

// WeightOf returns how many leases or waiting Reserves some items count as.
func WeightOf(items int) int64 { return int64(items+itemsOfOne-1) / itemsOfOne }

// empty reports whether an account has no use and no children.
func (a *Account) empty() bool { return a.children == 0 && a.Used == [Budgets]int64{} }

// has returns an account's use of a budget at a moment; 0 for nil.
func (a *Account) has(b Budget, now int64) int64 {
	if a == nil || b == Reports && a.Minute != now/fixed.Minute {
		return 0
	}
	return a.Used[b]
}

// Book holds the use of each budget by each account. It is copy-on-write: a copy may share accounts of older
// generations.
type Book struct {
	// generation rises with each copy.
	generation uint64
	// Last is the number of the newest account.
	Last uint64
	// Limits are the cluster's.
	Limits Limits
	// ByNumber has all accounts; Names finds them by name.
	ByNumber *btree.Map[uint64, *Account]
	Names    *btree.BTreeG[accountName]
	// Taken is the total use of each budget, charged to an account or to nobody, except Reports.
	Taken [Budgets]int64
	// reporters are the accounts with reports, by minute; reports counts all reports of reportMinute.
	reporters             *btree.BTreeG[reporting]
	reportMinute, reports int64
	// Refused counts refusals for budgets since this replica has its state. It never affects the state, and is not in
	// snapshots.
	Refused [Budgets]int64
	// emptied are accounts that may be empty now.
	emptied []uint64
	cache   *cache
}

// reporting is an account with reports of a minute.
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
		generation: 1, Limits: DefaultLimits(), ByNumber: new(btree.Map[uint64, *Account]),
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

// Payer is the caller that a command is charged to.
type Payer struct {
	// Caller is the account's name; empty: the command is charged to nobody.
	Caller string
	// Holder has its own account within the caller's if perHolder is set; empty: unknown.
	Holder    string
	perHolder bool
	// Operator: the operators' part may be used.
	Operator bool
}

// PayerOf returns the payer of a command.
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

// Of returns the size of a budget.
func (l *Limits) Of(b Budget) int64 {
	return [Budgets]int64{
		l.Sessions, l.Keys, l.ResultBytes, l.Waiters, l.Tasks, l.Leases, l.Reports, l.HolderBytes, l.OperationBytes,
	}[b]
}

// OperatorsPart returns the part of a budget that is kept for operators.
func (l *Limits) OperatorsPart(b Budget) int64 {
	return fixed.MulDivFloor(l.Of(b), l.OperatorsPPM, fixed.Million)
}

// minimum returns how much of a budget each caller may have while there is room at all.
func (l *Limits) minimum(b Budget) int64 {
	return max(1, fixed.MulDivFloor(l.Of(b), l.CallerMinPPM, fixed.Million))
}

// UsedOf returns the total use of a budget.
func (k *Book) UsedOf(b Budget, now int64) int64 {
	if b != Reports {
		return k.Taken[b]
	}
	if k.reportMinute == now/fixed.Minute {
		return k.reports
	}
	return 0
}

// Verdict is whether more of a budget may be taken.
type Verdict int

// Verdicts.
const (
	// MayTake: more may be taken.
	MayTake Verdict = 0
	// AtBudget: the caller has used up its part.
	AtBudget Verdict = 1
	// AllTaken: the budget is used up, except the operators' part.
	AllTaken Verdict = 2
)

// judgeTaking judges whether the owner of account own, within the account top of its address, may take more of a
// budget. Both are nil if nothing is charged yet. A caller may have at most half of what the others leave, and each
// holder at an address half of the rest of that. So a new caller always finds room, and a single caller may use half of
// the budget. Grants are not revoked when other callers come.
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

// mostOf returns how much of the open part of a budget a top-level account may have.
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

// TakingFor judges whether an account may take more of a budget; operator says that an operator asks.
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

// HasLessThan reports whether an account has less than a part of its limit of a budget: part 2 means half of it.
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

// takingUncharged judges whether a command without a payer may take more of a budget.
func (k *Book) takingUncharged(b Budget, now int64) Verdict {
	if k.UsedOf(b, now) >= k.Limits.Of(b) {
		return AllTaken
	}
	return MayTake
}

// accountsOf returns the account of a payer and, for a holder, that of its address; nil if they do not exist.
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

// noMoreHolders reports whether further holders at an address are charged to the address alone.
func (k *Book) noMoreHolders(top *Account) bool {
	return top.children >= MaxHoldersAccount || k.ByNumber.Len() >= MaxAccounts
}

// Bill charges an amount of a budget to a payer, and returns the account's number; 0: charged to nobody.
func (k *Book) Bill(p Payer, b Budget, amount int64) uint64 {
	number := k.Open(p)
	k.Add(number, b, amount)
	return number
}

// Open returns the number of a payer's account, and makes the account if there is none.
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

// Make makes an empty account.
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

// Add adds an amount to the use of a budget: to the total, to an account (0: none), and to its parents.
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

// ForgetReports drops the reports of past minutes.
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

// DropEmptied drops empty accounts. It must not run during a command, which may return an amount to its account.
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

// FindAccount returns an account by name, nil if there is none.
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

// Get returns an account, nil if there is none. It must not be changed.
func (k *Book) Get(number uint64) *Account {
	if a := k.cache.find(number); a != nil {
		return a
	}
	a, _ := k.ByNumber.Get(number)
	return a
}

// editAccount returns an account, which must exist, for update.
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
