package fakequota

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// task is a task with its latest attempt.
type task struct {
	fence    uint64
	number   int64
	deadline time.Time
	ttl      time.Duration
	// phase is READY, IN_FLIGHT, SHELVED or DONE; ended is the End of the last attempt.
	phase quotav1.TaskPhase
	ended *quotav1.EndTaskRequest
}

// Task returns a task's phase, the End of its last attempt, and the number of attempts.
func (c *Cluster) Task(name string) (phase quotav1.TaskPhase, ended *quotav1.EndTaskRequest, attempts int64) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	t := c.state.tasks[name]
	if t == nil {
		return 0, nil, 0
	}
	return t.phase, t.ended, t.number
}

// ForgetTask forgets a task.
func (c *Cluster) ForgetTask(name string) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	delete(c.state.tasks, name)
}

// BeginTask implements the API, once per request number.
func (n *Node) BeginTask(_ context.Context, request *quotav1.BeginTaskRequest) (*quotav1.BeginTaskResponse, error) {
	if err := n.lead(); err != nil {
		return nil, err
	}
	s := n.cluster.state
	defer s.mu.Unlock()
	k := key{session: request.GetRequestId().GetSession(), seq: request.GetRequestId().GetSeq()}
	if !s.sessions[k.session] {
		return nil, detailed(connect.CodeFailedPrecondition, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_UNKNOWN_SESSION})
	}
	s.acknowledge(k.session, request.GetRequestId().GetAckedBelow())
	if s.begun[k] == nil {
		if k.seq < s.acked[k.session] {
			return nil, detailed(connect.CodeFailedPrecondition, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_SEQ_TOO_OLD})
		}
		s.begun[k] = s.beginTask(request)
	}
	return s.begun[k], nil
}

func (s *state) beginTask(request *quotav1.BeginTaskRequest) *quotav1.BeginTaskResponse {
	t := s.tasks[request.GetTask()]
	if t == nil {
		t = &task{phase: quotav1.TaskPhase_TASK_PHASE_READY}
		s.tasks[request.GetTask()] = t
	}
	switch t.phase {
	case quotav1.TaskPhase_TASK_PHASE_DONE:
		return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Done{Done: true}}
	case quotav1.TaskPhase_TASK_PHASE_IN_FLIGHT:
		return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Refusal{
			Refusal: &quotav1.Refusal{Reason: quotav1.Reason_REASON_TASK_IN_FLIGHT, RetryAfter: left(t.deadline)},
		}}
	case quotav1.TaskPhase_TASK_PHASE_SHELVED:
		return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Refusal{
			Refusal: &quotav1.Refusal{Reason: quotav1.Reason_REASON_TASK_SHELVED},
		}}
	case quotav1.TaskPhase_TASK_PHASE_READY, quotav1.TaskPhase_TASK_PHASE_WAITING, quotav1.TaskPhase_TASK_PHASE_UNSPECIFIED:
	}
	if t.ttl = request.GetTtl().AsDuration(); t.ttl == 0 {
		t.ttl = 10 * time.Minute
	}
	t.number++
	t.fence, t.deadline, t.phase = s.next(), time.Now().Add(t.ttl), quotav1.TaskPhase_TASK_PHASE_IN_FLIGHT
	return &quotav1.BeginTaskResponse{Outcome: &quotav1.BeginTaskResponse_Attempt{
		Attempt: &quotav1.Attempt{Number: t.number, Fence: t.fence, ExpiresIn: durationpb.New(t.ttl), MaxFailures: 3},
	}}
}

// attempt returns the attempt with a fence. If there is one, attempt returns with the store locked.
func (n *Node) attempt(name string, fence uint64) (*task, error) {
	if err := n.lead(); err != nil {
		return nil, err
	}
	t := n.cluster.state.tasks[name]
	if t == nil || t.fence != fence || t.phase == quotav1.TaskPhase_TASK_PHASE_IN_FLIGHT && !time.Now().Before(t.deadline) {
		n.cluster.state.mu.Unlock()
		return nil, detailed(connect.CodeFailedPrecondition, &quotav1.ErrorInfo{Reason: quotav1.Reason_REASON_STALE_FENCE})
	}
	return t, nil
}

// RenewTask implements the API.
func (n *Node) RenewTask(_ context.Context, request *quotav1.RenewTaskRequest) (*quotav1.RenewTaskResponse, error) {
	t, err := n.attempt(request.GetTask(), request.GetFence())
	if err != nil {
		return nil, err
	}
	defer n.cluster.state.mu.Unlock()
	n.cluster.state.executed["renew task"]++
	t.deadline = time.Now().Add(t.ttl)
	return &quotav1.RenewTaskResponse{ExpiresIn: durationpb.New(t.ttl)}, nil
}

// EndTask implements the API. The first failure shelves the task.
func (n *Node) EndTask(_ context.Context, request *quotav1.EndTaskRequest) (*quotav1.EndTaskResponse, error) {
	t, err := n.attempt(request.GetTask(), request.GetFence())
	if err != nil {
		return nil, err
	}
	defer n.cluster.state.mu.Unlock()
	t.ended = request
	res := &quotav1.EndTaskResponse{MaxFailures: 3}
	switch request.GetOutcome() {
	case quotav1.TaskOutcome_TASK_OUTCOME_DONE, quotav1.TaskOutcome_TASK_OUTCOME_FINISHED_THEN_LIMITED:
		t.phase = quotav1.TaskPhase_TASK_PHASE_DONE
	case quotav1.TaskOutcome_TASK_OUTCOME_FAILED:
		t.phase, res.Failures = quotav1.TaskPhase_TASK_PHASE_SHELVED, 3
	default:
		t.phase = quotav1.TaskPhase_TASK_PHASE_READY
		res.RetryAfter = request.GetWait()
	}
	res.Phase = t.phase
	return res, nil
}
