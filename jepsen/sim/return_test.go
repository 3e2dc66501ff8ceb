package sim

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// TestReturn_NodeCountsAtOnce: raft waits up to ten seconds before it contacts a follower again that was away for long, and
// meanwhile that follower counts towards no majority. (Found by the fault suite: mix default, seed 22: three seconds without service when
// the other follower paused.)
func TestReturn_NodeCountsAtOnce(t *testing.T) {
	dir := folder(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(plan{nodes: 3, heartbeat: 350 * time.Millisecond, threshold: 10_000}, rand.New(rand.NewPCG(1, 1)), dir)
		for i := range 3 {
			if err := w.start(address(i)); err != nil {
				t.Fatal(err)
			}
		}
		defer func() {
			for i := range 3 {
				w.stop(address(i))
			}
		}()
		if eventually(30*time.Second, func() bool { return w.leader() != "" }) != nil || !w.define() {
			t.Fatal("no leader")
		}
		away := address(0)
		if away == w.leader() {
			away = address(1)
		}
		for _, length := range []time.Duration{time.Second, 20 * time.Second, 3 * time.Minute} {
			w.kill(away)
			c := w.newClient(1, "c")
			for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(length / 10) { //nolint:forbidigo // virtual time
				c.do(context.Background(), openSession(c.name))
			}
			if err := w.start(away); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			if eventually(time.Minute, func() bool {
				leader := w.node(w.leader())
				return leader != nil && w.node(away).Status().AppliedIndex >= leader.Status().CommitIndex
			}) != nil {
				t.Fatal("it never caught up")
			}
			if took := time.Since(began); took > time.Second {
				t.Errorf("after %v away it took %v until it was replicated to", length, took)
			}
		}
	})
}

// TestFailover_DoesNotWaitForCutOffNode: a new leader needs the wall clocks of a majority, not that of the old leader, which is cut off.
func TestFailover_DoesNotWaitForCutOffNode(t *testing.T) {
	for seed := range uint64(5) {
		dir := folder(t)
		synctest.Test(t, func(t *testing.T) {
			const heartbeat = 40 * time.Millisecond
			w := newWorld(plan{nodes: 3, heartbeat: heartbeat, threshold: 10_000}, rand.New(rand.NewPCG(seed, 1)), dir)
			for i := range 3 {
				if err := w.start(address(i)); err != nil {
					t.Fatal(err)
				}
			}
			defer func() {
				w.mesh.heal()
				for i := range 3 {
					w.stop(address(i))
				}
				time.Sleep(time.Minute) //nolint:forbidigo // virtual time: what raft forgot ends by its deadlines
			}()
			if eventually(30*time.Second, func() bool { return w.leader() != "" }) != nil || !w.define() {
				t.Fatal("no leader")
			}
			// The last node takes part a moment after the others: until then it refuses raft's messages.
			if eventually(30*time.Second, w.alike) != nil {
				t.Fatal("a node never caught up")
			}
			old := w.leader()
			w.cut(old, true, true)
			began := time.Now()
			if eventually(time.Minute, func() bool { leader := w.leader(); return leader != "" && leader != old }) != nil {
				t.Fatal("nobody leads")
			}
			// Two of the slowest elections, and far less than the timeout for a silent peer.
			if took := time.Since(began); took > 10*heartbeat {
				t.Errorf("seed %d: the new leader was ready after %v", seed, took)
			}
		})
	}
}
