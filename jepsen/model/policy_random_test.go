package model

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm/logpb"
)

// policiesOf are quotas with every policy, alone and together.
func policiesOf() []*logpb.Quota {
	with := func(q *logpb.Quota, policy *logpb.Policy) *logpb.Quota {
		q.Policy = policy
		return q
	}
	fleet := func() *logpb.Shares {
		return &logpb.Shares{CriticalPpm: 400_000, StandardPpm: 350_000, BackgroundPpm: 250_000, QuietNs: 5 * sec}
	}
	breaker := &logpb.Breaker{Failures: 2, ClosedNs: 3 * sec}
	tenths := func(name string, limit int64) *logpb.Quota {
		return window(name, "", &logpb.Window{Limit: limit, EveryNs: 10 * sec, SkewNs: 200 * mil})
	}
	all := with(tenths("all", 60), &logpb.Policy{
		Zones: logpb.Zones_ZONES_SMOOTH, RampNs: 2 * sec, Breaker: breaker, AgeingNs: 3 * sec, Metering: true,
		Shares:     fleet(),
		Prediction: &logpb.Prediction{Samples: 3, AheadNs: 5 * sec},
	})
	all.Fallback = "spare"
	sum := rate("sum", "", 60, 4*sec)
	return []*logpb.Quota{
		with(rate("spare", "", 20, 2*sec), &logpb.Policy{Shares: fleet(), Prediction: &logpb.Prediction{}}),
		with(sum, &logpb.Policy{Shares: fleet(), AgeingNs: 2 * sec}), all,
		with(tenths("smooth", 60), &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH}),
		with(tenths("strict", 60), &logpb.Policy{Zones: logpb.Zones_ZONES_STRICT, AgeingNs: 2 * sec}),
		with(tenths("shared", 80), &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: 500_000, StandardPpm: 300_000, QuietNs: 2 * sec}}),
		with(rate("part", "sum", 40, 4*sec), &logpb.Policy{RampNs: 4 * sec, Breaker: breaker, AgeingNs: 2 * sec}),
		with(slots("seats", "", 8, 500*mil), &logpb.Policy{RampNs: 4 * sec, AgeingNs: 2 * sec}),
		rate("chain", "", 8, 3*sec), rate("changed", "", 30, 3*sec),
	}
}

// workflowsOf are two workflows that share a step.
func workflowsOf() []*logpb.Workflow {
	step := func(holder string, after ...string) *logpb.WorkflowStep {
		return &logpb.WorkflowStep{Holder: holder, After: after}
	}
	return []*logpb.Workflow{
		{Name: "a", Threshold: 2, WithinNs: 3 * sec, CalmNs: 4 * sec, BatonTimeNs: 2 * sec, PauseNs: 6 * sec, Steps: []*logpb.WorkflowStep{
			step("std-1"), step("std-2", "std-1"), step("low-1", "std-2"),
		}},
		{Name: "b", Threshold: 1, WithinNs: sec, CalmNs: 2 * sec, BatonTimeNs: 3 * sec, Steps: []*logpb.WorkflowStep{
			step("low-2"), step("std-1", "low-2"),
		}},
	}
}

// often is n in histories with policies, which need much use of a few quotas, and 0 otherwise.
func (d *drive) often(n int) int {
	if d.withPolicy {
		return n
	}
	return 0
}

// learnTasks records the attempts that began.
func (d *drive) learnTasks() {
	for _, e := range d.last.Events {
		if e.Task != "" && e.Fence != 0 {
			d.attempts = append(d.attempts, &logpb.EndTask{Task: e.Task, Fence: e.Fence})
		}
	}
}

// ofPolicy draws a command for a task, an override or a workflow.
func (d *drive) ofPolicy() *logpb.Command {
	name := fmt.Sprint("task-", d.intn(6, "task"))
	attempt := &logpb.EndTask{Task: name}
	if len(d.attempts) > 0 {
		attempt = proto.CloneOf(d.attempts[len(d.attempts)-1-min(d.intn(8, "attempt"), len(d.attempts)-1)])
		attempt.Fence += uint64(d.intn(12, "fence") / 11)
	}
	switch d.intn(12, "of policy") {
	case 0, 1, 2, 3:
		begin := &logpb.BeginTask{
			Task: name, Holder: pick(d, allHolders, "runner"), MaxFailures: int32(d.intn(4, "failures")),
			TtlNs: pick(d, []int64{0, sec, 4 * sec}, "ttl"),
		}
		if d.oneIn(2, "on a quota") {
			begin.Quotas = []string{pick(d, d.names, "its quota")}
		}
		if d.oneIn(6, "numbered") {
			begin.Attempt = d.between(1, 4, "number")
		}
		return d.identified(&logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: begin}})
	case 4:
		return &logpb.Command{Kind: &logpb.Command_RenewTask{RenewTask: &logpb.RenewTask{
			Task: attempt.Task, Fence: attempt.Fence, TtlNs: pick(d, []int64{0, 2 * sec}, "ttl"),
		}}}
	case 5, 6, 7:
		attempt.Outcome = logpb.TaskOutcome(d.intn(6, "outcome"))
		if d.oneIn(2, "wait") {
			attempt.WaitNs = new(d.between(0, 3*sec, "waits"))
		}
		if d.oneIn(4, "tell") {
			attempt.Report = logpb.Cause(d.intn(8, "cause"))
		}
		return &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: attempt}}
	case 8:
		return &logpb.Command{Kind: &logpb.Command_RetryTask{RetryTask: &logpb.RetryTask{Task: name}}}
	case 9:
		return d.seldom(name)
	}
	set := &logpb.SetOverride{Quota: pick(d, d.names, "overridden"), ForNs: pick(d, []int64{sec, 5 * sec}, "for")}
	if d.oneIn(2, "always this") {
		set.Quota = "changed"
	}
	if d.intn(4, "ends") > 0 {
		set.Limit = new(d.between(0, 60, "limit"))
	}
	return &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: set}}
}

// seldom draws a command that ends tasks or workflows.
func (d *drive) seldom(task string) *logpb.Command {
	switch d.intn(6, "seldom") {
	case 0:
		return &logpb.Command{Kind: &logpb.Command_ForgetTask{ForgetTask: &logpb.ForgetTask{Task: task}}}
	case 1:
		return &logpb.Command{Kind: &logpb.Command_DeleteWorkflow{DeleteWorkflow: &logpb.DeleteWorkflow{Workflow: pick(d, []string{"a", "b"},
			"workflow")}}}
	case 2:
		return &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{TaskLifeNs: new(pick(d, []int64{5 * sec, 3600 * sec},
			"task life"))}}}
	}
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{
		Workflows: workflowsOf()[d.intn(2, "from"):], ReplaceWorkflows: true, DryRun: d.oneIn(3, "dry"),
	}}}
}

// TestRandomPolicies is TestRandomHistories with policies, workflows, tasks and overrides.
func TestRandomPolicies(t *testing.T) { checkRandom(t, true) }

// TestLongPolicies is TestLongHistories with policies, and each rule must have had cases.
func TestLongPolicies(t *testing.T) {
	sum := checkLong(t, true)
	for what, count := range map[string]int{
		"attempts": sum.Attempts, "attempts lost": sum.Lost, "tasks shelved": sum.Shelved, "tasks put back": sum.PutBack,
		"overrides": sum.Overrides, "overrides that ended": sum.OverridesEnded, "breakers": sum.Breakers, "fallbacks": sum.Instead,
		"withheld": sum.Withheld, "grants next to a higher class": sum.Lent, "refusals for shares of rates": sum.Kept,
		"one at a time": sum.Sequentials, "all again": sum.Parallels, "turns": sum.Batons,
		"sessions ended": sum.SessionsEnded,
	} {
		if count == 0 {
			t.Errorf("there were no %s", what)
		}
	}
}
