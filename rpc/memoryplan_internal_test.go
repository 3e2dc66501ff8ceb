package rpc

import (
	"testing"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
)

// TestPlanMemory_FitsBelowTheMark: on any node from 512 MiB on, everything that callers can fill stays below the mark together: the budgets
// of the state, requests, calls, streams and connections. Two of the longest requests fit, and an operator finds a way in.
func TestPlanMemory_FitsBelowTheMark(t *testing.T) {
	const longest = 4 << 20 * perByte
	whole := PlanMemory(0)
	last := MemoryPlan{}
	for limit := int64(512 << 20); limit <= 64<<30; limit += 64 << 20 {
		plan := PlanMemory(limit)
		if all, mark := plan.Memory(), limit/100*raftnode.MemoryMark; all > mark {
			t.Fatalf("%d MiB: %+v takes %d MiB, the mark is at %d MiB", limit>>20, plan, all>>20, mark>>20)
		}
		state := accounts.LimitsFor(plan.State)
		if full := state.Memory(); full > plan.State {
			t.Fatalf("%d MiB: the state's budgets take %d of %d bytes", limit>>20, full, plan.State)
		}
		if plan.Calls < accounts.MinCalls || plan.Streams < accounts.MinStreams || plan.Connections < accounts.MinConnections ||
			plan.RequestBytes < 2*longest {
			t.Fatalf("%d MiB: %+v is too little", limit>>20, plan)
		}
		if plan.State < last.State || plan.RequestBytes < last.RequestBytes || plan.Calls < last.Calls || plan.Connections < last.Connections {
			t.Fatalf("%d MiB: %+v is less than with less memory: %+v", limit>>20, plan, last)
		}
		last = plan
	}
	for limit, want := range map[int64]MemoryPlan{
		128 << 20: PlanMemory(512 << 20),
		512 << 20: {State: 147_639_496, RequestBytes: 64 << 20, Calls: 1391, Streams: 237, Connections: 579},
		8 << 30:   {State: whole.State, RequestBytes: 512 << 20, Calls: whole.Calls, Streams: whole.Streams, Connections: whole.Connections},
	} {
		if got := PlanMemory(limit); got != want {
			t.Errorf("%d MiB: %+v instead of %+v", limit>>20, got, want)
		}
	}
}

// TestLimitsFor_KeepsTheDefaults: with enough memory the limits are those of a state without any change.
func TestLimitsFor_KeepsTheDefaults(t *testing.T) {
	byDefault := accounts.DefaultLimits()
	if full := byDefault.Memory(); full > accounts.DefaultMemory || full < accounts.DefaultMemory/100*95 {
		t.Errorf("the default budgets take %d bytes", full)
	}
	if got := accounts.LimitsFor(accounts.DefaultMemory); got != byDefault {
		t.Errorf("%+v", got)
	}
	if full := fsm.New().State().FullMemory(); full != byDefault.Memory() {
		t.Errorf("a new state says %d bytes", full)
	}
}

// TestUnlessSet_KeepsWhatTheOperatorSet: a node's memory replaces the default limits and no others.
func TestUnlessSet_KeepsWhatTheOperatorSet(t *testing.T) {
	s := &Server{plan: PlanMemory(512 << 20)}
	if got := s.unlessSet(nodeLimits{accounts.DefaultMaxCalls, accounts.DefaultMaxStreams, accounts.DefaultMaxConnections}); got !=
		(nodeLimits{s.plan.Calls, s.plan.Streams, s.plan.Connections}) {
		t.Errorf("the defaults are %+v", got)
	}
	if set := (nodeLimits{30_000, 9000, 20_000}); s.unlessSet(set) != set {
		t.Errorf("what was set is %+v", s.unlessSet(set))
	}
}
