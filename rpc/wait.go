package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// clearWithin bounds how long a call cleans up after its caller stopped waiting.
const clearWithin = 2 * time.Second

// cleanupPause is the first pause before undoing is tried again.
const cleanupPause = 10 * time.Millisecond

// anonymous tells whether a command has no id by which its outcome could be asked for.
func anonymous(command *logpb.Command) bool {
	return command.Session == 0 && command.IdempotencyKey == ""
}

// untilDrain returns a context that also ends when the node drains.
func (s *Server) untilDrain(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.drain, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// reserveThere forwards a Reserve. A wait ends when this node drains, as it does when its caller disconnects. While the memory of this
// node is nearly used up, it holds no waits. They take as much memory here as at the leader, and each node has a mark of its own.
func (s *quotaService) reserveThere( //nolint:revive // the order is that of a method expression of leader
	to leader, ctx context.Context, req *quotav1.ReserveRequest,
) (*quotav1.ReserveResponse, error) {
	if !waits(req) {
		return to.Reserve(ctx, req)
	}
	if s.node.MemoryFull() {
		return to.Reserve(ctx, atOnce(req))
	}
	requestOf(ctx).waited = true
	waitCtx, cancel := s.untilDrain(ctx)
	defer cancel()
	res, err := to.Reserve(waitCtx, req)
	if err != nil && waitCtx.Err() != nil && s.isDraining() {
		return nil, waitStopped(false)
	}
	return res, err
}

// waits tells whether a call waits for quota.
func waits(req *quotav1.ReserveRequest) bool { return req.Wait.AsDuration() > 0 && !req.NoBlock }

// atOnce makes a Reserve that is answered at once: it keeps its place in the queue if its caller can ask again, and otherwise does not
// wait.
func atOnce(req *quotav1.ReserveRequest) *quotav1.ReserveRequest {
	req = proto.CloneOf(req)
	if id := req.RequestId; id.GetSession() != 0 || id.GetIdempotencyKey() != "" {
		req.NoBlock = true
	} else {
		req.Wait = nil
	}
	return req
}

// await waits for the outcome of a Reserve in the queue. If the caller disconnects, a Reserve without a request id leaves the queue; with
// one it stays, and the caller may return and find its place.
func (s *Server) await(
	ctx context.Context, command *logpb.Command, waiting *logpb.Waiting, at raftnode.Position,
) (*logpb.Result, raftnode.Position, error) {
	requestOf(ctx).waited = true
	s.metrics.waiting.Inc()
	defer s.metrics.waiting.Dec()
	s.waits.enter()
	defer s.waits.leave()
	waitCtx, cancel := s.untilDrain(ctx)
	defer cancel()
	result, ended, err := s.node.Await(waitCtx, waiting.Ticket)
	if err == nil {
		return result, ended, nil
	}
	if errors.Is(err, raftnode.ErrNoTicket) && !anonymous(command) {
		again, at, err := s.propose(ctx, command)
		if err == nil && again.GetWaiting() != nil {
			err = &raftnode.UnknownError{Err: errors.New("the request still waits")}
		}
		if refused, ok := errors.AsType[*raftnode.NotAcceptedError](err); ok {
			err = &raftnode.UnknownError{Err: refused} // it was accepted the first time
		}
		return again, at, err
	}
	// Resume ends older leases, whatever happens to the new one.
	left := !anonymous(command) || !s.giveUp(context.WithoutCancel(ctx), waiting.Ticket) || command.GetReserve().GetResume()
	switch {
	case s.isDraining():
		err = waitStopped(!left)
	case !left:
		err = &raftnode.NotAcceptedError{Cause: raftnode.Canceled}
	}
	return nil, at, err
}

// waitStopped is the error of a wait that ended because the node stops. withdrawn says that nothing of it is left.
func waitStopped(withdrawn bool) error {
	if withdrawn {
		return stoppingError()
	}
	return newError("the node is stopping, and the request may still wait in the queue", &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_STOPPING, Hint: "send it to another node with the same request id",
	})
}

// giveUp takes a Reserve whose caller disconnected out of the queue, or releases what it was granted meanwhile. It tells whether nothing
// of it is left.
func (s *Server) giveUp(ctx context.Context, ticket uint64) bool {
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	results, _, err := s.proposeCleanup(ctx, identified(&logpb.Command{Kind: &logpb.Command_Withdraw{
		Withdraw: &logpb.Withdraw{Ticket: ticket},
	}}, nil, requestOf(ctx).who))
	switch {
	case err != nil:
		return false
	case results[0].GetFailure() == nil:
		return true
	}
	result, _, err := s.node.Await(ctx, ticket)
	return err == nil && s.giveBack(ctx, result.GetGranted())
}

// proposeCleanup proposes a command that undoes something of a disconnected caller. That caller is charged for it, and its part of the
// queue may be used up: then it tries again until ctx ends.
func (s *Server) proposeCleanup(ctx context.Context, command *logpb.Command) ([]*logpb.Result, raftnode.Position, error) {
	for pause := cleanupPause; ; pause *= 2 {
		results, at, err := s.node.Propose(ctx, command)
		if refused, ok := errors.AsType[*raftnode.NotAcceptedError](err); !ok || refused.Cause != raftnode.QueueFull {
			return results, at, err
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return results, at, err
		}
	}
}

// giveBack ends a lease that its caller never learned of. It tells whether nothing of it is left: consumed amounts stay, and so do, for a
// while, the slots of a lease that has expired already.
func (s *Server) giveBack(ctx context.Context, granted *logpb.Granted) bool {
	if granted == nil {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, clearWithin)
	defer cancel()
	_, _, err := single(s.proposeCleanup(ctx, identified(&logpb.Command{Kind: &logpb.Command_Release{
		Release: &logpb.Release{Lease: granted.Lease, Fence: granted.Fence},
	}}, nil, requestOf(ctx).who)))
	return err == nil && granted.Consumed == nil
}

// keepSlots extends a lease with slots to the requested length, while its caller is still connected. The result belongs to the state: it
// is copied before it is changed.
func (s *Server) keepSlots(ctx context.Context, result *logpb.Result, req *quotav1.ReserveRequest, r *request) *logpb.Result {
	if result.GetGranted() == nil || req.Consume || ctx.Err() != nil || !s.hasSlots(result.GetGranted()) {
		return result
	}
	result = proto.CloneOf(result)
	granted := result.GetGranted()
	renewed, _, err := s.propose(ctx, identified(&logpb.Command{Kind: &logpb.Command_Renew{
		Renew: &logpb.Renew{Lease: granted.Lease, Fence: granted.Fence},
	}}, nil, r.who))
	if err == nil {
		old := granted.DeadlineNs
		granted.DeadlineNs = renewed.GetRenewed().GetDeadlineNs()
		for _, item := range granted.Items {
			if item.UntilNs == old { // an item that ends with its window still does
				item.UntilNs = granted.DeadlineNs
			}
		}
	}
	return result
}

func (s *Server) hasSlots(granted *logpb.Granted) (slots bool) {
	_ = s.node.Read(context.Background(), raftnode.Stale, func(state *fsm.State, clock fsm.Clock, _ raftnode.Position) {
		for _, item := range granted.Items {
			if q, ok := state.Quota(item.Quota, clock); ok && q.Definition.GetSlots() != nil {
				slots = true
			}
		}
	})
	return slots
}
