package sim

import "github.com/quotad/quotad/cmd/quotad/internal/lab/provider"

// othersCalls is how many calls others make in a period, on average.
const othersCalls = 100

// others uses a rate with the same key, and knows nothing of the fleet: calls of one size, at random moments, so that a part of the limit
// is used. What does not fit is refused, and is not sent again.
type others struct {
	*world
	meter *provider.Meter
	part  float64
	dice  dice
}

// use makes one call, and arranges the next.
func (o *others) use() {
	rule := o.meter.Rule()
	o.meter.Others(o.now, int64(o.part*float64(rule.Limit)/othersCalls))
	o.at(o.now+1+o.dice.below(2*int64(rule.Period)/othersCalls), o.use)
}
