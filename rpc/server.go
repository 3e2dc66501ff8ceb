package rpc

import (
	"context"
	"crypto/tls"
	"errors"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/budget"
	"github.com/quotad/quotad/rpc/processor"
	"github.com/quotad/quotad/rpc/quotav1"
)

// APIVersion is the version of the API. It rises whenever its schema changes, when a call changes its meaning, and when a call refuses what
// it accepted before.
const APIVersion = 5

// Config configures a Server.
type Config struct {
	// Node does the work. Required.
	Node *raftnode.Node
	// Tokens, if set, are needed by every caller.
	Tokens *Tokens
	// Registry takes metrics and is served at /metrics. Default: a new one.
	Registry *prometheus.Registry
	// Logger takes messages. Default: none.
	Logger hclog.Logger
	// Version is the binary's, for GetStatus.
	Version string
	// PeerTLS, if set, returns the settings for calls to other nodes' APIs. It is called for each connection.
	PeerTLS func() *tls.Config
	// PeerTrust names the setting by which PeerTLS verifies other nodes' certificates, such as api.tls_ca, for errors.
	PeerTrust string
	// Listener, if set, is the API port's: its connections are shown with the other budgets.
	Listener *Listener
	// MaxInFlight is how many calls may be in flight at once, until FollowLimits is called. Default 24,000.
	MaxInFlight int64
	// MaxStreams is how many streams may be open at once, until FollowLimits is called. Default 4,096.
	MaxStreams int64
	// OpenFiles is how many files the process may have open: FollowLimits keeps some for other uses than connections to this port. Default:
	// any.
	OpenFiles int64
	// Memory is the memory limit of the process in bytes, by which FollowLimits sizes what the state's limits leave at their defaults
	// (PlanMemory). Default: no limit.
	Memory int64
	// RequestBytes is how much memory requests may take while they are read and served. Default: as PlanMemory says.
	RequestBytes int64
	// ReadBody is how long the body of a call may take to arrive; for Restore, each piece of it. Default 10 s.
	ReadBody time.Duration
	// WriteAnswer is how long a caller may take to read an answer; for streams, each message. Default 30 s.
	WriteAnswer time.Duration
	// clocks reads the clocks of the processors that callers share. Default: the machine's.
	clocks func() processor.Clocks
}

// DefaultMaxInFlight is how many calls may be in flight at once: ten thousand of one caller, and as many of others.
const DefaultMaxInFlight = accounts.DefaultMaxCalls

// Server serves the API.
type Server struct {
	node    *raftnode.Node
	config  Config
	logger  hclog.Logger
	metrics *metrics
	leaders *leaders
	reach   reach
	started time.Time
	health  health
	// exposition serves metrics at both ports.
	exposition *exposition
	// outcomes counts the outcomes of callers' calls, for health.
	outcomes outcomes
	// followers are calls that were forwarded to other nodes.
	followers *followers

	// budgets are those of the API port; errors writes refusals before a body is read.
	budgets *portBudgets
	// followed are the limits that FollowLimits applied last.
	followed nodeLimits
	// plan divides this node's memory; comparedState is what the state's budgets took when compareState looked last, in bytes.
	plan          MemoryPlan
	comparedState int64
	errors        *connect.ErrorWriter
	// callers is what callers use of the state's budgets, nodeCounts of this node's.
	callers    counted[[]accounts.View]
	nodeCounts counted[[]*quotav1.Budget]
	// requestBytes is the memory that requests at both ports take.
	requestBytes *budget.Budget
	// shares divide the processor's time among callers.
	shares  *processor.Shares
	running underWay
	// drain ends when startDrain drains the node: waits and streams end with it. refusing is set after they have ended.
	drain      context.Context
	startDrain context.CancelFunc
	waits      underWay
	refusing   atomic.Bool
}

// New makes a server.
func New(config Config) (*Server, error) {
	if config.Node == nil {
		return nil, errors.New("the API needs a node")
	}
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	if config.Registry == nil {
		config.Registry = prometheus.NewRegistry()
	}
	if config.MaxInFlight == 0 {
		config.MaxInFlight = DefaultMaxInFlight
	}
	if config.MaxStreams == 0 {
		config.MaxStreams = accounts.DefaultMaxStreams
	}
	plan := PlanMemory(config.Memory)
	if config.RequestBytes == 0 {
		config.RequestBytes = plan.RequestBytes
	}
	if config.ReadBody == 0 {
		config.ReadBody = defaultReadBody
	}
	if config.WriteAnswer == 0 {
		config.WriteAnswer = defaultWrite
	}
	if config.clocks == nil {
		config.clocks = processor.ReadClocks
	}
	dialer := &apiDialer{tls: config.PeerTLS, trust: config.PeerTrust}
	s := &Server{
		node: config.Node, config: config, plan: plan, logger: config.Logger, started: time.Now(),
		metrics: newMetrics(config.Registry, newUsageCollector(config.Node)),
		leaders: &leaders{dialer: dialer, http: &http.Client{Transport: peerTransport(dialer)}, of: map[string]leader{}},
	}
	s.followers = newFollowers(func() string {
		id, _, _ := s.node.Leader()
		return id
	})
	s.budgets = newPortBudgets(DefaultMaxConnections, config.MaxInFlight, config.MaxStreams)
	s.requestBytes = newRequestBytes(config.RequestBytes)
	s.exposition = newExposition(config.Registry)
	s.drain, s.startDrain = context.WithCancel(context.Background())
	s.shares = processor.New(s.drain, func() int {
		if _, _, leads := s.node.Leader(); leads {
			return 0
		}
		return 1 // writing the leader's log is work for others
	}, config.clocks)
	s.errors = connect.NewErrorWriter(codecs())
	budgets := s.nodeBudgets()
	for _, b := range budgets { // each counter exists from the start, at 0
		s.metrics.overspent.WithLabelValues(b.Name(), "caller")
		s.metrics.overspent.WithLabelValues(b.Name(), "full")
	}
	config.Registry.MustRegister(stateCounts{config.Node}, budgetCounts(budgets), checkResults{s})
	return s, nil
}

// shared is a resource of this node that callers share.
type shared interface {
	Name() string
	InUse() (used int64, callers int)
	View() budget.View
}

// nodeBudgets returns what callers share of this node: of its API port and connections, of the queue in which commands wait for the log,
// and of the processor's time.
func (s *Server) nodeBudgets() (all []shared) {
	for _, b := range slices.Concat(s.budgets.all(), []*budget.Budget{s.requestBytes}, s.node.QueueBudgets()) {
		all = append(all, b)
	}
	if s.config.Listener != nil {
		all = append(all, s.config.Listener.callers.shares)
	}
	return append(all, s.shares)
}

// A connection to another node that receives nothing for pingAfter is pinged, and closed if it receives nothing for pingWithin more. So
// the calls of a leader that is stopped or cut off end, also if no other leader is elected.
const (
	pingAfter  = 5 * time.Second
	pingWithin = 5 * time.Second
)

// compressFrom is the shortest answer, in bytes, that is packed for a caller that asks for it. A quarter of a leader's processor time in
// batches went into packing answers for callers next to it.
const compressFrom = 1 << 20

// Handler returns the handler of everything that the API port serves.
func (s *Server) Handler() http.Handler { return s.serveRoutes(s.budgets, s.routes()) }

// OpsHandler returns the handler of the operators' port: pages, health, and the calls of operators, with room of their own. With profiles
// it also serves those of the process: to tokens with the verb debug, where there are tokens.
func (s *Server) OpsHandler(profiles bool) http.Handler {
	b := newOpsBudgets()
	return s.serveRoutes(b, s.opsRoutes(b, profiles))
}

// Drain makes the node unready and ends waits and streams, each with a typed error, while the node can still take them out of the queue.
// Then a leader transfers leadership, so that calls forwarded to it find the next one. From then on Drain refuses calls and waits for
// those in flight, bounded by ctx.
func (s *Server) Drain(ctx context.Context) error {
	s.startDrain()
	err := s.waits.wait(ctx)
	if s.node.LeadsOthers() && err == nil {
		s.transferLeadership(ctx)
	}
	s.refusing.Store(true)
	return s.running.wait(ctx)
}

// transferWithin bounds how long a stopping node waits for another leader; perhaps no node can lead.
const transferWithin = 2 * time.Second

func (s *Server) transferLeadership(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, transferWithin)
	defer cancel()
	to, err := s.node.TransferLeadership(ctx, "")
	if err != nil {
		s.logger.Info("could not transfer leadership", "error", err)
		return
	}
	s.logger.Info("transferred leadership", "to", to)
}

// underWay counts calls in flight.
type underWay struct {
	mu    sync.Mutex
	calls int
	// none, if set, is closed when no call is in flight.
	none chan struct{}
}

func (u *underWay) enter() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.calls++
}

func (u *underWay) leave() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.calls--; u.calls == 0 && u.none != nil {
		close(u.none)
		u.none = nil
	}
}

// wait waits until no call is in flight.
func (u *underWay) wait(ctx context.Context) error {
	u.mu.Lock()
	if u.calls == 0 {
		u.mu.Unlock()
		return nil
	}
	if u.none == nil {
		u.none = make(chan struct{})
	}
	none := u.none
	u.mu.Unlock()
	select {
	case <-none:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *Server) isDraining() bool { return s.drain.Err() != nil }
