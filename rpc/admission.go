package rpc

import (
	"context"
	"errors"
	"net/http"
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// ofHolding are calls about something that is already held. A part of the budget admits them when calls that take more find no room.
var ofHolding = map[string]bool{
	quotav1connect.QuotaServiceConsumeProcedure: true, quotav1connect.QuotaServiceSettleProcedure: true,
	quotav1connect.QuotaServiceReleaseProcedure: true, quotav1connect.QuotaServiceRenewProcedure: true,
	quotav1connect.QuotaServiceWithdrawProcedure: true, quotav1connect.QuotaServiceReportProcedure: true,
	quotav1connect.QuotaServiceCloseSessionProcedure: true, quotav1connect.AdminServiceGetStatusProcedure: true,
	quotav1connect.TaskServiceRenewTaskProcedure: true, quotav1connect.TaskServiceEndTaskProcedure: true,
}

// ofOperators are the calls that need an operator's verb. Without tokens, the call alone tells an operator from other callers.
var ofOperators = map[string]bool{
	quotav1connect.AdminServiceApplyQuotasProcedure: true, quotav1connect.AdminServiceDeleteQuotaProcedure: true,
	quotav1connect.AdminServiceDeleteWorkflowProcedure: true, quotav1connect.AdminServiceRevokeLeaseProcedure: true,
	quotav1connect.AdminServiceReopenQuotaProcedure: true, quotav1connect.AdminServiceResetClockProcedure: true,
	quotav1connect.AdminServiceOverrideQuotaProcedure: true, quotav1connect.AdminServiceSetLimitsProcedure: true,
	quotav1connect.AdminServiceAddMemberProcedure: true, quotav1connect.AdminServicePromoteMemberProcedure: true,
	quotav1connect.AdminServiceRemoveMemberProcedure: true, quotav1connect.AdminServiceTransferLeadershipProcedure: true,
	quotav1connect.AdminServiceBackupProcedure: true, quotav1connect.AdminServiceRestoreProcedure: true,
	quotav1connect.AdminServiceGetStateHashProcedure: true, quotav1connect.AdminServiceDumpLogProcedure: true,
	quotav1connect.AdminServiceSetFaultProcedure: true,
	quotav1connect.TaskServiceRetryTaskProcedure: true, quotav1connect.TaskServiceForgetTaskProcedure: true,
}

// takesMore are the calls in which an operator counts as an ordinary caller.
var takesMore = map[string]bool{
	quotav1connect.QuotaServiceReserveProcedure: true, quotav1connect.QuotaServiceBatchProcedure: true,
	quotav1connect.TaskServiceBeginTaskProcedure: true,
}

// mayUseOperatorsPart tells whether a call may use the part of the budgets that is kept for operators.
func mayUseOperatorsPart(who *caller, procedure string) bool {
	if who.id == "" {
		return ofOperators[procedure]
	}
	return slices.ContainsFunc(who.verbs, isOperators) && !takesMore[procedure]
}

// enter takes a call's place in the budgets of a port; leave returns it.
func (b *portBudgets) enter(key, procedure string, operator, stream bool) (leave func(), refused *budget.FullError) {
	first, then := b.calls, (*budget.Budget)(nil)
	if stream {
		first = b.streams
	} else if ofHolding[procedure] {
		then = b.holding
	}
	refused = first.Take(key, 1, operator)
	if refused == nil {
		return func() { first.Give(key, 1) }, nil
	}
	if then != nil && then.Take(key, 1, operator) == nil {
		return func() { then.Give(key, 1) }, nil
	}
	return nil, refused
}

// admitted serves calls of known callers that have room and get their turn. It checks all of that before it reads a byte of the body. So
// a caller without a token, or with too much in flight, costs the node no unpacking or decoding.
func (s *Server) admitted(b *portBudgets, procedure string, stream bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, share, leave, err := s.admit(b, procedure, stream, r)
		defer share.Leave()
		if err != nil {
			s.metrics.call(procedure, err, 0)
			s.refuseQueued(b, share, w, r, err)
			return
		}
		defer leave()
		if err := share.Wait(ctx); err != nil {
			err = s.refusedShare(err)
			s.metrics.call(procedure, err, 0)
			_ = s.errors.Write(w, r, err)
			return
		}
		known := requestOf(ctx)
		known.room = s.roomOf(known, procedure)
		defer known.room.giveBack()
		known.answer = charge(share, known.room, w, r)
		plain, err := s.receive(known.room, procedure, r)
		if err != nil {
			s.metrics.call(procedure, err, 0)
			_ = s.errors.Write(w, r, err)
			return
		}
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		next.ServeHTTP(w, plain.WithContext(ctx))
	})
}

// roomOf starts a call's account of request bytes, at zero.
func (s *Server) roomOf(known *request, procedure string) *requestBytes {
	return &requestBytes{
		from: s.requestBytes, account: known.budget, operator: mayUseOperatorsPart(known.who, procedure),
		refused: s.overBudget, share: known.share,
	}
}

// receive takes room for a body of known length before it reads any of it. It returns the request with its messages unpacked.
func (s *Server) receive(room *requestBytes, procedure string, r *http.Request) (*http.Request, error) {
	longest := longestMessage(procedure)
	if err := room.require(min(max(r.ContentLength, 0), longest)); err != nil {
		return nil, err
	}
	return unpacked(r, room, longest)
}

// admit identifies the caller and takes the room that the call needs.
func (s *Server) admit(b *portBudgets, procedure string, stream bool, r *http.Request) (context.Context, *processor.Call, func(), error) {
	ctx, err := s.identify(r.Context(), r.Header, r.RemoteAddr)
	if err != nil {
		return nil, s.shareOfAddress(b, r), nil, err
	}
	known := requestOf(ctx)
	operator := mayUseOperatorsPart(known.who, procedure)
	known.share = s.shareOf(known.budget, procedure, operator, stream)
	if s.refusing.Load() && procedure != quotav1connect.AdminServiceGetStatusProcedure {
		return nil, known.share, nil, stoppingError()
	}
	if c := connectionOf(ctx); c != nil && !c.isAdmitted() {
		account, always := known.budget, operator
		if _, member := s.attested(ctx, r.Header, r.RemoteAddr); member != "" { // it carries the calls of many callers
			account, always = memberAccount+member, true
		}
		if refused := c.admit(account, always); refused != nil {
			return nil, known.share, nil, s.overBudget(refused)
		}
	}
	leave, refused := b.enter(known.budget, procedure, operator, stream)
	if refused != nil {
		return nil, known.share, nil, s.overBudget(refused)
	}
	return ctx, known.share, leave, nil
}

// shareOf starts a caller's use of the processor. Operators never wait for a turn.
func (s *Server) shareOf(account, procedure string, operator, stream bool) *processor.Call {
	switch {
	case operator:
		return s.shares.EnterOperator()
	case stream:
		return s.shares.Enter(account, processor.Streaming)
	case ofHolding[procedure]:
		return s.shares.Enter(account, processor.Holding)
	}
	return s.shares.Enter(account, processor.Taking)
}

// shareOfAddress starts the use of the processor for a caller without a known token. At the operators' port such callers do not share
// turns with those of the API port.
func (s *Server) shareOfAddress(b *portBudgets, r *http.Request) *processor.Call {
	if b.ownShares {
		return nil
	}
	if s.config.Tokens != nil {
		return s.shares.EnterAnonymous()
	}
	return s.shares.Enter(accountOfAddress(r.RemoteAddr), processor.Taking)
}

// charge charges what a call reads and writes to its caller; room, if not nil, is charged for reads too. It returns the writer of the
// answer.
func charge(share *processor.Call, room *requestBytes, w http.ResponseWriter, r *http.Request) *answerWriter {
	answer, _ := w.(*answerWriter)
	if answer != nil {
		answer.share = share
	}
	if body, ok := r.Body.(*boundedBody); ok {
		body.room, body.declared = room, r.ContentLength
	}
	return answer
}

// refusedShare counts a call that did not get its turn, and makes its error.
func (s *Server) refusedShare(err error) error {
	busy, ok := errors.AsType[*processor.BusyError](err)
	if !ok {
		return apiError(&raftnode.NotAcceptedError{Cause: raftnode.Canceled})
	}
	s.metrics.overspent.WithLabelValues(processor.Name, "caller").Inc()
	return newError(busy.Error(), &quotav1.ErrorInfo{
		Reason: quotav1.Reason_REASON_CALLER_BUDGET, Budget: processor.Name, NotAccepted: true,
		Hint: "send batches, call less often, or retry later", RetryAfter: durationpb.New(busy.RetryAfter),
	})
}

// refuseQueued refuses a request when it is its caller's turn: a caller that repeats a refused request at once waits as long as for a
// served one. Where too many refusals wait already, the answer closes the connection.
func (s *Server) refuseQueued(b *portBudgets, share *processor.Call, w http.ResponseWriter, r *http.Request, err error) {
	s.awaitRefusal(b, share, w, r)
	_ = s.errors.Write(w, r, err)
}

// awaitRefusal waits for the turn of a refusal. Meanwhile the connection may be closed for a new one.
func (s *Server) awaitRefusal(b *portBudgets, share *processor.Call, w http.ResponseWriter, r *http.Request) {
	if c := connectionOf(r.Context()); c != nil {
		defer c.yield()()
	}
	key := accountOfAddress(r.RemoteAddr)
	if full := b.refusals.Take(key, 1, false); full == nil {
		_ = share.Wait(r.Context()) // the request is refused in any case
		b.refusals.Give(key, 1)
	} else {
		w.Header().Set("Connection", "close")
	}
}

// shareOfVisit starts the use of the processor for a request that needs no token. An operator's token gives it an operator's turn.
func (s *Server) shareOfVisit(b *portBudgets, r *http.Request) *processor.Call {
	if header := r.Header.Get("Authorization"); header != "" && s.config.Tokens != nil {
		if who, err := s.config.Tokens.identify(header); err == nil && slices.ContainsFunc(who.verbs, isOperators) {
			return s.shares.EnterOperator()
		}
	}
	return s.shareOfAddress(b, r)
}

// judged serves health and metrics: bounded in total and per address, but without turns. The answers are computed at most once a second,
// and a check of the node's health must not depend on the load of other callers.
func (s *Server) judged(b *portBudgets, from *budget.Budget, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := accountOfAddress(r.RemoteAddr)
		if refused := from.Take(key, 1, false); refused != nil {
			share := s.shareOfVisit(b, r)
			defer share.Leave()
			s.refuseQueued(b, share, w, r, s.overBudget(refused))
			return
		}
		defer from.Give(key, 1)
		next.ServeHTTP(w, r)
	})
}

// visited serves requests that need no token, in their turn, bounded in total and per address.
func (s *Server) visited(b *portBudgets, from *budget.Budget, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := accountOfAddress(r.RemoteAddr)
		share := s.shareOfVisit(b, r)
		defer share.Leave()
		if refused := from.Take(key, 1, false); refused != nil {
			s.refuseQueued(b, share, w, r, s.overBudget(refused))
			return
		}
		defer from.Give(key, 1)
		if err := share.Wait(r.Context()); err != nil {
			_ = s.errors.Write(w, r, s.refusedShare(err))
			return
		}
		charge(share, nil, w, r)
		next.ServeHTTP(w, r)
	})
}
