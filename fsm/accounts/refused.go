package accounts

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// OverBudget returns the failure of a caller that has used up its part of a budget, and counts it.
func (k *Book) OverBudget(b Budget, hint string) *logpb.Result {
	k.Refused[b]++
	return effect.Failed(&logpb.Failure{
		Reason: logpb.Reason_REASON_CALLER_BUDGET, Message: "you have your part of the " + Names[b] + " that callers share",
		Hint: hint, Budget: Names[b],
	})
}

// Full returns why no more of a budget may be taken, and counts that; nil: more may be taken.
func (k *Book) Full(b Budget, judged Verdict, hint string) *logpb.Result {
	switch judged {
	case AtBudget:
		return k.OverBudget(b, hint)
	case AllTaken:
		k.Refused[b]++
		return effect.Failed(&logpb.Failure{
			Reason: logpb.Reason_REASON_BUDGET_FULL, Message: "nothing is left of the " + Names[b] + " that callers share",
			Hint: hint, Budget: Names[b],
		})
	case MayTake:
	}
	return nil
}
