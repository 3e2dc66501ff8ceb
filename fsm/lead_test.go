package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// counting is the longest time that a grant of pacedWorld's rate counts.
const counting = 62*second + 600*millisecond

// atLevel sets the feature level of the state.
func (w *world) atLevel(level uint32) { w.version, w.m.featureLevel = level, level }

// paidUntil returns a rate's pacer.
func (w *world) paidUntil() int64 { return w.m.quotas.named("r").pacer.paidUntil }

// overrunWorld has a critical call of 600 at 0, with an actual amount.
func overrunWorld(t tester, level uint32, actual int64) *world {
	w := pacedWorld(t)
	w.atLevel(level)
	w.do(used(w.granted(call("crit", 600)).Lease, 1, itemOf("r", actual)))
	return w
}

// servedFor returns the grants of each class during a period, while critical calls ask.
func (w *world) servedFor(period int64) (served []string) {
	most := map[string]int{"crit": 1, "std": 30, "back": 30}
	for until := w.now + period; w.now < until; w.sleep(1300 * millisecond) {
		for _, holder := range []string{"crit", "std", "back"} {
			if count := w.take(holder, 600, most[holder]); count > 0 {
				served = append(served, fmt.Sprintf("%v: %d of %s", time.Duration(w.now), count, holder))
			}
		}
	}
	return served
}

// TestPace_AnOverrunIsForgotten: one counting period after an overrun, however large, the ledger is empty, and lower
// classes are served as if it had not happened.
func TestPace_AnOverrunIsForgotten(t *testing.T) {
	usual := overrunWorld(t, levels.ShortLead, 600)
	usual.at(counting)
	want := usual.servedFor(2 * minute)
	for _, actual := range []int64{1000 * 60_000, fixed.MaxAmount} {
		for _, level := range []uint32{levels.ShortLead - 1, levels.ShortLead} {
			t.Run(fmt.Sprintf("%d at level %d", actual, level), func(t *testing.T) {
				w := overrunWorld(t, level, actual)
				w.at(counting)
				if left := w.available("r"); left != 60_000 {
					t.Fatalf("%d are left", left)
				}
				got := w.servedFor(2 * minute)
				if slices.Equal(got, want) != (level >= levels.ShortLead) {
					t.Errorf("served %v\nusually %v", got, want)
				}
			})
		}
	}
}

// TestPace_ALeadFromBefore: a state of a lower level may have a pacer that is hours ahead. The next change corrects it,
// and waiters are served when it lends then.
func TestPace_ALeadFromBefore(t *testing.T) {
	for name, touch := range map[string]struct {
		by   func(w *world, held *logpb.Granted)
		paid int64
	}{
		"a grant":     {func(w *world, _ *logpb.Granted) { w.granted(call("crit", 600)) }, counting},
		"an overrun":  {func(w *world, _ *logpb.Granted) { w.do(used(3, 1, itemOf("r", 601))) }, counting},
		"a release":   {func(w *world, held *logpb.Granted) { w.do(releases(held.Lease)) }, counting - 626*millisecond},
		"a new limit": {func(w *world, _ *logpb.Granted) { w.do(overrides("r", 59_000, hour)) }, counting},
		"a new rule":  {func(w *world, _ *logpb.Granted) { w.quotas(aged(pacedRate("r", 60_000, minute))) }, counting},
	} {
		t.Run(name, func(t *testing.T) {
			w := overrunWorld(t, levels.ShortLead-1, 1000*60_000)
			w.at(2 * minute)
			held := w.granted(ask("crit", itemOf("r", 600)))
			if open := w.granted(call("crit", 600)); open.Lease != 3 {
				t.Fatalf("lease %d", open.Lease)
			}
			waiting := call("std", 36_000)
			waiting.WaitNs = 10 * minute
			if w.do(reserve(waiting)).GetWaiting() == nil {
				t.Fatal("it does not wait")
			}
			if w.paidUntil() < 17*hour {
				t.Fatalf("the pacer is at %v", time.Duration(w.paidUntil()))
			}
			w.atLevel(levels.ShortLead)
			w.sleep(second)
			touch.by(w, held)
			if ahead := w.paidUntil() - w.now; ahead != touch.paid {
				t.Fatalf("the pacer is %v ahead, not %v", time.Duration(ahead), time.Duration(touch.paid))
			}
			lends := w.paidUntil() - minute/leadPart
			for w.now < lends {
				due, pending := w.m.State().NextDue()
				if !pending {
					due = lends
				}
				w.now = min(max(due, w.now+millisecond), lends)
				w.apply()
			}
			if !slices.ContainsFunc(w.last.Events, func(e effect.Event) bool { return e.Kind == effect.EventGranted }) {
				t.Errorf("at %v, when it is lent, the waiter gets %v", time.Duration(w.now), w.last.Events)
			}
		})
	}
}

// aged adds ageing to a quota.
func aged(q *logpb.Quota) *logpb.Quota {
	q.Policy.AgeingNs = 5 * minute
	return q
}

// TestPace_ALowerLimitKeepsTheLeadBounded: amounts that a rate lent before its limit fell count no longer than before.
func TestPace_ALowerLimitKeepsTheLeadBounded(t *testing.T) {
	for level, want := range map[uint32]int64{levels.ShortLead - 1: 2 * counting, levels.ShortLead: counting} {
		w := pacedWorld(t)
		w.atLevel(level)
		w.take("std", 600, 100)
		w.do(overrides("r", 30_000, hour))
		if w.paidUntil() != want {
			t.Errorf("level %d: with half the limit the pacer is at %v, not %v", level, time.Duration(w.paidUntil()), time.Duration(want))
		}
	}
}
