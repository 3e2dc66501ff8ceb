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

// Headers of quotad.
const (
	// HeaderForwarded marks a call that another node forwarded; it is not forwarded again.
	HeaderForwarded = "Quotad-Forwarded-By"
	// HeaderCaller names the account of the address that a forwarded call came from, after the forwarding member's proof of it.
	HeaderCaller = "Quotad-Caller"
	// HeaderNoForward asks a node that does not lead to name the leader instead of forwarding the call.
	HeaderNoForward = "Quotad-No-Forward"
	// HeaderRefusalStatus, with the value 429, asks for refusals as errors with HTTP status 429 and Retry-After.
	HeaderRefusalStatus = "Quotad-Refusal-Status"
)

// holdForLeader bounds how long a call waits until a leader is known.
const holdForLeader = 2 * time.Second

// request is what a handler needs to know apart from the message.
type request struct {
	who *caller
	// received is when this attempt arrived, on the monotonic clock.
	received time.Time
	header   http.Header
	// budget names the account that pays for the call.
	budget string
	// share is the call's use of the processor; nil in calls within this process.
	share *processor.Call
	// answer is the writer of the answer; nil where turn is nil.
	answer *answerWriter
	// room is the request's part of the budget of request bytes; nil in calls within this process.
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

// call checks a request, then executes it here if this node leads and forwards it to the leader otherwise. All calls are forwarded here,
// once: a call from another node is not forwarded again.
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
			hold = holdUntil(ctx) // wait for the new leader
		}
		if !s.pauseForLeader(ctx, hold) {
			return none, s.notForwarded(away)
		}
	}
}

// holdUntil returns the time until which a call waits for a leader. It is before the caller's deadline, so that the caller still learns
// that nothing happened.
func holdUntil(ctx context.Context) time.Time {
	hold := holdForLeader
	if deadline, ok := ctx.Deadline(); ok {
		hold = min(hold, time.Until(deadline)*3/4)
	}
	return time.Now().Add(hold)
}

// final tells whether a call must not be forwarded.
func (r *request) final() bool {
	return r.header.Get(HeaderForwarded) != "" || r.header.Get(HeaderNoForward) != ""
}

// forward forwards a call to the leader. tried is false where the call certainly had no effect; then the error, if any, says why it was
// not sent.
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
	statement := tokenAccount // the leader identifies the token itself
	if r.who.sharesAddress() {
		statement = r.who.account
	}
	info.RequestHeader().Set(HeaderCaller, s.node.Attest(statement)+" "+statement)
	s.metrics.forwarded.Inc()
	r.share.ChargeForward()
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
			return res, false, ctx.Err() // the caller's deadline or cancellation says nothing about the leader
		}
		if errors.Is(context.Cause(there), errLeaderReplaced) {
			return res, false, errLeaderReplaced
		}
		return res, false, s.notReached(id, address, err)
	case errors.Is(context.Cause(there), errLeaderReplaced) && ctx.Err() == nil:
		return res, true, &raftnode.UnknownError{Err: errLeaderReplaced}
	case ctx.Err() != nil: // the leader's part ends too, and its answer may differ
		return res, true, nodeError(ctx.Err())
	case isNotLeader(err):
		return res, false, nil
	case infoOf(err) != nil:
		return res, true, forwardedError(err)
	}
	var connectErr *connect.Error
	if errors.As(err, &connectErr) && connect.IsWireError(err) && connectErr.Code() != connect.CodeUnavailable {
		return res, true, err
	}
	return res, true, nodeError(&raftnode.UnknownError{Err: errors.New("the leader did not answer")})
}

// forwardedError converts an error of the leader to one of this node. It sets headers again, because forwarding does not copy them.
func forwardedError(err error) error {
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

// unreachable returns why a call could not be sent, and nil for other errors.
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

// outcomeUnknown tells whether the outcome of a call is unknown. A read may then be repeated.
func outcomeUnknown(err error) bool {
	if errors.Is(err, errLeaderReplaced) {
		return true
	}
	info := infoOf(err)
	return info != nil && info.Reason == quotav1.Reason_REASON_UNKNOWN_OUTCOME
}

// pauseForLeader waits a moment for a leader to be known. It returns false where the call must not wait any longer.
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
	// http calls other nodes' APIs. dialer makes its connections, with or without TLS.
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
		quotav1connect.NewQuotaServiceClient(l.http, base), quotav1connect.NewAdminServiceClient(l.http, base),
		quotav1connect.NewTaskServiceClient(l.http, base),
	}
	l.of[address] = made
	return made
}
