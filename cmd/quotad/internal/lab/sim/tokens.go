package sim

import (
	"slices"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
)

// ask is the request of a call of a model, and what the call really uses.
type ask struct {
	*estimate.Request
	said estimate.Said
}

// draw draws the real amounts of a call, and makes the estimates of its tokens as the client does: from the request, and from calls
// that ended before.
func (a *agent) draw(c *call) {
	c.actual = make([]int64, len(c.uses))
	for i, use := range c.uses {
		switch {
		case use.Tokens != nil:
			a.estimate(c, i)
		case use.Actual != (fleet.Range{}):
			c.actual[i] = a.dice.amount(use.Actual)
		default:
			c.actual[i] = use.Estimate
		}
	}
}

// estimate draws the tokens of one use of a call, and estimates them.
func (a *agent) estimate(c *call, i int) {
	if c.asks == nil {
		c.asks, c.uses = make([]*ask, len(c.uses)), slices.Clone(c.uses)
	}
	use := &c.uses[i]
	input, output := a.tokens(use.Tokens.Input), a.tokens(use.Tokens.Output)
	c.asks[i] = &ask{Request: use.Tokens.Request(input), said: estimate.Said{Input: input, Output: output}}
	use.Estimate = use.Tokens.Reserved(a.learner.Estimate(a.learns(*use), c.asks[i].Request, use.Tokens.Otherwise))
	c.actual[i] = input + output
}

// tokens draws one side of a call; 0 if it does not count.
func (a *agent) tokens(side fleet.Range) int64 {
	if side == (fleet.Range{}) {
		return 0
	}
	return a.dice.amount(side)
}

// learn learns from a call that was served.
func (a *agent) learn(c *call) {
	for i, asked := range c.asks {
		if asked != nil {
			a.learner.Learn(a.learns(c.uses[i]), asked.Request, asked.said)
		}
	}
}

// learns returns the key under which the calls of a use are learnt.
func (a *agent) learns(use fleet.Use) estimate.Key {
	return estimate.Key{Upstream: use.Quota, Holder: a.name}
}
