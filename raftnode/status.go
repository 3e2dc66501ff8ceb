package raftnode

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/peer"
)

// Status is a node's view of itself and the cluster.
type Status struct {
	ClusterID                                                 string
	ID                                                        string
	Role                                                      string // leader, follower, candidate, learner or stopped
	Leader, LeaderAPIAddress                                  string
	Term, CommitIndex, AppliedIndex, LastIndex, SnapshotIndex uint64
	// FirstIndex is the index of the first entry in the log; older entries are only in the snapshot.
	FirstIndex uint64
	// Build is this node's build, with the feature level of its state.
	Build   peer.Build
	Members []MemberStatus
	Checks  []Check
	Testing bool
}

// MemberStatus is one member as a node knows it.
type MemberStatus struct {
	ID, RaftAddress, APIAddress string
	Voter, Leader               bool
	// LastContact is negative if unknown.
	LastContact time.Duration
	// MatchIndex is the last index of the member's log; 0 if unknown.
	MatchIndex uint64
	// Build is what the member reported about its binary; zero if this node has not heard from it.
	Build peer.Build
}

// Check is one health check.
type Check struct {
	Name    string
	OK      bool
	Message string
}

// Status returns this node's view. It needs no leader. On the leader, other members are asked at most once per askEvery, however often it
// is called.
func (n *Node) Status() Status {
	s := n.ownStatus()
	s.FirstIndex, _ = n.log.FirstIndex()
	s.SnapshotIndex, _ = strconv.ParseUint(n.raft.Stats()["last_snapshot_index"], 10, 64)
	s.Members = n.memberStatus(s.Leader)
	s.Role = n.role(s.Members)
	s.Checks = n.checks(s)
	return s
}

// Checks returns this node's health checks. It asks no other node.
func (n *Node) Checks() []Check { return n.checks(n.ownStatus()) }

// ownStatus returns what this node knows without asking others.
func (n *Node) ownStatus() Status {
	s := Status{
		ID: n.config.ID, Leader: n.knownLeader(), Term: n.raft.CurrentTerm(), CommitIndex: n.log.Durable(n.raft.CommitIndex()),
		AppliedIndex: n.appliedIndex.Load(), LastIndex: n.raft.LastIndex(), Testing: n.config.Testing, Build: n.ownBuild(),
	}
	if id := n.cluster.Load(); id != nil {
		s.ClusterID = *id
	}
	if s.Leader != "" {
		s.LeaderAPIAddress = n.apiAddress(s.Leader)
	}
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
	var answers map[raft.Server]uint64
	if n.raft.State() == raft.Leader {
		answers = n.logEnds.of(n, servers)
	}
	members := make([]MemberStatus, len(servers))
	for i, s := range servers {
		members[i] = MemberStatus{
			ID: string(s.ID), RaftAddress: string(s.Address), APIAddress: n.apiAddress(string(s.ID)),
			Voter: s.Suffrage == raft.Voter, Leader: string(s.ID) == leader, LastContact: -1,
		}
		members[i].Build, _ = n.builds.get(members[i].ID)
		if members[i].ID == n.config.ID {
			members[i].MatchIndex, members[i].LastContact = n.log.Durable(n.raft.LastIndex()), 0
			members[i].Build = n.ownBuild()
		} else if match, ok := answers[s]; ok {
			members[i].MatchIndex, members[i].LastContact = match, 0
		}
	}
	return members
}

// askEvery is the shortest interval at which a leader asks the other members for their status; askWithin bounds their answers.
const (
	askEvery  = time.Second
	askWithin = 300 * time.Millisecond
)

// logEnds has the ends of the other members' logs from the last round of questions. Concurrent callers share one round.
type logEnds struct {
	mu      sync.Mutex
	at      time.Time
	servers []raft.Server
	answers map[raft.Server]uint64
}

// of returns the log ends of the members that answered. It asks again if the last round is old or covered other members.
func (l *logEnds) of(n *Node, servers []raft.Server) map[raft.Server]uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && time.Since(l.at) < askEvery && slices.Equal(l.servers, servers) {
		return l.answers
	}
	ctx, cancel := context.WithTimeout(context.Background(), askWithin)
	defer cancel()
	type answer struct {
		from  raft.Server
		match uint64
		err   error
	}
	answers, asked := make(chan answer, len(servers)), 0
	for _, s := range servers {
		if string(s.ID) == n.config.ID {
			continue
		}
		asked++
		go func() {
			match, err := n.matchIndex(ctx, s)
			answers <- answer{s, match, err}
		}()
	}
	l.answers = make(map[raft.Server]uint64, asked)
	for range asked {
		if a := <-answers; a.err == nil {
			l.answers[a.from] = a.match
		}
	}
	l.at, l.servers = time.Now(), slices.Clone(servers)
	return l.answers
}

// checks returns this node's health checks.
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
	stalled := n.log.StalledFor()
	unreadable := n.unreadable.Load()
	recorded, misaddressed := n.misaddressed()
	skew, viewAhead := time.Duration(n.skew.Load()), time.Duration(n.viewAhead.Load())
	return []Check{
		check("running", !n.isDone() && !n.stopping.Load(), "the node is stopping%s", n.whyStopping()),
		check("leader", s.Leader != "", "no leader is known%s", n.whyNoLeader()),
		check("applied", lag < 1000, "%d committed entries are not applied yet", lag),
		check("disk", stalled < n.config.StallLimit/2, "a write to the log has been stuck for %v: check the disk",
			stalled.Round(time.Millisecond)),
		check("snapshot", unreadable == nil, "%s", valueOf(unreadable)),
		check("space", !n.diskLow.Load(),
			"less than disk.refuse_below (%s) is free for %s: free some space; if this node leads and no other can, new grants are refused",
			mebibytes(n.config.FreeLow), n.config.DataDir),
		check("memory", !n.memoryFull.Load(),
			"more than %d%% of memory.limit is in use (mark %s): a leader refuses new grants and sessions, a follower holds no waiting "+
				"calls; give the process more memory",
			MemoryMark, mebibytes(n.memoryMark)),
		check("address", !misaddressed, "the members know this node's API at %s, but it advertises %s: the leader records the change within "+
			"seconds, unless another member has that address; then correct api.advertise", recorded, n.config.APIAddress),
		check("clock", skew < mostSkew && skew > -mostSkew, "the wall clock differs by %v from the clocks of the other nodes that "+
			"answer: correct the wrong one", skew.Round(time.Millisecond)),
		check("views", viewAhead < mostAhead,
			"clocks of a majority were wrong: the cluster's view of the time of day is %v ahead of the members' clocks. "+
				"Calendar windows wait until real time has caught up. If that takes too long, correct the clocks and run: quotad clock reset",
			viewAhead.Round(time.Millisecond)),
	}
}

// valueOf returns a text, "" for nil.
func valueOf(text *string) string {
	if text == nil {
		return ""
	}
	return *text
}
