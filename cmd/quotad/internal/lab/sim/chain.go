package sim

import (
	"time"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// defaultPause is how long back-pressure keeps a step back without a grant, where its workflow does not say.
const defaultPause = 5 * time.Minute

// chain watches a workflow from outside: what the provider refuses its steps, and which of their calls are let through.
type chain struct {
	world *world
	// upstream has, by step, all whose work it takes over, directly or not.
	upstream map[string]map[string]bool
	steps    []string
	pause    int64
	// limits are the steps that the provider refused, until they are granted a call.
	limits map[string]stretch
	// sequential is since when one at a time goes; -1: all go. underWay are the calls that were granted since, and caller is
	// whose they are.
	sequential int64
	caller     *agent
	underWay   map[*call]struct{}
	result     WorkflowResult
}

// WorkflowResult is what came of a workflow.
type WorkflowResult struct {
	Workflow string `json:"workflow"`
	// Limited is how often the provider refused a step, KeptBack how often back-pressure kept a call of one back.
	Limited  int64 `json:"limited"`
	KeptBack int64 `json:"keptBack"`
	// Sequential is how often it went one at a time, for InSequence in all, in so many Turns. Parallel: all go in the end.
	Sequential int64         `json:"sequential"`
	InSequence time.Duration `json:"inSequence"`
	Turns      int64         `json:"turns"`
	Parallel   bool          `json:"parallel"`
	// Overtook is how many calls upstream of a step that the provider had refused were let through before it, Together how
	// many while another step called and one at a time had to.
	Overtook int64 `json:"overtook"`
	Together int64 `json:"together"`
}

func newChain(w *world, workflow *quotav1.Workflow) *chain {
	c := &chain{
		world: w, upstream: map[string]map[string]bool{}, pause: int64(defaultPause), limits: map[string]stretch{}, sequential: -1,
		underWay: map[*call]struct{}{}, result: WorkflowResult{Workflow: workflow.Name},
	}
	if workflow.Pause != nil {
		c.pause = int64(workflow.Pause.AsDuration())
	}
	for _, step := range workflow.Steps {
		c.steps = append(c.steps, step.Holder)
		c.upstream[step.Holder] = map[string]bool{}
	}
	for range workflow.Steps { // in as many rounds it reaches from end to end
		for _, step := range workflow.Steps {
			for _, before := range step.After {
				c.upstream[step.Holder][before] = true
				for further := range c.upstream[before] { // the order does not matter
					c.upstream[step.Holder][further] = true
				}
			}
		}
	}
	return c
}

// hear takes in what the state machine tells of its workflow, and of its steps.
func (c *chain) hear(event effect.Event) {
	_, ours := c.upstream[event.Holder]
	switch event.Kind {
	case effect.EventWaiting, effect.EventRefused:
		if ours && event.Reason == logpb.Reason_REASON_BACK_PRESSURE {
			c.result.KeptBack++
		}
	case effect.EventBaton:
		if event.Workflow == c.result.Workflow && event.Fence != 0 {
			c.result.Turns++
		}
	case effect.EventSequential:
		if event.Workflow == c.result.Workflow {
			c.result.Sequential++
			c.sequential = c.world.now
			clear(c.underWay)
		}
	case effect.EventParallel:
		if event.Workflow == c.result.Workflow {
			c.result.InSequence += time.Duration(c.world.now - c.sequential)
			c.sequential = -1
		}
	default:
	}
}

// limited notes that the provider refused a step, which the cluster knows since a moment, and for how long that holds.
func (c *chain) limited(step string, since, length int64) {
	c.result.Limited++
	until := since + min(length, c.pause)
	if before, ok := c.limits[step]; ok {
		until = min(max(until, before.to), before.from+c.pause)
		since = before.from
	}
	c.limits[step] = stretch{from: since, to: until}
}

// sent notes that a call of a step is sent.
func (c *chain) sent(one *call) {
	a := one.agent
	if limit, ok := c.limits[a.name]; ok && one.granted > limit.from {
		delete(c.limits, a.name) // it goes first
	}
	if c.sequential >= 0 {
		if one.granted > c.sequential {
			if len(c.underWay) > 0 && c.caller != a {
				c.result.Together++
			}
			c.caller = a
			c.underWay[one] = struct{}{}
		}
		return
	}
	for _, step := range c.steps {
		limit, ok := c.limits[step]
		if ok && c.upstream[step][a.name] && one.granted > limit.from && one.granted < limit.to {
			c.result.Overtook++
		}
	}
}

// answered notes that a call of a step is over.
func (c *chain) answered(one *call) { delete(c.underWay, one) }

// end adds it up.
func (c *chain) end() WorkflowResult {
	r := c.result
	if r.Parallel = c.sequential < 0; !r.Parallel {
		r.InSequence += time.Duration(c.world.now - c.sequential)
	}
	return r
}
