package fsm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/logpb"
)

// TestABurstIsNotPolled: the log is written to when something can happen, and not twenty times a second for as long as
// somebody waits for a quota with a burst. The next of it is there in 45 s.
func TestABurstIsNotPolled(t *testing.T) {
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

// TestABurstIsGivenOutWhole: an amount as large as what may be consumed at once is granted as soon as nothing of the burst is
// drawn, whatever the rate: also one whose single units come in no whole nanoseconds.
func TestABurstIsGivenOutWhole(t *testing.T) {
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
		// And again when it is full again, told to the moment.
		again := w.refused(whole(c.most, 0), logpb.Reason_REASON_EXHAUSTED)
		w.now = again.RetryAtNs
		w.granted(whole(c.most, 0))
		if r := w.do(reserve(whole(c.most, 9*minute))); c.per <= minute && r.GetWaiting() == nil {
			t.Fatalf("%+v: no wait: %v", c, r)
		}
	}
}

// No interval sees more than the burst and what flows in meanwhile, reckoned exactly; what is kept waiting has a reason; and who
// comes when it is told to passes.
func TestBurstAgainstExactNumbers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := &rule{
			period: rapid.Int64Range(1, 1000).Draw(t, "period"), usable: rapid.Int64Range(1, 1000).Draw(t, "usable"),
			burst: rapid.Int64Range(1, 50).Draw(t, "burst"),
		}
		var g ledger
		type take struct{ at, amount int64 }
		var taken []take
		now := int64(0)
		for range rapid.IntRange(1, 40).Draw(t, "takes") {
			now += rapid.Int64Range(0, 300).Draw(t, "pause")
			amount := rapid.Int64Range(1, r.burst).Draw(t, "amount")
			if left := g.burstLeft(r, now, amount); left > 0 {
				if g.arrival <= now {
					t.Fatalf("%d of a burst of %d waits for %d, and nothing is drawn", amount, r.burst, left)
				}
				if now += left; g.burstLeft(r, now, amount) > 0 {
					t.Fatalf("%d does not pass when it was told to come", amount)
				}
			}
			g.passBurst(r, now, amount)
			taken = append(taken, take{now, amount})
			sum := int64(0)
			for _, first := range slices.Backward(taken) {
				if sum += first.amount; (sum-r.burst)*r.period > (now-first.at)*r.usable {
					t.Fatalf("%d within %d: more than a burst of %d at %d in %d", sum, now-first.at, r.burst, r.usable, r.period)
				}
			}
		}
	})
}
