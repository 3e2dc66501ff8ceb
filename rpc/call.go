package rpc

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// Headers of our own.
const (
	// HeaderForwarded marks a call that another node handed on; it is not handed on again.
	HeaderForwarded = "Quotad-Forwarded-By"
	// HeaderCaller says on a forwarded call for which address it came, after the forwarding member's proof of that.
	HeaderCaller = "Quotad-Caller"
	// HeaderNoForward asks a node that does not lead to say who does, in place of handing the call on.
	HeaderNoForward = "Quotad-No-Forward"
	// HeaderRefusalStatus, with the value 429, asks for refusals as errors with HTTP status 429 and Retry-After.
	HeaderRefusalStatus = "Quotad-Refusal-Status"
)

// holdForLeader is how long a call waits for a leader to be known.
const holdForLeader = 2 * time.Second

// request is what a handler needs to know besides the message.
type request struct {
	who *caller
	// received is when this attempt came in, on the monotonic clock.
	received time.Time
	header   http.Header
	// budget names whose budgets the call is charged to.
	budget string
	// turn is the call's use of the processor; nil in calls within this process.
	turn *processor.Call
	// answer is written to; nil where turn is.
	answer *answerWriter
	// room is what the request takes of the budget of request bytes; nil in calls within this process.
	room *requestBytes
	// waited is set where the call waits for quota.
	waited bool
}

type requestKey struct{}

func requestOf(ctx context.Context) *request {
	if r, ok := ctx.Value(requestKey{}).(*request); ok {
		return r
	}
	return &request{who: &caller{ceiling: -1, account: addressAccount + "unknown"}, received: time.Now(), header: http.Header{}}
}

// call checks a request, carries it out here if this node leads, and hands it on to the leader otherwise. It is the one
// place where calls are handed on, and it does so once: a call that came from another node is not handed on again.
func call[Req, Res proto.Message](
	ctx context.Context, s *Server, verb Verb, req Req,
	local func(context.Context, *request, Req) (Res, error),
	remote func(leader, context.Context, Req) (Res, error),
) (Res, error) {
	var none Res
	r := requestOf(ctx)
	if err := r.who.may(verb); err != nil {
		return none, err
	}
	if err := validate(req); err != nil {
		return none, err
	}
	if err := s.reserveAnswer(ctx, r, req); err != nil {
		return none, apiError(err)
	}
	hold := holdUntil(ctx)
	var away *unreachableError
	for {
		if _, _, self := s.node.Leader(); self || remote == nil {
			res, err := local(ctx, r, req)
			if !isNotLeader(err) || r.final() || !time.Now().Before(hold) {
				s.metrics.queueFull(err)
				return res, apiError(err)
			}
		} else if r.final() {
			return none, s.noLeader()
		} else if res, tried, err := forward(ctx, s, r, req, remote); tried && (verb != VerbRead || !outcomeUnknown(err)) {
			return res, apiError(err)
		} else if away = unreachable(err); away != nil && away.lasting {
			return none, s.notForwarded(away)
		} else if errors.Is(err, errLeaderReplaced) {
			hold = holdUntil(ctx) // there is another leader to ask
		}
		if !s.pauseForLeader(ctx, hold) {
			return none, s.notForwarded(away)
		}
	}
}

// holdUntil says until when a call waits for a leader: never so long that the caller gives up first, and does not know then
// that nothing happened.
func holdUntil(ctx context.Context) time.Time {
	hold := holdForLeader
	if deadline, ok := ctx.Deadline(); ok {
		hold = min(hold, time.Until(deadline)*3/4)
	}
	return time.Now().Add(hold)
}

// final tells whether a call is not to be handed on.
func (r *request) final() bool {
	return r.header.Get(HeaderForwarded) != "" || r.header.Get(HeaderNoForward) != ""
}

// forward hands a call on to the leader. tried is false where it was certainly not sent; then the error, if any, says why.
func forward[Req, Res proto.Message](
	ctx context.Context, s *Server, r *request, req Req, remote func(leader, context.Context, Req) (Res, error),
) (res Res, tried bool, err error) {
	id, address, self := s.node.Leader()
	if address == "" || self || id == s.node.ID() {
		return res, false, nil
	}
	if failure, known := s.reach.lately(address, reachAgain); known && failure != nil && failure.lasting {
		s.metrics.forwardFailures.Inc()
		return res, false, failure
	}
	ctx, sent := tracked(ctx)
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set(HeaderForwarded, s.node.ID())
	for _, name := range []string{"Authorization", HeaderRefusalStatus} {
		if value := r.header.Get(name); value != "" {
			info.RequestHeader().Set(name, value)
		}
	}
	if r.who.sharesAddress() { // a token the leader identifies itself
		info.RequestHeader().Set(HeaderCaller, s.node.Vouch(r.who.account)+" "+r.who.account)
	}
	s.metrics.forwarded.Inc()
	r.turn.ChargeForward()
	there, release := s.followers.follow(ctx, id)
	defer release()
	res, err = remote(s.leaders.at(address), there, req)
	switch {
	case err == nil:
		s.reached(id, address)
		return res, true, nil
	case !sent.Load():
		s.metrics.forwardFailures.Inc()
		if ctx.Err() != nil {
			return res, false, ctx.Err() // it may be the caller's haste alone
		}
		if errors.Is(context.Cause(there), errLeaderReplaced) {
			return res, false, errLeaderReplaced
		}
		return res, false, s.notReached(id, address, err)
	case errors.Is(context.Cause(there), errLeaderReplaced) && ctx.Err() == nil:
		return res, true, &raftnode.UnknownError{Err: errLeaderReplaced}
	case ctx.Err() != nil: // the leader, whose part ends too, may have answered differently
		return res, true, nodeError(ctx.Err())
	case isNotLeader(err):
		return res, false, nil
	case infoOf(err) != nil:
		return res, true, handedOn(err)
	}
	var connectErr *connect.Error
	if errors.As(err, &connectErr) && connect.IsWireError(err) && connectErr.Code() != connect.CodeUnavailable {
		return res, true, err
	}
	return res, true, nodeError(&raftnode.UnknownError{Err: errors.New("the leader did not answer")})
}

// handedOn makes an error of the leader one of this node: headers of an answer do not travel by themselves.
func handedOn(err error) error {
	info := infoOf(err)
	again := connect.NewError(connect.CodeOf(err), errors.New(messageOf(err)))
	if detail, detailErr := connect.NewErrorDetail(info); detailErr == nil {
		again.AddDetail(detail)
	}
	if info.RetryAfter != nil && (info.Reason < quotav1.Reason_REASON_INVALID || ofBudget(info.Reason)) {
		setRetryAfter(again.Meta(), info.RetryAfter.AsDuration())
	}
	setStatus(again, info)
	return again
}

func messageOf(err error) string {
	if connectErr, ok := errors.AsType[*connect.Error](err); ok {
		return connectErr.Message()
	}
	return err.Error()
}

// unreachable returns why a call could not be sent, nil where that is not why.
func unreachable(err error) *unreachableError {
	failure, _ := errors.AsType[*unreachableError](err)
	return failure
}

// isNotLeader tells whether an error says that nothing was accepted because a leader is missing.
func isNotLeader(err error) bool {
	if notAccepted, ok := errors.AsType[*raftnode.NotAcceptedError](err); ok {
		return notAccepted.Cause == raftnode.NotLeader || notAccepted.Cause == raftnode.NotReady
	}
	info := infoOf(err)
	return info != nil && info.NotAccepted && info.Reason == quotav1.Reason_REASON_NO_LEADER
}

// outcomeUnknown tells whether nobody knows what became of a call. One that only looks may then simply be made again.
func outcomeUnknown(err error) bool {
	if errors.Is(err, errLeaderReplaced) {
		return true
	}
	info := infoOf(err)
	return info != nil && info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME
}

// pauseForLeader waits a little for a leader to be known. It returns false where that takes too long.
func (s *Server) pauseForLeader(ctx context.Context, until time.Time) bool {
	if !time.Now().Before(until) {
		return false
	}
	timer := time.NewTimer(10*time.Millisecond + rand.N(30*time.Millisecond))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-s.drain.Done():
		return false
	}
}

func (s *Server) noLeader() error {
	if s.isDraining() {
		return stoppingError()
	}
	id, address, _ := s.node.Leader()
	return notAcceptedError(&raftnode.NotAcceptedError{Cause: raftnode.NotLeader, Leader: id, LeaderAPIAddress: address})
}

// notForwarded is noLeader where a leader is known but could not be called: nothing was sent, and the caller may ask the leader itself,
// or another node.
func (s *Server) notForwarded(why *unreachableError) error {
	if why == nil || s.isDraining() {
		return s.noLeader()
	}
	id, address, _ := s.node.Leader()
	return newError("this node does not lead and cannot forward: "+why.message, &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_NO_LEADER, NotAccepted: true, Leader: id, LeaderAddress: address,
		Hint: "ask the leader or another node; for the operator: " + why.hint, RetryAfter: durationpb.New(retrySoon),
	})
}

func apiError(err error) error {
	if err == nil {
		return nil
	}
	return nodeError(err)
}

// meta makes an answer's Meta.
func (s *Server) meta(r *request, at raftnode.Position) *quotav1.Meta {
	return &quotav1.Meta{
		Term: at.Term, Index: at.Index, ClusterTime: durationpb.New(time.Duration(at.ClusterTime)),
		ServedIn: durationpb.New(time.Since(r.received)), Node: s.node.ID(),
	}
}

// leader is a client for the node that leads.
type leader struct {
	quotav1connect.QuotaServiceClient
	quotav1connect.AdminServiceClient
	quotav1connect.TaskServiceClient
}

// leaders keeps a client for each address that led.
type leaders struct {
	// http speaks to other nodes' APIs; whether with TLS is a matter of dialer, which makes its connections.
	http   *http.Client
	dialer *apiDialer

	mu sync.Mutex
	of map[string]leader
}

func (l *leaders) at(address string) leader {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known, ok := l.of[address]; ok {
		return known
	}
	base := "http://" + address
	made := leader{
		quotav1connect.NewQuotaServiceClient(l.http, base), quotav1connect.NewAdminServiceClient(l.http, base), quotav1connect.NewTaskServiceClient(l.http, base),
	}
	l.of[address] = made
	return made
}
