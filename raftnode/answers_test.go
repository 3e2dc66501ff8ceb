package raftnode

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode/budget"
)

func isUnknown(err error) bool {
	_, unknown := errors.AsType[*UnknownError](err)
	return unknown
}

// pastFuture is a future of raft that has completed.
type pastFuture struct{ err error }

func (f pastFuture) Error() error { return f.err }

// TestProposer_EntryAnswersItsOwnCalls: whatever entries are applied while others are in flight, and in any order, an entry's calls get its
// results, no others, and once. Its slot is free again afterwards.
func TestProposer_EntryAnswersItsOwnCalls(t *testing.T) {
	n := openOne(t, func(c *Config) { c.EntriesInFlight = 3 })
	p := newProposer(n, n.config, n.metrics, n.closing, n.done)
	var calls []*call
	var flights []*flight
	for range cap(p.slots) {
		c := &call{commands: make([]*logpb.Command, 1), results: make([]*logpb.Result, 1), left: 1, finished: make(chan struct{})}
		f := &flight{data: []byte("the same"), parts: []part{{call: c, to: 1}}}
		p.slots <- struct{}{}
		p.inFlight.Add(1)
		calls, flights, p.flights = append(calls, c), append(flights, f), append(p.flights, f)
	}
	answered := func() (which []int) {
		for i, c := range calls {
			select {
			case <-c.finished:
				which = append(which, i)
			default:
			}
		}
		return which
	}
	result := &fsm.Applied{Index: 7, Results: []*logpb.Result{{}}}
	p.applied(bytes.Clone(flights[0].data), result, 0)
	p.applied(nil, result, 0)
	if got := answered(); len(got) != 0 {
		t.Fatalf("entries of others answered %v", got)
	}
	p.applied(flights[1].data, result, 0)
	if got := answered(); len(got) != 1 || got[0] != 1 || calls[1].err != nil || calls[1].at.Index != 7 ||
		calls[1].results[0] != result.Results[0] {
		t.Fatalf("the second entry answered %v: %+v", got, calls[1])
	}
	p.failed(flights[1], pastFuture{raft.ErrLeadershipLost})
	p.applied(flights[1].data, result, 0)
	if calls[1].err != nil || len(p.flights) != 2 || len(p.slots) != 2 {
		t.Fatalf("after it had landed: %v, %d entries in flight, %d slots taken", calls[1].err, len(p.flights), len(p.slots))
	}
	p.failed(flights[0], pastFuture{raft.ErrLeadershipLost})
	p.failed(flights[2], pastFuture{})
	if got := answered(); len(got) != 3 || !isUnknown(calls[0].err) || !isUnknown(calls[2].err) {
		t.Errorf("%v are answered: %v, %v", got, calls[0].err, calls[2].err)
	}
	if len(p.flights) != 0 || len(p.slots) != 0 {
		t.Errorf("%d entries in flight, %d slots taken", len(p.flights), len(p.slots))
	}
	poll(t, "none is awaited", func() bool { return p.inFlight.Load() == 0 })
}

// TestProposer_EncodesAsProtobuf: an entry joined from separately encoded parts equals the library's encoding of the whole, and parts know
// their sizes.
func TestProposer_EncodesAsProtobuf(t *testing.T) {
	var all []*logpb.Command
	var joined []byte
	for size := range 5 {
		c := &call{}
		for i := range size + 1 {
			c.commands = append(c.commands, &logpb.Command{
				By: strings.Repeat("b", 100*size), Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
					Holder: fmt.Sprint(i), Items: []*logpb.Item{{Quota: "q", Amount: new(int64(i))}},
				}},
			})
		}
		if err := c.encode(1 << 20); err != nil {
			t.Fatal(err)
		}
		all = append(all, c.commands...)
		joined = append(append(joined, c.span(0, size)...), c.span(size, size+1)...)
		longest := len(c.span(size, size+1))
		if err := c.encode(longest); err != nil {
			t.Errorf("a command that just fits: %v", err)
		}
		if err := c.encode(longest - 1); !errors.Is(err, errTooLarge) {
			t.Errorf("a command of a byte too much: %v", err)
		}
	}
	want, err := proto.Marshal(&logpb.Entry{Commands: all})
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(joined, want) {
		t.Errorf("%x\nprotobuf has\n%x", joined, want)
	}
}

// TestProposer_SlowEntriesGetSmaller: after an entry that was slow to apply the next ones have fewer commands, until entries are fast
// again. Slow entries of few commands, as on a busy machine, change nothing.
func TestProposer_SlowEntriesGetSmaller(t *testing.T) {
	n := openOne(t)
	p := newProposer(n, n.config, n.metrics, n.closing, n.done)
	some := func(commands int) *call {
		c := &call{results: make([]*logpb.Result, commands), left: commands, finished: make(chan struct{})}
		for range commands {
			c.commands = append(c.commands, take(1))
		}
		return c
	}
	for i, entry := range []struct {
		commands int
		took     time.Duration
		most     int
	}{
		{2048, 190 * time.Millisecond, 2048},
		{2048, 900 * time.Millisecond, 1024},
		{1024, 450 * time.Millisecond, 512},
		{512, 225 * time.Millisecond, 256},
		{256, 110 * time.Millisecond, 256},
		{64, 5 * time.Second, 256},
		{100, time.Millisecond, 256},
		{256, 49 * time.Millisecond, 512},
		{512, time.Millisecond, 1024},
		{1024, time.Millisecond, 2048},
		{2048, time.Millisecond, 2048},
		{100, time.Second, 64},
	} {
		p.pace([]part{{call: some(entry.commands), to: entry.commands}}, int64(entry.took))
		if p.most != entry.most {
			t.Fatalf("after entry %d, of %d commands in %v, the next has at most %d, wanted %d", i, entry.commands, entry.took, p.most, entry.most)
		}
	}
	c := some(100)
	if err := errors.Join(c.encode(1<<20), p.enqueue(c)); err != nil {
		t.Fatal(err)
	}
	if parts := p.take(); len(parts) != 1 || parts[0].to != 64 {
		t.Errorf("the next entry has %+v", parts)
	}
}

// TestProposer_FailedPartFreesItsRoom: once the first part of a call has failed, the queued rest occupies no room in the queue.
func TestProposer_FailedPartFreesItsRoom(t *testing.T) {
	n := openOne(t, oneAtATime)
	p := newProposer(n, n.config, n.metrics, n.closing, n.done)
	c := &call{results: make([]*logpb.Result, 6), left: 6, finished: make(chan struct{})}
	for range c.left {
		command := take(1)
		command.Caller = "token:a"
		c.commands = append(c.commands, command)
	}
	if err := errors.Join(c.encode(1<<20), p.enqueue(c)); err != nil {
		t.Fatal(err)
	}
	p.finish(p.take(), nil, &UnknownError{Err: raft.ErrLeadershipLost})
	<-c.finished
	for _, b := range []*budget.Budget{p.room.commands, p.room.bytes} {
		if used, callers := b.InUse(); used != 0 || callers != 0 {
			t.Errorf("%s: %d of %d callers", b.Name(), used, callers)
		}
	}
	if p.queue.calls != 0 || p.commands != 0 || p.bytes != 0 {
		t.Errorf("%d calls, %d commands, %d bytes are left", p.queue.calls, p.commands, p.bytes)
	}
}
