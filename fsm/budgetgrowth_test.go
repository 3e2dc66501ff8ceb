package fsm

import (
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestConsume_FinishingALittleMakesNoRoomForMuch: a finished record makes room only for one that is no larger.
func TestConsume_FinishingALittleMakesNoRoomForMuch(t *testing.T) {
	var quotas []*logpb.Quota
	var items, ones []*logpb.Item
	for i := range 64 {
		name := fmt.Sprint("q", i)
		quotas = append(quotas, rateOf(name, 1<<40, minute))
		items, ones = append(items, itemOf(name, 10_000)), append(ones, itemOf(name, 1))
	}
	const limit = 100_000
	w := smallBudget(t, plentyBytes, limit, quotas...)
	lease := w.do(chargedTo("token:a", asks("a", 0, items...))).GetGranted()
	other := w.do(chargedTo("token:b", asks("b", 0, itemOf("q0", 100)))).GetGranted()
	consume := func(op, mark uint64, items ...*logpb.Item) *logpb.Command {
		return chargedTo("token:a", consumeCmd(&logpb.Consume{Lease: lease.Lease, Fence: lease.Fence, Op: op, Items: items, DoneBelow: mark}))
	}
	op := uint64(1)
	for ; w.raw(consume(op, 0, ones[0]))[0].GetConsumed() != nil; op++ {
	}
	had := w.m.accounts.Taken[accounts.Operations]
	for mark := uint64(2); mark <= op; mark++ {
		if w.raw(consume(op+mark, mark, ones...))[0].GetConsumed() == nil {
			break
		}
	}
	t.Logf("limit %d: at the budget with %d, now %d", limit, had, w.m.accounts.Taken[accounts.Operations])
	r := w.do(chargedTo("token:b", consumeCmd(&logpb.Consume{
		Lease: other.Lease, Fence: other.Fence, Op: 1, Items: []*logpb.Item{itemOf("q0", 1)},
	})))
	t.Log("another caller's Consume:", r)
	r2 := w.do(chargedTo("token:c", consumesAtOnce("c", itemOf("q0", 1))))
	t.Log("another caller's Reserve:", r2.GetRefusal().GetReason(), r2.GetRefusal().GetAdvice())
	if w.m.accounts.Taken[accounts.Operations] > limit || r.GetConsumed() == nil {
		t.Error("one caller took the budget of all")
	}
}

// TestSettle_OverrunsWereChargedAhead: an overrun needs no more than its record was charged for from the beginning.
func TestSettle_OverrunsWereChargedAhead(t *testing.T) {
	var quotas []*logpb.Quota
	var items, ones, twos []*logpb.Item
	for i := range 64 {
		name := fmt.Sprint("q", i)
		quotas = append(quotas, rateOf(name, 1<<40, minute))
		items, ones, twos = append(items, itemOf(name, 10_000)), append(ones, itemOf(name, 1)), append(twos, itemOf(name, 2))
	}
	const limit = 1_000_000
	w := smallBudget(t, plentyBytes, limit, quotas...)
	lease := w.do(chargedTo("token:a", asks("a", 0, items...))).GetGranted()
	op := uint64(1)
	for ; w.raw(chargedTo("token:a", consumeCmd(&logpb.Consume{
		Lease: lease.Lease, Fence: lease.Fence, Op: op, Items: ones,
	})))[0].GetConsumed() != nil; op++ {
	}
	had := w.m.accounts.Taken[accounts.Operations]
	for i := uint64(1); i < op; i++ {
		w.raw(chargedTo("token:a", settle(&logpb.Settle{Lease: lease.Lease, Fence: lease.Fence, Op: i, Actual: twos})))
	}
	t.Logf("limit %d: at the budget with %d, now %d", limit, had, w.m.accounts.Taken[accounts.Operations])
	if w.m.accounts.Taken[accounts.Operations] > limit*6/10 {
		t.Error("a caller has far more than its part")
	}
}

// TestReports_OfTasksKeepToTheBudget: reports of tasks make stats of known holders only within the budget.
func TestReports_OfTasksKeepToTheBudget(t *testing.T) {
	var quotas []*logpb.Quota
	var names []string
	for i := range 16 {
		q := rateOf(fmt.Sprint("b", i), 1<<40, minute)
		q.Policy = &logpb.Policy{Breaker: &logpb.Breaker{Failures: 5}}
		quotas, names = append(quotas, q), append(names, q.Name)
	}
	quotas = append(quotas, rateOf("r", 1<<40, minute))
	const limit = 100_000
	w := smallBudget(t, limit, plentyBytes, quotas...)
	n := 0
	for ; w.raw(chargedTo("token:a", asks(fmt.Sprint("h", n), 0, itemOf("r", 1))))[0].GetGranted() != nil; n++ {
	}
	had := w.m.accounts.Taken[accounts.Holders]
	for i := range n {
		w.raw(chargedTo("token:a", with(begins(fmt.Sprint("t", i), fmt.Sprint("h", i), 0),
			func(c *logpb.Command) { c.GetBeginTask().Quotas = names })))
	}
	for i := range n {
		task := fmt.Sprint("t", i)
		r := w.raw(chargedTo("token:a", endsAfter(task, w.m.taskFence(task), logpb.TaskOutcome_TASK_OUTCOME_SATURATED, second,
			logpb.Cause_CAUSE_SATURATED)))[0]
		if i == 0 {
			t.Log(r)
		}
	}
	t.Logf("limit %d: at the budget with %d, now %d, %d holders", limit, had, w.m.accounts.Taken[accounts.Holders], n)
	r := w.do(chargedTo("token:b", asks("new", 0, itemOf("r", 1))))
	t.Log("another caller:", r.GetRefusal().GetReason(), r.GetRefusal().GetAdvice())
	if w.m.accounts.Taken[accounts.Holders] > limit || r.GetGranted() == nil {
		t.Error("one caller took the budget of all")
	}
}

// TestMeters_ListWithinTheBudget: the lists of meters stay within their part of the budget.
func TestMeters_ListWithinTheBudget(t *testing.T) {
	var quotas []*logpb.Quota
	var items, ones []*logpb.Item
	for i := range 64 {
		q := anchored(fmt.Sprint("m", i), 1<<40)
		q.Policy = &logpb.Policy{Metering: true}
		quotas, items, ones = append(quotas, q), append(items, itemOf(q.Name, 10_000)), append(ones, itemOf(q.Name, 1))
	}
	const limit = 200_000
	w := smallBudget(t, limit, plentyBytes, append(quotas, rateOf("r", 1<<40, minute))...)
	var leases []*logpb.Granted
	for n := range 5 {
		a := asks(fmt.Sprint("h", n), 20*hour, items...)
		leases = append(leases, w.raw(chargedTo("token:a", a))[0].GetGranted())
	}
	had := w.m.accounts.Taken[accounts.Holders]
	for op := range uint64(90) {
		w.now += 37 * second
		for _, l := range leases {
			w.raw(chargedTo("token:a", consumeCmd(&logpb.Consume{Lease: l.Lease, Fence: l.Fence, Op: op + 1, Items: ones, DoneBelow: op + 1})))
		}
	}
	t.Logf("limit %d: %d meters with %d, now %d", limit, w.m.holders.meters.Len(), had, w.m.accounts.Taken[accounts.Holders])
	r := w.do(chargedTo("token:b", asks("new", 0, itemOf("r", 1))))
	t.Log("another caller:", r.GetRefusal().GetReason(), r.GetRefusal().GetAdvice())
	if w.m.accounts.Taken[accounts.Holders] > limit || r.GetGranted() == nil {
		t.Error("one caller took the budget of all")
	}
}

// TestSettle_OverrunsOfEndedLeasesWereChargedAhead: the same holds for an overrun after its lease, with the largest
// numbers.
func TestSettle_OverrunsOfEndedLeasesWereChargedAhead(t *testing.T) {
	for _, much := range []int64{2, 1 << 40, fixed.MaxAmount} {
		w := smallBudget(t, plentyBytes, plentyBytes, rateOf("a", 1<<40, minute), rateOf("a/b", 1<<40, minute), rateOf("c", 1<<40, minute))
		w.do(chargedTo("token:a", consumesAtOnce("h", itemOf("a/b", 1), itemOf("c", 1))))
		w.do(chargedTo("token:a", releases(1)))
		had := w.m.accounts.Taken[accounts.Operations]
		if r := w.do(used(1, 1, itemOf("a/b", much), itemOf("c", much))); len(r.GetSettled().GetOverrun()) != 2 {
			t.Fatal(r)
		}
		if has := w.m.accounts.Taken[accounts.Operations]; has > had {
			t.Errorf("an overrun of %d takes %d bytes, and %d were charged ahead", much, has, had)
		}
	}
}
