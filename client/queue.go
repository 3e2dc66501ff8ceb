package client

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"github.com/quotad/quotad/rpc/quotav1"
)

const (
	// maxPipelines is how many batches may be in flight at once. Commands queued meanwhile make up the next batch, so fewer pipelines
	// mean larger batches. Two keep one batch in flight while another is being answered.
	maxPipelines = 2
	// largeBatch is the batch size worth a second pipeline at any time: larger batches make a command hardly cheaper.
	largeBatch = 256
	// maxBatch is the most commands in one batch.
	maxBatch = 2_000
	// maxBatchBytes bounds one batch, well below a node's read limit; a larger command travels alone.
	maxBatchBytes = 1 << 20
	// maxQueued bounds the queued commands.
	maxQueued = 65_536
	// shortestBackoff and longestBackoff bound the pause after an attempt failed at all nodes.
	shortestBackoff = 10 * time.Millisecond
	longestBackoff  = 250 * time.Millisecond
)

// queue gathers commands into batches, without a timer: a pipeline takes all queued commands, and commands that arrive while it is in
// flight leave with the next one. A second pipeline starts when as many commands are queued as are in flight. So under low load no
// command waits for the answers to others, and under high load batches are large.
type queue struct {
	client *Client

	mu          sync.Mutex
	first, last *command
	length      int
	// pipelines are running, with away commands in flight.
	pipelines, away int
	closed          bool
}

// push appends all commands or none, and starts a pipeline if one is free.
func (q *queue) push(commands ...*command) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return &NotAcceptedError{Err: ErrClosed}
	}
	if q.length+len(commands) > maxQueued {
		return &NotAcceptedError{Reason: ReasonOverloaded, Err: errors.New("too many requests wait in this client; retry later")}
	}
	for _, cmd := range commands {
		q.appendLocked(cmd)
	}
	q.startLocked()
	return nil
}

// startLocked starts a pipeline if one is free and the queue is worth it.
func (q *queue) startLocked() {
	if q.length > 0 && q.pipelines < maxPipelines && q.worthLocked() {
		q.pipelines++
		q.client.tasks.Go(q.pipeline)
	}
}

// worthLocked reports whether the queue is worth another pipeline, compared with the commands in flight.
func (q *queue) worthLocked() bool { return q.length >= min(q.away, largeBatch) }

func (q *queue) appendLocked(cmd *command) {
	cmd.queued = true
	cmd.previous = q.last
	if q.last == nil {
		q.first = cmd
	} else {
		q.last.next = cmd
	}
	q.last = cmd
	q.length++
}

func (q *queue) removeLocked(cmd *command) {
	if cmd.previous == nil {
		q.first = cmd.next
	} else {
		cmd.previous.next = cmd.next
	}
	if cmd.next == nil {
		q.last = cmd.previous
	} else {
		cmd.next.previous = cmd.previous
	}
	cmd.previous, cmd.next, cmd.queued = nil, nil, false
	q.length--
}

// remove takes a never sent command out of the queue.
func (q *queue) remove(cmd *command) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !cmd.queued {
		return false
	}
	q.removeLocked(cmd)
	return true
}

// fill adds queued commands to those that a pipeline still carries. With none to carry, or a queue not worth a pipeline, it ends the
// pipeline.
func (q *queue) fill(batch []*command) []*command {
	now := time.Now()
	kept, size := batch[:0], 0
	for _, cmd := range batch {
		if cmd.live(now) {
			kept = append(kept, cmd)
			size += cmd.size
		} else {
			q.client.drop(cmd)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(kept) == 0 && !q.worthLocked() {
		q.pipelines--
		return nil
	}
	for len(kept) < maxBatch && q.first != nil && (len(kept) == 0 || size+q.first.size <= maxBatchBytes) {
		cmd := q.first
		q.removeLocked(cmd)
		kept = append(kept, cmd)
		size += cmd.size
	}
	q.away += len(kept)
	if len(kept) == 0 {
		q.pipelines--
	}
	return kept
}

// pipeline sends batches until the queue is empty or not worth a pipeline.
func (q *queue) pipeline() {
	var batch []*command
	var pause backoff
	for {
		batch = q.fill(batch)
		if len(batch) == 0 {
			return
		}
		before := len(batch)
		batch = q.client.exchange(q.client.ctx, batch)
		q.back(before, len(batch))
		if len(batch) < before {
			pause = backoff{}
		}
		if len(batch) > 0 {
			q.client.counters.retries.Add(1)
			pause.wait(q.client.ctx)
			continue
		}
		// Callers that just got an answer run first: their next commands leave with this pipeline.
		runtime.Gosched()
	}
}

// back records that commands are no longer in flight. If some are left, their pipeline pauses, and queued commands need not wait for
// that.
func (q *queue) back(commands, left int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.away -= commands; left > 0 {
		q.startLocked()
	}
}

// close rejects further commands.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
}

// idle reports whether no command is queued or in flight.
func (q *queue) idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.length == 0 && q.pipelines == 0
}

// backoff is a growing pause with jitter.
type backoff struct{ next time.Duration }

func (b *backoff) wait(ctx context.Context) {
	b.next = min(max(2*b.next, shortestBackoff), longestBackoff)
	pause := time.NewTimer(b.next/2 + rand.N(b.next/2))
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// drop finishes a command that is no longer worth sending.
func (c *Client) drop(cmd *command) {
	err := cmd.trouble
	if err == nil {
		err = ErrClusterAway
	}
	if cmd.doubt {
		err = &UnknownOutcomeError{Err: err}
	} else {
		err = &NotAcceptedError{Err: err}
	}
	c.sessions.finish(cmd)
	cmd.finish(nil, stamp{}, err)
}

// exchange sends one batch and returns the undecided commands.
func (c *Client) exchange(ctx context.Context, batch []*command) []*command {
	if ctx.Err() != nil {
		c.finishAll(batch, func(cmd *command) error { return c.closedError(cmd) })
		return nil
	}
	if err := c.sessions.number(ctx, batch, c.openSession); err != nil {
		return c.failed(ctx, batch, notAccepted, false, err)
	}
	if batch = c.launch(batch); len(batch) == 0 {
		return nil
	}
	request := &quotav1.BatchRequest{Commands: make([]*quotav1.Command, len(batch))}
	for i, cmd := range batch {
		request.Commands[i] = cmd.pb
	}
	c.counters.batches.Add(1)
	c.counters.commands.Add(uint64(len(batch)))
	a, doubt := race(ctx, c, c.prompt(), func(ctx context.Context, to *node) (*quotav1.BatchResponse, error) {
		return to.api.Batch(ctx, request)
	})
	if a.err == nil && len(a.value.GetResults()) != len(batch) {
		a.outcome, a.err = unknown, &UnknownOutcomeError{Err: errors.New("the answer has a wrong number of results")}
	}
	if a.err != nil {
		return c.failed(ctx, batch, a.outcome, doubt, a.err)
	}
	c.note(nil)
	at := stamp{sent: a.sent, received: a.received, servedIn: durationOf(a.value.GetMeta().GetServedIn(), 0)}
	var undecided []*command
	for i, cmd := range batch {
		cmd.doubt = cmd.doubt || doubt
		if !c.decide(cmd, a.value.GetResults()[i], at) {
			undecided = append(undecided, cmd)
		}
	}
	return undecided
}

// launch marks commands as about to be sent, and returns those that were not withdrawn.
func (c *Client) launch(batch []*command) []*command {
	kept := batch[:0]
	for _, cmd := range batch {
		if cmd.state.CompareAndSwap(pending, flying) || cmd.state.Load() != withdrawn {
			kept = append(kept, cmd)
			continue
		}
		c.drop(cmd)
	}
	return kept
}

// failed handles an error of a whole batch, and returns the undecided commands.
func (c *Client) failed(ctx context.Context, batch []*command, how outcome, doubt bool, err error) []*command {
	var wrong *RequestError
	if refused, ok := errors.AsType[*NotAcceptedError](err); ok && refused.final {
		c.note(nil)
		c.finishAll(batch, func(cmd *command) error {
			if cmd.doubt {
				c.counters.unknown.Add(1)
				return &UnknownOutcomeError{Reason: refused.Reason, Err: refused.Err}
			}
			return err
		})
		return nil
	}
	if !errors.As(err, &wrong) {
		c.note(err)
		for _, cmd := range batch {
			cmd.doubt = cmd.doubt || doubt || how == unknown
			cmd.trouble = err
			cmd.land()
		}
		return batch
	}
	for _, cmd := range batch {
		cmd.doubt = cmd.doubt || doubt
	}
	if wrong.Reason == ReasonInvalid && len(batch) > 1 {
		// One malformed command must not fail the others: halve the batch until it is alone.
		half := len(batch) / 2
		undecided := c.exchange(ctx, append([]*command(nil), batch[:half]...))
		return append(undecided, c.exchange(ctx, append([]*command(nil), batch[half:]...))...)
	}
	c.finishAll(batch, func(cmd *command) error {
		if cmd.doubt {
			return c.inDoubt(wrong)
		}
		return err
	})
	return nil
}

// inDoubt is the error for a command that was rejected early while a previous attempt may have been carried out: the rejection itself
// would mean that there was no effect.
func (c *Client) inDoubt(wrong *RequestError) error {
	c.counters.unknown.Add(1)
	return &UnknownOutcomeError{Reason: wrong.Reason, Err: errors.New(wrong.Error())}
}

// decide finishes a command with its result, and reports false if it has to be sent again.
func (c *Client) decide(cmd *command, result *quotav1.CommandResult, at stamp) bool {
	failure := result.GetError()
	if failure == nil {
		if result.GetReserve().GetWaiting() == nil {
			c.sessions.finish(cmd)
		}
		cmd.finish(result, at, nil)
		return true
	}
	how, err := classifyInfo(failure.GetInfo(), failure.GetMessage())
	// A full disk stays full for long, and its node remains the leader: report it to the caller at once, unless an earlier attempt may
	// have had an effect.
	if final := noRoom(err) && !cmd.doubt; how != answered && !final {
		cmd.trouble = err
		cmd.doubt = cmd.doubt || how == unknown
		cmd.land()
		return false
	}
	if errors.Is(err, ReasonUnknownSession) {
		c.sessions.forget(cmd.session)
		if !cmd.doubt || cmd.repeatable() {
			cmd.session, cmd.trouble = nil, err
			cmd.land()
			cmd.doubt = false
			return false
		}
		err = &UnknownOutcomeError{Reason: ReasonUnknownSession, Err: err}
		c.counters.unknown.Add(1)
	}
	if wrong, ok := errors.AsType[*RequestError](err); ok && wrong.beforeApply && cmd.doubt {
		err = c.inDoubt(wrong)
	}
	c.sessions.finish(cmd)
	cmd.finish(nil, at, err)
	return true
}

func (c *Client) finishAll(batch []*command, why func(*command) error) {
	for _, cmd := range batch {
		c.sessions.finish(cmd)
		cmd.finish(nil, stamp{}, why(cmd))
	}
}

// closedError is the error of a command whose client is closed.
func (c *Client) closedError(cmd *command) error {
	if cmd.doubt {
		return &UnknownOutcomeError{Err: ErrClosed}
	}
	return &NotAcceptedError{Err: ErrClosed}
}
