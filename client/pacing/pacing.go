// Package pacing decides how much a holder consumes ahead, and when a class comes back after a cooldown. It is pure: the
// clock and the randomness are passed in, so that the limiter, the transport and simulations of whole fleets decide alike.
package pacing

import (
	"math"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	// FirstLife is taken for the life of a batch until one was seen.
	FirstLife = time.Second
	// ShortestLife bounds the life of a batch from below: demand would fade to nothing between two calls.
	ShortestLife = FirstLife / 10
	// FactsAge is how old what is known of the quotas may be.
	FactsAge = 10 * time.Second
	// RefusalMemory bounds how long a refusal is taken for the answer to the next request as well.
	RefusalMemory = 250 * time.Millisecond
	// MostUnits bounds a batch, in units.
	MostUnits = 1 << 32
)

// The most calls of the default estimate in a batch, by the zone of the quota. What is left of a window that runs out is
// not to be lost in batches.
const (
	greenCalls = 20
	amberCalls = 5
	redCalls   = 1
)

// Demand is what was asked for lately: a sum that fades at the pace of a batch's life, which is what one batch of that
// life would have had to hold. The zero value has seen nothing. Times are since any fixed moment.
type Demand struct {
	units float64
	at    time.Duration
}

// Add counts units that are asked for now.
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

// Quota is what is known of one quota.
type Quota struct {
	// Usable is the most that the quota allows, in its own amounts.
	Usable int64
	// DefaultEstimate is what a call without an estimate takes of it; 0 counts as 1.
	DefaultEstimate int64
	// Holders is how many spend it at the same time; 0 counts as one.
	Holders int64
	// Zone is its zone now; unspecified where it has none.
	Zone quotav1.Zone
}

// Share returns the most units that one holder may have ahead of a quota of which each unit takes an amount: half of
// usable between all holders, and a few calls of the default estimate where the quota has zones.
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

// calls returns n estimates; no usable amount is larger than the bound.
func calls(n, estimate int64) int64 {
	estimate = max(estimate, 1)
	if estimate > math.MaxInt64/n {
		return math.MaxInt64
	}
	return n * estimate
}

// Batch returns how many units to consume ahead: what is in demand, within the share and the bound, less what is at hand.
// Below two calls, of so many units each, there is no batch (0): it would save nothing, and could be forfeited.
func Batch(demand, share, atHand, most, call int64) int64 {
	size := min(demand, share-atHand, most)
	if size < 2*call {
		return 0
	}
	return size
}

// RefillAt returns the number of units left of a batch at which to fetch the next one: a quarter.
func RefillAt(size int64) int64 { return size / 4 }

// Life returns what a batch had from its request to its last take, for the next one's demand.
func Life(requested, lastTake time.Duration) time.Duration {
	return max(lastTake-requested, ShortestLife)
}

// Margin returns by how much a deadline that is so far away is kept early: 1% for clocks that run apart and 50 ms for what a
// process needs to notice, but never more than half of what is left.
func Margin(left time.Duration) time.Duration { return min(left/100+50*time.Millisecond, left/2) }

// LeaseOf returns the length of a batch's lease. A batch has to end before its lease, or it could not go back.
func LeaseOf(life time.Duration) time.Duration {
	if life <= 0 {
		return 2 * time.Minute
	}
	return 2*life + 10*time.Second
}

// Window is when a class comes back after a cooldown: between From and To after its end.
type Window struct{ From, To time.Duration }

// Windows are those of the classes critical, standard and background.
type Windows [3]Window

// DefaultWindows do not overlap, so that the classes come back in their order.
var DefaultWindows = Windows{
	{0, 500 * time.Millisecond},
	{500 * time.Millisecond, 3500 * time.Millisecond},
	{3500 * time.Millisecond, 9500 * time.Millisecond},
}

// Delay returns when a caller of a class comes back after a cooldown that lasts for so long from now. Draw returns a
// random duration below its argument, which is positive. An unspecified class counts as standard.
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
