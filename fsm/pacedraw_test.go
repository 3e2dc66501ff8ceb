package fsm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm/ledger"
	"github.com/quotad/quotad/fsm/logpb"
)

// Random loads for the simulated fleet, and a second account of its spends, independent of the ledger.

// exposure is the amount that a call may spend at any moment until it ends: its spend-by, or when it is settled.
type exposure struct{ amount, until int64 }

// exposed are the exposures of a fleet, in the order of their grants.
type exposed struct {
	calls []*exposure
	live  map[uint64]*exposure
}

func (x *exposed) begin(g *logpb.Granted, amount int64) {
	call := &exposure{amount: amount, until: g.Consumed.SpendByNs}
	x.calls, x.live[g.Lease] = append(x.calls, call), call
}

// settle ends a call, with the used amount.
func (x *exposed) settle(lease uint64, used, now int64) {
	if call := x.live[lease]; call != nil {
		call.amount, call.until = used, min(call.until, now)
		delete(x.live, lease)
	}
}

// most returns the most that calls can spend from a moment on, until now. If it holds at every grant, with from a
// period before it, it holds in every interval of one period: the last grant in an interval sees every call that can
// spend in it.
func (x *exposed) most(from int64) (sum int64) {
	for len(x.calls) > 0 && x.calls[0].until < from {
		x.calls = x.calls[1:]
	}
	for _, call := range x.calls {
		if call.until >= from {
			sum += call.amount
		}
	}
	return sum
}

// drawLoad draws a load for which the rule promises short waits: critical calls of 5 to 25 % of usable, lower ones of
// 1.2 to 5 times usable, each call of at most 1 % of it. docs/decisions/0033-classes-on-rates.md says why larger ones
// wait. One of four patterns decides whether estimates are exact, and how long calls take. Inexact estimates are at
// most 5/6 % of usable, as in that record. On a rate of a second most calls are settled too late to return anything,
// and critical ones count for more than they use.
func drawLoad(random *rand.Rand, pattern uint64, period int64) paceLoad {
	between := func(from, to float64) float64 { return from + (to-from)*random.Float64() }
	load := paceLoad{
		period: period, usable: 60_000, critical: between(.05, .25), lower: 1.2 * math.Pow(5/1.2, random.Float64()),
		backlog: between(0, 2), amount: 400 + random.Int64N(201), slowest: 2 * second, shares: fleetShares(),
		periods: warmPeriods + 100,
		// Calls withdraw: queues of thousands, each moved by each grant, would take most of the time. There is still a
		// queue.
		patience: period / 6,
	}
	if pattern&1 != 0 {
		load.amount, load.inexact = 400+random.Int64N(101), true
	}
	if pattern&2 != 0 {
		load.slowest = 20 * second
	}
	return load
}

// TestPace_InDrawnFleets: the assertions of TestPace_InASimulatedFleet hold for random loads, over 100 periods of each
// length. No interval of one period sees more than usable. QUOTAD_SEED repeats the loads that a failure names. With -short
// a seed decides between the two short periods and the two long ones.
func TestPace_InDrawnFleets(t *testing.T) {
	draws, seed := 4, seedOf(t)
	if testing.Short() || os.Getenv("QUOTAD_SEED") != "" {
		draws = 1
	}
	for i := range draws {
		of := seed + uint64(i)
		for n, c := range []struct {
			period int64
			p99    float64
		}{{second, 8}, {10 * second, 5}, {minute, 5}, {hour, 5}} {
			if testing.Short() && os.Getenv("QUOTAD_SEED") == "" && n/2 != int(of>>2&1) { // by other bits than the patterns
				continue
			}
			t.Run(fmt.Sprintf("QUOTAD_SEED=%d %v", of, time.Duration(c.period)), func(t *testing.T) {
				// The four periods of a seed have the four patterns, and in four seeds each period has each of them.
				load := drawLoad(rand.New(rand.NewPCG(of, uint64(c.period))), of+uint64(n), c.period)
				p := runPace(t, load, of)
				t.Logf("%s amount %d backlog %.1f: %v", load.name(), load.amount, load.backlog, p)
				if p.percent(ledger.ClassCritical, .99) > c.p99 {
					t.Errorf("critical p99 is %.1f %% of the period", p.percent(ledger.ClassCritical, .99))
				}
				if p.occupancy() < 97.5 {
					t.Errorf("occupancy is %.1f %%", p.occupancy())
				}
			})
		}
	}
}
