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

// ofHolding are the calls about what is held already. They find room where those that take more, and may wait for it, do not.
var ofHolding = map[string]bool{
	quotav1connect.QuotaServiceConsumeProcedure: true, quotav1connect.QuotaServiceSettleProcedure: true,
	quotav1connect.QuotaServiceReleaseProcedure: true, quotav1connect.QuotaServiceRenewProcedure: true,
	quotav1connect.QuotaServiceWithdrawProcedure: true, quotav1connect.QuotaServiceReportProcedure: true,
	quotav1connect.QuotaServiceCloseSessionProcedure: true, quotav1connect.AdminServiceGetStatusProcedure: true,
	quotav1connect.TaskServiceRenewTaskProcedure: true, quotav1connect.TaskServiceEndTaskProcedure: true,
}

// ofOperators are the calls that need a verb of operators. Where there are no tokens they alone tell an operator from others.
var ofOperators = map[string]bool{
	quotav1connect.AdminServiceApplyQuotasProcedure: true, quotav1connect.AdminServiceDeleteQuotaProcedure: true,
	quotav1connect.AdminServiceDeleteWorkflowProcedure: true, quotav1connect.AdminServiceRevokeLeaseProcedure: true,
	quotav1connect.AdminServiceReopenQuotaProcedure: true, quotav1connect.AdminServiceResetClockProcedure: true, quotav1connect.AdminServiceOverrideQuotaProcedure: true, quotav1connect.AdminServiceSetLimitsProcedure: true,
	quotav1connect.AdminServiceAddMemberProcedure: true, quotav1connect.AdminServicePromoteMemberProcedure: true,
	quotav1connect.AdminServiceRemoveMemberProcedure: true, quotav1connect.AdminServiceTransferLeadershipProcedure: true,
	quotav1connect.AdminServiceBackupProcedure: true, quotav1connect.AdminServiceRestoreProcedure: true,
	quotav1connect.AdminServiceGetStateHashProcedure: true, quotav1connect.AdminServiceDumpLogProcedure: true,
	quotav1connect.AdminServiceSetFaultProcedure: true,
	quotav1connect.TaskServiceRetryTaskProcedure: true, quotav1connect.TaskServiceForgetTaskProcedure: true,
}

// takesMore are the calls by which an operator is a caller like any other.
var takesMore = map[string]bool{
	quotav1connect.QuotaServiceReserveProcedure: true, quotav1connect.QuotaServiceBatchProcedure: true,
	quotav1connect.TaskServiceBeginTaskProcedure: true,
}

// operates tells whether a call may use what is kept for operators.
func operates(who *caller, procedure string) bool {
	if who.id == "" {
		return ofOperators[procedure]
	}
	return slices.ContainsFunc(who.verbs, isOperators) && !takesMore[procedure]
}

// enter takes the room that a call needs.
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

// admitted serves calls of a caller who is known, has room for them, and has its turn. All that is found out before a byte of the body is
// read: whoever has no token, or too much under way, makes a node unpack and decode nothing.
func (s *Server) admitted(b *portBudgets, procedure string, stream bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, turn, leave, err := s.admit(b, procedure, stream, r)
		defer turn.Leave()
		if err != nil {
			s.metrics.call(procedure, err, 0)
			s.refuseInTurn(b, turn, w, r, err)
			return
		}
		defer leave()
		if err := turn.Wait(ctx); err != nil {
			err = s.outOfTurn(err)
			s.metrics.call(procedure, err, 0)
			_ = s.errors.Write(w, r, err)
			return
		}
		known := requestOf(ctx)
		known.room = s.roomOf(known, procedure)
		defer known.room.giveBack()
		known.answer = charge(turn, known.room, w, r)
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

// roomOf begins what a call takes of the budget of request bytes: nothing yet.
func (s *Server) roomOf(known *request, procedure string) *requestBytes {
	return &requestBytes{
		from: s.requestBytes, account: known.budget, operator: operates(known.who, procedure), refused: s.overBudget, turn: known.turn,
	}
}

// receive takes the room for a body of a known length before any of it is read, and returns the request with its messages unpacked.
func (s *Server) receive(room *requestBytes, procedure string, r *http.Request) (*http.Request, error) {
	longest := longestMessage(procedure)
	if err := room.require(min(max(r.ContentLength, 0), longest)); err != nil {
		return nil, err
	}
	return unpacked(r, room, longest)
}

// admit says who calls and takes the room that the call needs.
func (s *Server) admit(b *portBudgets, procedure string, stream bool, r *http.Request) (context.Context, *processor.Call, func(), error) {
	ctx, err := s.identify(r.Context(), r.Header, r.RemoteAddr)
	if err != nil {
		return nil, s.turnOfAddress(b, r), nil, err
	}
	known := requestOf(ctx)
	operator := operates(known.who, procedure)
	known.turn = s.turnOf(known.budget, procedure, operator, stream)
	if s.refusing.Load() && procedure != quotav1connect.AdminServiceGetStatusProcedure {
		return nil, known.turn, nil, stoppingError()
	}
	if c := connectionOf(ctx); c != nil {
		if refused := c.letIn(known.budget, operator); refused != nil {
			return nil, known.turn, nil, s.overBudget(refused)
		}
	}
	leave, refused := b.enter(known.budget, procedure, operator, stream)
	if refused != nil {
		return nil, known.turn, nil, s.overBudget(refused)
	}
	return ctx, known.turn, leave, nil
}

// turnOf begins a caller's use of the processor. Operators have theirs whenever they come.
func (s *Server) turnOf(account, procedure string, operator, stream bool) *processor.Call {
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

// turnOfAddress begins the use of the processor of somebody who sends no token, or none that is known. At the operators' port strangers do
// not share the turns of those at the API.
func (s *Server) turnOfAddress(b *portBudgets, r *http.Request) *processor.Call {
	if b.ownTurns {
		return nil
	}
	if s.config.Tokens != nil {
		return s.shares.EnterStranger()
	}
	return s.shares.Enter(accountOfAddress(r.RemoteAddr), processor.Taking)
}

// charge has what is read and written for a call charged to its caller; room, if not nil, also takes what is read. It returns what its
// answer is written to.
func charge(turn *processor.Call, room *requestBytes, w http.ResponseWriter, r *http.Request) *answerWriter {
	answer, _ := w.(*answerWriter)
	if answer != nil {
		answer.turn = turn
	}
	if body, ok := r.Body.(*boundedBody); ok {
		body.room, body.declared = room, r.ContentLength
	}
	return answer
}

// outOfTurn counts and makes the error of a call that waited for its turn in vain.
func (s *Server) outOfTurn(err error) error {
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

// refuseInTurn refuses a request when it is its caller's turn: who is refused and asks again at once is no cheaper than who is served. Where
// too many wait for that already, the answer ends the connection.
func (s *Server) refuseInTurn(b *portBudgets, turn *processor.Call, w http.ResponseWriter, r *http.Request, err error) {
	s.awaitRefusal(b, turn, w, r)
	_ = s.errors.Write(w, r, err)
}

// awaitRefusal waits for the turn of a refusal. The connection makes room for a new one meanwhile.
func (s *Server) awaitRefusal(b *portBudgets, turn *processor.Call, w http.ResponseWriter, r *http.Request) {
	if c := connectionOf(r.Context()); c != nil {
		defer c.yield()()
	}
	key := accountOfAddress(r.RemoteAddr)
	if full := b.refusals.Take(key, 1, false); full == nil {
		_ = turn.Wait(r.Context()) // it is refused anyhow
		b.refusals.Give(key, 1)
	} else {
		w.Header().Set("Connection", "close")
	}
}

// turnOfVisit begins the use of the processor of a visit. An operator's is an operator's.
func (s *Server) turnOfVisit(b *portBudgets, r *http.Request) *processor.Call {
	if header := r.Header.Get("Authorization"); header != "" && s.config.Tokens != nil {
		if who, err := s.config.Tokens.identify(header); err == nil && slices.ContainsFunc(who.verbs, isOperators) {
			return s.shares.EnterOperator()
		}
	}
	return s.turnOfAddress(b, r)
}

// judged serves health and metrics: so many at once, and so many for each address, but in nobody's turn. It is worked out once a second
// whoever asks, and what tells whether a node works must not depend on what others do.
func (s *Server) judged(b *portBudgets, from *budget.Budget, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := accountOfAddress(r.RemoteAddr)
		if refused := from.Take(key, 1, false); refused != nil {
			turn := s.turnOfVisit(b, r)
			defer turn.Leave()
			s.refuseInTurn(b, turn, w, r, s.overBudget(refused))
			return
		}
		defer from.Give(key, 1)
		next.ServeHTTP(w, r)
	})
}

// visited serves what needs no token: so many at once, and so many for each address, in its turn.
func (s *Server) visited(b *portBudgets, from *budget.Budget, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := accountOfAddress(r.RemoteAddr)
		turn := s.turnOfVisit(b, r)
		defer turn.Leave()
		if refused := from.Take(key, 1, false); refused != nil {
			s.refuseInTurn(b, turn, w, r, s.overBudget(refused))
			return
		}
		defer from.Give(key, 1)
		if err := turn.Wait(r.Context()); err != nil {
			_ = s.errors.Write(w, r, s.outOfTurn(err))
			return
		}
		charge(turn, nil, w, r)
		next.ServeHTTP(w, r)
	})
}
