package fsm

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/levels"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestBurst_WakesNoEntryBeforeRefill: an entry is written when something can happen, not twenty times a second while a Reserve waits
// for a quota with a burst. The next amount of it is available in 45 s.
func TestBurst_WakesNoEntryBeforeRefill(t *testing.T) {
	w := newWorld(t)
	q := rateOf("r", 80, hour)
	q.GetRate().Burst = 4
	w.quotas(q)
	consumes := func() *logpb.Reserve {
		a := ask("me", itemOf("r", 1))
		a.Consume, a.WaitNs = true, 10*minute
		return a
	}
	for range 10 {
		if w.do(reserve(consumes())).GetWaiting() != nil {
			break
		}
	}
	due, pending := w.m.State().NextDue()
	if left := due - w.m.State().Clock().Now; !pending || left < second {
		t.Errorf("the state wants an entry in %d ms; nothing can happen before a burst has %d s more", left/millisecond, hour/80/second)
	}
}

// TestBurst_GrantsWholeBurstAtOnce: an amount as large as may be consumed at once is granted as soon as nothing of the burst
// is drawn. This holds for any rate, even if a unit takes a fraction of a nanosecond.
func TestBurst_GrantsWholeBurstAtOnce(t *testing.T) {
	for _, c := range []struct{ limit, per, burst, most int64 }{
		{60, minute, 4, 2}, {37, minute, 5, 3}, {7, minute, 2, 1}, {3, second, 2, 1}, {11, hour, 2, 1}, {999_983, minute, 100_000, 66_667},
	} {
		w := newWorld(t)
		q := rateOf("r", c.limit, c.per)
		q.GetRate().Burst = c.burst
		w.quotas(q)
		whole := func(amount, wait int64) *logpb.Reserve {
			a := ask("me", itemOf("r", amount))
			a.Consume, a.WaitNs = true, wait
			return a
		}
		w.refused(whole(c.most+1, 0), logpb.Reason_REASON_NEVER_FITS)
		w.granted(whole(c.most, 0))
		// And again, at the exact retry time, when it is full again.
		again := w.refused(whole(c.most, 0), logpb.Reason_REASON_EXHAUSTED)
		w.now = again.RetryAtNs
		w.granted(whole(c.most, 0))
		if r := w.do(reserve(whole(c.most, 9*minute))); c.per <= minute && r.GetWaiting() == nil {
			t.Fatalf("%+v: no wait: %v", c, r)
		}
	}
}

// TestBurst_MatchesExactArithmetic: no interval sees more than the burst and the refill, computed exactly. Each wait has a
// reason, and a retry at the given time passes.
func TestBurst_MatchesExactArithmetic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &ledger.Rule{
			Period: rapid.Int64Range(1, 1000).Draw(t, "period"), Usable: rapid.Int64Range(1, 1000).Draw(t, "usable"),
			Burst: rapid.Int64Range(1, 50).Draw(t, "burst"),
		}
		var g ledger.Ledger
		type take struct{ at, amount int64 }
		var taken []take
		now := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "takes") {
			now += rapid.Int64Range(0, 300).Draw(t, "pause")
			amount := rapid.Int64Range(1, r.Burst).Draw(t, "amount")
			if left := g.BurstLeft(r, now, amount); left > 0 {
				if g.Arrival <= now {
					t.Fatalf("%d of a burst of %d waits for %d, and nothing is drawn", amount, r.Burst, left)
				}
				if now += left; g.BurstLeft(r, now, amount) > 0 {
					t.Fatalf("%d does not pass at the time that the refusal named", amount)
				}
			}
			g.PassBurst(r, now, amount)
			taken = append(taken, take{now, amount})
			sum := int64(0)
			for _, first := range slices.Backward(taken) {
				if sum += first.amount; (sum-r.Burst)*r.Period > (now-first.at)*r.Usable {
					t.Fatalf("%d within %d: more than a burst of %d at %d in %d", sum, now-first.at, r.Burst, r.Usable, r.Period)
				}
			}
		}
	})
}

// exceeds returns the most by which charges exceed a burst and its refill.
func exceeds(charges []spend, burst, usable, period int64) (over int64) {
	slices.SortFunc(charges, func(a, b spend) int { return cmp.Compare(a.at, b.at) })
	for i := range charges {
		sum := int64(0)
		for _, first := range slices.Backward(charges[:i+1]) {
			sum += first.amount
			over = max(over, sum-burst-fixed.MulDivFloor(charges[i].at-first.at, usable, period))
		}
	}
	return over
}

// chargedBeyond draws calls on a rate with a burst, at a feature level. It returns by how much the charges of some
// interval exceed the burst and the refill. Calls are large, mostly use their whole estimate, and end together: that
// finds errors.
func chargedBeyond(rt *rapid.T, charged logpb.Charged, level uint32) int64 {
	const usable, burst = 6000, 1000
	w := newWorld(rt)
	w.version = level
	def := rateOf("r", usable, minute)
	def.GetRate().Burst, def.Charged, def.MaxCallNs, def.SpendByNs = burst, charged, 20*second, second
	w.quotas(def)
	var charges []spend
	type running struct {
		g                   *logpb.Granted
		spent, ends, amount int64
		settles             bool
	}
	var calls []running
	finish := func(until int64) {
		slices.SortFunc(calls, func(a, b running) int { return cmp.Compare(a.ends, b.ends) })
		for len(calls) > 0 && calls[0].ends <= until {
			c := calls[0]
			calls = calls[1:]
			w.now = max(w.now, c.ends)
			at := c.spent
			if charged != logpb.Charged_CHARGED_START {
				at = c.ends
			}
			charges = append(charges, spend{at, c.amount})
			if c.settles {
				w.do(used(c.g.Lease, 1, itemOf("r", c.amount)))
			}
		}
	}
	for range rapid.IntRange(2, 40).Draw(rt, "calls") {
		next := w.now + rapid.SampledFrom([]int64{0, 100 * millisecond, second, 5 * second, 9 * second}).Draw(rt, "pause")
		finish(next)
		w.now = max(w.now, next)
		if rapid.IntRange(0, 5).Draw(rt, "restored") == 0 {
			w.reborn()
		}
		a := ask("h", itemOf("r", rapid.OneOf(rapid.SampledFrom([]int64{100, 500, 800, 900}), rapid.Int64Range(1, 900)).Draw(rt, "estimate")))
		a.Consume, a.TtlNs = true, 30*second
		g := w.do(reserve(a)).GetGranted()
		if g == nil {
			continue
		}
		amount := *a.Items[0].Amount
		spent := w.now + rapid.SampledFrom([]int64{0, second / 2, second}).Draw(rt, "spent after")
		together := w.now/(20*second)*20*second + 18*second
		ends := rapid.SampledFrom([]int64{spent, max(spent, together), spent + 19*second}).Draw(rt, "ends")
		calls = append(calls, running{
			g: g, spent: spent, ends: min(ends, spent+19*second), settles: rapid.IntRange(0, 4).Draw(rt, "settles") > 0,
			amount: rapid.SampledFrom([]int64{amount, amount, amount / 5, 0}).Draw(rt, "uses"),
		})
	}
	finish(w.now + minute)
	return exceeds(charges, burst, usable, minute)
}

// TestBurst_NeverExceedsWhateverIsCharged: no interval is charged more than the burst and the refill, whether the
// provider charges the actual use at the start of a call or at its end. In the second case a bucket that is full again
// is not granted again while the first charge is still to come.
func TestBurst_NeverExceedsWhateverIsCharged(t *testing.T) {
	for _, charged := range []logpb.Charged{logpb.Charged_CHARGED_START, logpb.Charged_CHARGED_END, logpb.Charged_CHARGED_DURING} {
		t.Run(charged.String(), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				if over := chargedBeyond(rt, charged, EntryVersion); over > 0 {
					rt.Fatalf("%d beyond the burst", over)
				}
			})
		})
	}
}

// TestBurst_ExceedsByFormerRule: the same calls exceed the burst by the rule before levels.Rates, which did not know
// when open amounts will be charged. So these draws detect a wrong rule.
func TestBurst_ExceedsByFormerRule(t *testing.T) {
	const tries = 100
	wrong := 0
	for seed := range tries {
		over := rapid.Custom(func(rt *rapid.T) int64 { return chargedBeyond(rt, logpb.Charged_CHARGED_END, levels.Rates-1) }).Example(seed)
		if over > 0 {
			wrong++
		}
	}
	t.Logf("%d of %d", wrong, tries)
	if wrong == 0 {
		t.Errorf("none of %d histories exceeds the burst", tries)
	}
}

// TestBurst_UnusedReturns: a burst of 1,000 at 100 a second. 500 are drawn at 0, of which 100 are used, and 900
// at 4.0 s. When the first is settled at 4.1 s, 110 pass. The bucket was full meanwhile, so 410 do not.
func TestBurst_UnusedReturns(t *testing.T) {
	r := &ledger.Rule{Period: minute, Usable: 6000, Burst: 1000, Width: 600 * millisecond}
	var g ledger.Ledger
	g.Draw(1200*millisecond, 0, 500)
	if left := g.BurstLeft(r, 4*second, 900); left != 0 {
		t.Fatalf("900 pass in %d", left)
	}
	g.Draw(5400*millisecond, 4*second, 900)
	if left := g.BurstLeft(r, 4100*millisecond, 110); left == 0 {
		t.Fatal("110 pass before what was not used is back")
	}
	g.Undraw(1200*millisecond, 400)
	for amount, passes := range map[int64]bool{110: true, 111: false} {
		if left := g.BurstLeft(r, 4100*millisecond, amount); (left == 0) != passes {
			t.Errorf("%d pass in %d", amount, left)
		}
	}
}

// TestBurst_UseWithInexactEstimates: where calls use a fifth of their estimate, the unused part can be used.
func TestBurst_UseWithInexactEstimates(t *testing.T) {
	w := newWorld(t)
	def := rateOf("r", 60_000, minute)
	def.GetRate().Burst = 6000
	w.quotas(def)
	var uses int64
	for w.now < 2*minute {
		w.now += 50 * millisecond
		a := ask("h", itemOf("r", 500))
		a.Consume = true
		if g := w.raw(reserve(a))[0].GetGranted(); g != nil {
			w.now += 50 * millisecond
			s := used(g.Lease, 1, itemOf("r", 100))
			s.GetSettle().Release = true
			w.raw(s)
			uses += 100
		}
	}
	if uses < 100_000 {
		t.Fatalf("%d were used of what %d allow", uses, 2*60_000)
	}
}

// TestBurst_LateChargeCountsUntilThen: a call of 900 that is charged after 12 s leaves 100 of a burst of 1,000,
// though the bucket is full again after 9 s; also if its client leaves without a report.
func TestBurst_LateChargeCountsUntilThen(t *testing.T) {
	for _, charged := range []logpb.Charged{logpb.Charged_CHARGED_END, logpb.Charged_CHARGED_DURING} {
		def := rateOf("r", 6000, minute)
		def.GetRate().Burst, def.Charged, def.MaxCallNs, def.SpendByNs = 1000, charged, 20*second, second
		tell(t, []story{
			{"settled, " + charged.String(), []*logpb.Quota{def}, []line{
				{0, consumesAtOnce("a", itemOf("r", 900)), "lease 1: r=900 until 5m0s; op 1 spends r=900 by 1s"},
				{11 * second, consumesAtOnce("b", itemOf("r", 900)), "EXHAUSTED r again at 20s"},
				{second, used(1, 1, itemOf("r", 500)), "settled; back r=400"},
				{0, consumesAtOnce("b", itemOf("r", 400)), "lease 2: r=400 until 5m12s; op 1 spends r=400 by 13s"},
				{0, used(2, 1, itemOf("r", 400)), "settled"},
				{0, consumesAtOnce("b", itemOf("r", 1)), "EXHAUSTED r again at 12.01s"},
			}},
			{"left, " + charged.String(), []*logpb.Quota{def}, []line{
				{0, consumesAtOnce("a", itemOf("r", 900)), "lease 1: r=900 until 5m0s; op 1 spends r=900 by 1s"},
				{0, releases(1), "back; ended"}, // it may be charged until 20 s after the deadline
				{5*minute + 19*second, consumesAtOnce("b", itemOf("r", 100)), "EXHAUSTED r again at 5m24s"},
			}},
		})
	}
}
