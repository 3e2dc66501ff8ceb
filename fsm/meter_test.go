package fsm

import (
	"bytes"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

func metered(q *logpb.Quota) *logpb.Quota { return policed(q, &logpb.Policy{Metering: true}) }

func (w *world) usage(holder, quota string) UsageView {
	w.t.Helper()
	views, _ := w.m.State().UsagePage(UsageFilter{Holder: holder, Quota: quota}, UsageMark{}, 10, w.clock())
	if len(views) != 1 {
		w.t.Fatalf("%d rows of %s and %s", len(views), holder, quota)
	}
	return views[0]
}

// TestMetering: the counters of holders, computed by hand.
func TestMetering(t *testing.T) {
	w := newWorld(t)
	w.quotas(metered(hourly("h", 100)), hourly("plain", 100), metered(rateOf("r", 10, minute)))
	g := w.granted(ask("a", itemOf("h", 30), itemOf("plain", 1), itemOf("r", 5)))
	w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 1, Items: []*logpb.Item{itemOf("h", 20), itemOf("r", 5)}}))
	w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Unspent: []*logpb.Item{itemOf("h", 4)}}))
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{signal("h", logpb.Cause_CAUSE_OK)}}))
	w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: 1, Actual: []*logpb.Item{itemOf("h", 10), itemOf("r", 7)}}))
	w.refused(ask("a", itemOf("h", 99)), logpb.Reason_REASON_EXHAUSTED)
	w.refused(ask("a", itemOf("h", 101)), logpb.Reason_REASON_NEVER_FITS)
	w.refused(ask("a", itemOf("h", 99)), logpb.Reason_REASON_EXHAUSTED)
	w.waiting(waits("a", 0, minute, itemOf("r", 9)))
	w.sleep(30 * second)
	w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: 2, Items: []*logpb.Item{itemOf("h", 1)}}))
	w.do(report(&logpb.Report{
		Lease: g.Lease, Fence: g.Fence, Op: 2, Signals: []*logpb.Signal{signal("h", logpb.Cause_CAUSE_SATURATED, retryAfter(second))},
	}))
	w.reborn()

	h := w.usage("a", "h")
	if h.Granted != 30 || h.Consumed != 21 || h.Returned != 10 || h.Overrun != 0 || h.Used != 20 || h.Reserved != 9 ||
		h.Answered != 1 || h.Limited != 1 || h.Share != 0 || h.Class != ledger.ClassStandard {
		t.Errorf("h: %+v", h)
	}
	if len(h.Denials) != 2 || h.Denials[0] != (Denial{logpb.Reason_REASON_NEVER_FITS, 1}) ||
		h.Denials[1] != (Denial{logpb.Reason_REASON_EXHAUSTED, 2}) {
		t.Errorf("denials: %v", h.Denials)
	}
	w.sleep(31 * second)
	r := w.usage("a", "r")
	if r.Consumed != 5 || r.Overrun != 2 || r.Used != -1 || r.Waits+int64(len(r.Denials)) != 1 {
		t.Errorf("r: %+v", r)
	}
	if views, _ := w.m.State().UsagePage(UsageFilter{Holder: "", Quota: "plain"}, UsageMark{}, 10, w.clock()); len(views) != 0 {
		t.Errorf("what is not metered: %v", views)
	}
	w.sleep(hour - second/2 - w.now)
	if h := w.usage("a", "h"); h.Used != 0 {
		t.Errorf("in the next window: %+v", h)
	}
	w.sleep(hour)
	w.sleep(hour)
	if views, _ := w.m.State().UsagePage(UsageFilter{Holder: "", Quota: ""}, UsageMark{}, 10, w.clock()); len(views) != 0 {
		t.Errorf("long after: %v", views)
	}
}

// TestMetering_OffForgetsUsage: counters are dropped with metering, and start at 0 when it is enabled again.
func TestMetering_OffForgetsUsage(t *testing.T) {
	w := newWorld(t)
	w.quotas(metered(hourly("h", 100)))
	g := w.granted(ask("a", itemOf("h", 50)))
	w.quotas(hourly("h", 100))
	if views, _ := w.m.State().UsagePage(UsageFilter{Holder: "", Quota: ""}, UsageMark{}, 10, w.clock()); len(views) != 0 {
		t.Errorf("%+v", views)
	}
	w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
	w.quotas(metered(hourly("h", 100)))
	w.granted(ask("a", itemOf("h", 7)))
	if u := w.usage("a", "h"); u.Used != 7 || u.Granted != 7 {
		t.Errorf("%+v", u)
	}
}

// TestMeters_AreBounded: holders that come and go fill the table up to its bound; holders with a share are counted
// beyond it.
func TestMeters_AreBounded(t *testing.T) {
	m := New()
	q := &quota{number: 1, definition: hourly("h", 100)}
	q.rule, _ = ledger.NewRule(policed(hourly("h", 100), &logpb.Policy{
		Metering: true, Shares: &logpb.Shares{Holders: []*logpb.HolderShare{{Holder: "owner", SharePpm: 100_000}}},
	}), EntryVersion)
	for i := range maxMeters {
		m.holders.meters.Set(&meter{holder: strconv.Itoa(i), quota: 1})
	}
	has := func(name string) bool { return m.holders.meterOf(q, name) != nil }
	if has("another") || !has("7") || !has("owner") {
		t.Errorf("%d meters", m.holders.meters.Len())
	}
}

// TestUsagePage_ListsEachRowOnce: every row is listed once, whatever the size of a page.
func TestUsagePage_ListsEachRowOnce(t *testing.T) {
	w := newWorld(t)
	w.quotas(metered(hourly("h", 100)), metered(rateOf("r", 100, minute)))
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		w.granted(ask(name, itemOf("h", 1), itemOf("r", 1)))
	}
	for size := 1; size <= 11; size++ {
		seen := map[string]int{}
		var mark UsageMark
		for range 20 {
			views, next := w.m.State().UsagePage(UsageFilter{}, mark, size, w.clock())
			for _, v := range views {
				seen[v.Holder+" "+v.Quota]++
			}
			if next == (UsageMark{}) {
				break
			}
			mark = next
		}
		if len(seen) != 10 {
			t.Fatalf("pages of %d: %v", size, seen)
		}
		for row, times := range seen {
			if times != 1 {
				t.Errorf("pages of %d: %s stands %d times", size, row, times)
			}
		}
	}
}

// TestShares_OfSingleHolders: the amounts kept for single holders.
func TestShares_OfSingleHolders(t *testing.T) {
	shared := policed(hourly("h", 1000), &logpb.Policy{Shares: &logpb.Shares{Holders: []*logpb.HolderShare{
		{Holder: "ceo", SharePpm: 300_000}, {Holder: "ralph", SharePpm: 200_000},
	}}})
	who := holders(
		&logpb.HolderRule{Pattern: "ceo", Class: ledger.ClassCritical}, &logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical},
		&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground},
	)
	tell(t, []story{
		{"kept against the same class and those below, not against critical ones", []*logpb.Quota{shared}, []line{
			{0, who, "applied"},
			{second, asks("std", 0, itemOf("h", 500)), "lease 1: h=500 until 5m1s"},
			{0, asks("std", 0, itemOf("h", 3)), "SHARE h again at 11.003s"}, // when 298 of 300 and 199 of 200 are kept
			{0, asks("ralph", 0, itemOf("h", 150)), "lease 2: h=150 until 5m1s"},
			{0, asks("ralph", 0, itemOf("h", 53)), "SHARE h again at 23.002s"}, // beyond its share it is treated like any other
			{0, asks("crit", 0, itemOf("h", 50)), "lease 3: h=50 until 5m1s"},  // of ralph's
			{0, asks("crit", 0, itemOf("h", 2)), "SHARE h again at 11.003s"},   // the rest is the ceo's
			{0, asks("ceo", 0, itemOf("h", 300)), "lease 4: h=300 until 5m1s"},
		}},
		{"who has a share is of the class that the rules give it now", []*logpb.Quota{shared}, []line{
			{0, who, "applied"},
			{second, asks("crit", 0, itemOf("h", 702)), "SHARE h again at 11.003s"}, // the ceo's share is kept from critical calls
			{0, holders(&logpb.HolderRule{Pattern: "ceo", Class: ledger.ClassBackground},
				&logpb.HolderRule{Pattern: "crit*", Class: ledger.ClassCritical}), "applied"},
			{0, asks("crit", 0, itemOf("h", 702)), "lease 1: h=702 until 5m1s"},
		}},
	})
	w := newWorld(t)
	w.quotas(shared)
	w.do(asks("ralph", hour, itemOf("h", 250)))
	w.do(asks("ceo", hour, itemOf("h", 100)))
	w.sleep(30 * minute)
	if v := w.usage("ralph", "h"); v.Share != 200 || v.Used != 250 || v.Borrowed != 50 || v.Lent != 0 {
		t.Errorf("ralph: %+v", v)
	}
	if v := w.usage("ceo", "h"); v.Share != 300 || v.Lent != 51 || v.Borrowed != 0 {
		t.Errorf("ceo: %+v", v) // 200 unused, of which a second less than half of 300 is kept
	}
	for name, bad := range map[string]*logpb.Shares{
		"classes too":  {CriticalPpm: 1, Holders: []*logpb.HolderShare{{Holder: "a", SharePpm: 1}}},
		"a pattern":    {Holders: []*logpb.HolderShare{{Holder: "a*", SharePpm: 1}}},
		"twice":        {Holders: []*logpb.HolderShare{{Holder: "a", SharePpm: 1}, {Holder: "a", SharePpm: 1}}},
		"more than 1":  {Holders: []*logpb.HolderShare{{Holder: "a", SharePpm: 600_000}, {Holder: "b", SharePpm: 600_000}}},
		"none":         {Holders: []*logpb.HolderShare{{Holder: "a"}}},
		"without name": {Holders: []*logpb.HolderShare{{SharePpm: 1}}},
	} {
		t.Run(name, func(t *testing.T) {
			w.t = t
			w.fails(applyQuotas(policed(hourly("q", 10), &logpb.Policy{Shares: bad})), logpb.Reason_REASON_IMPOSSIBLE_QUOTA)
		})
	}
}

// TestUsage_OfHolderIsSumOfRecords: a holder's use of a window is the sum over its leases and operations.
func TestUsage_OfHolderIsSumOfRecords(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.quotas(metered(hourly("h", 1000)), under(metered(hourly("child", 500)), "h"))
		var live []*logpb.Granted
		ops := map[uint64]uint64{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			w.now += rapid.Int64Range(0, 10*minute).Draw(t, "pass")
			switch step := rapid.IntRange(0, 4).Draw(t, "step"); {
			case step == 0 || len(live) == 0:
				quota := rapid.SampledFrom([]string{"h", "child"}).Draw(t, "quota")
				a := ask(rapid.SampledFrom([]string{"a", "b"}).Draw(t, "who"), itemOf(quota, rapid.Int64Range(1, 100).Draw(t, "amount")))
				if g := w.do(reserve(a)).GetGranted(); g != nil {
					live = append(live, g)
				}
			default:
				g := rapid.SampledFrom(live).Draw(t, "lease")
				some := []*logpb.Item{itemOf(g.Items[0].Quota, rapid.Int64Range(1, g.Items[0].Amount).Draw(t, "part"))}
				switch step {
				case 1:
					ops[g.Lease]++
					w.do(consumeCmd(&logpb.Consume{Lease: g.Lease, Fence: g.Fence, Op: ops[g.Lease], Items: some}))
				case 2:
					w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: max(ops[g.Lease], 1), Unspent: some}))
				case 3:
					w.do(settle(&logpb.Settle{Lease: g.Lease, Fence: g.Fence, Op: max(ops[g.Lease], 1), Actual: some}))
				case 4:
					w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
				}
			}
			for _, name := range []string{"a", "b"} {
				checkUse(t, w, name)
			}
		}
	})
}

func checkUse(t *rapid.T, w *world, name string) {
	views, _ := w.m.State().UsagePage(UsageFilter{Holder: name, Quota: ""}, UsageMark{}, 10, w.clock())
	for _, v := range views {
		q := w.m.quotas.named(v.Quota)
		window := q.ledgerAt(w.clock()).Window // it may have closed since the last command on the quota
		var sum int64
		w.m.leases.Scan(func(_ uint64, l *lease) bool {
			for i := range l.items {
				if it := &l.items[i]; l.holder == name && it.quota == q.number && it.window == window {
					sum += it.held
				}
			}
			return true
		})
		w.m.eachOperation(func(o *operation) bool {
			for i := range o.charges {
				if c := &o.charges[i]; o.holder == name && c.quota == q.number && c.window == window {
					sum += c.amount
				}
			}
			return true
		})
		// An operation counts as used even if its record is dropped.
		if v.Used < sum {
			t.Fatalf("%s used %d of %s, its records say %d", name, v.Used, v.Quota, sum)
		}
	}
}

// TestMeter_OfFrozenStateNeverChanges: including the refusals of its holder.
func TestMeter_OfFrozenStateNeverChanges(t *testing.T) {
	w := newWorld(t)
	w.quotas(metered(hourly("h", 100)))
	w.granted(ask("a", itemOf("h", 30)))
	w.refused(ask("a", itemOf("h", 99)), logpb.Reason_REASON_EXHAUSTED)
	frozen := w.m.Freeze()
	before := snapshotOf(t, frozen)
	w.refused(ask("a", itemOf("h", 99)), logpb.Reason_REASON_EXHAUSTED)
	w.granted(ask("a", itemOf("h", 1)))
	if !bytes.Equal(snapshotOf(t, frozen), before) {
		t.Error("it changed")
	}
}
