package fsm

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/logpb"
)

// spend is an amount that reached the provider, in the provider's own time.
type spend struct{ at, amount int64 }

// fleet draws holders that consume, spend at a random moment until the spend-by, and settle or not. Real time is the
// test's. The cluster loses some of it at leader changes, and its views of Unix time have errors.
type fleet struct {
	*rapid.T
	w    *world
	real int64
	// lost is real time that cluster time missed.
	lost     int64
	maxError int64
	spends   []spend
	pending  []pendingSpend
}

type pendingSpend struct {
	at      int64 // real time
	amount  int64
	granted *logpb.Granted
}

// pass lets real time pass, carries out due spends, and draws new clock errors.
func (f *fleet) pass(d int64) {
	f.real += d
	if rapid.IntRange(0, 60).Draw(f.T, "leader change") == 0 {
		f.lost += rapid.Int64Range(0, 3*second).Draw(f.T, "lost")
	}
	f.w.now = max(f.w.now, f.real-f.lost)
	// The earlier view may be slow, the later one fast, by any amount; on their other sides they are as good as an
	// honest clock.
	f.w.early = f.real - f.w.now + rapid.Int64Range(-5*second, f.maxError).Draw(f.T, "early")
	f.w.late = f.real - f.w.now + rapid.Int64Range(-f.maxError, 5*second).Draw(f.T, "late")
}

// use reserves and consumes an amount, and spends it within what the answer allows.
func (f *fleet) use(quota string, amount int64, consumeLater bool) *logpb.Granted {
	a := ask("h", itemOf(quota, amount))
	a.Consume, a.TtlNs = !consumeLater, 30*second
	granted := f.w.do(reserve(a)).GetGranted()
	if granted == nil {
		return nil
	}
	consumed := granted.Consumed
	if consumeLater {
		f.pass(rapid.Int64Range(0, 5*second).Draw(f.T, "held"))
		consumed = f.w.do(consumeCmd(&logpb.Consume{Lease: granted.Lease, Fence: granted.Fence, Op: 1})).GetConsumed()
		if consumed == nil {
			return nil
		}
	}
	f.spend(granted, consumed, amount)
	return granted
}

// spend draws when an operation reaches the provider: until the spend-by that a holder computes from the answer.
func (f *fleet) spend(granted *logpb.Granted, consumed *logpb.Consumed, amount int64) {
	clock := f.w.m.State().Clock()
	left := consumed.SpendByNs - clock.Now
	if consumed.SpendByWallNs != 0 {
		left = min(left, consumed.SpendByWallNs-clock.WallLate)
	}
	at := f.real + rapid.Int64Range(0, max(left, 0)).Draw(f.T, "spent after")
	f.spends = append(f.spends, spend{at: at, amount: amount})
	f.pending = append(f.pending, pendingSpend{at: at, amount: amount, granted: granted})
}

// settleSome settles operations whose spend is in the past, as used.
func (f *fleet) settleSome() {
	f.pending = slices.DeleteFunc(f.pending, func(p pendingSpend) bool {
		if p.at > f.real || rapid.Bool().Draw(f.T, "later") {
			return false
		}
		f.w.do(settle(&logpb.Settle{
			Lease: p.granted.Lease, Fence: p.granted.Fence, Op: 1, Final: true, Release: rapid.Bool().Draw(f.T, "release"),
		}))
		return true
	})
}

// peak returns the most that any half-open interval of one period saw.
func peak(spends []spend, period int64) (most int64) {
	slices.SortFunc(spends, func(a, b spend) int { return int(min(max(a.at-b.at, -1), 1)) })
	var sum int64
	first := 0
	for _, s := range spends {
		sum += s.amount
		for spends[first].at <= s.at-period {
			sum -= spends[first].amount
			first++
		}
		most = max(most, sum)
	}
	return most
}

// TestRate_NeverExceeds: no interval of one period sees more than usable, at spend time, for any schedule. A token
// bucket of the same capacity fails this within a few tries (TestPeak_CatchesPlainTokenBucket).
func TestRate_NeverExceeds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		period := rapid.SampledFrom([]int64{second, 10 * second, minute}).Draw(rt, "period")
		f := &fleet{T: rt, w: newWorld(rt)}
		f.w.quotas(rateOf("r", 20, period))
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			f.pass(rapid.Int64Range(0, period/8).Draw(rt, "pass"))
			f.use("r", rapid.Int64Range(1, 6).Draw(rt, "amount"), rapid.Bool().Draw(rt, "hold first"))
			f.settleSome()
		}
		if most := peak(f.spends, period); most > 20 {
			rt.Fatalf("an interval of one period saw %d, usable is 20", most)
		}
	})
}

// TestBurst_NeverExceeds: additionally no interval d sees more than burst + d*usable/period.
func TestBurst_NeverExceeds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := &fleet{T: rt, w: newWorld(rt)}
		q := rateOf("r", 60, minute)
		q.GetRate().Burst = rapid.Int64Range(2, 20).Draw(rt, "burst")
		f.w.quotas(q)
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			f.pass(rapid.Int64Range(0, 2*second).Draw(rt, "pass"))
			f.use("r", rapid.Int64Range(1, 3).Draw(rt, "amount"), rapid.Bool().Draw(rt, "hold first"))
		}
		for d := second; d <= minute; d += second {
			if most := peak(f.spends, d); most > q.GetRate().Burst+fixed.MulDivCeil(d, 60, minute) {
				rt.Fatalf("an interval of %d s saw %d with burst %d", d/second, most, q.GetRate().Burst)
			}
		}
	})
}

// TestCalendarWindow_NeverExceeds: no window of the provider sees more than usable, although our clocks and the
// provider's err by half the skew each, and minorities of ours by any amount.
func TestCalendarWindow_NeverExceeds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		length := rapid.SampledFrom([]int64{minute, 10 * minute}).Draw(rt, "length")
		f := &fleet{T: rt, w: newWorld(rt), maxError: 500 * millisecond}
		f.w.quotas(&logpb.Quota{Name: "q", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 30, EveryNs: length}}})
		providerError := rapid.Int64Range(-500*millisecond, 500*millisecond).Draw(rt, "provider's clock")
		for range rapid.IntRange(1, 150).Draw(rt, "steps") {
			f.pass(rapid.SampledFrom([]int64{0, 50 * millisecond, second, length / 20, length / 4}).Draw(rt, "pass"))
			f.use("q", rapid.Int64Range(1, 10).Draw(rt, "amount"), rapid.Bool().Draw(rt, "hold first"))
			f.settleSome()
		}
		sums := map[int64]int64{}
		for _, s := range f.spends {
			window := fixed.FloorDiv(epochStart+s.at+providerError, length)
			if sums[window] += s.amount; sums[window] > 30 {
				rt.Fatalf("window %d saw %d, usable is 30", window, sums[window])
			}
		}
	})
}

// anchoredProvider has a window that starts with the first call after the end of the last one, like GitHub's.
type anchoredProvider struct {
	start  int64
	length int64
	used   int64
}

func (p *anchoredProvider) call(at, amount int64) (used, resetAfter int64) {
	if p.start == 0 || at >= p.start+p.length {
		p.start, p.used = at, 0
	}
	p.used += amount
	// It reports whole seconds of its clock, rounded down.
	reset := (p.start + p.length) / second * second
	return p.used, reset - at
}

// TestAnchoredWindow_NeverExceeds: the same for windows anchored to the provider's reported reset, with late or missing
// reports.
func TestAnchoredWindow_NeverExceeds(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := &fleet{T: rt, w: newWorld(rt), maxError: 200 * millisecond}
		q := anchored("q", 30)
		q.GetWindow().Every, q.GetWindow().EveryNs = 0, 2*minute
		q.SpendByNs = 2 * second
		f.w.quotas(q)
		p := &anchoredProvider{length: 2 * minute, start: 1}
		f.real = 10 * second
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			f.pass(rapid.SampledFrom([]int64{0, 50 * millisecond, second, 6 * second, 40 * second}).Draw(rt, "pass"))
			amount := rapid.Int64Range(1, 10).Draw(rt, "amount")
			granted := f.use("q", amount, false)
			if granted == nil {
				continue
			}
			f.pass(f.spends[len(f.spends)-1].at - f.real)
			used, resetAfter := p.call(f.real, amount)
			if used > 30 {
				rt.Fatalf("the window that began at %d ms saw %d, usable is 30", p.start/millisecond, used)
			}
			if rapid.IntRange(0, 2).Draw(rt, "report") > 0 {
				f.pass(rapid.SampledFrom([]int64{0, 100 * millisecond, 300 * millisecond, 20 * second}).Draw(rt, "report's way"))
				f.w.do(report(&logpb.Report{Lease: granted.Lease, Fence: granted.Fence, Op: 1, Signals: []*logpb.Signal{{
					Quota: "q", Cause: logpb.Cause_CAUSE_OK, ResetAfterNs: &resetAfter, ResetResolutionNs: second,
				}}}))
			}
		}
	})
}

// TestPeak_CatchesPlainTokenBucket shows that the property above can fail: a bucket of capacity limit that refills at
// limit/period lets almost twice the limit through one period.
func TestPeak_CatchesPlainTokenBucket(t *testing.T) {
	const limit, period = 20, minute
	tokens, last := int64(limit)*period, int64(0)
	var spends []spend
	for at := int64(0); at < 3*period; at += second / 2 {
		tokens, last = min(tokens+(at-last)*limit, int64(limit)*period), at
		if at >= period && tokens >= period {
			tokens -= period
			spends = append(spends, spend{at: at, amount: 1})
		}
	}
	if most := peak(spends, period); most <= limit {
		t.Fatalf("the token bucket let %d through: the check is too weak", most)
	}
}

// TestUtilisation: under constant demand a rate with a period of 60 s issues at least 95% of usable, a window quota at
// least 99% with demand of 1.1 times usable.
func TestUtilisation(t *testing.T) {
	t.Run("rate", func(t *testing.T) {
		w := newWorld(t)
		w.quotas(rateOf("q", 600, minute))
		if issued := demand(w, "q", 10*minute, 90*millisecond); issued < 600*10*95/100 {
			t.Fatalf("issued %d of %d", issued, 600*10)
		}
	})
	t.Run("window", func(t *testing.T) {
		w := newWorld(t)
		w.quotas(hourly("q", 3600))
		hours := int64(3)
		if testing.Short() {
			hours = 2
		}
		if issued := demand(w, "q", hours*hour, second*10/11); issued < 3600*hours*99/100 {
			t.Fatalf("issued %d of %d", issued, 3600*hours)
		}
	})
}

// demand requests one unit at every step and returns how many were granted.
func demand(w *world, quota string, length, step int64) (issued int64) {
	a := ask("h", itemOf(quota, 1))
	a.Consume, a.TtlNs = true, second
	for end, n := w.now+length, 0; w.now < end; w.now, n = w.now+step, n+1 {
		apply := w.raw
		if n%100 == 0 { // checking thousands of records thousands of times would take a minute
			apply = w.apply
		}
		if apply(reserve(a))[0].GetGranted() != nil {
			issued++
		}
	}
	return issued
}
