package fsm

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestUsage_OfLearnedWindowIgnoresEarlierUse: use from long before a window, without a known reset, does not count as use of it.
func TestUsage_OfLearnedWindowIgnoresEarlierUse(t *testing.T) {
	for _, again := range []bool{false, true} {
		w := newWorld(t)
		next := func(d int64) {
			if w.sleep(d); again {
				w.reborn()
			}
		}
		shares := &logpb.Shares{Holders: []*logpb.HolderShare{{Holder: "a", SharePpm: 300_000}}}
		w.quotas(policed(anchored("q", 1000), &logpb.Policy{Shares: shares, Metering: true}),
			policed(anchored("p", 1000), &logpb.Policy{Shares: fleetShares()}))
		w.do(consumesAtOnce("a", itemOf("q", 500), itemOf("p", 500)))
		next(30 * minute)
		w.do(consumesAtOnce("a", itemOf("q", 30), itemOf("p", 30)))
		w.do(consumesAtOnce("b", itemOf("q", 7), itemOf("p", 7)))
		next(40 * minute)
		g := w.granted(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("q", 2), itemOf("p", 2)}, Consume: true})
		next(second)
		for _, of := range []string{"q", "p"} {
			w.do(reports(g.Lease, 1, signal(of, logpb.Cause_CAUSE_OK, resetAfter(20*minute))))
		}
		next(second)
		if a, b := w.usage("a", "q").Used, w.usage("b", "q").Used; a != 32 || b != 7 {
			t.Errorf("holders used %d and %d, want 32 and 7", a, b)
		}
		if used := w.view("p").Classes[ledger.ClassStandard].Used; used != 39 {
			t.Errorf("their class used %d, want 39", used)
		}
		next(20 * minute) // use at the boundary counts in both windows, and was of the first
		if used := w.view("p").Classes[ledger.ClassStandard].Used; used != 0 {
			t.Errorf("in the next window their class used %d", used)
		}
	}
}

// usedOf sums a state's leases and operations for a quota's present window, by class and by holder.
func usedOf(s *State, q *quota) (classes [ledger.Classes]int64, holders map[string]int64) {
	holders = map[string]int64{}
	s.leases.Scan(func(_ uint64, l *lease) bool {
		for i := range l.items {
			if it := &l.items[i]; it.quota == q.number {
				classes[l.class] += it.heldOf(q)
				holders[l.holder] += it.heldOf(q)
			}
		}
		return true
	})
	s.eachOperation(func(o *operation) bool {
		for i := range o.charges {
			if c := &o.charges[i]; c.quota == q.number && c.window == q.ledger.Window && q.ledger.Counts(c.end) {
				classes[c.class] += c.amount
				holders[o.holder] += c.amount
			}
		}
		return true
	})
	return classes, holders
}

// TestUsage_IsSumOfLeasesAndOperations: whatever happens to a provider's windows, known or not, the use of the present
// one by classes and holders is the sum of their leases and operations. No record ends: the leases live on, and no
// operation is finished.
func TestUsage_IsSumOfLeasesAndOperations(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt)
		during := anchored("during", 10_000)
		during.Charged = logpb.Charged_CHARGED_END
		names := []string{"start", "during"}
		policy := &logpb.Policy{Metering: true, Shares: &logpb.Shares{Holders: []*logpb.HolderShare{{Holder: "crit", SharePpm: 100_000}}}}
		w.quotas(policed(anchored("start", 10_000), policy), policed(during, policy))
		w.do(holders(&logpb.HolderRule{Pattern: "crit", Class: ledger.ClassCritical},
			&logpb.HolderRule{Pattern: "back", Class: ledger.ClassBackground}))
		var leases []uint64
		ops := map[uint64]uint64{}
		amount := rapid.Int64Range(1, 40)
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			kind := rapid.IntRange(0, 7).Draw(rt, "kind")
			if kind > 2 && len(leases) == 0 {
				kind = 0
			}
			of := rapid.SampledFrom(names).Draw(rt, "quota")
			switch kind {
			case 0:
				r := w.do(asks(rapid.SampledFrom([]string{"crit", "std", "back"}).Draw(rt, "holder"), day, itemOf("start", amount.Draw(rt, "n")),
					itemOf("during", amount.Draw(rt, "n"))))
				if g := r.GetGranted(); g != nil {
					leases = append(leases, g.Lease)
				}
			case 1:
				w.sleep(rapid.Int64Range(1, 90*minute).Draw(rt, "for"))
			case 2:
				w.reborn()
			default:
				l := rapid.SampledFrom(leases).Draw(rt, "lease")
				item := itemOf(of, amount.Draw(rt, "n"))
				switch kind {
				case 3, 4:
					if r := w.do(consumes(l, ops[l]+1, item)); r.GetConsumed() != nil {
						ops[l]++
					}
				case 5:
					w.do(settle(&logpb.Settle{Lease: l, Fence: l, Op: ops[l], Actual: []*logpb.Item{item}}))
				case 6:
					w.do(unspends(l, ops[l], item))
				case 7:
					w.do(reports(l, ops[l], signal(of, logpb.Cause_CAUSE_OK, resetAfter(rapid.Int64Range(second, hour).Draw(rt, "reset")))))
				}
			}
			for _, name := range names {
				q := w.m.quotas.named(name)
				byClass, byHolder := usedOf(w.m.State(), q)
				var used [ledger.Classes]int64
				for class := range used {
					used[class] = q.ledger.Used[class].Amount
				}
				if used != byClass {
					rt.Fatalf("%s: classes have used %v, their leases and operations %v", name, used, byClass)
				}
				for holder, amount := range byHolder {
					if used := w.m.holders.usedBy(q, holder); used != amount {
						rt.Fatal(fmt.Sprintf("%s: %s has used %d, its leases and operations %d", name, holder, used, amount))
					}
				}
			}
		}
	})
}
