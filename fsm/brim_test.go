package fsm

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
	"github.com/quotad/quotad/fsm/workflow"
)

// assumedMemory is the assumed memory of a node. fullShare is the share of it, in percent, that the state may take with
// every budget full of the most expensive objects: from 85% on a node grants nothing new (raftnode.MemoryMark).
const (
	assumedMemory = 2 << 30
	fullShare     = 85
)

// longName returns the n-th name of the greatest length.
func longName(kind string, n, length int) string {
	name := fmt.Sprintf("%s-%d-", kind, n)
	return name + strings.Repeat("x", length-len(name))
}

// expensive is one of the most expensive objects that a budget can hold.
type expensive struct {
	name string
	of   accounts.Budget
	// command makes the n-th.
	command func(n int) *logpb.Command
	// then runs once those from a number up to another exist: leases end, or a lease's operations follow.
	then func(s *scale, from, to int)
	// each is how many there are instead of a thousand; 0: a thousand.
	each int
}

const brimQuotas = 64

// brimQuota returns the name of one of the quotas of a kind in full states.
func brimQuota(kind string, n int) string { return longName(kind, n, ledger.MaxNameLength) }

// brimItems returns up to all of a kind's quotas, different ones for each n.
func brimItems(kind string, n, count int) []*logpb.Item {
	items := make([]*logpb.Item, count)
	for i := range items {
		items[i] = itemOf(brimQuota(kind, (n*(i+1)+i*i+i)%brimQuotas), 1)
		for j := 0; j < i; j++ {
			if items[j].Quota == items[i].Quota {
				items[i] = itemOf(brimQuota(kind, (n+i)%brimQuotas), 1)
				j = -1
				n++
			}
		}
	}
	return items
}

func brimWorld() *scale {
	s := &scale{m: New()}
	var quotas []*logpb.Quota
	for n := range brimQuotas {
		none := rateOf(brimQuota("none", n), 1, day)
		tallied, metered := rateOf(brimQuota("tallied", n), 1<<50, minute), windowOf(brimQuota("metered", n), 1<<50, logpb.Every_EVERY_DAY)
		tallied.Policy = &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1}}
		metered.Policy = &logpb.Policy{Metering: true}
		moving := anchored(brimQuota("moving", n), 1<<50)
		moving.Policy = &logpb.Policy{Metering: true}
		quotas = append(quotas, rateOf(brimQuota("plenty", n), 1<<50, day), rateOf(brimQuota("brief", n), 1<<50, minute), none, tallied, metered,
			moving)
		for level := range maxDepth {
			q := rateOf(brimQuota(fmt.Sprint("deep", level), n), 1<<50, day)
			if level > 0 {
				under(q, brimQuota(fmt.Sprint("deep", level-1), n))
			}
			quotas = append(quotas, q)
		}
		quotas = append(quotas, under(rateOf(brimQuota("none-below", n), 1, day), brimQuota("deep6", n)))
	}
	s.apply(applyQuotas(quotas...), limitsTo(func(l *logpb.SetLimits) {
		for _, bound := range []**int64{
			&l.MaxSessions, &l.MaxKeys, &l.MaxResultBytes, &l.MaxWaiters, &l.MaxTasks, &l.MaxLeases, &l.MaxReports, &l.MaxHolderBytes,
			&l.MaxOperationBytes,
		} {
			*bound = proto.Int64(1 << 40)
		}
	}))
	for n := range brimQuotas {
		s.apply(consumesAtOnce("first", itemOf(brimQuota("none", n), 1)), consumesAtOnce("first", itemOf(brimQuota("none-below", n), 1)))
	}
	releaseAll(s, 0, 0)
	return s
}

// releaseAll ends all leases.
func releaseAll(s *scale, _, _ int) {
	var ids []uint64
	s.m.leases.Scan(func(id uint64, _ *lease) bool {
		ids = append(ids, id)
		return true
	})
	for _, id := range ids {
		s.apply(&logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: id}}})
	}
}

// consumeOnce makes each of the latest leases consume one, with a low-water mark.
func consumeOnce(s *scale, op, doneBelow uint64, leases int) {
	for id := s.m.lastLease - uint64(leases) + 1; id <= s.m.lastLease; id++ { //nolint:gosec // so many there are
		l, _ := s.m.leases.Get(id)
		s.apply(consumeCmd(&logpb.Consume{
			Lease: l.id, Fence: l.fence, Op: op, DoneBelow: doneBelow, Items: []*logpb.Item{itemOf(s.m.quotas.get(l.items[0].quota).name, 1)},
		}))
	}
}

// consumesEach makes each of the latest leases consume a hundred times.
func consumesEach(s *scale, from, to int) {
	for op := range uint64(100) {
		consumeOnce(s, op+1, 0, to-from)
	}
}

// listUses makes each of the latest leases consume at a hundred moments, and so to as many ends, and its holder be
// refused for two reasons.
func listUses(s *scale, from, to int) {
	for op := range uint64(100) {
		s.now += second
		consumeOnce(s, op+1, op+1, to-from)
	}
	releaseAll(s, from, to)
	for n := from; n < to; n++ {
		holder, quota := fmt.Sprint("h", n), brimQuota("moving", 0)
		s.apply(asks(holder, 0, itemOf(quota, 1<<51)), asks(holder, 0, itemOf(quota, 1<<50)))
	}
}

// thinned is how many records exceed those of a page: of that many, one is left.
const thinned = 80

// thinOut ends the leases, and lets time pass until their consumption of a minute is dropped.
func thinOut(s *scale, from, to int) {
	releaseAll(s, from, to)
	s.now += 3 * minute
	s.apply()
	for first, ok := s.m.records.checks.Min(); ok && first.at <= s.now; first, ok = s.m.records.checks.Min() {
		s.apply()
	}
}

// longNamed is the number of holders with long names for objects that cost the same for any holder. longWaiting is the
// number of other holders, of which as many wait at once as there is room for: a grant to a waiting holder moves it in
// the queue.
const (
	longNamed   = 8
	longWaiting = 64
)

// expensives returns the most expensive objects of each budget.
func expensives() []expensive {
	reserves := func(n int, consume bool, items ...*logpb.Item) *logpb.Command {
		a := ask(longName("h", n, workflow.MaxHolder), items...)
		a.TtlNs, a.Consume = day, consume
		return reserve(a)
	}
	sameHolder := func(consume bool, items ...*logpb.Item) *logpb.Command {
		a := ask("h", items...)
		a.TtlNs, a.Consume = day, consume
		return reserve(a)
	}
	return []expensive{
		{name: "a session", of: accounts.Sessions, command: func(n int) *logpb.Command {
			c := &logpb.Command{By: longName("by", n, workflow.MaxHolder), Kind: &logpb.Command_OpenSession{
				OpenSession: &logpb.OpenSession{Holder: longName("h", n, workflow.MaxHolder)},
			}}
			return c
		}},
		{name: "a key", of: accounts.Keys, command: func(n int) *logpb.Command {
			c := keyedBy(longName("key", n, 128), withdraw(1<<40))
			c.By = longName("by", n, workflow.MaxHolder)
			return c
		}},
		{name: "a failure's result", of: accounts.Results, command: func(n int) *logpb.Command {
			return numbered(1, uint64(n+1), 0, withdraw(1<<40))
		}},
		{name: "a refusal's result", of: accounts.Results, command: func(n int) *logpb.Command {
			return numbered(1, uint64(n+1), 0, asks("h", 0, itemOf(brimQuota("none", n%brimQuotas), 1)))
		}},
		{name: "a small grant's result", of: accounts.Results, then: releaseAll, command: func(n int) *logpb.Command {
			return numbered(1, uint64(n+1), 0, sameHolder(false, itemOf(brimQuota("plenty", n%brimQuotas), 1)))
		}},
		{name: "a large grant's result", of: accounts.Results, then: releaseAll, each: 300, command: func(n int) *logpb.Command {
			return numbered(1+uint64(n)/1000, uint64(n+1), 0, sameHolder(true, brimItems("plenty", n, brimQuotas)...))
		}},
		{name: "a waiting Reserve of one", of: accounts.Waiters, command: func(n int) *logpb.Command {
			return waits(fmt.Sprint("h", n%8), 0, 10*minute, itemOf(brimQuota("none", n%brimQuotas), 1))
		}},
		{name: "a waiting Reserve of four", of: accounts.Waiters, command: func(n int) *logpb.Command {
			return waits(fmt.Sprint("h", n%8), 0, 10*minute, brimItems("none", n, 4)...)
		}},
		{name: "a waiting Reserve of four, long names, that consumes", of: accounts.Waiters, command: func(n int) *logpb.Command {
			c := waits(longName("w", n%longWaiting, workflow.MaxHolder), 0, 10*minute, brimItems("none", n, 4)...)
			c.GetReserve().Consume = true
			return c
		}},
		{name: "a waiting Reserve of wait sets of many", of: accounts.Waiters, each: 300, command: func(n int) *logpb.Command {
			return waits(fmt.Sprint("h", n%8), 0, 10*minute, brimItems("none", n, 32)...)
		}},
		{name: "a waiting Reserve at all levels", of: accounts.Waiters, command: func(n int) *logpb.Command {
			return waits(fmt.Sprint("h", n%8), 0, 10*minute, itemOf(brimQuota("none-below", n%brimQuotas), 1))
		}},
		{name: "a task", of: accounts.Tasks, command: func(n int) *logpb.Command {
			c := begins(longName("task", n, task.MaxName), longName("h", n, workflow.MaxHolder), 0)
			for i := range task.MaxQuotas {
				c.GetBeginTask().Quotas = append(c.GetBeginTask().Quotas, brimQuota("plenty", i))
			}
			return c
		}, then: func(s *scale, from, to int) {
			for n := from; n < to; n++ {
				name := longName("task", n, task.MaxName)
				c := ends(name, s.m.taskFence(name), logpb.TaskOutcome_TASK_OUTCOME_FAILED)
				c.GetEndTask().Detail = longName("detail", n, task.MaxDetail)
				s.apply(c)
			}
		}},
		{name: "a lease of one", of: accounts.Leases, command: func(n int) *logpb.Command {
			return sameHolder(false,
				itemOf(brimQuota("plenty", n%brimQuotas), 1))
		}},
		{name: "a lease of four", of: accounts.Leases, command: func(n int) *logpb.Command {
			return sameHolder(false,
				brimItems("plenty", n, 4)...)
		}},
		{name: "a lease of 64", of: accounts.Leases, each: 300, command: func(n int) *logpb.Command {
			return sameHolder(false,
				brimItems("plenty", n, 64)...)
		}},
		{name: "a lease of a long name", of: accounts.Leases, command: func(n int) *logpb.Command {
			return reserves(n%longNamed, false, brimItems("plenty", n, 4)...)
		}},
		{name: "a lease at all levels", of: accounts.Leases, command: func(n int) *logpb.Command {
			return sameHolder(false, itemOf(brimQuota("deep7", n%brimQuotas), 1))
		}},
		{name: "a holder", of: accounts.Holders, then: releaseAll, command: func(n int) *logpb.Command {
			return reserves(n, false, itemOf(brimQuota("plenty", 0), 1))
		}},
		{name: "a holder with a short name", of: accounts.Holders, then: releaseAll, command: func(n int) *logpb.Command {
			return asks(fmt.Sprint("h", n), 0, itemOf(brimQuota("plenty", 0), 1))
		}},
		{name: "tallies", of: accounts.Holders, then: releaseAll, each: 300, command: func(n int) *logpb.Command {
			return asks(fmt.Sprint("h", n), 0, brimItems("tallied", n, brimQuotas)...)
		}},
		{name: "meters", of: accounts.Holders, then: releaseAll, each: 300, command: func(n int) *logpb.Command {
			return asks(fmt.Sprint("h", n), 0, brimItems("metered", n, brimQuotas)...)
		}},
		{name: "meters with lists", of: accounts.Holders, each: 100, then: listUses, command: func(n int) *logpb.Command {
			return asks(fmt.Sprint("h", n), 0, itemOf(brimQuota("moving", 0), 1000))
		}},
		{name: "operations of live leases", of: accounts.Operations, each: 200, then: consumesEach, command: func(n int) *logpb.Command {
			return sameHolder(false, itemOf(brimQuota("plenty", n%brimQuotas), 1000))
		}},
		{
			name: "operations of live leases of long names", of: accounts.Operations, each: 200, then: consumesEach,
			command: func(n int) *logpb.Command {
				return reserves(n%longNamed, false, itemOf(brimQuota("plenty", n%brimQuotas), 1000))
			},
		},
		{name: "operations at all levels", of: accounts.Operations, each: 200, then: consumesEach, command: func(n int) *logpb.Command {
			return sameHolder(false, itemOf(brimQuota("deep7", n%brimQuotas), 1000))
		}},
		{name: "operations of leases that ended, long names", of: accounts.Operations, then: releaseAll, command: func(n int) *logpb.Command {
			return reserves(n%longNamed, true, itemOf(brimQuota("plenty", n%brimQuotas), 1))
		}},
		{name: "operations at all levels of leases that ended", of: accounts.Operations, then: releaseAll, command: func(n int) *logpb.Command {
			return sameHolder(true, itemOf(brimQuota("deep7", n%brimQuotas), 1))
		}},
		{name: "one operation of each page", of: accounts.Operations, each: 16_000, then: thinOut, command: func(n int) *logpb.Command {
			if n%thinned == 0 {
				return sameHolder(true, itemOf(brimQuota("plenty", 0), 1))
			}
			return sameHolder(true, itemOf(brimQuota("brief", 0), 1))
		}},
		{name: "operations of leases that ended", of: accounts.Operations, then: releaseAll, command: func(n int) *logpb.Command {
			return sameHolder(true, itemOf(brimQuota("plenty", n%brimQuotas), 1))
		}},
		{
			name: "large operations of leases that ended", of: accounts.Operations, then: releaseAll, each: 300,
			command: func(n int) *logpb.Command {
				return sameHolder(true, brimItems("plenty", n, 64)...)
			},
		},
	}
}

// inUse returns the bytes of reachable objects.
func inUse() int64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc) //nolint:gosec // far below
}

// forgetRoom drops a machine's caches, which have their own bounds.
func forgetRoom(m *Machine) {
	m.freeList, m.quotas.cache, m.decoder = freeList{}, new(cache), entry.Decoder{}
}

// perUnit measures the bytes of one unit of a budget that is full of one kind of object: in the state that took it and
// in one restored from its snapshot, the larger. base is the size of the restored state without these objects.
func (e expensive) perUnit(t *testing.T, scaled int, base int64) float64 {
	t.Helper()
	s := brimWorld()
	s.apply(opens(), opens())
	things := 1000 * scaled
	if e.each != 0 {
		things = e.each * scaled
	}
	forgetRoom(s.m)
	takenBefore, before := s.m.accounts.Taken, inUse()
	for n := range things {
		s.apply(e.command(n))
	}
	if e.then != nil {
		e.then(s, 0, things)
	}
	forgetRoom(s.m)
	grown := inUse() - before
	took := s.m.accounts.Taken
	units := took[e.of] - takenBefore[e.of]
	if units < int64(things)/thinned {
		t.Fatalf("%s: %d took %d units", e.name, things, units)
	}
	if err := s.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	snapshot := snapshotOf(t, s.m.State())
	s.m = nil
	empty := inUse()
	restored, err := Restore(bytes.NewReader(snapshot))
	if err != nil {
		t.Fatal(err)
	}
	if restored.accounts.Taken != took {
		t.Fatalf("%s: %v is taken, restored %v", e.name, took, restored.accounts.Taken)
	}
	forgetRoom(restored)
	again := inUse() - empty - base
	runtime.KeepAlive(restored)
	runtime.KeepAlive(snapshot)
	t.Logf("%-40s %6.2f bytes a unit, restored %6.2f", e.name, float64(grown)/float64(units), float64(again)/float64(units))
	return float64(max(grown, again)) / float64(units)
}

// restoredBase returns the size of an empty restored state.
func restoredBase(t *testing.T) int64 {
	t.Helper()
	s := brimWorld()
	s.apply(opens(), opens())
	snapshot := snapshotOf(t, s.m.State())
	s.m = nil
	empty := inUse()
	restored := restoredFrom(t, snapshot, newBounds())
	forgetRoom(restored)
	base := inUse() - empty
	runtime.KeepAlive(restored)
	runtime.KeepAlive(snapshot)
	return base
}

// TestBudgets_AllFullFitTheMemoryOfANode: with every budget full of its most expensive object, computed from a thousand
// or more of each kind, the state stays below the mark of an assumed node.
func TestBudgets_AllFullFitTheMemoryOfANode(t *testing.T) {
	if testing.Short() {
		t.Skip("tens of seconds, and the race detector changes what it measures")
	}
	const scaled = 4
	base := restoredBase(t)
	var most [accounts.Budgets]float64
	for _, e := range expensives() {
		most[e.of] = max(most[e.of], e.perUnit(t, scaled, base))
	}
	l := newState().accounts.Limits
	var all float64
	for b := range accounts.Budget(accounts.Budgets) {
		if stated := float64(accounts.MemoryOf(b, 1000)) / 1000; most[b] > stated {
			t.Errorf("%s: a unit takes %.2f bytes, and counts as %.2f", accounts.Names[b], most[b], stated)
		}
		full := most[b] * float64(l.Of(b))
		if b == accounts.Leases { // waiting ones are among them
			full = most[b] * float64(l.Leases-l.Waiters)
		}
		t.Logf("%-16s %12d of %8.2f bytes: %5.0f MB", accounts.Names[b], l.Of(b), most[b], full/1e6)
		all += full
	}
	all += accounts.MaxAccounts * accountSize
	t.Logf("all: %.0f MB", all/1e6)
	if bound := float64(assumedMemory) / 100 * fullShare; all > bound {
		t.Errorf("the state takes up to %.0f MB, a node is assumed to have %.0f MB", all/1e6, bound/1e6)
	}
	for _, b := range []accounts.Budget{accounts.Results, accounts.Holders, accounts.Operations} {
		if most[b] > 1.5 {
			t.Errorf("%s: what counts as a byte takes %.2f bytes", accounts.Names[b], most[b])
		}
	}
}

// accountSize is roughly the size of an account with a long name, in bytes.
const accountSize = 400

// fillOrder is the order in which a state is filled to all bounds: keys have results, waiters that consume need room
// for their records, ending ones need leases for a moment, and permanent ones come last.
var fillOrder = []string{
	"a key", "a session", "a task", "a large grant's result", "a holder with a short name",
	"a waiting Reserve of four, long names, that consumes", "large operations of leases that ended", "a lease of a long name",
}

// fill takes one kind of object until there is no room for more.
func (e expensive) fill(t *testing.T, s *scale) {
	t.Helper()
	const step = 1000
	for n, had := 0, int64(-1); s.m.accounts.Taken[e.of] > had; n += step {
		had = s.m.accounts.Taken[e.of]
		for i := n; i < n+step; i++ {
			s.apply(e.command(i))
		}
		if e.then != nil {
			e.then(s, n, n+step)
		}
	}
	full := s.m.accounts.Limits.Of(e.of)
	t.Logf("%-55s %12d of %12d, %5.0f MB in use", e.name, s.m.accounts.Taken[e.of], full, float64(inUse())/1e6)
	if e.of != accounts.Leases && s.m.accounts.Taken[e.of] < full/100*98 {
		t.Errorf("%s: %d of %d are taken", e.name, s.m.accounts.Taken[e.of], full)
	}
}

// residentBytes returns the resident memory of the process.
func residentBytes(t *testing.T) int64 {
	t.Helper()
	data, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip(err)
	}
	var size, resident int64
	if _, err := fmt.Sscan(string(data), &size, &resident); err != nil {
		t.Fatal(err)
	}
	return resident * int64(os.Getpagesize())
}

// TestBudgets_AllFullAtFullSize fills a state to all of its bounds at once, under the memory limit that a node sets its
// collector. The whole process, including garbage, must stay below the mark of an assumed node.
func TestBudgets_AllFullAtFullSize(t *testing.T) {
	if testing.Short() {
		t.Skip("takes minutes and more than a gigabyte")
	}
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(assumedMemory / 100 * collectShare))
	s := brimWorld()
	first := newState().accounts.Limits
	for range 16 { // each may have an eighth of all results
		s.apply(opens())
	}
	s.apply(limitsTo(func(l *logpb.SetLimits) {
		l.MaxSessions, l.MaxKeys, l.MaxResultBytes, l.MaxWaiters = &first.Sessions, &first.Keys, &first.ResultBytes, &first.Waiters
		l.MaxTasks = &first.Tasks
		l.MaxLeases, l.MaxReports = &first.Leases, &first.Reports
		l.MaxHolderBytes, l.MaxOperationBytes = &first.HolderBytes, &first.OperationBytes
	}))
	kinds := map[string]expensive{}
	for _, e := range expensives() {
		kinds[e.name] = e
	}
	for n := range longWaiting { // once the records of holders are full no other holder gets one
		s.apply(reserve(ask(longName("w", n, workflow.MaxHolder), itemOf(brimQuota("plenty", 0), 1))))
		s.apply(reserve(ask(longName("h", n%longNamed, workflow.MaxHolder), itemOf(brimQuota("plenty", 0), 1))))
	}
	releaseAll(s, 0, 0)
	var most int64
	for _, name := range fillOrder {
		kinds[name].fill(t, s)
		most = max(most, residentBytes(t))
	}
	if leases := s.m.accounts.Taken[accounts.Leases]; leases < first.Leases/100*98 {
		t.Errorf("%d of %d leases are taken", leases, first.Leases)
	}
	mark := int64(assumedMemory) / 100 * fullShare
	t.Logf("the process took %d MB at most, %d MB are alive, the mark is at %d MB", most/1e6, inUse()/1e6, mark/1e6)
	if most > mark {
		t.Errorf("the process took %d MB, the mark is at %d MB", most/1e6, mark/1e6)
	}
	if err := s.m.State().Verify(); err != nil {
		t.Error(err)
	}
}

// collectShare is the percentage of its memory from which a node's collector works harder.
const collectShare = 80
