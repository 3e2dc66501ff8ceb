package fsm

import (
	"fmt"
	"slices"
	"testing"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestRetry_LiesInTheWindowOfItsClass: the retry times of a cooldown's refusals, for holders of all classes and for one
// that polls. They lie in the window of the class, not all together, and not always in the same order.
func TestRetry_LiesInTheWindowOfItsClass(t *testing.T) {
	const end = 20 * second
	w := newWorld(t)
	w.quotas(rateOf("r", 60_000, minute), rateOf("s", 60_000, minute))
	w.do(holders(&logpb.HolderRule{Pattern: "c*", Class: ledger.ClassCritical},
		&logpb.HolderRule{Pattern: "b*", Class: ledger.ClassBackground}))
	held := map[string]uint64{}
	for _, name := range []string{"c", "s", "b"} {
		held[name] = w.granted(ask(name, itemOf("r", 1))).Lease
	}
	g := w.granted(call("teller", 1))
	w.sendReport(g, logpb.Cause_CAUSE_SATURATED, retryAfter(end))
	last := map[string]int{}
	for round := range 30 {
		times := map[string]int64{}
		for class, name := range []string{"c", "s", "b"} {
			from, to := RetryWindow(int32(class))
			for i := range 4 {
				holder := fmt.Sprintf("%s%d", name, i)
				r := w.refused(call(holder, 1), logpb.Reason_REASON_COOLDOWN)
				if r.ReopensAtNs != end || r.RetryAtNs < end+from || r.RetryAtNs >= end+to {
					t.Fatalf("%s comes back at %d, it reopens at %d", holder, r.RetryAtNs, r.ReopensAtNs)
				}
				times[holder] = r.RetryAtNs
			}
			waiting := w.do(waits(name, 0, second, itemOf("r", 1))).GetRefusal()
			if waiting.GetReason() != logpb.Reason_REASON_CANNOT_SERVE_IN_TIME || waiting.RetryAtNs < end+from || waiting.RetryAtNs >= end+to {
				t.Fatalf("these wait in vain: %v", waiting)
			}
			consumed := w.do(consumes(held[name], 1)).GetRefusal()
			if consumed.GetReopensAtNs() != end || consumed.RetryAtNs < end+from || consumed.RetryAtNs >= end+to {
				t.Fatalf("what is held: %v", consumed)
			}
		}
		names := make([]string, 0, len(times))
		for name := range times {
			names = append(names, name)
		}
		slices.SortFunc(names, func(a, b string) int { return int(times[a] - times[b]) })
		for i := 1; i < len(names); i++ {
			if times[names[i]] == times[names[i-1]] {
				t.Fatalf("round %d: %s and %s come back together", round, names[i-1], names[i])
			}
		}
		last[names[3]]++ // the last of the critical ones
	}
	for name, times := range last {
		if times > 20 {
			t.Errorf("%s is the last of its class %d times of 30", name, times)
		}
	}
}

// TestRetry_FeatureLevel: before levels.Reports all retry at the end of the cooldown.
func TestRetry_FeatureLevel(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 60_000, minute))
	q := w.m.quotas.editNow(w.m.quotas.numberOf("r"))
	q.cooldown = 20 * second
	w.m.featureLevel = levels.Reports - 1
	if r := w.m.judge.coolingRefusal(q, "a", ledger.ClassStandard, q.cooldown); r.RetryAtNs != 20*second || r.ReopensAtNs != 0 {
		t.Fatalf("%v", r)
	}
}

// TestRetry_IsSpreadBehindARamp: if a ramp lets an amount through later than the cooldown ends, the window of the class
// begins then, and no two retry together.
func TestRetry_IsSpreadBehindARamp(t *testing.T) {
	for _, amount := range []int64{300, 600, 3_000} {
		w := newWorld(t)
		w.quotas(policed(rateOf("r", 60_000, minute), &logpb.Policy{Shares: fleetShares(), RampNs: minute}))
		w.do(holders(&logpb.HolderRule{Pattern: "c*", Class: ledger.ClassCritical},
			&logpb.HolderRule{Pattern: "b*", Class: ledger.ClassBackground}))
		w.sendReport(w.granted(call("teller", amount)), logpb.Cause_CAUSE_SATURATED, retryAfter(20*second))
		q := w.m.quotas.editNow(w.m.quotas.numberOf("r"))
		reopens := q.cooldown + q.letsThrough(0, amount)
		times := map[int64]string{}
		for class, name := range []string{"c", "s", "b"} {
			from, to := RetryWindow(int32(class))
			for i := range 4 {
				holder := fmt.Sprintf("%s%d", name, i)
				r := w.refused(call(holder, amount), logpb.Reason_REASON_COOLDOWN)
				if r.ReopensAtNs != q.cooldown || r.RetryAtNs < reopens+from || r.RetryAtNs >= reopens+to {
					t.Errorf("%s comes back for %d at %d, it reopens at %d, and for so much at %d", holder, amount, r.RetryAtNs, r.ReopensAtNs, reopens)
				}
				if other := times[r.RetryAtNs]; other != "" {
					t.Errorf("%s and %s come back for %d together", holder, other, amount)
				}
				times[r.RetryAtNs] = holder
			}
		}
	}
}
