package demo

import (
	"os"
	"testing"
	"time"
)

// A node that ends by itself, as it does when its disk stalls, is started again; one that was killed on purpose is not.
func TestClusterIsMended(t *testing.T) {
	if testing.Short() {
		t.Skip("three processes for some seconds")
	}
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := openFolder(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.close()
	nursery := newNursery(binary, folder.path+"/logs")
	defer nursery.close(10 * time.Second)
	c, err := newCluster(nursery, folder.path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	for _, n := range c.nodes {
		if err := c.start(n); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.nodes[0].kill()
	c.nodes[1].process.kill()
	mended, err := c.mend()
	if err != nil || len(mended) != 1 || mended[0] != c.nodes[1] {
		t.Fatalf("mended %v, %v", mended, err)
	}
	if mended, err := c.mend(); err != nil || len(mended) != 0 {
		t.Fatalf("mended twice: %v, %v", mended, err)
	}
	if err := c.start(c.nodes[0]); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(startTimeout)
	for {
		v := c.look(t.Context())
		if v.Leader >= 0 && v.Nodes[0] != "down" && v.Nodes[1] != "down" && len(v.Quotas) == 4 {
			return
		}
		if time.Now().After(deadline) || !pause(t.Context(), 50*time.Millisecond) {
			t.Fatalf("the cluster did not recover: %+v", v)
		}
	}
}

func TestClusterGivesUpOnANodeThatEndsAgainAndAgain(t *testing.T) {
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	nursery := newNursery(binary, t.TempDir())
	defer nursery.close(time.Second)
	n := &node{id: "n1", config: "/does/not/exist"}
	c := &cluster{nursery: nursery, nodes: []*node{n}}
	if err := c.start(n); err != nil {
		t.Fatal(err)
	}
	for range mostMended {
		<-n.process.ended
		if mended, err := c.mend(); err != nil || len(mended) != 1 {
			t.Fatalf("%v, %v", mended, err)
		}
	}
	<-n.process.ended
	if _, err := c.mend(); err == nil {
		t.Error("it is started for ever")
	}
}
