package check

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Some checkers need the API's messages, not only their texts. These functions convert the proposals and results of simulated clients, with
// the fields that such checkers read.

func simulatedRequest(command *logpb.Command) proto.Message {
	switch k := command.Kind.(type) {
	case *logpb.Command_Reserve:
		request := &quotav1.ReserveRequest{Holder: k.Reserve.Holder}
		if k.Reserve.WaitNs > 0 {
			request.Wait = durationpb.New(time.Duration(k.Reserve.WaitNs))
		}
		return request
	case *logpb.Command_BeginTask:
		return &quotav1.BeginTaskRequest{Task: k.BeginTask.Task, Holder: k.BeginTask.Holder, Attempt: k.BeginTask.Attempt}
	case *logpb.Command_RenewTask:
		return &quotav1.RenewTaskRequest{Task: k.RenewTask.Task, Fence: k.RenewTask.Fence}
	case *logpb.Command_EndTask:
		return &quotav1.EndTaskRequest{Task: k.EndTask.Task, Fence: k.EndTask.Fence, Outcome: quotav1.TaskOutcome(k.EndTask.Outcome)}
	case *logpb.Command_RetryTask:
		return &quotav1.RetryTaskRequest{Task: k.RetryTask.Task}
	case *logpb.Command_ForgetTask:
		return &quotav1.ForgetTaskRequest{Task: k.ForgetTask.Task}
	}
	return nil
}

func simulatedResponse(command *logpb.Command, result *logpb.Result, now int64) proto.Message {
	switch command.Kind.(type) {
	case *logpb.Command_Reserve:
		return simulatedReserved(result, now)
	case *logpb.Command_BeginTask:
		return simulatedBegun(result, now)
	case *logpb.Command_RenewTask:
		if renewed := result.GetRenewed(); renewed != nil {
			return &quotav1.RenewTaskResponse{ExpiresIn: durationpb.New(until(renewed.DeadlineNs, now))}
		}
	case *logpb.Command_EndTask:
		if ended := result.GetTaskEnded(); ended != nil {
			return &quotav1.EndTaskResponse{Phase: quotav1.TaskPhase(ended.Phase), Failures: ended.Failures, MaxFailures: ended.MaxFailures}
		}
	}
	return nil
}

func simulatedReserved(result *logpb.Result, now int64) proto.Message {
	switch k := result.Kind.(type) {
	case *logpb.Result_Granted:
		lease := &quotav1.Lease{
			Id: k.Granted.Lease, Fence: k.Granted.Fence, Class: quotav1.Class(k.Granted.Class + 1),
			ExpiresIn: durationpb.New(until(k.Granted.DeadlineNs, now)),
		}
		for _, item := range k.Granted.Items {
			lease.Items = append(lease.Items, &quotav1.GrantedItem{Quota: item.Quota, Amount: item.Amount})
		}
		return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Lease{Lease: lease}}
	case *logpb.Result_Waiting:
		waiting := &quotav1.Waiting{Ticket: k.Waiting.Ticket, EndsIn: durationpb.New(until(k.Waiting.UntilNs, now))}
		return &quotav1.ReserveResponse{Outcome: &quotav1.ReserveResponse_Waiting{Waiting: waiting}}
	}
	return nil
}

func simulatedBegun(result *logpb.Result, now int64) proto.Message {
	answer := &quotav1.BeginTaskResponse{}
	switch k := result.Kind.(type) {
	case *logpb.Result_Refusal:
		answer.Outcome = &quotav1.BeginTaskResponse_Refusal{Refusal: &quotav1.Refusal{Reason: quotav1.Reason(k.Refusal.Reason)}}
	case *logpb.Result_TaskBegun:
		if k.TaskBegun.Attempt == 0 {
			answer.Outcome = &quotav1.BeginTaskResponse_Done{Done: true}
			break
		}
		answer.Outcome = &quotav1.BeginTaskResponse_Attempt{Attempt: &quotav1.Attempt{
			Number: k.TaskBegun.Attempt, Fence: k.TaskBegun.Fence, Failures: k.TaskBegun.Failures, MaxFailures: k.TaskBegun.MaxFailures,
			ExpiresIn: durationpb.New(until(k.TaskBegun.DeadlineNs, now)),
		}}
	}
	return answer
}

// message is the API's message of a simulated stream.
func (s *SimulatedSeen) message() *quotav1.WatchResponse {
	message := &quotav1.WatchResponse{Meta: &quotav1.Meta{Index: s.Index}}
	for i := range s.Events {
		e := &s.Events[i]
		message.Events = append(message.Events, &quotav1.Event{
			Kind: quotav1.EventKind(e.Kind), Quota: e.Quota, Holder: e.Holder, Lease: e.Lease, Fence: e.Fence, Ticket: e.Ticket,
			Amount: e.Amount, Reason: quotav1.Reason(e.Reason), Duration: durationpb.New(time.Duration(e.Duration)), Task: e.Task,
			TaskOutcome: quotav1.TaskOutcome(e.Outcome), Workflow: e.Workflow, Step: e.Step,
		})
	}
	return message
}
