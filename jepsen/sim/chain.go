package sim

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// chainSteps is the number of steps in the workflow, one after the other; a step's holder is stepName.
const chainSteps = 4

func stepName(number int) string { return fmt.Sprintf("step-%d", number) }

// chain is the workflow.
func chain() *logpb.Workflow {
	w := &logpb.Workflow{
		Name: "chain", Threshold: 3, WithinNs: int64(3 * time.Second), CalmNs: int64(2 * time.Second), BatonTimeNs: int64(time.Second),
		PauseNs: int64(3 * time.Second),
	}
	for number := range chainSteps {
		step := &logpb.WorkflowStep{Holder: stepName(number)}
		if number > 0 {
			step.After = []string{stepName(number - 1)}
		}
		w.Steps = append(w.Steps, step)
	}
	return w
}

// surge is how long the steps ask for more than the limit, and then for as long for nothing.
const surge = 4 * time.Second

// step acts as one of the workflow's steps.
func (c *client) step(ctx context.Context) {
	if c.rand.IntN(8) == 0 {
		c.read(ctx, func(state *fsm.State, clock fsm.Clock) proto.Message {
			view, ok := state.Workflow("chain", clock)
			if !ok {
				return nil
			}
			status := &quotav1.WorkflowStatus{Definition: &quotav1.Workflow{Name: "chain"}, State: quotav1.WorkflowState_WORKFLOW_STATE_PARALLEL}
			if view.Sequential {
				status.State = quotav1.WorkflowState_WORKFLOW_STATE_SEQUENTIAL
			}
			return &quotav1.GetWorkflowResponse{Workflow: status}
		})
		return
	}
	if len(c.leases) > 0 && c.rand.IntN(3) == 0 {
		c.use(ctx, c.leases[c.rand.IntN(len(c.leases))])
		return
	}
	if c.w.now()/int64(surge)%2 == 1 {
		return
	}
	ask := &logpb.Reserve{
		Holder: c.name, Items: []*logpb.Item{{Quota: "chain", Amount: new(1 + c.rand.Int64N(4))}}, TtlNs: int64(time.Second),
		Consume: c.rand.IntN(3) > 0,
	}
	if c.rand.IntN(5) < 3 {
		ask.WaitNs = 1 + c.rand.Int64N(int64(1500*time.Millisecond))
	}
	c.keep(c.do(ctx, c.numbered(&logpb.Command{Kind: &logpb.Command_Reserve{Reserve: ask}})))
}
