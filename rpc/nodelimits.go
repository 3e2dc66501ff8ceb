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
			s.resize(nodeLimits{l.GetMaxCalls(), l.GetMaxStreams(), l.GetMaxConnections()})
		})
		select {
		case <-poll.C:
		case <-ctx.Done():
			return
		}
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
