package fsm

import (
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

func limitNamed(n int64) func(*logpb.Signal) { return func(s *logpb.Signal) { s.Limit = &n } }

// usedByUs has a rate of 60,000 a minute of which 30,000 are consumed, and a call of 600 at this moment.
func usedByUs(t tester) (w *world, g *logpb.Granted) {
	w = newWorld(t)
	w.quotas(rateOf("r", 60_000, minute))
	w.granted(call("a", 30_000))
	return w, w.granted(call("b", 600))
}

// reported reports on a call of r.
func (w *world) sendReport(g *logpb.Granted, cause logpb.Cause, said ...func(*logpb.Signal)) *logpb.ReportedQuota {
	w.t.Helper()
	r := w.do(reports(g.Lease, 1, signal("r", cause, said...)))
	if len(r.GetReported().GetQuotas()) != 1 {
		w.t.Fatalf("not reported: %v", r)
	}
	return r.GetReported().Quotas[0]
}

const okay = logpb.Cause_CAUSE_OK

// TestForeign_IsHeldBackAndFades: the documented case: 18,000 used by others hold 21,600 back, half of it half a period
// later, nothing after one.
func TestForeign_IsHeldBackAndFades(t *testing.T) {
	w, g := usedByUs(t)
	w.sendReport(g, okay, remaining(11_400))
	older := w.granted(call("c", 1))
	if got := w.available("r"); got != 7_800-1 {
		t.Fatalf("%d are available", got)
	}
	if v := w.view("r"); v.Others != 18_000 || v.KeptForOthers != 21_600 {
		t.Fatalf("others use %d, %d are kept for them", v.Others, v.KeptForOthers)
	}
	w.reborn()
	w.sleep(30 * second)
	if got := w.available("r"); got != 7_800-1+10_800 {
		t.Fatalf("%d are available half a period later", got)
	}
	newer := w.granted(call("c", 1))
	w.sendReport(newer, okay, remaining(60_000))
	if v := w.view("r"); v.Others != 9_000 {
		t.Fatalf("others use %d by a newer report that shows less", v.Others)
	}
	available := w.available("r")
	w.sendReport(older, okay, remaining(0))
	if got := w.available("r"); got != available {
		t.Fatalf("a report of an older operation changed what is available from %d to %d", available, got)
	}
	w.sleep(minute)
	if v := w.view("r"); v.Others != 0 || v.KeptForOthers != 0 {
		t.Fatalf("a period later others use %d, %d are kept", v.Others, v.KeptForOthers)
	}
}

// TestForeign_CallsThatOvertake: amounts consumed after the reporting call do not count as use by others, since the
// provider may have counted them already: further calls, and overruns. The call's own use is not counted twice.
func TestForeign_CallsThatOvertake(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(w *world, g *logpb.Granted)
		others    int64
	}{
		"nothing":              {func(*world, *logpb.Granted) {}, 18_000},
		"two calls":            {func(w *world, _ *logpb.Granted) { w.take("c", 5_000, 2) }, 8_000},
		"as much as others":    {func(w *world, _ *logpb.Granted) { w.take("c", 18_000, 1) }, 0},
		"one that is settled":  {func(w *world, _ *logpb.Granted) { w.do(used(w.granted(call("c", 5_000)).Lease, 1, itemOf("r", 1))) }, 13_000},
		"another one's excess": {func(w *world, _ *logpb.Granted) { w.do(used(w.granted(call("c", 1)).Lease, 1, itemOf("r", 5_000))) }, 13_000},
		"its own excess":       {func(w *world, g *logpb.Granted) { w.do(used(g.Lease, 1, itemOf("r", 1_600))) }, 17_000},
		"less than estimated":  {func(w *world, g *logpb.Granted) { w.do(used(g.Lease, 1, itemOf("r", 100))) }, 18_500},
	} {
		w, g := usedByUs(t)
		c.meanwhile(w, g)
		w.reborn()
		w.sendReport(g, okay, remaining(11_400))
		if v := w.view("r"); v.Others != c.others {
			t.Errorf("%s: others use %d, not %d", name, v.Others, c.others)
		}
	}
}

// TestForeign_RetryAtIsWhenFaded: a retry at that time is granted, and no earlier one; waiters are served then.
func TestForeign_RetryAtIsWhenFaded(t *testing.T) {
	w, g := usedByUs(t)
	w.sendReport(g, okay, remaining(11_400))
	if r := w.refused(call("c", 7_801), refusedEmpty); r.RetryAtNs != 600*millisecond {
		t.Fatalf("one more comes back at %v", time.Duration(r.RetryAtNs))
	}
	at := w.refused(call("c", 7_800+10_800), refusedEmpty).RetryAtNs
	if at != 30*second {
		t.Fatalf("10,800 more come back at %v", time.Duration(at))
	}
	waiting := waits("d", 0, 2*minute, itemOf("r", 7_800+10_800))
	if w.do(waiting).GetWaiting() == nil {
		t.Fatal("it does not wait")
	}
	for w.m.State().Awaited() {
		due, pending := w.m.State().NextDue()
		if !pending || due <= w.now || due > at {
			t.Fatalf("at %v the next entry is due at %v, pending %t", time.Duration(w.now), time.Duration(due), pending)
		}
		w.at(due)
	}
	if w.now != at {
		t.Fatalf("it was served at %v", time.Duration(w.now))
	}
}

// TestForeign_BelievedReports: the use by others that reports show, by their content and their operation.
func TestForeign_BelievedReports(t *testing.T) {
	for name, c := range map[string]struct {
		said   func(w *world, g *logpb.Granted)
		others int64
	}{
		"more remains than is not used here": {func(w *world, g *logpb.Granted) { w.sendReport(g, okay, remaining(29_400)) }, 0},
		"one less remains":                   {func(w *world, g *logpb.Granted) { w.sendReport(g, okay, remaining(29_399)) }, 1},
		"a refused call was not counted": {func(w *world, g *logpb.Granted) {
			w.sendReport(g, logpb.Cause_CAUSE_SATURATED, remaining(11_400))
		}, 18_600},
		"what was really used counts": {func(w *world, g *logpb.Granted) {
			w.do(used(g.Lease, 1, itemOf("r", 100)))
			w.sendReport(g, okay, remaining(11_400))
		}, 18_500},
		"an overrun too": {func(w *world, g *logpb.Granted) {
			w.do(used(g.Lease, 1, itemOf("r", 1_600)))
			w.sendReport(g, okay, remaining(11_400))
		}, 17_000},
		"a lower limit": {func(w *world, g *logpb.Granted) { w.sendReport(g, okay, remaining(11_400), limitNamed(50_000)) }, 8_000},
		"a higher one":  {func(w *world, g *logpb.Granted) { w.sendReport(g, okay, remaining(11_400), limitNamed(90_000)) }, 18_000},
		"the provider's own trouble": {func(w *world, g *logpb.Granted) {
			w.sendReport(g, logpb.Cause_CAUSE_OVERLOADED, remaining(0))
		}, 0},
		"nothing remains, at the largest numbers": {func(w *world, g *logpb.Granted) {
			w.sendReport(g, okay, remaining(1<<62), limitNamed(1<<62))
		}, 0},
		"an operation that does not count any more": {func(w *world, g *logpb.Granted) {
			w.at(62*second + 600*millisecond + 2) // an amount consumed at 0 counts as consumed at 1 ns
			w.sendReport(g, okay, remaining(0))
		}, 0},
		"the operator reopens it": {func(w *world, g *logpb.Granted) {
			w.sendReport(g, okay, remaining(11_400))
			w.sleep(second)
			w.do(reopens("r"))
			w.sendReport(g, okay, remaining(11_400))
		}, 0},
	} {
		w, g := usedByUs(t)
		c.said(w, g)
		if v := w.view("r"); v.Others != c.others {
			t.Errorf("%s: others use %d, not %d", name, v.Others, c.others)
		}
		w.reborn()
		if v := w.view("r"); v.Others != c.others {
			t.Errorf("%s: others use %d after a restore, not %d", name, v.Others, c.others)
		}
	}
}

// TestForeign_LowerLimit: a limit below the configured one lowers the usable amount for two periods from each report; a
// higher one is only shown.
func TestForeign_LowerLimit(t *testing.T) {
	w := newWorld(t)
	w.quotas(with(rateOf("r", 60_000, minute), func(q *logpb.Quota) { q.HeadroomPpm = 200_000 }))
	usable := func() int64 { return w.view("r").Usable }
	g := w.granted(call("a", 600))
	if reported := w.sendReport(g, okay, limitNamed(90_000)); reported.CappedTo != nil || usable() != 48_000 {
		t.Fatalf("a higher limit: %v, %d usable", reported, usable())
	}
	if v := w.view("r"); v.ObservedLimit != 90_000 || v.CappedTo != -1 {
		t.Fatalf("observed are %d, capped to %d", v.ObservedLimit, v.CappedTo)
	}
	if reported := w.sendReport(g, okay, limitNamed(30_000)); reported.GetCappedTo() != 24_000 || usable() != 24_000 {
		t.Fatalf("half of it: %v, %d usable", reported, usable())
	}
	w.refused(call("b", 24_000), refusedEmpty)
	w.sleep(30 * second)
	w.sendReport(g, okay, limitNamed(30_000)) // it lasts from now on
	w.sendReport(g, okay, limitNamed(45_000)) // does not raise it
	if v := w.view("r"); v.Usable != 24_000 || v.ObservedLimit != 45_000 || v.ObservedAgo != 0 {
		t.Fatalf("%d are usable, observed %d", v.Usable, v.ObservedLimit)
	}
	over := 150 * second
	if r := w.refused(call("b", 40_000), refusedEmpty); r.RetryAtNs != over {
		t.Fatalf("what fits without it comes back at %v", time.Duration(r.RetryAtNs))
	}
	w.reborn()
	w.at(over - 1)
	if usable() != 24_000 {
		t.Fatalf("%d are usable before two periods have passed", usable())
	}
	w.at(over)
	if usable() != 48_000 {
		t.Fatalf("%d are usable after two periods", usable())
	}
}

// TestForeign_FeatureLevel: before levels.Reports, a report teaches a rate nothing.
func TestForeign_FeatureLevel(t *testing.T) {
	w, g := usedByUs(t)
	w.m.featureLevel = levels.Reports - 1
	q := w.m.quotas.editNow(w.m.quotas.numberOf("r"))
	l, _ := w.m.leases.Get(g.Lease)
	w.m.takeSignal(reporter{}, l.operation(1), q, signal("r", okay, remaining(0), limitNamed(1)))
	if q.ledger.Others != (ledger.Foreign{}) || q.providerLimit.known || q.ledger.Capped != ledger.NoCap {
		t.Fatalf("it learned %+v", q.ledger.Others)
	}
}

// says reports, as a caller of a rate of 60,000, an amount used by others.
func (w *world) says(caller string, others int64, cause logpb.Cause) {
	w.t.Helper()
	g := w.granted(call(caller, 1))
	w.sendReport(g, cause, remaining(60_000-others-w.view("r").Consumed))
}

// TestForeign_ReportsOfOneCaller: the unconfirmed report of one caller holds a rate back for as long as it could close it,
// and then not for as long again. Another caller's report, or a refusal of the provider, makes it last.
func TestForeign_ReportsOfOneCaller(t *testing.T) {
	const said = 40_000
	for name, c := range map[string]struct {
		also func(w *world, n int)
		// Use by others, according to the reports, after 4, 7 and 12 minutes, at least and at most.
		least, most [3]int64
	}{
		"alone": {func(*world, int) {}, [3]int64{said, 0, said}, [3]int64{said, 0, said}},
		"another one says so too": {func(w *world, _ int) {
			w.says("b", said, okay)
		}, [3]int64{said, said, said}, [3]int64{said, said, said}},
		"another one says less": {func(w *world, _ int) {
			w.says("b", 10_000, okay)
		}, [3]int64{said, 10_000, said}, [3]int64{said, 10_000, said}},
		"another one says nothing of others": {func(w *world, _ int) {
			w.says("b", 0, okay)
		}, [3]int64{said, 0, said}, [3]int64{said, 0, said}},
		"it is refused once": {func(w *world, n int) {
			if n == 29 {
				w.says("a", said, logpb.Cause_CAUSE_SATURATED)
				w.sleep(5 * second) // it is closed for that long at most
			}
		}, [3]int64{said, said, said}, [3]int64{said, said, said}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.quotas(rateOf("r", 60_000, minute))
			var got [3]int64
			for n := 1; n <= 72; n++ {
				w.sleep(10 * second)
				c.also(w, n)
				w.says("a", said, okay)
				if i := map[int]int{24: 1, 42: 2, 72: 3}[n]; i > 0 {
					got[i-1] = w.view("r").Others
				}
			}
			w.reborn()
			for i, others := range got {
				if others < c.least[i] || others > c.most[i] {
					t.Fatalf("others use %v, not %v to %v", got, c.least, c.most)
				}
			}
		})
	}
}

// TestForeign_CallerHidesNoOtherReport: one caller reports nothing about others, for later operations than an honest
// caller's. That does not suppress the honest reports, of the remainder or of a lower limit.
func TestForeign_CallerHidesNoOtherReport(t *testing.T) {
	for name, says := range map[string]func(*logpb.Signal){"all remains": remaining(60_000), "the limit alone": limitNamed(60_000)} {
		w := newWorld(t)
		w.quotas(rateOf("r", 60_000, minute))
		for range 20 {
			honest := w.granted(call("a", 100))
			w.sleep(500 * millisecond)
			w.sendReport(w.granted(call("b", 1)), okay, says)
			w.sleep(500 * millisecond)
			w.sendReport(honest, okay, remaining(10_000), limitNamed(50_000))
		}
		w.reborn()
		if v := w.view("r"); v.Others < 30_000 || v.CappedTo != 50_000 {
			t.Errorf("%s: others use %d of it, and it is lowered to %d", name, v.Others, v.CappedTo)
		}
	}
}

// TestForeign_LimitOfOneCaller: the same for a lower limit, which then lasts for two periods.
func TestForeign_LimitOfOneCaller(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 60_000, minute))
	usable := func(minutes int64, callers ...string) int64 {
		t.Helper()
		for end := w.now + minutes*minute; w.now < end; {
			w.sleep(30 * second)
			for _, caller := range callers {
				w.sendReport(w.granted(call(caller, 1)), okay, limitNamed(30_000))
			}
		}
		return w.view("r").Usable
	}
	if got := usable(5, "a"); got != 30_000 {
		t.Fatalf("%d are usable by one caller's report", got)
	}
	if got := usable(3, "a"); got != 60_000 {
		t.Fatalf("%d are usable when it has said so for too long", got)
	}
	if got := usable(20, "a", "b"); got != 30_000 {
		t.Fatalf("%d are usable by two callers' word", got)
	}
}

// TestForeign_AnHourAtMost: one caller's reports close a rate of days for an hour at most, and hold it back or lower it
// as long.
func TestForeign_AnHourAtMost(t *testing.T) {
	w := newWorld(t)
	w.quotas(rateOf("r", 60_000, 2*day))
	first, then, last := w.granted(call("a", 1)), w.granted(call("a", 1)), w.granted(call("a", 1))
	w.sendReport(first, okay, remaining(20_000))
	w.sendReport(then, okay, limitNamed(30_000))
	w.sendReport(last, logpb.Cause_CAUSE_SATURATED, retryAfter(2*day))
	if v := w.view("r"); v.CooldownLeft != hour || v.Others == 0 || v.Usable != 30_000 {
		t.Fatalf("it is closed for %v, others use %d, usable are %d", time.Duration(v.CooldownLeft), v.Others, v.Usable)
	}
	w.sleep(hour)
	w.reborn()
	if v := w.view("r"); v.CooldownLeft != 0 || v.Others != 0 || v.Usable != 60_000 {
		t.Fatalf("an hour later it is closed for %v, others use %d, usable are %d", time.Duration(v.CooldownLeft), v.Others, v.Usable)
	}
	if got := w.granted(call("b", 50_000)); got == nil {
		t.Fatal("it is refused")
	}
}
