package fsm

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestConsume_VoidAfterParentWindowClosed: an amount held in a closed window of a parent is void, even if its
// own quota has no window.
func TestConsume_VoidAfterParentWindowClosed(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("budget", 10), under(rateOf("budget/rpm", 10, minute), "budget"))
	w.now = hour - 60*second
	g := w.granted(ask("a", itemOf("budget/rpm", 10)))
	w.now = hour + 10*second // the boundary has passed; the lease lives (5 min)
	a := ask("b", itemOf("budget", 10))
	a.Consume = true
	w.granted(a) // the new hour is fully used
	r := w.raw(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1}))[0]
	v, _ := w.m.State().Quota("budget", w.clock())
	if r.GetFailure().GetReason() != logpb.Reason_REASON_ITEM_CLOSED || v.Consumed != 10 || v.Held != 0 {
		t.Fatalf("%v; the new hour has %d consumed and %d held, usable is 10", r, v.Consumed, v.Held)
	}
}

// TestWindow_ParentWithOtherSkewClosesFirst: windows of one length with different skews close at different moments.
func TestWindow_ParentWithOtherSkewClosesFirst(t *testing.T) {
	w := newWorld(t)
	p := hourly("p", 10)
	p.GetWindow().SkewNs = 5 * second
	w.quotas(p, under(hourly("p/c", 10), "p"))
	w.now = hour - 10*second
	g := w.granted(ask("a", itemOf("p/c", 10)))
	w.now = hour - 3*second
	w.raw()
	a := ask("b", itemOf("p", 10))
	g2 := w.raw(reserve(a))[0].GetGranted()
	r := w.raw(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1}))[0]
	r2 := w.raw(consumeCmd(&logpb.Consume{Lease: g2.Lease, Fence: g2.Fence, Op: 1}))[0]
	v, _ := w.m.State().Quota("p", w.clock())
	if r.GetFailure().GetReason() != logpb.Reason_REASON_ITEM_CLOSED || r2.GetConsumed() == nil || v.Consumed != 10 {
		t.Fatalf("%v, then %v; p has %d consumed, usable 10, held %d", r, r2, v.Consumed, v.Held)
	}
}

// TestWindow_ClosedItemReturnsAncestorShares: when an item's window has closed, its ancestors' shares return as soon as its lease
// is used.
func TestWindow_ClosedItemReturnsAncestorShares(t *testing.T) {
	w := newWorld(t)
	p := &logpb.Quota{Name: "p", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 10, Every: logpb.Every_EVERY_DAY}}}
	w.quotas(p, under(hourly("p/c", 10), "p"))
	a := ask("me", itemOf("p/c", 10))
	a.TtlNs = 12 * hour
	g := w.granted(a)
	w.sleep(hour + 10*second)
	r := w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1}))
	r2 := w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence, Items: []*logpb.Item{itemOf("p/c", 10)}}))
	if got := w.available("p"); got != 10 {
		t.Fatalf("available of p is %d; consume: %v; release: %v", got, r.GetFailure().GetReason(), r2.GetFailure().GetReason())
	}
}

// TestApplyQuotas_AcceptsOnlyRestorableTrees: a moved quota takes its descendants along, and no tree exceeds the depth allowed in
// snapshots.
func TestApplyQuotas_AcceptsOnlyRestorableTrees(t *testing.T) {
	w := newWorld(t)
	for _, c := range []string{"a", "b"} {
		for i := range 8 {
			q := rateOf(fmt.Sprintf("%s%d", c, i), 10, minute)
			if i > 0 {
				q.Parent = fmt.Sprintf("%s%d", c, i-1)
			}
			w.quotas(q)
		}
	}
	if r := w.do(applyQuotas(under(rateOf("a0", 10, minute), "b7"))); r.GetFailure() == nil {
		t.Errorf("a tree of 16 quotas was accepted: %v", r)
	}
	var b bytes.Buffer
	if err := w.m.Freeze().WriteSnapshot(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := Restore(&b); err != nil {
		t.Fatalf("accepted, and now: %v", err)
	}
}

// TestBurst_OfParentCoversAllItems: several children draw on one parent's burst together.
func TestBurst_OfParentCoversAllItems(t *testing.T) {
	w := newWorld(t)
	p := rateOf("p", 60, minute)
	p.GetRate().Burst = 10
	w.quotas(p, under(rateOf("p/a", 60, minute), "p"), under(rateOf("p/b", 60, minute), "p"), under(rateOf("p/c", 60, minute), "p"))
	g := w.granted(ask("me", itemOf("p/a", 8), itemOf("p/b", 8), itemOf("p/c", 8)))
	r := w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1}))
	if r.GetConsumed() != nil {
		t.Fatalf("24 consumed at once, burst of the parent is 10: %v", r)
	}
}

// TestBurst_SurvivesLimitChange: drawn amounts stay drawn.
func TestBurst_SurvivesLimitChange(t *testing.T) {
	w := newWorld(t)
	def := func(limit int64) *logpb.Quota {
		q := rateOf("q", limit, minute)
		q.GetRate().Burst = 20
		q.SpendByNs = second
		return q
	}
	w.quotas(def(600))
	took := int64(0)
	take := func() {
		for {
			a := ask("me", itemOf("q", 1))
			a.Consume = true
			if w.do(reserve(a)).GetGranted() == nil {
				return
			}
			took++
		}
	}
	take()
	first := took
	w.quotas(def(60))
	take()
	if took > 20 {
		t.Fatalf("%d + %d at one moment; burst is 20 before and after", first, took-first)
	}
}

// TestExposure_LastsUntilSpendBy: even if the lease and the longest call are short.
func TestExposure_LastsUntilSpendBy(t *testing.T) {
	w := newWorld(t)
	q := rateOf("q", 10, minute)
	q.Charged, q.MaxCallNs, q.SpendByNs = logpb.Charged_CHARGED_END, second, 30*second
	w.quotas(q)
	a := ask("me", itemOf("q", 10))
	a.Consume, a.TtlNs = true, second
	g := w.granted(a)
	w.sleep(second)
	w.now = 2*second + minute + second
	if w.do(reserve(a)).GetGranted() != nil {
		t.Fatalf("granted 10 at %v; the first 10 may be spent until %v: 20 within one period",
			time.Duration(w.now), time.Duration(g.Consumed.SpendByNs))
	}
	w.now = g.Consumed.SpendByNs + second + minute + 2*second // the longest call after the last moment to begin it, and a period
	w.granted(a)
}

// TestSettle_OverrunsDoNotOverflow: excessive actual amounts are refused before sums wrap.
func TestSettle_OverrunsDoNotOverflow(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("q", 2000, hour))
	for range 2 {
		g := w.granted(ask("me", itemOf("q", 1000)))
		for op := uint64(1); op <= 1000; op++ {
			w.raw(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: op, Items: []*logpb.Item{itemOf("q", 1)}}))
		}
	}
	accepted, refused := 0, 0
	defer func() {
		if accepted == 0 || refused == 0 {
			t.Errorf("%d settlements were accepted and %d refused", accepted, refused)
		}
	}()
	for l := uint64(1); l <= 2; l++ {
		for op := uint64(1); op <= 1000; op++ {
			if w.raw(settle(&logpb.Settle{Lease: l, Fence: l, Op: op, Actual: []*logpb.Item{itemOf("q", fixed.MaxAmount)}}))[0].GetFailure() != nil {
				refused++
			} else {
				accepted++
			}
			v, _ := w.m.State().Quota("q", w.clock())
			if v.Available > 2000 {
				r := w.raw(reserve(ask("me", itemOf("q", 2000))))[0]
				t.Fatalf("lease %d op %d: available %d, consumed %d; and: %v", l, op, v.Available, v.Consumed, r)
			}
		}
	}
}

// TestWindow_SkewChangeMovesNoUsage: an exhausted window does not count in the next one.
func TestWindow_SkewChangeMovesNoUsage(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("q", 10))
	a := ask("me", itemOf("q", 10))
	a.Consume = true
	w.granted(a)
	q := hourly("q", 10)
	q.GetWindow().SkewNs = 2 * second
	w.quotas(q)
	w.now = hour + 10*minute
	if got := w.available("q"); got != 10 {
		r := w.do(reserve(a))
		t.Fatalf("ten minutes into the new hour %d of 10 are available: %v", got, r)
	}
}

// TestCap_WithoutResetEndsAfterOnePeriod: after one period, if the end of the window is unknown.
func TestCap_WithoutResetEndsAfterOnePeriod(t *testing.T) {
	for name, signal := range map[string]*logpb.Signal{
		"limit 0":     {Quota: "q", Cause: logpb.Cause_CAUSE_OK, Limit: proto.Int64(0)},
		"remaining 0": {Quota: "q", Cause: logpb.Cause_CAUSE_OK, Remaining: proto.Int64(0)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(anchored("q", 100))
			a := ask("me", itemOf("q", 1))
			a.Consume = true
			g := w.granted(a)
			w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{signal}}))
			w.sleep(30 * day)
			r := w.do(reserve(ask("me", itemOf("q", 5))))
			w.quotas(anchored("q", 200))
			r2 := w.do(reserve(ask("me", itemOf("q", 5))))
			if r.GetGranted() == nil {
				t.Fatalf("30 days later: %v; after a changed definition: %v", r, r2)
			}
		})
	}
}

// TestReport_LimitWithoutGapSetsNoCap: only the remainder proves that something else uses the key.
func TestReport_LimitWithoutGapSetsNoCap(t *testing.T) {
	w := newWorld(t)
	w.quotas(hourly("q", 100))
	a := ask("me", itemOf("q", 1))
	a.Consume = true
	g := w.granted(a)
	r := w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "q", Cause: logpb.Cause_CAUSE_OK, Limit: proto.Int64(0), Remaining: proto.Int64(99)},
	}}))
	if c := r.GetReported().Quotas[0].CappedTo; c != nil {
		t.Fatalf("capped to %d though remaining + consumed = limit", *c)
	}
}

// TestCap_LearnedWithinBoundaryIsKept: even if it was learned within the boundary.
func TestCap_LearnedWithinBoundaryIsKept(t *testing.T) {
	w := newWorld(t)
	w.now = 10 * minute
	w.quotas(hourly("q", 100))
	w.now = hour + 500*millisecond // within [B-skew, B+skew]; the provider's new window has begun
	a := ask("me", itemOf("q", 1))
	a.Consume = true
	g := w.granted(a)
	r := w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "q", Cause: logpb.Cause_CAUSE_OK, Remaining: proto.Int64(3)},
	}}))
	before := w.available("q")
	w.sleep(second)
	if after := w.available("q"); after > before {
		t.Fatalf("%v: available %d, a second later %d", r, before, after)
	}
}

// TestReport_LateMovesNoReset: the provider counted from its answer, not from the arrival of the report.
func TestReport_LateMovesNoReset(t *testing.T) {
	w := newWorld(t)
	q := anchored("q", 30)
	q.GetWindow().Every, q.GetWindow().EveryNs = 0, 2*minute
	q.SpendByNs = 2 * second
	w.quotas(q)
	// The provider's window began at 0 and resets at 120 s.
	take := func(n int64) *logpb.Granted {
		a := ask("me", itemOf("q", n))
		a.Consume = true
		return w.do(reserve(a)).GetGranted()
	}
	g := take(1)
	// Answered at once: resets in 120 s. The report is applied 20 s later (lost leader, the same request again).
	w.sleep(20 * second)
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{
		{Quota: "q", Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: new(120 * second), ResetResolutionNs: second},
	}}))
	w.now = 121 * second // the provider's second window: [121, 241)
	a := take(29)
	w.now = 143 * second
	b := take(30)
	if a == nil || b != nil {
		t.Fatalf("one window of the provider [121 s, 241 s): %v and %v were granted, usable is 30", a, b)
	}
}

// TestRevoke_KeepsSlotUntilDeadline: its holder may not know of the revocation.
func TestRevoke_KeepsSlotUntilDeadline(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	a := ask("me", itemOf("s", 1))
	a.TtlNs = 10 * minute
	g := w.granted(a)
	w.do(&logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: g.Lease}}})
	w.sleep(61 * second)
	if w.do(reserve(a)).GetGranted() != nil {
		t.Fatalf("granted again at %v; its holder last heard that it may use the slot until %v", time.Duration(w.now),
			time.Duration(g.DeadlineNs))
	}
}

// TestGrace_FollowsLongestTTL: also that of a lease that was renewed for longer.
func TestGrace_FollowsLongestTTL(t *testing.T) {
	w := newWorld(t)
	w.quotas(slotsOf("s", 1))
	a := ask("me", itemOf("s", 1))
	a.TtlNs = 5 * second
	g := w.granted(a)
	w.do(renew(&logpb.Renew{Lease: g.Lease, Fence: g.Fence, TtlNs: 10 * minute}))
	w.sleep(10*minute + 2*second)
	if w.do(reserve(a)).GetGranted() != nil {
		t.Fatal("a lease of 10 min frees its slot 2 s after its deadline; a tenth is 1 min")
	}
}

// TestRevoke_OfDueLeaseFindsNothing: revoking an expired lease that is not ended yet finds nothing.
func TestRevoke_OfDueLeaseFindsNothing(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("q", 100_000, minute))
	for range 1100 {
		a := ask("me", itemOf("q", 1))
		a.TtlNs = second
		w.raw(reserve(a))
	}
	w.now = 2 * second
	r := w.raw(renew(&logpb.Renew{Lease: 1100, Fence: 1100}),
		&logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: 1100}}})
	if r[0].GetFailure() == nil || r[1].GetFailure() == nil {
		t.Fatalf("%v, and %v", r[0], r[1])
	}
}

// TestNextDue_IdleClusterHasNone: records of ended leases are kept for a day at most and need no entries.
func TestNextDue_IdleClusterHasNone(t *testing.T) {
	w := newWorld(t)
	w.quotas(&logpb.Quota{Name: "m", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 100_000, Every: logpb.Every_EVERY_MONTH}}})
	for range 1000 {
		a := ask("me", itemOf("m", 1))
		a.Consume, a.TtlNs = true, second
		w.raw(reserve(a))
	}
	w.now += 2 * hour
	w.raw()
	w.raw()
	_, pending := w.m.State().NextDue()
	if pending {
		t.Fatal("two hours after the last lease ended an entry is wanted")
	}
	w.sleep(day)
	if n := w.m.State().Counts().Operations; n > 0 {
		t.Fatalf("a day after the last lease ended: %d records", n)
	}
}
