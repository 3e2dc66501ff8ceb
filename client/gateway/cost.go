package gateway

import (
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/quotad/quotad/client/estimate"
	"github.com/quotad/quotad/client/gateway/catalog"
	"github.com/quotad/quotad/client/gateway/config"
	"github.com/quotad/quotad/client/gateway/dialect"
	"github.com/quotad/quotad/client/gateway/identity"
	"github.com/quotad/quotad/client/gateway/price"
	"github.com/quotad/quotad/client/usage"
)

// A quota of money counts micro-dollars. A call requests the price of its estimate, and is settled by the use that the answer states,
// at the same prices. This limits spending; it is no invoice.

// partCost is the part of a quota that counts money.
const partCost = "cost"

// Warnings returns problems of a valid configuration that need attention: old prices.
func Warnings(conf config.Config) []string {
	var out []string
	for _, model := range price.Old(conf.Prices, time.Now()) {
		out = append(out, fmt.Sprintf("prices: the prices of %s have no date, or one more than %d days ago: check them",
			identity.Quote(model), int(price.OldAfter.Hours()/24)))
	}
	return out
}

// price returns the price line of the call's model for an input of this size; nil: there is none.
func (c *call) price(input int64) *price.Line {
	names := []string{c.model, catalog.Plain(c.model), catalog.Canonical(c.model), c.target.Model}
	line, _ := price.Find(c.state.config.Prices, func(l price.Line) bool {
		if l.Upstream != "" && !config.Match(l.Upstream, c.upstream.name) {
			return false
		}
		for _, name := range names {
			if name != "" && config.Match(l.Model, name) {
				return true
			}
		}
		return false
	}, input)
	return line
}

// money reports whether the call draws on a quota of money.
func (c *call) money() bool {
	if _, ok := c.target.Parts[partCost]; ok {
		return true
	}
	for _, also := range c.upstream.config.Also {
		for _, part := range also.Use {
			if part == partCost && (also.Holder == "" || config.Match(also.Holder, c.caller.Holder)) {
				return true
			}
		}
	}
	return false
}

// unpriced refuses a call that draws on a quota of money but has no price. If the configuration lets it pass, free is true: it draws on
// no money.
func (c *call) unpriced() (refusal dialect.Refusal, refused, free bool) {
	if !c.money() || c.price(c.amounts.Input) != nil {
		return dialect.Refusal{}, false, false
	}
	if c.upstream.config.Unpriced == "free" {
		return dialect.Refusal{}, false, true
	}
	return dialect.Refusal{
		Status: http.StatusForbidden, Reason: "UNPRICED", Final: true,
		Message: "quotad has no price for the model " + identity.Quote(c.model) + " of upstream " + strconv.Quote(c.upstream.name) +
			", whose quotas count money. Add a line to the file of prices (quotad preset show prices), or set unpriced: free.",
	}, true, false
}

// likelyCost returns the call's estimated cost, in micro-dollars; 0: it has no price.
func (c *call) likelyCost() int64 {
	line := c.price(c.amounts.Input)
	if line == nil {
		return 0
	}
	return line.Cost(line.Ahead(c.amounts.Input, c.amounts.Likely, c.ask.Cached), c.ask.Tier)
}

// cost returns the cost of the use that the answer stated; ok is false if that is unknown, or the call has no price.
func (c *call) cost(said usage.Said) (microDollars int64, ok bool) {
	if c.op.Operation == estimate.Embed && !said.Output.Known {
		said.Output.Known = said.Input.Known
	}
	if !said.Input.Known || !said.Output.Known {
		return 0, false
	}
	return c.costOf(tokensOf(said), said)
}

// leastCost returns the least cost of a call whose answer was truncated.
func (c *call) leastCost(said usage.Said) (microDollars int64, ok bool) {
	used := price.Tokens{Input: c.amounts.Input}
	if said.Input.Known {
		used = tokensOf(said)
		used.Input = max(used.Input, c.amounts.Input-used.All()+used.Input)
	}
	used.Output = said.OutputFloor()
	return c.costOf(used, said)
}

func (c *call) costOf(used price.Tokens, said usage.Said) (microDollars int64, ok bool) {
	line := c.price(used.All())
	if line == nil {
		return 0, false
	}
	tier := said.Tier
	if tier == "" {
		tier = c.ask.Tier
	}
	return line.Cost(used, tier), true
}

// spentMoney counts the cost of a call with a price, whether or not a quota counts it.
func (c *call) spentMoney(b *answerBody, said usage.Said, ended string) {
	n, ok := b.amount(partCost, said, ended)
	if !ok {
		return
	}
	c.gateway.metrics.cost.WithLabelValues(c.upstream.name, c.modelLabel()).Add(float64(n))
	c.record(func(o *outcome) { o.cost += n })
}

// dollars formats micro-dollars as dollars.
func dollars(microDollars int64) string {
	return fmt.Sprintf("%d.%06d", microDollars/1_000_000, microDollars%1_000_000)
}

// tokensOf splits the input that an answer stated into its kinds.
func tokensOf(said usage.Said) price.Tokens {
	hour := min(said.Written1h.N, said.Written.N)
	return price.Tokens{
		Input:  max(said.Input.N-said.Cached.N-said.Written.N, 0),
		Cached: said.Cached.N, Written: said.Written.N - hour, Written1h: hour, Output: said.Output.N,
	}
}
