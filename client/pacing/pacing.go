// Package pacing decides how much a holder consumes ahead, and when a class retries after a cooldown. It is pure: callers pass the
// clock and the randomness, so that the limiter, the transport and simulations of whole fleets decide alike.
package pacing

import (
	"math"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	// FirstLife is the assumed life of a batch until one was observed.
	FirstLife = time.Second
	// ShortestLife is the lower bound of a batch's life: with a shorter one, demand would decay to nothing between two calls.
	ShortestLife = FirstLife / 10
	// FactsAge is the age above which facts about quotas are read again.
	FactsAge = 10 * time.Second
	// RefusalMemory bounds how long a refusal also answers the next requests.
	RefusalMemory = 250 * time.Millisecond
	// MostUnits bounds a batch, in units.
	MostUnits = 1 << 32
)

// The most calls of the default estimate in a batch, by the quota's zone, so that the rest of an almost exhausted window is not lost in
// batches.
const (
	greenCalls = 20
	amberCalls = 5
	redCalls   = 1
)

// Demand is the recent demand: a sum that decays at the pace of a batch's life, and thus the units that one batch of that life would
// have needed. The zero value has no demand. Times are since any fixed moment.
type Demand struct {
	units float64
	at    time.Duration
}

// Add adds units requested now.
func (d *Demand) Add(now time.Duration, units int64, life time.Duration) {
	d.fade(now, life)
	d.units += float64(units)
}

// Units returns the demand now, in units.
func (d *Demand) Units(now, life time.Duration) int64 {
	d.fade(now, life)
	return int64(min(d.units, MostUnits))
}

func (d *Demand) fade(now, life time.Duration) {
	if life <= 0 {
		life = FirstLife
	}
	d.units *= math.Exp(-float64(now-d.at) / float64(life))
	d.at = now
}

// Quota is the information about one quota.
type Quota struct {
	// Usable is the usable amount, in the quota's units.
	Usable int64
	// DefaultEstimate is the amount of a call without an estimate; 0 counts as 1.
	DefaultEstimate int64
	// Holders is how many holders spend it at the same time; 0 counts as 1.
	Holders int64
	// Zone is its present zone; unspecified: it has none.
	Zone quotav1.Zone
}

// Share returns the most units that one holder may consume ahead, if a unit takes the given amount of the quota: half of the usable
// amount divided among all holders, and a few calls of the default estimate if the quota has zones.
func (q Quota) Share(amount int64) int64 {
	most := q.Usable / 2 / max(q.Holders, 1)
	switch q.Zone {
	case quotav1.Zone_ZONE_GREEN:
		most = min(most, calls(greenCalls, q.DefaultEstimate))
	case quotav1.Zone_ZONE_AMBER:
		most = min(most, calls(amberCalls, q.DefaultEstimate))
	case quotav1.Zone_ZONE_RED:
		most = min(most, calls(redCalls, q.DefaultEstimate))
	case quotav1.Zone_ZONE_UNSPECIFIED:
	}
	return min(most/max(amount, 1), MostUnits)
}

// calls returns n estimates; overflow returns the maximum, which exceeds every usable amount.
func calls(n, estimate int64) int64 {
	estimate = max(estimate, 1)
	if estimate > math.MaxInt64/n {
		return math.MaxInt64
	}
	return n * estimate
}

// Batch returns how many units to consume ahead: the demand, bounded by most and by the share less the units at hand. Below two calls
// of call units each it returns 0: a batch would save nothing, and could be forfeited.
func Batch(demand, share, atHand, most, call int64) int64 {
	size := min(demand, share-atHand, most)
	if size < 2*call {
		return 0
	}
	return size
}

// RefillAt returns the number of units left of a batch at which to fetch the next one: a quarter.
func RefillAt(size int64) int64 { return size / 4 }

// Life returns a batch's time from its request to its last take, for the next one's demand.
func Life(requested, lastTake time.Duration) time.Duration {
	return max(lastTake-requested, ShortestLife)
}

// Margin returns how much earlier a deadline at this distance counts: 1% for clock drift plus 50 ms for the process to react. It is at
// most half of the time left.
func Margin(left time.Duration) time.Duration { return min(left/100+50*time.Millisecond, left/2) }

// LeaseOf returns the ttl of a batch's lease. A batch has to end before its lease, or it could not be returned.
func LeaseOf(life time.Duration) time.Duration {
	if life <= 0 {
		return 2 * time.Minute
	}
	return 2*life + 10*time.Second
}

// Window is when a class retries after a cooldown: between From and To after its end.
type Window struct{ From, To time.Duration }

// Windows are the windows of the classes critical, standard and background.
type Windows [3]Window

// DefaultWindows do not overlap, so that higher classes retry first.
var DefaultWindows = Windows{
	{0, 500 * time.Millisecond},
	{500 * time.Millisecond, 3500 * time.Millisecond},
	{3500 * time.Millisecond, 9500 * time.Millisecond},
}

// Delay returns when a caller of a class retries after a cooldown of this length. draw returns a random duration below its positive
// argument. An unspecified class counts as standard.
func (w Windows) Delay(cooldown time.Duration, class quotav1.Class, draw func(time.Duration) time.Duration) time.Duration {
	window := w[1]
	if class >= quotav1.Class_CLASS_CRITICAL && class <= quotav1.Class_CLASS_BACKGROUND {
		window = w[class-quotav1.Class_CLASS_CRITICAL]
	}
	delay := max(cooldown, 0) + window.From
	if spread := window.To - window.From; spread > 0 {
		delay += draw(spread)
	}
	return delay
}
