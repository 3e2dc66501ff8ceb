package raftnode

import "github.com/quotad/quotad/fsm/logpb"

// callQueue orders the calls that wait for an entry. Operators' commands and the node's own go first, in order of arrival. Other calls
// stand in one line per caller, and the lines are served in turn. If a turn takes more than its share, as a long call does, the line's next
// turns pay for it. So while two callers wait, neither gets more than two shares and one call ahead of the other.
type callQueue struct {
	front line
	// lines are the lines of callers with queued calls, by caller. turn is the line whose turn it is, in a ring. free are lines for reuse.
	lines map[string]*line
	turn  *line
	free  *line
	calls int
	// share is what one turn takes, least the cost of the smallest command, both in bytes of an entry.
	share, least int
}

// line is a list of calls in order of arrival.
type line struct {
	caller      string
	first, last *call
	// credit is what the present turn may still take, in bytes; below 0 the next turns pay it off.
	credit int
	// next and previous are the neighbours in the ring; for a free line, next is the next free line.
	next, previous *line
}

// turnsPerEntry is the number of turns for which an entry has room.
const turnsPerEntry = 32

// newCallQueue makes the queue for entries with the given bounds of commands and bytes.
func newCallQueue(entryCommands, entryBytes int) callQueue {
	least := max(1, entryBytes/entryCommands)
	return callQueue{lines: map[string]*line{}, share: max(least, entryBytes/turnsPerEntry), least: least}
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

// lineOf returns a caller's line. The turn of a new line comes last.
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
	*l = line{caller: caller, credit: q.share}
	q.lines[caller] = l
	if q.turn == nil {
		l.next, l.previous, q.turn = l, l, l
		return l
	}
	l.next, l.previous = q.turn, q.turn.previous
	l.previous.next, l.next.previous = l, l
	return l
}

// head returns the call to serve next; nil: the queue is empty.
func (q *callQueue) head() *call {
	if q.front.first != nil || q.turn == nil {
		return q.front.first
	}
	for q.turn.credit <= 0 {
		q.turn.credit += q.share
		q.turn = q.turn.next
	}
	return q.turn.first
}

// charge charges a call's line for commands that were put into an entry. commands is their weight.
func (q *callQueue) charge(c *call, commands, bytes int) {
	if c.line != &q.front {
		c.line.credit -= max(commands*q.least, bytes)
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
	if q.turn == l {
		q.turn = l.next
	}
	if q.turn == l {
		q.turn = nil
	}
	l.previous.next, l.next.previous = l.next, l.previous
	*l = line{next: q.free}
	q.free = l
}
