package raftnode

import (
	"context"
	"fmt"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/quotad/quotad/raftnode/logstore"
)

// Build is what a node says of the binary that it runs.
type Build struct {
	// Version is the binary's, for people.
	Version string `json:"build,omitempty"`
	// Oldest and Newest are the versions of log entries that it applies.
	Oldest uint32 `json:"oldest"`
	Newest uint32 `json:"newest"`
	// Level is the feature level of its state; 0: it has applied nothing yet.
	Level uint32 `json:"level"`
}

// fits returns a wrapped ErrUnfitBuild where nodes of two builds cannot be members of one cluster: they have no version of entries in
// common, or one's state is at a level that the other does not apply.
func (b Build) fits(other Build) error {
	for _, pair := range [][2]Build{{b, other}, {other, b}} {
		of, by := pair[0], pair[1]
		if of.Level != 0 && (of.Level < by.Oldest || of.Level > by.Newest) {
			return fmt.Errorf("%w: build %s is at feature level %d, build %s applies levels %d to %d",
				logstore.ErrUnfitBuild, of.name(), of.Level, by.name(), by.Oldest, by.Newest)
		}
	}
	if b.Newest < other.Oldest || other.Newest < b.Oldest {
		return fmt.Errorf("%w: build %s applies levels %d to %d, build %s levels %d to %d",
			logstore.ErrUnfitBuild, other.name(), other.Oldest, other.Newest, b.name(), b.Oldest, b.Newest)
	}
	return nil
}

func (b Build) name() string {
	if b.Version == "" {
		return "unknown"
	}
	return b.Version
}

// ownBuild returns what this node says of itself.
func (n *Node) ownBuild() Build {
	b := n.config.Build
	b.Level = n.level.Load()
	return b
}

// maxBuilds is of how many nodes the builds are remembered: more than a cluster has members, since names come from outside.
const maxBuilds = 64

// builds are those of the peers, as they said themselves.
type builds struct {
	mu sync.Mutex
	of map[string]Build
}

// learn remembers a build; false: too many others are remembered.
func (b *builds) learn(node string, build Build) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.of == nil {
		b.of = map[string]Build{}
	}
	if _, known := b.of[node]; !known && len(b.of) >= maxBuilds {
		return false
	}
	b.of[node] = build
	return true
}

func (b *builds) get(node string) (build Build, known bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	build, known = b.of[node]
	return build, known
}

// keep forgets all nodes but these.
func (b *builds) keep(servers []raft.Server) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := map[string]Build{}
	for _, s := range servers {
		if build, ok := b.of[string(s.ID)]; ok {
			kept[string(s.ID)] = build
		}
	}
	b.of = kept
}

// recordBuild records a peer's build and returns a wrapped ErrUnfitBuild where it cannot be a member of one cluster with this node.
func (n *Node) recordBuild(node string, build Build) error {
	if err := n.ownBuild().fits(build); err != nil {
		return err
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
	members, all := make([]Build, 0, len(servers)), true
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

// askBuild asks a member anything: what it is comes with the answer.
func (n *Node) askBuild(id, address string) {
	ctx, cancel := context.WithTimeout(context.Background(), peerTimeout)
	defer cancel()
	if _, err := n.port.ask(ctx, id, address, peerRequest{Kind: "probe"}); err != nil {
		n.logger.Debug("a member did not say what it applies", "node", id, "error", err)
	}
}

// versionFor returns the version of entries to propose: that of the state, or the newest that all members apply, where all are known.
func versionFor(own Build, members []Build, all bool) uint32 {
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
