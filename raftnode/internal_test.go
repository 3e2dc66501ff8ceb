package raftnode

import (
	"errors"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/effect"
	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// TestWallViews: no minority of clocks moves either view, whatever they show and whichever voters answer.
func TestWallViews(t *testing.T) {
	const now = int64(100 * time.Second)
	good := func(wall int64) sample { return sample{wall: wall, at: now} }
	late := sample{wall: 1000, at: now - int64(sampleLife) - 1}
	for name, c := range map[string]struct {
		samples     []sample
		voters      int
		early, late int64
		none        bool
	}{
		"one voter":                              {[]sample{good(1000)}, 1, 1000, 1000, false},
		"three agree":                            {[]sample{good(1000), good(1000), good(1000)}, 3, 1000, 1000, false},
		"the middle of three":                    {[]sample{good(900), good(1000), good(1100)}, 3, 1000, 1000, false},
		"one of three in 1970":                   {[]sample{good(0), good(1000), good(1001)}, 3, 1000, 1000, false},
		"one of three in 2262":                   {[]sample{good(math.MaxInt64 / 2), good(1000), good(1001)}, 3, 1001, 1001, false},
		"two of three answer":                    {[]sample{good(1000), good(1005)}, 3, 1000, 1005, false},
		"two of three answer, one far ahead":     {[]sample{good(1000), good(9999)}, 3, 1000, 9999, false},
		"two of three answer, one far behind":    {[]sample{good(5), good(1000)}, 3, 5, 1000, false},
		"one of three answers":                   {[]sample{good(1000)}, 3, 0, 0, true},
		"three of five answer":                   {[]sample{good(1), good(2), good(3)}, 5, 1, 3, false},
		"two wrong of five":                      {[]sample{good(0), good(0), good(7), good(8), good(9)}, 5, 7, 7, false},
		"a stale sample is a lost voter":         {[]sample{late, good(1000), good(1005)}, 3, 1000, 1005, false},
		"nobody":                                 {nil, 3, 0, 0, true},
		"the age of a sample is added":           {[]sample{{wall: 1000, at: now - 50}}, 1, 1050, 1050, false},
		"the way of a reply widens the interval": {[]sample{{wall: 1000, roundTrip: 30, at: now}}, 1, 1000, 1030, false},
	} {
		t.Run(name, func(t *testing.T) {
			early, late, ok := wallViews(c.samples, c.voters, now)
			if ok == c.none || early != c.early || late != c.late {
				t.Fatalf("%d, %d, %v; want %d, %d", early, late, ok, c.early, c.late)
			}
		})
	}
}

// TestOutcome_OfEveryRaftError: each error with which raft can answer a proposal means either certainly not accepted, or possibly
// applied.
func TestOutcome_OfEveryRaftError(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress = "n", t.TempDir(), "127.0.0.1:0"
	conf.Peers = []Peer{{ID: "n", RaftAddress: "127.0.0.1:0"}}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	for _, c := range []struct {
		err         error
		notAccepted bool
	}{
		{raft.ErrNotLeader, true},
		{raft.ErrEnqueueTimeout, true},
		{raft.ErrLeadershipTransferInProgress, true},
		{raft.ErrLeader, false},
		{raft.ErrLeadershipLost, false},
		{raft.ErrAbortedByRestore, false},
		{raft.ErrRaftShutdown, false},
		{raft.ErrNothingNewToSnapshot, false},
		{raft.ErrUnsupportedProtocol, false},
		{raft.ErrCantBootstrap, false},
		{errors.New("a store's own error"), false},
	} {
		var notAccepted *NotAcceptedError
		var unknown *UnknownError
		switch got := n.classify(c.err); {
		case c.notAccepted != errors.As(got, &notAccepted):
			t.Errorf("%v became %v", c.err, got)
		case !c.notAccepted && !errors.As(got, &unknown):
			t.Errorf("%v became %v, which is no outcome", c.err, got)
		}
	}
}

// TestTransport_HeartbeatsTakeMainLoop: raft's asynchronous path for heartbeats lets logs diverge (hashicorp/raft issue 695).
func TestTransport_HeartbeatsTakeMainLoop(t *testing.T) {
	port, err := peer.Listen(peer.Config{Network: peer.NewTCP(""), Address: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = port.Close() }()
	inner := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{Stream: port, MaxPool: 1, Timeout: time.Second})
	defer func() { _ = inner.Close() }()
	var transport raft.Transport = raftTransport{NetworkTransport: inner}
	transport.SetHeartbeatHandler(func(raft.RPC) { t.Error("a heartbeat took the other path") })
	if _, ok := transport.(raft.WithPreVote); !ok {
		t.Error("the wrapper hides pre-votes")
	}
}

// TestFaultyClock: an offset moves only the wall clock. A rate applies to the monotonic clock from then on, and that clock never jumps.
func TestFaultyClock(t *testing.T) {
	inner := &fakeClock{wall: 1000, monotonic: 1_000_000_000}
	c := NewFaultyClock(inner)
	c.SetOffset(-time.Hour)
	if got := c.Wall(); got != 1000-int64(time.Hour) {
		t.Fatalf("wall %d", got)
	}
	inner.monotonic += 1_000_000
	before := c.Monotonic()
	c.SetRate(2_000_000)
	if c.Monotonic() != before {
		t.Fatal("a change of the rate made the clock jump")
	}
	inner.monotonic += 1_000_000
	if got := c.Monotonic() - before; got != 2_000_000 {
		t.Fatalf("at double rate it ran %d in 1,000,000", got)
	}
}

type fakeClock struct{ wall, monotonic int64 }

func (c *fakeClock) Wall() int64      { return c.wall }
func (c *fakeClock) Monotonic() int64 { return c.monotonic }

// TestWrite_FailureEndsNode: after a failed write, data in memory cannot be trusted.
func TestWrite_FailureEndsNode(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress = "n", t.TempDir(), "127.0.0.1:0"
	conf.Peers = []Peer{{ID: "n", RaftAddress: "127.0.0.1:0"}}
	stuck, broken := newStuckAppend(), errors.New("input/output error")
	conf.Testing, conf.Append = true, stuck.append
	close(stuck.release)
	stuck.armed <- broken
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Kill()
	<-n.Done()
	if !errors.Is(n.Err(), broken) {
		t.Fatalf("the node ended with %v", n.Err())
	}
	if _, _, err := n.Propose(t.Context()); err != nil {
		t.Fatal("nothing to propose is nothing to fail")
	}
}

// termless is a store in which writes of terms can be made to fail.
type termless struct {
	*raft.InmemStore
	failing atomic.Bool
}

var errTermless = errors.New("input/output error")

func (l *termless) Set(key, value []byte) error {
	if l.failing.Load() {
		return errTermless
	}
	return l.InmemStore.Set(key, value)
}

func (*termless) CutAtOnce() uint64 { return 2048 }

func (*termless) Close() error { return nil }

// failingTerms makes a log whose writes of terms can be made to fail; failed receives the fatal error.
func failingTerms(t *testing.T) (log *logstore.Log, terms *termless, failed <-chan error) {
	t.Helper()
	met := make(chan error, 1)
	terms = &termless{InmemStore: raft.NewInmemStore()}
	return logstore.New(terms, logstore.Options{
		Leads: func() bool { return false }, Fatal: func(err error) { met <- err }, Monotonic: NewSystemClock().Monotonic,
	}), terms, met
}

// TestTerm_FailedWriteEndsNode: the node ends in order, before raft panics, on start and while it runs. (Found by the fault
// suite: mix disks, seed 1001.)
func TestTerm_FailedWriteEndsNode(t *testing.T) {
	conf := DefaultConfig()
	conf.ID, conf.DataDir, conf.RaftAddress = "n", t.TempDir(), "127.0.0.1:0"
	conf.Peers = []Peer{{ID: "n", RaftAddress: "127.0.0.1:0"}}
	n, err := Open(conf)
	if err != nil {
		t.Fatal(err)
	}
	n.Kill()
	store, terms, failed := failingTerms(t)
	terms.failing.Store(true)
	n.log = store
	if err := n.newRaft(); !errors.Is(err, errTermless) {
		t.Errorf("it starts with %v", err)
	}
	if err := <-failed; !errors.Is(err, errTermless) {
		t.Errorf("it stopped with %v", err)
	}

	store, terms, failed = failingTerms(t)
	address, transport := raft.NewInmemTransport("n")
	snapshots := raft.NewInmemSnapshotStore()
	voters := raft.Configuration{Servers: []raft.Server{{ID: "n", Address: address}}}
	if err := raft.BootstrapCluster(n.raftConfig(), store, store, snapshots, transport, voters); err != nil {
		t.Fatal(err)
	}
	node, err := raft.NewRaft(n.raftConfig(), &raft.MockFSM{}, store, store, snapshots, transport)
	if err != nil {
		t.Fatal(err)
	}
	store.Start()
	terms.failing.Store(true)
	if err := <-failed; !errors.Is(err, errTermless) {
		t.Errorf("it stopped with %v", err)
	}
	if err := node.Shutdown().Error(); err != nil {
		t.Errorf("its end: %v", err)
	}
}

// TestWatch_EndsAtSnapshot: a snapshot replaces entries, so a watcher of the node would miss their events. It gets a *CompactedError,
// whether it had seen everything before or waited for a later index. (Found by the fault suite: mix failover, seed 2.)
func TestWatch_EndsAtSnapshot(t *testing.T) {
	h := newHub(64)
	entry := func(index uint64) {
		h.publish(&fsm.Applied{Index: index, Term: 1, Events: []effect.Event{{Kind: effect.EventGranted}}})
	}
	for index := uint64(1); index <= 5; index++ {
		entry(index)
	}
	n := &Node{hub: h}
	subscribe := func(from uint64) *Subscription {
		s, err := n.Watch(from)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	upToDate, behind, waiting := subscribe(0), subscribe(3), subscribe(9)
	h.reset(Position{Term: 1, Index: 20})
	entry(21)
	for name, s := range map[string]*Subscription{"up to date": upToDate, "behind": behind, "waiting": waiting} {
		at, _, err := s.Next(t.Context())
		compacted, ok := errors.AsType[*CompactedError](err)
		if !ok || compacted.Oldest != 21 {
			t.Errorf("%s: got index %d, %v", name, at.Index, err)
		}
	}
	if at, _, err := subscribe(21).Next(t.Context()); err != nil || at.Index != 21 {
		t.Errorf("a new watcher: index %d, %v", at.Index, err)
	}
}

// TestBookmark_AfterSnapshotIsOfSnapshot: without later events, the bookmark has the snapshot's position. It used to have that of the
// entry before, which a restore had undone. (Found by the fault suite: mix edge, five nodes, seed 9003.)
func TestBookmark_AfterSnapshotIsOfSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(64)
		h.publish(&fsm.Applied{Index: 5, Term: 1, Clock: fsm.Clock{Now: 50}, Events: []effect.Event{{Kind: effect.EventGranted}}})
		want := Position{Term: 2, Index: 20, ClusterTime: 40}
		h.reset(want)
		s, err := (&Node{hub: h}).Watch(0)
		if err != nil {
			t.Fatal(err)
		}
		if at, events, err := s.Next(t.Context()); err != nil || at != want || len(events) > 0 {
			t.Errorf("a bookmark of %+v, %v, want %+v", at, err, want)
		}
	})
}

// TestHub_BoundsKeptEvents: by bytes, not only by the number of entries. A watcher that is too far behind gets an error.
func TestHub_BoundsKeptEvents(t *testing.T) {
	h := newHub(64)
	h.mostBytes = 64 << 10
	n := &Node{hub: h}
	all := make([]effect.Event, h.mostBytes/4/100)
	for i := range all {
		all[i] = effect.Event{Kind: effect.EventGranted, Holder: strings.Repeat("h", 96)} // 100 bytes
	}
	kept := func() (count int) {
		for i := range h.ring {
			count += len(h.ring[i].packed)
		}
		return count
	}
	slow, err := n.Watch(0)
	if err != nil {
		t.Fatal(err)
	}
	for index := uint64(1); index <= 100; index++ { // more than the ring holds
		h.publish(&fsm.Applied{Index: index, Term: 1, Events: all[:len(all)*int(index%5)/4]})
		if count := kept(); count > h.mostBytes || count != h.bytes {
			t.Fatalf("after entry %d: %d bytes are kept, counted %d", index, count, h.bytes)
		}
	}
	if _, _, err := slow.Next(t.Context()); !errors.Is(err, ErrSlowWatcher) {
		t.Errorf("a slow watcher: %v", err)
	}
	if _, err := n.Watch(1); err == nil {
		t.Error("events that are gone were promised")
	}
	if s, err := n.Watch(h.from); err != nil {
		t.Error(err)
	} else if at, events, err := s.Next(t.Context()); err != nil || at.Index < h.from || len(events) == 0 {
		t.Errorf("the oldest that are kept: %v, %d events, %v", at, len(events), err)
	}
	h.publish(&fsm.Applied{Index: 101, Term: 1, Events: slices.Concat(all, all, all, all, all)}) // only this entry is kept
	if h.next-h.first != 1 {
		t.Errorf("%d entries", h.next-h.first)
	}
	h.reset(Position{Term: 1, Index: 300})
	if kept() != 0 || h.bytes != 0 {
		t.Errorf("%d bytes after a snapshot, counted %d", kept(), h.bytes)
	}
}

// TestWatch_ResumesAtAnyKeptIndex: a watcher that was away for long reads all events that are kept, also of a ring of the default size.
func TestWatch_ResumesAtAnyKeptIndex(t *testing.T) {
	entries := uint64(DefaultConfig().EventEntries)
	h := newHub(int(entries))
	for index := uint64(1); index <= entries; index++ {
		h.publish(&fsm.Applied{Index: index, Term: 1, Events: []effect.Event{{Kind: effect.EventGranted}}})
	}
	s, err := (&Node{hub: h}).Watch(1)
	if err != nil {
		t.Fatal(err)
	}
	for index := uint64(1); index <= entries; index++ {
		if at, _, err := s.Next(t.Context()); err != nil || at.Index != index {
			t.Fatalf("index %d: %d, %v", index, at.Index, err)
		}
	}
}

// TestWatch_AtDifferentEntries: each watcher gets its own entry's events, whichever entries were unpacked before.
func TestWatch_AtDifferentEntries(t *testing.T) {
	h := newHub(64)
	n := &Node{hub: h}
	for index := uint64(1); index <= 4; index++ {
		h.publish(&fsm.Applied{Index: index, Term: 1, Events: []effect.Event{{Kind: effect.EventExpired, Lease: index}}})
	}
	var all []*Subscription
	for from := uint64(1); from <= 3; from++ {
		for range 2 {
			s, err := n.Watch(from)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, s)
		}
	}
	for round := range uint64(2) {
		for i, s := range all {
			want := uint64(i/2) + 1 + round
			at, events, err := s.Next(t.Context())
			if err != nil || at.Index != want || len(events) != 1 || events[0].Lease != want {
				t.Errorf("watcher %d, round %d: index %d, events %v, %v", i, round, at.Index, events, err)
			}
		}
	}
}

// TestMembership_OlderSnapshotRemovesNobody: a learner that has seen itself in a configuration may get an older snapshot with an
// older configuration. (Found by the fault suite: mix default, seed 11, a node that was replaced.)
func TestMembership_OlderSnapshotRemovesNobody(t *testing.T) {
	type inspect struct {
		index          uint64
		found, removed bool
	}
	for name, checks := range map[string][]inspect{
		"an older snapshot": {{90, false, false}, {110, true, false}, {90, false, false}, {110, true, false}},
		"removed":           {{110, true, false}, {110, true, false}, {130, false, true}},
		"never a member":    {{90, false, false}, {130, false, false}},
	} {
		m := membership{}
		for i, l := range checks {
			if got := m.removed(l.index, l.found); got != l.removed {
				t.Errorf("%s, look %d: removed %v", name, i, got)
			}
		}
	}
	restarted := membership{member: true, at: 110}
	if restarted.removed(90, false) || !restarted.removed(130, false) {
		t.Error("a node that was a member when it started does not see by which configuration it was removed")
	}
}

// TestChangeOfMembers_IsRefusedAfterAnother: a change fails if it was checked against an older configuration. The index of that
// configuration tells, also after a restart from a snapshot.
func TestChangeOfMembers_IsRefusedAfterAnother(t *testing.T) {
	n := openOne(t)
	change := func(id string, since uint64) error {
		return n.raft.AddNonvoter(raft.ServerID(id), raft.ServerAddress(id), since, time.Minute).Error()
	}
	since, _, err := n.configuration()
	if err != nil {
		t.Fatal(err)
	}
	if err := change("first", since); err != nil {
		t.Fatal(err)
	}
	if err := change("second", since); err == nil {
		t.Error("a change was made that was judged by the members before another one")
	}
	now, servers, err := n.configuration()
	if member, voter := suffrageOf(servers, "first"); err != nil || now <= since || !member || voter {
		t.Errorf("index %d after %d, %v, %v", now, since, servers, err)
	}
	if err := n.raft.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	again := &configurations{}
	files, err := raft.NewFileSnapshotStore(n.config.DataDir, 1, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	store := &checkedSnapshots{SnapshotStore: files, configured: again, log: n.log}
	all, err := store.List()
	if err != nil || len(all) == 0 {
		t.Fatalf("%v %v", all, err)
	}
	_, state, err := store.Open(all[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = state.Close() }()
	again.learn(now-1, raft.Configuration{})
	if index, servers := again.newest(); index != now || len(servers) != 2 {
		t.Errorf("the snapshot has %v at index %d", servers, index)
	}
}

// TestProbes_ReadersOfOlderTermFail: readers in a probe round that a new term replaces get a refusal.
func TestProbes_ReadersOfOlderTermFail(t *testing.T) {
	n := openOne(t)
	p := &probes{running: true} // a round is running, so that the next one waits
	older := make(chan error, 1)
	go func() { older <- p.join(t.Context(), n, 5) }()
	for joined := false; !joined; runtime.Gosched() {
		p.mu.Lock()
		joined = p.next != nil
		p.mu.Unlock()
	}
	newer := make(chan error, 1)
	go func() { newer <- p.join(t.Context(), n, 7) }()
	if _, ok := errors.AsType[*NotAcceptedError](<-older); !ok {
		t.Error("the reader of the older term received no error")
	}
	p.mu.Lock()
	close(p.next.done)
	p.mu.Unlock()
	if err := <-newer; err != nil {
		t.Error(err)
	}
}

// TestAtLeast_LaterIsNeverEarlier: if the state's earlier view is ahead of the present views, the later view is raised to it.
func TestAtLeast_LaterIsNeverEarlier(t *testing.T) {
	for _, c := range []struct{ present, state, want fsm.Clock }{
		{
			fsm.Clock{Now: 3, WallEarly: 5, WallLate: 6}, fsm.Clock{Now: 2, WallEarly: 4, WallLate: 9}, fsm.Clock{Now: 3, WallEarly: 5, WallLate: 6},
		},
		{
			fsm.Clock{Now: 1, WallEarly: 5, WallLate: 6},
			fsm.Clock{Now: 2, WallEarly: 10, WallLate: 20},
			fsm.Clock{Now: 2, WallEarly: 10, WallLate: 10},
		},
		{fsm.Clock{Now: 1}, fsm.Clock{Now: 2, WallEarly: 10, WallLate: 20}, fsm.Clock{Now: 2, WallEarly: 10, WallLate: 10}},
	} {
		if got := atLeast(c.present, c.state); got != c.want {
			t.Errorf("%+v next to the state's %+v: %+v", c.present, c.state, got)
		}
	}
}
