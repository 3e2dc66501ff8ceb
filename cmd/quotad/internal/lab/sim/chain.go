package sim

import (
	"time"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// defaultPause is the maximum time for which back-pressure delays a step without a grant, if its workflow names none.
const defaultPause = 5 * time.Minute

// chain observes a workflow from outside: the provider's refusals of its steps, and which of their calls are granted.
type chain struct {
	world *world
	// upstream has, by step, all steps whose work it continues, directly or not.
	upstream map[string]map[string]bool
	steps    []string
	pause    int64
	// limits are the steps that the provider refused, until they are granted a call.
	limits map[string]stretch
	// sequential is since when the workflow runs one step at a time; -1: it does not. underWay are the calls granted and
	// sent since; caller is the agent that sent the last of them.
	sequential int64
	caller     *agent
	underWay   map[*call]struct{}
	result     WorkflowResult
}

// WorkflowResult is the result of a workflow.
type WorkflowResult struct {
	Workflow string `json:"workflow"`
	// Limited counts the provider's refusals of a step, KeptBack the calls that back-pressure delayed.
	Limited  int64 `json:"limited"`
	KeptBack int64 `json:"keptBack"`
	// Sequential counts the switches to one step at a time, InSequence is their total time, and Turns counts the batons
	// taken. Parallel: at the end, all steps run together.
	Sequential int64         `json:"sequential"`
	InSequence time.Duration `json:"inSequence"`
	Batons     int64         `json:"turns"`
	Parallel   bool          `json:"parallel"`
	// Overtook counts calls that were granted upstream of a step refused by the provider, before that step was granted one.
	// Together counts calls of a step while another step called although only one may.
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

// hear records an event of the state machine about the workflow or its steps.
func (c *chain) hear(event effect.Event) {
	_, ours := c.upstream[event.Holder]
	switch event.Kind {
	case effect.EventWaiting, effect.EventRefused:
		if ours && event.Reason == logpb.Reason_REASON_BACK_PRESSURE {
			c.result.KeptBack++
		}
	case effect.EventBaton:
		if event.Workflow == c.result.Workflow && event.Fence != 0 {
			c.result.Batons++
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

// limited records that the provider refused a step, when the cluster learned of it, and for how long.
func (c *chain) limited(step string, since, length int64) {
	c.result.Limited++
	until := since + min(length, c.pause)
	if before, ok := c.limits[step]; ok {
		until = min(max(until, before.to), before.from+c.pause)
		since = before.from
	}
	c.limits[step] = stretch{from: since, to: until}
}

// sent records that a call of a step is sent.
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

// answered records that a call of a step is over.
func (c *chain) answered(one *call) { delete(c.underWay, one) }

// end computes the result.
func (c *chain) end() WorkflowResult {
	r := c.result
	if r.Parallel = c.sequential < 0; !r.Parallel {
		r.InSequence += time.Duration(c.world.now - c.sequential)
	}
	return r
}
