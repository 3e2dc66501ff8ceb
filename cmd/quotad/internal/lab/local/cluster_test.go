package local

import (
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/quotad/quotad/rpc/quotav1"
)

// newCluster returns a cluster of this binary that is not started.
func newCluster(t *testing.T) *Cluster {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	nursery := NewNursery(binary, dir)
	t.Cleanup(func() { nursery.Close(10 * time.Second) })
	c, err := NewCluster(nursery, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	return c
}

// TestCluster_NotReadyWithoutNode: a cluster is not ready without all of its nodes. If another process has the address of
// one, the start fails.
func TestCluster_NotReadyWithoutNode(t *testing.T) {
	c := newCluster(t)
	taken, err := net.Listen("tcp", c.Nodes[2].api)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, n := range c.Nodes {
		if err := c.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	quotas := &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{{Name: "q", Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: 1}}}}}
	if err := c.Ready(t.Context(), quotas); err == nil || !strings.Contains(err.Error(), "node n3 ended") {
		t.Errorf("ready: %v", err)
	}
}

// TestCluster_RestartsAStoppedNode: Revive restarts a node that ends unexpectedly, as one does whose disk stalls, but not one
// that was killed deliberately.
func TestCluster_RestartsAStoppedNode(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes for some seconds")
	}
	c := newCluster(t)
	for _, n := range c.Nodes {
		if err := c.Start(n); err != nil {
			t.Fatal(err)
		}
	}
	wrong := &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{{Name: "q"}}}
	if err := c.Ready(t.Context(), wrong); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Fatalf("a quota without a rule: %v", err)
	}
	quotas := &quotav1.ApplyQuotasRequest{Quotas: []*quotav1.Quota{{Name: "q", Rule: &quotav1.Quota_Slots{Slots: &quotav1.Slots{Limit: 1}}}}}
	if err := c.Ready(t.Context(), quotas); err != nil {
		t.Fatal(err)
	}
	c.Nodes[0].Kill()
	c.Nodes[1].process.Kill()
	revived, err := c.Revive()
	if err != nil || len(revived) != 1 || revived[0] != c.Nodes[1] {
		t.Fatalf("revived %v, %v", revived, err)
	}
	if revived, err := c.Revive(); err != nil || len(revived) != 0 {
		t.Fatalf("revived twice: %v, %v", revived, err)
	}
	if err := c.Start(c.Nodes[0]); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(StartTimeout)
	for {
		v := c.Observe(t.Context())
		if v.Leader >= 0 && v.Nodes[0] != "down" && v.Nodes[1] != "down" && len(v.Quotas) == 1 {
			return
		}
		if time.Now().After(deadline) || !pause(t.Context(), 50*time.Millisecond) {
			t.Fatalf("the cluster did not recover: %+v", v)
		}
	}
}

func TestCluster_StopsRestartingFailingNode(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	nursery := NewNursery(binary, t.TempDir())
	defer nursery.Close(time.Second)
	n := &Node{ID: "n1", config: "/does/not/exist"}
	c := &Cluster{nursery: nursery, Nodes: []*Node{n}}
	if err := c.Start(n); err != nil {
		t.Fatal(err)
	}
	for range mostRevivals {
		<-n.process.ended
		if revived, err := c.Revive(); err != nil || len(revived) != 1 {
			t.Fatalf("%v, %v", revived, err)
		}
	}
	<-n.process.ended
	if _, err := c.Revive(); err == nil {
		t.Error("it is started without an end")
	}
}
