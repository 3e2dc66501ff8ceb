package fsm

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// observedQuotas are definitions of each kind with every policy that they can have.
func observedQuotas() map[string]*logpb.Quota {
	everything := func() *logpb.Policy {
		return &logpb.Policy{RampNs: 30 * second, AgeingNs: 5 * minute, Breaker: &logpb.Breaker{Failures: 2, ClosedNs: minute}}
	}
	windows := func() *logpb.Policy {
		p := everything()
		p.Zones, p.Shares, p.Prediction = logpb.Zones_ZONES_SMOOTH, fleetShares(), &logpb.Prediction{Samples: 3}
		return p
	}
	strictly := windows()
	strictly.Zones = logpb.Zones_ZONES_STRICT
	rates := func() *logpb.Policy {
		p := everything()
		p.Shares = fleetShares()
		return p
	}
	burst := rateOf("q", 60, minute)
	burst.GetRate().Burst = 10
	clamped := hourly("q", 20)
	clamped.ClampHold = true
	return map[string]*logpb.Quota{
		"calendar": policed(clamped, windows()), "provider": policed(anchored("q", 20), strictly), "rate": policed(rateOf("q", 20, minute),
			rates()),
		"burst": policed(burst, rates()), "slots": policed(slotsOf("q", 6), everything()),
	}
}

// enforcing returns a world that continues from this one with its quota in force.
func (w *world) enforcing(definition *logpb.Quota) *world {
	w.t.Helper()
	restored, err := Restore(bytes.NewReader(snapshotOf(w.t, w.m.Freeze())))
	if err != nil {
		w.t.Fatal(err)
	}
	other := &world{t: w.t, m: restored, index: w.index, now: w.now, early: w.early, late: w.late}
	other.quotas(definition)
	return other
}

// TestObserve_CountsWhatWouldBeRefused: whatever the policy and the history, a grant is counted exactly if the same
// quota in force would have refused it in the same state.
func TestObserve_CountsWhatWouldBeRefused(t *testing.T) {
	kinds := []string{"calendar", "provider", "rate", "burst", "slots"}
	rapid.Check(t, func(t *rapid.T) {
		inForce := observedQuotas()[rapid.SampledFrom(kinds).Draw(t, "kind")]
		observes := proto.CloneOf(inForce)
		observes.Policy.Observe = true
		w := newWorld(t)
		w.quotas(observes)
		w.do(criticalAndBackground())
		var live []*logpb.Granted
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				w.sleep(rapid.SampledFrom([]int64{second, 10 * second, minute, 20 * minute}).Draw(t, "sleep"))
			case 1:
				if len(live) == 0 {
					continue
				}
				g := live[rapid.IntRange(0, len(live)-1).Draw(t, "lease")]
				cause := rapid.SampledFrom([]logpb.Cause{logpb.Cause_CAUSE_OK, logpb.Cause_CAUSE_SATURATED}).Draw(t, "cause")
				s := signal("q", cause, retryAfter(rapid.Int64Range(1, 90).Draw(t, "after")*second))
				s.Remaining = new(rapid.Int64Range(0, 20).Draw(t, "remaining"))
				w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{s}}))
			default:
				a := ask(rapid.SampledFrom([]string{"crit", "std", "back"}).Draw(t, "holder"), itemOf("q", rapid.Int64Range(1, 22).Draw(t, "amount")))
				a.Consume, a.TtlNs = rapid.Bool().Draw(t, "consume"), rapid.SampledFrom([]int64{second, 10 * minute}).Draw(t, "ttl")
				before := w.view("q").Observed
				refusal := w.enforcing(inForce).do(reserve(a)).GetRefusal()
				g := w.do(reserve(a)).GetGranted()
				if g == nil {
					t.Fatalf("what observes refused something")
				}
				live = append(live, g)
				if counted := w.view("q").Observed - before; (refusal != nil) != (counted == 1) || counted > 1 {
					t.Fatalf("%d counted; in force it says %v", counted, refusal)
				}
			}
		}
	})
}

// TestObserve_ReportShowsNoCooldown: a provider's refusal does not close an observing quota, so its reporter does
// not see it as closed. A client that believed it closed would hold back calls that are granted, and these would not be
// counted (seen in envoyproxy/ratelimit 423, whose cached answers were counted differently from its own).
func TestObserve_ReportShowsNoCooldown(t *testing.T) {
	observing := func(name string) *logpb.Quota {
		return policed(rateOf(name, 100, minute), &logpb.Policy{Observe: true})
	}
	tell(t, []story{
		{"it observes", []*logpb.Quota{observing("r")}, []line{
			{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(20*second))), "reported: r"},
			{0, asks("b", 0, itemOf("r", 1)), "lease 2: r=1 until 5m0s"},
		}},
		{"a parent that does not observe closes its child", []*logpb.Quota{rateOf("org", 100, minute), under(observing("r"), "org")}, []line{
			{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_ACCOUNT, retryAfter(20*second))), "reported: r closed until 20s"},
			{0, asks("b", 0, itemOf("r", 1)), "COOLDOWN org again at 20s"},
		}},
		{"a parent that observes closes nothing", []*logpb.Quota{observing("org"), under(rateOf("r", 100, minute), "org")}, []line{
			{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_ACCOUNT, retryAfter(20*second))), "reported: r"},
			{0, asks("b", 0, itemOf("r", 1)), "lease 2: r=1 until 5m0s"},
		}},
	})
}
