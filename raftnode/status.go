package raftnode

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/hashicorp/raft"
)

// Status is a node's view of itself and the cluster.
type Status struct {
	ClusterID                                                 string
	ID                                                        string
	Role                                                      string // leader, follower, candidate, learner, stopped
	Leader, LeaderAPIAddress                                  string
	Term, CommitIndex, AppliedIndex, LastIndex, SnapshotIndex uint64
	// FirstIndex is the first entry that is still in the log: what is older is in the snapshot only.
	FirstIndex uint64
	Members    []MemberStatus
	Checks     []Check
	Testing    bool
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
func (n *Node) Status() Status {
	s := Status{
		ID: n.config.ID, Leader: n.heard(), Term: n.raft.CurrentTerm(), CommitIndex: n.log.durable(n.raft.CommitIndex()),
		AppliedIndex: n.appliedIndex.Load(), LastIndex: n.raft.LastIndex(), Testing: n.config.Testing,
	}
	if id := n.cluster.Load(); id != nil {
		s.ClusterID = *id
	}
	if s.Leader != "" {
		s.LeaderAPIAddress = n.apiAddress(s.Leader)
	}
	s.FirstIndex, _ = n.store.FirstIndex()
	s.SnapshotIndex, _ = strconv.ParseUint(n.raft.Stats()["last_snapshot_index"], 10, 64)
	s.Members = n.memberStatus(s.Leader)
	s.Role = n.role(s.Members)
	s.Checks = n.checks(s)
	return s
}

func (n *Node) role(members []MemberStatus) string {
	switch n.raft.State() {
	case raft.Leader:
		return "leader"
	case raft.Candidate:
		return "candidate"
	case raft.Shutdown:
		return "stopped"
	case raft.Follower:
	}
	for _, m := range members {
		if m.ID == n.config.ID && !m.Voter {
			return "learner"
		}
	}
	return "follower"
}

func (n *Node) memberStatus(leader string) []MemberStatus {
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return nil
	}
	servers := configuration.Configuration().Servers
	members := make([]MemberStatus, len(servers))
	done := make(chan struct{}, len(servers))
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	leads := n.raft.State() == raft.Leader
	for i, s := range servers {
		members[i] = MemberStatus{
			ID: string(s.ID), RaftAddress: string(s.Address), APIAddress: n.apiAddress(string(s.ID)),
			Voter: s.Suffrage == raft.Voter, Leader: string(s.ID) == leader, LastContact: -1,
		}
		go func() {
			defer func() { done <- struct{}{} }()
			if members[i].ID == n.config.ID {
				members[i].MatchIndex = n.log.durable(n.raft.LastIndex())
				members[i].LastContact = 0
			} else if leads {
				if match, err := n.matchIndex(ctx, s); err == nil {
					members[i].MatchIndex, members[i].LastContact = match, 0
				}
			}
		}()
	}
	for range servers {
		<-done
	}
	return members
}

// checks are this node's health checks.
func (n *Node) checks(s Status) []Check {
	check := func(name string, ok bool, format string, args ...any) Check {
		c := Check{Name: name, OK: ok}
		if !ok {
			c.Message = fmt.Sprintf(format, args...)
		}
		return c
	}
	lag := uint64(0)
	if s.CommitIndex > s.AppliedIndex {
		lag = s.CommitIndex - s.AppliedIndex
	}
	stalled := n.store.stalledFor()
	skew := time.Duration(n.skew.Load())
	return []Check{
		check("running", !n.isDone() && !n.stopping.Load(), "the node stops: %v", n.Err()),
		check("leader", s.Leader != "", "no leader is known%s", n.whyUnformed()),
		check("applied", lag < 1000, "%d committed entries are not applied yet", lag),
		check("disk", stalled < n.config.StallLimit/2, "a write has been stuck for %v", stalled.Round(time.Millisecond)),
		check("space", !n.diskLow.Load(), "less than disk.refuse_below (%s) is free for %s: nothing new is granted; free some space",
			mebibytes(n.config.FreeLow), n.config.DataDir),
		check("clock", skew < 2*time.Second && skew > -2*time.Second, "the wall clock is %v off the other nodes'", skew),
	}
}

// measureSkew compares this node's wall clock with the cluster's view.
func (n *Node) measureSkew() {
	early, late, ok := n.samples.views(n)
	if !ok {
		return
	}
	own := n.config.Clock.Wall()
	var skew int64
	switch {
	case own < early:
		skew = own - early
	case own > late:
		skew = own - late
	}
	n.skew.Store(skew)
	n.metrics.skew.Set(float64(skew) / 1e9)
}
