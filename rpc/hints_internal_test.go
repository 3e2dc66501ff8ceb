package rpc

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// story is a state machine that applies commands two seconds apart.
type story struct {
	machine *fsm.Machine
	entries uint64
	caller  string
}

func (s *story) do(t *testing.T, c *logpb.Command) *logpb.Result {
	t.Helper()
	s.entries++
	now := int64(s.entries) * int64(2*time.Second)
	wall := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).UnixNano() + now
	c.Caller = s.caller
	data, err := proto.Marshal(&logpb.Entry{
		Version: fsm.EntryVersion, StampNs: now, WallEarlyNs: wall, WallLateNs: wall, Commands: []*logpb.Command{c},
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.machine.Apply(s.entries, 1, data).Results[0]
}

// The quotas of the stories are slots s, a window w of ten seconds, and a rate r of 1 an hour.
func storyQuotas() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		{Name: "s", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: 9}}},
		{Name: "w", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 9, EveryNs: int64(10 * time.Second)}}},
		{Name: "r", Rule: &logpb.Quota_Rate{Rate: &logpb.Rate{Limit: 1, PerNs: int64(time.Hour)}}},
	}}}}
}

// storyWorkflow is a workflow that runs one step at a time once a step is limited.
func storyWorkflow() *logpb.Command {
	duo := &logpb.Workflow{Name: "duo", Threshold: 1, Steps: []*logpb.WorkflowStep{{Holder: "a"}, {Holder: "b", After: []string{"a"}}}}
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{
		ReplaceWorkflows: true, Workflows: []*logpb.Workflow{duo},
	}}}
}

func storyReserve(holder, quota string, consume bool) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
		Holder: holder, Items: []*logpb.Item{{Quota: quota, Amount: new(int64(1))}}, Consume: consume,
	}}}
}

// storyLarge reserves all of the window but one unit.
func storyLarge() *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
		Holder: "a", Items: []*logpb.Item{{Quota: "w", Amount: new(int64(8))}},
	}}}
}

// storyShares is a window that is kept for critical calls.
func storyShares() *logpb.Command {
	kept := &logpb.Policy{Shares: &logpb.Shares{CriticalPpm: 900_000}}
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{
		{Name: "w", Rule: &logpb.Quota_Window{Window: &logpb.Window{Limit: 9, EveryNs: int64(time.Hour)}}, Policy: kept},
	}}}}
}

func storyBegin(task string) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: &logpb.BeginTask{Task: task, Holder: "h", MaxFailures: 1}}}
}

// later returns a command after n others that change nothing.
func later(n int, c *logpb.Command) []*logpb.Command {
	return append(slices.Repeat([]*logpb.Command{storyQuotas()}, n), c)
}

// TestMessage_TranslatesStateMachineTexts: as TestHint_TranslatesStateMachineTexts, for messages.
func TestMessage_TranslatesStateMachineTexts(t *testing.T) {
	apply := func(quotas []*logpb.Quota, workflows ...*logpb.Workflow) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{
			Quotas: quotas, ReplaceWorkflows: len(workflows) > 0, Workflows: workflows,
		}}}
	}
	slots := &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: 9}}
	for want, commands := range map[string][]*logpb.Command{
		`quota "s/child": it and its ancestor "w" must both be slots, or neither`: {
			storyQuotas(), apply([]*logpb.Quota{{Name: "s/child", Parent: "w", Rule: slots}}),
		},
		`workflow "duo": baton_time must be 1 s to 3600 s`: {
			apply(nil, &logpb.Workflow{Name: "duo", BatonTimeNs: -1, Steps: []*logpb.WorkflowStep{
				{Holder: "a"}, {Holder: "b", After: []string{"a"}},
			}}),
		},
		`"s" has slots, which are held and never consumed`: {
			storyQuotas(), storyReserve("h", "s", false),
			{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{
				Lease: 1, Fence: 1, Op: 1, Items: []*logpb.Item{{Quota: "s", Amount: new(int64(1))}},
			}}},
		},
	} {
		s, last := story{machine: fsm.New()}, &logpb.Result{}
		for _, c := range commands {
			last = s.do(t, c)
		}
		if f := last.GetFailure(); f == nil || failed(f).Message() != want {
			t.Errorf("got %v, want %q", last, want)
		}
	}
}

// TestHint_TranslatesStateMachineTexts: each text is what a caller gets for a result of the state machine. A text that changes
// there is noticed here.
func TestHint_TranslatesStateMachineTexts(t *testing.T) {
	end := func(fence uint64) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: &logpb.EndTask{
			Task: "t", Fence: fence, Outcome: logpb.TaskOutcome_TASK_OUTCOME_FAILED,
		}}}
	}
	release := func() *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: 1, Fence: 1}}}
	}
	consume := &logpb.Command{Kind: &logpb.Command_Consume{Consume: &logpb.Consume{Lease: 1, Fence: 1, Op: 1}}}
	oneTask := &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{MaxTasks: new(int64(1))}}}
	twoTasks := &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: &logpb.SetLimits{MaxTasks: new(int64(2))}}}
	const forget = "forget shelved tasks that are no longer needed; done tasks are forgotten after 7 days by default"
	for _, test := range []struct {
		name, caller string
		commands     []*logpb.Command
		reason       logpb.Reason
		want         string
	}{
		{
			"a lease that has ended", "",
			[]*logpb.Command{storyQuotas(), storyReserve("h", "s", false), release(), release()},
			logpb.Reason_REASON_STALE_FENCE, "stop using it and reserve again",
		},
		{
			"a window that has closed", "",
			append([]*logpb.Command{storyQuotas(), storyReserve("h", "w", false)}, later(5, consume)...),
			logpb.Reason_REASON_ITEM_CLOSED, "reserve again",
		},
		{
			"an attempt that has ended", "",
			[]*logpb.Command{storyBegin("t"), storyBegin("u"), end(2)},
			logpb.Reason_REASON_STALE_FENCE, "stop working on it: another attempt may be running",
		},
		{
			"an attempt that runs", "",
			[]*logpb.Command{storyBegin("t"), storyBegin("t")},
			logpb.Reason_REASON_TASK_IN_FLIGHT, "an attempt is running; it is lost at its deadline unless it is renewed",
		},
		{
			"a shelved task", "",
			[]*logpb.Command{storyBegin("t"), end(1), storyBegin("t")},
			logpb.Reason_REASON_TASK_SHELVED, "it failed 1 times: find the cause, then run quotad task retry",
		},
		{"no room", "", []*logpb.Command{oneTask, storyBegin("t"), storyBegin("u")}, logpb.Reason_REASON_TASKS_FULL, forget},
		{"a caller's part", "token:a", []*logpb.Command{twoTasks, storyBegin("t"), storyBegin("u")}, logpb.Reason_REASON_CALLER_BUDGET, forget},
		{
			"a step without the baton", "",
			[]*logpb.Command{
				storyQuotas(), storyWorkflow(), storyReserve("x", "r", true), storyReserve("b", "r", false), storyReserve("a", "s", false),
				storyReserve("b", "s", false),
			},
			logpb.Reason_REASON_SEQUENTIAL, `workflow "duo" runs one step at a time, and "a" has the baton: wait in the queue`,
		},
		{
			"a rate that is used up", "",
			[]*logpb.Command{storyQuotas(), storyReserve("a", "r", true), storyReserve("b", "r", true)},
			logpb.Reason_REASON_EXHAUSTED, "retry at that time, or wait in the queue",
		},
		{
			"what other holders keep", "",
			[]*logpb.Command{storyShares(), storyLarge()},
			logpb.Reason_REASON_SHARE, "the rest is kept for other callers: a higher class",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, last := story{machine: fsm.New(), caller: test.caller}, &logpb.Result{}
			for _, c := range test.commands {
				last = s.do(t, c)
			}
			reason, got := logpb.Reason_REASON_UNSPECIFIED, ""
			if f, r := last.GetFailure(), last.GetRefusal(); f != nil {
				reason, got = f.Reason, infoOf(failed(f)).GetHint()
			} else if r != nil {
				reason, got = r.Reason, apiRefusal(r, fsm.Clock{}).GetAdvice()
			}
			if reason != test.reason || got != test.want {
				t.Errorf("got %q of %v, want %q", got, last, test.want)
			}
		})
	}
}
