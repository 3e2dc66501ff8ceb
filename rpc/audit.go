package rpc

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"

	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
	"github.com/quotad/quotad/rpc/quotav1/quotav1connect"
)

// auditing logs one line for each call that changes the cluster or reads its whole state: the call, its target, the caller and its
// address, and the outcome. A forwarded call has a line at both nodes; the leader's names the forwarding node. Refused calls of a token
// without an operator's verb could fill the disk, so they share one line per call, token and interval.
type auditing struct {
	s *Server
	// refused limits the lines of tokens without an operator's verb.
	refused *raftnode.LoggedLines
}

// audited are the calls that are logged.
var audited = map[string]bool{
	quotav1connect.AdminServiceApplyQuotasProcedure: true, quotav1connect.AdminServiceDeleteQuotaProcedure: true,
	quotav1connect.AdminServiceOverrideQuotaProcedure: true, quotav1connect.AdminServiceSetLimitsProcedure: true,
	quotav1connect.AdminServiceDeleteWorkflowProcedure: true,
	quotav1connect.AdminServiceReopenQuotaProcedure:    true, quotav1connect.AdminServiceResetClockProcedure: true,
	quotav1connect.AdminServiceRevokeLeaseProcedure: true, quotav1connect.AdminServiceAddMemberProcedure: true,
	quotav1connect.AdminServicePromoteMemberProcedure: true, quotav1connect.AdminServiceRemoveMemberProcedure: true,
	quotav1connect.AdminServiceTransferLeadershipProcedure: true, quotav1connect.AdminServiceBackupProcedure: true,
	quotav1connect.AdminServiceRestoreProcedure: true, quotav1connect.AdminServiceSetFaultProcedure: true,
	quotav1connect.TaskServiceRetryTaskProcedure: true, quotav1connect.TaskServiceForgetTaskProcedure: true,
}

// WrapUnary implements connect.Interceptor.
func (a auditing) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		res, err := next(ctx, req)
		if apply, ok := req.Any().(*quotav1.ApplyQuotasRequest); !ok || !apply.GetDryRun() {
			a.write(ctx, req.Spec().Procedure, target(req.Any()), req.Peer().Addr, err)
		}
		return res, err
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (auditing) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// WrapStreamingHandler implements connect.Interceptor.
func (a auditing) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		err := next(ctx, conn)
		a.write(ctx, conn.Spec().Procedure, "", conn.Peer().Addr, err)
		return err
	}
}

func (a auditing) write(ctx context.Context, procedure, target, address string, err error) {
	if !audited[procedure] {
		return
	}
	r := requestOf(ctx)
	level, outcome := hclog.Info, "done"
	if err != nil {
		level, outcome = hclog.Warn, messageOf(err)
	}
	call, repeated := procedure[strings.LastIndexByte(procedure, '/')+1:], ""
	if !slices.ContainsFunc(r.who.verbs, isOperators) {
		kept, due := a.refused.Due(call, r.who.id, time.Now())
		if !due {
			level = hclog.Debug
		} else if kept > 0 {
			repeated = strconv.Itoa(kept)
		}
	}
	fields := []any{"call", call}
	for _, field := range []struct{ name, value string }{
		{"target", target},
		{"token", r.who.id},
		{"from", address},
		{"via", r.header.Get(HeaderForwarded)},
		{"outcome", outcome},
		{"repeated", repeated},
	} {
		if field.value != "" {
			fields = append(fields, field.name, beginning(field.value, maxAudited))
		}
	}
	a.s.logger.Log(level, "an operator's call", fields...)
}

// maxAudited bounds each field of a line, in bytes, and leaves room for maxTargets of the longest valid names. Callers choose the names,
// and a message has up to 4 MiB. maxTargets bounds the quotas that the line of one call names.
const (
	maxAudited = 2 << 10
	maxTargets = 10
)

// target names the object of a call.
func target(message any) string {
	switch m := message.(type) {
	case *quotav1.ApplyQuotasRequest:
		var names []string
		for _, quota := range m.Quotas[:min(len(m.Quotas), maxTargets)] {
			names = append(names, quota.GetName())
		}
		if more := len(m.Quotas) - len(names); more > 0 {
			names = append(names, fmt.Sprintf("%d more", more))
		}
		if len(m.Holders) > 0 || m.ReplaceHolders {
			names = append(names, fmt.Sprintf("%d holder rules", len(m.Holders)))
		}
		if len(m.Workflows) > 0 || m.ReplaceWorkflows {
			names = append(names, fmt.Sprintf("%d workflows", len(m.Workflows)))
		}
		return strings.Join(names, ", ")
	case *quotav1.DeleteQuotaRequest:
		return forced(m.Name, m.Force)
	case *quotav1.OverrideQuotaRequest:
		if m.Limit == nil {
			return m.Name + " (ended)"
		}
		return fmt.Sprintf("%s limit=%d for %s", m.Name, *m.Limit, m.Duration.AsDuration())
	case *quotav1.ReopenQuotaRequest:
		return m.Name
	case *quotav1.SetLimitsRequest:
		return strings.TrimSpace(m.GetLimits().String())
	case *quotav1.DeleteWorkflowRequest:
		return "workflow " + m.Name
	case *quotav1.RevokeLeaseRequest:
		return "lease " + strconv.FormatUint(m.Lease, 10)
	case *quotav1.AddMemberRequest:
		return fmt.Sprintf("%s raft=%s api=%s", m.Id, m.RaftAddress, m.ApiAddress)
	case *quotav1.RemoveMemberRequest:
		return forced(m.Id, m.Force)
	case interface{ GetTask() string }:
		return "task " + m.GetTask()
	case interface{ GetId() string }:
		return m.GetId()
	}
	return ""
}

func forced(what string, force bool) string {
	if force {
		return what + " (forced)"
	}
	return what
}
