package fsm

import (
	"bytes"
	"cmp"
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// A fleet of nine holders on sliding limits, simulated with the state machine itself: each event is an entry, and so is
// each time at which the state says that something is due. docs/decisions/0033-classes-on-rates.md has the results.

// paceLoad is the demand of a simulated fleet, in parts of usable.
type paceLoad struct {
	period, usable int64
	// critical asks at random times, and so do lower classes, three fifths of it standard; backlog is asked at once at
	// the start.
	critical, lower, backlog float64
	// amount is the estimate of a call; inexact ones use 30 to 90 % of it.
	amount  int64
	inexact bool
	// slowest is the longest call.
	slowest int64
	shares  *logpb.Shares
	ramp    int64
	// second: each call also needs one of a second rate, of as many calls a period as fit. uneven: one of three holders
	// of a class asks four times out of five.
	second, uneven bool
	periods        int64
	// patience is the longest wait of a call; 0: ten minutes, the maximum.
	patience int64
	// at is the time of a single action, act the action.
	at  int64
	act func(*paceSim)
	// key describes other users of the key and the provider's behaviour; nil: it is not simulated.
	key *keyLoad
}

// simEvent is an arrival or the end of a call.
type simEvent struct {
	at, amount int64
	class      int32
	holder     string
	granted    *logpb.Granted
	// do is one more action at that time.
	do func() []*logpb.Command
}

type simEvents []simEvent

func (h *simEvents) Len() int           { return len(*h) }
func (h *simEvents) Less(i, j int) bool { return (*h)[i].at < (*h)[j].at }
func (h *simEvents) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }

// Push and Pop are for heap alone; use next.
func (h *simEvents) Push(e any) {
	if event, ok := e.(simEvent); ok {
		*h = append(*h, event)
	}
}

func (h *simEvents) Pop() any {
	*h = (*h)[:len(*h)-1]
	return nil
}

// next removes and returns the earliest event.
func (h *simEvents) next() simEvent {
	first := (*h)[0]
	heap.Pop(h)
	return first
}

// paceSim is a running simulation.
type paceSim struct {
	paceLoad
	w       *world
	random  *rand.Rand
	events  simEvents
	asked   map[uint64]simEvent
	exposed exposed
	waits   [ledger.Classes][]int64
	granted map[string]int64
	used    [ledger.Classes]int64
	// occupied is the counted amount times its duration, from the end of the warm-up on.
	occupied float64
	entries  int
	key      *keySim
}

// warmPeriods is the number of periods before the measurement: by then the initial burst has spread out.
const warmPeriods = 4

// warm is when the measurement begins.
func (p *paceSim) warm() int64 { return p.period * warmPeriods }

// mean is the average use of a call.
func (l *paceLoad) mean() int64 {
	if l.inexact {
		return l.amount * 6 / 10
	}
	return l.amount
}

// runPace simulates a load and returns the finished simulation.
func runPace(t *testing.T, load paceLoad, seed uint64) *paceSim {
	t.Helper()
	p := &paceSim{
		paceLoad: load, w: newWorld(t), random: rand.New(rand.NewPCG(seed, 1)), asked: map[uint64]simEvent{}, granted: map[string]int64{},
		exposed: exposed{live: map[uint64]*exposure{}},
	}
	if load.key != nil {
		p.useKey()
	}
	def := rateOf("r", load.usable, load.period)
	if load.shares != nil || load.ramp != 0 {
		def.Policy = &logpb.Policy{Shares: load.shares, RampNs: load.ramp}
	}
	p.w.quotas(def)
	if load.second {
		calls := rateOf("calls", load.usable/load.amount, load.period)
		calls.Policy = def.Policy
		p.w.quotas(calls)
	}
	p.w.do(criticalAndBackground())
	for n := range int64(load.backlog*float64(load.usable)) / load.mean() {
		heap.Push(&p.events, simEvent{at: second, class: ledger.ClassStandard + int32(n%5/3)})
	}
	for class, rate := range [ledger.Classes]float64{load.critical, load.lower * 3 / 5, load.lower * 2 / 5} {
		if rate > 0 {
			heap.Push(&p.events, simEvent{at: second, class: int32(class)})
			p.arrivals(int32(class), rate)
		}
	}
	p.run()
	return p
}

// arrivals draws all arrivals of a class.
func (p *paceSim) arrivals(class int32, rate float64) {
	mean := float64(p.period) * float64(p.mean()) / (rate * float64(p.usable))
	for at := float64(second); at < float64(p.periods*p.period); {
		at += p.random.ExpFloat64() * mean
		heap.Push(&p.events, simEvent{at: int64(at), class: class})
	}
}

func (p *paceSim) run() {
	end := p.periods * p.period
	for p.w.now < end {
		due, _ := p.w.m.State().NextDue()
		next := min(max(due, p.w.now+1), end)
		if len(p.events) > 0 {
			next = min(next, max(p.events[0].at, p.w.now))
		}
		if p.act != nil && p.at <= next {
			act := p.act
			p.act = nil
			p.advance(max(p.at, p.w.now))
			act(p)
			continue
		}
		p.advance(next)
		var commands []*logpb.Command
		var arrived []simEvent
		for len(p.events) > 0 && p.events[0].at <= p.w.now {
			e := p.events.next()
			if e.do != nil {
				done := e.do()
				commands, arrived = append(commands, done...), append(arrived, make([]simEvent, len(done))...)
				continue
			}
			if e.granted == nil {
				e.holder = p.holder(e.class)
			}
			commands, arrived = append(commands, p.command(e)), append(arrived, e)
		}
		p.apply(arrived, commands)
	}
}

// advance lets time pass.
func (p *paceSim) advance(to int64) {
	if to > p.warm() {
		v := p.w.m.quotas.named("r")
		p.occupied += float64(v.ledger.Held+v.ledger.Consumed()) * float64(to-max(p.w.now, p.warm()))
	}
	p.w.now = to
}

// holder draws the holder of a call.
func (p *paceSim) holder(class int32) string {
	number := p.random.IntN(simHolders)
	if p.uneven && p.random.IntN(5) > 0 {
		number = 0
	}
	return simHolder(class, number)
}

// simHolders is the number of holders of each class.
const simHolders = 3

// simHolder is the name of one of them.
func simHolder(class int32, number int) string {
	return []string{"crit", "std", "back"}[class] + fmt.Sprint(number)
}

func (p *paceSim) command(e simEvent) *logpb.Command {
	if e.granted != nil {
		p.exposed.settle(e.granted.Lease, e.amount, p.w.now)
		return settle(&logpb.Settle{
			Lease: e.granted.Lease, Fence: e.granted.Fence, Op: 1, Actual: []*logpb.Item{itemOf("r", e.amount)},
			Release: true,
		})
	}
	a := ask(e.holder, itemOf("r", p.amount))
	if p.second {
		a.Items = append(a.Items, itemOf("calls", 1))
	}
	a.Consume, a.WaitNs, a.TtlNs = true, cmp.Or(p.patience, 10*minute), 10*minute
	return reserve(a)
}

// apply applies an entry and processes its grants.
func (p *paceSim) apply(events []simEvent, commands []*logpb.Command) {
	p.entries++
	for i, r := range p.w.raw(commands...) {
		switch e := events[i]; {
		case r.GetGranted() != nil:
			p.begin(e, r.GetGranted())
		case r.GetWaiting() != nil:
			p.asked[r.GetWaiting().Ticket] = e
		case r.GetRefusal() != nil: // it cannot be served in time
			p.waitedInVain(e, cmp.Or(p.patience, 10*minute))
		case r.GetFailure() != nil:
			p.w.t.Fatalf("at %v: %v", time.Duration(p.w.now), r)
		}
	}
	for _, event := range p.w.last.Events {
		e, waited := p.asked[event.Ticket]
		switch {
		case !waited || event.Result == nil:
			continue
		case event.Result.GetGranted() != nil:
			p.begin(e, event.Result.GetGranted())
		default:
			p.waitedInVain(e, p.w.now-e.at)
		}
		delete(p.asked, event.Ticket)
	}
	if p.at != 0 || p.key != nil {
		return // the limit changes, or others use it too
	}
	if q := p.w.m.quotas.named("r"); q.ledger.Available(&q.rule) < 0 {
		p.w.t.Fatalf("at %v: %d over the ceiling", time.Duration(p.w.now), -q.ledger.Available(&q.rule))
	}
	if most := p.exposed.most(p.w.now - p.period); most > p.usable {
		p.w.t.Fatalf("at %v: calls can spend %d within one period, %d over the ceiling", time.Duration(p.w.now), most, most-p.usable)
	}
}

// waitedInVain records the wait of a call that ended without a grant.
func (p *paceSim) waitedInVain(e simEvent, wait int64) {
	if e.at >= p.warm() {
		p.waits[e.class] = append(p.waits[e.class], wait)
	}
}

// begin begins a call.
func (p *paceSim) begin(e simEvent, g *logpb.Granted) {
	use := p.amount
	if p.inexact {
		use = p.amount*3/10 + p.random.Int64N(p.amount*6/10+1)
	}
	p.exposed.begin(g, p.amount)
	if e.at >= p.warm() {
		p.waits[e.class] = append(p.waits[e.class], p.w.now-e.at)
	}
	if p.w.now >= p.warm() {
		p.used[e.class] += use
		p.granted[e.holder] += use
	}
	if p.key != nil {
		p.key.call(e, g, use)
		return
	}
	heap.Push(&p.events, simEvent{at: p.w.now + second/2 + p.random.Int64N(p.slowest-second/2), amount: use, granted: g})
}

// percent returns a quantile of a class's waits in percent of the period.
func (p *paceSim) percent(class int32, quantile float64) float64 {
	// Waiting calls have waited at least this long.
	waits := slices.Clone(p.waits[class])
	for _, e := range p.asked {
		if e.class == class && e.at >= p.warm() {
			waits = append(waits, p.w.now-e.at)
		}
	}
	if len(waits) == 0 {
		return 0
	}
	slices.Sort(waits)
	return 100 * float64(waits[min(int(quantile*float64(len(waits))), len(waits)-1)]) / float64(p.period)
}

// occupancy returns the time average of the counted amount, in percent of usable.
func (p *paceSim) occupancy() float64 {
	return 100 * p.occupied / (float64(p.usable) * float64(p.periods*p.period-p.warm()))
}

// spread returns how much more the standard holder with the most was granted than the one with the least, in percent of
// the latter.
func (p *paceSim) spread() float64 {
	var all []int64
	for n := range simHolders {
		all = append(all, p.granted[simHolder(ledger.ClassStandard, n)])
	}
	least := slices.Min(all)
	return 100 * float64(slices.Max(all)-least) / float64(max(least, 1))
}

// warmed is the amount that could be granted during the measurement.
func (p *paceSim) warmed() int64 { return p.usable * (p.periods - warmPeriods) }

// use returns the actual use of classes, in percent of usable.
func (p *paceSim) use(of ...int32) (sum float64) {
	for _, class := range of {
		sum += float64(p.used[class])
	}
	return 100 * sum / (float64(p.usable) * float64(p.periods*p.period-p.warm()) / float64(p.period))
}

func (p *paceSim) String() string {
	return fmt.Sprintf("critical p50 %.1f p90 %.1f p99 %.1f worst %.1f; standard p50 %.1f p99 %.1f; occupancy %.1f; "+
		"use %.1f (%.1f %.1f %.1f); %d entries",
		p.percent(0, .5), p.percent(0, .9), p.percent(0, .99), p.percent(0, 1), p.percent(1, .5), p.percent(1, .99), p.occupancy(),
		p.use(0, 1, 2),
		p.use(0), p.use(1), p.use(2), p.entries)
}

// simLoads are the rows of the decision record.
func simLoads(period int64) (loads []paceLoad) {
	for _, critical := range []float64{.05, .25} {
		for _, lower := range []float64{1.2, 5} {
			for _, inexact := range []bool{false, true} {
				for _, slowest := range []int64{2 * second, 20 * second} {
					loads = append(loads, paceLoad{
						period: period, usable: 60_000, critical: critical, lower: lower, backlog: 1.8, amount: 300, inexact: inexact, slowest: slowest,
						shares: fleetShares(), periods: 24,
					})
				}
			}
		}
	}
	return loads
}

func (l *paceLoad) name() string {
	return fmt.Sprintf("%v critical %.2f lower %.1f inexact %t slowest %ds", time.Duration(l.period), l.critical, l.lower, l.inexact,
		l.slowest/second)
}

// TestPace_InASimulatedFleet: critical calls wait at most a twentieth of the period, and the available amount is used,
// whatever lower classes ask for.
func TestPace_InASimulatedFleet(t *testing.T) {
	for _, period := range []int64{10 * second, minute} {
		for _, load := range simLoads(period) {
			if testing.Short() && (period != minute || load.lower > 2 || load.critical < .25 || load.inexact) {
				continue
			}
			t.Run(load.name(), func(t *testing.T) {
				if load.inexact {
					load.amount = 500
				}
				p := runPace(t, load, 1)
				t.Log(p)
				if p.percent(ledger.ClassCritical, .99) > 5 {
					t.Errorf("critical p99 is %.1f %% of the period", p.percent(ledger.ClassCritical, .99))
				}
				if p.occupancy() < 97.5 {
					t.Errorf("occupancy is %.1f %%", p.occupancy())
				}
				if !testing.Short() {
					load.shares = nil
					t.Log("none:", runPace(t, load, 1))
				}
			})
		}
	}
}

// TestPace_EventsWhileLent: changes of a quota while its shares are lent. The bounds come from measurements.
func TestPace_EventsWhileLent(t *testing.T) {
	base := paceLoad{
		period: minute, usable: 60_000, critical: .25, lower: 1.2, backlog: 1.8, amount: 300, slowest: 2 * second, shares: fleetShares(),
		periods: 14,
		at:      8 * minute,
	}
	var closes func(p *paceSim)
	closes = func(p *paceSim) {
		l := p.w.m.liveOne("r")
		if l.holder == "" { // no call is running, so none can report
			p.at, p.act = p.w.now+second/10, closes
			return
		}
		p.w.raw(report(&logpb.Report{Lease: l.id, Fence: l.fence, Op: 1, Signals: []*logpb.Signal{signal("r", logpb.Cause_CAUSE_SATURATED,
			retryAfter(minute/2))}}))
		if p.w.m.quotas.named("r").cooldown == 0 {
			p.w.t.Fatal("the report closes nothing")
		}
	}
	for name, c := range map[string]struct {
		change func(*paceLoad)
		// Bounds, in percent: of the period for waits of critical calls, of usable before a change for the counted
		// amount, and for the spread between standard holders that ask alike.
		p99, occupancy, spread float64
	}{
		"nothing":                     {func(*paceLoad) {}, 5, 98, 2},
		"the limit halves":            {func(l *paceLoad) { l.act = func(p *paceSim) { p.w.raw(overrides("r", 30_000, 31*day)) } }, 60, 68, 2},
		"the limit doubles":           {func(l *paceLoad) { l.act = func(p *paceSim) { p.w.raw(overrides("r", 120_000, 31*day)) } }, 5, 150, 8},
		"a cooldown of 30 s":          {func(l *paceLoad) { l.act = closes }, 60, 92, 2},
		"a cooldown of 30 s and ramp": {func(l *paceLoad) { l.act, l.ramp = closes, minute }, 75, 88, 2},
		"a leader is lost for 5 s": {func(l *paceLoad) {
			l.act = func(p *paceSim) { // cluster time stood still: held-up requests arrive at once, at a node restored from a snapshot
				restored, err := Restore(bytes.NewReader(snapshotOf(p.w.t, p.w.m.State())))
				if err != nil {
					p.w.t.Fatal(err)
				}
				p.w.m = restored
				for i := range p.events {
					p.events[i].at = max(p.events[i].at-5*second, p.w.now)
				}
			}
		}, 5, 98, 2},
		"calls are limited too":        {func(l *paceLoad) { l.second = true }, 5, 98, 2},
		"one holder asks for the most": {func(l *paceLoad) { l.uneven, l.lower = true, 2.5 }, 5, 98, 1000},
		"seldom critical calls":        {func(l *paceLoad) { l.critical = .01 }, 5, 98, 15},
		"no critical calls":            {func(l *paceLoad) { l.critical = 0 }, 5, 94, 15},
	} {
		t.Run(name, func(t *testing.T) {
			load := base
			c.change(&load)
			for _, shares := range []*logpb.Shares{fleetShares(), nil} {
				if shares == nil && testing.Short() {
					continue // only for comparison
				}
				load := load
				load.shares = shares
				p := runPace(t, load, 1)
				t.Log(shares != nil, p, p.granted)
				if shares == nil {
					continue
				}
				if p.percent(ledger.ClassCritical, .99) > c.p99 {
					t.Errorf("critical p99 is %.1f %% of the period", p.percent(ledger.ClassCritical, .99))
				}
				if p.occupancy() < c.occupancy {
					t.Errorf("occupancy is %.1f %%", p.occupancy())
				}
				if p.spread() > c.spread {
					t.Errorf("standard holders differ by %.1f %%", p.spread())
				}
				if load.uneven && min(p.granted["std1"], p.granted["std2"]) < 9*p.warmed()/1000 {
					t.Errorf("holders that ask for a tenth of usable each were granted %v, of %d", p.granted, p.warmed()/10)
				}
			}
		})
	}
}
