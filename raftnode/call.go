package raftnode

import (
	"context"
	"errors"
	"slices"

	"github.com/quotad/quotad/fsm/entry"
	"github.com/quotad/quotad/fsm/logpb"
)

// usualCommand is the encoded size that most commands do not exceed, in bytes.
const usualCommand = 256

// call is one Propose.
type call struct {
	ctx      context.Context
	commands []*logpb.Command
	// own: the node itself proposes, and no caller's budget is charged.
	own bool
	// line is the line in which the call is queued, nil if it is not queued; before and behind are its neighbours there.
	line           *line
	before, behind *call
	// encoded has the commands as they are encoded in an entry; ends has the offset at which each ends.
	encoded []byte
	ends    []int
	// next is the first command that is not in an entry yet; left counts the commands without a result.
	next, left int
	results    []*logpb.Result
	at         Position
	err        error
	finished   chan struct{}
}

// ownWork is the caller to which the node's own calls are charged.
const ownWork = "node"

// caller returns the caller to whose budgets the call is charged.
func (c *call) caller() string {
	if c.own {
		return ownWork
	}
	return c.commands[0].Caller
}

var errTooLarge = errors.New("the command is too large")

// encode encodes the commands and bounds the size of each to most bytes. The calling goroutine does it once, so that the proposer builds
// entries without decoding or encoding commands.
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
		if i == 0 { // most other commands are of similar size
			c.encoded = slices.Grow(c.encoded, min(len(encoded), usualCommand)*(len(c.commands)-1))
		}
	}
	return nil
}

// span returns the encoding of commands from..to-1.
func (c *call) span(from, to int) []byte { return c.encoded[c.end(from):c.end(to)] }

// end returns the offset at which the first so many commands end.
func (c *call) end(commands int) int {
	if commands == 0 {
		return 0
	}
	return c.ends[commands-1]
}

// takes tells whether any command takes quota or begins a task, which will.
func takes(commands []*logpb.Command) bool {
	for _, command := range commands {
		if command.GetReserve() != nil || command.GetBeginTask() != nil {
			return true
		}
	}
	return false
}

// grows tells whether any command enlarges the state lastingly: by grants, waiting requests or sessions.
func grows(commands []*logpb.Command) bool {
	return takes(commands) || slices.ContainsFunc(commands, func(c *logpb.Command) bool { return c.GetOpenSession() != nil })
}
