package rpc

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/rpc/quotav1"
)

// bookmarkEvery is how often a watcher hears how far the log is while nothing that it wants happens.
const bookmarkEvery = time.Second

// maxEventsTold bounds the events of one response, however many an entry has, and however long their names are: 8,192 of up to
// 700 bytes are below 6 MiB.
const maxEventsTold = 8192

// Watch implements QuotaService. Any node serves it, from what it has applied.
func (s *quotaService) Watch(ctx context.Context, req *quotav1.WatchRequest, stream *connect.ServerStream[quotav1.WatchResponse]) error {
	r := requestOf(ctx)
	if err := r.who.may(VerbRead); err != nil {
		return err
	}
	if err := validate(req); err != nil {
		return err
	}
	subscription, err := s.node.Watch(req.FromIndex)
	if err != nil {
		return apiError(err)
	}
	defer subscription.Close()
	ctx, cancel := s.untilDrain(ctx)
	defer cancel()
	if err := stream.Send(nil); err != nil { // headers: the subscription stands
		return err
	}
	told := time.Now()
	for {
		at, events, err := subscription.Next(ctx)
		switch {
		case err != nil && s.isDraining():
			return stoppingError()
		case err != nil:
			return apiError(err)
		}
		res := &quotav1.WatchResponse{Meta: s.meta(r, at)}
		for i := range events {
			if !wanted(&events[i], req, r.who) {
				continue
			}
			if len(res.Events) == maxEventsTold {
				res.More = true
				if err := stream.Send(res); err != nil {
					return err
				}
				if s.isDraining() {
					return stoppingError()
				}
				res = &quotav1.WatchResponse{Meta: res.Meta}
			}
			res.Events = append(res.Events, apiEvent(&events[i]))
		}
		if len(events) > 0 && len(res.Events) == 0 && time.Since(told) < bookmarkEvery {
			continue
		}
		if err := stream.Send(res); err != nil {
			return err
		}
		told = time.Now()
	}
}

// wanted tells whether an event fits a filter, and its caller may see it.
func wanted(e *fsm.Event, req *quotav1.WatchRequest, who *caller) bool {
	return (req.QuotaPrefix == "" || strings.HasPrefix(e.Quota, req.QuotaPrefix)) &&
		(req.Holder == "" || e.Holder == req.Holder) &&
		(e.Holder == "" || who.mayActFor(e.Holder) == nil)
}

func apiEvent(e *fsm.Event) *quotav1.Event {
	event := &quotav1.Event{
		Kind: quotav1.EventKind(e.Kind), Quota: e.Quota, Holder: e.Holder, Lease: e.Lease, Fence: e.Fence,
		Ticket: e.Ticket, Amount: e.Amount, Reason: quotav1.Reason(e.Reason), Task: e.Task, TaskOutcome: quotav1.TaskOutcome(e.Outcome),
		Workflow: e.Workflow, Step: e.Step,
	}
	if e.Duration != 0 {
		event.Duration = durationpb.New(time.Duration(e.Duration))
	}
	return event
}
