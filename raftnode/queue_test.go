package raftnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// openOne opens a cluster of one and waits until it leads.
func openOne(t *testing.T, change ...func(*Config)) *Node {
	t.Helper()
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress, conf.Testing = "n", t.TempDir(), "127.0.0.1:0", true
	conf.Peers, conf.LogStore = []Peer{{ID: "n", RaftAddress: "127.0.0.1:0"}}, UnderTest
	conf.Patient()
	for _, fn := range change {
		fn(&conf)
	}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.Kill)
	poll(t, "the cluster is founded", func() bool { return n.leading.Load() != nil && n.cluster.Load() != nil })
	return n
}

func poll(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	deadline := time.Now().Add(time.Minute)
	for !ok() {
		if time.Now().After(deadline) {
			tb.Fatalf("never happened: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// block stops the state machine at its next entry until open is called.
func block(n *Node) (blocked <-chan struct{}, open func()) {
	reached, gate := make(chan struct{}), make(chan struct{})
	n.crash.crash = func() {
		close(reached)
		<-gate
	}
	n.crash.set("before-apply", 1)
	return reached, func() { close(gate) }
}

func (p *proposer) queued() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commands
}

func slots(limit int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_ApplyQuotas{ApplyQuotas: &logpb.ApplyQuotas{Quotas: []*logpb.Quota{{
		Name: "q", Rule: &logpb.Quota_Slots{Slots: &logpb.Slots{Limit: limit}},
	}}}}}
}

func take(amount int64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Reserve{Reserve: &logpb.Reserve{
		Holder: "h", Items: []*logpb.Item{{Quota: "q", Amount: &amount}}, TtlNs: int64(time.Hour),
	}}}
}

func release(lease uint64) *logpb.Command {
	return &logpb.Command{Kind: &logpb.Command_Release{Release: &logpb.Release{Lease: lease, Fence: lease}}}
}

func causeOf(err error) NotAcceptedCause {
	notAccepted, ok := errors.AsType[*NotAcceptedError](err)
	if !ok {
		return 0
	}
	return notAccepted.Cause
}

func oneAtATime(c *Config) { c.EntriesInFlight, c.MaxEntryCommands = 1, 4 }

// TestQueue_FullTakesOnlyReleases: no command is accepted beyond the queue's bound; those that take quota stop at seven eighths of it.
func TestQueue_FullTakesOnlyReleases(t *testing.T) {
	n := openOne(t, oneAtATime, func(c *Config) { c.MaxQueueCommands = 16 })
	if _, _, err := n.Propose(t.Context(), slots(100)); err != nil {
		t.Fatal(err)
	}
	blocked, open := block(n)
	var calls sync.WaitGroup
	operators := 0
	byOperator := func(command *logpb.Command) *logpb.Command { // each by an operator of its own, so that no caller's part matters
		operators++
		command.Operator, command.Caller = true, fmt.Sprint("operator-", operators)
		return command
	}
	propose := func(command *logpb.Command) {
		byOperator(command)
		calls.Go(func() {
			if _, _, err := n.Propose(context.Background(), command); err != nil {
				t.Error(err)
			}
		})
	}
	propose(take(1))
	<-blocked
	for i := range 14 { // seven eighths of sixteen
		propose(take(1))
		poll(t, "it queues up", func() bool { return n.proposer.queued() == i+1 })
	}
	if _, _, err := n.Propose(t.Context(), byOperator(take(1))); causeOf(err) != QueueFull {
		t.Errorf("the next that takes: %v", err)
	}
	for i := range 2 {
		propose(release(1))
		poll(t, "it queues up", func() bool { return n.proposer.queued() == 15+i })
	}
	if _, _, err := n.Propose(t.Context(), byOperator(release(1))); causeOf(err) != QueueFull {
		t.Errorf("the next that frees: %v", err)
	}
	open()
	calls.Wait()
	if left := n.proposer.queued(); left != 0 || n.proposer.bytes != 0 {
		t.Errorf("%d commands and %d bytes are left of an empty queue", left, n.proposer.bytes)
	}
}

// TestQueue_IsBoundedInBytes: a command beyond the queue's bytes is refused, and so is any command above half an entry.
func TestQueue_IsBoundedInBytes(t *testing.T) {
	n := openOne(t, oneAtATime, func(c *Config) { c.MaxEntryBytes, c.MaxQueueBytes = 8<<10, 8<<10 })
	operators := 0
	fat := func(size int) *logpb.Command { // each by an operator of its own, so that no caller's part matters
		operators++
		return &logpb.Command{
			Operator: true, Caller: fmt.Sprint("operator-", operators),
			Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: string(make([]byte, size))}},
		}
	}
	if _, _, err := n.Propose(t.Context(), fat(5<<10)); causeOf(err) != TooLarge {
		t.Errorf("half an entry and more: %v", err)
	}
	blocked, open := block(n)
	first := make(chan error, 3)
	propose := func(command *logpb.Command) {
		_, _, err := n.Propose(context.Background(), command)
		first <- err
	}
	go propose(fat(1))
	<-blocked
	go propose(fat(3 << 10))
	go propose(fat(3 << 10))
	poll(t, "two queue up", func() bool { return n.proposer.queued() == 2 })
	if _, _, err := n.Propose(t.Context(), fat(3<<10)); causeOf(err) != QueueFull {
		t.Errorf("beyond the bound: %v", err)
	}
	open()
	for range 3 {
		if err := <-first; err != nil {
			t.Error(err)
		}
	}
}

// TestPropose_CancelledCall: a queued call is cancelled and leaves no trace. The outcome of one in flight is unknown, unless it was made
// with ProposeThrough.
func TestPropose_CancelledCall(t *testing.T) {
	for through, propose := range map[bool]func(*Node, context.Context, ...*logpb.Command) ([]*logpb.Result, Position, error){
		false: (*Node).Propose, true: (*Node).ProposeThrough,
	} {
		t.Run(fmt.Sprintf("through=%t", through), func(t *testing.T) {
			n := openOne(t, oneAtATime)
			if _, _, err := n.Propose(t.Context(), slots(100)); err != nil {
				t.Fatal(err)
			}
			blocked, open := block(n)
			ctx, cancel := context.WithCancel(t.Context())
			ask := func(amount int64) <-chan error {
				answer := make(chan error, 1)
				go func() {
					results, _, err := propose(n, ctx, take(amount))
					if err == nil && results[0].GetGranted() == nil {
						err = fmt.Errorf("not granted: %v", results[0])
					}
					answer <- err
				}()
				return answer
			}
			onItsWay := ask(1)
			<-blocked
			queued := ask(10)
			poll(t, "the second queues up", func() bool { return n.proposer.queued() == 1 })
			cancel()
			if err := <-queued; causeOf(err) != Canceled {
				t.Errorf("still queued: %v", err)
			}
			if through {
				open()
				if err := <-onItsWay; err != nil {
					t.Errorf("in flight: %v", err)
				}
			} else {
				if err := <-onItsWay; !isUnknown(err) || !errors.Is(err, context.Canceled) {
					t.Errorf("in flight: %v", err)
				}
				open()
			}
			if _, _, err := n.Propose(t.Context(), take(1)); err != nil {
				t.Fatal(err)
			}
			if held := n.machine.State().Counts().Leases; held != 2 {
				t.Errorf("%d leases: the one in flight and the last are two", held)
			}
		})
	}
}

// TestPropose_CallSpansEntries: results come by position, whichever entries the commands were in, also with other calls in between.
func TestPropose_CallSpansEntries(t *testing.T) {
	n := openOne(t, oneAtATime)
	if _, _, err := n.Propose(t.Context(), slots(1_000_000)); err != nil {
		t.Fatal(err)
	}
	before := n.appliedIndex.Load()
	var calls sync.WaitGroup
	for caller := range 5 {
		calls.Go(func() {
			commands := make([]*logpb.Command, 10)
			for i := range commands {
				commands[i] = take(int64(100*caller + i + 1))
			}
			results, at, err := n.Propose(t.Context(), commands...)
			if err != nil {
				t.Error(err)
				return
			}
			for i, result := range results {
				if got := result.GetGranted().GetItems()[0].GetAmount(); got != int64(100*caller+i+1) {
					t.Errorf("caller %d: result %d is of %d", caller, i, got)
				}
			}
			if at.Index > n.appliedIndex.Load() {
				t.Errorf("answered at %d before it was applied", at.Index)
			}
		})
	}
	calls.Wait()
	if entries := n.appliedIndex.Load() - before; entries < 13 {
		t.Errorf("50 commands in %d entries of 4 at most", entries)
	}
}

// TestProposer_EntryIsBoundedByItems: a Reserve counts as one command per item, in an entry and in the charge to its line. A Reserve with
// more items than an entry holds gets an entry of its own.
func TestProposer_EntryIsBoundedByItems(t *testing.T) {
	n := openOne(t)
	n.config.MaxEntryCommands = 4
	for _, c := range []struct{ items, entries []int }{
		{[]int{1, 1, 1, 1}, []int{4}},
		{[]int{1, 1, 1, 1, 1}, []int{4, 1}},
		{[]int{2, 2}, []int{4}},
		{[]int{2, 2, 1}, []int{4, 1}},
		{[]int{3, 2, 2, 3}, []int{3, 4, 3}},
		{[]int{5, 5}, []int{5, 5}},
		{[]int{1, 5, 1}, []int{1, 5, 1}},
	} {
		asked := &call{ctx: t.Context()}
		for _, items := range c.items {
			command := take(1)
			command.GetReserve().Items = slices.Repeat(command.GetReserve().Items, items)
			asked.commands = append(asked.commands, command)
		}
		if err := asked.encode(1 << 20); err != nil {
			t.Fatal(err)
		}
		const least = 1 << 10 // above the size of a command
		p := &proposer{
			config: n.config, metrics: n.metrics, room: newQueueRoom(1000, 1<<20), most: n.config.MaxEntryCommands,
			queue: newCallQueue(n.config.MaxEntryCommands, n.config.MaxEntryCommands*least),
		}
		p.queue.push(asked)
		const deficit = 1 << 40 // so that no turn ends
		line := asked.line
		var entries []int
		for next := 0; next < len(c.items); next = asked.next {
			line.deficit = deficit
			p.take()
			weight := 0
			for _, items := range c.items[next:asked.next] {
				weight += items
			}
			entries = append(entries, weight)
			if charged := deficit - line.deficit; asked.next < len(c.items) && charged != weight*least { // an empty line is dropped
				t.Errorf("Reserves of %v items: an entry of %d is charged %d bytes, wanted %d", c.items, weight, charged, weight*least)
			}
		}
		if !slices.Equal(entries, c.entries) {
			t.Errorf("Reserves of %v items in entries of %v, wanted %v", c.items, entries, c.entries)
		}
	}
}

// TestProposer_FailedPartShiftsNoResults: after the first part of a call failed, the entry with the rest of it still gives the later calls
// their own results.
func TestProposer_FailedPartShiftsNoResults(t *testing.T) {
	p := &proposer{}
	result := func(session uint64) *logpb.Result {
		return &logpb.Result{Kind: &logpb.Result_SessionOpened{SessionOpened: &logpb.SessionOpened{Session: session}}}
	}
	made := func(commands int) *call {
		return &call{
			commands: make([]*logpb.Command, commands), results: make([]*logpb.Result, commands), left: commands,
			finished: make(chan struct{}),
		}
	}
	long, next := made(6), made(1)
	p.finish([]part{{long, 0, 4}}, nil, &UnknownError{Err: raft.ErrLeadershipLost})
	p.finish([]part{{long, 4, 6}, {next, 0, 1}}, &fsm.Applied{Results: []*logpb.Result{result(5), result(6), result(7)}}, nil)
	<-long.finished
	<-next.finished
	if got := next.results[0].GetSessionOpened().GetSession(); got != 7 {
		t.Errorf("the call behind got the result of command %d", got)
	}
	if !errors.As(long.err, new(*UnknownError)) {
		t.Errorf("the long call ended with %v", long.err)
	}
}

// TestStalledDisk_EndsNode: a leader that cannot write must make room for another one.
func TestStalledDisk_EndsNode(t *testing.T) {
	stuck := newStuckAppend()
	n := openOne(t, func(c *Config) { c.StallLimit, c.Append = 500*time.Millisecond, stuck.append })
	defer close(stuck.release)
	stuck.armed <- nil
	go func() { _, _, _ = n.Propose(context.Background(), slots(1)) }()
	<-n.Done()
	if n.Err() == nil {
		t.Fatalf("the node ended with %v", n.Err())
	}
}

// TestStalledDisk_LeaderIsReplacedBeforeDiskAnswers: raft's heartbeats continue while its log is stuck. A node that stops must end them,
// or its followers wait until its disk answers.
func TestStalledDisk_LeaderIsReplacedBeforeDiskAnswers(t *testing.T) {
	nodes := openThree(t)
	leads := func() *Node {
		for _, n := range nodes {
			if n.leading.Load() != nil && n.Err() == nil {
				return n
			}
		}
		return nil
	}
	poll(t, "a leader", func() bool { return leads() != nil })
	old := leads()
	stuck, gate := make(chan struct{}), make(chan struct{})
	defer close(gate)
	old.crash.crash = func() {
		close(stuck)
		<-gate
	}
	old.crash.set("before-store", 1)
	go func() { _, _, _ = old.Propose(context.Background(), slots(5)) }()
	<-stuck
	old.fail(errors.New("the disk stalls"))
	poll(t, "another leader", func() bool { return leads() != nil })
}

// openThree starts a cluster of three nodes.
func openThree(t *testing.T) []*Node {
	t.Helper()
	var peers []Peer
	var taken []net.Listener // all open at once, so that each gets another address
	for _, id := range []string{"n1", "n2", "n3"} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		taken = append(taken, listener)
		peers = append(peers, Peer{ID: id, RaftAddress: listener.Addr().String()})
	}
	for _, listener := range taken {
		_ = listener.Close()
	}
	nodes := make([]*Node, len(peers))
	for i, p := range peers {
		conf := DefaultConfig()
		conf.ID, conf.DataDir, conf.RaftAddress, conf.Testing, conf.Peers = p.ID, t.TempDir(), p.RaftAddress, true, peers
		conf.LogStore = UnderTest
		conf.Patient()
		n, err := Open(conf)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(n.Kill)
		nodes[i] = n
	}
	return nodes
}

// TestProbes_AreSharedByReads: reads that arrive while a probe round runs share the next round.
func TestProbes_AreSharedByReads(t *testing.T) {
	n := openOne(t)
	term := n.leading.Load().term
	n.probes.mu.Lock()
	n.probes.running = true // as if a round were running
	n.probes.mu.Unlock()
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	var shared *round
	for range 50 {
		if err := n.probes.join(gone, n, term); causeOf(err) != Canceled {
			t.Fatalf("a reader that is gone: %v", err)
		}
		if shared == nil {
			shared = n.probes.next
		}
		if n.probes.next != shared {
			t.Fatal("two reads wait for two rounds")
		}
	}
	n.wg.Add(1)
	n.probes.run(n)
	<-shared.done
	if shared.err != nil || n.probes.running {
		t.Fatalf("the round ended with %v", shared.err)
	}
	if err := n.probes.join(t.Context(), n, term); err != nil {
		t.Fatal(err)
	}
}

// TestProbes_RefuseOtherTerm: the state of a leader of an earlier term may be stale.
func TestProbes_RefuseOtherTerm(t *testing.T) {
	n := openOne(t)
	term := n.leading.Load().term
	if !n.holdsTerm(term) {
		t.Fatal("the only voter leads")
	}
	for _, other := range []uint64{term - 1, term + 1} {
		if n.holdsTerm(other) {
			t.Errorf("it holds term %d in term %d", other, term)
		}
		if err := n.probes.join(t.Context(), n, other); causeOf(err) != NotLeader {
			t.Errorf("a read of term %d: %v", other, err)
		}
	}
}

// TestEntriesInFlight_IsBound: no more than EntriesInFlight entries are in flight.
func TestEntriesInFlight_IsBound(t *testing.T) {
	n := openOne(t, func(c *Config) { c.EntriesInFlight = 3 })
	blocked, open := block(n)
	errs := make(chan error, 20)
	for range cap(errs) {
		go func() {
			_, _, err := n.Propose(context.Background(), &logpb.Command{Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{}}})
			errs <- err
		}()
	}
	<-blocked
	if most := len(n.proposer.slots); most > 3 {
		t.Errorf("%d entries in flight", most)
	}
	open()
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

// TestPropose_PartlyAcceptedIsUnknown: one of several entries of a call was not accepted. The call had no effect only if that entry held
// all of it. Otherwise errors.As must not find a *NotAcceptedError.
func TestPropose_PartlyAcceptedIsUnknown(t *testing.T) {
	for _, tt := range []struct {
		from, to int
		unknown  bool
	}{{0, 2, false}, {1, 2, true}, {0, 1, true}} {
		c := &call{commands: make([]*logpb.Command, 2), left: 2, finished: make(chan struct{})}
		new(proposer).failLocked(c, part{call: c, from: tt.from, to: tt.to}, &NotAcceptedError{Cause: NotLeader})
		_, unknown := errors.AsType[*UnknownError](c.err)
		if refused := causeOf(c.err) != 0; unknown != tt.unknown || refused == tt.unknown {
			t.Errorf("commands %d to %d of 2: unknown %t, not accepted %t: %v", tt.from, tt.to, unknown, refused, c.err)
		}
	}
}

// pausedClock is the clock of a process that may be paused.
type pausedClock struct {
	Clock
	paused atomic.Int64
}

func (c *pausedClock) Monotonic() int64 { return c.Clock.Monotonic() + c.paused.Load() }

// TestStalledDisk_PauseIsNoStall: after a pause, a process finds a write that seems longer than StallLimit, and continues.
func TestStalledDisk_PauseIsNoStall(t *testing.T) {
	stuck, clock := newStuckAppend(), &pausedClock{Clock: NewSystemClock()}
	n := openOne(t, func(c *Config) { c.StallLimit, c.Append, c.Clock = 2*time.Second, stuck.append, clock })
	stuck.armed <- nil
	go func() { _, _, _ = n.Propose(context.Background(), slots(1)) }()
	<-stuck.reached
	clock.paused.Add(int64(time.Hour))
	checked := time.NewTimer(3 * n.config.StallLimit / checksPerStall)
	defer checked.Stop()
	select {
	case <-n.Done():
		t.Fatal(n.Err())
	case <-checked.C:
	}
	close(stuck.release)
	if _, _, err := n.Propose(t.Context(), slots(1)); err != nil {
		t.Fatal(err)
	}
}

// TestQueue_IsSharedByCallers: one caller's commands take half of what others leave of the queue, in number and in bytes. Others still find
// room, and an operator does when all that is used.
func TestQueue_IsSharedByCallers(t *testing.T) {
	for name, test := range map[string]struct {
		set    func(*Config)
		holder string
		budget string
		shares []int
	}{
		"by number": {func(c *Config) { c.MaxQueueCommands = 32 }, "h", "commands", []int{15, 7, 4, 2, 1}},
		"by bytes":  {func(c *Config) { c.MaxEntryBytes, c.MaxQueueBytes = 8<<10, 8<<10 }, strings.Repeat("h", 200), "command_bytes", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n := openOne(t, oneAtATime, test.set)
			blocked, open := block(n)
			var calls sync.WaitGroup
			propose := func(caller string, operator bool) error {
				command := &logpb.Command{
					Kind: &logpb.Command_OpenSession{OpenSession: &logpb.OpenSession{Holder: test.holder}}, Caller: caller, Operator: operator,
				}
				before := n.proposer.queued()
				failed := make(chan error, 1)
				calls.Go(func() {
					if _, _, err := n.Propose(context.Background(), command); err != nil {
						failed <- err
					}
				})
				var err error
				poll(t, "it queues up or is refused", func() bool {
					select {
					case err = <-failed:
						return true
					default:
						return n.proposer.queued() > before
					}
				})
				return err
			}
			go func() { _ = propose("token:first", false) }()
			<-blocked
			poll(t, "the first one is in an entry", func() bool { return n.proposer.queued() == 0 })
			for i := 0; ; i++ {
				caller, got := fmt.Sprint("token:", i), 0
				err := propose(caller, false)
				for err == nil {
					got++
					err = propose(caller, false)
				}
				refused, ok := errors.AsType[*NotAcceptedError](err)
				if !ok || refused.Cause != QueueFull || refused.Full == nil || refused.Full.Budget != test.budget {
					t.Fatalf("caller %d: %v", i, err)
				}
				if i < len(test.shares) && got != test.shares[i] {
					t.Errorf("caller %d got %d", i, got)
				}
				if got == 0 && !refused.Full.Own {
					break // no caller's part has room left
				}
			}
			if err := propose("token:operator", true); err != nil {
				t.Errorf("an operator: %v", err)
			}
			open()
			calls.Wait()
			for _, b := range n.QueueBudgets() {
				if used, callers := b.InUse(); used != 0 || callers != 0 {
					t.Errorf("%s: %d of %d callers are left of an empty queue", b.Name(), used, callers)
				}
			}
		})
	}
}
