package sim

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestSnapshot_FollowerContinuesAfterLostAnswer: the answer to the first entries after a snapshot gets lost, and the leader sends them
// again. The follower has them, but of the preceding entry it has only the term and index in the snapshot.
func TestSnapshot_FollowerContinuesAfterLostAnswer(t *testing.T) {
	for range 5 { // a leader that takes another snapshot in time hides the defect
		dir := folder(t)
		synctest.Test(t, func(t *testing.T) { losesTheAnswer(t, dir) })
	}
}

func losesTheAnswer(t *testing.T, dir string) {
	w := newWorld(plan{nodes: 3, heartbeat: 350 * time.Millisecond, threshold: 20}, rand.New(rand.NewPCG(1, 1)), dir)
	defer func() {
		w.mesh.heal()
		for _, id := range w.disband() {
			w.stop(id)
		}
		time.Sleep(time.Minute) //nolint:forbidigo // virtual time: what raft forgot ends by its deadlines
	}()
	for _, id := range w.all() {
		if err := w.start(id); err != nil {
			t.Fatal(err)
		}
	}
	if eventually(30*time.Second, func() bool { return w.leader() != "" }) != nil || !w.define() {
		t.Fatal("no leader")
	}
	leader := w.leader()
	away := without(w.all(), leader)[0]
	w.kill(away)
	c := w.newClient(1, "c")
	for range 100 {
		c.do(context.Background(), openSession(c.name))
		time.Sleep(20 * time.Millisecond) //nolint:forbidigo // virtual time: snapshots are taken meanwhile
	}
	before := w.logs.count()
	w.again(away)
	soon := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(20 * time.Microsecond) { //nolint:forbidigo // virtual time
			if time.Now().After(end) {
				t.Fatal("never happened: " + what)
			}
		}
	}
	soon("a snapshot is installed", func() bool { return w.logs.count() > before })
	node := w.node(away)
	has := node.Status().LastIndex
	go c.do(context.Background(), openSession(c.name))
	soon("entries after the snapshot", func() bool { return node.Status().LastIndex > has })
	w.mesh.reset(away, "")
	w.mesh.heal()
	if eventually(time.Minute, w.alike) != nil {
		t.Errorf("it never caught up, and was given %d snapshots", w.logs.count()-before)
	}
}
