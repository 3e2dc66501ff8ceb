package fsm

import (
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

func reopens(quota string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: quota}}}
}

func windowOf(name string, limit int64, every logpb.Every) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: limit, Every: every}}}
}

// TestCooldown_OneCallerClosesForAnHour: even a day's or a month's quota. A second caller, or the same one's next 429
// after it reopened, closes it for longer.
func TestCooldown_OneCallerClosesForAnHour(t *testing.T) {
	month := windowOf("m", 1000, logpb.Every_EVERY_MONTH)
	long := func(holder string) *logpb.Command {
		return reserve(&logpb.Reserve{Holder: holder, Items: []*logpb.Item{itemOf("m", 1)}, Consume: true, TtlNs: 10 * hour})
	}
	for _, cause := range []logpb.Cause{
		logpb.Cause_CAUSE_EXHAUSTED, logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_PLAN, logpb.Cause_CAUSE_ACCOUNT,
	} {
		for _, change := range []func(*logpb.Signal){retryAfter(5 * day), retryAfter(1 << 62)} {
			tell(t, []story{{"closed by one caller: " + cause.String(), []*logpb.Quota{month}, []line{
				{0, long("a"), "lease 1: m=1 until 10h0m0s; op 1 spends m=1 by 1m0s"},
				{0, reports(1, 1, signal("m", cause, change)), "reported: m closed until 1h0m0s"},
				{30 * minute, reports(1, 1, signal("m", cause, change)), "reported: m closed until 1h0m0s"},
				{30 * minute, long("b"), "lease 2: m=1 until 11h0m0s; op 1 spends m=1 by 1h1m0s"},
			}}})
		}
	}
	wait := signal("m", logpb.Cause_CAUSE_EXHAUSTED, retryAfter(5*day))
	tell(t, []story{
		{"a second caller extends it", []*logpb.Quota{month}, []line{
			{0, long("a"), "lease 1: m=1 until 10h0m0s; op 1 spends m=1 by 1m0s"},
			{0, long("b"), "lease 2: m=1 until 10h0m0s; op 1 spends m=1 by 1m0s"},
			{0, reports(1, 1, wait), "reported: m closed until 1h0m0s"},
			{30 * minute, reports(2, 1, wait), "reported: m closed until 1h30m0s"},
		}},
		{"so does the same one's next 429 after it reopened", []*logpb.Quota{month}, []line{
			{0, long("a"), "lease 1: m=1 until 10h0m0s; op 1 spends m=1 by 1m0s"},
			{0, reports(1, 1, wait), "reported: m closed until 1h0m0s"},
			{hour, reports(1, 1, wait), "reported: m closed until 2h0m0s"},
		}},
		{"holders of one token are one caller", []*logpb.Quota{month}, []line{
			{0, by("x-*", long("x-1")), "lease 1: m=1 until 10h0m0s; op 1 spends m=1 by 1m0s"},
			{0, by("x-*", long("x-2")), "lease 2: m=1 until 10h0m0s; op 1 spends m=1 by 1m0s"},
			{0, by("x-*", reports(1, 1, wait)), "reported: m closed until 1h0m0s"},
			{30 * minute, by("x-*", reports(2, 1, wait)), "reported: m closed until 1h0m0s"},
		}},
	})
}

// TestReopen_EndsClosuresByReports: cooldown, breaker and cap, once, with events; and the next report counts again.
func TestReopen_EndsClosuresByReports(t *testing.T) {
	const exhausted = logpb.Cause_CAUSE_EXHAUSTED
	w := newWorld(t)
	w.now = minute
	w.quotas(policed(windowOf("m", 1000, logpb.Every_EVERY_MONTH), &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1, ClosedNs: hour}}))
	w.do(consumesAtOnce("a", itemOf("m", 10)))
	w.do(reports(1, 1, signal("m", exhausted, retryAfter(day), remaining(0))))
	w.refused(ask("a", itemOf("m", 1)), logpb.Reason_REASON_COOLDOWN)
	if w.available("m") != 0 {
		t.Fatalf("%d are available", w.available("m"))
	}
	w.reborn()
	r := w.do(reopens("m")).GetQuotaReopened()
	if r == nil || r.CooldownLeftNs != hour || r.Breakers != 1 || r.GetCappedTo() != 10 || r.Freed != 990 || r.More {
		t.Fatalf("reopened: %v", r)
	}
	kinds := make(map[effect.EventKind]int)
	for i := range w.last.Events {
		kinds[w.last.Events[i].Kind]++
	}
	if kinds[effect.EventReopened] != 1 || kinds[effect.EventReopenedByOperator] != 1 {
		t.Fatalf("events: %v", kinds)
	}
	w.reborn()
	w.granted(ask("a", itemOf("m", 1)))
	if r := w.do(reopens("m")).GetQuotaReopened(); r == nil || r.CooldownLeftNs != 0 || r.Breakers != 0 || r.CappedTo != nil || r.Freed != 0 {
		t.Fatalf("reopened again: %v", r)
	}
	w.do(reports(1, 1, signal("m", exhausted, retryAfter(day))))
	if v, _ := w.m.State().Quota("m", w.clock()); v.CooldownLeft != hour {
		t.Fatalf("closed for %d s by the next report", v.CooldownLeft/second)
	}
	w.fails(reopens("none"), logpb.Reason_REASON_UNKNOWN_QUOTA)
}

// TestReopen_BeginsTheRamp: the operator opens it, not the provider, so it ramps.
func TestReopen_BeginsTheRamp(t *testing.T) {
	w := newWorld(t)
	w.now = minute
	w.quotas(policed(rateOf("r", 60, hour), &logpb.Policy{RampNs: hour}))
	w.do(consumesAtOnce("a", itemOf("r", 1)))
	w.do(reports(1, 1, signal("r", logpb.Cause_CAUSE_SATURATED, retryAfter(hour))))
	w.do(reopens("r"))
	w.granted(ask("a", itemOf("r", 1)))
	w.refused(ask("a", itemOf("r", 30)), logpb.Reason_REASON_REOPENING)
}

// TestReopen_ConfirmsTheReportedReset: a future reset, a disputed one, and one that passed and freed nothing.
func TestReopen_ConfirmsTheReportedReset(t *testing.T) {
	reset := func(after int64) *logpb.Command { return reports(1, 1, signal("p", ordinary, resetAfter(after))) }
	for name, c := range map[string]struct {
		commands []*logpb.Command
		reopen   int64
	}{
		"still to come": {[]*logpb.Command{reset(20 * minute)}, minute},
		"disputed":      {[]*logpb.Command{reset(20 * minute), reset(40 * minute)}, minute},
		"passed":        {[]*logpb.Command{reset(20 * minute)}, 22 * minute},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.now = minute
			w.quotas(anchored("p", 100))
			w.do(consumesAtOnce("a", itemOf("p", 100)))
			for _, command := range c.commands {
				w.do(command)
			}
			w.sleep(c.reopen)
			if free := w.available("p"); free != 0 {
				t.Fatalf("%d are available before", free)
			}
			w.do(reopens("p"))
			w.reborn()
			w.now = 22*minute + max(c.reopen-21*minute, 0)
			w.apply()
			if free := w.available("p"); free != 100 {
				t.Fatalf("%d are available after the reset", free)
			}
		})
	}
}

// TestConsume_AllOfALeaseOfWhichAWindowClosed consumes nothing: a holder that names no items means all that it was
// granted. The new window would not count a call that used only the rest.
func TestConsume_AllOfALeaseOfWhichAWindowClosed(t *testing.T) {
	r, h := rateOf("r", 100, minute), hourly("h", 100)
	long := reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h", 5), itemOf("r", 5)}, TtlNs: 3 * hour})
	tell(t, []story{
		{"all of it is refused, what is left can be named", []*logpb.Quota{r, h}, []line{
			{0, long, "lease 1: h=5 r=5 until 3h0m0s"},
			{hour + 2*second, consumes(1, 1), "! ITEM_CLOSED"},
			{0, consumes(1, 1), "! ITEM_CLOSED"},
			{0, consumes(1, 1, itemOf("r", 2)), "op 1 spends r=2 by 1h0m4s"},
			{0, consumes(1, 2), "! ITEM_CLOSED"},
			{0, releases(1), "back r=3; ended"},
		}},
		{"what was consumed before its window closed is not missing", []*logpb.Quota{r, h}, []line{
			{0, long, "lease 1: h=5 r=5 until 3h0m0s"},
			{0, consumes(1, 1, itemOf("h", 5)), "op 1 spends h=5 by 1m0s"},
			{hour + 2*second, consumes(1, 2), "op 2 spends r=5 by 1h0m4s"},
		}},
		{"a parent's window counts as the item's", []*logpb.Quota{r, h, under(rateOf("h/child", 50, minute), "h")}, []line{
			{
				0, reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h/child", 5), itemOf("r", 5)}, TtlNs: 3 * hour}),
				"lease 1: h/child=5 r=5 until 3h0m0s",
			},
			{hour + 2*second, consumes(1, 1), "! ITEM_CLOSED"},
		}},
	})
}

// TestRenew_NamesTheItemsThatClosed: a holder that keeps its lease alive learns which items closed.
func TestRenew_NamesTheItemsThatClosed(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 100, minute), hourly("h", 100))
	w.do(reserve(&logpb.Reserve{Holder: "a", Items: []*logpb.Item{itemOf("h", 5), itemOf("r", 5)}, TtlNs: 3 * hour}))
	if closed := w.do(renews(1, 0)).GetRenewed().GetClosed(); len(closed) != 0 {
		t.Fatalf("closed are %v", closed)
	}
	w.now = hour + 2*second
	if closed := w.do(renews(1, 0)).GetRenewed().GetClosed(); len(closed) != 1 || closed[0] != "h" {
		t.Fatalf("closed are %v", closed)
	}
}

// TestCap_OfOneCallerLastsAnHour: the remainder reported by one caller lowers a long window for an hour at most.
// Another caller's report extends it from then on, and so does the same one's after the cap has ended.
func TestCap_OfOneCallerLastsAnHour(t *testing.T) {
	for name, isAnchored := range map[string]bool{"calendar": false, "anchored": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.now = minute
			month := windowOf("m", 1000, logpb.Every_EVERY_MONTH)
			month.GetWindow().Anchored = isAnchored
			w.quotas(month)
			lease, op := uint64(0), uint64(1)
			left := int64(60)
			says := func(caller string) *logpb.ReportedQuota {
				lease++
				left -= 10 // others use the key
				w.do(chargedTo(caller, consumesAtOnce("h", itemOf("m", 1))))
				return w.do(chargedTo(caller, reports(lease, op, signal("m", logpb.Cause_CAUSE_OK, remaining(left))))).GetReported().GetQuotas()[0]
			}
			if r := says("token:a"); r.GetCappedTo() == 0 {
				t.Fatalf("%v", r)
			}
			most := func() int64 { v, _ := w.m.State().Quota("m", w.clock()); return v.CappedTo }
			lowered := most()
			w.sleep(hour / 2)
			if r := says("token:a"); most() > lowered {
				t.Fatalf("half an hour later the same caller: %v", r)
			}
			w.reborn()
			w.sleep(hour / 2)
			if got := most(); got != -1 {
				t.Fatalf("after an hour it is %d", got)
			}
			says("token:a")
			w.sleep(hour / 2)
			says("token:b")
			w.sleep(hour/2 + minute)
			if most() == -1 {
				t.Fatal("another caller's report does not last")
			}
			w.reborn()
			w.sleep(hour / 2)
			if got := most(); got != -1 {
				t.Fatalf("after its hour it is %d", got)
			}
		})
	}
}
