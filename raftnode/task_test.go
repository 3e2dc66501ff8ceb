package raftnode_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
)

// hurry lets cluster time run faster than real time by a factor.
func (c *cluster) hurry(times int64) {
	c.t.Helper()
	ppm := times * 1_000_000
	for _, n := range c.nodes {
		if err := n.SetFault(nil, &ppm, nil, 0); err != nil {
			c.t.Fatal(err)
		}
	}
}

// killLeader kills the leader, and starts it again once another node leads.
func (c *cluster) killLeader() {
	c.t.Helper()
	dead := c.leader()
	c.nodes[dead].Kill()
	c.nodes[dead] = nil
	c.leader()
	c.start(dead)
}

// TestTask_BudgetSurvivesLeaders: a task fails three times and is shelved. Its second and third attempt begin 5 and 15 minutes after
// the previous failure. A leader dies in each attempt and in each pause, and all nodes in the end. While the task waits, time runs a
// thousand times as fast.
func TestTask_BudgetSurvivesLeaders(t *testing.T) {
	t.Parallel() // mostly waiting
	c := newCluster(t, 3)
	keys := 0
	once := func(command *logpb.Command) *logpb.Result {
		keys++
		command.IdempotencyKey = fmt.Sprintf("key-%d", keys)
		return c.propose(command)
	}
	begin := func() *logpb.Result {
		return once(&logpb.Command{Kind: &logpb.Command_BeginTask{BeginTask: &logpb.BeginTask{Task: "t", Holder: "h"}}})
	}
	for attempt, delay := range []time.Duration{5 * time.Minute, 15 * time.Minute, 0} {
		begun := begin().GetTaskBegun()
		if begun.GetAttempt() != int64(attempt+1) || begun.GetFailures() != int32(attempt) {
			t.Fatalf("attempt %d: %v", attempt+1, begun)
		}
		c.killLeader()
		failed := once(&logpb.Command{Kind: &logpb.Command_EndTask{EndTask: &logpb.EndTask{
			Task: "t", Fence: begun.Fence, Outcome: logpb.TaskOutcome_TASK_OUTCOME_FAILED,
		}}}).GetTaskEnded()
		if failed.GetFailures() != int32(attempt+1) {
			t.Fatalf("after attempt %d: %v", attempt+1, failed)
		}
		if delay == 0 {
			break
		}
		left := failed.NextNs - c.clusterTime()
		if left > int64(delay) || left < int64(delay-time.Minute) {
			t.Fatalf("%v are left before attempt %d, of %v", time.Duration(left), attempt+2, delay)
		}
		c.killLeader()
		if refusal := begin().GetRefusal(); refusal.GetReason() != logpb.Reason_REASON_TASK_LATER || refusal.RetryAtNs != failed.NextNs {
			t.Fatalf("too early, after another leader's end: %v", refusal)
		}
		c.hurry(1000)
		eventually(t, "the pause is over", func() bool { return c.clusterTime() >= failed.NextNs })
		c.hurry(1)
	}
	for i := range c.nodes {
		c.stop(i)
	}
	for i := range c.nodes {
		c.start(i)
	}
	if refusal := begin().GetRefusal(); refusal.GetReason() != logpb.Reason_REASON_TASK_SHELVED || refusal.RetryAtNs != 0 {
		t.Fatalf("%v", refusal)
	}
	c.hashesAgree()
}

// clusterTime returns the present cluster time by the leader's clock.
func (c *cluster) clusterTime() (now int64) {
	c.t.Helper()
	eventually(c.t, "a linearizable read", func() bool {
		return c.nodes[c.leader()].Read(c.t.Context(), raftnode.Linearizable, func(_ *fsm.State, clock fsm.Clock, _ raftnode.Position) {
			now = clock.Now
		}) == nil
	})
	return now
}
