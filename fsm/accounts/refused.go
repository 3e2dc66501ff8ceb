package accounts

import (
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

// OverBudget says that the caller has its part of a budget, and counts that.
func (k *Book) OverBudget(b Budget, hint string) *logpb.Result {
	k.Refused[b]++
	return effect.Failed(&logpb.Failure{
		Reason: logpb.Reason_REASON_CALLER_BUDGET, Message: "you have your part of the " + Names[b] + " that callers share",
		Hint: hint, Budget: Names[b],
	})
}

// Full says why something may not be taken of a budget, and counts that; nil: it may.
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
