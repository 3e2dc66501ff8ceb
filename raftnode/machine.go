package raftnode

import (
	"io"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/logstore"
)

// machine is raft's view of the state machine. It holds the lock that package fsm lacks, and forwards results and events.
type machine struct{ n *Node }

// Apply implements raft.FSM. A panic in it must stop the process: otherwise replicas would diverge. From the first entry that this node
// could not write, no entry is applied, and raft answers its futures without a result.
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
	began := n.config.Clock.Monotonic()
	applied := apply(log.Index, log.Term, log.Data)
	took := n.config.Clock.Monotonic() - began
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
	n.proposer.applied(log.Data, &applied, took) // takes proposer.mu, which must not be taken under n.mu
	n.config.crash.pass("after-apply")
	return nil
}

// Snapshot implements raft.FSM. Freezing takes no time: the state is written while commands are applied. It fails after a failed write: the
// state would lack the entries that were not applied.
func (m machine) Snapshot() (raft.FSMSnapshot, error) {
	if err := m.n.log.Err(); err != nil {
		return nil, err
	}
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return frozen{state: m.n.machine.Freeze(), crash: m.n.config.crash}, nil
}

// Restore implements raft.FSM. The new state is built while readers still use the old one.
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

// learnCluster writes the cluster's id into the data directory once it is known.
func (n *Node) learnCluster(id string) {
	if id == "" || n.cluster.Load() != nil && *n.cluster.Load() == id {
		return
	}
	n.cluster.Store(&id)
	if err := n.log.WritePart(logstore.ClusterFile, id); err != nil {
		n.fail(err)
	}
}
