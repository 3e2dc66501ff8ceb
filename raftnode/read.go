package raftnode

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/raftnode/peer"
)

// ReadMode chooses how fresh a read is.
type ReadMode int

// Linearizable reads see everything acknowledged before they began. Stale reads see this node's state.
const (
	Linearizable ReadMode = 1
	Stale        ReadMode = 2
)

// Read calls fn with the state, the moment for which to evaluate it, and its position. fn runs under the read lock: it must be short and
// keep no reference to the state. For Linearizable this node must lead (*NotAcceptedError otherwise).
func (n *Node) Read(ctx context.Context, mode ReadMode, fn func(*fsm.State, fsm.Clock, Position)) error {
	if err := n.readable(ctx, mode); err != nil {
		return err
	}
	present := n.Clock()
	n.mu.RLock()
	defer n.mu.RUnlock()
	state := n.machine.State()
	fn(state, readClock(state, present), positionOf(state))
	return nil
}

// Frozen is Read for long work: the returned state never changes and needs no lock.
func (n *Node) Frozen(ctx context.Context, mode ReadMode) (*fsm.State, fsm.Clock, Position, error) {
	if err := n.readable(ctx, mode); err != nil {
		return nil, fsm.Clock{}, Position{}, err
	}
	present := n.Clock()
	n.mu.Lock()
	state := n.machine.Freeze()
	n.mu.Unlock()
	return state, readClock(state, present), positionOf(state), nil
}

// readClock returns the moment for which a read evaluates a state. While time can change anything, that is the state's own time, which a
// majority has. Time that only this leader has seen pass may not have passed for the next one, and quota that a read showed as free would
// be taken again. The state's time is at most a tick old, since entries carry time while anything is pending. Otherwise no entry is
// written, and only windows change, by the clocks of a majority.
func readClock(state *fsm.State, present fsm.Clock) fsm.Clock {
	if state.Pending() {
		return state.Clock()
	}
	return atLeast(present, state.Clock())
}

// atLeast returns a moment that is not before the state's own. The later view is never before the earlier one.
func atLeast(clock, state fsm.Clock) fsm.Clock {
	return fsm.Clock{
		Now: max(clock.Now, state.Now), WallEarly: max(clock.WallEarly, state.WallEarly), WallLate: max(clock.WallLate, state.WallEarly),
		Shift: state.Shift,
	}
}

func positionOf(state *fsm.State) Position {
	return Position{Term: state.Term(), Index: state.Index(), ClusterTime: state.Clock().Now}
}

// Clock returns the present moment: on the leader its clock, elsewhere the state's. A deposed node continues with its former leader's clock
// if that is ahead: a pending answer must not promise more time than is left.
func (n *Node) Clock() fsm.Clock {
	n.mu.RLock()
	own := n.machine.State().Clock()
	n.mu.RUnlock()
	lead := n.lastLeadership.Load()
	if lead == nil {
		return own
	}
	present := n.presentClock(&lead.clock)
	if present.WallEarly == 0 && own.WallEarly != 0 {
		present.WallEarly, present.WallLate = own.WallEarly, own.WallLate+max(present.Now-own.Now, 0)
	}
	return atLeast(present, own)
}

// readable waits until a read of this mode may use the state.
func (n *Node) readable(ctx context.Context, mode ReadMode) error {
	if ctx.Err() != nil {
		return n.notAccepted(Canceled)
	}
	if mode == Stale {
		return nil
	}
	lead := n.leading.Load()
	if lead == nil {
		return n.notAccepted(n.whyNotLeading())
	}
	return n.probes.join(ctx, n, lead.term)
}

// probes runs rounds of the term probe, which makes a read linearizable without a log write.
//
// A leader of a later term needs a majority of voters whose durable term is that one. If a majority of voters still shows this leader's
// term after a read began, no such election was complete at its beginning. So leaders up to this one acknowledged everything before that.
// All of it is in this leader's state, because acknowledgements follow apply and its barrier is applied. Raft's own VerifyLeader does not
// suffice: it counts answers to requests sent before the read began.
type probes struct {
	mu sync.Mutex
	// next is the round that new reads join; running tells whether run is running.
	next    *round
	running bool
}

type round struct {
	term uint64
	done chan struct{}
	err  error
}

// join waits for a round that begins after the call.
func (p *probes) join(ctx context.Context, n *Node, term uint64) error {
	p.mu.Lock()
	if p.next != nil && p.next.term != term {
		// The reads that wait for this round asked a leader of another term.
		p.next.err = n.notAccepted(NotLeader)
		close(p.next.done)
		p.next = nil
	}
	if p.next == nil {
		p.next = &round{term: term, done: make(chan struct{})}
	}
	mine := p.next
	if !p.running {
		p.running = true
		n.wg.Add(1)
		go p.run(n)
	}
	p.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return n.notAccepted(Canceled)
	case <-n.done:
		return n.notAccepted(Stopping)
	}
}

// run runs rounds while reads wait for one.
func (p *probes) run(n *Node) {
	defer n.wg.Done()
	for {
		p.mu.Lock()
		current := p.next
		p.next = nil
		if current == nil {
			p.running = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		n.metrics.probes.Inc()
		if !n.holdsTerm(current.term) {
			current.err = n.notAccepted(NotLeader)
		}
		close(current.done)
	}
}

// holdsTerm asks the voters whether a majority is still in this leader's term.
func (n *Node) holdsTerm(term uint64) bool {
	voters, self := n.voters()
	need := len(voters)/2 + 1
	got := 0
	replies := make(chan bool, len(voters))
	ctx, cancel := context.WithTimeout(context.Background(), max(n.config.ElectionTimeout, time.Second))
	defer cancel()
	asked := 0
	for _, v := range voters {
		if string(v.ID) == n.config.ID {
			continue
		}
		asked++
		n.wg.Go(func() {
			sent := n.config.Clock.Monotonic()
			reply, err := n.port.Ask(ctx, string(v.ID), string(v.Address), peer.Request{Kind: "probe"})
			if err == nil && reply.Node == string(v.ID) {
				n.samples.add(reply.Node, reply.Wall, sent, n.config.Clock.Monotonic())
			}
			replies <- err == nil && reply.Node == string(v.ID) && reply.Term == term
		})
	}
	if self {
		got++
	}
	for ; asked > 0 && got < need; asked-- {
		if <-replies {
			got++
		}
	}
	// Checked after the replies: a node deposed meanwhile must not count itself.
	return got >= need && n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term
}
