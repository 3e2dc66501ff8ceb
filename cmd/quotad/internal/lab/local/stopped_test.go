package local

import (
	"context"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/quotad/quotad/rpc/quotav1"
)

// stop stops a node's process with SIGSTOP until the end of the test.
func (n *Node) stop(t *testing.T) {
	t.Helper()
	process := n.process.cmd.Process
	if err := process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = process.Signal(syscall.SIGCONT) }) // the process may have been killed
}

// startedWith starts a cluster, whose only slot is taken.
func startedWith(t *testing.T) (leader *Node, others []*Node) {
	t.Helper()
	c := newCluster(t)
	for _, n := range c.Nodes {
		if err := c.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	quotas := &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{
		{Name: "slot", Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: 1}}},
		{Name: "calls", Rule: &quotav1.Quota_Rate{Rate: &quotav1.Rate{Limit: 1000, Per: durationpb.New(time.Minute)}}},
	}}
	if err := c.Ready(t.Context(), quotas); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), StartTimeout)
	defer cancel()
	leader, ok := c.Leader(ctx)
	if !ok {
		t.Fatal("nobody leads")
	}
	held := &quotav1.ReserveRequest{Holder: "a", Items: []*quotav1.Item{{Quota: "slot"}}, Ttl: durationpb.New(time.Hour)}
	if res, err := leader.quota.Reserve(ctx, held); err != nil || res.GetLease() == nil {
		t.Fatalf("%v %v", res, err)
	}
	for _, n := range c.Nodes {
		if n != leader {
			others = append(others, n)
		}
	}
	return leader, others
}

// forwarded makes calls through a follower, before and after stop: one that waits, one that changes state and one that
// reads.
func forwarded(t *testing.T, through *Node, stop func()) (waited, changed, read <-chan error) {
	t.Helper()
	call := func(do func(context.Context) error) <-chan error {
		ended := make(chan error, 1)
		go func() { ended <- do(t.Context()) }()
		return ended
	}
	waited = call(func(ctx context.Context) error {
		_, err := through.quota.Reserve(ctx, &quotav1.ReserveRequest{
			Holder: "b", Items: []*quotav1.Item{{Quota: "slot"}}, Wait: durationpb.New(9 * time.Minute),
		})
		return err
	})
	for deadline := time.Now().Add(StartTimeout); ; {
		res, err := through.quota.GetQuota(t.Context(), &quotav1.GetQuotaRequest{Name: "slot"})
		if err == nil && res.Quota.Waiting == 1 {
			break
		}
		if time.Now().After(deadline) || !pause(t.Context(), 20*time.Millisecond) {
			t.Fatalf("nobody waits: %v %v", res, err)
		}
	}
	stop()
	changed = call(func(ctx context.Context) error {
		_, err := through.quota.Reserve(ctx, &quotav1.ReserveRequest{Holder: "c", Items: []*quotav1.Item{{Quota: "calls"}}})
		return err
	})
	read = call(func(ctx context.Context) error {
		_, err := through.quota.GetQuota(ctx, &quotav1.GetQuotaRequest{Name: "calls"})
		return err
	})
	return waited, changed, read
}

// ends waits a minute for the end of a call, about a tenth of the longest deadline of a call.
func ends(t *testing.T, what string, call <-chan error) error {
	t.Helper()
	select {
	case err := <-call:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("%s hangs", what)
	}
	return nil
}

func reasonOf(err error) quotav1.Reason {
	var failed *connect.Error
	if e, ok := err.(*connect.Error); ok { //nolint:errorlint // the client's own, not wrapped
		failed = e
	}
	if failed == nil {
		return 0
	}
	for _, detail := range failed.Details() {
		if value, err := detail.Value(); err == nil {
			if info, ok := value.(*quotav1.ErrorInfo); ok {
				return info.Reason
			}
		}
	}
	return 0
}

// TestForward_OutlivesAStoppedLeader: if a leader stops, calls that a node forwarded to it end as soon as another node
// leads. Calls that may have been executed end with an unknown outcome; reads are sent again.
func TestForward_OutlivesAStoppedLeader(t *testing.T) {
	leader, others := startedWith(t)
	waited, changed, read := forwarded(t, others[0], func() { leader.stop(t) })
	if err := ends(t, "the call that looks", read); err != nil {
		t.Errorf("the call that looks: %v", err)
	}
	if err := ends(t, "the call that waits", waited); reasonOf(err) != quotav1.Reason_REASON_UNKNOWN_OUTCOME {
		t.Errorf("the call that waits: %v", err)
	}
	// It may have arrived so late that the new leader executed it.
	if err := ends(t, "the call that changes", changed); err != nil && reasonOf(err) != quotav1.Reason_REASON_UNKNOWN_OUTCOME {
		t.Errorf("the call that changes: %v", err)
	}
}

// TestForward_OutlivesAMajority: if no other leader can be elected, calls at the stopped leader end as well.
func TestForward_OutlivesAMajority(t *testing.T) {
	if testing.Short() {
		t.Skip("pings take ten seconds to find a stopped node")
	}
	leader, others := startedWith(t)
	waited, changed, read := forwarded(t, others[0], func() { leader.stop(t); others[1].stop(t) })
	for what, call := range map[string]<-chan error{
		"the call that waits": waited, "the call that changes": changed, "the call that looks": read,
	} {
		if err := ends(t, what, call); reasonOf(err) != quotav1.Reason_REASON_UNKNOWN_OUTCOME &&
			reasonOf(err) != quotav1.Reason_REASON_NO_LEADER {
			t.Errorf("%s: %v", what, err)
		}
	}
}
