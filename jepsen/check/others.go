package check

import (
	"fmt"
	"slices"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// hostileCaller is the fault in which a caller takes all that it can of what callers share.
const hostileCaller = "hostile-caller"

// others checks that no caller of the workload is refused because a hostile caller exhausted a shared budget.
func (r *run) others() {
	attacks := slices.DeleteFunc(slices.Clone(r.faults), func(f *history.Fault) bool { return f.Kind != hostileCaller || f.Failed != "" })
	if len(attacks) == 0 {
		return
	}
	v := r.verdict("others", "While a hostile caller takes all it can get, no other caller is refused for what callers share.")
	seen := map[*call]bool{}
	for _, attack := range attacks {
		r.during(attack, func(c *call) {
			if seen[c] {
				return
			}
			seen[c] = true
			v.Checked++
			if c.Sent < attack.Began {
				return // it may have been refused before
			}
			for _, why := range c.crowdedOut() {
				v.violate("%s by %s at %d was refused: %s", c.Procedure, c.Client, c.Sent, why)
			}
		})
	}
}

// crowdedOut lists the refusals in a call's answer that mean that a shared budget, or this caller's part of it, is exhausted.
func (c *call) crowdedOut() (reasons []string) {
	note := func(reason quotav1.Reason, budget string) {
		if crowded(reason, budget) {
			reasons = append(reasons, fmt.Sprintf("%v %s", reason, budget))
		}
	}
	if c.Error != nil {
		note(quotav1.Reason(c.Error.Reason), c.Error.Budget)
	}
	switch answer := c.response.(type) {
	case *quotav1.ReserveResponse:
		note(answer.GetRefusal().GetReason(), answer.GetRefusal().GetBudget())
	case *quotav1.BatchResponse:
		for _, result := range answer.Results {
			note(result.GetError().GetInfo().GetReason(), result.GetError().GetInfo().GetBudget())
			note(result.GetReserve().GetRefusal().GetReason(), result.GetReserve().GetRefusal().GetBudget())
		}
	}
	return reasons
}

// crowded says whether a refusal means that a shared budget is exhausted. Two budgets of single callers are left out. On a busy machine the
// workload, which is one caller, may be the one that calls most. In a run of some minutes it begins more tasks than its part of
// nemesis.SmallBudgets.
func crowded(reason quotav1.Reason, budget string) bool {
	switch reason {
	case quotav1.Reason_REASON_CALLER_BUDGET:
		return budget != "processor" && budget != "tasks"
	case quotav1.Reason_REASON_BUDGET_FULL, quotav1.Reason_REASON_SESSIONS_FULL, quotav1.Reason_REASON_TASKS_FULL,
		quotav1.Reason_REASON_QUEUE_FULL:
		return true
	default:
		return false
	}
}
