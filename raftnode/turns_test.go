package raftnode

import (
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// entriesOf records the callers of the commands in each entry.
type entriesOf struct {
	mu  sync.Mutex
	all [][]string
}

func (e *entriesOf) record(c *Config) {
	c.Applied = func(_ *fsm.Applied, data []byte, _ func() [32]byte) {
		entry := &logpb.Entry{}
		if proto.Unmarshal(data, entry) != nil || len(entry.Commands) == 0 {
			return
		}
		callers := make([]string, len(entry.Commands))
		for i, command := range entry.Commands {
			callers[i] = command.Caller
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		e.all = append(e.all, callers)
	}
}

// since returns the entries after the first one that begins with a command of a caller.
func (e *entriesOf) since(caller string) [][]string {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i, entry := range e.all {
		if len(entry) > 0 && entry[0] == caller {
			return e.all[i+1:]
		}
	}
	return nil
}

// behindAQueue queues commands in this order while an entry is in flight, and returns the callers in the later entries.
func behindAQueue(t *testing.T, commands []*logpb.Command, own ...*logpb.Command) [][]string {
	t.Helper()
	entries := &entriesOf{}
	n := openOne(t, oneAtATime, entries.record)
	blocked, open := block(n)
	var calls sync.WaitGroup
	calls.Go(func() {
		if _, _, err := n.Propose(context.Background(), renewBy("first")); err != nil {
			t.Error(err)
		}
	})
	<-blocked
	queued := 0
	for _, command := range commands {
		calls.Go(func() {
			if _, _, err := n.Propose(context.Background(), command); err != nil {
				t.Error(err)
			}
		})
		queued++
		poll(t, "it queues up", func() bool { return n.proposer.queued() == queued })
	}
	for _, command := range own {
		calls.Go(func() {
			if err := n.proposeOwn(context.Background(), command); err != nil {
				t.Error(err)
			}
		})
		queued++
		poll(t, "it queues up", func() bool { return n.proposer.queued() == queued })
	}
	open()
	calls.Wait()
	return entries.since("first")
}

func renewBy(caller string) *logpb.Command {
	return &logpb.Command{Caller: caller, Kind: &logpb.Command_Renew{Renew: &logpb.Renew{Lease: 1}}}
}

func manyRenews(caller string, count int) []*logpb.Command {
	commands := make([]*logpb.Command, count)
	for i := range commands {
		commands[i] = renewBy(caller)
	}
	return commands
}

// TestQueue_OperatorsDoNotWaitForCallers: whatever callers have queued, an operator's command and the node's own are in the next entry.
// What an operator's token requests for its own use has a turn like other calls.
func TestQueue_OperatorsDoNotWaitForCallers(t *testing.T) {
	use := renewBy("operator uses")
	use.Operator = true
	work := slots(1)
	work.Caller, work.Operator = "operator", true
	member := &logpb.Command{
		Caller: "own", Kind: &logpb.Command_PutMember{PutMember: &logpb.PutMember{Id: "n", ApiAddress: "127.0.0.1:1"}},
	}
	next := behindAQueue(t, append(manyRenews("busy", 100), use, work), member)[0]
	if len(next) != 4 || next[0] != "operator" || next[1] != "own" || !slices.Contains(next, "operator uses") ||
		!slices.Contains(next, "busy") {
		t.Errorf("the next entry is of %q", next)
	}
}

// TestQueue_SingleCallPassesLongQueues: a caller with one command is in the next entry, however much another caller has queued.
func TestQueue_SingleCallPassesLongQueues(t *testing.T) {
	entries := behindAQueue(t, append(manyRenews("busy", 1000), renewBy("modest")))
	if !slices.Contains(entries[0], "modest") {
		t.Errorf("the next entries are of %q", entries[:3])
	}
}

// TestQueue_AnEmptyCallerIsNotTheNode: calls without a caller's name share a part of the queue like any caller. The node's own commands
// find room when that part is used up.
func TestQueue_AnEmptyCallerIsNotTheNode(t *testing.T) {
	n := openOne(t, oneAtATime, func(c *Config) { c.MaxQueueCommands = 32 })
	blocked, open := block(n)
	var calls sync.WaitGroup
	queue := func(i int) {
		calls.Go(func() {
			if _, _, err := n.Propose(context.Background(), renewBy("")); err != nil {
				t.Error(err)
			}
		})
		poll(t, "it queues up", func() bool { return n.proposer.queued() == i })
	}
	queue(0)
	<-blocked
	for i := range 15 { // half of what is not kept for operators
		queue(i + 1)
	}
	if _, _, err := n.Propose(t.Context(), renewBy("")); causeOf(err) != QueueFull {
		t.Errorf("beyond its part: %v", err)
	}
	calls.Go(func() {
		if err := n.proposeOwn(context.Background(), renewBy("")); err != nil {
			t.Errorf("the node's own: %v", err)
		}
	})
	poll(t, "the node's own queues up", func() bool { return n.proposer.queued() == 16 })
	open()
	calls.Wait()
}

// TestQueue_IsFair: calls of any size arrive, are cancelled and leave in any order. Each leaves once: a caller's in their order, those of
// front before all others. While two callers wait, neither gets more than two quanta and one call ahead of the other.
func TestQueue_IsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q := newCallQueue(64, 64*100) // a quantum is 200 bytes
		names := []string{"a", "b", "c", "d"}
		waiting := map[string][]*call{}
		// ahead is how much more one caller of a pair got than the other since both have waited.
		ahead := map[[2]string]int{}
		longest := 0
		took := func(caller string, cost int) {
			for pair := range ahead {
				switch caller {
				case pair[0]:
					ahead[pair] += cost
				case pair[1]:
					ahead[pair] -= cost
				}
			}
			for i, one := range names {
				for _, other := range names[i+1:] {
					pair := [2]string{one, other}
					switch {
					case len(waiting[one]) == 0 || len(waiting[other]) == 0:
						delete(ahead, pair)
					case ahead[pair] == 0:
						ahead[pair] = 0
					}
					if got := ahead[pair]; got > 2*q.quantum+longest || got < -2*q.quantum-longest {
						t.Fatalf("%s is %d ahead of %s: the quantum is %d, the longest call %d", one, got, other, q.quantum, longest)
					}
				}
			}
		}
		leave := func(caller string, c *call) {
			if !q.remove(c) || q.remove(c) {
				t.Fatal("a call does not leave once")
			}
			for i := range waiting[caller] {
				if waiting[caller][i] == c {
					waiting[caller] = append(waiting[caller][:i:i], waiting[caller][i+1:]...)
					return
				}
			}
			t.Fatalf("%s has no such call", caller)
		}
		push := func(t *rapid.T) {
			caller := rapid.SampledFrom(append(names, "")).Draw(t, "caller")
			c := &call{own: caller == "", commands: make([]*logpb.Command, rapid.IntRange(1, 40).Draw(t, "commands"))}
			for i := range c.commands {
				c.commands[i] = renewBy(caller)
			}
			longest = max(longest, len(c.commands)*q.least)
			q.push(c)
			waiting[caller] = append(waiting[caller], c)
			took("", 0)
		}
		t.Repeat(map[string]func(*rapid.T){
			"push": push,
			"more": push,
			"cancel": func(t *rapid.T) {
				caller := rapid.SampledFrom(names).Draw(t, "caller")
				if len(waiting[caller]) == 0 {
					t.Skip("nothing waits")
				}
				c := rapid.SampledFrom(waiting[caller]).Draw(t, "call")
				if c.next > 0 {
					t.Skip("it is partly in an entry")
				}
				leave(caller, c)
				took("", 0)
			},
			"serve": func(t *rapid.T) {
				c := q.head()
				if c == nil {
					t.Skip("nothing waits")
				}
				caller := c.commands[0].Caller
				if len(waiting[""]) > 0 && caller != "" || waiting[caller][0] != c {
					t.Fatalf("served out of order: a call of %q", caller)
				}
				part := rapid.IntRange(1, len(c.commands)-c.next).Draw(t, "part")
				q.charge(c, part, part*10)
				if c.next += part; c.next == len(c.commands) {
					leave(caller, c)
				}
				took(caller, part*q.least)
			},
			"": func(t *rapid.T) {
				sum := 0
				for _, calls := range waiting {
					sum += len(calls)
				}
				if sum != q.calls || (q.head() == nil) != (sum == 0) {
					t.Fatalf("%d calls are queued, %d are counted", sum, q.calls)
				}
			},
		})
	})
}
