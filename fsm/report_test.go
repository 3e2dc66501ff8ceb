package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/logpb"
)

func signal(quota string, cause logpb.Cause, change ...func(*logpb.Signal)) *logpb.Signal {
	s := &logpb.Signal{Quota: quota, Cause: cause}
	for _, fn := range change {
		fn(s)
	}
	return s
}

func retryAfter(d int64) func(*logpb.Signal) { return func(s *logpb.Signal) { s.RetryAfterNs = &d } }

func resetAfter(d int64) func(*logpb.Signal) { return func(s *logpb.Signal) { s.ResetAfterNs = &d } }
func remaining(n int64) func(*logpb.Signal)  { return func(s *logpb.Signal) { s.Remaining = &n } }

func reports(lease, op uint64, signals ...*logpb.Signal) *logpb.Command {
	return report(&logpb.Report{Lease: lease, Fence: lease, Op: op, Signals: signals})
}

// TestReports: what a provider's answer changes, and what it cannot (design 6.6).
func TestReports(t *testing.T) {
	const (
		ok        = logpb.Cause_CAUSE_OK
		saturated = logpb.Cause_CAUSE_SATURATED
		exhausted = logpb.Cause_CAUSE_EXHAUSTED
	)
	r, h := rateOf("r", 100, minute), hourly("h", 100)
	call := func(holder, quota string) *logpb.Command { return consumesAtOnce(holder, itemOf(quota, 1)) }
	tell(t, []story{
		{"one 429 closes the quota for all until the provider's time", []*logpb.Quota{r}, []line{
			{0, asks("b", 0, itemOf("r", 5)), "lease 1: r=5 until 5m0s"},
			{0, call("a", "r"), "lease 2: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(2, 1, signal("r", saturated, retryAfter(20*second))), "reported: r closed until 20s"},
			{0, asks("c", 0, itemOf("r", 1)), "COOLDOWN r again at 20s"},
			{0, consumes(1, 1), "COOLDOWN r again at 20s"},
			{20 * second, consumes(1, 1), "op 1 spends r=5 by 22s"},
			{0, asks("c", 0, itemOf("r", 1)), "lease 3: r=1 until 5m20s"},
		}},
		{"of two ends the later counts, in any order", []*logpb.Quota{r}, []line{
			{0, call("a", "r"), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, call("b", "r"), "lease 2: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", saturated, retryAfter(20*second))), "reported: r closed until 20s"},
			{0, reports(2, 1, signal("r", saturated, retryAfter(5*second))), "reported: r closed until 20s"},
			{0, reports(2, 1, signal("r", saturated, retryAfter(40*second))), "reported: r closed until 40s"},
			{0, reports(1, 1, signal("r", ok)), "reported: r closed until 40s"},
		}},
		{"one holder's report closes a rate for five minutes at most, a second holder's for longer", []*logpb.Quota{r}, []line{
			{0, call("a", "r"), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, call("b", "r"), "lease 2: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", saturated, retryAfter(hour))), "reported: r closed until 5m0s"},
			{minute, reports(1, 1, signal("r", saturated, retryAfter(hour))), "reported: r closed until 5m0s"},
			{0, reports(2, 1, signal("r", saturated, retryAfter(hour))), "reported: r closed until 6m0s"},
		}},
		{"without a time it doubles with each attempt, and an answer that is no 429 starts from the beginning", []*logpb.Quota{r}, []line{
			{0, call("a", "r"), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", saturated)), "reported: r closed until 2s"},
			{3 * second, reports(1, 1, signal("r", saturated)), "reported: r closed until 7s"},
			{7 * second, reports(1, 1, signal("r", ok)), "reported: r"},
			{0, reports(1, 1, signal("r", saturated)), "reported: r closed until 12s"},
		}},
		{"an exhausted window closes until its end", []*logpb.Quota{h}, []line{
			{0, call("a", "h"), "lease 1: h=1 until 5m0s; op 1 spends h=1 by 1m0s"},
			{minute, reports(1, 1, signal("h", exhausted)), "reported: h closed until 1h0m1s"},
		}},
		{"what is no limit closes nothing", []*logpb.Quota{r}, []line{
			{0, call("a", "r"), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_NOT_A_LIMIT, retryAfter(minute))), "reported: r"},
			{0, reports(1, 1, signal("r", logpb.Cause_CAUSE_OVERLOADED, retryAfter(minute))), "reported: r"},
		}},
		{"a whole account closes the root", []*logpb.Quota{
			rateOf("org", 100, minute), with(rateOf("org/a", 50, minute), func(q *logpb.Quota) { q.Parent = "org" }),
			with(rateOf("org/b", 50, minute), func(q *logpb.Quota) { q.Parent = "org" }),
		}, []line{
			{0, call("a", "org/a"), "lease 1: org/a=1 until 5m0s; op 1 spends org/a=1 by 2s"},
			{0, reports(1, 1, signal("org/a", logpb.Cause_CAUSE_ACCOUNT, retryAfter(20*second))), "reported: org/a closed until 20s"},
			{0, call("b", "org/b"), "COOLDOWN org again at 20s"},
		}},
		{"what is held of a descendant is not consumed while an ancestor is closed", []*logpb.Quota{
			rateOf("org", 100, minute), under(rateOf("org/team", 50, minute), "org"), under(rateOf("org/team/a", 50, minute), "org/team"),
			under(rateOf("org/b", 50, minute), "org"),
		}, []line{
			{0, asks("h", 0, itemOf("org/team/a", 5)), "lease 1: org/team/a=5 until 5m0s"},
			{0, call("o", "org/b"), "lease 2: org/b=1 until 5m0s; op 1 spends org/b=1 by 2s"},
			{0, reports(2, 1, signal("org/b", logpb.Cause_CAUSE_ACCOUNT, retryAfter(20*second))), "reported: org/b closed until 20s"},
			{0, consumes(1, 1), "COOLDOWN org again at 20s"},
			{20 * second, consumes(1, 1), "op 1 spends org/team/a=5 by 22s"},
		}},
		{"something else uses the key: the window is lowered, never raised", []*logpb.Quota{h}, []line{
			{0, consumesAtOnce("a", itemOf("h", 10)), "lease 1: h=10 until 5m0s; op 1 spends h=10 by 1m0s"},
			{second, reports(1, 1, signal("h", ok, remaining(95))), "reported: h"},
			{0, reports(1, 1, signal("h", ok, remaining(30))), "reported: h capped to 40"},
			{0, reports(1, 1, signal("h", ok, remaining(60))), "reported: h"},
			{0, asks("b", 0, itemOf("h", 31)), "EXHAUSTED h again at 1h0m1s"},
			{0, asks("b", 0, itemOf("h", 30)), "lease 2: h=30 until 5m1s"},
			{hour + 2*second, asks("b", 0, itemOf("h", 100)), "lease 3: h=100 until 1h5m3s"},
		}},
		{"a report names its lease and operation", []*logpb.Quota{r, h}, []line{
			{0, call("a", "r"), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 2, signal("r", saturated)), "! STALE_OPERATION"},
			{0, reports(1, 1, signal("h", saturated)), "! NOT_HELD"},
			{0, reports(2, 1, signal("r", saturated)), "! NEVER_ISSUED"},
			{0, releases(1), "back; ended"},
			{0, reports(1, 1, signal("r", saturated)), "! STALE_FENCE"},
		}},
		{"an anchored window learns its reset, and a reset too far away is not believed", []*logpb.Quota{anchored("p", 100)}, []line{
			{0, call("a", "p"), "lease 1: p=1 until 5m0s; op 1 spends p=1 by 1m0s"},
			{0, reports(1, 1, signal("p", ok, resetAfter(2*hour))), "reported: p"},
			{0, reports(1, 1, signal("p", ok, resetAfter(20*minute))), "reported: p reset learned"},
			{0, asks("b", hour, itemOf("p", 99)), "lease 2: p=99 until 1h0m0s"},
			{20*minute + 2*second, consumes(2, 1), "! ITEM_CLOSED"},
		}},
	})
}
