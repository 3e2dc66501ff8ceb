package raftnode

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// TestStalledDisk_WakingLeaderEndsNoRenewedLease: a leader whose disk stalls is replaced. Its successor renews the lease of its last
// answer, beyond the time at which the old leader would have ended it once its disk answers. The old leader does not confirm what it had
// not answered yet, and returns with the others' state (etcd-io/etcd 15247, 12528).
func TestStalledDisk_WakingLeaderEndsNoRenewedLease(t *testing.T) {
	nodes := openThree(t)
	propose := func(command *logpb.Command) *logpb.Result {
		t.Helper()
		return proposeTo(t, nodes, command)
	}
	renew := func(lease uint64, ttl time.Duration) *logpb.Command {
		return &logpb.Command{Kind: &logpb.Command_Renew{Renew: &logpb.Renew{Lease: lease, Fence: lease, TtlNs: int64(ttl)}}}
	}
	propose(slots(1))
	one := take(1)
	one.GetReserve().TtlNs = int64(time.Minute)
	lease := propose(one).GetGranted().GetLease()
	promised := propose(renew(lease, 2*time.Minute)).GetRenewed().GetDeadlineNs()

	old := leaderOf(t, nodes)
	stuck, gate := make(chan struct{}), make(chan struct{})
	old.crash.crash = func() {
		close(stuck)
		<-gate
	}
	old.crash.set("before-store", 1)
	unanswered := make(chan error, 1)
	go func() {
		_, _, err := old.Propose(context.Background(), renew(lease, 3*time.Hour))
		unanswered <- err
	}()
	<-stuck
	old.fail(errors.New("the disk stalls")) // as it does by itself at StallLimit
	successor := leaderOf(t, nodes)
	renewed := propose(renew(lease, 20*time.Hour)).GetRenewed().GetDeadlineNs()
	if promised == 0 || renewed < promised {
		t.Fatalf("the lease was to live until %d, then until %d", promised, renewed)
	}
	hurry := func(times int64) {
		ppm := times * 1_000_000
		for _, n := range nodes {
			if err := n.SetFault(nil, &ppm, nil, 0); n != old && err != nil {
				t.Fatal(err)
			}
		}
	}
	hurry(1_000)
	now := func(n *Node) (at int64) {
		_ = n.Read(t.Context(), Stale, func(_ *fsm.State, clock fsm.Clock, _ Position) { at = clock.Now })
		return at
	}
	poll(t, "the first deadlines have passed", func() bool { return now(successor) > promised+int64(time.Minute) })
	hurry(1)
	close(gate)
	if err := <-unanswered; err == nil {
		t.Error("a command that no majority has was answered")
	}
	old.Kill()
	again, err := Open(old.config.Config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(again.Kill)
	poll(t, "it has what the others have", func() bool { return now(again) > promised+int64(time.Minute) })
	nodes = append(nodes, again)
	if refusal := propose(take(1)).GetRefusal(); refusal == nil {
		t.Error("its slot was granted to another")
	}
	for _, n := range []*Node{successor, again} {
		err := n.Read(t.Context(), Stale, func(s *fsm.State, clock fsm.Clock, _ Position) {
			if valid, _ := s.CheckFence(lease, lease, clock); !valid {
				t.Errorf("%s: at %d the lease is gone that lives until %d", n.config.ID, clock.Now, renewed)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// proposeTo proposes to the leader, and to the next one if leadership moved before the command was accepted.
func proposeTo(t *testing.T, nodes []*Node, command *logpb.Command) (result *logpb.Result) {
	t.Helper()
	poll(t, "a command is applied", func() bool {
		results, _, err := leaderOf(t, nodes).Propose(t.Context(), command)
		if cause := causeOf(err); cause == NotLeader || cause == NotReady {
			return false
		}
		if err != nil {
			t.Fatal(err)
		}
		result = results[0]
		return true
	})
	return result
}

// leaderOf waits until one of the nodes leads.
func leaderOf(t *testing.T, nodes []*Node) (leader *Node) {
	t.Helper()
	poll(t, "a leader", func() bool {
		for _, n := range nodes {
			if n.leading.Load() != nil && n.Err() == nil && !n.isDone() {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}
