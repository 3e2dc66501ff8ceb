package check

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/rpc/quotav1"
)

// Checkers that look at more than words look at the API's messages. Of what a simulated client proposed, and was told, these
// have what such checkers want to know.

func simulatedRequest(command *logpb.Command) proto.Message {
	if ask := command.GetReserve(); ask != nil {
		request := &quotav1.ReserveRequest{Holder: ask.Holder}
		if ask.WaitNs > 0 {
			request.Wait = durationpb.New(until(ask.WaitNs, 0))
		}
		return request
	}
	return nil
}

func simulatedResponse(command *logpb.Command, result *logpb.Result, now int64) proto.Message {
	if command.GetReserve() == nil {
		return nil
	}
	switch k := result.Kind.(type) {
	case *logpb.Result_Granted:
		lease := &quotav1.Lease{
			Id: k.Granted.Lease, Fence: k.Granted.Fence, Class: quotav1.Class(k.Granted.Class + 1), ExpiresIn: durationpb.New(until(k.Granted.DeadlineNs, now)),
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

// message is what a stream told, as the API tells it.
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
