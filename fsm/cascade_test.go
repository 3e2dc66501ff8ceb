package fsm

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
)

// releaseChain is the chain of the scenarios: each stage passes its work to the next.
func releaseChain() *logpb.Workflow {
	return chain("release", "triage", "architecture", "implementation", "deployment", "announcement")
}

// limitedBy makes the provider refuse a holder's call for a time.
func limitedBy(lease uint64, quota string, wait int64) *logpb.Command {
	return reports(lease, 1, signal(quota, logpb.Cause_CAUSE_SATURATED, retryAfter(wait)))
}

// TestReopen_EndsTheLimitsOfSteps: an operator who reopens a quota ends the limits of steps caused by its closing, and
// no others.
func TestReopen_EndsTheLimitsOfSteps(t *testing.T) {
	quotas := []*logpb.Quota{
		rateOf("r", 100, minute), rateOf("s", 100, minute), rateOf("org", 100, minute),
		with(rateOf("below", 2, minute), func(q *logpb.Quota) { q.Parent = "org" }),
	}
	limited := func(quota string) []line {
		return []line{
			{0, workflows(releaseChain()), "applied"},
			{0, consumesAtOnce("implementation", itemOf(quota, 1)), "lease 1: " + quota + "=1 until 5m0s; op 1 spends " + quota + "=1 by 2s"},
		}
	}
	tell(t, []story{
		{"upstream continues at once", quotas, append(limited("r"), []line{
			{second, limitedBy(1, "r", 20*second), "reported: r closed until 21s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{second, reopens("r"), "done"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 2: s=1 until 5m2s"},
		}...)},
		{"another quota's limit stays", quotas, append(limited("r"), []line{
			{second, limitedBy(1, "r", 20*second), "reported: r closed until 21s"},
			{0, reopens("s"), "done"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
		}...)},
		{"a limit below the reopened one ends with it", quotas, append(limited("below"), []line{
			{second, reports(1, 1, signal("below", logpb.Cause_CAUSE_ACCOUNT, retryAfter(20*second))), "reported: below closed until 21s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{0, reopens("below"), "done"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{0, reopens("org"), "done"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
		}...)},
		{"what is used up stays a limit", quotas, append(limited("below"), []line{
			{0, consumesAtOnce("outsider", itemOf("below", 1)), "lease 2: below=1 until 5m0s; op 1 spends below=1 by 2s"},
			{second, limitedBy(1, "below", 20*second), "reported: below closed until 21s"},
			{0, reopens("below"), "done"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
		}...)},
		{"all go again as soon as it was calm without it", quotas, append(limited("r"), []line{
			{second, limitedBy(1, "r", 5*minute), "reported: r closed until 5m1s"},
			{0, asks("deployment", 0, itemOf("r", 1)), "COOLDOWN r again at 5m1s"},
			{0, asks("announcement", 0, itemOf("r", 1)), "COOLDOWN r again at 5m1s"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{minute - second, asks("architecture", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m1s"},
			{2 * second, reopens("r"), "done"},
			{0, asks("architecture", 0, itemOf("s", 1)), "lease 3: s=1 until 6m2s"},
		}...)},
	})
}

// TestWorkflow_PausesUpstreamOfLimited: holders upstream of a limited one are paused until that one was served, or had the time to be
// (design 6.9).
func TestWorkflow_PausesUpstreamOfLimited(t *testing.T) {
	quotas := []*logpb.Quota{rateOf("r", 100, minute), rateOf("s", 100, minute)}
	begins := []line{
		{0, workflows(releaseChain()), "applied"},
		{0, consumesAtOnce("implementation", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
		{second, limitedBy(1, "r", 20*second), "reported: r closed until 21s"},
	}
	then := func(lines ...line) []line { return append(slices.Clone(begins), lines...) }
	tell(t, []story{
		{"before it meets the limit itself; downstream continues", quotas, then([]line{
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{0, asks("architecture", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{0, asks("implementation", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"}, // that quota does not limit it
			{0, asks("deployment", 0, itemOf("s", 1)), "lease 3: s=1 until 5m1s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
		}...)},
		{"until the limited one was served", quotas, then([]line{
			{20 * second, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{0, asks("implementation", 0, itemOf("r", 1)), "lease 2: r=1 until 5m21s"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 3: s=1 until 5m21s"},
		}...)},
		{"or has had the time to come", quotas, then([]line{
			{25*second - 1, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
			{1, asks("triage", 0, itemOf("s", 1)), "lease 2: s=1 until 5m26s"},
		}...)},
		{"in the queue it is passed over, and served as soon as it may", quotas, then([]line{
			{0, waits("triage", 0, minute, itemOf("s", 1)), "waits as 1 until 1m1s"},
			{0, asks("outsider", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{20 * second, asks("implementation", 0, itemOf("r", 1)), "lease 3: r=1 until 5m21s"},
			{0, withdraw(1), "! UNKNOWN_TICKET"},
		}...)},
		{"time alone serves it too", quotas, then([]line{
			{0, waits("triage", 0, minute, itemOf("s", 1)), "waits as 1 until 1m1s"},
			{25 * second, withdraw(1), "! UNKNOWN_TICKET"},
		}...)},
		{"a holder of no workflow, and one on another branch, continue", quotas, []line{
			{0, workflows(graph("w", after("start"), after("left", "start"), after("right", "start"))), "applied"},
			{0, consumesAtOnce("left", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{second, limitedBy(1, "r", 20*second), "reported: r closed until 21s"},
			{0, asks("outsider", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{0, asks("right", 0, itemOf("s", 1)), "lease 3: s=1 until 5m1s"},
			{0, asks("start", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 26s"},
		}},
		{"nobody for longer than a pause: then one grant per pause", quotas, []line{
			{0, workflows(with(releaseChain(), func(w *logpb.Workflow) { w.PauseNs = 10 * second })), "applied"},
			{0, consumesAtOnce("implementation", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{second, limitedBy(1, "r", 40*second), "reported: r closed until 41s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 11s"},
			{10 * second, asks("triage", 0, itemOf("s", 1)), "lease 2: s=1 until 5m11s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 21s"},
			{0, asks("architecture", 0, itemOf("s", 1)), "lease 3: s=1 until 5m11s"},
		}},
		{"a refusal limits too, and so does a wait that begins", quotas, []line{
			{0, workflows(releaseChain()), "applied"},
			{0, asks("outsider", hour, itemOf("r", 100)), "lease 1: r=100 until 1h0m0s"},
			{0, asks("implementation", 0, itemOf("r", 1)), "EXHAUSTED r again at 5s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 10s"},
			{10 * second, waits("implementation", 0, minute, itemOf("r", 1)), "waits as 1 until 1m10s"},
			{0, asks("triage", 0, itemOf("s", 1)), "BACK_PRESSURE s again at 20s"},
		}},
		{
			"an answer that is no limit does not, and another denial is none",
			[]*logpb.Quota{rateOf("r", 100, minute), strict(hourly("h", 10))},
			[]line{
				{0, workflows(releaseChain()), "applied"},
				{0, asks("outsider", 0, itemOf("h", 9)), "lease 1: h=9 until 5m0s"},
				{0, consumesAtOnce("implementation", itemOf("r", 1)), "lease 2: r=1 until 5m0s; op 1 spends r=1 by 2s"},
				{0, reports(2, 1, signal("r", logpb.Cause_CAUSE_OVERLOADED)), "reported: r"},
				{0, asks("implementation", 0, itemOf("h", 1)), "ZONE h again at 56m59.0018s"},
				{0, asks("triage", 0, itemOf("r", 1)), "lease 3: r=1 until 5m0s"},
			},
		},
		{"what only observes is not withheld", []*logpb.Quota{
			rateOf("r", 100, minute), policed(rateOf("s", 1, minute), &logpb.Policy{Observe: true}),
		}, []line{
			{0, workflows(releaseChain()), "applied"},
			{0, consumesAtOnce("implementation", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{second, limitedBy(1, "r", 20*second), "reported: r closed until 21s"},
			{0, asks("triage", 0, itemOf("s", 5)), "lease 2: s=5 until 5m1s"},
			{0, asks("triage", 0, itemOf("s", 5), itemOf("r", 1)), "COOLDOWN r again at 26s"},
		}},
	})
}

// limitThree limits three stages by a closed quota within 30 s, which makes the chain sequential. The quota is closed
// until 20 s.
func limitThree() []line {
	return []line{
		{0, workflows(releaseChain()), "applied"},
		{0, consumesAtOnce("implementation", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
		{0, limitedBy(1, "r", 20*second), "reported: r closed until 20s"},
		{0, asks("deployment", 0, itemOf("r", 1)), "COOLDOWN r again at 20s"},
		{0, asks("announcement", 0, itemOf("r", 1)), "COOLDOWN r again at 20s"},
	}
}

// TestWorkflow_RunsOneStepAtATime: three steps are limited within 30 s, and the workflow is sequential, in workflow order, until calm
// (design 6.9).
func TestWorkflow_RunsOneStepAtATime(t *testing.T) {
	quotas := []*logpb.Quota{rateOf("r", 1000, minute), rateOf("s", 1000, minute)}
	then := func(lines ...line) []line { return append(limitThree(), lines...) }
	tell(t, []story{
		{"the first to come has the turn, until its lease ends", quotas, then([]line{
			{second, asks("deployment", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{0, asks("deployment", 0, itemOf("s", 1)), "lease 3: s=1 until 5m1s"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, asks("outsider", 0, itemOf("s", 1)), "lease 4: s=1 until 5m1s"},
			{0, releases(2), "back s=1; ended"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, releases(3), "back s=1; ended"},
			{0, asks("architecture", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"}, // triage asked before, so it has the offer
			{0, asks("triage", 0, itemOf("s", 1)), "lease 5: s=1 until 5m1s"},
		}...)},
		{"then it goes round in workflow order", quotas, then([]line{
			{second, asks("deployment", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, asks("deployment", 0, itemOf("s", 1)), "lease 3: s=1 until 5m1s"},
			{0, asks("architecture", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, releases(2), "back s=1; ended"},
			{0, releases(3), "back s=1; ended"},
			{0, asks("architecture", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 4: s=1 until 5m1s"},
			{0, releases(4), "back s=1; ended"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, asks("architecture", 0, itemOf("s", 1)), "lease 5: s=1 until 5m1s"},
		}...)},
		{"who wants it and does not come loses it", quotas, then([]line{
			{second, asks("deployment", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, releases(2), "back s=1; ended"},
			{9 * second, asks("architecture", 0, itemOf("s", 1)), "SEQUENTIAL s again at 11s"},
			{second, asks("architecture", 0, itemOf("s", 1)), "lease 3: s=1 until 5m11s"},
		}...)},
		{"waiters are served in workflow order when the quota reopens", quotas, then([]line{
			{0, waits("announcement", 0, minute, itemOf("r", 1)), "waits as 1 until 1m0s"},
			{0, waits("architecture", 0, minute, itemOf("r", 1)), "waits as 3 until 1m0s"},
			{0, waits("triage", 0, minute, itemOf("r", 1)), "waits as 5 until 1m0s"},
			{20 * second, renews(2, minute), "until 1m20s"},
			{0, withdraw(1), "done"}, // it still waits
			{0, releases(2), "back r=1; ended"},
			{0, renews(3, minute), "until 1m20s"},
		}...)},
		{"a turn ends at its deadline, and with it its leases, however they are renewed", quotas, []line{
			{0, workflows(with(releaseChain(), func(w *logpb.Workflow) { w.BatonTimeNs, w.CalmNs = 10*second, hour })), "applied"},
			{0, asks("deployment", hour, itemOf("s", 1)), "lease 1: s=1 until 1h0m0s"}, // before the switch: not affected
			{0, consumesAtOnce("implementation", itemOf("r", 1)), "lease 2: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, limitedBy(2, "r", 2*second), "reported: r closed until 2s"},
			{0, asks("deployment", 0, itemOf("r", 1)), "COOLDOWN r again at 2s"},
			{0, asks("announcement", 0, itemOf("r", 1)), "COOLDOWN r again at 2s"},
			{second, asks("triage", hour, itemOf("s", 1)), "lease 3: s=1 until 11s"},
			{5 * second, renews(3, hour), "until 11s"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 4: s=1 until 11s"},
			{0, waits("deployment", 0, minute, itemOf("s", 1)), "waits as 1 until 1m6s"},
			{5*second - 1, renews(4, hour), "until 11s"},
			{1, renews(4, 0), "! STALE_FENCE"},
			{0, renews(5, hour), "until 21s"}, // the waiter's
			{0, renews(1, 2*hour), "until 2h0m11s"},
		}},
		{"a holder that crashed blocks nobody beyond its lease", quotas, then([]line{
			{second, asks("deployment", 3*second, itemOf("s", 1)), "lease 2: s=1 until 4s"},
			{0, waits("architecture", 0, minute, itemOf("s", 1)), "waits as 1 until 1m1s"},
			{3 * second, renews(3, 0), "until 5m4s"},
		}...)},
		{"calm counts from when the last limit is over, and then all go", quotas, then([]line{
			{second, asks("deployment", hour, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{minute + 19*second - 1, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m20.999999999s"},
			{1, asks("triage", 0, itemOf("s", 1)), "lease 3: s=1 until 6m20s"},
			{0, renews(2, hour), "until 1h1m20s"}, // no baton ends it any more
			{0, asks("triage", 0, itemOf("s", 1)), "lease 4: s=1 until 6m20s"},
		}...)},
		{"who is limited again keeps it so", quotas, then([]line{
			{minute, consumesAtOnce("triage", itemOf("r", 1)), "lease 2: r=1 until 6m0s; op 1 spends r=1 by 1m2s"},
			{0, limitedBy(2, "r", 30*second), "reported: r closed until 1m30s"},
			{0, releases(2), "back; ended"},
			{minute + 30*second - 1, asks("deployment", 0, itemOf("s", 1)), "lease 3: s=1 until 7m29.999999999s"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2m30.999999999s"},
			{1, asks("triage", 0, itemOf("s", 1)), "lease 4: s=1 until 7m30s"},
		}...)},
		{"two within the time, or three over a longer one, are not three", quotas, []line{
			{0, workflows(releaseChain()), "applied"},
			{0, asks("outsider", hour, itemOf("r", 1000)), "lease 1: r=1000 until 1h0m0s"},
			{10 * second, asks("triage", 0, itemOf("r", 1)), "EXHAUSTED r again at 15s"},
			{0, asks("triage", 0, itemOf("r", 1)), "EXHAUSTED r again at 15s"},
			{31 * second, asks("deployment", 0, itemOf("r", 1)), "EXHAUSTED r again at 46s"},
			{0, asks("announcement", 0, itemOf("r", 1)), "EXHAUSTED r again at 46s"},
			{0, asks("announcement", 0, itemOf("s", 1)), "lease 2: s=1 until 5m41s"},
			{0, asks("announcement", 0, itemOf("s", 1)), "lease 3: s=1 until 5m41s"},
			{29 * second, asks("implementation", 0, itemOf("r", 1)), "EXHAUSTED r again at 1m15s"}, // three
			{0, asks("deployment", 0, itemOf("s", 1)), "lease 4: s=1 until 6m10s"},
			{0, asks("announcement", 0, itemOf("s", 1)), "SEQUENTIAL s again at 1m11s"},
		}},
		{
			"what only observes needs no turn, and takes none",
			append(slices.Clone(quotas), policed(rateOf("o", 1, minute), &logpb.Policy{Observe: true})), then([]line{
				{second, asks("announcement", 0, itemOf("o", 1)), "lease 2: o=1 until 5m1s"},
				{0, asks("deployment", 0, itemOf("s", 1)), "lease 3: s=1 until 5m1s"},
				{0, asks("announcement", hour, itemOf("o", 1)), "lease 4: o=1 until 1h0m1s"},
				{0, releases(3), "back s=1; ended"},
				{0, asks("triage", 0, itemOf("s", 1)), "lease 5: s=1 until 5m1s"},
			}...),
		},
		{"an operator's command ends it", quotas, then([]line{
			{second, asks("deployment", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{0, waits("triage", 0, minute, itemOf("s", 1)), "waits as 1 until 1m1s"},
			{0, deletesWorkflow("release"), "done"},
			{0, renews(3, 0), "until 5m1s"},
			{0, workflows(releaseChain()), "applied"},
			{0, asks("announcement", 0, itemOf("s", 1)), "lease 4: s=1 until 5m1s"},
		}...)},
		{"one that is applied as before continues", quotas, then([]line{
			{second, asks("deployment", 0, itemOf("s", 1)), "lease 2: s=1 until 5m1s"},
			{0, workflows(chain("another", "x", "y"), releaseChain()), "applied"},
			{0, asks("triage", 0, itemOf("s", 1)), "SEQUENTIAL s again at 2s"},
			{0, workflows(with(releaseChain(), func(w *logpb.Workflow) { w.Threshold = 2 })), "applied"},
			{0, asks("triage", 0, itemOf("s", 1)), "lease 3: s=1 until 5m1s"},
		}...)},
	})
}

// sayEvent describes an event of a workflow in a few words.
func sayEvent(e *effect.Event) string {
	var word string
	switch e.Kind {
	case effect.EventBackPressure:
		word = "pressure"
	case effect.EventSequential:
		word = "sequential"
	case effect.EventBaton:
		word = "turn"
	case effect.EventParallel:
		word = "parallel"
	default:
		return ""
	}
	return strings.Join(strings.Fields(fmt.Sprintf("%s %s %s %s %v", word, e.Holder, e.Step, e.Quota, time.Duration(e.Duration))), " ")
}

// TestWorkflow_NotifiesNeighbours: which holders are notified of what, and when: those up- and downstream before their next call.
func TestWorkflow_NotifiesNeighbours(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute), rateOf("s", 100, minute))
	w.do(workflows(releaseChain()))
	heard := func(what string, want ...string) {
		t.Helper()
		var got []string
		for i := range w.last.Events {
			if said := sayEvent(&w.last.Events[i]); said != "" {
				got = append(got, said)
			}
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%s: %q, want %q", what, got, want)
		}
	}
	w.do(consumesAtOnce("implementation", itemOf("r", 1)))
	heard("nothing is limited")
	w.do(limitedBy(1, "r", 20*second))
	var all []string
	for _, name := range []string{"triage", "architecture", "implementation", "deployment", "announcement"} {
		all = append(all, "pressure "+name+" implementation r 20s")
	}
	heard("a limit", all...)
	w.do(asks("implementation", 0, itemOf("r", 1)))
	heard("the same again")
	for holder, side := range map[string]logpb.Side{
		"triage": logpb.Side_SIDE_UPSTREAM, "implementation": logpb.Side_SIDE_SELF, "announcement": logpb.Side_SIDE_DOWNSTREAM,
	} { // in any order
		r := w.do(asks(holder, 0, itemOf("s", 1)))
		p := r.GetRefusal().GetBackPressure()
		if g := r.GetGranted(); g != nil {
			p = g.BackPressure
		}
		if p.GetStep() != "implementation" || p.Quota != "r" || p.Side != side || p.UntilNs != 20*second || p.Sequential ||
			p.Workflow != "release" {
			t.Errorf("%s: %v", holder, r)
		}
	}
	if r := w.do(asks("outsider", 0, itemOf("s", 1))); r.GetGranted() == nil || r.GetGranted().BackPressure != nil {
		t.Errorf("a holder of no workflow: %v", r)
	}
	w.do(asks("deployment", 0, itemOf("r", 1)))
	w.do(asks("announcement", 0, itemOf("r", 1)))
	if said := sayEvent(&w.last.Events[len(w.last.Events)-2]); said != "sequential 1m0s" {
		t.Errorf("the switch: %s", said)
	}
	w.do(asks("triage", 0, itemOf("s", 1)))
	heard("the first to come", "turn triage 5m0s")
	p := w.do(asks("architecture", 0, itemOf("s", 1))).GetRefusal().GetBackPressure()
	if !p.GetSequential() || p.Baton != "triage" {
		t.Errorf("whose turn it is: %v", p)
	}
	w.sleep(80*second - 1)
	heard("not calm yet")
	w.sleep(1)
	heard("calm", "parallel 0s")
}

// TestWorkflow_ReopensWithoutSecondBurst: the whole chain waits for a quota that the provider closed. When it reopens, the workflow is
// sequential, and an entry is due in time for each step, although there are no calls.
func TestWorkflow_ReopensWithoutSecondBurst(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute))
	w.do(workflows(releaseChain()))
	w.do(consumesAtOnce("implementation", itemOf("r", 1)))
	w.do(limitedBy(1, "r", 20*second))
	stages := []string{"announcement", "deployment", "implementation", "architecture", "triage"}
	for _, name := range stages {
		w.now += second
		if r := w.do(reserve(&logpb.Reserve{
			Holder: name, Items: []*logpb.Item{itemOf("r", 1)}, WaitNs: 10 * minute, TtlNs: 2 * second,
		})); r.GetWaiting() == nil {
			t.Fatalf("%s: %s", name, say(r))
		}
	}
	var served []string
	for len(served) < len(stages) {
		at, pending := w.m.State().NextDue()
		if !pending || at <= w.now || at > 20*minute {
			t.Fatalf("at %v the next entry is due at %v, pending %v; served: %v", time.Duration(w.now), time.Duration(at), pending, served)
		}
		w.now = at
		w.apply()
		live := 0
		for _, l := range w.m.State().Leases("", "", 0, 100, w.clock()) {
			if l.ID > 1 {
				live++
			}
		}
		if live > 1 {
			t.Fatalf("%d leases at a time", live)
		}
		for i := range w.last.Events {
			if e := &w.last.Events[i]; e.Kind == effect.EventGranted {
				served = append(served, e.Holder)
			}
		}
	}
	if want := []string{"triage", "architecture", "implementation", "deployment", "announcement"}; !slices.Equal(served, want) {
		t.Errorf("served %v", served)
	}
}

// TestWorkflowView: the operator's view.
func TestWorkflowView(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute), rateOf("s", 100, minute))
	w.now = second
	for _, l := range limitThree()[:3] {
		w.do(l.command)
	}
	w.sleep(5 * second)
	view := func() workflow.View {
		v, ok := w.m.State().Workflow("release", w.clock())
		if !ok {
			t.Fatal("there is no such workflow")
		}
		return v
	}
	v := view()
	if v.Sequential || v.Baton != nil || v.CalmIn != 0 || v.StateFor != 5*second || len(v.Steps) != 5 {
		t.Errorf("%+v", v)
	}
	if s := v.Steps[2]; s.LimitedAgo != 5*second || s.LimitedFor != 15*second || s.Quota != "r" || s.PausedFor != 0 {
		t.Errorf("the limited one: %+v", s)
	}
	if s := v.Steps[0]; s.LimitedAgo != -1 || s.LimitedFor != 0 || s.PausedFor != 20*second {
		t.Errorf("one upstream: %+v", s)
	}
	for _, l := range limitThree()[3:] {
		w.do(l.command)
	}
	w.do(asks("triage", 0, itemOf("s", 1)))
	w.do(waits("architecture", 0, minute, itemOf("s", 1)))
	w.now += second // the view is later than the state
	v = view()
	if !v.Sequential || v.StateFor != second || v.CalmIn != 74*second || v.Baton == nil ||
		*v.Baton != (workflow.BatonView{Holder: "triage", Fence: 2, Left: 299 * second}) {
		t.Errorf("%+v %+v", v, v.Baton)
	}
	if s := v.Steps[1]; s.Waiting != 1 || s.PausedFor != 0 {
		t.Errorf("one that waits: %+v", s)
	}
	if _, ok := w.m.State().Workflow("nobody", w.clock()); ok {
		t.Error("there is one that nobody made")
	}
}

// TestWorkflow_RestoreRunsDueTimers: the first entry after a restore carries out the work of workflows that became due
// since the backup.
func TestWorkflow_RestoreRunsDueTimers(t *testing.T) {
	begins := func(t *testing.T) *world {
		w := newWorld(t)
		w.quotas(rateOf("r", 100, minute), rateOf("s", 100, minute))
		w.do(workflows(releaseChain()))
		w.do(consumesAtOnce("implementation", itemOf("r", 1)))
		w.do(limitedBy(1, "r", 20*second))
		return w
	}
	restoredAfter := func(w *world, elapsed int64) []effect.Event {
		w.rebased(elapsed, w.m)
		w.reborn()
		w.apply()
		return w.last.Events
	}
	t.Run("a pause ends", func(t *testing.T) {
		w := begins(t)
		ticket := w.waiting(waits("triage", 0, 2*minute, itemOf("s", 1)))
		for _, e := range restoredAfter(w, 30*second) {
			if e.Kind == effect.EventGranted && e.Ticket == ticket {
				return
			}
		}
		t.Error("who was kept back waits on")
	})
	t.Run("it is calm", func(t *testing.T) {
		w := begins(t)
		w.do(asks("deployment", 0, itemOf("r", 1)))
		w.do(asks("announcement", 0, itemOf("r", 1)))
		if v, _ := w.m.State().Workflow("release", w.clock()); !v.Sequential {
			t.Fatalf("it does not go one at a time: %+v", v)
		}
		restoredAfter(w, 10*minute)
		if v, _ := w.m.State().Workflow("release", w.clock()); v.Sequential {
			t.Errorf("it goes one at a time still: %+v", v)
		}
	})
}

// TestWorkflow_ParallelKeepsLogIdle: disabled workflows cost nothing.
func TestWorkflow_ParallelKeepsLogIdle(t *testing.T) {
	w := newWorld(t)
	w.do(workflows(releaseChain()))
	if _, pending := w.m.State().NextDue(); pending {
		t.Error("a workflow that goes in parallel keeps the log moving")
	}
	w.quotas(rateOf("r", 1, second))
	for range 3 {
		w.do(asks("triage", second, itemOf("r", 1)))
	}
	w.sleep(hour)
	if at, pending := w.m.State().NextDue(); pending {
		t.Errorf("an hour later something is pending at %v", time.Duration(at))
	}
}

// TestBaton_OfferSkipsLimitedStep: a step with the offered baton that waits in another workflow keeps the offer
// only while it can take it. It once kept it permanently when it became limited meanwhile, and all others were blocked.
func TestBaton_OfferSkipsLimitedStep(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("plain", 1000, 10*second), rateOf("gate", 10, minute), hourly("h", 5))
	times := func(wf *logpb.Workflow, round int64) *logpb.Workflow {
		wf.Threshold, wf.CalmNs, wf.BatonTimeNs = 1, hour, round
		return wf
	}
	w.do(workflows(times(chain("one", "a", "b"), 3*second), times(chain("two", "b", "x"), minute)))
	for _, name := range []string{"a", "x"} { // each is limited for a moment: both workflows become sequential
		g := w.granted(with(ask(name, itemOf("gate", 1)), func(r *logpb.Reserve) { r.Consume = true }))
		w.do(report(&logpb.Report{
			Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{signal("gate", logpb.Cause_CAUSE_SATURATED, retryAfter(second))},
		}))
		w.do(release(&logpb.Release{Lease: g.Lease, Fence: g.Fence}))
		w.sleep(2 * second)
	}
	served := map[string]int{}
	for range 180 {
		w.now += second
		for _, name := range []string{"x", "b", "a"} {
			a := ask(name, itemOf("plain", 1))
			if name == "b" && w.now > 8*second {
				a = ask(name, itemOf("h", 5), itemOf("plain", 1)) // more than is left: limited from then on
			}
			a.TtlNs = 2 * second
			if w.do(reserve(a)).GetGranted() != nil {
				served[name]++
			}
		}
		if w.now == 8*second {
			w.do(asks("outsider", hour, itemOf("h", 1)))
		}
	}
	if served["a"] < 60 || served["x"] < 60 {
		t.Fatalf("served: %v", served)
	}
}

// TestLacking_CoversAncestors: a shortage of a quota is one of its descendants.
func TestLacking_CoversAncestors(t *testing.T) {
	for name, c := range map[string]struct {
		first *logpb.Command
		want  bool
	}{
		"there is enough":         {consumesAtOnce("a", itemOf("org/a", 1)), false},
		"its own":                 {consumesAtOnce("a", itemOf("org/a", 5)), true},
		"an ancestor's":           {consumesAtOnce("a", itemOf("org/b", 10)), true},
		"an ancestor is closed":   {reports(1, 1, signal("org", logpb.Cause_CAUSE_SATURATED, retryAfter(minute))), true},
		"another quota is closed": {reports(1, 1, signal("org/b", logpb.Cause_CAUSE_SATURATED, retryAfter(minute))), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("org", 11, minute), under(rateOf("org/a", 5, minute), "org"), under(rateOf("org/b", 100, minute), "org"))
			w.do(consumesAtOnce("b", itemOf("org/b", 1)))
			if r := w.do(c.first); r.GetGranted() == nil && r.GetReported() == nil {
				t.Fatal(r)
			}
			if got := (workflowHost{w.m}).Lacks(workflow.Shortage{Quota: "org/a", Amount: 1}); got != c.want {
				t.Errorf("lacking: %t", got)
			}
		})
	}
}
