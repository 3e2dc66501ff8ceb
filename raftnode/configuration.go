package raftnode

import (
	"io"
	"sync"

	"github.com/hashicorp/raft"
)

// configurations keeps the newest configuration that this node knows to be committed. That which raft's GetConfiguration returns
// may yet be undone, and raft does not say what index it has.
type configurations struct {
	mu      sync.Mutex
	index   uint64
	servers []raft.Server
	// learned has a token where a configuration was learned that nobody has looked at yet.
	learned chan struct{}
}

// learn takes a committed configuration. An older one than is known changes nothing: a snapshot may have it.
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

// newest returns the newest one and its index; 0: none is known yet. The servers are not to be changed.
func (c *configurations) newest() (index uint64, servers []raft.Server) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.index, c.servers
}

// StoreConfiguration implements raft.ConfigurationStore.
func (m machine) StoreConfiguration(index uint64, configuration raft.Configuration) {
	m.n.configured.learn(index, configuration)
}

// Open implements raft.SnapshotStore. What a snapshot holds is committed, with its configuration. Raft opens its newest one when it
// starts.
func (s *checkedSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, state, err := s.SnapshotStore.Open(id)
	if err == nil {
		s.configured.learn(meta.ConfigurationIndex, meta.Configuration)
		s.log.AddSnapshot(meta.Index, meta.Term)
	}
	return meta, state, err
}

// suffrageOf tells whether a node is among servers, and votes there.
func suffrageOf(servers []raft.Server, id string) (member, voter bool) {
	for _, s := range servers {
		if string(s.ID) == id {
			return true, s.Suffrage == raft.Voter
		}
	}
	return false, false
}
