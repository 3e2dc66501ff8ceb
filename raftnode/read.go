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

// Linearizable reads see everything acknowledged before they began; Stale ones see what this node has.
const (
	Linearizable ReadMode = 1
	Stale        ReadMode = 2
)

// Read calls fn with the state under the read lock, and the moment at which to look at it; fn must be short and keep
// nothing. For Linearizable this node must lead (*NotAcceptedError otherwise).
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

// Frozen is Read for long work: the state that it returns never changes and needs no lock.
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

// readClock returns the moment at which a read shows a state. While time changes anything, that is the state's own, which a
// majority has: time that only this leader has seen pass may not have passed for the next one, and what a read showed as
// free would be taken again. It is at most a tick old, since then entries carry time. Where nothing is pending no entry is
// written, and only windows change, by the clocks of a majority.
func readClock(state *fsm.State, present fsm.Clock) fsm.Clock {
	if state.Pending() {
		return state.Clock()
	}
	return atLeast(present, state.Clock())
}

// atLeast returns a moment that is not before the state's own.
func atLeast(clock, state fsm.Clock) fsm.Clock {
	return fsm.Clock{
		Now: max(clock.Now, state.Now), WallEarly: max(clock.WallEarly, state.WallEarly), WallLate: max(clock.WallLate, state.WallEarly),
		Shift: state.Shift,
	}
}

func positionOf(state *fsm.State) Position {
	return Position{Term: state.Term(), Index: state.Index(), ClusterTime: state.Clock().Now}
}

// Clock returns the present moment: on the leader its clock, elsewhere the state's. A node that was deposed goes on with
// its old leader's clock where that is ahead: an answer that it still owes must not promise more than is left.
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

// readable waits until a read of this mode may look at the state.
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

// probes are rounds of the term probe, which makes a read linearizable without a log write.
//
// A leader of a later term needs a majority of voters whose durable term is that one. If, after a read began, a
// majority of voters still shows this leader's term, then no such election was over when it began; so everything that
// was acknowledged before came from leaders up to this one and is in its state, because acknowledgements follow apply
// and its barrier is applied. Raft's own VerifyLeader counts answers to questions that were sent before the read began.
type probes struct {
	mu sync.Mutex
	// next is the round that reads which come now join; running tells whether there is one.
	next    *round
	running bool
}

type round struct {
	term uint64
	done chan struct{}
	err  error
}

// join waits for a round that begins after now.
func (p *probes) join(ctx context.Context, n *Node, term uint64) error {
	p.mu.Lock()
	if p.next != nil && p.next.term != term {
		// Those who wait for it asked a leader that has fallen meanwhile.
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

// run runs rounds as long as somebody waits for one.
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

// holdsTerm asks the voters whether a majority still is in this leader's term.
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
	// Looked up after the replies: a node that was deposed meanwhile does not count itself.
	return got >= need && n.raft.State() == raft.Leader && n.raft.CurrentTerm() == term
}
