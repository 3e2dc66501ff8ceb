package rpc

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// quotaService implements quota.v1.QuotaService.
type quotaService struct{ *Server }

// propose sends one command through the log; a failure becomes an error.
func (s *Server) propose(ctx context.Context, command *logpb.Command) (*logpb.Result, raftnode.Position, error) {
	return single(s.node.Propose(ctx, command))
}

// single returns the result of one command that went through the log; a failure becomes an error.
func single(results []*logpb.Result, at raftnode.Position, err error) (*logpb.Result, raftnode.Position, error) {
	if err != nil {
		return nil, at, err
	}
	if f := results[0].GetFailure(); f != nil {
		return nil, at, failed(f)
	}
	return results[0], at, nil
}

// OpenSession implements QuotaService.
func (s *quotaService) OpenSession(ctx context.Context, req *quotav1.OpenSessionRequest) (*quotav1.OpenSessionResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.OpenSessionRequest,
	) (*quotav1.OpenSessionResponse, error) {
		if req.Holder != "" {
			if err := r.who.mayActFor(req.Holder); err != nil {
				return nil, err
			}
		}
		result, at, err := s.propose(ctx, identified(&logpb.Command{Kind: &logpb.Command_OpenSession{
			OpenSession: &logpb.OpenSession{Holder: req.Holder},
		}}, nil, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.OpenSessionResponse{Meta: s.meta(r, at), Session: result.GetSessionOpened().GetSession()}, nil
	}, leader.OpenSession)
}

// CloseSession implements QuotaService.
func (s *quotaService) CloseSession(ctx context.Context, req *quotav1.CloseSessionRequest) (*quotav1.CloseSessionResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.CloseSessionRequest,
	) (*quotav1.CloseSessionResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_CloseSession{CloseSession: &logpb.CloseSession{}}}
		_, at, err := s.propose(ctx, identified(command, &quotav1.RequestId{Session: req.Session}, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.CloseSessionResponse{Meta: s.meta(r, at)}, nil
	}, leader.CloseSession)
}

// Reserve implements QuotaService.
func (s *quotaService) Reserve(ctx context.Context, req *quotav1.ReserveRequest) (*quotav1.ReserveResponse, error) {
	return call(ctx, s.Server, VerbUse, req, s.reserve, s.reserveThere)
}

func (s *quotaService) reserve(ctx context.Context, r *request, req *quotav1.ReserveRequest) (*quotav1.ReserveResponse, error) {
	if err := r.who.mayActFor(req.Holder); err != nil {
		return nil, err
	}
	command := reserveCommand(req, r.who)
	propose := s.node.Propose
	if anonymous(command) {
		propose = s.node.ProposeThrough
		s.waits.enter() // until the command is undone, if it must be, Drain keeps the leadership here
		defer s.waits.leave()
	}
	result, at, err := single(propose(ctx, command))
	if err != nil {
		return nil, err
	}
	if waiting := result.GetWaiting(); waiting != nil && !req.NoBlock {
		if result, at, err = s.await(ctx, command, waiting, at); err != nil {
			return nil, err
		}
		result = s.keepSlots(ctx, result, req, r)
	}
	if ctx.Err() != nil && anonymous(command) {
		s.giveBack(context.WithoutCancel(ctx), result.GetGranted())
		return nil, &raftnode.UnknownError{Err: ctx.Err()}
	}
	res := s.reserved(result, s.meta(r, at), s.node.Clock(), nil)
	r.who.noteClass(req.Class, res.GetRefusal())
	if refusal := res.GetRefusal(); refusal != nil && r.header.Get(HeaderRefusalStatus) == "429" {
		return nil, refusalError(refusal)
	}
	return res, nil
}

// reserved makes the answer of a Reserve.
func (s *Server) reserved(result *logpb.Result, meta *quotav1.Meta, clock fsm.Clock, d *durations) *quotav1.ReserveResponse {
	if granted := result.GetGranted(); granted != nil {
		res := leaseResponse(granted, clock, d)
		res.Meta = meta
		return res
	}
	res := &quotav1.ReserveResponse{Meta: meta}
	switch kind := result.Kind.(type) {
	case *logpb.Result_Refusal:
		s.metrics.refused(kind.Refusal)
		res.Outcome = &quotav1.ReserveResponse_Refusal{Refusal: apiRefusal(kind.Refusal, clock)}
	case *logpb.Result_Waiting:
		res.Outcome = &quotav1.ReserveResponse_Waiting{Waiting: &quotav1.Waiting{
			Ticket: kind.Waiting.Ticket, EndsIn: left(kind.Waiting.UntilNs, clock.Now),
		}}
	}
	return res
}

// refusalError makes the error for a caller that asked for refusals as HTTP status 429.
func refusalError(refusal *quotav1.Refusal) error {
	err := newError("refused: "+refusal.Reason.String(), &quotav1.ErrorInfo{
		Reason: refusal.Reason, Hint: refusal.Advice, Quota: refusal.Quota, RetryAfter: refusal.RetryAfter, Budget: refusal.Budget,
		Forecast: refusal.Forecast,
	})
	coded := connect.NewError(connect.CodeResourceExhausted, errors.New(err.Message()))
	for _, detail := range err.Details() {
		coded.AddDetail(detail)
	}
	if refusal.RetryAfter != nil {
		setRetryAfter(coded.Meta(), refusal.RetryAfter.AsDuration())
	}
	return coded
}

// Consume implements QuotaService.
func (s *quotaService) Consume(ctx context.Context, req *quotav1.ConsumeRequest) (*quotav1.ConsumeResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.ConsumeRequest,
	) (*quotav1.ConsumeResponse, error) {
		result, at, err := s.propose(ctx, consumeCommand(req, r.who))
		if err != nil {
			return nil, err
		}
		res := s.consumed(result, s.meta(r, at), s.node.Clock())
		if refusal := res.GetRefusal(); refusal != nil && r.header.Get(HeaderRefusalStatus) == "429" {
			return nil, refusalError(refusal)
		}
		return res, nil
	}, leader.Consume)
}

func (s *Server) consumed(result *logpb.Result, meta *quotav1.Meta, clock fsm.Clock) *quotav1.ConsumeResponse {
	res := &quotav1.ConsumeResponse{Meta: meta}
	switch kind := result.Kind.(type) {
	case *logpb.Result_Consumed:
		res.Outcome = &quotav1.ConsumeResponse_Operation{Operation: apiOperation(kind.Consumed, clock)}
	case *logpb.Result_Refusal:
		s.metrics.refused(kind.Refusal)
		res.Outcome = &quotav1.ConsumeResponse_Refusal{Refusal: apiRefusal(kind.Refusal, clock)}
	}
	return res
}

// Settle implements QuotaService.
func (s *quotaService) Settle(ctx context.Context, req *quotav1.SettleRequest) (*quotav1.SettleResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.SettleRequest,
	) (*quotav1.SettleResponse, error) {
		result, at, err := s.propose(ctx, settleCommand(req, r.who))
		if err != nil {
			return nil, err
		}
		return settled(result, s.meta(r, at)), nil
	}, leader.Settle)
}

func settled(result *logpb.Result, meta *quotav1.Meta) *quotav1.SettleResponse {
	out := result.GetSettled()
	return &quotav1.SettleResponse{
		Meta: meta, Returned: apiItems(out.GetReturned()), Overrun: apiItems(out.GetOverrun()), Released: out.GetReleased(),
	}
}

// Release implements QuotaService.
func (s *quotaService) Release(ctx context.Context, req *quotav1.ReleaseRequest) (*quotav1.ReleaseResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.ReleaseRequest,
	) (*quotav1.ReleaseResponse, error) {
		result, at, err := s.propose(ctx, releaseCommand(req, r.who))
		if err != nil {
			return nil, err
		}
		return released(result, s.meta(r, at)), nil
	}, leader.Release)
}

func released(result *logpb.Result, meta *quotav1.Meta) *quotav1.ReleaseResponse {
	out := result.GetReleased()
	return &quotav1.ReleaseResponse{Meta: meta, Returned: apiItems(out.GetReturned()), Ended: out.GetEnded()}
}

// Renew implements QuotaService.
func (s *quotaService) Renew(ctx context.Context, req *quotav1.RenewRequest) (*quotav1.RenewResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(ctx context.Context, r *request, req *quotav1.RenewRequest) (*quotav1.RenewResponse, error) {
		result, at, err := s.propose(ctx, renewCommand(req, r.who))
		if err != nil {
			return nil, err
		}
		return renewed(result, s.meta(r, at), s.node.Clock()), nil
	}, leader.Renew)
}

func renewed(result *logpb.Result, meta *quotav1.Meta, clock fsm.Clock) *quotav1.RenewResponse {
	return &quotav1.RenewResponse{
		Meta: meta, ExpiresIn: left(result.GetRenewed().GetDeadlineNs(), clock.Now), Closed: result.GetRenewed().GetClosed(),
	}
}

// Withdraw implements QuotaService.
func (s *quotaService) Withdraw(ctx context.Context, req *quotav1.WithdrawRequest) (*quotav1.WithdrawResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.WithdrawRequest,
	) (*quotav1.WithdrawResponse, error) {
		_, at, err := s.propose(ctx, withdrawCommand(req, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.WithdrawResponse{Meta: s.meta(r, at)}, nil
	}, leader.Withdraw)
}

// Report implements QuotaService.
func (s *quotaService) Report(ctx context.Context, req *quotav1.ReportRequest) (*quotav1.ReportResponse, error) {
	return call(ctx, s.Server, VerbReport, req, func(
		ctx context.Context, r *request, req *quotav1.ReportRequest,
	) (*quotav1.ReportResponse, error) {
		command, read, err := s.readReport(ctx, req, r.who)
		if err != nil {
			return nil, err
		}
		result, at, err := s.propose(ctx, command)
		if err != nil {
			return nil, err
		}
		res := reported(result, read, s.node.Clock())
		res.Meta = s.meta(r, at)
		return res, nil
	}, leader.Report)
}

// reported makes the answer to a report, with the signals that were read from the provider's answer.
func reported(result *logpb.Result, read []*quotav1.Signal, clock fsm.Clock) *quotav1.ReportResponse {
	return &quotav1.ReportResponse{Quotas: apiReported(result.GetReported(), clock), Signals: read}
}

// GetQuota implements QuotaService.
func (s *quotaService) GetQuota(ctx context.Context, req *quotav1.GetQuotaRequest) (*quotav1.GetQuotaResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.GetQuotaRequest,
	) (*quotav1.GetQuotaResponse, error) {
		res := &quotav1.GetQuotaResponse{}
		err := s.node.Read(ctx, readMode(req.Read), func(state *fsm.State, clock fsm.Clock, at raftnode.Position) {
			res.Meta = s.meta(r, at)
			if v, ok := state.Quota(req.Name, clock); ok {
				res.Quota = apiQuotaStatus(&v, clock)
			}
		})
		if err == nil && res.Quota == nil {
			err = newError("there is no quota "+req.Name, &quotav1.ErrorInfo{
				Reason: quotav1.Reason_REASON_UNKNOWN_QUOTA, Quota: req.Name, Hint: "list the quotas, or apply its definition first",
			})
		}
		return res, err
	}, unlessStale(req.Read, leader.GetQuota))
}

// ListQuotas implements QuotaService.
func (s *quotaService) ListQuotas(ctx context.Context, req *quotav1.ListQuotasRequest) (*quotav1.ListQuotasResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.ListQuotasRequest,
	) (*quotav1.ListQuotasResponse, error) {
		state, clock, at, err := s.node.Frozen(ctx, readMode(req.Read))
		if err != nil {
			return nil, err
		}
		size := pageSize(req.PageSize)
		views := state.Quotas(req.Prefix, req.PageToken, size, clock)
		res := &quotav1.ListQuotasResponse{Meta: s.meta(r, at)}
		res.Quotas = pageOf(views, func(v *fsm.QuotaView) *quotav1.QuotaStatus { return apiQuotaStatus(v, clock) })
		if sent := len(res.Quotas); sent == size || sent < len(views) {
			res.NextPageToken = views[sent-1].Definition.Name
		}
		return res, nil
	}, unlessStale(req.Read, leader.ListQuotas))
}

// ListLeases implements QuotaService.
func (s *quotaService) ListLeases(ctx context.Context, req *quotav1.ListLeasesRequest) (*quotav1.ListLeasesResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.ListLeasesRequest,
	) (*quotav1.ListLeasesResponse, error) {
		if req.Holder != "" {
			if err := r.who.mayActFor(req.Holder); err != nil {
				return nil, err
			}
		}
		state, clock, at, err := s.node.Frozen(ctx, readMode(req.Read))
		if err != nil {
			return nil, err
		}
		return s.listLeases(state, clock, r, at, req), nil
	}, unlessStale(req.Read, leader.ListLeases))
}

// GetWorkflow implements QuotaService.
func (s *quotaService) GetWorkflow(ctx context.Context, req *quotav1.GetWorkflowRequest) (*quotav1.GetWorkflowResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.GetWorkflowRequest,
	) (*quotav1.GetWorkflowResponse, error) {
		res := &quotav1.GetWorkflowResponse{}
		err := s.node.Read(ctx, readMode(req.Read), func(state *fsm.State, clock fsm.Clock, at raftnode.Position) {
			res.Meta = s.meta(r, at)
			if v, ok := state.Workflow(req.Name, clock); ok {
				res.Workflow = apiWorkflowStatus(&v)
			}
		})
		if err == nil && res.Workflow == nil {
			err = newError("there is no workflow "+req.Name, &quotav1.ErrorInfo{
				Reason: quotav1.Reason_REASON_UNKNOWN_WORKFLOW, Hint: "list the workflows, or apply its definition first",
			})
		}
		return res, err
	}, unlessStale(req.Read, leader.GetWorkflow))
}

// ListWorkflows implements QuotaService.
func (s *quotaService) ListWorkflows(ctx context.Context, req *quotav1.ListWorkflowsRequest) (*quotav1.ListWorkflowsResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.ListWorkflowsRequest,
	) (*quotav1.ListWorkflowsResponse, error) {
		state, clock, at, err := s.node.Frozen(ctx, readMode(req.Read))
		if err != nil {
			return nil, err
		}
		size := pageSize(req.PageSize)
		views := state.Workflows(req.Holder, req.PageToken, size, clock)
		res := &quotav1.ListWorkflowsResponse{Meta: s.meta(r, at)}
		res.Workflows = pageOf(views, apiWorkflowStatus)
		if sent := len(res.Workflows); sent == size || sent < len(views) {
			res.NextPageToken = views[sent-1].Definition.Name
		}
		return res, nil
	}, unlessStale(req.Read, leader.ListWorkflows))
}

// CheckFence implements QuotaService.
func (s *quotaService) CheckFence(ctx context.Context, req *quotav1.CheckFenceRequest) (*quotav1.CheckFenceResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.CheckFenceRequest,
	) (*quotav1.CheckFenceResponse, error) {
		res := &quotav1.CheckFenceResponse{}
		present := s.node.Clock()
		err := s.node.Read(ctx, raftnode.Linearizable, func(state *fsm.State, clock fsm.Clock, at raftnode.Position) {
			valid, remaining := state.CheckFence(req.Lease, req.Fence, clock)
			res.Meta, res.Valid, res.FenceCounter = s.meta(r, at), valid, state.FenceCounter()
			if valid {
				remaining -= max(present.Now-clock.Now, 0)
				res.ExpiresIn = durationpb.New(time.Duration(max(remaining, 0)))
			}
		})
		return res, err
	}, leader.CheckFence)
}

func readMode(mode quotav1.ReadMode) raftnode.ReadMode {
	if mode == quotav1.ReadMode_READ_MODE_STALE {
		return raftnode.Stale
	}
	return raftnode.Linearizable
}

// unlessStale keeps a stale read on the called node.
func unlessStale[Req, Res any](
	mode quotav1.ReadMode, remote func(leader, context.Context, Req) (Res, error),
) func(leader, context.Context, Req) (Res, error) {
	if mode == quotav1.ReadMode_READ_MODE_STALE {
		return nil
	}
	return remote
}

// ListUsage implements QuotaService. A page token is the last row's quota number and holder.
func (s *quotaService) ListUsage(ctx context.Context, req *quotav1.ListUsageRequest) (*quotav1.ListUsageResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.ListUsageRequest,
	) (*quotav1.ListUsageResponse, error) {
		if req.Holder != "" {
			if err := r.who.mayActFor(req.Holder); err != nil {
				return nil, err
			}
		}
		quota, holder, err := parseUsagePage(req.PageToken)
		if err != nil {
			return nil, newError("page_token: unknown", &quotav1.ErrorInfo{
				Reason: quotav1.Reason_REASON_INVALID, Field: "page_token", Hint: "begin again without page_token",
			})
		}
		state, clock, at, err := s.node.Frozen(ctx, readMode(req.Read))
		if err != nil {
			return nil, err
		}
		views, next := state.UsagePage(fsm.UsageFilter{Holder: req.Holder, Quota: req.Quota, Shown: r.who.covers},
			fsm.UsageMark{Holder: holder, Quota: quota}, pageSize(req.PageSize), clock)
		res := &quotav1.ListUsageResponse{Meta: s.meta(r, at)}
		for i := range views {
			res.Usage = append(res.Usage, apiUsage(&views[i]))
		}
		if next != (fsm.UsageMark{}) {
			res.NextPageToken = strconv.FormatUint(uint64(next.Quota), 10) + "/" + next.Holder
		}
		return res, nil
	}, unlessStale(req.Read, leader.ListUsage))
}

func parseUsagePage(token string) (quota uint32, holder string, err error) {
	if token == "" {
		return 0, "", nil
	}
	number, holder, _ := strings.Cut(token, "/")
	parsed, err := strconv.ParseUint(number, 10, 32)
	return uint32(parsed), holder, err
}
