package sim

import (
	"slices"

	"github.com/quotad/quotad/cmd/quotad/internal/lab/fleet"
	"github.com/quotad/quotad/fsm/logpb"
)

// membersOf returns the members on which calls of some uses may draw: those that all pools among the uses have in common.
// None: there is no pool.
func (w *world) membersOf(uses []fleet.Use) (names []string) {
	pools := 0
	for _, use := range uses {
		members := w.fleet.Members(use.Quota)
		if len(members) == 0 {
			continue
		}
		var its []string
		for _, m := range members {
			if pools == 0 || slices.Contains(names, m.Name) {
				its = append(its, m.Name)
			}
		}
		names = its
		pools++
	}
	return names
}

// usesAt returns the uses at one member: the member's quotas replace the pools.
func (w *world) usesAt(uses []fleet.Use, member string) []fleet.Use {
	if member == "" {
		return uses
	}
	at := slices.Clone(uses)
	for i, use := range uses {
		for _, m := range w.fleet.Members(use.Quota) {
			if m.Name == member {
				at[i].Quota = m.Quota
			}
		}
	}
	return at
}

// draws makes a call draw on a member of the pools that it uses; empty: it uses none.
func (c *call) draws(member string) {
	if member != c.member || c.charged == nil {
		c.member = member
		c.drawn = c.agent.usesAt(c.uses, member)
		c.charged = c.agent.charge(c, c.drawn)
	}
}

// anyLimit returns the limits for which a call waits: all on which it may draw.
func (w *world) anyLimit(c *call) (limits []int) {
	members := w.membersOf(c.uses)
	if len(members) == 0 {
		members = []string{""}
	}
	for _, member := range members {
		for _, amount := range w.charge(c, w.usesAt(c.uses, member)) {
			if !slices.Contains(limits, amount.Limit) {
				limits = append(limits, amount.Limit)
			}
		}
	}
	return limits
}

// pick makes a call without quotad draw on a random member, as simple balancers do.
func (a *agent) pick(c *call) {
	if members := a.membersOf(c.uses); len(members) > 0 {
		c.draws(members[a.dice.below(int64(len(members)))])
	}
}

// memberOf returns the granted member of the pools; empty: no pool.
func memberOf(granted *logpb.Granted) string {
	for _, item := range granted.Items {
		if item.Member != "" {
			return item.Member
		}
	}
	return ""
}
