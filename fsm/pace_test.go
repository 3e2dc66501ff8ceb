package fsm

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// Exact cases of shares on rates: 60,000 a minute, spend-by 2 s, bucket 0.6 s. So a grant counts 62.6 s, and 600 move
// the pacer by 0.626 s.

// pacedWorld has a rate with shares and holders of each class.
func pacedWorld(t tester) *world {
	w := newWorld(t)
	w.quotas(pacedRate("r", 60_000, minute))
	w.do(criticalAndBackground())
	return w
}

func pacedRate(name string, limit, per int64) *logpb.Quota {
	return policed(rateOf(name, limit, per), &logpb.Policy{Shares: fleetShares()})
}

// call returns a Reserve that consumes an amount at once.
func call(holder string, amount int64) *logpb.Reserve {
	a := ask(holder, itemOf("r", amount))
	a.Consume = true
	return a
}

// take consumes an amount now as often as it is granted, up to most times, and returns how often.
func (w *world) take(holder string, amount int64, most int) (count int) {
	w.t.Helper()
	for count < most && w.raw(reserve(call(holder, amount)))[0].GetGranted() != nil {
		count++
	}
	w.apply()
	return count
}

// takes fails unless exactly count are granted, and one more is refused for a reason, with a retry time.
func (w *world) takes(holder string, amount int64, count int, reason logpb.Reason, again int64) {
	w.t.Helper()
	if got := w.take(holder, amount, count); got != count {
		w.t.Fatalf("at %v %s was granted %d times %d, not %d times", time.Duration(w.now), holder, got, amount, count)
	}
	if refusal := w.refused(call(holder, amount), reason); refusal.RetryAtNs != again {
		w.t.Fatalf("at %v %s is to come back at %v, not at %v", time.Duration(w.now), holder, time.Duration(refusal.RetryAtNs),
			time.Duration(again))
	}
}

const (
	refusedShare = logpb.Reason_REASON_SHARE
	refusedCap   = logpb.Reason_REASON_CAP
	refusedEmpty = logpb.Reason_REASON_EXHAUSTED
	// backAt is when an amount consumed at 0 returns.
	backAt = 62*second + 400*millisecond + 1
)

// at moves a world's time to a moment.
func (w *world) at(moment int64) { w.sleep(moment - w.now) }

func TestPace_WithoutHigherDemand(t *testing.T) {
	w := pacedWorld(t)
	w.takes("std", 600, 100, refusedEmpty, backAt)
}

func TestPace_FreeThenLent(t *testing.T) {
	w := pacedWorld(t)
	w.granted(call("crit", 600))
	w.takes("std", 600, 59, refusedShare, 36_360*millisecond)
	for n := range int64(39) {
		next := 36_360*millisecond + n*626*millisecond
		w.at(next - 1)
		w.refused(call("std", 600), refusedShare)
		w.at(next)
		w.granted(call("std", 600))
		if n < 38 {
			if again := w.refused(call("std", 600), refusedShare).RetryAtNs; again != next+626*millisecond {
				t.Fatalf("the next after %v is at %v", time.Duration(next), time.Duration(again))
			}
		}
	}
	if w.now != 60_148*millisecond {
		t.Fatalf("the 98th came at %v", time.Duration(w.now))
	}
	if again := w.refused(call("std", 600), refusedShare).RetryAtNs; again != backAt {
		t.Fatalf("the 99th comes at %v", time.Duration(again))
	}
	w.at(backAt - 1)
	w.refused(call("std", 600), refusedShare)
	w.at(backAt)
	if got := w.take("std", 600, 100); got != 21 {
		t.Fatalf("%d at once when all comes back, not 21", got)
	}
}

func TestPace_CriticalCallsMoveItToo(t *testing.T) {
	for _, c := range []struct {
		critical int
		reason   logpb.Reason
		again    int64
	}{{20, refusedShare, 48_880 * millisecond}, {40, refusedEmpty, backAt}} {
		w := pacedWorld(t)
		w.granted(call("crit", 600))
		w.take("std", 600, 59)
		if got := w.take("crit", 600, c.critical); got != c.critical {
			t.Fatalf("%d critical calls of %d at once", got, c.critical)
		}
		if r := w.refused(call("std", 600), c.reason); r.RetryAtNs != c.again {
			t.Fatalf("after %d critical calls the next is at %v", c.critical, time.Duration(r.RetryAtNs))
		}
		w.at(c.again - 1)
		w.refused(call("std", 600), c.reason)
		w.at(c.again)
		w.granted(call("std", 600))
	}
}

func TestPace_ReturnedAmountsRepay(t *testing.T) {
	paid := func(w *world) int64 { return w.m.quotas.named("r").pacer.paidUntil }
	w := pacedWorld(t)
	g := w.granted(call("std", 200))
	if moved := paid(w); moved != 208_666_667 {
		t.Fatalf("200 move it %d", moved)
	}
	before := paid(w)
	w.do(used(g.Lease, 1, itemOf("r", 0)))
	if moved := before - paid(w); moved != 208_666_666 {
		t.Fatalf("200 move it back %d", moved)
	}
	// An overrun pays, and an amount that was only held returns its price.
	g = w.granted(call("std", 200))
	before = paid(w)
	w.do(used(g.Lease, 1, itemOf("r", 800)))
	if moved := paid(w) - before; moved != 626*millisecond {
		t.Fatalf("an overrun of 600 moves it %d", moved)
	}
	held := w.granted(ask("std", itemOf("r", 600)))
	before = paid(w)
	w.do(releases(held.Lease))
	if moved := before - paid(w); moved != 626*millisecond {
		t.Fatalf("a hold of 600 moves it back %d", moved)
	}
	held = w.granted(ask("std", itemOf("r", 600)))
	before = paid(w)
	w.do(consumes(held.Lease, 1))
	if paid(w) != before {
		t.Fatal("what is held pays again when it is consumed")
	}
	// On a rate of a second no grant counts longer than two seconds.
	w = newWorld(t)
	w.quotas(pacedRate("r", 60_000, second))
	g = w.granted(call("std", 200))
	before = paid(w)
	w.at(2 * second)
	w.do(used(g.Lease, 1, itemOf("r", 0)))
	if paid(w) != before {
		t.Fatal("what has stopped counting moves it back")
	}
}

func TestPace_ALimitThatChanges(t *testing.T) {
	w := pacedWorld(t)
	paid := func() int64 { return w.m.quotas.named("r").pacer.paidUntil }
	w.take("std", 600, 10)
	if paid() != 6_260*millisecond {
		t.Fatalf("it is %v ahead", time.Duration(paid()))
	}
	w.do(overrides("r", 30_000, hour))
	if paid() != 12_520*millisecond {
		t.Errorf("with half the limit it is %v ahead", time.Duration(paid()))
	}
	w.do(endsOverride("r"))
	if paid() != 6_260*millisecond {
		t.Errorf("with the whole limit it is %v ahead", time.Duration(paid()))
	}
	for i := range 3 { // rounding up a price of 1043333.33 ns would also round the amount
		again := pacedRate("r", 60_000, minute)
		again.Policy.AgeingNs = int64(i+1) * minute
		w.quotas(again)
		w.take("std", 1, 10)
	}
	if ahead := paid() - 6_260*millisecond; ahead != 30*1_043_334 {
		t.Errorf("changes that leave the price alone: 3 more are %v ahead", time.Duration(ahead))
	}
	w.quotas(pacedRate("r", 0, minute))
	if paid() != w.now {
		t.Errorf("without a limit it is %v ahead", time.Duration(paid()))
	}
	w.quotas(rateOf("r", 60_000, minute))
	w.sleep(second)
	w.quotas(pacedRate("r", 60_000, minute))
	if paid() != w.now {
		t.Errorf("with new shares it is at %v", time.Duration(paid()))
	}
}

func TestPace_UntilHigherClassesAreQuiet(t *testing.T) {
	for _, c := range []struct{ period, until int64 }{{minute, 15 * minute}, {hour, hour}} {
		for name, attempt := range map[string]int64{"granted": 600, "refused": 60_001} {
			t.Run(fmt.Sprintf("%v %s", time.Duration(c.period), name), func(t *testing.T) {
				w := newWorld(t)
				w.quotas(pacedRate("r", 60_000, c.period))
				w.do(criticalAndBackground())
				w.sleep(second) // an attempt at 0 does not count
				until := c.until + w.now
				w.do(reserve(call("crit", attempt)))
				w.at(until - 1)
				before := w.available("r")
				w.take("std", 600, 100)
				if left := w.available("r"); left != before-(before-24_000)/600*600 {
					t.Fatalf("%d left before it is quiet", left)
				}
				again := w.refused(call("std", 600), refusedShare).RetryAtNs
				if again != until {
					t.Fatalf("to come back at %v", time.Duration(again))
				}
				w.at(until)
				if got := int64(w.take("std", 600, 100)); got != 40 {
					t.Fatalf("%d of 40 when it is quiet", got)
				}
			})
		}
	}
}

// TestPace_WaitingCountsAsDemand: a waiting call counts as asking for as long as it waits.
func TestPace_WaitingCountsAsDemand(t *testing.T) {
	w := newWorld(t)
	shares := fleetShares()
	shares.QuietNs = minute
	w.quotas(policed(rateOf("r", 60_000, minute), &logpb.Policy{Shares: shares}), slotsOf("gate", 1))
	w.do(criticalAndBackground())
	gate := ask("std", itemOf("gate", 1))
	gate.TtlNs = hour
	held := w.granted(gate)
	wait := ask("crit", itemOf("r", 600), itemOf("gate", 1))
	wait.WaitNs = 10 * minute
	if r := w.do(reserve(wait)); r.GetWaiting() == nil {
		t.Fatalf("the critical call does not wait: %v", r)
	}
	w.sleep(5 * minute) // four minutes longer than attempts count
	if got := w.take("std", 600, 100); got != 59 {
		t.Fatalf("%d of 59 while a critical call waits", got)
	}
	w.sleep(2 * minute)
	w.do(releasesOf(held))
	w.sleep(2 * minute)
	if got := w.take("std", 600, 100); got != 100 {
		t.Fatalf("%d of 100 when the critical call has ended and none was made for two minutes", got)
	}
}

func TestPace_TheCapIsForDemand(t *testing.T) {
	w := pacedWorld(t)
	w.sleep(second) // an attempt at 0 does not count
	w.granted(call("std", 600))
	if got := w.take("crit", 600, 90); got != 90 {
		t.Fatalf("%d critical calls below the cap", got)
	}
	if again := w.refused(call("crit", 600), refusedCap).RetryAtNs; again != second+minute {
		t.Fatalf("to come back at %v", time.Duration(again))
	}
	// Waiters behind it are served: a standard one waits for the pacer, and a critical one is passed over.
	wait := call("crit", 600)
	wait.WaitNs = 5 * minute
	if w.do(reserve(wait)).GetWaiting() == nil {
		t.Fatal("who is above the cap does not wait")
	}
	w.at(second + minute - 1)
	w.refused(call("crit", 600), refusedCap)
	w.now++
	if g := w.apply(); len(g) != 0 || len(w.last.Events) == 0 || w.last.Events[0].Kind != effect.EventGranted {
		t.Fatalf("nobody below asked for a period, and it waits: %v", w.last.Events)
	}
	w.granted(call("crit", 600))
}

func TestPace_WaiterBehindCapIsServed(t *testing.T) {
	w := pacedWorld(t)
	w.granted(call("std", 600))
	w.take("crit", 600, 90)
	over := call("crit", 600)
	over.WaitNs = 5 * minute
	w.do(reserve(over))
	w.at(57_246*millisecond - 1200*millisecond) // 91 calls have been paid by then
	r := w.do(reserve(call("std", 600)))
	if r.GetGranted() == nil {
		t.Fatalf("a standard call behind one above the cap: %v", r)
	}
}

func TestPace_ThreeClasses(t *testing.T) {
	w := pacedWorld(t)
	w.granted(call("crit", 600))
	w.granted(call("std", 600))
	if got := w.take("back", 600, 100); got != 23 || w.available("r") != 45_000 {
		t.Fatalf("%d of background work, %d left", got, w.available("r"))
	}
	if got := w.take("std", 600, 100); got != 35 || w.available("r") != 24_000 {
		t.Fatalf("%d standard calls, %d left", got, w.available("r"))
	}
}

func TestPace_TheReserve(t *testing.T) {
	w := pacedWorld(t)
	w.granted(call("crit", 3600))
	w.at(59 * second)
	lowest := func() int64 {
		t.Helper()
		w.m.quotas.edit(w.m.quotas.numberOf("r")).pacer.paidUntil = 0 // all is lent
		for w.take("std", 100, 1) == 1 {
			w.m.quotas.edit(w.m.quotas.numberOf("r")).pacer.paidUntil = 0
		}
		return w.available("r")
	}
	if left := lowest(); left != 3000 {
		t.Fatalf("%d left in the period in which 3,600 were asked for", left)
	}
	w.at(119 * second)
	if left := lowest(); left != 3000 {
		t.Fatalf("%d left in the next", left)
	}
	again := w.refused(call("std", 100), refusedShare).RetryAtNs
	if again != 2*minute {
		t.Fatalf("to come back at %v, when the size is forgotten", time.Duration(again))
	}
	w.at(2 * minute)
	if left := lowest(); left != 600 {
		t.Fatalf("%d left in the period after", left)
	}
}

// TestPace_AWaiterIsServedToTheMoment: an entry is written when the next amount is lent, not before, and once.
func TestPace_AWaiterIsServedToTheMoment(t *testing.T) {
	w := pacedWorld(t)
	w.granted(call("crit", 600))
	w.take("std", 600, 59)
	waiting := call("std", 600)
	waiting.WaitNs, waiting.TtlNs = 5*minute, hour
	for range 3 {
		if w.do(reserve(waiting)).GetWaiting() == nil {
			t.Fatal("it does not wait")
		}
	}
	var served []time.Duration
	for range 200 {
		due, _ := w.m.State().NextDue()
		if due > 40*second {
			break
		}
		w.now = max(due, w.now+1)
		w.apply()
		for _, e := range w.last.Events {
			if e.Kind == effect.EventGranted {
				served = append(served, time.Duration(w.now))
			}
		}
	}
	if want := "[36.36s 36.986s 37.612s]"; fmt.Sprint(served) != want {
		t.Fatalf("served at %v, not %v", served, want)
	}
	if entries := w.index; entries > 63+3+3+10 {
		t.Fatalf("%d entries", entries)
	}
}

// TestPace_ServesNextToReservedPart: a waiter is served at the moment when its amount is lent, even if another
// waiter, for another quota, has a part of the rate set aside.
func TestPace_ServesNextToReservedPart(t *testing.T) {
	w := pacedWorld(t)
	w.quotas(rateOf("s", 1, hour))
	w.granted(ask("other", itemOf("s", 1)))
	w.granted(call("crit", 600))
	w.take("std", 600, 10)
	both := ask("std", itemOf("r", 12_000), itemOf("s", 1))
	alone := call("back", 600)
	both.WaitNs, alone.WaitNs = 5*minute, 5*minute
	for _, req := range []*logpb.Reserve{both, alone} {
		if w.do(reserve(req)).GetWaiting() == nil {
			t.Fatal("it does not wait")
		}
	}
	const lent = 11*626*millisecond - minute/leadPart
	for w.now < lent {
		due, _ := w.m.State().NextDue()
		w.now = min(max(due, w.now+1), lent+second)
		w.apply()
	}
	if w.now != lent || len(w.last.Events) != 1 || w.last.Events[0].Kind != effect.EventGranted {
		t.Fatalf("at %v, not at %v: %v", time.Duration(w.now), time.Duration(lent), w.last.Events)
	}
}

// TestPace_AfterACooldown: amounts that returned meanwhile are not granted in one moment.
func TestPace_AfterACooldown(t *testing.T) {
	w := pacedWorld(t)
	g := w.granted(call("crit", 600))
	w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{signal("r", logpb.Cause_CAUSE_SATURATED,
		retryAfter(2*minute))}}))
	w.at(2 * minute)
	// Nothing is free for one period: 1.2 s of the pace at once, and then one each 0.626 s.
	w.takes("std", 600, 2, refusedShare, 2*minute+52*millisecond)
	w.at(3 * minute)
	if got := w.take("std", 600, 100); got < 50 {
		t.Fatalf("%d when the free part is back", got)
	}
}

// TestPace_LargeCalls: a call that needs more than the reserve leaves is granted when everything is available. One that
// ageing puts first needs no reserve.
func TestPace_LargeCalls(t *testing.T) {
	w := pacedWorld(t)
	w.granted(call("crit", 600))
	if again := w.refused(call("std", 60_000), refusedEmpty).RetryAtNs; again != backAt {
		t.Fatalf("to come back at %v", time.Duration(again))
	}
	w.at(backAt)
	w.granted(call("std", 60_000))
}

// TestPace_FeatureLevel: before levels.Rates a rate has no shares, with the old error message.
func TestPace_FeatureLevel(t *testing.T) {
	def := pacedRate("r", 10, minute)
	_, failure := ledger.NewRule(def, levels.Rates-1)
	if failure.GetMessage() != `quota "r": only windows have shares` {
		t.Fatalf("at the level before: %v", failure)
	}
	if _, failure := ledger.NewRule(def, levels.Rates); failure != nil {
		t.Fatalf("at the level that knows them: %v", failure)
	}
}

// BenchmarkPace measures the cost of shares on rates for a Reserve that consumes: entries of 500 on 1,000 rates, with
// and without shares in turn. A critical holder has asked for each before, so each is judged by reserve, free part and
// pacer.
func BenchmarkPace(b *testing.B) {
	const entry, quotas = 500, 1000
	made := func(shares *logpb.Shares) *scale {
		s := &scale{m: New()}
		s.apply(criticalAndBackground())
		for i := range quotas {
			s.apply(applyQuotas(policed(rateOf(fmt.Sprintf("bench/q%03d", i), 1<<50, minute), &logpb.Policy{Shares: shares})))
		}
		asks := consuming(quotas, quotas)
		for _, c := range asks {
			c.GetReserve().Holder = "crit"
		}
		s.apply(asks...)
		return s
	}
	worlds, took := []*scale{made(nil), made(fleetShares())}, [2]time.Duration{}
	commands := consuming(entry, quotas)
	for n := 0; n < b.N; n += entry {
		for i, s := range worlds {
			s.now += 25 * millisecond
			took[i] += s.apply(commands...)
		}
	}
	b.ReportMetric(float64(took[0].Nanoseconds())/float64(b.N), "ns/command-without")
	b.ReportMetric(float64(took[1].Nanoseconds())/float64(b.N), "ns/command-with")
	b.ReportMetric(float64(took[1])/float64(took[0]), "ratio")
}

// BenchmarkQuotaMemory measures the bytes of an unused rate, and of one with consumption in each bucket of its period,
// without shares and with those of a fleet. The leases have ended, and the operations were never settled.
func BenchmarkQuotaMemory(b *testing.B) {
	const quotas = 1000
	for name, shares := range map[string]*logpb.Shares{"without": nil, "with": fleetShares()} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s, unused := weighed(func() *scale {
					s := &scale{m: New()}
					s.apply(criticalAndBackground())
					for i := range quotas {
						s.apply(applyQuotas(policed(rateOf(fmt.Sprintf("bench/q%03d", i), 1<<50, minute), &logpb.Policy{Shares: shares})))
					}
					return s
				})
				asks := consuming(quotas, quotas)
				_, used := weighed(func() *scale {
					for range 100 {
						s.now += 600 * millisecond
						s.apply(asks...)
					}
					for s.m.State().Counts().Leases > 0 {
						s.now += second
						s.apply()
					}
					return s
				})
				b.ReportMetric(unused/quotas, "bytes/unused")
				b.ReportMetric((unused+used)/quotas, "bytes/used")
			}
		})
	}
}

// TestPace_View: a reader sees how far the pacer is ahead, what stays, and the largest call of each class: exactly as
// much is granted.
func TestPace_View(t *testing.T) {
	w := pacedWorld(t)
	takes := func() (takes [ledger.Classes]int64) {
		for class, use := range w.view("r").Classes {
			takes[class] = use.Takes
		}
		return takes
	}
	zone := func() logpb.Zone { return w.view("r").Pacer.Zone }
	if got, p := takes(), w.view("r").Pacer; got != [ledger.Classes]int64{60_000, 60_000, 60_000} ||
		*p != (PacerView{Zone: logpb.Zone_ZONE_GREEN}) {
		t.Fatalf("nobody asked: %v, %+v", got, p)
	}
	w.granted(call("crit", 600))
	if got := takes(); got != [ledger.Classes]int64{59_400, 58_800, 58_800} { // lent: all except the reserve
		t.Fatalf("before the pacer is ahead: %v", got)
	}
	w.take("std", 600, 10)
	if got := takes(); got != [ledger.Classes]int64{53_400, 29_400, 8_400} || zone() != logpb.Zone_ZONE_GREEN {
		t.Fatalf("free: %v, %v", got, zone())
	}
	w.take("std", 600, 49)
	p := w.view("r").Pacer
	if got := takes(); got[ledger.ClassStandard] != 0 || got[ledger.ClassBackground] != 0 || p.Zone != logpb.Zone_ZONE_AMBER ||
		p.Ahead != 60*626*millisecond || p.LendsIn != 36_360*millisecond || p.Reserve != 600 {
		t.Fatalf("lent: %v, %+v", got, p)
	}
	// The share of an asking class is kept; the use of critical calls is known.
	if uses := w.view("r").Classes; uses[ledger.ClassCritical].Used != 600 || uses[ledger.ClassCritical].Kept != 24_000 ||
		uses[ledger.ClassStandard].Used != 0 ||
		uses[ledger.ClassStandard].Kept != 21_000 || uses[ledger.ClassBackground].Kept != 0 || uses[ledger.ClassBackground].Lent != 0 {
		t.Fatalf("classes have %+v", uses)
	}
	w.refused(call("std", 1), refusedShare)
	w.refused(call("back", 1), refusedShare)
	w.take("crit", 600, 40)
	if zone() != logpb.Zone_ZONE_RED {
		t.Fatalf("nothing is left: %v", zone())
	}
}

// TestPace_ViewOfClosedRate: no class could take more than the parent has for it, and nothing during a cooldown of
// the rate or its parent.
func TestPace_ViewOfClosedRate(t *testing.T) {
	w := newWorld(t)
	w.quotas(pacedRate("account", 10_000, minute), under(pacedRate("r", 60_000, minute), "account"))
	w.do(criticalAndBackground())
	takes := func() (takes [ledger.Classes]int64) {
		for class, use := range w.view("r").Classes {
			takes[class] = use.Takes
		}
		return takes
	}
	g := w.granted(call("crit", 100))
	if got := takes(); got != [ledger.Classes]int64{9_900, 9_800, 9_800} {
		t.Fatalf("below a parent: %v", got)
	}
	for _, cause := range []logpb.Cause{logpb.Cause_CAUSE_SATURATED, logpb.Cause_CAUSE_ACCOUNT} {
		w.do(report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{signal("r", cause, retryAfter(10*second))}}))
		if got := takes(); got != [ledger.Classes]int64{} {
			t.Fatalf("closed by %v: %v", cause, got)
		}
		w.sleep(10 * second)
	}
}
