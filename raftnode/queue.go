package raftnode

import "github.com/quotad/quotad/fsm/logpb"

// callQueue orders the calls that wait for an entry. Operators' commands and the node's own go first, in their order. Each caller's calls
// have a line of their own, and the lines are served in turn. What a turn takes beyond its share, as a long call does, the line's next
// turns pay for: while two callers wait, neither gets more than two shares and one call ahead of the other.
type callQueue struct {
	front line
	// lines are those of callers that have calls here, by caller; turn is whose turn it is, in a ring; free are lines to use again.
	lines map[string]*line
	turn  *line
	free  *line
	calls int
	// share is what one turn takes, least what the smallest command costs: both in bytes of an entry.
	share, least int
}

// line is calls in their order.
type line struct {
	caller      string
	first, last *call
	// credit is what is left of the present turn; below 0: of the turns to come.
	credit int
	// next and previous are the neighbours in the ring; for a free line, next is the next free line.
	next, previous *line
}

// turnsPerEntry is how many callers' turns an entry has room for.
const turnsPerEntry = 32

// newCallQueue makes the queue of entries of so many commands and bytes at most.
func newCallQueue(entryCommands, entryBytes int) callQueue {
	least := max(1, entryBytes/entryCommands)
	return callQueue{lines: map[string]*line{}, share: max(least, entryBytes/turnsPerEntry), least: least}
}

// goesFirst tells whether a call is an operator's work on the store, which does not wait for callers. What an operator's token takes for
// its own use waits as anybody's does.
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

// push puts a call at the end of its line.
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

// lineOf returns a caller's line. A new one comes last in turn.
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

// head returns the call that is served next; nil: there is none.
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

// charge charges a call's line for commands that are in an entry now, counted by their weight.
func (q *callQueue) charge(c *call, commands, bytes int) {
	if c.line != &q.front {
		c.line.credit -= max(commands*q.least, bytes)
	}
}

// remove takes a call out; false: it is not in the queue.
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

// drop removes a line that is empty.
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
