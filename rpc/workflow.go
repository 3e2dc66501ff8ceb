package rpc

import (
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/workflow"
	"github.com/quotad/quotad/rpc/quotav1"
)

// logWorkflow translates a definition that was validated.
func logWorkflow(w *quotav1.Workflow) *logpb.Workflow {
	def := &logpb.Workflow{
		Name: w.Name, Threshold: w.Threshold, WithinNs: nanos(w.Within), CalmNs: nanos(w.Calm),
		BatonTimeNs: nanos(w.BatonTime), PauseNs: nanos(w.Pause),
	}
	for _, step := range w.Steps {
		def.Steps = append(def.Steps, &logpb.WorkflowStep{Holder: step.GetHolder(), After: step.GetAfter()})
	}
	return def
}

func apiWorkflow(def *logpb.Workflow) *quotav1.Workflow {
	w := &quotav1.Workflow{
		Name: def.Name, Threshold: def.Threshold, Within: optionalDuration(def.WithinNs), Calm: optionalDuration(def.CalmNs),
		BatonTime: optionalDuration(def.BatonTimeNs), Pause: optionalDuration(def.PauseNs),
	}
	for _, step := range def.Steps {
		w.Steps = append(w.Steps, &quotav1.WorkflowStep{Holder: step.Holder, After: step.After})
	}
	return w
}

func workflowState(sequential bool) quotav1.WorkflowState {
	if sequential {
		return quotav1.WorkflowState_WORKFLOW_STATE_SEQUENTIAL
	}
	return quotav1.WorkflowState_WORKFLOW_STATE_PARALLEL
}

func apiWorkflowStatus(v *workflow.View) *quotav1.WorkflowStatus {
	s := &quotav1.WorkflowStatus{
		Definition: apiWorkflow(v.Definition), State: workflowState(v.Sequential), StateFor: durationpb.New(time.Duration(v.StateFor)),
	}
	if v.Sequential {
		s.CalmIn = durationpb.New(time.Duration(v.CalmIn))
	}
	if v.Baton != nil {
		s.Baton = &quotav1.WorkflowBaton{Holder: v.Baton.Holder, Fence: v.Baton.Fence, EndsIn: durationpb.New(time.Duration(v.Baton.Left))}
	}
	for i := range v.Steps {
		step := &v.Steps[i]
		status := &quotav1.WorkflowStepStatus{
			Holder: step.Holder, LimitedFor: optionalDuration(step.LimitedFor), Quota: step.Quota,
			PausedFor: optionalDuration(step.PausedFor), Waiting: step.Waiting,
		}
		if step.LimitedAgo >= 0 {
			status.LimitedAgo = durationpb.New(time.Duration(step.LimitedAgo))
		}
		s.Steps = append(s.Steps, status)
	}
	return s
}

func apiBackPressure(p *logpb.BackPressure, clock fsm.Clock) *quotav1.BackPressure {
	if p == nil {
		return nil
	}
	pressure := &quotav1.BackPressure{
		Workflow: p.Workflow, State: workflowState(p.Sequential), Step: p.Step, Quota: p.Quota, Side: quotav1.Side(p.Side), Baton: p.Baton,
	}
	if p.Step != "" {
		pressure.LimitedFor = left(p.UntilNs, clock.Now)
	}
	return pressure
}
