package rpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
)

// bookmarkEvery is how often a watcher learns the position in the log while no event matches its filter.
const bookmarkEvery = time.Second

// maxEventsSent bounds the events of one response, whatever their number in an entry and the length of their names: 1,024 of up to 700
// bytes are below 1 MiB.
const maxEventsSent = 1024

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
	if err := stream.Send(nil); err != nil { // headers: the subscription exists
		return err
	}
	w := watching{r: r, send: stream.Send, sent: time.Now()}
	return s.tell(ctx, &w, req, subscription)
}

// tell sends the events that match the request until the stream ends.
func (s *Server) tell(ctx context.Context, w *watching, req *quotav1.WatchRequest, subscription *raftnode.Subscription) error {
	ctx, cancel := s.untilDrain(ctx)
	defer cancel()
	for {
		at, events, err := w.next(ctx, subscription)
		switch {
		case err != nil && s.isDraining():
			return stoppingError()
		case err != nil:
			return apiError(err)
		}
		res := &quotav1.WatchResponse{Meta: s.meta(w.r, at)}
		for i := range events {
			if !wanted(&events[i], req, w.r.who) {
				continue
			}
			if len(res.Events) == maxEventsSent {
				res.More = true
				if err := w.send(res); err != nil {
					return err
				}
				if s.isDraining() {
					return stoppingError()
				}
				res = &quotav1.WatchResponse{Meta: res.Meta}
			}
			res.Events = append(res.Events, apiEvent(&events[i]))
		}
		if len(events) > 0 && len(res.Events) == 0 && time.Since(w.sent) < bookmarkEvery {
			continue
		}
		if err := w.send(res); err != nil {
			return err
		}
		w.sent = time.Now()
	}
}

// watching is a stream of events.
type watching struct {
	r *request
	// send sends one response.
	send func(*quotav1.WatchResponse) error
	// sent is when the last response was sent.
	sent time.Time
	// gathered is how many entries' events were taken together.
	gathered int
}

// maxGathered is how many entries' events are sent with one write: a stream that lags must not keep a processor to itself.
const maxGathered = 64

// next returns the next entry's events when it is the caller's turn. Events until then are sent with one write: on a busy node a stream
// is later, and cheaper. A stream that falls too far behind ends, as one that is read too slowly does.
func (w *watching) next(ctx context.Context, from *raftnode.Subscription) (raftnode.Position, []effect.Event, error) {
	if w.gathered++; w.gathered < maxGathered && from.More() {
		w.gather(true)
		return from.Next(ctx)
	}
	w.gather(false)
	w.gathered = 0
	at, events, err := from.Next(ctx)
	for err == nil {
		err = w.r.share.Wait(ctx)
		if _, busy := errors.AsType[*processor.BusyError](err); !busy {
			break
		}
		err = nil
	}
	return at, events, err
}

// gather buffers what is sent, until gather(false) sends it.
func (w *watching) gather(on bool) {
	answer := w.r.answer
	if answer == nil || answer.gathering == on {
		return
	}
	answer.gathering = on
	if !on {
		answer.Flush()
	}
}

// wanted tells whether an event matches a filter and its caller may see it.
func wanted(e *effect.Event, req *quotav1.WatchRequest, who *caller) bool {
	return (req.QuotaPrefix == "" || strings.HasPrefix(e.Quota, req.QuotaPrefix)) &&
		(req.Holder == "" || e.Holder == req.Holder) &&
		(e.Holder == "" || who.covers(e.Holder))
}

func apiEvent(e *effect.Event) *quotav1.Event {
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
