package fsm

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// predictedRate has 60,000 a minute, with a fallback.
func predictedRate(w *world) {
	w.quotas(with(predicted(rateOf("r", 60_000, minute)), func(q *logpb.Quota) { q.Fallback = "other" }), rateOf("other", 60_000, minute))
}

// burns consumes an amount a second in tenths of a second, each settled at once, until a moment.
func (w *world) burns(each, until int64) {
	w.t.Helper()
	for ; w.now < until; w.now += 100 * millisecond {
		r := w.raw(reserve(call("a", each/10)))
		g := r[0].GetGranted()
		if g == nil {
			w.t.Fatalf("not granted at %v: %v", time.Duration(w.now), r)
		}
		w.raw(used(g.Lease, 1, itemOf("r", each/10)))
	}
	w.apply()
}

// TestBurn_EvenUseLasts: 1,000 a second with 2,000 left, after even use for 58 s: the first amounts return in time.
func TestBurn_EvenUseLasts(t *testing.T) {
	w := newWorld(t)
	predictedRate(w)
	w.burns(1_000, 58*second)
	if v := w.view("r"); v.Available != 2_000 || v.Forecast != nil || v.Circuit != CircuitClosed {
		t.Fatalf("%d are left, and %v is predicted", v.Available, v.Forecast)
	}
}

// TestBurn_OfTheLastMoments: the same remainder and pace, but nothing returns for long. It lasts 2 s, calls get smaller
// and use the fallback, and nothing is parked.
func TestBurn_OfTheLastMoments(t *testing.T) {
	w := newWorld(t)
	predictedRate(w)
	w.do(holders(&logpb.HolderRule{Pattern: "back*", Class: ledger.ClassBackground}))
	w.at(48 * second)
	for range 50 { // all at once
		g := w.granted(call("a", 960))
		w.do(used(g.Lease, 1, itemOf("r", 960)))
	}
	w.burns(1_000, 58*second)
	w.reborn()
	f := w.view("r").Forecast
	if f == nil || f.ExhaustedAtNs != 60*second || f.Parks || f.Fallback != "other" {
		t.Fatalf("forecast %v", f)
	}
	// 2,000 and all that returns within a period are 60,000, as much as a period burns.
	if f.SmallerPpm < 990_000 || f.SmallerPpm > fixed.Million {
		t.Fatalf("calls should shrink to %d", f.SmallerPpm)
	}
	if g := w.granted(call("a", 10)); g.GetForecast().GetQuota() != "r" || g.Items[0].Quota != "r" {
		t.Fatalf("who does not allow it is granted %v", g)
	}
	if g := w.granted(with(call("a", 10), func(r *logpb.Reserve) { r.Fallback = true })); g.Items[0].Quota != "other" {
		t.Fatalf("who allows it is granted %v", g)
	}
	w.granted(call("back", 10))
}

// TestBurn_Advice: twice as much as returns lasts with calls of half the size; amounts returned unused do not count.
func TestBurn_Advice(t *testing.T) {
	w := newWorld(t)
	predictedRate(w)
	w.burns(2_000, 20*second)
	f := w.view("r").Forecast
	if f == nil || f.Fallback != "" || f.ExhaustedAtNs != 30*second || f.SmallerPpm < 490_000 || f.SmallerPpm > 510_000 {
		t.Fatalf("forecast %v", f)
	}
	w = newWorld(t)
	predictedRate(w)
	for ; w.now < 20*second; w.now += 100 * millisecond {
		g := w.raw(reserve(call("a", 200)))[0].GetGranted()
		w.raw(used(g.Lease, 1, itemOf("r", 50)))
	}
	if f := w.view("r").Forecast; f != nil {
		t.Fatalf("forecast %v", f)
	}
}

// TestBurn_Definitions: the prediction of a rate has no samples, looks a fifth of its period ahead, and is new in
// levels.Reports.
func TestBurn_Definitions(t *testing.T) {
	for name, c := range map[string]struct {
		quota *logpb.Quota
		level uint32
		ahead int64 // 0: refused
	}{
		"a minute":       {predicted(rateOf("r", 1, minute)), levels.Reports, 12 * second},
		"a second":       {predicted(rateOf("r", 1, second)), levels.Reports, 200 * millisecond},
		"an hour":        {predicted(rateOf("r", 1, hour)), levels.Reports, 2 * minute},
		"its own":        {policed(rateOf("r", 1, hour), &logpb.Policy{Prediction: &logpb.Prediction{AheadNs: minute}}), levels.Reports, minute},
		"too short":      {policed(rateOf("r", 1, hour), &logpb.Policy{Prediction: &logpb.Prediction{AheadNs: 1}}), levels.Reports, 0},
		"samples":        {policed(rateOf("r", 1, hour), &logpb.Policy{Prediction: &logpb.Prediction{Samples: 3}}), levels.Reports, 0},
		"slots":          {predicted(slotsOf("r", 1)), levels.Reports, 0},
		"a level before": {predicted(rateOf("r", 1, minute)), levels.Reports - 1, 0},
	} {
		r, failure := ledger.NewRule(c.quota, c.level)
		if (failure == nil) != (c.ahead != 0) || r.Policy.Prediction.Ahead != c.ahead {
			t.Errorf("%s: %v ahead, %v", name, time.Duration(r.Policy.Prediction.Ahead), failure)
		}
	}
}
