package check

import (
	"testing"

	"github.com/quotad/quotad/jepsen/history"
	"github.com/quotad/quotad/rpc/quotav1"
)

// TestOthers_FailsWhereACallerIsCrowdedOut: a run fails if a call during the attack is refused for a shared budget, in any part of an
// answer; other refusals do not count.
func TestOthers_FailsWhereACallerIsCrowdedOut(t *testing.T) {
	const began, ended = 100, 200
	failed := func(reason quotav1.Reason, budget string) *call {
		return &call{Call: &history.Call{Procedure: "BeginTask", Error: &history.Error{Reason: int32(reason), Budget: budget}}}
	}
	refused := func(reason quotav1.Reason, budget string) *quotav1.ReserveResponse {
		return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Refusal{Refusal: &quotav1.Refusal{Reason: reason, Budget: budget}}}
	}
	answered := func(answer *quotav1.ReserveResponse) *call {
		return &call{Call: &history.Call{Procedure: "Reserve"}, response: answer}
	}
	batch := func(result *quotav1.CommandResult) *call {
		return &call{Call: &history.Call{Procedure: "Batch"}, response: &quotav1.BatchResponse{Results: []*quotav1.CommandResult{result}}}
	}
	for name, c := range map[string]struct {
		call *call
		sent int64
		kind string
		want Outcome
	}{
		"a part of sessions":   {failed(quotav1.Reason_REASON_CALLER_BUDGET, "sessions"), 110, hostileCaller, Fail},
		"nothing left of keys": {failed(quotav1.Reason_REASON_BUDGET_FULL, "keys"), 110, hostileCaller, Fail},
		"sessions full":        {failed(quotav1.Reason_REASON_SESSIONS_FULL, ""), 110, hostileCaller, Fail},
		"tasks full":           {failed(quotav1.Reason_REASON_TASKS_FULL, ""), 110, hostileCaller, Fail},
		"a full queue":         {answered(refused(quotav1.Reason_REASON_QUEUE_FULL, "")), 110, hostileCaller, Fail},
		"leases in an answer":  {answered(refused(quotav1.Reason_REASON_BUDGET_FULL, "leases")), 110, hostileCaller, Fail},
		"a Reserve of a Batch": {batch(&quotav1.CommandResult{Kind: &quotav1.CommandResult_Reserve{
			Reserve: refused(quotav1.Reason_REASON_CALLER_BUDGET, "leases"),
		}}), 110, hostileCaller, Fail},
		"an error in a Batch": {batch(&quotav1.CommandResult{Kind: &quotav1.CommandResult_Error{Error: &quotav1.CommandError{
			Info: &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_BUDGET_FULL, Budget: "reports"},
		}}}), 110, hostileCaller, Fail},
		"the quota is used up":       {answered(refused(quotav1.Reason_REASON_EXHAUSTED, "")), 110, hostileCaller, Pass},
		"its own part of tasks":      {failed(quotav1.Reason_REASON_CALLER_BUDGET, "tasks"), 110, hostileCaller, Pass},
		"its own use of a processor": {failed(quotav1.Reason_REASON_CALLER_BUDGET, "processor"), 110, hostileCaller, Pass},
		"sent before the attack":     {failed(quotav1.Reason_REASON_CALLER_BUDGET, "sessions"), 90, hostileCaller, Pass},
		"another fault":              {failed(quotav1.Reason_REASON_CALLER_BUDGET, "sessions"), 110, "kill-leader", ""},
	} {
		c.call.Sent, c.call.Returned = c.sent, c.sent+20
		r := &run{faults: []*history.Fault{{Kind: c.kind, Began: began, Ended: ended}}, calls: []*call{c.call}, verdicts: map[string]*Verdict{}}
		r.others()
		if len(r.order) == 0 {
			if c.want != "" {
				t.Errorf("%s: it was not judged", name)
			}
			continue
		}
		if r.order[0].done(); r.order[0].Outcome != c.want {
			t.Errorf("%s: judged %v %q, want %q", name, r.order[0].Outcome, r.order[0].Examples, c.want)
		}
	}
}
