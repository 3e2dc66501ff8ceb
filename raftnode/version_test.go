package raftnode_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"google.golang.org/protobuf/proto"

	"github.com/quotad/quotad/fsm"
	"github.com/quotad/quotad/fsm/logpb"
	"github.com/quotad/quotad/raftnode"
	"github.com/quotad/quotad/raftnode/logstore"
)

// TestVersions_AreTold: a node's status has its own build and those of the members, and the level that entries raised.
func TestVersions_AreTold(t *testing.T) {
	c := newCluster(t, 3, func(conf *raftnode.Config) { conf.Build.Version = "build-of-" + conf.ID })
	c.propose(rate("q", 10))
	eventually(t, "all builds in the leader's status", func() bool {
		status := c.nodes[c.leader()].Status()
		for _, m := range status.Members {
			if m.Build.Version != "build-of-"+m.ID || m.Build.Oldest != fsm.OldestEntryVersion || m.Build.Newest != fsm.EntryVersion {
				return false
			}
		}
		return len(status.Members) == 3 && status.Build.Level == fsm.EntryVersion
	})
}

// TestVersions_UnfitBuildDoesNotJoin: a build that does not apply the cluster's entries is not let in, and the cluster says why; one that
// has an older protocol with its peers neither.
func TestVersions_UnfitBuildDoesNotJoin(t *testing.T) {
	for name, build := range map[string]raftnode.Build{
		"older": {Version: "old", Oldest: 1, Newest: fsm.OldestEntryVersion - 1},
		"newer": {Version: "new", Oldest: fsm.EntryVersion + 1, Newest: fsm.EntryVersion + 2},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.propose(rate("q", 10))
			conf := raftnode.DefaultConfig()
			conf.ID, conf.RaftAddress, conf.DataDir, conf.Build = "n9", freeAddress(t), t.TempDir(), build
			n, err := raftnode.Open(conf)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = n.Close(t.Context()) }()
			err = c.nodes[0].AddLearner(t.Context(), "n9", conf.RaftAddress, "127.0.0.1:1999")
			unfit, ok := errors.AsType[*raftnode.MemberError](err)
			if !ok || !strings.Contains(unfit.Message, "does not fit") || !strings.Contains(unfit.Message, build.Version) {
				t.Fatalf("added with %v", err)
			}
		})
	}
}

// TestVersions_OldLogIsRefused: a log with entries of another meaning is refused when the node opens, with what to do, before any of
// them is applied.
func TestVersions_OldLogIsRefused(t *testing.T) {
	for name, version := range map[string]uint32{"older": fsm.OldestEntryVersion - 1, "newer": fsm.EntryVersion + 1} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 1)
			c.propose(rate("q", 10))
			c.stop(0)
			data, err := proto.Marshal(&logpb.Entry{Version: version, StampNs: 1})
			if err != nil {
				t.Fatal(err)
			}
			raftnode.AppendToLog(t, c.configs[0].DataDir, c.configs[0].ID, raft.Log{Type: raft.LogCommand, Data: data})
			_, err = raftnode.Open(c.configs[0])
			if _, ok := errors.AsType[*fsm.VersionError](err); !ok || !errors.Is(err, logstore.ErrUnfitBuild) {
				t.Fatalf("opened with %v", err)
			}
			offline, err := logstore.OpenOffline(c.configs[0].DataDir)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = offline.Close() }()
			if _, err := offline.State(); !errors.Is(err, logstore.ErrUnfitBuild) {
				t.Fatalf("its state: %v", err)
			}
		})
	}
}
