package sim

import (
	"testing"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// watched returns the observer of a chain of three steps, and a function that makes their calls.
func watched() (c *chain, makes func(step string, granted int64) *call) {
	w := &world{schedule: &schedule{}}
	c = newChain(w, &quotav1.Workflow{Name: "release", Steps: []*quotav1.WorkflowStep{
		{Holder: "deploy", After: []string{"build"}}, {Holder: "triage"}, {Holder: "build", After: []string{"triage"}},
	}})
	agents := map[string]*agent{}
	return c, func(step string, granted int64) *call {
		if agents[step] == nil {
			agents[step] = &agent{world: w, name: step}
		}
		return &call{agent: agents[step], granted: granted}
	}
}

// TestChain_CountsOvertaking: a step upstream of a limited one, at any distance, overtakes it with a call granted before it. That ends
// with the limit, or when the limited step is granted a call.
func TestChain_CountsOvertaking(t *testing.T) {
	c, call := watched()
	c.limited("deploy", 10*second, 60*second)
	for _, step := range []struct {
		holder   string
		granted  int64
		overtook int64
	}{
		{"triage", 9 * second, 0}, // granted before the limit was known
		{"triage", 11 * second, 1},
		{"build", 69 * second, 2},
		{"build", 71 * second, 2},  // the limit is over
		{"deploy", 12 * second, 2}, // the limited step itself
		{"triage", 13 * second, 2},
	} {
		c.sent(call(step.holder, step.granted))
		if got := c.end().Overtook; got != step.overtook {
			t.Fatalf("%+v: %d overtook", step, got)
		}
	}
	// Back-pressure delays no step for longer than the pause.
	c.limited("deploy", 100*second, 3600*second)
	c.sent(call("triage", 100*second+int64(defaultPause)+1))
	if got := c.end(); got.Overtook != 2 || got.Limited != 2 {
		t.Errorf("after the pause: %+v", got)
	}
}

// TestChain_CountsConcurrentSteps: while a workflow runs one step at a time, concurrent calls of two steps are counted, except those
// granted before.
func TestChain_CountsConcurrentSteps(t *testing.T) {
	c, call := watched()
	tell := func(at int64, kind effect.EventKind) {
		c.world.now = at
		c.hear(effect.Event{Kind: kind, Workflow: "release"})
	}
	before := call("build", 9*second)
	tell(10*second, effect.EventSequential)
	first, other := call("triage", 11*second), call("triage", 12*second)
	c.sent(before)
	c.sent(first)
	c.sent(other) // of the same step
	if got := c.end(); got.Together != 0 || got.Parallel || got.Sequential != 1 {
		t.Fatalf("one step's turn: %+v", got)
	}
	c.answered(first)
	c.sent(call("deploy", 13*second)) // triage's other call is still in flight
	if got := c.end().Together; got != 1 {
		t.Fatalf("two at once: %d", got)
	}
	tell(20*second, effect.EventParallel)
	c.sent(call("build", 21*second))
	c.sent(call("deploy", 21*second))
	c.hear(effect.Event{Kind: effect.EventWaiting, Holder: "triage", Reason: logpb.Reason_REASON_BACK_PRESSURE})
	c.hear(effect.Event{Kind: effect.EventWaiting, Holder: "somebody", Reason: logpb.Reason_REASON_BACK_PRESSURE})
	c.hear(effect.Event{Kind: effect.EventBaton, Holder: "triage", Workflow: "release", Fence: 7})
	if got := c.end(); got.Together != 1 || !got.Parallel || got.InSequence != 10e9 || got.KeptBack != 1 || got.Batons != 1 {
		t.Errorf("in the end: %+v", got)
	}
}
