package rpc

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/rpc/quotav1"
)

// adminService implements quota.v1.AdminService.
type adminService struct{ *Server }

// ApplyQuotas implements AdminService.
func (s *adminService) ApplyQuotas(ctx context.Context, req *quotav1.ApplyQuotasRequest) (*quotav1.ApplyQuotasResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.ApplyQuotasRequest,
	) (*quotav1.ApplyQuotasResponse, error) {
		result, at, err := s.propose(ctx, identified(applyQuotasCommand(req), req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		applied := result.GetQuotasApplied()
		return &quotav1.ApplyQuotasResponse{
			Meta: s.meta(r, at), Created: applied.GetCreated(), Changed: applied.GetChanged(), Unchanged: applied.GetUnchanged(),
		}, nil
	}, leader.ApplyQuotas)
}

// applyQuotasCommand translates a request that was validated.
func applyQuotasCommand(req *quotav1.ApplyQuotasRequest) *logpb.Command {
	apply := &logpb.ApplyQuotas{ReplaceHolders: req.ReplaceHolders, ReplaceWorkflows: req.ReplaceWorkflows, DryRun: req.DryRun}
	for _, q := range req.Quotas {
		apply.Quotas = append(apply.Quotas, logQuota(q))
	}
	for _, h := range req.Holders {
		apply.Holders = append(apply.Holders, &logpb.HolderRule{Pattern: h.Pattern, Class: int32(h.Class) - 1, Weight: h.Weight})
	}
	for _, w := range req.Workflows {
		apply.Workflows = append(apply.Workflows, logWorkflow(w))
	}
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: apply}}
}

// ApplyQuotasCommand returns the log command for a request to apply quotas, or an error if the request is invalid. It serves programs
// that run a state machine without a node.
func ApplyQuotasCommand(req *quotav1.ApplyQuotasRequest) (*logpb.Command, error) {
	if wrong := validate(req); wrong != nil {
		return nil, wrong
	}
	return applyQuotasCommand(req), nil
}

// DeleteQuota implements AdminService.
func (s *adminService) DeleteQuota(ctx context.Context, req *quotav1.DeleteQuotaRequest) (*quotav1.DeleteQuotaResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.DeleteQuotaRequest,
	) (*quotav1.DeleteQuotaResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_DeleteQuota{
			DeleteQuota: &logpb.DeleteQuota{Quota: req.Name, Force: req.Force},
		}}
		_, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.DeleteQuotaResponse{Meta: s.meta(r, at)}, nil
	}, leader.DeleteQuota)
}

// OverrideQuota implements AdminService.
func (s *adminService) OverrideQuota(ctx context.Context, req *quotav1.OverrideQuotaRequest) (*quotav1.OverrideQuotaResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.OverrideQuotaRequest,
	) (*quotav1.OverrideQuotaResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_SetOverride{SetOverride: &logpb.SetOverride{
			Quota: req.Name, Limit: req.Limit, ForNs: nanos(req.Duration), Note: req.Note,
		}}}
		_, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.OverrideQuotaResponse{Meta: s.meta(r, at)}, nil
	}, leader.OverrideQuota)
}

// ReopenQuota implements AdminService.
func (s *adminService) ReopenQuota(ctx context.Context, req *quotav1.ReopenQuotaRequest) (*quotav1.ReopenQuotaResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.ReopenQuotaRequest,
	) (*quotav1.ReopenQuotaResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_ReopenQuota{ReopenQuota: &logpb.ReopenQuota{Quota: req.Name}}}
		result, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		reopened := result.GetQuotaReopened()
		res := &quotav1.ReopenQuotaResponse{
			Meta: s.meta(r, at), Breakers: reopened.GetBreakers(), Freed: reopened.GetFreed(), More: reopened.GetMore(),
		}
		if reopened != nil {
			res.CappedTo = reopened.CappedTo
		}
		if left := reopened.GetCooldownLeftNs(); left > 0 {
			res.CooldownLeft = durationpb.New(time.Duration(left))
		}
		return res, nil
	}, leader.ReopenQuota)
}

// ResetClock implements AdminService.
func (s *adminService) ResetClock(ctx context.Context, req *quotav1.ResetClockRequest) (*quotav1.ResetClockResponse, error) {
	return call(ctx, s.Server, VerbAdminCluster, req, func(
		ctx context.Context, r *request, req *quotav1.ResetClockRequest,
	) (*quotav1.ResetClockResponse, error) {
		if err := s.node.CheckClocks(); err != nil {
			return nil, nodeError(err)
		}
		command := &logpb.Command{Kind: &logpb.Command_ResetClock{ResetClock: &logpb.ResetClock{}}}
		result, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		reset := result.GetClockReset()
		return &quotav1.ResetClockResponse{
			Meta: s.meta(r, at), Ahead: durationpb.New(time.Duration(reset.GetAheadNs())), Windows: reset.GetWindows(),
		}, nil
	}, leader.ResetClock)
}

// DeleteWorkflow implements AdminService.
func (s *adminService) DeleteWorkflow(ctx context.Context, req *quotav1.DeleteWorkflowRequest) (*quotav1.DeleteWorkflowResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.DeleteWorkflowRequest,
	) (*quotav1.DeleteWorkflowResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_DeleteWorkflow{DeleteWorkflow: &logpb.DeleteWorkflow{Workflow: req.Name}}}
		_, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.DeleteWorkflowResponse{Meta: s.meta(r, at)}, nil
	}, leader.DeleteWorkflow)
}

// ListHolderRules implements AdminService.
func (s *adminService) ListHolderRules(ctx context.Context, req *quotav1.ListHolderRulesRequest) (*quotav1.ListHolderRulesResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, req *quotav1.ListHolderRulesRequest,
	) (*quotav1.ListHolderRulesResponse, error) {
		res := &quotav1.ListHolderRulesResponse{}
		err := s.node.Read(ctx, readMode(req.Read), func(state *fsm.State, _ fsm.Clock, at raftnode.Position) {
			res.Meta = s.meta(r, at)
			for _, rule := range state.Holders() {
				res.Holders = append(res.Holders, &quotav1.HolderRule{
					Pattern: rule.Pattern, Class: quotav1.Class(rule.Class + 1), Weight: rule.Weight,
				})
			}
		})
		return res, err
	}, unlessStale(req.Read, leader.ListHolderRules))
}

// RevokeLease implements AdminService.
func (s *adminService) RevokeLease(ctx context.Context, req *quotav1.RevokeLeaseRequest) (*quotav1.RevokeLeaseResponse, error) {
	return call(ctx, s.Server, VerbAdminQuota, req, func(
		ctx context.Context, r *request, req *quotav1.RevokeLeaseRequest,
	) (*quotav1.RevokeLeaseResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_RevokeLease{RevokeLease: &logpb.RevokeLease{Lease: req.Lease}}}
		result, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		return &quotav1.RevokeLeaseResponse{Meta: s.meta(r, at), Returned: apiItems(result.GetReleased().GetReturned())}, nil
	}, leader.RevokeLease)
}

// GetStatus implements AdminService. It needs no leader.
func (s *adminService) GetStatus(ctx context.Context, req *quotav1.GetStatusRequest) (*quotav1.GetStatusResponse, error) {
	return call(ctx, s.Server, VerbRead, req, func(
		ctx context.Context, r *request, _ *quotav1.GetStatusRequest,
	) (*quotav1.GetStatusResponse, error) {
		status := s.node.Status()
		res := &quotav1.GetStatusResponse{
			ClusterId: status.ClusterID, Node: status.ID, Role: status.Role, Leader: status.Leader,
			LeaderAddress: status.LeaderAPIAddress, CommitIndex: status.CommitIndex, AppliedIndex: status.AppliedIndex,
			LastIndex: status.LastIndex, SnapshotIndex: status.SnapshotIndex, Version: s.config.Version,
			Uptime: durationpb.New(time.Since(s.started)), Testing: status.Testing,
			Level: status.Build.Level, OldestLevel: status.Build.Oldest, NewestLevel: status.Build.Newest, ApiVersion: APIVersion,
		}
		for _, m := range status.Members {
			member := &quotav1.Member{
				Id: m.ID, RaftAddress: m.RaftAddress, ApiAddress: m.APIAddress, Voter: m.Voter, Leader: m.Leader, MatchIndex: m.MatchIndex,
				Version: m.Build.Version, OldestLevel: m.Build.Oldest, NewestLevel: m.Build.Newest,
			}
			if m.LastContact >= 0 {
				member.LastContact = durationpb.New(m.LastContact)
			}
			res.Members = append(res.Members, member)
		}
		for _, c := range s.checks() {
			res.Checks = append(res.Checks, &quotav1.HealthCheck{Name: c.Name, Ok: c.OK, Message: c.Message})
		}
		res.NodeBudgets = s.countNodeBudgets()
		callers, err := s.countCallers(ctx)
		if err != nil {
			return nil, err
		}
		err = s.node.Read(ctx, raftnode.Stale, func(state *fsm.State, _ fsm.Clock, at raftnode.Position) {
			counts := state.Counts()
			res.Meta = s.meta(r, raftnode.Position{Term: status.Term, Index: at.Index, ClusterTime: at.ClusterTime})
			res.Leases, res.Waiting, res.Sessions, res.Quotas = counts.Leases, counts.Waiting, counts.Sessions, counts.Quotas
			res.FenceCounter, res.Limits = state.FenceCounter(), apiLimits(state.Limits())
			res.Budgets = apiBudgets(withCallers(state.BudgetTotals(), callers))
		})
		return res, err
	}, nil)
}

// SetLimits implements AdminService.
func (s *adminService) SetLimits(ctx context.Context, req *quotav1.SetLimitsRequest) (*quotav1.SetLimitsResponse, error) {
	return call(ctx, s.Server, VerbAdminCluster, req, func(
		ctx context.Context, r *request, req *quotav1.SetLimitsRequest,
	) (*quotav1.SetLimitsResponse, error) {
		command := &logpb.Command{Kind: &logpb.Command_SetLimits{SetLimits: logLimits(req.Limits)}}
		_, at, err := s.propose(ctx, identified(command, req.RequestId, r.who))
		if err != nil {
			return nil, err
		}
		res := &quotav1.SetLimitsResponse{Meta: s.meta(r, at)}
		return res, s.node.Read(ctx, raftnode.Stale, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) {
			res.Limits = apiLimits(state.Limits())
		})
	}, leader.SetLimits)
}

// AddMember implements AdminService.
func (s *adminService) AddMember(ctx context.Context, req *quotav1.AddMemberRequest) (*quotav1.AddMemberResponse, error) {
	return call(ctx, s.Server, VerbAdminCluster, req, func(
		ctx context.Context, r *request, req *quotav1.AddMemberRequest,
	) (*quotav1.AddMemberResponse, error) {
		if err := s.node.AddLearner(ctx, req.Id, req.RaftAddress, req.ApiAddress); err != nil {
			return nil, err
		}
		return &quotav1.AddMemberResponse{Meta: s.meta(r, s.here())}, nil
	}, leader.AddMember)
}

// PromoteMember implements AdminService.
func (s *adminService) PromoteMember(ctx context.Context, req *quotav1.PromoteMemberRequest) (*quotav1.PromoteMemberResponse, error) {
	return call(ctx, s.Server, VerbAdminCluster, req, func(
		ctx context.Context, r *request, req *quotav1.PromoteMemberRequest,
	) (*quotav1.PromoteMemberResponse, error) {
		if err := s.node.Promote(ctx, req.Id); err != nil {
			return nil, err
		}
		return &quotav1.PromoteMemberResponse{Meta: s.meta(r, s.here())}, nil
	}, leader.PromoteMember)
}

// RemoveMember implements AdminService.
func (s *adminService) RemoveMember(ctx context.Context, req *quotav1.RemoveMemberRequest) (*quotav1.RemoveMemberResponse, error) {
	return call(ctx, s.Server, VerbAdminCluster, req, func(
		ctx context.Context, r *request, req *quotav1.RemoveMemberRequest,
	) (*quotav1.RemoveMemberResponse, error) {
		if err := s.node.Remove(ctx, req.Id, req.Force); err != nil {
			return nil, err
		}
		return &quotav1.RemoveMemberResponse{Meta: s.meta(r, s.here())}, nil
	}, leader.RemoveMember)
}

// TransferLeadership implements AdminService.
func (s *adminService) TransferLeadership(
	ctx context.Context, req *quotav1.TransferLeadershipRequest,
) (*quotav1.TransferLeadershipResponse, error) {
	return call(ctx, s.Server, VerbAdminCluster, req, func(
		ctx context.Context, _ *request, req *quotav1.TransferLeadershipRequest,
	) (*quotav1.TransferLeadershipResponse, error) {
		to, err := s.node.TransferLeadership(ctx, req.Id)
		if err != nil {
			return nil, err
		}
		return &quotav1.TransferLeadershipResponse{Leader: to}, nil
	}, leader.TransferLeadership)
}

// here returns the position of this node's state.
func (s *Server) here() (at raftnode.Position) {
	_ = s.node.Read(context.Background(), raftnode.Stale, func(_ *fsm.State, _ fsm.Clock, position raftnode.Position) { at = position })
	return at
}

// backupChunk is the size of one message of a backup, in bytes.
const backupChunk = 256 << 10

// Backup implements AdminService. Only the leader answers, so that a backup has everything that was acknowledged.
func (s *adminService) Backup(ctx context.Context, req *quotav1.BackupRequest, stream *connect.ServerStream[quotav1.BackupResponse]) error {
	if err := requestOf(ctx).who.may(VerbAdminCluster); err != nil {
		return err
	}
	state, _, at, err := s.node.Frozen(ctx, raftnode.Linearizable)
	if err != nil {
		return apiError(err)
	}
	out := bufio.NewWriterSize(chunks{stream}, backupChunk)
	if err := state.WriteSnapshot(out); err != nil {
		return apiError(err)
	}
	if err := out.Flush(); err != nil {
		return apiError(err)
	}
	return stream.Send(&quotav1.BackupResponse{Index: at.Index})
}

type chunks struct {
	to *connect.ServerStream[quotav1.BackupResponse]
}

// Write implements io.Writer.
func (c chunks) Write(b []byte) (int, error) {
	for from := 0; from < len(b); from += backupChunk {
		chunk := b[from:min(from+backupChunk, len(b))]
		if err := c.to.Send(&quotav1.BackupResponse{Chunk: chunk}); err != nil {
			return from, err
		}
	}
	return len(b), nil
}

// Restore implements AdminService.
func (s *adminService) Restore(
	ctx context.Context, stream *connect.ClientStream[quotav1.RestoreRequest],
) (*quotav1.RestoreResponse, error) {
	r := requestOf(ctx)
	if err := r.who.may(VerbAdminCluster); err != nil {
		return nil, err
	}
	first := &chunkReader{from: stream}
	if err := first.fill(); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	epoch, at, err := s.node.Restore(ctx, first, first.fromOther)
	broken := (*connect.Error)(nil)
	switch {
	case errors.As(err, &broken):
		return nil, broken
	case errors.Is(err, fsm.ErrCorruptSnapshot), errors.Is(err, fsm.ErrNewerSnapshot):
		return nil, invalid("chunk", err.Error(), "check the backup with quotad verify")
	case err != nil:
		return nil, apiError(err)
	}
	return &quotav1.RestoreResponse{Meta: s.meta(r, at), Epoch: epoch}, nil
}

// chunkReader reads the chunks of a backup as one stream.
type chunkReader struct {
	from *connect.ClientStream[quotav1.RestoreRequest]
	rest []byte
	// fromOther is set once a message has from_other_cluster.
	fromOther bool
}

// fill receives the next chunk once the last one is used up.
func (c *chunkReader) fill() error {
	for len(c.rest) == 0 {
		if !c.from.Receive() {
			if err := c.from.Err(); err != nil {
				return err
			}
			return io.EOF
		}
		c.rest = c.from.Msg().Chunk
		c.fromOther = c.fromOther || c.from.Msg().FromOtherCluster
	}
	return nil
}

// Read implements io.Reader.
func (c *chunkReader) Read(p []byte) (int, error) {
	if err := c.fill(); err != nil {
		return 0, err
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// GetStateHash implements AdminService.
func (s *adminService) GetStateHash(ctx context.Context, req *quotav1.GetStateHashRequest) (*quotav1.GetStateHashResponse, error) {
	return call(ctx, s.Server, VerbDebug, req, func(
		ctx context.Context, _ *request, req *quotav1.GetStateHashRequest,
	) (*quotav1.GetStateHashResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		index, ledger, whole, err := s.node.StateHash(ctx, req.AtLeastIndex)
		if err != nil {
			return nil, err
		}
		return &quotav1.GetStateHashResponse{Index: index, Ledger: hex.EncodeToString(ledger[:]), Whole: hex.EncodeToString(whole[:])}, nil
	}, nil)
}

// DumpLog implements AdminService.
func (s *adminService) DumpLog(
	ctx context.Context, req *quotav1.DumpLogRequest, stream *connect.ServerStream[quotav1.DumpLogResponse],
) error {
	if err := requestOf(ctx).who.may(VerbDebug); err != nil {
		return err
	}
	return apiError(s.node.DumpLog(req.FromIndex, req.ToIndex, func(e logstore.Entry) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		digest := sha256.Sum256(e.Data)
		res := &quotav1.DumpLogResponse{Index: e.Index, Term: e.Term, Kind: e.Kind, Digest: hex.EncodeToString(digest[:])}
		if e.Kind == "command" {
			entry := new(logpb.Entry)
			if err := proto.Unmarshal(e.Data, entry); err != nil {
				return err
			}
			text, err := protojson.Marshal(entry)
			if err != nil {
				return err
			}
			res.Json = string(text)
		}
		return stream.Send(res)
	}))
}

// SetFault implements AdminService.
func (s *adminService) SetFault(ctx context.Context, req *quotav1.SetFaultRequest) (*quotav1.SetFaultResponse, error) {
	return call(ctx, s.Server, VerbDebug, req, func(
		_ context.Context, _ *request, req *quotav1.SetFaultRequest,
	) (*quotav1.SetFaultResponse, error) {
		var offset *time.Duration
		if req.WallOffset != nil {
			d := req.WallOffset.AsDuration()
			offset = &d
		}
		if err := s.node.SetFault(offset, req.ClockRatePpm, req.CrashAt, req.CrashCount); err != nil {
			return nil, err
		}
		return &quotav1.SetFaultResponse{}, nil
	}, nil)
}
