package raftnode

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// configurations keeps the newest configuration that this node knows to be committed. The one that raft's GetConfiguration returns may
// still be undone, and raft does not tell its index.
type configurations struct {
	mu      sync.Mutex
	index   uint64
	servers []raft.Server
	// learned has a token while a new configuration waits for judgeMembers.
	learned chan struct{}
}

// learn records a committed configuration. It ignores one older than the newest known: a snapshot may have it.
func (c *configurations) learn(index uint64, configuration raft.Configuration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if index <= c.index {
		return
	}
	c.index, c.servers = index, configuration.Clone().Servers
	select {
	case c.learned <- struct{}{}:
	default:
	}
}

// newest returns the newest configuration and its index; 0: none is known yet. The caller must not change the servers.
func (c *configurations) newest() (index uint64, servers []raft.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index, c.servers
}

// StoreConfiguration implements raft.ConfigurationStore.
func (m machine) StoreConfiguration(index uint64, configuration raft.Configuration) {
	m.n.configured.learn(index, configuration)
}

// Open implements raft.SnapshotStore. A snapshot and its configuration are committed. Raft opens its newest snapshot on start.
func (s *checkedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.SnapshotStore.Open(id)
	if err == nil {
		s.configured.learn(meta.ConfigurationIndex, meta.Configuration)
		s.log.AddSnapshot(meta.Index, meta.Term)
	}
	return meta, state, err
}

// suffrageOf tells whether a node is one of the servers, and whether it votes.
func suffrageOf(servers []raft.Server, id string) (member, voter bool) {
	for _, s := range servers {
		if string(s.ID) == id {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}
