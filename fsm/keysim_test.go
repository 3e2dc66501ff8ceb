package fsm

import (
	"container/heap"
	"fmt"
	"testing"

	"github.com/quotad/quotad/fsm/fixed"
	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A simulated fleet on a key that others use too: its provider counts on its own, refuses excess calls, and returns the
// remainder with each answer. The results are in docs/decisions/0034-reports-of-rates.md.

// keyLoad is the use of a key and the behaviour of its provider.
type keyLoad struct {
	// others is the part of the limit that others use, in calls of a hundredth. pulses: all of it in the first half of
	// each period.
	others float64
	pulses bool
	// continuous: the provider has a bucket that refills continuously, not a sliding log.
	continuous bool
	// late: the provider computes the remainder when it has answered, not when it admitted the call.
	late bool
	// gateway: the whole fleet is one caller.
	gateway bool
}

// keySim is a provider's sliding log or bucket.
type keySim struct {
	keyLoad
	*paceSim
	log []ledger.Entry
	sum int64
	// drawn is the bucket's deficit at drawnAt.
	drawn, drawnAt int64
	// calls counts calls that reached it, refused the excess ones.
	calls, refused int
	// kept is the sum of held-back amounts at the beginning of calls.
	kept float64
}

// useKey adds a provider to a simulated fleet.
func (p *paceSim) useKey() {
	p.key = &keySim{keyLoad: *p.paceLoad.key, paceSim: p}
	if p.key.others > 0 {
		heap.Push(&p.events, simEvent{at: second, do: p.key.byOthers})
	}
}

// room returns how much the provider admits now.
func (k *keySim) room() int64 {
	if k.continuous {
		return k.usable - max(0, k.drawn-fixed.MulDivFloor(k.usable, k.w.now-k.drawnAt, k.period))
	}
	for len(k.log) > 0 && k.log[0].End <= k.w.now-k.period {
		k.sum -= k.log[0].Amount
		k.log = k.log[1:]
	}
	return k.usable - k.sum
}

// admit counts a call that fits.
func (k *keySim) admit(amount int64) bool {
	room := k.room()
	if room < amount {
		return false
	}
	k.drawn, k.drawnAt = k.usable-room+amount, k.w.now
	k.log = append(k.log, ledger.Entry{End: k.w.now, Amount: amount})
	k.sum += amount
	return true
}

// byOthers is a call of another user of the key.
func (k *keySim) byOthers() []*logpb.Command {
	k.admit(k.usable / 100)
	next := k.w.now + int64(float64(k.period)/100/k.others)
	if k.pulses {
		next = k.w.now + int64(float64(k.period)/200/k.others)
		if next%k.period >= k.period/2 {
			next += k.period - next%k.period
		}
	}
	heap.Push(&k.events, simEvent{at: next, do: k.byOthers})
	return nil
}

// call sends a call, which reaches the provider shortly after.
func (k *keySim) call(e simEvent, g *logpb.Granted, use int64) {
	began := k.w.now
	k.kept += float64(k.w.m.quotas.named("r").ledger.Others.Kept)
	k.calls++
	heap.Push(&k.events, simEvent{at: began + k.random.Int64N(300*millisecond), do: func() []*logpb.Command {
		if !k.admit(use) {
			k.refused++
			k.used[e.class] -= use
			return k.answer(e, g, 0, signal("r", logpb.Cause_CAUSE_SATURATED, remaining(k.room()), retryAfter(second)))
		}
		left := k.room()
		heap.Push(&k.events, simEvent{at: began + second/2 + k.random.Int64N(k.slowest-second/2), do: func() []*logpb.Command {
			if k.late {
				left = k.room()
			}
			return k.answer(e, g, use, signal("r", okay, remaining(left)))
		}})
		return nil
	}})
}

// answer reports the provider's answer, and settles the call.
func (k *keySim) answer(e simEvent, g *logpb.Granted, use int64, said *logpb.Signal) []*logpb.Command {
	reported := report(&logpb.Report{Lease: g.Lease, Fence: g.Fence, Op: 1, Signals: []*logpb.Signal{said}})
	reported.Caller = "token:" + e.holder
	if k.gateway {
		reported.Caller = "token:gateway"
	}
	return []*logpb.Command{reported, k.command(simEvent{granted: g, amount: use})}
}

// refusals returns, in percent, the part of calls that were refused, rest the use of the amount that others left. held
// returns the average amount held back when calls began, relative to usable.
func (k *keySim) refusals() float64 { return 100 * float64(k.refused) / float64(k.calls) }
func (k *keySim) rest() float64     { return k.use(0, 1, 2) / (1 - k.others) }
func (k *keySim) held() float64     { return 100 * k.kept / float64(k.calls) / float64(k.usable) }

func (k *keySim) String() string {
	return fmt.Sprintf("%v; %.2f %% refused, %.1f %% of the rest used; %.2f %% held back", k.paceSim, k.refusals(), k.rest(), k.held())
}

// keyed is a fleet that asks for more than there is, with calls that take up to slowest.
func keyed(slowest int64) paceLoad {
	return paceLoad{
		period: minute, usable: 60_000, critical: .15, lower: 1.2, backlog: 1, amount: 300, slowest: slowest, shares: fleetShares(), periods: 14,
	}
}

// TestForeign_InASimulatedFleet: a fleet's grants on a key that others use too. Without others, nothing is held back.
func TestForeign_InASimulatedFleet(t *testing.T) {
	for _, c := range []struct {
		key             keyLoad
		amount, slowest int64
		// Bounds, in percent: of calls refused, of the use of the amount that others leave, of the period for waits of
		// critical calls.
		refused, rests, p99 float64
	}{
		{keyLoad{}, 300, 3 * second, 0, 95, 5},
		{keyLoad{}, 300, 20 * second, 0, 94, 5},
		{keyLoad{late: true}, 300, 20 * second, 0, 94, 5},
		{keyLoad{late: true}, 3000, 20 * second, 0, 90, 5},
		{keyLoad{others: .3}, 300, 3 * second, 1.4, 89, 5},
		{keyLoad{others: .3, late: true}, 300, 3 * second, 1.4, 89, 5},
		{keyLoad{others: .3, gateway: true}, 300, 3 * second, 1.4, 89, 5},
		{keyLoad{others: .3}, 300, 20 * second, 1.4, 89, 5},
		{keyLoad{others: .3, late: true}, 300, 20 * second, 1.4, 89, 5},
		{keyLoad{others: .3, pulses: true}, 300, 3 * second, 1.4, 89, 5},
		{keyLoad{others: .3, pulses: true}, 300, 20 * second, 1.4, 89, 5},
		{keyLoad{continuous: true}, 300, 3 * second, 0, 95, 5},
		{keyLoad{others: .3, continuous: true}, 300, 3 * second, 1.4, 89, 5},
		{keyLoad{others: .3, continuous: true}, 300, 20 * second, 1.4, 89, 5},
		// Between pulses a bucket refills its held-back part at once: critical calls wait at the beginning of each.
		{keyLoad{others: .3, continuous: true, pulses: true}, 300, 3 * second, 1.4, 89, 12},
		{keyLoad{others: .3, continuous: true, pulses: true}, 300, 20 * second, 1.4, 89, 12},
	} {
		if testing.Short() && c.slowest > 3*second {
			continue
		}
		t.Run(fmt.Sprintf("%+v amount %d slowest %ds", c.key, c.amount, c.slowest/second), func(t *testing.T) {
			load := keyed(c.slowest)
			load.key, load.amount = &c.key, c.amount
			if c.key.gateway {
				load.periods = 34 // several cycles of one caller's reports
			}
			k := runPace(t, load, 1).key
			t.Log(k)
			if c.key.others == 0 && k.kept > 0 {
				t.Errorf("nobody else uses the key, and %.2f %% are held back", k.held())
			}
			if k.percent(ledger.ClassCritical, .99) > c.p99 {
				t.Errorf("critical p99 is %.1f %% of the period", k.percent(ledger.ClassCritical, .99))
			}
			if k.refusals() > c.refused || k.rest() < c.rests {
				t.Errorf("%.2f %% of calls are refused, %.1f %% of the rest is used", k.refusals(), k.rest())
			}
		})
	}
}
