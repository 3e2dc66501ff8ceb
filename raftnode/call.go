package raftnode

import (
	"context"
	"errors"
	"slices"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
)

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

// ownWork is what the node's own calls are charged to.
const ownWork = "node"

// caller names whose budgets a call is charged to.
func (c *call) caller() string {
	if c.own {
		return ownWork
	}
	return c.commands[0].Caller
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
