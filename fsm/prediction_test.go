package fsm

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

func predicted(q *logpb.Quota) *logpb.Quota {
	return policed(q, &logpb.Policy{Prediction: &logpb.Prediction{}})
}

// provided consumes one unit at once and reports the provider's remainder.
func (w *world) provided(holder, quota string, left int64) {
	w.t.Helper()
	g := w.granted(with(ask(holder, itemOf(quota, 1)), func(a *logpb.Reserve) { a.Consume = true }))
	w.reported(g, quota, left)
}

func (w *world) reported(g *logpb.Granted, quota string, left int64) {
	w.t.Helper()
	r := w.do(report(&logpb.Report{
		Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{signal(quota, logpb.Cause_CAUSE_OK, remaining(left))},
	}))
	if r.GetReported() == nil {
		w.t.Fatalf("not reported: %v", r)
	}
}

func (w *world) view(quota string) QuotaView {
	w.t.Helper()
	v, ok := w.m.State().Quota(quota, w.clock())
	if !ok {
		w.t.Fatalf("no quota %q", quota)
	}
	return v
}

// TestExhaustion_ByLeastSquares: lines of least squares, computed by hand.
func TestExhaustion_ByLeastSquares(t *testing.T) {
	at := func(seconds, left int64) sample { return sample{at: seconds * second, left: left} }
	for name, c := range map[string]struct {
		samples []sample
		want    int64
	}{
		"none":                    {nil, 0},
		"two are too few":         {[]sample{at(0, 100), at(1, 90)}, 0},
		"a straight line":         {[]sample{at(0, 100), at(1, 90), at(2, 80)}, 10 * second},
		"not at the beginning":    {[]sample{at(100, 100), at(101, 90), at(102, 80)}, 110 * second},
		"it does not fall":        {[]sample{at(0, 100), at(1, 100), at(2, 100)}, 0},
		"it rises":                {[]sample{at(0, 80), at(1, 90), at(2, 100)}, 0},
		"all at one moment":       {[]sample{at(5, 100), at(5, 90), at(5, 80)}, 0},
		"around a line":           {[]sample{at(0, 100), at(1, 92), at(2, 78), at(3, 70)}, 9_673 * millisecond}, // y = 100.6 - 10.4 x
		"the largest amounts":     {[]sample{at(0, fixed.MaxAmount), at(1, fixed.MaxAmount/2), at(2, 0)}, 1_999 * millisecond},
		"further than any window": {[]sample{at(0, fixed.MaxAmount), at(1, fixed.MaxAmount), at(3, fixed.MaxAmount-1)}, 0},
	} {
		if got := exhaustion(c.samples); got != c.want {
			t.Errorf("%s: %d ms, want %d", name, got/millisecond, c.want/millisecond)
		}
	}
}

// TestPrediction_Stages: first advice, then the fallback, then background work is parked. The prediction ends with
// the last report that supports it, with the window, or when it proves wrong.
func TestPrediction_Stages(t *testing.T) {
	w := newWorld(t)
	w.quotas(with(predicted(hourly("h", 10_000)), func(q *logpb.Quota) { q.Fallback = "other" }), hourly("other", 100))
	w.do(holders(&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground}))
	w.provided("a", "h", 1400)
	w.sleep(5 * second)
	w.provided("a", "h", 1350)
	if v := w.view("h"); v.Circuit != CircuitClosed || v.Forecast != nil || v.Samples != 2 {
		t.Fatalf("two reports: %v %v", v.Circuit, v.Forecast)
	}
	w.sleep(5 * second)
	w.provided("a", "h", 1300) // 10 a second: exhausted at 140 s
	if v := w.view("h"); v.Forecast != nil {
		t.Fatalf("130 s ahead: %v", v.Forecast)
	}
	w.sleep(20 * second)
	f := w.granted(ask("b", itemOf("h", 1))).Forecast
	if f.GetExhaustedAtNs() != 140*second || f.SmallerPpm != leastFactor || f.Fallback != "" || f.Parks {
		t.Fatalf("110 s ahead: %v", f)
	}
	back := ask("back", itemOf("h", 1))
	w.granted(back)
	w.sleep(30 * second) // at 80 s
	if f := w.view("h").Forecast; f.GetFallback() != "other" || f.Parks {
		t.Fatalf("80 s ahead: %v", f)
	}
	w.granted(back)
	w.sleep(40 * second)
	if no := w.refused(back, logpb.Reason_REASON_PARKED); no.RetryAtNs != 140*second || !no.Forecast.GetParks() {
		t.Fatalf("40 s ahead: %v", no)
	}
	if v := w.view("h"); v.Circuit != CircuitPreemptive {
		t.Fatalf("circuit %v", v.Circuit)
	}
	w.granted(ask("b", itemOf("h", 1)))
	w.reborn()
	w.refused(back, logpb.Reason_REASON_PARKED)
	w.sleep(40 * second) // it proved wrong, and there were no reports since
	w.granted(back)
}

// TestPrediction_EndWakesParkedWaiters: a background waiter is tried again when the prediction is over, and waiters behind
// it are served meanwhile.
func TestPrediction_EndWakesParkedWaiters(t *testing.T) {
	w := newWorld(t)
	w.quotas(predicted(hourly("h", 10_000)))
	w.do(holders(&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground}))
	for i := range int64(4) {
		w.provided("a", "h", 130-10*i) // exhausted at 13 s
		w.sleep(second)
	}
	var announced []effect.Event
	if announced = slices.DeleteFunc(slices.Clone(w.eventsOf(effect.EventForecast)),
		func(e effect.Event) bool { return e.Quota != "h" }); len(announced) != 1 {
		t.Fatalf("announced: %+v", announced)
	}
	ticket := w.waiting(waits("back", 0, minute, itemOf("h", 1)))
	w.granted(ask("std", itemOf("h", 1)))
	if at, _ := w.m.State().NextDue(); at > 13*second {
		t.Fatalf("the next entry would be written at %d ms", at/millisecond)
	}
	w.sleep(8 * second)
	if !w.m.State().Waiting(ticket) {
		t.Fatal("it was served while it was parked")
	}
	w.sleep(second)
	if w.m.State().Waiting(ticket) {
		t.Fatal("it still waits")
	}
}

// eventsOf applies all entries so far to a twin, and returns the events of a kind.
func (w *world) eventsOf(kind effect.EventKind) (events []effect.Event) {
	twin := New()
	for i, entry := range w.entries {
		for _, event := range twin.Apply(uint64(i+1), 1, entry).Events {
			if event.Kind == kind {
				events = append(events, event)
			}
		}
	}
	return events
}

// TestPrediction_IgnoresExhaustionAfterReset: a quota that lasts until its window closes has no forecast.
func TestPrediction_IgnoresExhaustionAfterReset(t *testing.T) {
	w := newWorld(t)
	w.now = hour - 100*second
	w.quotas(predicted(hourly("h", 10_000)))
	for i := range int64(4) {
		w.provided("a", "h", 1030-10*i) // lasts 103 s from here, the window 99 s
		w.sleep(second)
	}
	if v := w.view("h"); v.Forecast != nil || v.Samples != 4 {
		t.Fatalf("%v", v.Forecast)
	}
	for i := range int64(4) {
		w.provided("a", "h", 700-20*i)
		w.sleep(second)
	}
	if w.view("h").Forecast == nil {
		t.Fatal("it does not last now")
	}
	w.sleep(100 * second)
	if v := w.view("h"); v.Forecast != nil || v.Samples != 0 {
		t.Fatalf("in the next window: %v by %d reports", v.Forecast, v.Samples)
	}
}

// TestPrediction_IgnoresOvertakenReports: an overtaken report teaches nothing; a provider that began a new window does.
func TestPrediction_IgnoresOvertakenReports(t *testing.T) {
	w := newWorld(t)
	w.quotas(predicted(hourly("h", 10_000)))
	atOnce := func() *logpb.Granted {
		return w.granted(with(ask("a", itemOf("h", 1)), func(a *logpb.Reserve) { a.Consume = true }))
	}
	first, second1 := atOnce(), atOnce()
	w.sleep(second)
	w.reported(second1, "h", 1000)
	w.reported(first, "h", 1001) // it was delayed
	if v := w.view("h"); v.Samples != 1 {
		t.Fatalf("%d samples", v.Samples)
	}
	w.sleep(second)
	w.provided("a", "h", 990)
	w.sleep(second)
	w.provided("a", "h", 5000) // consumed after all reported calls: the provider has a new window
	if v := w.view("h"); v.Samples != 1 || v.Forecast != nil {
		t.Fatalf("%d samples", v.Samples)
	}
}

// TestPrediction_RefusesImpossible: invalid predictions are refused.
func TestPrediction_RefusesImpossible(t *testing.T) {
	w := newWorld(t)
	for _, q := range []*logpb.Quota{
		policed(rateOf("q", 10, minute), &logpb.Policy{Prediction: &logpb.Prediction{Samples: 10}}), predicted(slotsOf("q", 10)),
		policed(hourly("q", 10), &logpb.Policy{Prediction: &logpb.Prediction{Samples: 2}}),
		policed(hourly("q", 10), &logpb.Policy{Prediction: &logpb.Prediction{Samples: 101}}),
		policed(hourly("q", 10), &logpb.Policy{Prediction: &logpb.Prediction{AheadNs: 2 * hour}}),
	} {
		w.fails(applyQuotas(q), logpb.Reason_REASON_IMPOSSIBLE_QUOTA)
	}
}

// TestPrediction_IgnoresOrderOfReports: for any arrival order of one burst's reports, the prediction is that of their
// falling part. It never predicts less than half of the actual time left.
func TestPrediction_IgnoresOrderOfReports(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.quotas(policed(hourly("h", 1_000_000), &logpb.Policy{Prediction: &logpb.Prediction{AheadNs: hour}}))
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		left, a := int64(100_000), int64(rapid.IntRange(50, 200).Draw(t, "a second"))
		for range 20 {
			var leases []*logpb.Granted
			for range 4 {
				leases = append(leases, w.granted(with(ask("a", itemOf("h", 1)), func(a *logpb.Reserve) { a.Consume = true })))
			}
			w.sleep(second)
			left -= a
			for _, i := range random.Perm(len(leases)) {
				w.reported(leases[i], "h", left-int64(i))
			}
		}
		f := w.view("h").Forecast
		lasts := left / a
		if f == nil || f.ExhaustedAtNs-w.now < lasts*second/2 || f.ExhaustedAtNs-w.now > 2*lasts*second {
			t.Fatalf("%d a second, %d left, at %d s: %v", a, left, w.now/second, f)
		}
	})
}
