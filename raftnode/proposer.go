package raftnode

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/budget"
)

// proposer turns concurrent calls into log entries. While an entry is in flight, new calls queue up; the next entry
// takes it all, within its bounds. So load decides the batch, and an idle proposer adds no delay.
type proposer struct {
	n *Node

	mu sync.Mutex
	// queue holds calls with commands that are not in an entry yet. Callers share its room.
	queue    callQueue
	commands int
	bytes    int
	room     queueRoom
	closed   bool
	// time asks for an entry without commands, unless one with commands goes.
	time  atomic.Bool
	wake  chan struct{}
	slots chan struct{}
	// flights are the entries in flight. Each holds a slot.
	flights []*flight
}

// usualCommand is how many bytes most commands take at most, encoded.
const usualCommand = 256

// call is one Propose.
type call struct {
	ctx      context.Context
	commands []*logpb.Command
	// own is set where the node itself calls, and nobody's budget is charged.
	own bool
	// line is where the call is queued, nil where it is not; before and behind are its neighbours there.
	line           *line
	before, behind *call
	// encoded are the commands as they stand in an entry; ends is where each of them ends there.
	encoded []byte
	ends    []int
	// next is the first command that is not in an entry yet; left counts those without a result.
	next, left int
	results    []*logpb.Result
	at         Position
	err        error
	finished   chan struct{}
}

// queueRoom is what callers share of the proposer's queue.
type queueRoom struct{ commands, bytes *budget.Budget }

func newQueueRoom(commands, bytes int) queueRoom {
	share := func(name string, whole int) *budget.Budget {
		return budget.New(name, int64(whole), int64(whole/16), int64(max(1, whole/32)))
	}
	return queueRoom{share("commands", commands), share("command_bytes", bytes)}
}

// take takes room for a call, or says which budget has none.
func (r queueRoom) take(c *call) *budget.FullError {
	of := func(from *budget.Budget, n int) *budget.FullError {
		if c.own { // the node itself works for all
			return from.TakeForAll(c.caller(), int64(n))
		}
		return from.Take(c.caller(), int64(n), c.commands[0].Operator)
	}
	if full := of(r.commands, len(c.commands)); full != nil {
		return full
	}
	full := of(r.bytes, len(c.encoded))
	if full != nil {
		r.commands.Give(c.caller(), int64(len(c.commands)))
	}
	return full
}

// ownWork is what the node's own calls are charged to.
const ownWork = "node"

// caller names whose budgets a call is charged to.
func (c *call) caller() string {
	if c.own {
		return ownWork
	}
	return c.commands[0].Caller
}

func newProposer(n *Node) *proposer {
	return &proposer{
		n: n, queue: newCallQueue(n.config.MaxEntryCommands, n.config.MaxEntryBytes),
		room: newQueueRoom(n.config.MaxQueueCommands, n.config.MaxQueueBytes),
		wake: make(chan struct{}, 1), slots: make(chan struct{}, n.config.EntriesInFlight),
	}
}

// QueueBudgets returns what callers share of the queue in which commands wait to be put into the log: commands, and their bytes.
func (n *Node) QueueBudgets() []*budget.Budget {
	return []*budget.Budget{n.proposer.room.commands, n.proposer.room.bytes}
}

// Propose sends commands through the log and returns their results by position. It returns when all are applied here,
// or with *NotAcceptedError (nothing was or will be applied), or *UnknownError (some may be). Commands of one call are
// applied in order, not necessarily in one entry. The position is that of the last entry. The commands' Caller says in
// whose line the call is queued, and whose part of the queue it uses.
func (n *Node) Propose(ctx context.Context, commands ...*logpb.Command) ([]*logpb.Result, Position, error) {
	return n.propose(ctx, false, &call{commands: commands})
}

// ProposeThrough is Propose for one that clears up after a caller who goes away. The end of ctx takes the call back while none of it is
// in an entry; from then on the outcome is waited for, and can still be an *UnknownError.
func (n *Node) ProposeThrough(ctx context.Context, commands ...*logpb.Command) ([]*logpb.Result, Position, error) {
	return n.propose(ctx, true, &call{commands: commands})
}

// proposeOwn is Propose for what the node itself needs in the log. It comes before all callers' commands, and is charged to none of them.
func (n *Node) proposeOwn(ctx context.Context, commands ...*logpb.Command) error {
	_, _, err := n.propose(ctx, false, &call{commands: commands, own: true})
	return err
}

func (n *Node) propose(ctx context.Context, through bool, c *call) ([]*logpb.Result, Position, error) {
	if len(c.commands) == 0 {
		return nil, Position{}, nil
	}
	c.ctx, c.left, c.results, c.finished = ctx, len(c.commands), make([]*logpb.Result, len(c.commands)), make(chan struct{})
	if err := n.proposer.ready(c.commands); err != nil {
		return nil, Position{}, err
	}
	switch err := c.encode(n.config.MaxEntryBytes / 2); {
	case errors.Is(err, errTooLarge):
		return nil, Position{}, n.notAccepted(TooLarge)
	case err != nil:
		return nil, Position{}, fmt.Errorf("encoding commands: %w", err)
	}
	if err := n.proposer.enqueue(c); err != nil {
		return nil, Position{}, err
	}
	if err := n.outcome(ctx, through, c); err != nil {
		return nil, Position{}, err
	}
	return c.results, c.at, nil
}

var errTooLarge = errors.New("the command is too large")

// encode encodes the commands, each of so many bytes in an entry at most: once and by who calls, so that an entry is put together without
// looking at them.
func (c *call) encode(most int) error {
	c.encoded, c.ends = nil, make([]int, len(c.commands))
	for i, command := range c.commands {
		encoded, err := entry.AppendCommand(c.encoded, command)
		if err != nil {
			return err
		}
		c.encoded, c.ends[i] = encoded, len(encoded)
		if len(c.span(i, i+1)) > most {
			return errTooLarge
		}
		if i == 0 { // the others are mostly as long
			c.encoded = slices.Grow(c.encoded, min(len(encoded), usualCommand)*(len(c.commands)-1))
		}
	}
	return nil
}

// span returns commands as they stand in an entry.
func (c *call) span(from, to int) []byte { return c.encoded[c.end(from):c.end(to)] }

// end returns where so many commands end.
func (c *call) end(commands int) int {
	if commands == 0 {
		return 0
	}
	return c.ends[commands-1]
}

// outcome waits until a call is finished, or nobody waits for it any more.
func (n *Node) outcome(ctx context.Context, through bool, c *call) error {
	timer := time.NewTimer(n.config.ApplyTimeout)
	defer timer.Stop()
	gone := ctx.Done()
	for {
		select {
		case <-c.finished:
			return c.err
		case <-gone:
			if n.proposer.cancel(c) {
				return n.notAccepted(Canceled)
			}
			gone = nil
			if through {
				continue
			}
			select {
			case <-c.finished:
				return c.err
			default:
				return &UnknownError{Err: ctx.Err()}
			}
		case <-timer.C:
			if n.proposer.cancel(c) {
				return n.notAccepted(NotReady)
			}
			return &UnknownError{Err: errors.New("the log did not answer in time")}
		case <-n.done:
			return &UnknownError{Err: errors.New("the node stopped")}
		}
	}
}

func (n *Node) notAccepted(cause NotAcceptedCause) *NotAcceptedError {
	id, address, _ := n.Leader()
	return &NotAcceptedError{Cause: cause, Leader: id, LeaderAPIAddress: address}
}

// ready tells whether commands can be taken at all, by what is known without looking at the queue.
func (p *proposer) ready(commands []*logpb.Command) error {
	if p.n.stopping.Load() {
		return p.n.notAccepted(Stopping)
	}
	if p.n.leading.Load() == nil {
		return p.n.notAccepted(p.n.whyNotLeading())
	}
	if p.n.diskLow.Load() && takes(commands) {
		return p.n.notAccepted(DiskFull)
	}
	if p.n.memoryFull.Load() && grows(commands) {
		return p.n.notAccepted(MemoryFull)
	}
	if version := p.n.entryVersion.Load(); version < fsm.EntryVersion && entry.VersionOf(commands) > version {
		return p.n.notAccepted(OldMember)
	}
	return nil
}

// enqueue puts a call into the queue.
func (p *proposer) enqueue(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.n.notAccepted(Stopping)
	}
	if takes(c.commands) {
		// What frees quota still finds room when what takes it does not.
		commands, bytes := p.n.config.MaxQueueCommands, p.n.config.MaxQueueBytes
		if p.commands+len(c.commands) > commands-commands/8 || p.bytes+len(c.encoded) > bytes-bytes/8 {
			return p.n.notAccepted(QueueFull)
		}
	}
	if full := p.room.take(c); full != nil {
		refused := p.n.notAccepted(QueueFull)
		refused.Full = full
		return refused
	}
	p.queue.push(c)
	p.commands += len(c.commands)
	p.bytes += len(c.encoded)
	p.n.metrics.queued.Set(float64(p.commands))
	p.kick()
	return nil
}

// takes tells whether any of the commands takes quota, or begins work that will.
func takes(commands []*logpb.Command) bool {
	for _, command := range commands {
		if command.GetReserve() != nil || command.GetBeginTask() != nil {
			return true
		}
	}
	return false
}

// grows tells whether any of the commands makes the state larger for longer than a moment: grants, what waits for them, sessions.
func grows(commands []*logpb.Command) bool {
	return takes(commands) || slices.ContainsFunc(commands, func(c *logpb.Command) bool { return c.GetOpenSession() != nil })
}

func (p *proposer) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// dequeueLocked records that so many of a call's commands, of so many bytes, are not in the queue any more.
func (p *proposer) dequeueLocked(c *call, commands, bytes int) {
	p.commands -= commands
	p.bytes -= bytes
	p.room.commands.Give(c.caller(), int64(commands))
	p.room.bytes.Give(c.caller(), int64(bytes))
	p.n.metrics.queued.Set(float64(p.commands))
}

// cancel takes a call out of the queue if none of its commands is in an entry yet.
func (p *proposer) cancel(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.next > 0 || c.left == 0 || !p.queue.remove(c) {
		return false
	}
	p.dequeueLocked(c, len(c.commands), len(c.encoded))
	return true
}

// part is the commands of a call that are in one entry.
type part struct {
	call     *call
	from, to int
}

// flight is an entry in flight.
type flight struct {
	data    []byte
	parts   []part
	started int64
}

// run makes entries until the node stops.
func (p *proposer) run() {
	for {
		select {
		case <-p.wake:
		case <-p.n.closing:
			p.refuseAll(Stopping)
			return
		}
		for p.pending() {
			select {
			case p.slots <- struct{}{}:
			case <-p.n.closing:
				p.refuseAll(Stopping)
				return
			}
			lead := p.n.leading.Load()
			if lead == nil || p.n.paused.Load() {
				<-p.slots
				p.refuseAll(p.n.whyNotLeading())
				continue
			}
			parts := p.take()
			if len(parts) == 0 {
				<-p.slots
				continue
			}
			p.time.Store(false)
			p.send(lead, parts)
		}
		if p.time.Swap(false) {
			p.sendTime()
		}
	}
}

// requestTime requests an entry that carries nothing but the time, unless an entry is in flight: when that is applied the
// ticker looks again.
func (p *proposer) requestTime() {
	p.time.Store(true)
	p.kick()
}

func (p *proposer) sendTime() {
	lead := p.n.leading.Load()
	if lead == nil || p.n.paused.Load() || len(p.slots) > 0 {
		return
	}
	p.slots <- struct{}{} // nobody else fills it
	p.send(lead, nil)
}

// proposeFirst proposes the node's own commands, few and small, before it takes any others: while it does not lead yet.
func (p *proposer) proposeFirst(lead *leadership, commands []*logpb.Command) error {
	c := &call{
		commands: commands, own: true, next: len(commands), left: len(commands), results: make([]*logpb.Result, len(commands)),
		finished: make(chan struct{}),
	}
	if err := c.encode(p.n.config.MaxEntryBytes / 2); err != nil {
		return fmt.Errorf("encoding commands: %w", err)
	}
	select {
	case p.slots <- struct{}{}:
	case <-p.n.done:
		return p.n.notAccepted(Stopping)
	}
	p.send(lead, []part{{call: c, to: len(commands)}})
	return p.n.outcome(context.Background(), false, c)
}

func (p *proposer) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.calls > 0
}

// take takes what fits into one entry off the queue.
func (p *proposer) take() (parts []part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	commands, bytes := 0, 0
	for c := p.queue.head(); c != nil; c = p.queue.head() {
		from, before := c.next, commands
		for c.next < len(c.commands) && commands < p.n.config.MaxEntryCommands {
			size, weight := len(c.span(c.next, c.next+1)), fsm.Weight(c.commands[c.next])
			if commands > 0 && (commands+weight > p.n.config.MaxEntryCommands || bytes+size > p.n.config.MaxEntryBytes) {
				break
			}
			commands += weight
			bytes += size
			c.next++
		}
		if c.next > from {
			parts = append(parts, part{call: c, from: from, to: c.next})
			size := len(c.span(from, c.next))
			p.queue.charge(c, commands-before, size)
			p.dequeueLocked(c, c.next-from, size)
		}
		if c.next < len(c.commands) {
			break
		}
		p.queue.remove(c)
	}
	return parts
}

// send stamps and proposes an entry, which applied or failed answers for.
func (p *proposer) send(lead *leadership, parts []part) {
	early, late, _ := p.n.samples.views(p.n) // 0 and 0: there is no sample
	data, err := proto.Marshal(&logpb.Entry{
		Version: p.n.entryVersion.Load(), StampNs: lead.clock.now(), WallEarlyNs: early, WallLateNs: late,
	})
	if err != nil {
		<-p.slots
		p.finish(parts, nil, fmt.Errorf("encoding an entry: %w", err))
		return
	}
	commands, size := 0, len(data)
	for _, part := range parts {
		commands += part.to - part.from
		size += len(part.call.span(part.from, part.to))
	}
	data = slices.Grow(data, size-len(data))
	for _, part := range parts {
		data = append(data, part.call.span(part.from, part.to)...)
	}
	p.n.metrics.batch.Observe(float64(commands))
	f := &flight{data: data, parts: parts, started: p.n.config.Clock.Monotonic()}
	p.mu.Lock()
	p.flights = append(p.flights, f)
	p.mu.Unlock()
	p.n.inFlight.Add(1)
	go p.failed(f, p.n.raft.Apply(data, p.n.config.ApplyTimeout))
}

// applied answers the calls of an entry that has just been applied, if it is one of this proposer's: it is known by its data, which raft
// forwards unchanged. To wait for raft's future first would wake two goroutines more for each entry.
func (p *proposer) applied(data []byte, applied *fsm.Applied) {
	f := p.land(func(f *flight) bool { return len(data) > 0 && &f.data[0] == &data[0] })
	if f == nil {
		return
	}
	p.n.metrics.commit.Observe(float64(p.n.config.Clock.Monotonic()-f.started) / 1e9)
	p.n.config.crash.pass("before-answer")
	p.finish(f.parts, applied, nil)
}

// failed answers the calls of an entry that raft is done with, unless it was applied. Where raft forgets its future, as it may when it
// stops, the node is done, and those who call hear of that.
func (p *proposer) failed(of *flight, future raft.Future) {
	err := future.Error()
	if p.land(func(f *flight) bool { return f == of }) == nil {
		return
	}
	if err == nil {
		err = &UnknownError{Err: errors.New("the log gave no result")}
	} else {
		err = p.n.classify(err)
	}
	p.finish(of.parts, nil, err)
}

// land removes an entry from those in flight and returns it; nil: there is no such.
func (p *proposer) land(is func(*flight) bool) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.flights, is)
	if i < 0 {
		return nil
	}
	f := p.flights[i]
	p.flights = slices.Delete(p.flights, i, i+1)
	p.n.inFlight.Add(-1)
	<-p.slots
	return f
}

// finish answers the calls of an entry.
func (p *proposer) finish(parts []part, applied *fsm.Applied, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := 0
	for _, part := range parts {
		c, from := part.call, first
		first += part.to - part.from
		if c.left == 0 { // an earlier part of it failed
			continue
		}
		if err != nil {
			p.failLocked(c, part, err)
			continue
		}
		copy(c.results[part.from:part.to], applied.Results[from:])
		c.at = Position{Term: applied.Term, Index: applied.Index, ClusterTime: applied.Clock.Now}
		if c.left -= part.to - part.from; c.left == 0 {
			close(c.finished)
		}
	}
}

// failLocked fails a call. If an earlier part of it was applied, or may be, the call as a whole is unknown.
func (p *proposer) failLocked(c *call, failed part, err error) {
	var notAccepted *NotAcceptedError
	if errors.As(err, &notAccepted) && (failed.from > 0 || failed.to < len(c.commands)) {
		err = &UnknownError{Err: err}
	}
	c.err, c.left = err, 0
	if p.queue.remove(c) {
		p.dequeueLocked(c, len(c.commands)-c.next, len(c.span(c.next, len(c.commands))))
	}
	close(c.finished)
}

// refuseAll refuses what is queued.
func (p *proposer) refuseAll(cause NotAcceptedCause) {
	p.mu.Lock()
	var queue []*call
	for c := p.queue.head(); c != nil; c = p.queue.head() {
		queue = append(queue, c)
		p.queue.remove(c)
		p.dequeueLocked(c, len(c.commands)-c.next, len(c.span(c.next, len(c.commands))))
	}
	if cause == Stopping {
		p.closed = true
	}
	p.mu.Unlock()
	err := p.n.notAccepted(cause)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range queue {
		if c.left > 0 {
			p.failLocked(c, part{call: c, from: c.next, to: len(c.commands)}, err)
		}
	}
}

// classify tells raft's errors apart: what was certainly not accepted, and what may have been.
func (n *Node) classify(err error) error {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout):
		return n.notAccepted(NotLeader)
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		n.suspectTransfer()
		return n.notAccepted(NotReady)
	}
	// Leadership lost, aborted by a restore, shut down, a store's own error: the entry may yet be committed.
	return &UnknownError{Err: err}
}
