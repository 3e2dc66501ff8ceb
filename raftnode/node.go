package raftnode

import (
	"context"
	"io"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
)

// Position says where in the log something stands.
type Position struct {
	Term, Index uint64
	// ClusterTime is the cluster time of the entry (nanoseconds since the cluster's birth).
	ClusterTime int64
}

// Node is one member of a cluster.
type Node struct{}

// Config configures a Node.
type Config struct{}

// Peer is a member of the static list that forms a cluster.
type Peer struct{ ID, RaftAddress, APIAddress string }

// Open opens the node's data, joins or forms the cluster, and starts.
func Open(cfg Config) (*Node, error) { panic("stub") }

// Propose sends commands through the log and returns their results by position. It returns when all are applied here,
// or with *NotAcceptedError (nothing was or will be applied), or *UnknownError (some may be). Commands of one call are
// applied in order, not necessarily in one entry. The position is that of the last entry.
func (n *Node) Propose(ctx context.Context, commands ...*logpb.Command) ([]*logpb.Result, Position, error) {
	panic("stub")
}

// Await waits for the final result of a Reserve that waits under ticket. ErrNoTicket: it does not stand in the queue
// any more; propose the Reserve again under its request id to learn its result. An *UnknownError: this node ceased to
// lead.
func (n *Node) Await(ctx context.Context, ticket uint64) (*logpb.Result, Position, error) {
	panic("stub")
}

// ReadMode chooses how fresh a read is.
type ReadMode int

// Linearizable reads see everything acknowledged before they began; Stale ones see what this node has.
const (
	Linearizable ReadMode = 1
	Stale        ReadMode = 2
)

// Read calls fn with the state under the read lock; fn must be short and keep nothing. For Linearizable this node must
// lead (*NotAcceptedError otherwise).
func (n *Node) Read(ctx context.Context, mode ReadMode, fn func(*fsm.State, fsm.Clock, Position)) error {
	panic("stub")
}

// Frozen is Read for long work: the state that it returns never changes and needs no lock.
func (n *Node) Frozen(ctx context.Context, mode ReadMode) (*fsm.State, fsm.Clock, Position, error) {
	panic("stub")
}

// Clock returns the present moment: on the leader its clock, elsewhere the state's.
func (n *Node) Clock() fsm.Clock { panic("stub") }

// Leader returns the leader's id and API address as far as this node knows (a hint), and whether it is this node.
func (n *Node) Leader() (id, apiAddress string, self bool) { panic("stub") }

// ID returns this node's id.
func (n *Node) ID() string { panic("stub") }

// Watch subscribes to events from an index on (0: from the next entry). A *CompactedError: they are gone.
func (n *Node) Watch(from uint64) (*Subscription, error) { panic("stub") }

// Subscription is a stream of events, entry by entry, nothing missing.
type Subscription struct{}

// Next returns the next entry's events (possibly none: a bookmark). ErrSlowWatcher: the buffer overran.
func (s *Subscription) Next(ctx context.Context) (Position, []fsm.Event, error) { panic("stub") }

// Close ends the subscription.
func (s *Subscription) Close() { panic("stub") }

// Status is a node's view of itself and the cluster.
type Status struct {
	ClusterID                                                 string
	ID                                                        string
	Role                                                      string // leader, follower, candidate, learner, stopped
	Leader, LeaderAPIAddress                                  string
	Term, CommitIndex, AppliedIndex, LastIndex, SnapshotIndex uint64
	Members                                                   []MemberStatus
	Checks                                                    []Check
	Testing                                                   bool
}

// MemberStatus is one member as a node knows it.
type MemberStatus struct {
	ID, RaftAddress, APIAddress string
	Voter, Leader               bool
	// LastContact is negative where it is not known.
	LastContact time.Duration
	// MatchIndex is 0 where it is not known.
	MatchIndex uint64
}

// Check is one health check.
type Check struct {
	Name    string
	OK      bool
	Message string
}

// Status returns this node's view. It needs no leader.
func (n *Node) Status() Status { panic("stub") }

// AddLearner adds a node that does not vote yet.
func (n *Node) AddLearner(ctx context.Context, id, raftAddress, apiAddress string) error {
	panic("stub")
}

// Promote makes a learner that has caught up a voter.
func (n *Node) Promote(ctx context.Context, id string) error { panic("stub") }

// Remove removes a member. Without force it refuses where the rest would have no majority that answers.
func (n *Node) Remove(ctx context.Context, id string, force bool) error { panic("stub") }

// TransferLeadership hands leadership to a voter (empty: the most advanced) and returns the new leader's id.
func (n *Node) TransferLeadership(ctx context.Context, id string) (string, error) { panic("stub") }

// Restore replaces the state by a backup, raises the fence's epoch and returns it.
func (n *Node) Restore(ctx context.Context, backup io.Reader) (epoch uint32, at Position, err error) {
	panic("stub")
}

// Done is closed when the node has stopped by itself; Err then says why.
func (n *Node) Done() <-chan struct{} { panic("stub") }

// Err returns why the node stopped, nil while it runs or after Close.
func (n *Node) Err() error { panic("stub") }

// Close hands leadership over, stops, and waits, bounded by ctx.
func (n *Node) Close(ctx context.Context) error { panic("stub") }

// StateHash returns the state's hash once index at least is applied. Testing only.
func (n *Node) StateHash(ctx context.Context, at uint64) (index uint64, ledger, whole [32]byte, err error) {
	panic("stub")
}

// LogEntry is one entry of this node's log.
type LogEntry struct {
	Index, Term uint64
	Kind        string // command, noop, configuration, barrier
	Data        []byte
}

// DumpLog calls fn for the entries from..to (0: the last) of this node's log. Testing only.
func (n *Node) DumpLog(from, to uint64, fn func(LogEntry) error) error { panic("stub") }
