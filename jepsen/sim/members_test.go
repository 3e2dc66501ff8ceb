package sim

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// withLearner runs a cluster of three in a bubble, with a fourth node that is a learner and has caught up.
func withLearner(t *testing.T, fn func(t *testing.T, w *world, leader, learner string, others []string)) {
	t.Helper()
	dir := folder(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(plan{nodes: 3, heartbeat: 350 * time.Millisecond, threshold: 10_000}, rand.New(rand.NewPCG(1, 1)), dir)
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
		learner := address(3)
		w.enlist(learner)
		if eventually(30*time.Second, func() bool { return w.leader() != "" }) != nil || !w.define() {
			t.Fatal("no leader")
		}
		leader := w.leader()
		if err := w.node(leader).AddLearner(t.Context(), learner, learner, learner); err != nil {
			t.Fatal(err)
		}
		if eventually(30*time.Second, w.alike) != nil {
			t.Fatal("the learner never caught up")
		}
		fn(t, w, leader, learner, without(without(w.all(), leader), learner))
	})
}

// TestPromote_AcknowledgedOnceCommitted: a leader that is cut off from the other voters has the promotion in its log. A second
// request must not be acknowledged, since the other voters know nothing of it.
func TestPromote_AcknowledgedOnceCommitted(t *testing.T) {
	withLearner(t, func(t *testing.T, w *world, old, learner string, others []string) {
		for _, other := range others {
			w.cut(other, true, true)
		}
		node, first := w.node(old), make(chan error, 1)
		go func() { first <- node.Promote(context.Background(), learner) }()
		time.Sleep(50 * time.Millisecond) //nolint:forbidigo // virtual time: it goes into the log in less, and the leader leads for longer
		if err := node.Promote(t.Context(), learner); err == nil {
			t.Error("it was acknowledged the second time")
		}
		if err := <-first; err == nil {
			t.Error("it was acknowledged the first time")
		}
		if !votes(w, old, learner) {
			t.Error("the promotion was not in the leader's log: the test shows nothing")
		}
	})
}

// TestPromote_VoterLackingItBlocksElection: raft's voters refuse a candidate that they do not know as a voter. If one voter lacks a
// promotion, another one the entries after it, and the leader is away, no node can be elected although three of four run. The promoted node
// has the longest log, and the first voter refuses it. The block ends when the leader returns. If this test fails, raft has changed, and an
// operator need not wait for all voters before a disk may be lost (docs/operations.md).
func TestPromote_VoterLackingItBlocksElection(t *testing.T) {
	withLearner(t, func(t *testing.T, w *world, old, learner string, others []string) {
		w.cut(others[0], true, true)
		node := w.node(old)
		if err := node.Promote(t.Context(), learner); err != nil {
			t.Fatal(err)
		}
		w.cut(others[1], true, true)
		before := w.node(learner).Status().LastIndex
		go func() { _, _, _ = node.Propose(context.Background(), openSession("c")) }()
		if eventually(200*time.Millisecond, func() bool { return w.node(learner).Status().LastIndex > before }) != nil {
			t.Fatal("the learner has no longer log than the others")
		}
		w.kill(old)
		w.mesh.heal()
		led := func() bool { return w.leader() != "" }
		if eventually(5*time.Minute, led) == nil {
			t.Errorf("%s leads", w.leader())
		}
		w.again(old)
		if eventually(time.Minute, led) != nil {
			t.Error("nobody leads when all are there again")
		}
	})
}

// votes says whether one node knows another one as a voter.
func votes(w *world, id, of string) bool {
	for _, m := range w.node(id).Status().Members {
		if m.ID == of {
			return m.Voter
		}
	}
	return false
}
