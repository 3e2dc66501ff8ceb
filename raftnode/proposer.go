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
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/budget"
)

// host is a proposer's view of its node.
type host interface {
	// leadership returns the leadership under which entries may be proposed now, nil if there is none.
	leadership() *leadership
	// whyNotLeading says why there is no leadership.
	whyNotLeading() NotAcceptedCause
	// notAccepted returns a refusal with a cause, which names the leader. It takes Node.mu.
	notAccepted(cause NotAcceptedCause) *NotAcceptedError
	// header returns an entry without commands, stamped with the present time.
	header(lead *leadership) *logpb.Entry
	// replicate passes an entry to the log. Once it is applied, the host calls applied before the future completes.
	replicate(data []byte) raft.Future
	// classify returns a future's error as *NotAcceptedError or *UnknownError.
	classify(err error) error
}

// proposer turns concurrent calls into log entries. While the allowed entries are in flight, new calls queue up; the next entry takes all
// of them, within its bounds. So load determines the batch size, and an idle proposer adds no delay.
type proposer struct {
	host    host
	config  nodeConfig
	metrics *metrics
	// closing is closed when the node begins to stop, done when no entry is applied any more.
	closing, done <-chan struct{}

	// inFlight counts the entries in flight.
	inFlight atomic.Int64

	mu sync.Mutex
	// queue has the calls with commands that are not in an entry yet. Callers share its room.
	queue    callQueue
	commands int
	bytes    int
	room     queueRoom
	closed   bool
	// time requests an entry without commands, unless an entry with commands is sent first.
	time  atomic.Bool
	wake  chan struct{}
	slots chan struct{}
	// flights are the entries in flight. Each occupies one of the slots.
	flights []*flight
	// most is the most commands of the next entry, as fsm.Weight counts them: see pace.
	most int
}

// queueRoom has the budgets of the proposer's queue that callers share.
type queueRoom struct{ commands, bytes *budget.Budget }

func newQueueRoom(commands, bytes int) queueRoom {
	share := func(name string, whole int) *budget.Budget {
		return budget.New(name, int64(whole), int64(whole/16), int64(max(1, whole/32)))
	}
	return queueRoom{share("commands", commands), share("command_bytes", bytes)}
}

// take takes room for a call, or returns which budget has none.
func (r queueRoom) take(c *call) *budget.FullError {
	of := func(from *budget.Budget, n int) *budget.FullError {
		if c.own { // the node works for all callers
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

func newProposer(h host, config nodeConfig, m *metrics, closing, done <-chan struct{}) *proposer {
	return &proposer{
		host: h, config: config, metrics: m, closing: closing, done: done,
		queue: newCallQueue(config.MaxEntryCommands, config.MaxEntryBytes),
		room:  newQueueRoom(config.MaxQueueCommands, config.MaxQueueBytes),
		wake:  make(chan struct{}, 1), slots: make(chan struct{}, config.EntriesInFlight), most: config.MaxEntryCommands,
	}
}

// enqueue puts a call into the queue.
func (p *proposer) enqueue(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return p.host.notAccepted(Stopping)
	}
	if takes(c.commands) {
		// Commands that free quota still find room after those that take it are refused.
		commands, bytes := p.config.MaxQueueCommands, p.config.MaxQueueBytes
		if p.commands+len(c.commands) > commands-commands/8 || p.bytes+len(c.encoded) > bytes-bytes/8 {
			return p.host.notAccepted(QueueFull)
		}
	}
	if full := p.room.take(c); full != nil {
		refused := p.host.notAccepted(QueueFull)
		refused.Full = full
		return refused
	}
	p.queue.push(c)
	p.commands += len(c.commands)
	p.bytes += len(c.encoded)
	p.metrics.queued.Set(float64(p.commands))
	p.kick()
	return nil
}

func (p *proposer) kick() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// dequeueLocked records that commands of a call left the queue, and how many bytes they have.
func (p *proposer) dequeueLocked(c *call, commands, bytes int) {
	p.commands -= commands
	p.bytes -= bytes
	p.room.commands.Give(c.caller(), int64(commands))
	p.room.bytes.Give(c.caller(), int64(bytes))
	p.metrics.queued.Set(float64(p.commands))
}

// cancel removes a call from the queue if none of its commands is in an entry yet.
func (p *proposer) cancel(c *call) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.next > 0 || c.left == 0 || !p.queue.remove(c) {
		return false
	}
	p.dequeueLocked(c, len(c.commands), len(c.encoded))
	return true
}

// outcome waits until a call is finished, its context or ApplyTimeout ends, or the node stops.
func (p *proposer) outcome(ctx context.Context, through bool, c *call) error {
	timer := time.NewTimer(p.config.ApplyTimeout)
	defer timer.Stop()
	gone := ctx.Done()
	for {
		select {
		case <-c.finished:
			return c.err
		case <-gone:
			if p.cancel(c) {
				return p.host.notAccepted(Canceled)
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
			if p.cancel(c) {
				return p.host.notAccepted(NotReady)
			}
			return &UnknownError{Err: errors.New("the log did not answer in time")}
		case <-p.done:
			return &UnknownError{Err: errors.New("the node stopped")}
		}
	}
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

// run sends entries until the node stops.
func (p *proposer) run() {
	for {
		select {
		case <-p.wake:
		case <-p.closing:
			p.refuseAll(Stopping)
			return
		}
		for p.pending() {
			select {
			case p.slots <- struct{}{}:
			case <-p.closing:
				p.refuseAll(Stopping)
				return
			}
			lead := p.host.leadership()
			if lead == nil {
				<-p.slots
				p.refuseAll(p.host.whyNotLeading())
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

// requestTime requests an entry that carries only the time. If an entry is in flight, none is sent: once that entry is applied, the ticker
// checks again.
func (p *proposer) requestTime() {
	p.time.Store(true)
	p.kick()
}

func (p *proposer) sendTime() {
	lead := p.host.leadership()
	if lead == nil || len(p.slots) > 0 {
		return
	}
	p.slots <- struct{}{} // does not block: while this node leads, only run fills slots
	p.send(lead, nil)
}

// proposeFirst proposes the node's own commands, few and small, before the node is ready and accepts others.
func (p *proposer) proposeFirst(lead *leadership, commands []*logpb.Command) error {
	c := &call{
		commands: commands, own: true, next: len(commands), left: len(commands), results: make([]*logpb.Result, len(commands)),
		finished: make(chan struct{}),
	}
	if err := c.encode(p.config.MaxEntryBytes / 2); err != nil {
		return fmt.Errorf("encoding commands: %w", err)
	}
	select {
	case p.slots <- struct{}{}:
	case <-p.done:
		return p.host.notAccepted(Stopping)
	}
	p.send(lead, []part{{call: c, to: len(commands)}})
	return p.outcome(context.Background(), false, c)
}

func (p *proposer) pending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue.calls > 0
}

// take removes from the queue the commands that fit into one entry.
func (p *proposer) take() (parts []part) {
	p.mu.Lock()
	defer p.mu.Unlock()
	commands, bytes := 0, 0
	for c := p.queue.head(); c != nil; c = p.queue.head() {
		from, before := c.next, commands
		for c.next < len(c.commands) && commands < p.most {
			size, weight := len(c.span(c.next, c.next+1)), fsm.Weight(c.commands[c.next])
			if commands > 0 && (commands+weight > p.most || bytes+size > p.config.MaxEntryBytes) {
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

// send stamps and proposes an entry. applied or failed answers its calls.
func (p *proposer) send(lead *leadership, parts []part) {
	data, err := proto.Marshal(p.host.header(lead))
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
	p.metrics.batch.Observe(float64(commands))
	f := &flight{data: data, parts: parts, started: p.config.Clock.Monotonic()}
	p.mu.Lock()
	p.flights = append(p.flights, f)
	p.mu.Unlock()
	p.inFlight.Add(1)
	go p.failed(f, p.host.replicate(data))
}

const (
	// slowEntry is how long an entry may take to be applied before the next ones get fewer commands: the node answers nothing meanwhile.
	slowEntry = int64(200 * time.Millisecond)
	// leastEntry is the fewest commands to which entries shrink: a busy machine is slow with few commands too.
	leastEntry = 64
)

// pace adapts the size of entries to the time that the last one took. Most commands weigh about the same, but not all: a Consume of a whole
// lease of 64 items counts as one command and does the work of 64.
func (p *proposer) pace(parts []part, took int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if took < slowEntry && p.most == p.config.MaxEntryCommands {
		return
	}
	weight := 0
	for _, part := range parts {
		for _, command := range part.call.commands[part.from:part.to] {
			weight += fsm.Weight(command)
		}
	}
	switch {
	case took > slowEntry && weight > leastEntry:
		p.most = max(min(p.most, weight/2), leastEntry)
	case took < slowEntry/4 && weight > p.most/2:
		p.most = min(2*p.most, p.config.MaxEntryCommands)
	}
}

// applied answers the calls of an entry that was just applied, if this proposer sent it. It recognizes the entry by the address of its
// data, which raft passes on unchanged. Waiting for raft's future instead would wake two more goroutines for each entry. took is how long
// the state machine took.
func (p *proposer) applied(data []byte, applied *fsm.Applied, took int64) {
	f := p.land(func(f *flight) bool { return len(data) > 0 && &f.data[0] == &data[0] })
	if f == nil {
		return
	}
	p.pace(f.parts, took)
	p.metrics.commit.Observe(float64(p.config.Clock.Monotonic()-f.started) / 1e9)
	p.config.crash.pass("before-answer")
	p.finish(f.parts, applied, nil)
}

// failed answers the calls of an entry whose future has completed, unless the entry was applied. Raft may never complete a future when it
// stops. Then the node is done, and outcome returns because of that.
func (p *proposer) failed(of *flight, future raft.Future) {
	err := future.Error()
	if p.land(func(f *flight) bool { return f == of }) == nil {
		return
	}
	if err == nil {
		err = &UnknownError{Err: errors.New("the log gave no result")}
	} else {
		err = p.host.classify(err)
	}
	p.finish(of.parts, nil, err)
}

// land removes an entry from those in flight, frees its slot and returns it; nil: no such entry is in flight.
func (p *proposer) land(is func(*flight) bool) *flight {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.flights, is)
	if i < 0 {
		return nil
	}
	f := p.flights[i]
	p.flights = slices.Delete(p.flights, i, i+1)
	p.inFlight.Add(-1)
	<-p.slots
	return f
}

// finish answers the calls of an entry, with the results of applied or with err.
func (p *proposer) finish(parts []part, applied *fsm.Applied, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	first := 0
	for _, part := range parts {
		c, from := part.call, first
		first += part.to - part.from
		if c.left == 0 { // an earlier part of the call failed
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

// failLocked fails a call. If another part of it was or may be applied, the outcome of the whole call is unknown.
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

// refuseAll refuses all queued calls.
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
	err := p.host.notAccepted(cause)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range queue {
		if c.left > 0 {
			p.failLocked(c, part{call: c, from: c.next, to: len(c.commands)}, err)
		}
	}
}
