package rpc

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/fsm/task"
	"github.com/quotad/quotad/rpc/quotav1"
)

// taskService implements quota.v1.TaskService.
type taskService struct{ *Server }

// BeginTask implements TaskService.
func (s *taskService) BeginTask(ctx context.Context, req *quotav1.BeginTaskRequest) (*quotav1.BeginTaskResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.BeginTaskRequest,
	) (*quotav1.BeginTaskResponse, error) {
		if err := r.who.mayActFor(req.Holder); err != nil {
			return nil, err
		}
		command := &logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: &logpb.BeginTask{
			Task: req.Task, Holder: req.Holder, Quotas: req.Quotas, MaxFailures: req.MaxFailures, TtlNs: nanos(req.Ttl), Attempt: req.Attempt,
		}}}
		result, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		res := s.begun(result)
		res.Meta = s.meta(r, at)
		if refusal := res.GetRefusal(); refusal != nil && r.header.Get(HeaderRefusalStatus) == "429" {
			return nil, refusalError(refusal)
		}
		return res, nil
	}, leader.BeginTask)
}

// begun makes the answer of a BeginTask.
func (s *Server) begun(result *logpb.Result) *quotav1.BeginTaskResponse {
	clock := s.node.Clock()
	if refusal := result.GetRefusal(); refusal != nil {
		s.metrics.refused(refusal)
		return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Refusal{Refusal: apiRefusal(refusal, clock)}}
	}
	b := result.GetTaskBegun()
	if b.GetAttempt() == 0 {
		return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Done{Done: true}}
	}
	return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Attempt{Attempt: &quotav1.Attempt{
		Number: b.Attempt, Fence: b.Fence, ExpiresIn: left(b.DeadlineNs, clock.Now), Failures: b.Failures, MaxFailures: b.MaxFailures,
	}}}
}

// RenewTask implements TaskService.
func (s *taskService) RenewTask(ctx context.Context, req *quotav1.RenewTaskRequest) (*quotav1.RenewTaskResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.RenewTaskRequest,
	) (*quotav1.RenewTaskResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_RenewTask{
			RenewTask: &logpb.RenewTask{Task: req.Task, Fence: req.Fence, TtlNs: nanos(req.Ttl)},
		}}
		result, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.RenewTaskResponse{Meta: s.meta(r, at), ExpiresIn: left(result.GetRenewed().GetDeadlineNs(), s.node.Clock().Now)}, nil
	}, leader.RenewTask)
}

// EndTask implements TaskService. Its cause for the quotas is a report, and needs that verb too.
func (s *taskService) EndTask(ctx context.Context, req *quotav1.EndTaskRequest) (*quotav1.EndTaskResponse, error) {
	return call(ctx, s.Server, VerbUse, req, func(
		ctx context.Context, r *request, req *quotav1.EndTaskRequest,
	) (*quotav1.EndTaskResponse, error) {
		if req.Report != quotav1.Cause_CAUSE_UNSPECIFIED {
			if err := r.who.may(VerbReport); err != nil {
				return nil, err
			}
		}
		command := &logpb.Command{Kind: &logpb.Command_EndTask{EndTask: &logpb.EndTask{
			Task: req.Task, Fence: req.Fence, Outcome: logpb.TaskOutcome(req.Outcome), WaitNs: optionalNanos(req.Wait),
			Detail: req.Detail, Report: logpb.Cause(req.Report),
		}}}
		result, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		ended := result.GetTaskEnded()
		res := &quotav1.EndTaskResponse{
			Meta: s.meta(r, at), Phase: quotav1.TaskPhase(ended.GetPhase()), Failures: ended.GetFailures(), MaxFailures: ended.GetMaxFailures(),
			ReportLeftOut: ended.GetReportLeftOut(),
		}
		if ended.GetNextNs() != 0 {
			res.RetryAfter = left(ended.GetNextNs(), s.node.Clock().Now)
		}
		return res, nil
	}, leader.EndTask)
}

// RetryTask implements TaskService.
func (s *taskService) RetryTask(ctx context.Context, req *quotav1.RetryTaskRequest) (*quotav1.RetryTaskResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.RetryTaskRequest,
	) (*quotav1.RetryTaskResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_RetryTask{RetryTask: &logpb.RetryTask{Task: req.Task}}}
		_, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.RetryTaskResponse{Meta: s.meta(r, at)}, nil
	}, leader.RetryTask)
}

// ForgetTask implements TaskService.
func (s *taskService) ForgetTask(ctx context.Context, req *quotav1.ForgetTaskRequest) (*quotav1.ForgetTaskResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.ForgetTaskRequest,
	) (*quotav1.ForgetTaskResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_ForgetTask{ForgetTask: &logpb.ForgetTask{Task: req.Task}}}
		_, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.ForgetTaskResponse{Meta: s.meta(r, at)}, nil
	}, leader.ForgetTask)
}

// ListTasks implements TaskService.
func (s *taskService) ListTasks(ctx context.Context, req *quotav1.ListTasksRequest) (*quotav1.ListTasksResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.ListTasksRequest,
	) (*quotav1.ListTasksResponse, error) {
		state, clock, at, err := s.node.Frozen(ctx, readMode(req.Read))
		if err != nil {
			return nil, err
		}
		res := &quotav1.ListTasksResponse{Meta: s.meta(r, at)}
		res.Tasks, res.NextPageToken = listTasks(state, clock, r.who, req)
		return res, nil
	}, unlessStale(req.Read, leader.ListTasks))
}

// listTasks makes a page of tasks that the caller may see. A page may be short, or even empty, without being the last one.
func listTasks(state *fsm.State, clock fsm.Clock, who *caller, req *quotav1.ListTasksRequest) (page []*quotav1.TaskStatus, next string) {
	views, next := state.TaskPage(task.Filter{
		Prefix: req.Prefix, Holder: req.Holder, Phase: logpb.TaskPhase(req.Phase), Shown: who.covers,
	}, req.PageToken, pageSize(req.PageSize), clock)
	page = pageOf(views, apiTask)
	if sent := len(page); sent < len(views) {
		next = views[sent-1].Name
	}
	return page, next
}

func apiTask(v *task.View) *quotav1.TaskStatus {
	t := &quotav1.TaskStatus{
		Task: v.Name, Holder: v.Holder, Phase: quotav1.TaskPhase(v.Phase), Failures: v.Failures, MaxFailures: v.MaxFailures,
		Attempts: v.Attempts, RetryAfter: optionalDuration(v.RetryIn), Fence: v.Fence, Outcome: quotav1.TaskOutcome(v.Outcome),
		Detail: v.Detail, Quotas: v.Quotas,
	}
	if v.Fence != 0 {
		t.ExpiresIn = durationpb.New(time.Duration(v.Left))
	}
	if v.Outcome != logpb.TaskOutcome_TASK_OUTCOME_UNSPECIFIED {
		t.EndedAgo = durationpb.New(time.Duration(v.EndedAgo))
	}
	return t
}
