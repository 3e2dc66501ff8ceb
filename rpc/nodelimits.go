package rpc

import (
	"context"
	"fmt"
	"time"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/accounts"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/rpc/quotav1"
)

// followEvery is how often a node compares the sizes of its budgets with the limits of its state.
const followEvery = time.Second

// filesKept is how many open files are kept for other uses than connections to the API port: the operators' port, the log and peers.
const filesKept = DefaultMaxOpsConnections + 256

// nodeLimits are the limits of what callers share of a node.
type nodeLimits struct{ calls, streams, connections int64 }

// FollowLimits applies the limits in this node's state to the budgets of the API port, and to its Listener if there is one, until ctx
// ends. The operators' port has budgets of its own, which do not change.
func (s *Server) FollowLimits(ctx context.Context) {
	poll := time.NewTicker(followEvery)
	defer poll.Stop()
	for {
		_ = s.node.Read(ctx, raftnode.Stale, func(state *fsm.State, _ fsm.Clock, _ raftnode.Position) { // fails once ctx has ended
			l := state.Limits()
			if state.Counts().Quotas > 0 { // an empty cluster grants nothing, and its first leader may lower its budgets
				s.compareState(state.FullMemory())
			}
			s.resize(s.unlessSet(nodeLimits{l.GetMaxCalls(), l.GetMaxStreams(), l.GetMaxConnections()}))
		})
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
	}
}

// unlessSet replaces the limits that have their default values by those of this node's memory.
func (s *Server) unlessSet(l nodeLimits) nodeLimits {
	plan := s.plan
	for _, of := range []struct {
		limit              *int64
		byDefault, planned int64
	}{
		{&l.calls, accounts.DefaultMaxCalls, plan.Calls},
		{&l.streams, accounts.DefaultMaxStreams, plan.Streams},
		{&l.connections, accounts.DefaultMaxConnections, plan.Connections},
	} {
		if *of.limit == of.byDefault {
			*of.limit = of.planned
		}
	}
	return l
}

// compareState warns, once for each change, if the state's budgets together take more memory than this node has for them. Only
// FollowLimits calls it.
func (s *Server) compareState(full int64) {
	if full == s.comparedState {
		return
	}
	s.comparedState = full
	if full > s.plan.State {
		s.logger.Warn("little memory: the budgets of the state need more than this node has for them; once callers fill them, new grants are "+
			"refused (MEMORY_FULL): give the process more memory, or lower the budgets (quotad limits)",
			"budgets", fmt.Sprintf("%d MB", full/1e6), "has", fmt.Sprintf("%d MB", s.plan.State/1e6))
	}
}

// resize changes the sizes of the API port's budgets. Only FollowLimits calls it.
func (s *Server) resize(to nodeLimits) {
	if to == s.followed {
		return
	}
	s.followed = to
	connections := to.connections
	if files := s.config.OpenFiles; files > 0 && connections > files-filesKept {
		connections = max(accounts.MinConnections, files-filesKept)
		s.logger.Warn("too few open files for all connections that the limits allow; raise the limit of open files (LimitNOFILE, ulimit -n)",
			"max_connections", to.connections, "connections", connections, "open_files", files)
	}
	s.budgets.resize(connections, to.calls, to.streams)
	if s.config.Listener != nil {
		s.config.Listener.resize(connections)
	}
}

// ofEachNode checks the limits of what callers share of each node.
func (c *checker) ofEachNode(l *quotav1.Limits) {
	for _, of := range []struct {
		field string
		limit *int64
		least int64
	}{
		{"limits.max_calls", l.MaxCalls, accounts.MinCalls},
		{"limits.max_streams", l.MaxStreams, accounts.MinStreams},
		{"limits.max_connections", l.MaxConnections, accounts.MinConnections},
	} {
		c.check(of.limit == nil || *of.limit >= of.least && *of.limit <= accounts.MaxOfNode, of.field,
			fmt.Sprintf("must be %d to 1,000,000", of.least), "it is a limit of each node")
	}
}
