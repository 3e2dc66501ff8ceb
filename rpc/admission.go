package rpc

import (
	"context"
	"net/http"
	"slices"

	"github.com/quotad/quotad/raftnode/budget"
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
	quotav1connect.AdminServiceReopenQuotaProcedure: true, quotav1connect.AdminServiceOverrideQuotaProcedure: true, quotav1connect.AdminServiceSetLimitsProcedure: true,
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

// admitted serves calls of a caller who is known and has room for them. Both is found out before a byte of the body is read: whoever
// has no token, or too much under way, makes a node unpack and decode nothing.
func (s *Server) admitted(b *portBudgets, procedure string, stream bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, leave, err := s.admit(b, procedure, stream, r)
		if err != nil {
			s.metrics.call(procedure, err, 0)
			_ = s.errors.Write(w, r, err)
			return
		}
		defer leave()
		s.metrics.inFlight.Inc()
		defer s.metrics.inFlight.Dec()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// admit says who calls and takes the room that the call needs.
func (s *Server) admit(b *portBudgets, procedure string, stream bool, r *http.Request) (context.Context, func(), error) {
	if s.refusing.Load() && procedure != quotav1connect.AdminServiceGetStatusProcedure {
		return nil, nil, stoppingError()
	}
	ctx, err := s.identify(r.Context(), r.Header, r.RemoteAddr)
	if err != nil {
		return nil, nil, err
	}
	known := requestOf(ctx)
	operator := operates(known.who, procedure)
	if c := connectionOf(ctx); c != nil {
		if refused := c.letIn(known.budget, operator); refused != nil {
			return nil, nil, s.overBudget(refused)
		}
	}
	leave, refused := b.enter(known.budget, procedure, operator, stream)
	if refused != nil {
		return nil, nil, s.overBudget(refused)
	}
	return ctx, leave, nil
}

// visited serves what needs no token: so many at once, and so many for each address.
func (s *Server) visited(from *budget.Budget, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := accountOfAddress(r.RemoteAddr)
		if refused := from.Take(key, 1, false); refused != nil {
			_ = s.errors.Write(w, r, s.overBudget(refused))
			return
		}
		defer from.Give(key, 1)
		next.ServeHTTP(w, r)
	})
}
