package check

import (
	"fmt"
	"strings"
	"time"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// optional is the text of an optional number.
func optional(n *int64) string {
	if n == nil {
		return "none"
	}
	return fmt.Sprint(*n)
}

func logAskedOfTask(command *logpb.Command) string {
	switch k := command.Kind.(type) {
	case *logpb.Command_BeginTask:
		b := k.BeginTask
		return fmt.Sprintf("begin %s for %s on %q, %d failures, %v, attempt %d", b.Task, b.Holder, b.Quotas, b.MaxFailures,
			time.Duration(b.TtlNs), b.Attempt)
	case *logpb.Command_RenewTask:
		return fmt.Sprintf("renew task %s/%d, %v", k.RenewTask.Task, k.RenewTask.Fence, time.Duration(k.RenewTask.TtlNs))
	case *logpb.Command_EndTask:
		e := k.EndTask
		return fmt.Sprintf("end task %s/%d: %v, wait %s, %q, report %v", e.Task, e.Fence, quotav1.TaskOutcome(e.Outcome), optional(e.WaitNs),
			e.Detail, quotav1.Cause(e.Report))
	case *logpb.Command_RetryTask:
		return "put back " + k.RetryTask.Task
	case *logpb.Command_ForgetTask:
		return "forget " + k.ForgetTask.Task
	}
	return fmt.Sprintf("%T", command.Kind)
}

func apiAskedOfTask(request any) string {
	switch r := request.(type) {
	case *quotav1.BeginTaskRequest:
		return fmt.Sprintf("begin %s for %s on %q, %d failures, %v, attempt %d", r.Task, r.Holder, r.Quotas, r.MaxFailures, r.Ttl.AsDuration(),
			r.Attempt)
	case *quotav1.RenewTaskRequest:
		return fmt.Sprintf("renew task %s/%d, %v", r.Task, r.Fence, r.Ttl.AsDuration())
	case *quotav1.EndTaskRequest:
		var wait *int64
		if r.Wait != nil {
			wait = new(nanos(r.Wait))
		}
		return fmt.Sprintf("end task %s/%d: %v, wait %s, %q, report %v", r.Task, r.Fence, r.Outcome, optional(wait), r.Detail, r.Report)
	case *quotav1.RetryTaskRequest:
		return "put back " + r.Task
	case *quotav1.ForgetTaskRequest:
		return "forget " + r.Task
	}
	return fmt.Sprintf("%T", request)
}

func logAnswerOfTask(result *logpb.Result, now int64) (text string, left time.Duration) {
	if e := result.GetTaskEnded(); e != nil {
		return fmt.Sprintf("%v, %d of %d failures", quotav1.TaskPhase(e.Phase), e.Failures, e.MaxFailures), until(e.NextNs, now)
	}
	b := result.GetTaskBegun()
	if b.Attempt == 0 {
		return "done before", 0
	}
	return fmt.Sprintf("attempt %d/%d, %d of %d failures", b.Attempt, b.Fence, b.Failures, b.MaxFailures), until(b.DeadlineNs, now)
}

func apiAnswerOfTask(response any) (text string, left time.Duration, meta *quotav1.Meta) {
	switch r := response.(type) {
	case *quotav1.EndTaskResponse:
		return fmt.Sprintf("%v, %d of %d failures", r.Phase, r.Failures, r.MaxFailures), r.RetryAfter.AsDuration(), r.Meta
	case *quotav1.RenewTaskResponse:
		return "renewed", r.ExpiresIn.AsDuration(), r.Meta
	case *quotav1.BeginTaskResponse:
		if refusal := r.GetRefusal(); refusal != nil {
			return apiRefused(refusal), 0, r.Meta
		}
		if a := r.GetAttempt(); a != nil {
			return fmt.Sprintf("attempt %d/%d, %d of %d failures", a.Number, a.Fence, a.Failures, a.MaxFailures), a.ExpiresIn.AsDuration(), r.Meta
		}
		return "done before", 0, r.Meta
	}
	return fmt.Sprintf("%T", response), 0, nil
}

// logHappened and apiHappened are the texts of an event.
func logHappened(e *effect.Event) string {
	return happened(int32(e.Kind), e.Quota, e.Holder, e.Lease, e.Fence, e.Ticket, e.Amount, int32(e.Reason), time.Duration(e.Duration)) +
		of(e.Task, int32(e.Outcome), e.Workflow, e.Step)
}

func apiHappened(e *quotav1.Event) string {
	return happened(int32(e.Kind), e.Quota, e.Holder, e.Lease, e.Fence, e.Ticket, e.Amount, int32(e.Reason), e.Duration.AsDuration()) +
		of(e.Task, int32(e.TaskOutcome), e.Workflow, e.Step)
}

func happened(kind int32, quota, holder string, lease, fence, ticket uint64, n int64, reason int32, length time.Duration) string {
	return fmt.Sprintf("%v %q %q %d/%d ticket %d amount %d %v %v",
		quotav1.EventKind(kind), quota, holder, lease, fence, ticket, n, quotav1.Reason(reason), length)
}

// of names the task or workflow of an event.
func of(task string, outcome int32, workflow, step string) string {
	words := ""
	if task != "" {
		words = fmt.Sprintf(" task %q %v", task, quotav1.TaskOutcome(outcome))
	}
	if workflow != "" {
		words += fmt.Sprintf(" workflow %q step %q", workflow, step)
	}
	return strings.TrimSpace(words)
}
