package realcluster

import (
	"context"
	"errors"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/quotad/quotad/client"
	"github.com/quotad/quotad/raftnode"
)

// tunnel connects to one address only, like kubectl port-forward. Connections to other addresses hang.
type tunnel struct{ to string }

func (u tunnel) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if address != u.to {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: errors.New("lost")}
	}
	var dialer net.Dialer
	return dialer.DialContext(ctx, network, address)
}

// TestClient_WorksThroughATunnelToAFollower: if the leader is unreachable, the answering node forwards, even when it accepts no waits.
func TestClient_WorksThroughATunnelToAFollower(t *testing.T) {
	t.Run("with memory", func(t *testing.T) { throughATunnel(t, 50) })
	t.Run("with little memory", func(t *testing.T) { throughATunnel(t, 86) })
}

// throughATunnel takes and waits through a follower that uses this percentage of its memory limit.
func throughATunnel(t *testing.T, used int64) {
	t.Helper()
	cluster := start(t, 3)
	cluster.apply(rate("t/core", 100, time.Minute))
	leader := cluster.leader()
	var follower *member
	for _, m := range cluster.members {
		if m != leader {
			follower = m
		}
	}
	cluster.stop(follower)
	follower.config.MemoryLimit, follower.config.Memory = 100, func() (int64, error) { return used, nil }
	cluster.run(follower)
	eventually(t, "the follower knows the leader and its memory", func() bool {
		_, address, _ := follower.node.Leader()
		return address != "" && follower.node.MemoryFull() == (used > raftnode.MemoryMark)
	})
	through := &http.Transport{DialContext: tunnel{follower.config.APIAddress}.dial}
	defer through.CloseIdleConnections()
	reaching := client.WithHTTPClient(&http.Client{Transport: through})
	c, err := client.New([]string{follower.config.APIAddress}, reaching, client.WithHolder("picard"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := c.Ready(ctx); err != nil {
		t.Fatal(err)
	}
	limiter := c.Limiter("t/core", client.MaxBatch(1))
	for i := range 20 {
		if err := limiter.Wait(ctx); err != nil {
			t.Fatalf("take %d: %v", i+1, err)
		}
	}
	// A wait in the queue goes through the follower as well.
	held, err := c.Reserve(ctx, client.ReserveRequest{Items: one("t/core", 80)})
	if err != nil {
		t.Fatal(err)
	}
	granted := make(chan error, 1)
	go func() {
		_, err := c.Reserve(ctx, client.ReserveRequest{Items: one("t/core", 50), Wait: 20 * time.Second})
		granted <- err
	}()
	eventually(t, "one waits", func() bool {
		quota, err := c.Quota(ctx, "t/core")
		return err == nil && quota.Waiting == 1
	})
	if _, err := held.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-granted; err != nil {
		t.Error(err)
	}
}
