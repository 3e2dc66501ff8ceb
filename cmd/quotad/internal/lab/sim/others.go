package sim

import "github.com/quotad/quotad/cmd/quotad/internal/lab/provider"

// othersCalls is the mean number of calls that others make in a period.
const othersCalls = 100

// others uses a rate with the same key, independently of the fleet: calls of one size, at random times, so that a fraction
// of the limit is used. Calls that do not fit are refused and not sent again.
type others struct {
	*world
	meter *provider.Meter
	part  float64
	dice  dice
}

// use makes one call, and schedules the next.
func (o *others) use() {
	rule := o.meter.Rule()
	o.meter.Others(o.now, int64(o.part*float64(rule.Limit)/othersCalls))
	o.at(o.now+1+o.dice.below(2*int64(rule.Period)/othersCalls), o.use)
}
