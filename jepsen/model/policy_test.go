package model

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
)

func beginTask(attempt int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: &logpb.BeginTask{
		Task: "t", Holder: "runner", MaxFailures: 2, TtlNs: sec, Attempt: attempt,
	}}}
}

func endTask(fence uint64, outcome logpb.TaskOutcome) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: &logpb.EndTask{Task: "t", Fence: fence, Outcome: outcome}}}
}

// policyStory has parts for policies, an override, a task and a workflow. Its quotas have no policies: a machine without them grants what
// each of them forbids.
func policyStory() []step {
	const failed, finished = logpb.TaskOutcome_TASK_OUTCOME_FAILED, logpb.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED
	apply := &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		window("win", "", &logpb.Window{Limit: 100, EveryNs: 100 * sec}), rate("plain", "", 100, 10*sec), slots("seats", "", 9, sec),
	}}
	workflow := &logpb.Workflow{Name: "w", Threshold: 1, CalmNs: 3 * sec, BatonTimeNs: 2 * sec, Steps: []*logpb.WorkflowStep{
		{Holder: "a"}, {Holder: "b", After: []string{"a"}},
	}}
	return []step{
		{0, &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: apply}}},
		// entry 2: a standard holder takes most of the window: leases 1 to 4, each consumed at once
		{ms, reserve("std", "win", 70, 10*sec, consumes)},
		{100 * ms, reserve("back", "win", 1, sec, consumes, inClass(2))},
		{100 * ms, reserve("back", "win", 1, sec, consumes, inClass(2))},
		{100 * ms, reserve("std", "win", 20, sec, consumes)},
		// 6: too little is left for background work
		{10 * sec, reserve("back", "win", 1, sec, consumes, inClass(2))},
		// 7, 8: the provider refuses lease 6, and 9: lease 7 is granted after the cooldown
		{ms, reserve("limited", "plain", 10, 10*sec, consumes)},
		{ms, &logpb.Command{Kind: &logpb.Command_Report{Report: &logpb.Report{Lease: 6, Fence: 6, Op: 1, Signals: []*logpb.Signal{
			{Quota: "plain", Cause: logpb.Cause_CAUSE_SATURATED, RetryAfterNs: new(300 * ms)},
		}}}}},
		{400 * ms, reserve("limited", "plain", 50, sec, consumes)},
		// 10: an override, which ends with 11
		{ms, &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: &logpb.SetOverride{
			Quota: "plain", Limit: new(int64(50)), ForNs: 2 * sec,
		}}}},
		{3 * sec, nothing()},
		// 12: attempt 1 (fence 8) fails, reported twice; 15: it is too early
		{ms, beginTask(1)},
		{ms, endTask(8, failed)},
		{ms, endTask(8, failed)},
		{ms, beginTask(0)},
		// 16: attempt 2 (fence 9) is lost with 17, and the task is shelved
		{5 * minute, beginTask(2)},
		{2 * sec, nothing()},
		{ms, beginTask(0)},
		// 19: it is put back; 20: attempt 3 (fence 10) is done, and limited afterwards
		{ms, &logpb.Command{Kind: &logpb.Command_RetryTask{RetryTask: &logpb.RetryTask{Task: "t"}}}},
		{ms, beginTask(0)},
		{ms, endTask(10, finished)},
		{ms, beginTask(0)},
		// 23: a workflow runs one step at a time from 25: its step is limited, and another takes the baton with 26
		{ms, &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{
			Workflows: []*logpb.Workflow{workflow}, ReplaceWorkflows: true,
		}}}},
		{ms, reserve("z", "plain", 100, sec, consumes)},
		{ms, reserve("a", "plain", 1, sec)},
		{ms, reserve("b", "seats", 1, 10*sec)},
		{ms, reserve("a", "seats", 1, 10*sec)},
		// 28: the baton expires, 29: all steps run again
		{3 * sec, nothing()},
		{20 * sec, nothing()},
		// 30: a step of another workflow, unknown to this machine, is limited, and a step above it continues
		{ms, reserve("z", "plain", 100, sec, consumes)},
		{ms, reserve("d", "plain", 1, sec)},
		{ms, reserve("c", "seats", 1, sec)},
	}
}

// playPolicies is play for policyStory; it has a time of day.
func playPolicies(t *testing.T, spoil func(index uint64, entry *logpb.Entry, applied *fsm.Applied)) ([]Violation, Stats) {
	t.Helper()
	machine, judge := fsm.New(), New()
	var all []Violation
	at := int64(time.Second)
	for i, s := range policyStory() {
		at += s.after
		entry := &logpb.Entry{
			Version: fsm.EntryVersion, StampNs: at, WallEarlyNs: birth + at, WallLateNs: birth + at, Commands: []*logpb.Command{s.command},
		}
		payload, err := proto.Marshal(entry)
		if err != nil {
			t.Fatal(err)
		}
		applied := machine.Apply(uint64(i+1), 1, payload)
		for k := range applied.Results {
			applied.Results[k] = proto.CloneOf(applied.Results[k])
		}
		spoil(uint64(i+1), entry, &applied)
		all = append(all, judge.Entry(entry, &applied)...)
	}
	return all, judge.Stats()
}

func TestPolicyStory_IsAllowed(t *testing.T) {
	violations, stats := playPolicies(t, func(uint64, *logpb.Entry, *fsm.Applied) {})
	for _, v := range violations {
		t.Errorf("%+v", v)
	}
	want := [...]int{3, 1, 1, 1, 1, 1, 1, 1, 1}
	if got := [...]int{
		stats.Attempts, stats.Lost, stats.Shelved, stats.PutBack, stats.Overrides, stats.OverridesEnded, stats.Sequentials, stats.Parallels,
		stats.Withheld,
	}; got != want {
		t.Errorf("the story has %v, wanted %v: %+v", got, want, stats)
	}
}

// TestPolicyStory_EachLieIsFound: the judge finds each deviation: a rule that the machine did not have, or a changed outcome.
func TestPolicyStory_EachLieIsFound(t *testing.T) {
	type spoil = func(entry *logpb.Entry, applied *fsm.Applied)
	with := func(quota int, policy *logpb.Policy) spoil {
		return func(e *logpb.Entry, _ *fsm.Applied) { e.Commands[0].GetApplyQuotas().Quotas[quota].Policy = policy }
	}
	without := func(kind effect.EventKind) spoil {
		return func(_ *logpb.Entry, a *fsm.Applied) {
			a.Events = slices.DeleteFunc(a.Events, func(e effect.Event) bool { return e.Kind == kind })
		}
	}
	workflows := func(change func(a *logpb.ApplyQuotas)) spoil {
		return func(e *logpb.Entry, _ *fsm.Applied) { change(e.Commands[0].GetApplyQuotas()) }
	}
	for name, l := range map[string]struct {
		rule string
		// spoilt is the changed entry, found the first entry that shows it.
		spoilt, found uint64
		tell          spoil
	}{
		"calls that should be spread out are granted": {"zone", 1, 4, with(0, &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH})},
		"background work continues in red": {
			"zone", 1, 6, with(0, &logpb.Policy{Zones: logpb.Zones_ZONES_SMOOTH, AgeingNs: minute}),
		},
		"what is kept for critical calls is granted":      {"share", 1, 2, with(0, &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: 500_000}})},
		"a breaker does not open":                         {"breaker", 1, 8, with(1, &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1}})},
		"a holder continues although its breaker is open": {"breaker", 1, 9, with(1, &logpb.Policy{Breaker: &logpb.Breaker{Failures: 1}})},
		"a quota reopens at once":                         {"ramp", 1, 9, with(1, &logpb.Policy{RampNs: 10 * sec})},
		"an override ends too early": {
			"unexplained", 10, 11, func(e *logpb.Entry, _ *fsm.Applied) { e.Commands[0].GetSetOverride().ForNs = 10 * sec },
		},
		"an override ends without an event": {"override", 11, 11, without(effect.EventOverride)},
		"another limit is put in its place": {"override", 10, 10, func(_ *logpb.Entry, a *fsm.Applied) { a.Events[0].Amount = 60 }},
		"a failure is not counted": {
			"task-budget", 13, 13, func(_ *logpb.Entry, a *fsm.Applied) { a.Results[0].GetTaskEnded().Failures = 0 },
		},
		"a failure that was reported is forgotten": {
			"task-budget", 14, 14, func(_ *logpb.Entry, a *fsm.Applied) { a.Results[0].GetTaskEnded().Failures = 0 },
		},
		"a new attempt has a fresh budget": {
			"task-budget", 16, 16, func(_ *logpb.Entry, a *fsm.Applied) { a.Results[0].GetTaskBegun().Failures = 0 },
		},
		"a task waits for less than it should": {
			"task-budget", 13, 13, func(_ *logpb.Entry, a *fsm.Applied) { a.Results[0].GetTaskEnded().NextNs -= sec },
		},
		"an attempt begins too early": {"task-attempt", 15, 15, func(_ *logpb.Entry, a *fsm.Applied) {
			a.Results[0] = &logpb.Result{Kind: &logpb.Result_TaskBegun{TaskBegun: &logpb.TaskBegun{
				Attempt: 2, Fence: 9, DeadlineNs: 1 << 60, Failures: 1, MaxFailures: 2,
			}}}
			a.Events = []effect.Event{{Kind: effect.EventTaskBegun, Task: "t", Fence: 9, Amount: 2}}
		}},
		"an attempt has an old fence": {"fence-order", 16, 16, func(_ *logpb.Entry, a *fsm.Applied) {
			a.Results[0].GetTaskBegun().Fence = 8
			a.Events[0].Fence = 8
		}},
		"an attempt does not end": {"late-expiry", 17, 17, without(effect.EventTaskEnded)},
		"a task is not shelved":   {"task-budget", 17, 17, without(effect.EventTaskShelved)},
		"a task is shelved twice": {
			"task-budget", 17, 17, func(_ *logpb.Entry, a *fsm.Applied) { a.Events = append(a.Events, a.Events[1]) },
		},
		"an attempt ends twice": {
			"task-attempt", 17, 17, func(_ *logpb.Entry, a *fsm.Applied) { a.Events = append(a.Events, a.Events[0]) },
		},
		"a finished task is to be begun again": {
			"task-budget", 21, 21, func(_ *logpb.Entry, a *fsm.Applied) { a.Results[0].GetTaskEnded().Phase = waitingTask },
		},
		"a dead attempt ends": {
			"dead-fence", 21, 21, func(e *logpb.Entry, _ *fsm.Applied) { e.Commands[0].GetEndTask().Fence = 9 },
		},
		"one at a time does not go":           {"sequential", 25, 25, without(effect.EventSequential)},
		"one at a time goes without a reason": {"sequential", 23, 25, workflows(func(a *logpb.ApplyQuotas) { a.Workflows[0].Threshold = 2 })},
		"a lease outlives its turn":           {"deadline", 26, 26, func(_ *logpb.Entry, a *fsm.Applied) { granted(a).DeadlineNs += sec }},
		"another holder has the baton":        {"turn", 26, 26, func(_ *logpb.Entry, a *fsm.Applied) { a.Events[0].Holder = "a" }},
		"a second turn": {"turn", 27, 27, func(_ *logpb.Entry, a *fsm.Applied) {
			a.Events = append([]effect.Event{{Kind: effect.EventBaton, Workflow: "w", Holder: "a", Fence: 99, Duration: sec}}, a.Events...)
		}},
		"all go again too early": {"sequential", 23, 29, workflows(func(a *logpb.ApplyQuotas) { a.Workflows[0].CalmNs = 10 * minute })},
		"who is kept back is granted something": {"back-pressure", 23, 32, workflows(func(a *logpb.ApplyQuotas) {
			a.Workflows = append(a.Workflows, &logpb.Workflow{
				Name: "v", Threshold: 2, Steps: []*logpb.WorkflowStep{{Holder: "c"}, {Holder: "d", After: []string{"c"}}},
			})
		})},
	} {
		t.Run(name, func(t *testing.T) {
			violations, _ := playPolicies(t, func(index uint64, entry *logpb.Entry, applied *fsm.Applied) {
				if index == l.spoilt {
					l.tell(entry, applied)
				}
			})
			if !slices.ContainsFunc(violations, func(v Violation) bool { return v.Name == l.rule && v.Index == l.found }) {
				t.Errorf("%s did not find it at %d, but %+v", l.rule, l.found, violations)
			}
		})
	}
}
