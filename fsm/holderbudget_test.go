package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/logpb"
)

// smallBudget is a world with budgets in bytes for holders' records and for records of operations.
func smallBudget(t tester, holders, operations int64, quotas ...*logpb.Quota) *world {
	w := newWorld(t)
	w.quotas(quotas...)
	w.do(limitsTo(func(l *logpb.SetLimits) {
		l.MaxHolderBytes, l.MaxOperationBytes, l.OperatorsPpm = new(holders), new(operations), new(int64(0))
	}))
	return w
}

const plentyBytes = 1 << 30

// TestHolders_KnownOnesAreServed: a caller that has made up too many names is refused further ones, and served for
// those that it used. Other callers are not affected, and after an hour there is room again.
func TestHolders_KnownOnesAreServed(t *testing.T) {
	w := smallBudget(t, 10_000, plentyBytes, rateOf("r", 1<<40, minute))
	one := func(caller string, n int) *logpb.Command {
		return chargedTo(caller, asks(fmt.Sprint("h", n), 0, itemOf("r", 1)))
	}
	n := 0
	for ; w.raw(one("token:a", n))[0].GetGranted() != nil; n++ {
		w.raw(chargedTo("token:a", releases(uint64(n+1))))
	}
	if n < 25 || n > 40 {
		t.Fatalf("%d names were taken", n)
	}
	w.refusedTo("token:a", asks("new", 0, itemOf("r", 1)), "holder_bytes")
	w.refusedTo("token:a", waits("new", 0, minute, itemOf("r", 1)), "holder_bytes")
	if r := w.do(one("token:a", 0)); r.GetGranted() == nil {
		t.Fatalf("one that is known: %v", r)
	}
	if r := w.do(one("token:b", 1_000_000)); r.GetGranted() == nil {
		t.Fatalf("another caller's: %v", r)
	}
	w.reborn()
	w.refusedTo("token:a", asks("new", 0, itemOf("r", 1)), "holder_bytes")
	w.sleep(2 * hour)
	w.sleep(2 * hour) // holders with leases were seen when these ended
	if r := w.do(one("token:a", n+1)); r.GetGranted() == nil {
		t.Fatalf("when the others are forgotten: %v", r)
	}
	if _, known := w.m.holders.byName.Get("h5"); known {
		t.Fatal("a holder is not forgotten")
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestHolders_WithLeasesAreRemembered: a release after hours finds the holder and makes no new record.
func TestHolders_WithLeasesAreRemembered(t *testing.T) {
	w := smallBudget(t, plentyBytes, plentyBytes, rateOf("r", 1<<40, minute))
	w.do(chargedTo("token:a", asks("long", 20*hour, itemOf("r", 1))))
	for range 5 {
		w.sleep(2 * hour)
	}
	if _, known := w.m.holders.byName.Get("long"); !known {
		t.Fatal("a holder with a lease was forgotten")
	}
	w.do(releases(1))
	w.sleep(2 * hour)
	w.sleep(2 * hour)
	if w.m.holders.byName.Len() != 0 || w.m.accounts.Taken[accounts.Holders] != 0 || w.m.accounts.ByNumber.Len() != 0 {
		t.Fatalf("%d holders, %d bytes, %d accounts are left", w.m.holders.byName.Len(), w.m.accounts.Taken[accounts.Holders],
			w.m.accounts.ByNumber.Len())
	}
}

// TestHolders_TalliesAndMetersAreCharged: stats and meters of a known holder are charged to its caller too. Meters take
// at most half of a caller's part, and a holder without one is served.
func TestHolders_TalliesAndMetersAreCharged(t *testing.T) {
	breaker := func(name string) *logpb.Quota {
		q := rateOf(name, 1<<40, minute)
		q.Policy = &logpb.Policy{Breaker: &logpb.Breaker{Failures: 5}}
		return q
	}
	var quotas []*logpb.Quota
	for n := range 40 {
		quotas = append(quotas, breaker(fmt.Sprint("b", n)))
		q := windowOf(fmt.Sprint("m", n), 1<<40, logpb.Every_EVERY_HOUR)
		q.Policy = &logpb.Policy{Metering: true}
		quotas = append(quotas, q)
	}
	w := smallBudget(t, 10_000, plentyBytes, quotas...)
	for n := range 40 {
		if r := w.do(chargedTo("token:a", consumesAtOnce("h", itemOf(fmt.Sprint("m", n), 1)))); r.GetGranted() == nil {
			t.Fatalf("a metered quota: %v", r)
		}
	}
	if n := w.m.holders.meters.Len(); n < 8 || n > 14 {
		t.Errorf("%d meters", n)
	}
	got := 0
	for ; got < 40 && w.raw(chargedTo("token:a", asks("h", 0, itemOf(fmt.Sprint("b", got), 1))))[0].GetGranted() != nil; got++ {
		w.entries = nil
	}
	if got < 10 || got > 25 {
		t.Errorf("%d tallies", got)
	}
	w.refusedTo("token:a", asks("h", 0, itemOf("b39", 1)), "holder_bytes")
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	w.do(&logpb.Command{Kind: &logpb.Command_DeleteQuota{DeleteQuota: &logpb.DeleteQuota{Quota: "b0", Force: true}}})
	if r := w.do(chargedTo("token:a", asks("h", 0, itemOf("b39", 1)))); r.GetGranted() == nil {
		t.Errorf("after a tally went with its quota: %v", r)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestOperations_AreCharged: a caller with too many records of operations consumes no more, by a Consume or a Reserve,
// now or from the queue, while others do. Settle and Release always work, and make room.
func TestOperations_AreCharged(t *testing.T) {
	w := smallBudget(t, plentyBytes, 30_000, rateOf("r", 1<<40, minute), slotsOf("s", 1))
	lease := w.do(chargedTo("token:a", asks("a", 0, itemOf("r", 1000)))).GetGranted()
	consume := func(op, mark uint64) *logpb.Command {
		return chargedTo("token:a", &logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
			Lease: lease.Lease, Fence: lease.Fence, Op: op, Items: []*logpb.Item{itemOf("r", 1)}, DoneBelow: mark,
		}}})
	}
	op := uint64(1)
	for ; w.raw(consume(op, 0))[0].GetConsumed() != nil; op++ {
	}
	if op < 40 || op > 45 {
		t.Fatalf("%d operations", op)
	}
	if f := w.do(consume(op, 0)).GetFailure(); f.GetReason() != logpb.Reason_REASON_CALLER_BUDGET || f.GetBudget() != "operation_bytes" {
		t.Fatalf("%v", f)
	}
	w.refusedTo("token:a", consumesAtOnce("a", itemOf("r", 1)), "operation_bytes")
	w.do(chargedTo("token:b", asks("b", 0, itemOf("s", 1))))
	queued := waits("a", 0, minute, itemOf("s", 1), itemOf("r", 1))
	queued.GetReserve().Consume = true
	w.refusedTo("token:a", queued, "operation_bytes")
	if r := w.do(chargedTo("token:a", asks("a", 0, itemOf("r", 1)))); r.GetGranted() == nil {
		t.Fatalf("what consumes nothing: %v", r)
	}
	if r := w.do(chargedTo("token:b", consumesAtOnce("b", itemOf("r", 1)))); r.GetGranted() == nil {
		t.Fatalf("another caller: %v", r)
	}
	w.reborn()
	if r := w.do(consume(op, 3)); r.GetConsumed() == nil {
		t.Fatalf("one in the place of two that are finished: %v", r)
	}
	settle := &logpb.Command{Kind: &logpb.Command_Settle{Settle: &logpb.Settle{
		Lease: lease.Lease, Fence: lease.Fence, Op: 4, Actual: []*logpb.Item{itemOf("r", 9)},
	}}}
	if r := w.do(chargedTo("token:a", settle)); len(r.GetSettled().GetOverrun()) != 1 {
		t.Fatalf("an overrun: %v", r)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	live := w.m.accounts.Taken[accounts.Operations]
	if r := w.do(chargedTo("token:a", releases(lease.Lease))); r.GetReleased() == nil {
		t.Fatal(r)
	}
	if left := w.m.accounts.Taken[accounts.Operations]; left <= 0 || left >= live/2 {
		t.Fatalf("of %d bytes %d are left when the lease has ended", live, left)
	}
	w.reborn()
	w.sleep(5 * minute)
	w.sleep(5 * minute)
	if r := w.do(chargedTo("token:a", queued)); r.GetWaiting() == nil && r.GetGranted() == nil {
		t.Fatalf("when nothing counts any more: %v", r)
	}
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
}

// TestBudgets_LargeLeasesCountAsSeveral: every four items of a lease, including the shares of ancestors, count as one.
// A change of parents changes the weight of a waiting Reserve.
func TestBudgets_LargeLeasesCountAsSeveral(t *testing.T) {
	w := newWorld(t)
	root, child := slotsOf("root", 9), slotsOf("child", 1)
	child.Parent = "root"
	quotas := []*logpb.Quota{root, child, slotsOf("other", 1)}
	var items []*logpb.Item
	for n := range 6 {
		quotas = append(quotas, slotsOf(fmt.Sprint("q", n), 9))
		items = append(items, itemOf(fmt.Sprint("q", n), 1))
	}
	w.quotas(quotas...)
	has := func(b accounts.Budget, want int64) {
		t.Helper()
		if got := w.m.accounts.FindAccount(0, "token:a").Used[b]; got != want || w.m.accounts.Taken[b] != want {
			t.Fatalf("%s: %d, of all %d, not %d", accounts.Names[b], got, w.m.accounts.Taken[b], want)
		}
	}
	w.do(chargedTo("token:a", asks("a", 0, append(items, itemOf("child", 1), itemOf("other", 1))...)))
	has(accounts.Leases, 3) // 9 items
	w.do(chargedTo("token:a", waits("a", 0, minute, itemOf("q0", 1), itemOf("q1", 1), itemOf("q2", 1), itemOf("other", 1))))
	has(accounts.Leases, 4)
	has(accounts.Waiters, 1)
	under := slotsOf("other", 1)
	under.Parent = "root"
	w.do(releases(1))
	if err := w.m.State().Verify(); err != nil {
		t.Fatal(err)
	}
	w.reborn()
	has(accounts.Leases, 1)
	has(accounts.Waiters, 0)
}
