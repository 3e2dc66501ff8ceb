package raftnode

import "github.com/quotad/quotad/fsm/logpb"

// callQueue orders the calls that wait for an entry. Operators' commands and the node's own go first, in order of arrival. Other calls
// stand in one line per caller. The lines are served by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995), in the variant
// that lets a line overdraw its deficit: if a call is longer than the rest of the deficit, the line's next turns pay for it. So while two
// callers wait, neither gets more than two quanta and one call ahead of the other.
type callQueue struct {
	front line
	// lines are the lines of callers with queued calls, by caller. current is the line whose turn it is, in a ring. free are lines for reuse.
	lines   map[string]*line
	current *line
	free    *line
	calls   int
	// quantum is what a turn adds to a line's deficit, least the cost of the smallest command, both in bytes of an entry.
	quantum, least int
}

// line is a list of calls in order of arrival.
type line struct {
	caller      string
	first, last *call
	// deficit is the deficit counter: what the line may still take in its turn, in bytes. Below 0 the next turns pay it off.
	deficit int
	// next and previous are the neighbours in the ring; for a free line, next is the next free line.
	next, previous *line
}

// quantaPerEntry is the number of quanta for which an entry has room.
const quantaPerEntry = 32

// newCallQueue makes the queue for entries with the given bounds of commands and bytes.
func newCallQueue(entryCommands, entryBytes int) callQueue {
	least := max(1, entryBytes/entryCommands)
	return callQueue{lines: map[string]*line{}, quantum: max(least, entryBytes/quantaPerEntry), least: least}
}

// goesFirst tells whether a call is an operator's work on the store, which does not wait for callers. What an operator's token requests for
// its own use waits like other calls.
func goesFirst(commands []*logpb.Command) bool {
	for _, command := range commands {
		if !command.Operator {
			return false
		}
		switch command.Kind.(type) {
		case *logpb.Command_OpenSession, *logpb.Command_CloseSession, *logpb.Command_Reserve, *logpb.Command_Consume, *logpb.Command_Settle,
			*logpb.Command_Release, *logpb.Command_Renew, *logpb.Command_Withdraw, *logpb.Command_Report, *logpb.Command_BeginTask,
			*logpb.Command_RenewTask, *logpb.Command_EndTask:
			return false
		}
	}
	return true
}

// push appends a call to its line.
func (q *callQueue) push(c *call) {
	l := &q.front
	if !c.own && !goesFirst(c.commands) {
		l = q.lineOf(c.caller())
	}
	c.line, c.before, c.behind = l, l.last, nil
	if l.last == nil {
		l.first = c
	} else {
		l.last.behind = c
	}
	l.last = c
	q.calls++
}

// lineOf returns a caller's line. A new line is the last in the round.
func (q *callQueue) lineOf(caller string) *line {
	if l := q.lines[caller]; l != nil {
		return l
	}
	l := q.free
	if l == nil {
		l = new(line)
	} else {
		q.free = l.next
	}
	*l = line{caller: caller, deficit: q.quantum}
	q.lines[caller] = l
	if q.current == nil {
		l.next, l.previous, q.current = l, l, l
		return l
	}
	l.next, l.previous = q.current, q.current.previous
	l.previous.next, l.next.previous = l, l
	return l
}

// head returns the call to serve next; nil: the queue is empty.
func (q *callQueue) head() *call {
	if q.front.first != nil || q.current == nil {
		return q.front.first
	}
	for q.current.deficit <= 0 {
		q.current.deficit += q.quantum
		q.current = q.current.next
	}
	return q.current.first
}

// charge charges a call's line for commands that were put into an entry. commands is their weight.
func (q *callQueue) charge(c *call, commands, bytes int) {
	if c.line != &q.front {
		c.line.deficit -= max(commands*q.least, bytes)
	}
}

// remove removes a call; false: it is not in the queue.
func (q *callQueue) remove(c *call) bool {
	l := c.line
	if l == nil {
		return false
	}
	if c.before == nil {
		l.first = c.behind
	} else {
		c.before.behind = c.behind
	}
	if c.behind == nil {
		l.last = c.before
	} else {
		c.behind.before = c.before
	}
	c.line, c.before, c.behind = nil, nil, nil
	q.calls--
	if l.first == nil && l != &q.front {
		q.drop(l)
	}
	return true
}

// drop removes an empty line.
func (q *callQueue) drop(l *line) {
	delete(q.lines, l.caller)
	if q.current == l {
		q.current = l.next
	}
	if q.current == l {
		q.current = nil
	}
	l.previous.next, l.next.previous = l.next, l.previous
	*l = line{next: q.free}
	q.free = l
}
