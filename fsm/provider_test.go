package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestReport_ProviderAnswers: what closes, for how long, and what continues meanwhile (design 6.6); report_test.go has
// more.
func TestReport_ProviderAnswers(t *testing.T) {
	const (
		ok        = logpb.Cause_CAUSE_OK
		saturated = logpb.Cause_CAUSE_SATURATED
		exhausted = logpb.Cause_CAUSE_EXHAUSTED
		plan      = logpb.Cause_CAUSE_PLAN
	)
	r, s, h := rateOf("r", 100, minute), slotsOf("s", 2), hourly("h", 100)
	under := with(rateOf("org/a", 50, minute), func(q *logpb.Quota) { q.Parent = "org" })
	call := line{0, consumesAtOnce("a", itemOf("r", 1)), "lease 1: r=1 until 5m0s; op 1 spends r=1 by 2s"}
	long := func(holder string, items ...*logpb.Item) *logpb.Command {
		return reserve(&logpb.Reserve{Holder: holder, Items: items, Consume: true, TtlNs: 2 * hour})
	}
	tell(t, []story{
		{"exhausted closes until the reset", []*logpb.Quota{r}, []line{
			call, {0, reports(1, 1, signal("r", exhausted, resetAfter(30*second))), "reported: r closed until 30s"},
		}},
		{"a time to wait goes before a reset", []*logpb.Quota{r}, []line{
			call, {0, reports(1, 1, signal("r", exhausted, resetAfter(30*second), retryAfter(10*second))), "reported: r closed until 10s"},
		}},
		{"saturated does not close until the reset", []*logpb.Quota{r}, []line{
			call, {0, reports(1, 1, signal("r", saturated, resetAfter(30*second))), "reported: r closed until 2s"},
		}},
		{"not in the plan closes for as long as one holder's report does", []*logpb.Quota{r}, []line{
			call, {0, reports(1, 1, signal("r", plan)), "reported: r closed until 5m0s"},
		}},
		{"a long rate closes for an hour at most", []*logpb.Quota{rateOf("r", 100, hour)}, []line{
			call, {0, reports(1, 1, signal("r", saturated, retryAfter(day))), "reported: r closed until 1h0m0s"},
		}},
		{"a window closes until its reset at most", []*logpb.Quota{h}, []line{
			{0, long("a", itemOf("h", 1)), "lease 1: h=1 until 2h0m0s; op 1 spends h=1 by 1m0s"},
			{10 * minute, reports(1, 1, signal("h", saturated, retryAfter(5*hour))), "reported: h closed until 1h0m3s"},
		}},
		{"after it reopened the same holder may close it again", []*logpb.Quota{r}, []line{
			{0, long("a", itemOf("r", 1)), "lease 1: r=1 until 2h0m0s; op 1 spends r=1 by 2s"},
			{0, reports(1, 1, signal("r", saturated, retryAfter(hour))), "reported: r closed until 5m0s"},
			{5*minute - 1, reports(1, 1, signal("r", saturated, retryAfter(hour))), "reported: r closed until 5m0s"},
			{1, consumesAtOnce("b", itemOf("r", 1)), "lease 2: r=1 until 10m0s; op 1 spends r=1 by 5m2s"},
			{0, reports(1, 1, signal("r", saturated, retryAfter(hour))), "reported: r closed until 10m0s"},
		}},
		{"what is held stays, and can be released, renewed, settled", []*logpb.Quota{r}, []line{
			call,
			{0, asks("b", 0, itemOf("r", 9)), "lease 2: r=9 until 5m0s"},
			{0, reports(1, 1, signal("r", saturated, retryAfter(20*second))), "reported: r closed until 20s"},
			{second, consumes(2, 1), "COOLDOWN r again at 20s"},
			{0, unspends(1, 1, itemOf("r", 1)), "settled; back r=1"},
			{0, renews(2, 0), "until 5m1s"},
			{0, releases(2, itemOf("r", 4)), "back r=4"},
			{20 * second, consumes(2, 1), "op 1 spends r=5 by 23s"},
		}},
		{"what is closed stops the whole of a call, and nothing else", []*logpb.Quota{r, rateOf("q", 10, minute)}, []line{
			call,
			{0, reports(1, 1, signal("r", saturated, retryAfter(20*second))), "reported: r closed until 20s"},
			{0, asks("b", 0, itemOf("q", 1), itemOf("r", 1)), "COOLDOWN r again at 20s"},
			{0, asks("b", 0, itemOf("q", 10)), "lease 2: q=10 until 5m0s"},
		}},
		{"a lease of slots alone reports without an operation", []*logpb.Quota{s, r}, []line{
			{0, asks("a", 0, itemOf("s", 1)), "lease 1: s=1 until 5m0s"},
			{0, reports(1, 0, signal("s", saturated, retryAfter(10*second))), "reported: s closed until 10s"},
			{0, asks("b", 0, itemOf("s", 1)), "COOLDOWN s again at 10s"},
			{0, asks("b", 0, itemOf("r", 1)), "lease 2: r=1 until 5m0s"},
			{0, reports(2, 0, signal("r", saturated)), "! STALE_OPERATION"},
		}},
		{"a parent can be reported of, a child of what was held is not", []*logpb.Quota{rateOf("org", 100, minute), under}, []line{
			{0, consumesAtOnce("a", itemOf("org/a", 1)), "lease 1: org/a=1 until 5m0s; op 1 spends org/a=1 by 2s"},
			{0, consumesAtOnce("b", itemOf("org", 1)), "lease 2: org=1 until 5m0s; op 1 spends org=1 by 2s"},
			{0, reports(2, 1, signal("org/a", saturated)), "! NOT_HELD"},
			{0, reports(1, 1, signal("org", saturated, retryAfter(10*second))), "reported: org closed until 10s"},
			{0, asks("c", 0, itemOf("org/a", 1)), "COOLDOWN org again at 10s"},
		}},
		{"what was settled before the reporting call has its place in the lowered total", []*logpb.Quota{h}, []line{
			{0, long("a", itemOf("h", 20)), "lease 1: h=20 until 2h0m0s; op 1 spends h=20 by 1m0s"},
			{0, used(1, 1, itemOf("h", 20)), "settled"},
			{0, long("b", itemOf("h", 10)), "lease 2: h=10 until 2h0m0s; op 1 spends h=10 by 1m0s"},
			{0, long("c", itemOf("h", 30)), "lease 3: h=30 until 2h0m0s; op 1 spends h=30 by 1m0s"},
			{0, reports(2, 1, signal("h", ok, remaining(40))), "reported: h"}, // 60 consumed and 40: nothing else is used
			{0, reports(2, 1, signal("h", ok, remaining(39))), "reported: h capped to 69"},
			{0, asks("d", 0, itemOf("h", 10)), "EXHAUSTED h again at 1h0m1s"},
			{0, asks("d", 0, itemOf("h", 9)), "lease 4: h=9 until 5m0s"},
		}},
		{"a call of a closed window lowers nothing of the next", []*logpb.Quota{h}, []line{
			{0, long("a", itemOf("h", 20)), "lease 1: h=20 until 2h0m0s; op 1 spends h=20 by 1m0s"},
			{hour + 2*second, reports(1, 1, signal("h", ok, remaining(0))), "reported: h"},
			{0, asks("b", 0, itemOf("h", 100)), "lease 2: h=100 until 1h5m2s"},
		}},
		{"a rate keeps back what others use, for a period", []*logpb.Quota{r}, []line{
			call,
			{0, reports(1, 1, signal("r", ok, remaining(0))), "reported: r"},
			{0, asks("b", 0, itemOf("r", 99)), "EXHAUSTED r again at 1m0s"},
			{minute, asks("b", 0, itemOf("r", 99)), "lease 2: r=99 until 6m0s"},
		}},
		{"a calendar window learns no reset", []*logpb.Quota{h}, []line{
			{0, long("a", itemOf("h", 1)), "lease 1: h=1 until 2h0m0s; op 1 spends h=1 by 1m0s"},
			{0, reports(1, 1, signal("h", ok, resetAfter(20*minute))), "reported: h"},
			{20*minute + 5*second, asks("b", 0, itemOf("h", 100)), "EXHAUSTED h again at 1h0m1s"},
		}},
	})
}

// TestCooldown_Doubles: from 2 s to a minute, with each attempt in a row.
func TestCooldown_Doubles(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 1000, minute))
	w.do(reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("r", 1)}, Consume: true, TtlNs: day}))
	for attempt, want := range []int64{2, 4, 8, 16, 32, 60, 60, 60} {
		q := w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED))).GetReported().Quotas[0]
		if q.CooldownUntilNs-w.now != want*second || q.Attempt != int32(attempt+1) {
			t.Fatalf("attempt %d: closed for %d s, want %d: %v", attempt+1, (q.CooldownUntilNs-w.now)/second, want, q)
		}
		if again := w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED))).GetReported().Quotas[0]; again.Attempt != q.Attempt {
			t.Fatalf("an answer to a call of the same time counts as attempt %d", again.Attempt)
		}
		w.reborn()
		w.sleep(want*second + minute)
	}
	w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_OK)))
	if q := w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED))).GetReported().Quotas[0]; q.Attempt != 1 {
		t.Fatalf("after an ordinary answer: %v", q)
	}
}

// TestCooldown_EndServesWaiters: a cooldown ends in an entry without a command, with one event, and its waiters are
// served.
func TestCooldown_EndServesWaiters(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute))
	w.do(consumesAtOnce("a", itemOf("r", 1)))
	w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(20*second))))
	w.waiting(waits("b", 0, minute, itemOf("r", 60)))
	w.waiting(waits("c", 0, minute, itemOf("r", 30)))
	if at, pending := w.m.State().NextDue(); at > 20*second || !pending {
		t.Fatalf("the next entry is wanted at %d s, pending %v", at/second, pending)
	}
	w.sleep(20*second - 1)
	if got := w.grantedTickets(); len(got) != 0 {
		t.Fatalf("granted %v while it is closed", got)
	}
	reopened := 0
	for range 2 {
		w.sleep(1)
		for i := range w.last.Events {
			if w.last.Events[i].Kind == effect.EventReopened {
				reopened++
			}
		}
	}
	if reopened != 1 || w.m.State().Counts().Waiting != 0 || w.available("r") != 9 {
		t.Fatalf("reopened %d times, %d are available", reopened, w.available("r"))
	}
}
