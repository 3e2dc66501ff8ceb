package raftnode

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// ownBuild returns what this node says of itself.
func (n *Node) ownBuild() peer.Build {
	b := n.config.Build
	b.Level = n.level.Load()
	return b
}

// maxBuilds is of how many nodes the builds are remembered: more than a cluster has members, since names come from outside.
const maxBuilds = 64

// builds are those of the peers, as they said themselves.
type builds struct {
	mu sync.Mutex
	of map[string]peer.Build
}

// learn remembers a build; false: too many others are remembered.
func (b *builds) learn(node string, build peer.Build) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string]peer.Build{}
	}
	if _, known := b.of[node]; !known && len(b.of) >= maxBuilds {
		return false
	}
	b.of[node] = build
	return true
}

func (b *builds) get(node string) (build peer.Build, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	build, known = b.of[node]
	return build, known
}

// keep forgets all nodes but these.
func (b *builds) keep(servers []raft.Server) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := map[string]peer.Build{}
	for _, s := range servers {
		if build, ok := b.of[string(s.ID)]; ok {
			kept[string(s.ID)] = build
		}
	}
	b.of = kept
}

// recordBuild records a peer's build and returns a wrapped ErrUnfitBuild where it cannot be a member of one cluster with this node.
func (n *Node) recordBuild(node string, build peer.Build) error {
	if misfit := n.ownBuild().Misfit(build); misfit != "" {
		return fmt.Errorf("%w: %s", logstore.ErrUnfitBuild, misfit)
	}
	if !n.builds.learn(node, build) {
		n.builds.keep(n.servers())
		n.builds.learn(node, build)
	}
	return nil
}

// raiseVersion works out which version the entries that this node proposes have: it rises to the next one only when every member,
// learners too, has said that it can apply it.
func (n *Node) raiseVersion() {
	servers, own := n.servers(), n.ownBuild()
	n.builds.keep(servers)
	members, all := make([]peer.Build, 0, len(servers)), true
	for _, s := range servers {
		build, known := n.builds.get(string(s.ID))
		switch {
		case string(s.ID) == n.config.ID:
			build, known = own, true
		case !known && own.Level != own.Newest: // its answer says what it applies
			n.wg.Go(func() { n.askBuild(string(s.ID), string(s.Address)) })
		}
		all = all && known
		members = append(members, build)
	}
	n.entryVersion.Store(versionFor(own, members, all))
}

// EntryVersion returns the version of entries that this node proposes while it leads: every member knows their commands.
func (n *Node) EntryVersion() uint32 { return n.entryVersion.Load() }

// askBuild asks a member anything: what it is comes with the answer.
func (n *Node) askBuild(id, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), peer.Timeout)
	defer cancel()
	if _, err := n.port.Ask(ctx, id, address, peer.Request{Kind: "probe"}); err != nil {
		n.logger.Debug("a member did not report its build", "node", id, "error", err)
	}
}

// versionFor returns the version of entries to propose: that of the state, or the newest that all members apply, where all are known.
func versionFor(own peer.Build, members []peer.Build, all bool) uint32 {
	at := max(own.Level, own.Oldest)
	if !all {
		return at
	}
	newest := own.Newest
	for _, m := range members {
		newest = min(newest, m.Newest)
	}
	return max(at, newest)
}

// servers returns the members of the latest configuration.
func (n *Node) servers() []raft.Server {
	configuration := n.raft.GetConfiguration()
	if err := configuration.Error(); err != nil {
		return nil
	}
	return configuration.Configuration().Servers
}
