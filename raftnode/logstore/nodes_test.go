package logstore_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// openOne opens a cluster of one and waits until it has formed. It returns the settings with which to open it again.
func openOne(t *testing.T, change ...func(*raftnode.Config)) (*raftnode.Node, raftnode.Config) {
	t.Helper()
	conf := raftnode.DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress, conf.Testing = "n", t.TempDir(), "127.0.0.1:0", true
	conf.Peers, conf.LogStore = []raftnode.Peer{{ID: "n", RaftAddress: "127.0.0.1:0"}}, logstore.UnderTest
	conf.ApplyTimeout, conf.StallLimit = time.Minute, 30*time.Second // other tests that load the machine must not end a node
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLease = 20*time.Millisecond, 20*time.Millisecond, 10*time.Millisecond
	for _, fn := range change {
		fn(&conf)
	}
	n, err := raftnode.Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Kill)
	poll(t, "the cluster is founded", func() bool { return leads(n) && n.Status().ClusterID != "" })
	return n, conf
}

// openWithSnapshot starts a node that has made a snapshot and still has its whole log.
func openWithSnapshot(t *testing.T) (*raftnode.Node, raftnode.Config) {
	t.Helper()
	n, conf := openOne(t, func(c *raftnode.Config) {
		c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = 20, 20*time.Millisecond, 1000
	})
	if _, _, err := n.Propose(t.Context(), slots(1000)); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
			t.Fatal(err)
		}
	}
	poll(t, "a snapshot", func() bool { return n.Status().SnapshotIndex > 20 })
	return n, conf
}

func leads(n *raftnode.Node) bool {
	_, _, self := n.Leader()
	return self
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("never happened: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

func slots(limit int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{{
		Name: "q", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: limit}},
	}}}}}
}

func take(amount int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
		Holder: "h", Items: []*logpb.Item{{Quota: "q", Amount: &amount}}, TtlNs: int64(time.Hour),
	}}}
}
