package raftnode

import (
	"io"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// machine is raft's view of the state machine. It holds the lock that fsm does not have, and forwards what happens.
type machine struct{ n *Node }

// Apply implements raft.FSM. A panic in it is meant to stop the process: going on would make replicas differ. From an entry on that
// this node could not write nothing is applied any more, and raft answers whoever waits without a result.
func (m machine) Apply(log *raft.Log) any {
	n := m.n
	if n.log.Wait(log.Index) != nil {
		return nil
	}
	n.config.crash.pass("before-apply")
	n.mu.Lock()
	apply, recorded := n.machine.Follow, n.config.Testing && n.config.Applied != nil
	if n.proposer.inFlight.Load() > 0 || recorded {
		apply = n.machine.Apply
	}
	applied := apply(log.Index, log.Term, log.Data)
	if recorded {
		n.config.Applied(&applied, log.Data, func() [32]byte {
			ledger, _ := n.machine.State().Hash()
			return ledger
		})
	}
	for i := range applied.Events {
		if event := &applied.Events[i]; event.Ticket != 0 && event.Result != nil {
			n.tickets.end(event.Ticket, event.Result, Position{Term: log.Term, Index: log.Index, ClusterTime: applied.Clock.Now})
		}
	}
	id := n.machine.State().ClusterID()
	n.appliedIndex.Store(log.Index)
	n.level.Store(n.machine.State().FeatureLevel())
	n.shift.Store(n.machine.State().Clock().Shift)
	lead := n.leading.Load()
	sooner := lead != nil && n.nextDue(lead) < n.nextTick
	n.mu.Unlock()
	n.learnCluster(id)
	n.hub.publish(&applied)
	if sooner {
		n.kickTicker()
	}
	n.proposer.applied(log.Data, &applied) // which has a lock of its own, and may not be asked under the node's
	n.config.crash.pass("after-apply")
	return nil
}

// Snapshot implements raft.FSM. Freezing takes no time; the state is written while commands go on. What is no longer applied would
// be missing in it.
func (m machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.n.log.Err(); err != nil {
		return nil, err
	}
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return frozen{state: m.n.machine.Freeze(), crash: m.n.config.crash}, nil
}

// Restore implements raft.FSM. The new state is built beside the old one, which readers keep until then.
func (m machine) Restore(from io.ReadCloser) error {
	m.n.config.crash.pass("in-restore")
	restored, err := fsm.Restore(from)
	if err != nil {
		return err
	}
	n := m.n
	if dropped := restored.DroppedResults(); dropped > 0 {
		n.logger.Warn("dropped stored results of ended sessions from the snapshot", "results", dropped)
	}
	n.mu.Lock()
	n.machine = restored
	n.restores.Add(1)
	at, id := positionOf(restored.State()), restored.State().ClusterID()
	n.appliedIndex.Store(at.Index)
	n.level.Store(restored.State().FeatureLevel())
	n.shift.Store(restored.State().Clock().Shift)
	n.tickets.failAll()
	n.mu.Unlock()
	n.learnCluster(id)
	n.hub.reset(at)
	return from.Close()
}

type frozen struct {
	state *fsm.State
	crash *crashPoints
}

// Persist implements raft.FSMSnapshot.
func (f frozen) Persist(sink raft.SnapshotSink) error {
	f.crash.pass("in-snapshot")
	if err := f.state.WriteSnapshot(sink); err != nil {
		_ = sink.Cancel()
		return err
	}
	if own, ok := sink.(*checkedSink); ok {
		own.of = f.state
	}
	return sink.Close()
}

// Release implements raft.FSMSnapshot.
func (frozen) Release() {}

// learnCluster writes the cluster's id into the data directory as soon as it is known.
func (n *Node) learnCluster(id string) {
	if id == "" || n.cluster.Load() != nil && *n.cluster.Load() == id {
		return
	}
	n.cluster.Store(&id)
	if err := n.log.WritePart(logstore.ClusterFile, id); err != nil {
		n.fail(err)
	}
}
