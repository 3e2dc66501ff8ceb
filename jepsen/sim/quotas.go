package sim

import (
	"context"
	"time"

	"github.com/quotad/quotad/fsm/logpb"
)

// classNames begin the names of the holders of each class.
var classNames = []string{"critical", "standard", "background"}

// sessionIdle is the idle time after which a session expires: short, so that some expire.
const sessionIdle = 6 * time.Second

// rate is a quota of limit in three seconds.
func rate(name, parent string, limit int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Parent: parent, Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: limit, PerNs: int64(3 * time.Second)}}}
}

func slots(name string, limit int64) *logpb.Quota {
	return &logpb.Quota{Name: name, Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: limit, GraceNs: int64(300 * time.Millisecond)}}}
}

// define creates the quotas and the classes of holders.
func (w *world) define() bool {
	command := &logpb.Command{IdempotencyKey: "define", Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{
		Quotas: []*logpb.Quota{
			rate("root", "", 60), rate("root/a", "root", 40), rate("root/b", "root", 40), rate("wide", "", 1_000_000), slots("slots", 3),
			rate("line", "", 12), slots("seats", 2),
			rate("chain", "", 10), rate("tasks", "", 100), sharedRate(),
		},
		Holders: []*logpb.HolderRule{
			{Pattern: "critical-*", Class: 0}, {Pattern: "background-2", Class: 2, Weight: 3}, {Pattern: "background-*", Class: 2},
		},
		ReplaceHolders: true, Workflows: []*logpb.Workflow{chain()}, ReplaceWorkflows: true,
	}}}
	operator := w.newClient(0, "operator")
	limits := &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{SessionIdleNs: new(int64(sessionIdle))}}}
	for range 10 { // setting them twice changes nothing
		if operator.do(context.Background(), limits) != nil {
			return operator.do(context.Background(), command) != nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return false
}
