package raftnode

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
	"github.com/quotad/quotad/raftnode/peer"
)

// ownBuild returns this node's build.
func (n *Node) ownBuild() peer.Build {
	b := n.config.Build
	b.Level = n.level.Load()
	return b
}

// maxBuilds bounds the remembered builds. It exceeds the size of any cluster, since callers choose the names.
const maxBuilds = 64

// builds has the peers' builds, as they reported them.
type builds struct {
	mu sync.Mutex
	of map[string]peer.Build
}

// learn records a build; false: there is no room for another node.
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

// keep forgets all nodes except these.
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

// recordBuild records a peer's build, or returns a wrapped ErrUnfitBuild if it cannot be in one cluster with this node's.
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

// raiseVersion computes the version of the entries that this node proposes. It rises only once every member, learners included, has
// reported that it can apply the new version.
func (n *Node) raiseVersion() {
	servers, own := n.servers(), n.ownBuild()
	n.builds.keep(servers)
	members, all := make([]peer.Build, 0, len(servers)), true
	for _, s := range servers {
		build, known := n.builds.get(string(s.ID))
		switch {
		case string(s.ID) == n.config.ID:
			build, known = own, true
		case !known && own.Level != own.Newest: // its answer reports what it applies
			n.wg.Go(func() { n.askBuild(string(s.ID), string(s.Address)) })
		}
		all = all && known
		members = append(members, build)
	}
	n.entryVersion.Store(versionFor(own, members, all))
}

// EntryVersion returns the version of the entries that this node proposes while it leads. Every member knows the commands of that version.
func (n *Node) EntryVersion() uint32 { return n.entryVersion.Load() }

// askBuild asks a member any question: each answer carries the member's build.
func (n *Node) askBuild(id, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), peer.Timeout)
	defer cancel()
	if _, err := n.port.Ask(ctx, id, address, peer.Request{Kind: "probe"}); err != nil {
		n.logger.Debug("a member did not report its build", "node", id, "error", err)
	}
}

// versionFor returns the version of entries to propose: the newest that all members apply if all are known, but at least that of the state.
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
